"""The grid: exact coordinates, tiles, and the order in which tiles are visited."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

AXIS_NAMES = ("alpha", "beta", "gamma")

Floats = NDArray[np.float64]  # the alias of the whole project
Index = tuple[int, ...]

MAX_TILE_EDGE = 64
TILE_SECONDS = 10.0
SHORTEST_TILE_SECONDS = 0.5
TILES_PER_WORKER = 4
LARGEST_GROWTH = 2  # of an axis, where a message proposes a size for which some coordinate becomes a point


def axis_coordinates(size: int, low: float, high: float) -> Floats:
    """`size` evenly spaced float64 coordinates that hit both ends exactly.

    xᵢ = (low·(n−1−i) + high·i) / (n−1) in rational arithmetic on the decimals as the user wrote them, rounded
    once. So the grid holds 0 exactly where the decimals do: 15 points from −0.2 to 1.2 pass through 0.0 and 1.0.

    >>> axis_coordinates(5, -1, 1).tolist()
    [-1.0, -0.5, 0.0, 0.5, 1.0]
    >>> axis_coordinates(15, -0.2, 1.2)[[0, 2, 12, 14]].tolist()
    [-0.2, 0.0, 1.0, 1.2]
    """
    first, last, steps = Fraction(repr(float(low))), Fraction(repr(float(high))), size - 1
    values = [float((first * (steps - i) + last * i) / steps) for i in range(size)]
    return np.array(values, np.float64)


def as_written(number: float) -> str:
    """A number in the fewest digits from which the same number is read.

    >>> as_written(-2.0), as_written(0.123456789)
    ('-2', '0.123456789')
    """
    short = f"{number:g}"
    return short if float(short) == number else repr(float(number))


def coordinates_through_zero(size: int, low: float, high: float) -> Floats:
    """`size` evenly spaced float64 coordinates that cover [low, high], low < 0 < high, one of them 0.

    xᵢ = (i − k)·h with the smallest step h = max(−low/k, high/(n−1−k)) over the index k of zero. One end is hit
    exactly; the other end is exceeded by at most one step.

    >>> coordinates_through_zero(5, -0.9, 3.0).tolist()
    [-1.0, 0.0, 1.0, 2.0, 3.0]
    """
    first, last, steps = Fraction(low), Fraction(high), size - 1
    below = steps * -first / (last - first)  # the steps below zero, as a fraction
    places = {min(max(math.floor(below) + offset, 1), steps - 1) for offset in (0, 1)}
    step, zero = min((max(-first / k, last / (steps - k)), k) for k in places)
    return np.array([float((i - zero) * step) for i in range(size)], np.float64)


def coordinates_through_zero_and_one(size: int) -> Floats | None:
    """`size` evenly spaced float64 coordinates that cover [−0.2, 1.2], one of them 0 and one 1.

    xᵢ = (i − k)/m with the largest m for which m + 2⌈m/5⌉ ≤ size − 1: m steps from 0 to 1 and ⌈m/5⌉ beyond each end.
    One or two remaining steps are added at the ends, first at the upper one. None for 3 points, which are too few.

    >>> coordinates_through_zero_and_one(8).tolist()
    [-0.2, 0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2]
    """
    steps = size - 1
    fitting = (m for m in range(5 * steps // 7, 0, -1) if m + 2 * -(-m // 5) <= steps)
    between = next(fitting, None)
    if between is None:
        return None
    below = (steps - between) // 2
    return np.array([(i - below) / between for i in range(size)], np.float64)


def size_through(size: int, low: float, high: float, places: Sequence[int] = (0,)) -> int | None:
    """The least number of points from `size` on for which `axis_coordinates` from `low` to `high` hold all places.

    None where a place lies outside the range.

    >>> size_through(40, -1, 1), size_through(13, -0.25, 1.2, (0, 1))
    (41, 30)
    """
    first, last = Fraction(repr(float(low))), Fraction(repr(float(high)))
    if not all(first <= place <= last for place in places):
        return None
    # A place is a point if the share of the range below it is a whole number of steps.
    divisor = math.lcm(*(((place - first) / (last - first)).denominator for place in places))
    return -(-(size - 1) // divisor) * divisor + 1


def remedy_of_target(coordinates: Floats) -> str:
    """The remedy for a line without a point at its target, 1: a size for which 0 and 1 are points."""
    size = size_through(len(coordinates), float(coordinates[0]), float(coordinates[-1]), (0, 1))
    if size is None or size > LARGEST_GROWTH * len(coordinates):
        return "without `range`, a `size` of 4 or more has one there"
    return f"`size: {size}` has one there"


@dataclass(frozen=True)
class Grid:
    """Axes by name with their coordinates. Arrays over the grid have the axes reversed: [beta, alpha].

    Attributes:
        names: alpha, beta, gamma, as many as there are axes.
        coordinates: the float64 coordinates of each axis, ascending.
    """

    names: tuple[str, ...]
    coordinates: tuple[Floats, ...]

    @property
    def shape(self) -> Index:
        """The shape of arrays over the grid."""
        return tuple(len(axis) for axis in reversed(self.coordinates))

    @property
    def dimensions(self) -> tuple[str, ...]:
        """The axis of each dimension of arrays over the grid."""
        return tuple(reversed(self.names))

    @property
    def points(self) -> int:
        """The number of points."""
        return math.prod(self.shape)

    def tile_points(self, tile: Tile) -> Floats:
        """The coordinates [points, axes] of a tile's points in C order; column k belongs to axis k."""
        per_dimension = [self.coordinates[-1 - d][window] for d, window in enumerate(tile.windows)]
        mesh = np.meshgrid(*per_dimension, indexing="ij")
        return np.stack([values.reshape(-1) for values in reversed(mesh)], axis=1)


@dataclass(frozen=True)
class Tile:
    """A whole chunk of points.

    Attributes:
        index: the tile's place among the tiles, per array dimension.
        start: the index of its first point, per array dimension.
        stop: the index after its last point, per array dimension.
    """

    index: Index
    start: Index
    stop: Index

    @property
    def windows(self) -> tuple[slice, ...]:
        """The slices of an array over the grid that the tile covers."""
        return tuple(slice(a, b) for a, b in zip(self.start, self.stop, strict=True))

    @property
    def shape(self) -> Index:
        """Points per array dimension."""
        return tuple(b - a for a, b in zip(self.start, self.stop, strict=True))

    @property
    def points(self) -> int:
        """The number of points."""
        return math.prod(self.shape)


def tile_counts(shape: Sequence[int], tile_shape: Sequence[int]) -> Index:
    """How many tiles there are along each dimension; the last one may be cut off by the grid's end.

    Args:
        shape: of arrays over the grid, in points.
        tile_shape: of a tile, in points.

    >>> tile_counts((5, 7), (3, 3))
    (2, 3)
    """
    return tuple(-(-n // t) for n, t in zip(shape, tile_shape, strict=True))


def points_per_tile(shape: Sequence[int], tile_shape: Sequence[int]) -> NDArray[np.int64]:
    """How many points each tile holds, in an array of `tile_counts` numbers.

    >>> points_per_tile((5, 7), (3, 3)).tolist()
    [[9, 9, 3], [6, 6, 2]]
    """
    points = np.ones((), np.int64)
    for size, edge in zip(shape, tile_shape, strict=True):
        points = np.multiply.outer(points, np.minimum(edge, size - np.arange(0, size, edge)))
    return points


def tile_at(index: Index, shape: Sequence[int], tile_shape: Sequence[int]) -> Tile:
    """The tile with this index, cut off by the grid's end.

    >>> tile_at((1, 2), (5, 7), (3, 3))
    Tile(index=(1, 2), start=(3, 6), stop=(5, 7))
    """
    start = tuple(i * t for i, t in zip(index, tile_shape, strict=True))
    stop = tuple(min(a + t, n) for a, t, n in zip(start, tile_shape, shape, strict=True))
    return Tile(tuple(index), start, stop)


def overlap(starts: Sequence[int], stops: Sequence[int], tile: Tile) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """The part that a window and a tile share, as slices of the window and of the tile; they must overlap.

    >>> overlap((-1, 2), (4, 5), tile_at((0, 1), (6, 6), (3, 3)))
    ((slice(1, 4, None), slice(1, 3, None)), (slice(0, 3, None), slice(0, 2, None)))
    """
    ends = list(zip(starts, stops, tile.start, tile.stop, strict=True))
    shared = [(start, first, max(start, first), min(stop, last)) for start, stop, first, last in ends]
    in_window = tuple(slice(low - start, high - start) for start, _, low, high in shared)
    return in_window, tuple(slice(low - first, high - first) for _, first, low, high in shared)


def coarse_to_fine_order(mask: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The order in which to visit tiles: first those on a coarse lattice, then those on ever finer lattices.

    The lattice of stride s = 2ᵏ holds the indices all of whose components are multiples of s. The coarsest lattice
    that holds an index has the stride of the lowest bit that is set in any component. The picture thus fills evenly,
    and an interrupted job leaves a coarse picture instead of half a fine one.

    Args:
        mask: over the tiles; true for those to visit.

    Returns:
        The numbers of these tiles in C order, in the order of the visit.

    >>> coarse_to_fine_order(np.ones(5, bool)).tolist()
    [0, 4, 2, 1, 3]
    """
    numbers = np.flatnonzero(mask)
    components = np.unravel_index(numbers, mask.shape)
    bits = np.bitwise_or.reduce(components)
    stride = np.where(bits == 0, np.iinfo(bits.dtype).max, bits & -bits)
    return np.asarray(numbers[np.argsort(-stride, kind="stable")], np.int64)


def within(shape: Index, most: int | None) -> Index:
    """A shape of tiles, its longest edges halved until it has at most `most` points, or is one point.

    >>> within((64, 64), 512), within((64, 64), None), within((3, 2), 0)
    ((16, 32), (64, 64), (1, 1))
    """
    edges = list(shape)
    while most is not None and math.prod(edges) > max(1, most):
        longest = max(range(len(edges)), key=edges.__getitem__)
        edges[longest] = -(-edges[longest] // 2)
    return tuple(edges)


def choose_tile_shape(
    shape: Sequence[int], seconds_per_point: float, workers: int, *, in_rows: bool = False, at_once: int = 1
) -> Index:  # fmt: skip
    """The shape of a tile that costs about 10 s, shorter in short jobs, with at least four tiles per worker.

    Each edge lies between 1 and 64 points; tiles are as square as the grid allows.

    Args:
        shape: of arrays over the grid, in points.
        seconds_per_point: the measured time of one evaluation.
        workers: how many workers share the tiles.
        in_rows: whether points that differ in the first index alone share work: tiles then are long in it.
        at_once: how many points are computed at once: tiles hold as many at least, if there are so many.

    >>> choose_tile_shape((1000, 1000), seconds_per_point=0.1, workers=2)
    (10, 10)
    >>> choose_tile_shape((1000, 1000), seconds_per_point=0.1, workers=2, in_rows=True)
    (64, 1)
    """
    points = math.prod(shape)
    fair_share = points * seconds_per_point / (4 * TILES_PER_WORKER * workers)
    seconds = min(TILE_SECONDS, max(SHORTEST_TILE_SECONDS, fair_share))
    budget = max(1, min(int(seconds / max(seconds_per_point, 1e-9)), points // (TILES_PER_WORKER * workers)))
    fewest = TILES_PER_WORKER * workers
    if budget < at_once <= TILE_SECONDS / max(seconds_per_point, 1e-9):
        budget, fewest = at_once, max(1, points // at_once)
    edge = 1 if in_rows else max(1, int(budget ** (1 / len(shape)) + 1e-9))
    edges = [min(n, edge, MAX_TILE_EDGE) for n in shape]
    for d in range(len(shape)) if in_rows else reversed(range(len(shape))):
        # The other dimensions use the part of the budget that a short dimension leaves.
        others = math.prod(edges[:d] + edges[d + 1 :])
        edges[d] = max(1, min(shape[d], MAX_TILE_EDGE, budget // others))
    while math.prod(tile_counts(shape, edges)) < min(points, fewest, TILES_PER_WORKER * workers):
        d = max(range(len(edges)), key=lambda d: (edges[d] > 1, in_rows and d > 0, edges[d]))
        edges[d] = -(-edges[d] // 2)
    return tuple(edges)
