"""The recipes by their names: the function that trains each, and the callback of its landscapes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from landscape.core.errors import JobError, LandscapeError, nearest, quoted

TrainFunction = Callable[..., Any]


@dataclass(frozen=True)
class Recipe:
    """A recipe: a module with `train`, whose first argument is a `Training`, and the callback `problem`.

    Args:
        module: its name; it is imported when the recipe is used, since it loads torch.
        about: a description in one line.
        package: what reads its data, where that is no requirement of this package; '' for none.
        extra: of this package, with which that is installed.
    """

    module: str
    about: str
    package: str = ""
    extra: str = ""

    @property
    def problem(self) -> str:
        """The callback for a job with its landscapes."""
        return f"{self.module}:problem"


RECIPES = {
    "lenet-mnist": Recipe("landscape.recipes.mnist", "LeNet-5 on MNIST's idx files"),
    "lenet-digits": Recipe("landscape.recipes.digits", "LeNet-5 on scikit-learn's digits", "sklearn", "recipes"),
    "gpt-small": Recipe("landscape.recipes.gpt", "a GPT of 0.8 million weights on bytes of text"),
    "cnn-mnist": Recipe("landscape.recipes.cnn", "two convolutions and dropout on MNIST's idx files"),
    "resnet-cifar10": Recipe("landscape.recipes.cifar10", "ResNet-(6n+2) on CIFAR-10"),
    "resnet50-imagefolder": Recipe(
        "landscape.recipes.imagefolder", "ResNet-50 on photographs in folders, as ImageNet has them", "PIL", "images"
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


def refuse_missing_package(name: str) -> None:
    """Refuse a recipe whose data cannot be read here, before anything is written for it.

    Raises:
        LandscapeError: the package that reads them is not installed; says how it is.
    """
    package = RECIPES[name].package
    if package and find_spec(package) is None:
        raise LandscapeError(
            f"recipe: {name} reads its data with {package}, which is not installed: pip install "
            f"'loss-landscape-cluster[{RECIPES[name].extra}]'"
        )
