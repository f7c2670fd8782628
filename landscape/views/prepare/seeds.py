"""Where lines of other seeds would lie, as the checks of a line found: the band beside its curve."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from landscape.core.grid import Floats
from landscape.surface.record_entries import Check
from landscape.surface.surface import Surface
from landscape.views.prepare.comparable import Comparable

NUMBER = "7"  # of the check that evaluates other lines
NAME = "99 % of other seeds"


@dataclass(frozen=True, eq=False)
class SeedBand(Comparable):
    """The interval of the loss that 99 % of random lines lie in, at places along the axis in ascending order."""

    at: Floats
    low: Floats
    high: Floats


def prepare_seeds(surface: Surface, observable: str) -> SeedBand | None:
    """The band of a line: mean ± prediction interval of the lines of other seeds.

    Returns:
        None for other observables, for planes and volumes, for a line that is not random, and where it was not checked.
    """
    checks = surface.record.checks
    if checks is None or observable != "loss" or len(surface.axes) != 1:
        return None
    if surface.axes[0].record.kind != "random":
        return None
    found = next((each for each in checks.results if each.number == NUMBER), None)
    band = None if found is None else _band(found)
    if band is None or not math.isfinite(surface.origin_loss):
        return band
    return _with_origin(band, surface.origin_loss)


def _band(check: Check) -> SeedBand | None:
    """The numbers of a check as a band; None where a document on disk holds something else."""
    given: Any = check.numbers.get("band")
    columns: list[Any] = [given.get(name) for name in ("at", "low", "high")] if isinstance(given, dict) else []
    if not columns or not all(map(_are_numbers, columns)) or len({len(column) for column in columns}) > 1:
        return None
    order = np.argsort(columns[0])
    at, low, high = (np.asarray(column, np.float64)[order] for column in columns)
    return SeedBand(at, low, high)


def _are_numbers(column: object) -> bool:
    return isinstance(column, Sequence) and all(
        isinstance(each, (int, float)) and math.isfinite(each) and abs(each) < 1e300 for each in column
    )


def _with_origin(band: SeedBand, loss: float) -> SeedBand:
    """All lines run through the origin."""
    place = int(np.searchsorted(band.at, 0.0))
    return SeedBand(np.insert(band.at, place, 0.0), np.insert(band.low, place, loss), np.insert(band.high, place, loss))
