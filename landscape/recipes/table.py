"""The recipes by their names: what trains each of them, and the callback of its landscapes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from landscape.core.errors import JobError, nearest, quoted

TrainFunction = Callable[..., Any]


@dataclass(frozen=True)
class Recipe:
    """A recipe.

    Args:
        load: imports the function that trains it: its first argument is a `Training`, the others are its options.
        problem: the callback of a job that computes its landscapes.
        about: what it is, in a line.
    """

    load: Callable[[], TrainFunction]
    problem: str
    about: str


def _digits() -> TrainFunction:
    from landscape.recipes.digits import train

    return train


def _mnist() -> TrainFunction:
    from landscape.recipes.mnist import train

    return train


def _cnn() -> TrainFunction:
    from landscape.recipes.cnn import train

    return train


def _cifar10() -> TrainFunction:
    from landscape.recipes.cifar10 import train

    return train


def _imagefolder() -> TrainFunction:
    from landscape.recipes.imagefolder import train

    return train


RECIPES = {
    "lenet-mnist": Recipe(_mnist, "landscape.recipes.mnist:problem", "LeNet-5 on MNIST's idx files"),
    "lenet-digits": Recipe(_digits, "landscape.recipes.digits:problem", "LeNet-5 on scikit-learn's digits"),
    "cnn-mnist": Recipe(_cnn, "landscape.recipes.cnn:problem", "two convolutions and dropout on MNIST's idx files"),
    "resnet-cifar10": Recipe(_cifar10, "landscape.recipes.cifar10:problem", "ResNet-(6n+2) on CIFAR-10"),
    "resnet50-imagefolder": Recipe(
        _imagefolder,
        "landscape.recipes.imagefolder:problem",
        "ResNet-50 on photographs in folders, as ImageNet has them",
    ),
}


def recipe(name: str) -> TrainFunction:
    """The function that trains a recipe.

    Example:
        >>> import inspect
        >>> list(inspect.signature(recipe("lenet-mnist")).parameters)[:3]
        ['run', 'data', 'epochs']

    Raises:
        JobError: there is no such recipe.
    """
    if name not in RECIPES:
        raise JobError(f"recipe: unknown {quoted(name)}; {nearest(name, RECIPES)}")
    return RECIPES[name].load()
