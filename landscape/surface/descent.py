"""Steepest descent on a grid: which extremum each point flows to, and where what flows to two of them meets."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ranks = NDArray[np.int64]
Step = tuple[int, ...]
Meeting = tuple[int, int, int]


@dataclass(frozen=True)
class Descent:
    """Points by their ranks: their places in an order in which each extremum comes before what flows to it.

    Attributes:
        points: of each rank, the number of its point in C order; the outside of the grid has the number after the last.
        extrema: the ranks of the extrema, ascending.
        basin: of each rank, the place in `extrema` of the one that it flows to.
        meetings: where two basins meet first, ascending: the rank of that point, and the two basins.
    """

    points: NDArray[np.intp]
    extrema: Ranks
    basin: Ranks
    meetings: tuple[Meeting, ...]


def descend(points: NDArray[np.intp], shape: Sequence[int], steps: Iterable[Step]) -> Descent:
    """Let each point flow to the one of lowest rank among its neighbours, until none is lower.

    Args:
        points: the numbers of points, the lowest first; those that are not named are walls. Where the first is the size
            of the grid, it is all that lies outside of it, and walls are part of that.
        steps: from a point to its neighbours.
    """
    size, count = int(np.prod(shape)), len(points)
    wall = 0 if count and points[0] == size else count
    ranks = np.full(size + 1, wall, dtype=np.int64)
    ranks[points] = np.arange(count)
    own = ranks[:size].reshape(shape)
    padded = np.pad(own, 1, constant_values=wall)
    beside = [padded[tuple(slice(1 + k, 1 + k + n) for k, n in zip(step, shape, strict=True))] for step in steps]
    lowest = own
    for neighbour in beside:
        lowest = np.minimum(lowest, neighbour)
    target = np.arange(count)
    flows = own != wall
    target[own[flows]] = lowest[flows]
    while not np.array_equal(further := target[target], target):
        target = further
    extrema, basin = np.unique(target, return_inverse=True)
    return Descent(points, extrema, basin, _first_meetings(own, flows, beside, basin))


def _first_meetings(
    own: Ranks, flows: NDArray[np.bool_], beside: Sequence[Ranks], basin: NDArray[np.intp]
) -> tuple[Meeting, ...]:
    """Where the points of two basins are neighbours first, of each two basins that have neighbours."""
    at, one, other = [], [], []
    for neighbour in beside:
        below = flows & (neighbour < own)
        high, low = own[below], neighbour[below]
        apart = basin[high] != basin[low]
        at.append(high[apart])
        one.append(basin[high[apart]])
        other.append(basin[low[apart]])
    ranks, first, second = (np.concatenate(parts) for parts in (at, one, other))
    order = np.argsort(ranks, kind="stable")
    pairs = np.minimum(first, second) * (len(basin) + 1) + np.maximum(first, second)
    earliest = np.sort(order[np.unique(pairs[order], return_index=True)[1]])
    earliest = earliest[np.argsort(ranks[earliest], kind="stable")]
    return tuple(zip(*(part[earliest].tolist() for part in (ranks, first, second)), strict=True))


def face_steps(dimensions: int) -> list[Step]:
    """To the points that differ by 1 along one axis."""
    return [step for step in corner_steps(dimensions) if sum(map(abs, step)) == 1]


def corner_steps(dimensions: int) -> list[Step]:
    """To the points that differ by at most 1 along each axis."""
    return [step for step in itertools.product((-1, 0, 1), repeat=dimensions) if any(step)]
