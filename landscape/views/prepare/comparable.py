"""Frozen values that hold arrays and compare by content, so that tests can compare what was prepared."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from landscape.surface.surface import NOT_COMPUTED, NOT_FINITE, OK, QUARANTINED, Surface


def same(one: Any, other: Any) -> bool:
    """Equality by content; NaN equals NaN, and arrays of another type or shape differ."""
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        if not (isinstance(one, np.ndarray) and isinstance(other, np.ndarray)):
            return False
        numeric = one.dtype.kind == "f"
        return one.dtype == other.dtype and np.array_equal(one, other, equal_nan=numeric)
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (one != one and other != other)
    return bool(one == other)


class Comparable:
    """Base of the prepared dataclasses, which are declared with `@dataclass(frozen=True, eq=False)`."""

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        return all(same(getattr(self, field.name), getattr(other, field.name)) for field in fields)

    __hash__ = None  # type: ignore[assignment]


# ----------------------------------------------------------------------------------------------------
# Points counted by their status, over all levels of a refined landscape.


def count_statuses(status: NDArray[np.uint8]) -> tuple[int, ...]:
    """How many of these points have each status, 0 to 3."""
    return tuple(int((status == code).sum()) for code in (NOT_COMPUTED, OK, NOT_FINITE, QUARANTINED))


def is_evaluated(surface: Surface) -> NDArray[np.bool_]:
    """Which points were evaluated, those whose value is not finite among them; not those interpolated between them."""
    computed = np.isin(surface.status, (OK, NOT_FINITE))
    return computed if surface.interpolated is None else computed & (surface.interpolated == 0)


def point_counts(surface: Surface) -> tuple[int, ...]:
    """How many points have each status, 0 to 3; of all levels, those that were evaluated or are still to be."""
    if surface.interpolated is None:
        return count_statuses(surface.status)
    missing, *others = count_statuses(surface.status[surface.interpolated == 0])
    return (missing + surface.unfinished, *others)
