"""The options of a recipe or function: read from texts, and checked against its signature before anything starts."""

from __future__ import annotations

import difflib
import inspect
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import numpy as np
from pydantic import ConfigDict, PydanticSchemaGenerationError, PydanticUserError, TypeAdapter, ValidationError

from landscape.core.errors import JobError, nearest, quoted
from landscape.job.reading import NotYaml, parse_yaml
from landscape.problem.callback import import_callback
from landscape.problem.user_code import INSTALLED, PACKAGE, STANDARD
from landscape.recipes.options import OptionTable, Words
from landscape.recipes.settings import alternatives
from landscape.recipes.table import RECIPES, recipe, refuse_missing_package

# ----------------------------------------------------------------------------------------------------
# What is trained: a recipe by its name, the user's function by 'module:function', or a function itself.

TrainFunction = Callable[..., Any]


@dataclass(frozen=True)
class NamedFunction:
    """A function that trains, named so that another process finds it again.

    Attributes:
        name: its name in messages and in the run.
        reference: a recipe's name, 'module:function', or the function itself.
        folder: where the module is looked up first.
    """

    name: str
    reference: str | TrainFunction
    folder: Path

    @property
    def module(self) -> str | None:
        """'module:function' of the user's function; None for a recipe, and for a function without such a name."""
        return self.reference if isinstance(self.reference, str) and ":" in self.reference else None

    @property
    def is_recipe(self) -> bool:
        """Whether it is a recipe of this package."""
        return isinstance(self.reference, str) and ":" not in self.reference

    def refuse_missing_package(self) -> None:
        """Refuse a recipe whose data cannot be read in this environment, before anything is written for it.

        Raises:
            LandscapeError: the package that reads them is not installed.
        """
        if self.is_recipe:
            refuse_missing_package(str(self.reference))

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
    place = (folder or Path.cwd()).absolute()
    if not place.is_dir():
        raise JobError(f"folder: must be a folder, not {quoted(str(folder))}; leave it out for the current directory")
    if isinstance(function, str):
        if ":" not in function and function not in RECIPES:
            raise JobError(
                f"recipe: must be a recipe or module:function, not {quoted(function)}; {nearest(function, RECIPES)}"
            )
        return NamedFunction(function, function, place)
    if not callable(function):
        raise JobError(f"function: must be a recipe, 'module:function' or a function, not {quoted(function)}")
    named = _by_name(function)
    if named is not None:
        return NamedFunction(named[0], named[0], named[1])
    return NamedFunction(getattr(function, "__qualname__", repr(function)), function, place)


def _by_name(function: TrainFunction) -> tuple[str, Path] | None:
    """'module:function' of a function in one of the user's files, and the folder of that file's top package.

    With them it travels as a name beside its files, and a worker imports it as this process did.
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
    nameless = next((parameter for parameter in rest if parameter.kind is inspect.Parameter.POSITIONAL_ONLY), None)
    if nameless is not None:
        raise JobError(f"function: {name} must take {nameless.name} by name; leave out the '/' after it")
    return {parameter.name: parameter for parameter in rest if parameter.kind is not inspect.Parameter.VAR_POSITIONAL}


# ----------------------------------------------------------------------------------------------------
# The defaults of the options of a recipe or function, in words; a recipe may have another one for each optimiser.


def table_of(recipe: TrainFunction) -> OptionTable:
    """The options of a recipe's loop."""
    return recipe.options  # type: ignore[attr-defined,no-any-return]


def default_words(parameter: inspect.Parameter, table: OptionTable | None = None) -> str:
    """The default of an option, and where a recipe takes it only with some optimisers or schedules, which these are.

    Args:
        table: of the recipe; None for a function of the user's.
    """
    if table is None:
        return _spell(parameter.default)
    by_optimizer = table.defaults_of(parameter.name) or {"": parameter.default}
    optimizers_of: dict[str, list[str]] = {}
    for optimizer, default in by_optimizer.items():
        optimizers_of.setdefault(_spell(default), []).append(optimizer)
    first, *others = optimizers_of
    words = [first, *(f"{default} with {alternatives(optimizers_of[default])}" for default in others)]
    takers = table.takers_of(parameter.name)
    return ", ".join(words) + (f"; only with {takers.field} {alternatives(takers.names)}" if takers else "")


def _spell(default: Any) -> str:
    """A value as it is written on a command line."""
    if isinstance(default, Words):
        return str(default)
    if default is None or default == ():
        return "none"
    if isinstance(default, (tuple, list)):
        return ",".join(map(_spell, default))
    return str(default).lower() if isinstance(default, bool) else quoted(default)


WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    type(None): "none",
    Path: "a path",
}
DECIDED = ("device", "report", "seed")  # options of recipes that --gpus-per-worker or `train` itself decides
LISTS = (list, tuple, Sequence)
TRUE, FALSE = ("true", "yes", "1"), ("false", "no", "0")


def check_options(
    what: NamedFunction,
    function: TrainFunction,
    given: Mapping[str, Any],
    own: Sequence[str] = (),
    *,
    texts: bool = False,
) -> dict[str, Any]:
    """The options of a function, each of the type that its signature names.

    Args:
        given: the values, by the names of the parameters.
        own: the options of the launcher; no parameter without a default may have the name of one.
        texts: whether the values are words of a command line.

    Raises:
        JobError: an option that the function does not have, one that is missing, or a wrong type.
    """
    parameters = {
        name: parameter
        for name, parameter in parameters_of(function, what.name).items()
        if is_option(parameter, what, own)
    }
    clash = next((name for name in parameters if name in own), None)
    if clash is not None:
        raise JobError(
            f"function: {what.name} has an option {clash}, which is one of train's own; give it another name"
        )
    named = {name: each for name, each in parameters.items() if each.kind is not inspect.Parameter.VAR_KEYWORD}
    takes_all = len(named) < len(parameters)
    unknown = next((name for name in given if name not in named), None)
    if unknown is not None and not takes_all:
        ours = difflib.get_close_matches(unknown, own, n=1, cutoff=0.8)
        hint = f"did you mean {ours[0]} of train itself? " if ours else ""
        raise JobError(f"{unknown}: is no option of {what.name}; {hint}{nearest(unknown, list(named))}")
    missing = next((name for name, each in named.items() if each.default is each.empty and name not in given), None)
    if missing is not None:
        raise JobError(f"{missing}: is required by {what.name}; give it a value")
    types_of = _annotations(function)
    checked = {
        name: _check_value(name, value, types_of.get(name, _of_default(parameters.get(name))), texts)
        for name, value in given.items()
    }
    if what.is_recipe:
        table_of(function).check(checked)
    return checked


def is_option(parameter: inspect.Parameter, what: NamedFunction, own: Sequence[str]) -> bool:
    """Whether a parameter is an option of the function; what the launcher decides itself is left at its default."""
    decided = (*own, *DECIDED) if what.is_recipe else own
    return parameter.name not in decided or parameter.default is parameter.empty


def describe_options(
    what: NamedFunction, function: TrainFunction, own: Sequence[str] = ()
) -> list[dict[str, str | None]]:
    """Each option of a function: its `name` on a command line, its `type` and `default` in words.

    An option that must be given has None for its default.
    """
    types_of = _annotations(function)
    table = table_of(function) if what.is_recipe else None
    return [
        {
            "name": f"--{parameter.name.replace('_', '-')}",
            "type": _words(types_of.get(parameter.name, _of_default(parameter))),
            "default": None if parameter.default is parameter.empty else default_words(parameter, table),
        }
        for parameter in parameters_of(function, what.name).values()
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD and is_option(parameter, what, own)
    ]


def option_lines(described: Sequence[Mapping[str, str | None]]) -> list[str]:
    """A line for each option."""
    lines = []
    for option in described:
        default = "required" if option["default"] is None else f"default: {option['default']}"
        lines.append(f"{option['name']}  {option['type']}; {default}")
    return lines


def read_words(words: Sequence[str]) -> dict[str, str]:
    """The values of `--name value`, `--name=value`, `--name` and `--no-name`, as texts by their names.

    Raises:
        JobError: a word that belongs to no option, or an option twice.
    """
    texts: dict[str, str] = {}
    remaining = list(words)
    while remaining:
        word = remaining.pop(0)
        if not word.startswith("--") or word == "--":
            raise JobError(f"train: {quoted(word)} belongs to no option; write --NAME {quoted(word)}")
        written, equals, value = word.removeprefix("--").partition("=")
        name = written.replace("-", "_")
        if not equals:
            if remaining and not remaining[0].startswith("--"):
                value = remaining.pop(0)
            else:
                name, value = (name[3:], "false") if name.startswith("no_") else (name, "true")
        if name in texts:
            raise JobError(f"{name}: is given twice; leave one out")
        texts[name] = value
    return texts


def _annotations(function: TrainFunction) -> dict[str, Any]:
    """The types that a signature names, also by `**options: Unpack[…]`; none where a type cannot be found."""
    try:
        types_of = typing.get_type_hints(function)
        unpacked = [get_args(kind)[0] for kind in types_of.values() if get_origin(kind) is typing.Unpack]
        for kind in unpacked:
            types_of = typing.get_type_hints(kind) | types_of
    except Exception:
        return {}
    return types_of


def _of_default(parameter: inspect.Parameter | None) -> Any:
    """The type of the default of a parameter that names no type; `Any` where that says little."""
    kind = type(None if parameter is None else parameter.default)
    return kind if kind in (bool, int, float, str) else Any


def _check_value(name: str, value: Any, kind: Any, texts: bool) -> Any:
    if texts:
        value = _read(name, value, kind)
    elif isinstance(value, np.generic):
        value = value.item()
    if kind is Any:
        return value
    try:
        adapter = TypeAdapter(kind, config=ConfigDict(arbitrary_types_allowed=True))
    except (PydanticSchemaGenerationError, PydanticUserError, TypeError):
        try:  # a model or a dataclass brings a configuration of its own
            adapter = TypeAdapter(kind)
        except (PydanticSchemaGenerationError, PydanticUserError, TypeError):
            return value
    try:
        # A list may be given for a tuple, and a text for a path; a text that looks like a number is no number.
        converted = isinstance(value, (list, tuple, dict)) or Path in _alternatives(kind)
        return adapter.validate_python(value, strict=not converted)
    except ValidationError:
        raise JobError(f"{name}: must be {_words(kind)}, not {quoted(value)}") from None


def _read(name: str, text: str, kind: Any) -> Any:
    """A word of a command line as a value that may be of this type."""
    kinds = _alternatives(kind)
    if bool in kinds and text.lower() in (*TRUE, *FALSE):
        return text.lower() in TRUE
    if type(None) in kinds and text.lower() in ("none", "null"):
        return None
    for number in (int, float):
        if number in kinds:
            try:
                return number(text)
            except ValueError:
                continue
    if str in kinds:
        return text
    literals = {str(value): value for value in _values_of(kinds)}
    if text in literals:
        return literals[text]
    if any(get_origin(part) in LISTS for part in kinds) and not text.startswith("["):
        text = f"[{text}]"
    try:
        return parse_yaml(text.encode())
    except NotYaml:
        return text
    except ValueError as error:
        raise JobError(f"{name}: {str(error).partition(': ')[2]}") from None


def _alternatives(kind: Any) -> list[Any]:
    """The types of a union, the values of a Literal; a type alone as it is."""
    origin = get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return [alternative for part in get_args(kind) for alternative in _alternatives(part)]
    if origin is Literal:
        return list(get_args(kind))
    if origin is typing.Annotated:
        return _alternatives(get_args(kind)[0])
    return [kind]


def _values_of(kinds: Sequence[Any]) -> list[Any]:
    """Those of the alternatives that are values of a Literal."""
    return [kind for kind in kinds if not isinstance(kind, type) and not get_origin(kind)]


def _words(kind: Any) -> str:
    """A type in words."""
    if kind is Any:
        return "any value"
    kinds = _alternatives(kind)
    values = _values_of(kinds)
    words = [_word(part) for part in kinds if part not in values]
    if values:
        words.append(f"one of {', '.join(map(str, values))}")
    return " or ".join(dict.fromkeys(words))


def _word(kind: Any) -> str:
    """One type in words."""
    origin = get_origin(kind)
    if origin is Callable:
        return "a function"
    if origin in LISTS:
        return f"a list of {_many(_words(get_args(kind)[0]))}" if get_args(kind) else "a list"
    return WORDS.get(kind) or str(kind if origin else getattr(kind, "__name__", kind))


def _many(words: str) -> str:
    """The plural of a type in words: "whole numbers" for "a whole number"."""
    if " or " in words or not words.startswith("a "):
        return f"{words} each"
    head, of, rest = words.removeprefix("a ").partition(" of ")
    return f"{head}s{of}{rest}"
