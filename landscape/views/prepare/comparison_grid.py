"""Two grids brought to the same points: the coordinates that they share, and the values of either there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from landscape.core.errors import JobError, shown
from landscape.surface.surface import NOT_COMPUTED, OK
from landscape.views.prepare.comparable import Comparable
from landscape.views.prepare.scale import STATES

Floats = NDArray[np.float64]
States = NDArray[np.uint8]

ROUNDING = 1e-9  # of an axis: coordinates that differ by less are the same
RANKS = (OK, *STATES)  # of several reasons for a point to be missing, the last one here counts, as it is the rarest


@dataclass(frozen=True, eq=False)
class GridValues(Comparable):
    """Values on a grid, with the standard error of each or None, and per point OK or why it has no value."""

    values: Floats
    error: Floats | None
    states: States


def coordinates_agree(one: Sequence[Floats], other: Sequence[Floats]) -> bool:
    """Whether two grids have the same points, up to rounding."""
    return all(
        len(a) == len(b) and np.allclose(a, b, rtol=0, atol=ROUNDING * _span(a, b))
        for a, b in zip(one, other, strict=True)
    )


def common_grid(
    one: Sequence[Floats], other: Sequence[Floats], axes: Sequence[str], labels: tuple[str, str]
) -> list[Floats]:
    """Coordinates within the range that both grids cover, along each axis those of the coarser grid.

    Args:
        axes: the names of the axes, and `labels` those of the grids, for the error.

    Raises:
        JobError: along an axis the grids overlap in less than two points.

    >>> common_grid([np.array([-1.0, 0.0, 1.0])], [np.array([0.0, 0.5, 1.0, 1.5])], ["alpha"], ("a", "b"))
    [array([0., 1.])]
    """
    grid = []
    for a, b, name in zip(one, other, axes, strict=True):
        slack = ROUNDING * _span(a, b)
        low, high = max(a[0], b[0]) - slack, min(a[-1], b[-1]) + slack
        inside = [points[(points >= low) & (points <= high)] for points in (a, b)]
        usable = [points for points in inside if len(points) >= 2]
        if not usable:
            raise JobError(
                f"compare: {shown(labels[1])} and {shown(labels[0])} have no common range of {name}: "
                f"{_range(b)} and {_range(a)}; compute one of them over the range of the other, or tile them"
            )
        grid.append(min(usable, key=len))
    return grid


def _range(points: Floats) -> str:
    return f"[{points[0]:.4g}, {points[-1]:.4g}]"


def _span(one: Floats, other: Floats) -> float:
    return float(max(one[-1] - one[0], other[-1] - other[0]))


def resampled(given: GridValues, coordinates: Sequence[Floats], targets: Sequence[Floats]) -> GridValues:
    """The values at other points, by linear interpolation along each axis.

    A point that coincides with one of the grid keeps its value. A point between others has a value only where all of
    them have one. Its error is the same mean of theirs, which is the error's upper bound.

    Args:
        given: arrays indexed by the axes in reverse, [beta, alpha] for two.
        coordinates, targets: per axis, alpha first, the points that there are and those wanted, all within the grid.

    >>> given = GridValues(np.array([0.0, 4.0, np.nan]), None, np.array([1, 1, 0], np.uint8))
    >>> resampled(given, [np.array([0.0, 1.0, 2.0])], [np.array([0.5, 1.0, 1.5])]).values
    array([ 2.,  4., nan])
    """
    values, error = np.where(given.states == OK, given.values, np.nan), given.error
    ranks = _ranks(given.states)
    for k, (points, wanted) in enumerate(zip(coordinates, targets, strict=True)):
        dimension = values.ndim - 1 - k
        left, share = _places(points, wanted)
        values = _mean(values, dimension, left, share)
        error = None if error is None else _mean(error, dimension, left, share)
        ranks = _worst(ranks, dimension, left, share)
    states = np.array(RANKS, np.uint8)[ranks]
    return GridValues(values, error, states)


def worse(one: States, other: States) -> States:
    """Per point the state that counts of two: OK only where both are, else the rarer reason."""
    return np.array(RANKS, np.uint8)[np.maximum(_ranks(one), _ranks(other))]


def _ranks(states: States) -> NDArray[np.intp]:
    """The places in `RANKS` of the states; a code that is not known counts as not computed."""
    ranks = np.full(256, RANKS.index(NOT_COMPUTED), np.intp)
    ranks[list(RANKS)] = np.arange(len(RANKS))
    return ranks[states]


def _places(points: Floats, wanted: Floats) -> tuple[NDArray[np.intp], Floats]:
    """For each wanted point the number of the point to its left, and its share of the way to the next."""
    left = np.clip(np.searchsorted(points, wanted, side="right") - 1, 0, len(points) - 2)
    share = (wanted - points[left]) / (points[left + 1] - points[left])
    share = np.where(np.abs(share - np.round(share)) < 1e-6, np.round(share), share)
    return left, np.clip(share, 0.0, 1.0)


def _neighbours(
    array: NDArray[Any], dimension: int, left: NDArray[np.intp], share: Floats
) -> tuple[NDArray[Any], NDArray[Any], Floats]:
    shape = [1] * array.ndim
    shape[dimension] = len(share)
    return array.take(left, dimension), array.take(left + 1, dimension), share.reshape(shape)


def _mean(array: Floats, dimension: int, left: NDArray[np.intp], share: Floats) -> Floats:
    low, high, weight = _neighbours(array, dimension, left, share)
    with np.errstate(invalid="ignore"):
        between = (1 - weight) * low + weight * high
    return np.where(weight == 0, low, np.where(weight == 1, high, between))


def _worst(ranks: NDArray[np.intp], dimension: int, left: NDArray[np.intp], share: Floats) -> NDArray[np.intp]:
    low, high, weight = _neighbours(ranks, dimension, left, share)
    return np.where(weight == 0, low, np.where(weight == 1, high, np.maximum(low, high)))
