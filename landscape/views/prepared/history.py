"""The training history as a figure shows it: what was recorded over training, and which stretches landscapes cover."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from landscape.surface import Surface
from landscape.views.prepared.comparable import Comparable
from landscape.views.prepared.wording import finite

MOST_POINTS = 3000


@dataclass(frozen=True, eq=False)
class Series(Comparable):
    """One recorded quantity `y` over the steps or epochs `x` of training."""

    name: str
    x: NDArray[np.float64]
    y: NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """The stretch of training that one landscape's path covers."""

    name: str
    start: float
    stop: float


@dataclass(frozen=True, eq=False)
class HistoryData(Comparable):
    """What the history figure shows; `unit` is what x counts."""

    unit: str
    series: tuple[Series, ...]
    intervals: tuple[Interval, ...]


def prepare_history(
    rows: Sequence[Mapping[str, Any]], surfaces: Sequence[Surface] = (), steps_per_epoch: Any = None
) -> HistoryData | None:
    """The recorded quantities, loss first and learning rate last, over epochs where the surfaces' paths count them.

    Args:
        rows: what the training recorded, one mapping per step or epoch (`history.jsonl`).
        surfaces: landscapes whose paths are shaded, where they count in the unit of the figure.
        steps_per_epoch: turns steps into epochs; where it is no number, each row's own epoch serves.

    Returns:
        None where nothing was recorded.
    """
    paths = [
        (surface.name, surface.path) for surface in surfaces if surface.path is not None and len(surface.path.step)
    ]
    unit = "epoch" if (paths and all(path.unit == "epoch" for _, path in paths)) or not _has(rows, "step") else "step"
    per_epoch = finite(steps_per_epoch)
    names = {key for row in rows for key, value in row.items() if finite(value) is not None} - {"step", "epoch"}
    order = sorted(names, key=lambda name: (name != "loss", name == "learning_rate", name))
    series = [_series(rows, name, unit, per_epoch) for name in order]
    recorded = tuple(one for one in series if len(one.x))
    if not recorded:
        return None
    intervals = [Interval(name, float(path.step[0]), float(path.step[-1])) for name, path in paths if path.unit == unit]
    return HistoryData(unit, recorded, tuple(intervals))


def _has(rows: Sequence[Mapping[str, Any]], key: str) -> bool:
    return any(finite(row.get(key)) is not None for row in rows)


def _series(rows: Sequence[Mapping[str, Any]], name: str, unit: str, per_epoch: float | None) -> Series:
    points = []
    for row in rows:
        value, x = finite(row.get(name)), _place(row, unit, per_epoch)
        if x is not None and value is not None:
            points.append((x, value))
    every = -(-len(points) // MOST_POINTS) or 1
    array = np.array(points[::every], np.float64).reshape(-1, 2)
    return Series(name, array[:, 0], array[:, 1])


def _place(row: Mapping[str, Any], unit: str, per_epoch: float | None) -> float | None:
    """Where a row stands on the axis: at its step, or at its epoch, a fraction of one where that can be told."""
    step, epoch = finite(row.get("step")), finite(row.get("epoch"))
    if unit == "step":
        return step
    return step / per_epoch if per_epoch and step is not None else epoch


def name_rows(intervals: Sequence[Interval], low: float, high: float) -> list[int]:
    """The row, 0 the lowest, for each interval's name above a figure from `low` to `high`: no two names overlap."""
    span = (high - low) or 1.0
    ends: list[float] = []
    rows = []
    for interval in intervals:
        half = (len(interval.name) * 6.5 + 10) / 2 / 360 * span  # 360 px: the plot on a narrow page
        middle = (interval.start + interval.stop) / 2
        row = next((k for k, end in enumerate(ends) if middle - half >= end), len(ends))
        ends[row : row + 1] = [middle + half]
        rows.append(row)
    return rows
