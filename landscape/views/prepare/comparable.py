"""Frozen values that hold arrays and compare by content, so that tests can compare what was prepared."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np


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
