"""The recipes by their names: the function that trains each, and the callback of its landscapes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from landscape.core.errors import JobError, nearest, quoted

TrainFunction = Callable[..., Any]


@dataclass(frozen=True)
class Recipe:
    """A recipe: a module with `train`, whose first argument is a `Training`, and the callback `problem`.

    Args:
        module: its name; it is imported when the recipe is used, since it loads torch.
        about: a description in one line.
    """

    module: str
    about: str

    @property
    def problem(self) -> str:
        """The callback for a job with its landscapes."""
        return f"{self.module}:problem"


RECIPES = {
    "lenet-mnist": Recipe("landscape.recipes.mnist", "LeNet-5 on MNIST's idx files"),
    "lenet-digits": Recipe("landscape.recipes.digits", "LeNet-5 on scikit-learn's digits"),
    "cnn-mnist": Recipe("landscape.recipes.cnn", "two convolutions and dropout on MNIST's idx files"),
    "resnet-cifar10": Recipe("landscape.recipes.cifar10", "ResNet-(6n+2) on CIFAR-10"),
    "resnet50-imagefolder": Recipe(
        "landscape.recipes.imagefolder", "ResNet-50 on photographs in folders, as ImageNet has them"
    ),
}


def recipe(name: str) -> TrainFunction:
    """The training function of a recipe.

    Example:
        >>> import inspect
        >>> list(inspect.signature(recipe("lenet-mnist")).parameters)[:3]
        ['run', 'data', 'epochs']

    Raises:
        JobError: there is no such recipe.
    """
    if name not in RECIPES:
        raise JobError(f"recipe: unknown {quoted(name)}; {nearest(name, RECIPES)}")
    from landscape.problem.callback import import_callback

    return import_callback(f"{RECIPES[name].module}:train")
