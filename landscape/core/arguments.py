"""Rules of what a user gives: whole numbers, finite ones, coordinates; JSON in which no key stands twice."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import ArrayLike

from landscape.core.errors import JobError, shown

FARTHEST = float(np.finfo(np.float32).max)


class RepeatedKey(ValueError):
    """A key of JSON that stands twice in one object, of which most readers silently take the last value."""

    def __init__(self, key: str) -> None:
        super().__init__(f"key {shown(key)} stands twice; keep one")
        self.key = key


def parse_json(content: str | bytes, **options: Any) -> Any:
    """The value of a JSON document, as `json.loads` has it, refused where a key stands twice.

    >>> parse_json('{"size": 3, "size": 4}')
    Traceback (most recent call last):
    landscape.core.arguments.RepeatedKey: key 'size' stands twice; keep one

    Raises:
        ValueError, RecursionError: it is no JSON; `RepeatedKey` where a key stands twice.
    """
    return json.loads(content, object_pairs_hook=_without_repeats, **options)


def _without_repeats(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise RepeatedKey(next(name for place, name in enumerate(names) if name in names[:place]))
    return found


def check_whole(name: str, value: Any, least: int) -> None:
    """Refuse what is no whole number, or below `least`.

    >>> check_whole("epochs", 2.5, 1)
    Traceback (most recent call last):
    landscape.core.errors.JobError: epochs: must be a whole number from 1 on, not 2.5

    Raises:
        JobError: names the argument.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise JobError(f"{name}: must be a whole number from {least} on, not {shown(value)}")


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a value is a number that a float can hold, and finite.

    >>> [is_number(value) for value in (1, 0.5, True, "1", math.nan, 10**400)]
    [True, True, False, False, False, False]
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number above all floats
        return False


def refuse_too_far(what: str, coordinates: ArrayLike, precision: str) -> None:
    """Refuse coordinates that numbers of the precision cannot hold; weights there could not be set.

    Args:
        what: the field that gave them.

    Raises:
        JobError: one of them is beyond ±3.4e38, and the precision is not float64.

    >>> refuse_too_far("at", [0.5, 1e99], "float32")
    Traceback (most recent call last):
    landscape.core.errors.JobError: at: must be within ±3.4e+38, which float32 can hold, not 1e+99; choose nearer points
    """
    table = np.abs(np.asarray(coordinates, np.float64))
    if precision != "float64" and (table > FARTHEST).any():
        raise JobError(
            f"{what}: must be within ±{FARTHEST:.2g}, which {precision} can hold, not {table.max():g}; "
            "choose nearer points"
        )
