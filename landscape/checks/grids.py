"""Numbers of the grid that the checks judge: how well it predicts its own points, and its parabola at the centre."""

from __future__ import annotations

import math

import numpy as np

from landscape.checks.evidence import Evidence
from landscape.checks.rules.curvature import OfGrid
from landscape.checks.rules.resolution import Resolution
from landscape.grid import Floats, Index
from landscape.topology.features import noise_threshold
from landscape.topology.persistence import minimum_pairs

LEAST_POINTS = 5  # per axis: every second point left out leaves three
MOST_CELLS = 256**2  # of which minima are counted: more take seconds
PERCENTILE = 95


def resolution_of(evidence: Evidence) -> Resolution | None:
    """How well the grid without every second point predicts that; None where it is too small or flat."""
    values, coordinates = evidence.values, [axis.coordinates for axis in reversed(evidence.surface.axes)]
    if min(values.shape) < LEAST_POINTS or not evidence.relief > 0:
        return None
    errors = [_left_out(values, coordinates, stride) / evidence.relief for stride in (2, 4)]
    if not math.isfinite(errors[0]):
        return None
    minima = None
    if values.size <= MOST_CELLS:
        least = noise_threshold(evidence.surface)
        grids = (values, values[tuple(slice(None, None, 2) for _ in values.shape)])
        whole, half = (sum(pair.persistence > least for pair in minimum_pairs(grid)) for grid in grids)
        minima = (whole, half)
    return Resolution(errors[0], errors[1], minima, values.shape[::-1])


def _left_out(values: Floats, coordinates: list[Floats], stride: int) -> float:
    """The 95th percentile of |interpolated − there| over the points left out; NaN where there are none."""
    ends = [(size - 1) // stride * stride + 1 for size in values.shape]
    if min(ends) < stride + 1:
        return math.nan
    part = values[tuple(slice(end) for end in ends)]
    predicted = part[tuple(slice(None, None, stride) for _ in ends)]
    for axis, end in enumerate(ends):
        predicted = _interpolated(predicted, coordinates[axis][:end], stride, axis)
    left_out = np.ones(part.shape, bool)
    left_out[tuple(slice(None, None, stride) for _ in ends)] = False
    errors = np.abs(predicted - part)[left_out]
    errors = errors[np.isfinite(errors)]
    return float(np.percentile(errors, PERCENTILE)) if errors.size else math.nan


def _interpolated(values: Floats, coordinates: Floats, stride: int, axis: int) -> Floats:
    """Values at every `stride`-th coordinate, interpolated linearly at all of them; NaN beside NaN."""
    last = len(range(0, len(coordinates), stride)) - 1
    places = np.arange(len(coordinates))
    left = np.minimum(places // stride, last - 1)
    start, end = coordinates[left * stride], coordinates[(left + 1) * stride]
    shape = [-1 if dimension == axis else 1 for dimension in range(values.ndim)]
    weight = ((coordinates - start) / (end - start)).reshape(shape)
    low, high = values.take(left, axis), values.take(left + 1, axis)
    # A weight of 0 must not meet the NaN of a point that it does not need.
    return np.where(weight == 0, low, np.where(weight == 1, high, (1 - weight) * low + weight * high))


def at_centre(evidence: Evidence, axis: str, curvature: float) -> OfGrid | None:
    """The second difference of the grid at the origin along an axis; None where a neighbour is missing.

    Args:
        curvature: dᵀHd.
    """
    index = evidence.origin_index
    if index is None:
        return None
    dimension = [each.name for each in reversed(evidence.surface.axes)].index(axis)
    coordinates = evidence.surface.axis(axis).coordinates
    place = index[dimension]
    if not 0 < place < len(coordinates) - 1:
        return None
    step = float(coordinates[place + 1] - coordinates[place])
    if not math.isclose(step, float(coordinates[place] - coordinates[place - 1]), rel_tol=1e-6):
        return None

    def at(offset: int) -> float:
        moved: Index = (*index[:dimension], place + offset, *index[dimension + 1 :])
        return float(evidence.values[moved])

    difference = (at(1) - 2 * at(0) + at(-1)) / step**2
    return OfGrid(axis, difference, curvature, step) if math.isfinite(difference) else None
