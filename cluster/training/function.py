"""What is trained: a recipe by its name, the user's function by 'module:function', or a function itself."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from landscape.core.errors import JobError, nearest, shown
from landscape.problem.callback import import_callback
from landscape.problem.user_code import INSTALLED, PACKAGE, STANDARD
from landscape.recipes.table import RECIPES, recipe

TrainFunction = Callable[..., Any]


@dataclass(frozen=True)
class NamedFunction:
    """A function that trains, as it is found again in another process.

    Attributes:
        name: how messages and the run call it.
        reference: a recipe's name, 'module:function', or the function itself.
        folder: where the module is looked up first.
    """

    name: str
    reference: str | TrainFunction
    folder: Path

    @property
    def module(self) -> str | None:
        """'module:function' of a function of the user's; None for a recipe, and for a function without such a name."""
        return self.reference if isinstance(self.reference, str) and ":" in self.reference else None

    @property
    def is_recipe(self) -> bool:
        """Whether it is a recipe of this package's."""
        return isinstance(self.reference, str) and ":" not in self.reference

    def load(self) -> TrainFunction:
        """The function.

        Raises:
            JobError: its module cannot be imported, or has no such function.
        """
        if not isinstance(self.reference, str):
            return self.reference
        if self.is_recipe:
            return recipe(self.reference)
        return import_callback(self.reference, self.folder, "function", "in the folder")


def named_function(function: str | TrainFunction, folder: Path | None = None) -> NamedFunction:
    """What is to be trained.

    Args:
        function: a recipe's name, 'module:function', or a function.
        folder: where the module of 'module:function' is looked up first; default: the current directory.

    Raises:
        JobError: there is no such recipe, or it cannot be called.
    """
    here = (folder or Path.cwd()).absolute()
    if not here.is_dir():
        raise JobError(f"folder: must be a folder, not {shown(str(folder))}; leave it out for the current directory")
    if isinstance(function, str):
        if ":" not in function and function not in RECIPES:
            raise JobError(
                f"recipe: must be a recipe or module:function, not {shown(function)}; {nearest(function, RECIPES)}"
            )
        return NamedFunction(function, function, here)
    if not callable(function):
        raise JobError(f"function: must be a recipe, 'module:function' or a function, not {shown(function)}")
    named = _by_name(function)
    if named is not None:
        return NamedFunction(named[0], named[0], named[1])
    return NamedFunction(getattr(function, "__qualname__", repr(function)), function, here)


def _by_name(function: TrainFunction) -> tuple[str, Path] | None:
    """'module:function' of a function in a file of the user's, and the folder of that file's top package.

    So it travels as its name beside its files, and a worker imports it as this process did.
    """
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    file = getattr(sys.modules.get(module or ""), "__file__", None)
    if not module or module == "__main__" or not name.isidentifier() or file is None:
        return None
    if getattr(sys.modules[module], name, None) is not function:
        return None
    depth = module.count(".") + (Path(file).name == "__init__.py")
    folder = Path(file).absolute().parents[depth]
    if str(folder).startswith((*INSTALLED, *STANDARD)) or folder == PACKAGE.parent:
        return None  # it is installed on the workers too
    return f"{module}:{name}", folder


def parameters_of(function: TrainFunction, name: str) -> dict[str, inspect.Parameter]:
    """The parameters that are options: all but the first one, which is the `Training`.

    Raises:
        JobError: the function takes no `Training`, or an option without a name.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        raise JobError(f"function: {name} must be a function of a Training, which it does not say") from None
    if inspect.isclass(function) or inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise JobError(f"function: {name} must train when it is called; a class, `async def` and `yield` train nothing")
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if not parameters or parameters[0].kind not in positional:
        raise JobError(f"function: {name} must take a Training as its first argument: def train(training, …)")
    rest = parameters[1:]
    nameless = next((each for each in rest if each.kind is inspect.Parameter.POSITIONAL_ONLY), None)
    if nameless is not None:
        raise JobError(f"function: {name} must take {nameless.name} by name; leave out the '/' after it")
    return {each.name: each for each in rest if each.kind is not inspect.Parameter.VAR_POSITIONAL}
