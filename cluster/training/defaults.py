"""What the options of a recipe or function are by default, in words: by optimiser, where recipes differ in that."""

from __future__ import annotations

import inspect
from typing import Any

from cluster.training.function import TrainFunction
from landscape.core.errors import shown
from landscape.recipes.settings import OptionTable, Words, alternatives


def table_of(recipe: TrainFunction) -> OptionTable:
    """The options of a recipe's loop."""
    return recipe.options  # type: ignore[attr-defined,no-any-return]


def default_words(parameter: inspect.Parameter, table: OptionTable | None = None) -> str:
    """The default of an option that has one, and with which optimisers or schedules alone a recipe takes it.

    Args:
        table: of the recipe; None for a function of the user's.
    """
    if table is None:
        return _spelled(parameter.default)
    by_optimizer = table.defaults_of(parameter.name) or {"": parameter.default}
    optimizers_of: dict[str, list[str]] = {}
    for optimizer, default in by_optimizer.items():
        optimizers_of.setdefault(_spelled(default), []).append(optimizer)
    first, *others = optimizers_of
    words = [first, *(f"{other} with {alternatives(optimizers_of[other])}" for other in others)]
    taken = table.takers_of(parameter.name)
    return ", ".join(words) + (f"; only with {taken[0]} {alternatives(taken[1])}" if taken else "")


def _spelled(default: Any) -> str:
    """A value as a command line has it."""
    if isinstance(default, Words):
        return str(default)
    if default is None or default == ():
        return "none"
    if isinstance(default, (tuple, list)):
        return ",".join(map(_spelled, default))
    return str(default).lower() if isinstance(default, bool) else shown(default)
