"""One line of a table of measures: a number with its errors, or the reason why there is none."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from landscape.core.statistics import Interval
from landscape.core.validation import is_number

NUMBERS = ("value", "stderr", "low", "high", "above", "below")


@dataclass(frozen=True)
class Row:
    """A measure of one set of weights.

    Attributes:
        value: None where it could not be measured, or only bounds of it.
        stderr: its standard error over the samples; None where it has none.
        low, high: the ends of its 95 % interval over directions, or over the probes of a trace; None where it has none.
        draws: how many directions or probes these ends are from.
        note: why there is no value, or what must be known of it.
        above, below: bounds of a value that is not known: it is larger than the one, and smaller than the other.
    """

    value: float | None
    stderr: float | None = None
    low: float | None = None
    high: float | None = None
    draws: int | None = None
    note: str = ""
    above: float | None = None
    below: float | None = None

    @property
    def is_bound(self) -> bool:
        """Whether bounds are all that is known."""
        return self.value is None and (self.above, self.below) != (None, None)

    def document(self) -> dict[str, Any]:
        """As it stands in measures.json: what is left out is None or empty."""
        known = {each.name: getattr(self, each.name) for each in fields(self)}
        return {"value": self.value} | {name: value for name, value in known.items() if value not in (None, "")}

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> Row:
        """The inverse; what has another type is taken for absent."""
        numbers = {name: finite(document.get(name)) for name in NUMBERS}
        draws = document.get("draws")
        return cls(**numbers, draws=draws if isinstance(draws, int) else None, note=str(document.get("note", "")))


def row_of(
    value: float, stderr: float | None = None, interval: Interval | None = None, draws: int | None = None,
    note: str = "", *, missing: str = "the loss is not finite there",
) -> Row:  # fmt: skip
    """The row of a number; where that is not finite, with the reason `missing` in place of it."""
    if not math.isfinite(value):
        return Row(None, note="; ".join(filter(None, (missing, note))))
    low, high = (None, None) if interval is None else (finite(interval.low), finite(interval.high))
    return Row(value, finite(stderr), low, high, None if low is None else draws, note)


def finite(value: Any) -> float | None:
    """A number as it is; None for all else."""
    return float(value) if is_number(value) else None
