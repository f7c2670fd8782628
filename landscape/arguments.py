"""Rules of single arguments that a user gives to a function: whole numbers and finite ones. A bool is neither."""

from __future__ import annotations

import math
from typing import Any, TypeGuard

from landscape.errors import JobError, shown


def check_whole(name: str, value: Any, least: int) -> None:
    """Refuse what is no whole number, or below `least`.

    >>> check_whole("epochs", 2.5, 1)
    Traceback (most recent call last):
    landscape.errors.JobError: epochs: must be a whole number from 1 on, not 2.5

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
