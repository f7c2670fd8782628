"""The grid: exact coordinates, tiles, and the order in which tiles are visited."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

AXIS_NAMES = ("alpha", "beta", "gamma")

Floats = NDArray[np.float64]
Index = tuple[int, ...]

MAX_TILE_EDGE = 64
TILE_SECONDS = 10.0
SHORTEST_TILE_SECONDS = 0.5
TILES_PER_WORKER = 4


def axis_coordinates(size: int, low: float, high: float) -> Floats:
    """`size` evenly spaced float64 coordinates that hit both ends exactly.

    xᵢ = (low·(n−1−i) + high·i) / (n−1) in rational arithmetic on the decimals as the user wrote them, rounded
    once. So the grid holds 0 exactly where the decimals do: 15 points from −0.2 to 1.2 pass through 0.0 and 1.0.
    """
    first, last, steps = Fraction(repr(float(low))), Fraction(repr(float(high))), size - 1
    values = [float((first * (steps - i) + last * i) / steps) for i in range(size)]
    return np.array(values, np.float64)


def coordinates_through_zero(size: int, low: float, high: float) -> Floats:
    """`size` evenly spaced float64 coordinates that cover [low, high], low < 0 < high, and of which one is 0.

    xᵢ = (i − k)·h with the smallest step h = max(−low/k, high/(n−1−k)) over the places k of zero. One end is hit
    exactly; the other lies at most one step beyond.
    """
    first, last, steps = Fraction(low), Fraction(high), size - 1
    below = steps * -first / (last - first)  # how many steps would lie below zero if they could be divided
    places = {min(max(math.floor(below) + more, 1), steps - 1) for more in (0, 1)}
    step, zero = min((max(-first / k, last / (steps - k)), k) for k in places)
    return np.array([float((i - zero) * step) for i in range(size)], np.float64)


def coordinates_through_zero_and_one(size: int) -> Floats | None:
    """`size` evenly spaced float64 coordinates that cover [−0.2, 1.2], and of which one is 0 and one is 1.

    xᵢ = (i − k)/m with the largest m for which m + 2⌈m/5⌉ ≤ size − 1: m steps from 0 to 1 and ⌈m/5⌉ beyond each.
    The one or two steps that may be left go to the ends, the upper one first. None for 3 points, which are too few.
    """
    steps = size - 1
    fitting = (m for m in range(5 * steps // 7, 0, -1) if m + 2 * -(-m // 5) <= steps)
    between = next(fitting, None)
    if between is None:
        return None
    below = (steps - between) // 2
    return np.array([(i - below) / between for i in range(size)], np.float64)


def size_through_zero(size: int, low: float, high: float) -> int | None:
    """The least size from `size` on whose `axis_coordinates` from `low` to `high` hold 0; None where none does."""
    first, last = Fraction(repr(float(low))), Fraction(repr(float(high)))
    if not first <= 0 <= last:
        return None
    divisor = (-first / (last - first)).denominator  # of the share of the steps that lie below zero
    return -(-(size - 1) // divisor) * divisor + 1


@dataclass(frozen=True)
class Grid:
    """Axes by name with their coordinates. Arrays over the grid have the axes reversed: [beta, alpha]."""

    names: tuple[str, ...]
    coordinates: tuple[Floats, ...]

    @property
    def shape(self) -> Index:
        """The shape of arrays over the grid."""
        return tuple(len(each) for each in reversed(self.coordinates))

    @property
    def dimensions(self) -> tuple[str, ...]:
        return tuple(reversed(self.names))

    @property
    def points(self) -> int:
        return math.prod(self.shape)

    def tile_points(self, tile: Tile) -> Floats:
        """The coordinates [points, axes] of a tile's points in C order; column k belongs to axis k."""
        per_dimension = [self.coordinates[-1 - d][window] for d, window in enumerate(tile.windows)]
        mesh = np.meshgrid(*per_dimension, indexing="ij")
        return np.stack([each.reshape(-1) for each in reversed(mesh)], axis=1)


@dataclass(frozen=True)
class Tile:
    """A whole chunk of points: its index among the tiles and its window, per array dimension."""

    index: Index
    start: Index
    stop: Index

    @property
    def windows(self) -> tuple[slice, ...]:
        return tuple(slice(a, b) for a, b in zip(self.start, self.stop, strict=True))

    @property
    def shape(self) -> Index:
        return tuple(b - a for a, b in zip(self.start, self.stop, strict=True))

    @property
    def points(self) -> int:
        return math.prod(self.shape)


def tile_counts(shape: Sequence[int], tile_shape: Sequence[int]) -> Index:
    """How many tiles there are along each dimension; the last one may be cut off by the grid's end."""
    return tuple(-(-n // t) for n, t in zip(shape, tile_shape, strict=True))


def tile_at(index: Index, shape: Sequence[int], tile_shape: Sequence[int]) -> Tile:
    start = tuple(i * t for i, t in zip(index, tile_shape, strict=True))
    stop = tuple(min(a + t, n) for a, t, n in zip(start, tile_shape, shape, strict=True))
    return Tile(tuple(index), start, stop)


def coarse_to_fine(counts: Sequence[int]) -> Iterator[Index]:
    """All tile indices, each once, in the order of `coarse_to_fine_order`."""
    order = coarse_to_fine_order(np.ones(counts, np.bool_))
    yield from zip(*(each.tolist() for each in np.unravel_index(order, tuple(counts))), strict=True)


def coarse_to_fine_order(mask: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The tiles in `mask` by their number in C order: first those on a coarse lattice, then on ever finer ones.

    The lattice of stride s = 2ᵏ holds the indices whose every component is a multiple of s; the finest one that
    still holds an index has the lowest bit set in any component. The picture thus fills evenly, and an
    interrupted job leaves a coarse picture instead of half a fine one.
    """
    numbers = np.flatnonzero(mask)
    components = np.unravel_index(numbers, mask.shape)
    bits = np.bitwise_or.reduce(components)
    stride = np.where(bits == 0, np.iinfo(bits.dtype).max, bits & -bits)
    return np.asarray(numbers[np.argsort(-stride, kind="stable")], np.int64)


def choose_tile_shape(shape: Sequence[int], seconds_per_point: float, workers: int) -> Index:
    """The shape of a tile that costs about 10 s, shorter in short jobs, with at least four tiles per worker.

    Each edge lies between 1 and 64 points and grows by halves so that tiles stay as square as the grid allows.
    """
    points = math.prod(shape)
    fair_share = points * seconds_per_point / (4 * TILES_PER_WORKER * workers)
    seconds = min(TILE_SECONDS, max(SHORTEST_TILE_SECONDS, fair_share))
    budget = max(1, min(int(seconds / max(seconds_per_point, 1e-9)), points // (TILES_PER_WORKER * workers)))
    edge = max(1, int(budget ** (1 / len(shape)) + 1e-9))
    found = [min(n, edge, MAX_TILE_EDGE) for n in shape]
    for d in reversed(range(len(shape))):
        # What a short dimension leaves of the budget goes to the others.
        others = math.prod(found[:d] + found[d + 1 :])
        found[d] = max(1, min(shape[d], MAX_TILE_EDGE, budget // others))
    while math.prod(tile_counts(shape, found)) < min(points, TILES_PER_WORKER * workers):
        d = max(range(len(found)), key=found.__getitem__)
        found[d] = -(-found[d] // 2)
    return tuple(found)
