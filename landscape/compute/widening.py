"""Ranges of an extension: checked, and continued by whole steps of the coordinates that are there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from landscape.core.errors import JobError, shown
from landscape.core.grid import AXIS_NAMES, Grid, as_written, axis_coordinates

Ranges = Sequence[tuple[float, float]]
FARTHEST = 64  # how many steps are tried for a range that can be proposed


def parse_ranges(ranges: Any) -> list[tuple[float, float]]:
    """Ranges as pairs of floats.

    Raises:
        JobError: they are something else than pairs of finite numbers, the lower one first.
    """
    try:
        pairs = [(float(low), float(high)) for low, high in ranges]
    except (TypeError, ValueError, OverflowError):
        pairs = []
    if not pairs or not all(low < high and math.isfinite(low) and math.isfinite(high) for low, high in pairs):
        raise JobError(f"ranges: must be pairs of finite numbers, low < high, such as [(-2, 2)], not {shown(ranges)}")
    return pairs


def per_axis(ranges: Ranges, axes: int) -> list[tuple[float, float]]:
    """One range for each axis.

    Raises:
        JobError: there is neither one nor one for each axis.
    """
    if len(ranges) not in (1, axes):
        raise JobError(f"ranges: must be one for all axes or one per axis ({axes}), not {len(ranges)}")
    return (list(ranges) * axes)[:axes]


def wider_sizes(name: str, grid: Grid, ranges: Ranges) -> list[int]:
    """How many points each axis has over wider ranges.

    Args:
        name: of the landscape, for messages.
        ranges: one for each axis.

    Raises:
        JobError: a range is not wider by whole steps, or an axis has coordinates that no range continues.
    """
    return [
        _wider_size(name, axis, coordinates, limits)
        for axis, coordinates, limits in zip(AXIS_NAMES, grid.coordinates, ranges, strict=False)
    ]


def _wider_size(name: str, axis: str, coordinates: np.ndarray, limits: tuple[float, float]) -> int:
    first, last = (_exact(end) for end in (coordinates[0], coordinates[-1]))
    size = len(coordinates)
    step = (last - first) / (size - 1)
    low, high = map(_exact, limits)
    below, above = (first - low) / step, (high - last) / step
    if low == first and high == last:
        return size
    if not np.array_equal(axis_coordinates(size, float(first), float(last)), coordinates):
        raise JobError(
            f"ranges: landscape {shown(name)} cannot be extended along {axis}: its coordinates were fitted, and those "
            f"of no range go on from them; leave [{', '.join(map(as_written, coordinates[[0, -1]]))}], or compute the "
            "wider range under another name"
        )
    if below < 0 or above < 0 or below.denominator != 1 or above.denominator != 1:
        near = (_near(first, -step, below), _near(last, step, above))
        has, asked, proposed = (", ".join(map(as_written, ends)) for ends in (coordinates[[0, -1]], limits, near))
        raise JobError(
            f"ranges: must be wider than [{has}] along {axis} by whole steps of {float(step):g}, not [{asked}]; such "
            f"as [{proposed}]"
        )
    return size + int(below) + int(above)


def _exact(number: float) -> Fraction:
    """The number as the user wrote it, as `axis_coordinates` takes it."""
    return Fraction(repr(float(number)))


def _near(end: Fraction, step: Fraction, wanted: Fraction) -> float:
    """The end moved by whole steps, those wanted or a few more, so that it can be written: not by thirds of one."""
    about = max(0, math.ceil(wanted))  # a narrower range than was asked for would not do
    tried = sorted(range(max(0, about - FARTHEST), about + FARTHEST), key=lambda steps: abs(steps - about))
    exact = (float(end + steps * step) for steps in tried if _exact(float(end + steps * step)) == end + steps * step)
    return next(exact, float(end))
