"""The levels of a refined landscape: their grids and blocks, their values merged, and which blocks to compute next.

The choice of blocks depends on the known values alone, so that workers, their order and interruptions change nothing.
Where a value of a level is far from the bilinear interpolation of the coarser level, the steps are too coarse.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from landscape.core.grid import Floats, Grid, Index, Tile, axis_coordinates, tile_counts

# ----------------------------------------------------------------------------------------------------
# The grids of refinement levels: their coordinates, the points that a level adds, and the blocks of a level.
#
# Level ℓ halves the steps of level ℓ−1; level 0 is the landscape itself. A point belongs to the coarsest level that has
# it: if all its indices are even, to a coarser level. A *block* is 8 cells along each axis, and one tile.

BLOCK = 8  # cells of a block along each axis, and points of a tile
SLACK = 1e-6  # of a step: how far rounding may have moved the end of a box
Mask = NDArray[np.bool_]


def finer_shape(shape: Sequence[int], times: int) -> Index:
    """The shape of a grid with every step divided by `times`.

    >>> finer_shape((3, 5), 2)
    (5, 9)
    """
    return tuple((size - 1) * times + 1 for size in shape)


def finer_axis(axis: Floats, times: int) -> Floats:
    """An axis with every step divided by `times`: the coordinates of a job with that many points.

    If these lack a coordinate of the axis, to the bit, the steps are divided in rational arithmetic instead.

    >>> finer_axis(np.array([-1.0, 0.0, 1.0]), 2).tolist()
    [-1.0, -0.5, 0.0, 0.5, 1.0]
    """
    even = axis_coordinates((len(axis) - 1) * times + 1, float(axis[0]), float(axis[-1]))
    if np.array_equal(even[::times], axis):
        return even
    exact = [Fraction(float(value)) for value in axis]
    finer = [float(low + (high - low) * k / times) for low, high in pairwise(exact) for k in range(times)]
    return np.array([*finer, float(axis[-1])], np.float64)


def finer_grid(grid: Grid, times: int) -> Grid:
    """The grid with every step of every axis divided by `times`."""
    return Grid(grid.names, tuple(finer_axis(axis, times) for axis in grid.coordinates))


def in_coarser_level(tile: Tile) -> Mask:
    """A mask over a tile of a level: the points of coarser levels, whose indices are all even.

    >>> from landscape.core.grid import tile_at
    >>> in_coarser_level(tile_at((0, 0), (5, 5), (2, 4))).astype(int).tolist()
    [[1, 0, 1, 0], [0, 0, 0, 0]]
    """
    mask = np.ones(tile.shape, np.bool_)
    for dimension, (start, stop) in enumerate(zip(tile.start, tile.stop, strict=True)):
        even = np.arange(start, stop) % 2 == 0
        mask &= even.reshape([-1 if k == dimension else 1 for k in range(len(tile.shape))])
    return mask


def new_points(tile: Tile) -> int:
    """How many points of a tile belong to its own level."""
    return tile.points - int(in_coarser_level(tile).sum())


def new_points_per_tile(shape: Sequence[int]) -> NDArray[np.int64]:
    """How many points of each tile of a level belong to that level, over the tiles.

    >>> new_points_per_tile((9, 17)).tolist()
    [[48, 48, 4], [4, 4, 0]]
    """
    points, coarser = np.ones((), np.int64), np.ones((), np.int64)
    for size, edge in zip(shape, tile_shape(shape), strict=True):
        sizes = np.minimum(edge, size - np.arange(0, size, edge))
        # Tiles begin at even indices: of an odd number of points, one more is even than odd.
        points, coarser = np.multiply.outer(points, sizes), np.multiply.outer(coarser, -(-sizes // 2))
    return points - coarser


def points_left(blocks: tuple[tuple[int, int], ...], done: Mask) -> int:
    """How many points a level still lacks.

    Args:
        blocks: its tiles, in the form of `to_stretches`.
        done: which of its points are computed, over its whole grid.
    """
    tiles = from_stretches(blocks, tile_counts(done.shape, tile_shape(done.shape)))
    return int(new_points_per_tile(done.shape)[tiles].sum()) - int(done.sum())


def block_counts(shape: Sequence[int]) -> Index:
    """How many blocks a grid has along each dimension.

    >>> block_counts((17, 18, 5))
    (2, 3, 1)
    """
    return tuple(max(1, -(-(size - 1) // BLOCK)) for size in shape)


def tiles_of_blocks(blocks: Mask, shape: Sequence[int]) -> Mask:
    """A mask over the tiles of a level: those with the points of these blocks.

    A tile holds the points of its block without those on its far sides, which belong to the next blocks. At the far end
    of the grid, these points are tiles of their own, one point wide, which count as parts of the last block.
    """
    counts = tile_counts(shape, tile_shape(shape))
    tiles = blocks
    for dimension, count in enumerate(counts):
        if count > tiles.shape[dimension]:
            tiles = np.concatenate([tiles, np.take(tiles, [-1], dimension)], dimension)
    tiles = np.array(tiles, np.bool_)
    if all(size % BLOCK == 1 for size in shape):
        tiles[(-1,) * tiles.ndim] = False  # a tile of one point, which belongs to a coarser level
    return tiles


def blocks_of_tiles(tiles: Mask, shape: Sequence[int]) -> Mask:
    """The blocks of the tiles, without tiles one point wide: the inverse of `tiles_of_blocks`."""
    return np.array(tiles[tuple(slice(0, count) for count in block_counts(shape))])


def tile_shape(shape: Sequence[int]) -> Index:
    """The shape of the tiles of a level: a block, or the whole grid if that is smaller."""
    return tuple(min(BLOCK, size) for size in shape)


def to_stretches(mask: Mask) -> tuple[tuple[int, int], ...]:
    """The places where a mask is true, numbered in C order, as stretches [first, end).

    >>> to_stretches(np.array([[True, True, False], [False, True, True]]))
    ((0, 2), (4, 6))
    """
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask.reshape(-1), [False]]).astype(np.int8)))
    return tuple((int(first), int(end)) for first, end in edges.reshape(-1, 2))


@lru_cache(maxsize=64)
def from_stretches(stretches: tuple[tuple[int, int], ...], counts: Index) -> Mask:
    """The read-only mask [counts] of these stretches; their parts outside of it are left out."""
    mask = np.zeros(int(np.prod(counts)), np.bool_)
    for first, end in stretches:
        mask[first:end] = True
    mask.setflags(write=False)
    return mask.reshape(counts)


def blocks_over(grid: Grid, low: Sequence[float], high: Sequence[float]) -> Mask:
    """The blocks of a level that hold the points of a box, its ends included, and the cells that it overlaps.

    A block has the points of its near sides alone: a box that ends where a block does takes the next one too, except on
    a line, where that end is a point of a coarser level.

    Args:
        grid: of the level.
        low, high: the corners of the box, a coordinate per axis; rounding may have moved them off a coordinate.

    Returns:
        A mask over `block_counts`.
    """
    mask = np.ones(block_counts(grid.shape), np.bool_)
    for k, (axis, start, end) in enumerate(zip(grid.coordinates, low, high, strict=True)):
        dimension = mask.ndim - 1 - k
        slack = SLACK * float(np.diff(axis).min())
        last = end + slack if mask.ndim > 1 else end - slack
        cells = (axis[:-1] <= last) & (axis[1:] > start + slack)
        inside = np.array([cells[first : first + BLOCK].any() for first in range(0, len(cells), BLOCK)])
        mask &= inside.reshape([-1 if d == dimension else 1 for d in range(mask.ndim)])
    return mask


def parents_of(blocks: Mask, coarser: Sequence[int]) -> Mask:
    """The blocks of the next coarser level that contain these blocks.

    Args:
        coarser: the shape of the grid of the coarser level.
    """
    parents = np.zeros(block_counts(coarser), np.bool_)
    for index in np.argwhere(blocks):
        parents[tuple(place // 2 for place in index)] = True
    return parents


def grow_blocks(blocks: Mask) -> Mask:
    """These blocks and all blocks that touch one of them."""
    mask = np.array(blocks)
    for dimension in range(mask.ndim):
        moved = np.moveaxis(mask, dimension, 0)
        before = moved.copy()
        moved[1:] |= before[:-1]
        moved[:-1] |= before[1:]
    return mask


# ----------------------------------------------------------------------------------------------------
# All levels of a landscape merged into one grid: known values, and bilinear interpolation between them.

Map = NDArray[np.uint8]


def spread(values: Floats) -> Floats:
    """Values on the grid of half the steps: each new point is the mean of its neighbours, along one axis after another.

    This is bilinear interpolation in the middle of edges and cells; a new point beside a NaN is NaN.

    >>> spread(np.array([[0.0, 2.0], [4.0, 6.0]])).tolist()
    [[0.0, 1.0, 2.0], [2.0, 3.0, 4.0], [4.0, 5.0, 6.0]]
    """
    for dimension in range(values.ndim):
        along = np.moveaxis(values, dimension, 0)
        finer = np.empty((2 * len(along) - 1, *along.shape[1:]))
        finer[::2] = along
        with np.errstate(invalid="ignore", over="ignore"):  # neighbours may both be infinite
            finer[1::2] = along[:-1] + 0.5 * (along[1:] - along[:-1])
        values = np.moveaxis(finer, 0, dimension)
    return values


def merge(levels: Sequence[Floats], held: Sequence[Mask]) -> Floats:
    """The values on the finest grid. A point of no level is interpolated bilinearly in the smallest cell around it.

    Args:
        levels: the values of each level over its own grid, the coarsest first; the first one is complete.
        held: the mask of the points of each level.

    >>> fine = np.full((3, 3), np.nan)
    >>> fine[1, 0] = 9.0
    >>> merge([np.array([[0.0, 2.0], [4.0, 6.0]]), fine], [np.ones((2, 2), bool), ~np.isnan(fine)]).tolist()
    [[0.0, 1.0, 2.0], [9.0, 3.0, 4.0], [4.0, 5.0, 6.0]]
    """
    merged = levels[0]
    for values, mask in zip(levels[1:], held[1:], strict=True):
        merged = np.where(mask, values, spread(merged))
    return merged


def merge_all(observables: Sequence[Mapping[str, Floats]], status: Sequence[Map]) -> tuple[dict[str, Floats], Map, Map]:
    """The observables, the status and the map of `interpolated_from` of all levels merged.

    Args:
        observables, status: of each level over its own grid, the coarsest first; status 0 is not computed, 1 is OK. An
            interpolated point is OK if the corners of its cell are.
    """
    held = [np.ones(status[0].shape, np.bool_), *(level != 0 for level in status[1:])]
    names = [name for name in observables[0] if all(name in level for level in observables)]
    values = {name: merge([level[name] for level in observables], held) for name in names}
    interpolated = interpolated_from(held)
    merged = merge_status(status)
    sound = merge([np.where(level == 1, 0.0, np.nan) for level in status], held)
    merged[(interpolated > 0) & np.isfinite(sound)] = 1
    return values, merged, interpolated


def merge_status(levels: Sequence[Map]) -> Map:
    """The status on the finest grid; 0, not computed, for a point of no level."""
    merged = levels[0]
    for status in levels[1:]:
        finer = np.array(status)
        coarse = tuple(slice(None, None, 2) for _ in finer.shape)
        finer[coarse] = merged
        merged = finer
    return merged


def interpolated_from(held: Sequence[Mask]) -> Map:
    """How many levels above the finest one the cell is in which a point is interpolated; 0 for a known point.

    >>> interpolated_from([np.ones((2, 2), bool), np.zeros((3, 3), bool)]).tolist()
    [[0, 1, 0], [1, 1, 1], [0, 1, 0]]
    """
    levels = np.zeros(held[0].shape, np.uint8)
    for steps, mask in zip(range(len(held) - 1, 0, -1), held[1:], strict=True):
        above: NDArray[Any] = levels
        for dimension in range(above.ndim):
            along = np.moveaxis(above, dimension, 0)
            finer = np.empty((2 * len(along) - 1, *along.shape[1:]), np.uint8)
            finer[::2], finer[1::2] = along, np.maximum(along[:-1], along[1:])
            above = np.moveaxis(finer, 0, dimension)
        old = np.zeros(mask.shape, np.bool_)
        old[tuple(slice(None, None, 2) for _ in mask.shape)] = True
        levels = np.where(mask, 0, np.where(old, above, np.maximum(above, steps))).astype(np.uint8)
    return levels


# ----------------------------------------------------------------------------------------------------

MOST_LEVELS = 4  # each step becomes 16; at the next level, a block of 8 cells would be half a step of the landscape
# From level to level, the error of interpolation about halves at a kink, and falls to a quarter if the loss is smooth.
HALVED = 0.5
# All points share their samples, so the sampling error is as smooth as the loss, and finer steps show the surface of
# these samples well below its standard error. On a rough surface, finer steps do not bring neighbours together: the
# median error of interpolation at level 0 exceeds this share of the error at twice its steps (1 for white noise, 1/2
# for kinks, 1/4 for smooth losses). Then each point has its own error, and differences below some standard errors are
# noise: with white noise, a point and the mean of two neighbours differ by 5 once in 20 000 times.
ROUGH = 0.75
STANDARD_ERRORS = 5.0
MARKED_LEVELS = 1  # levels refined around a minimum, a saddle or the path, where pictures are read closely


@dataclass(frozen=True)
class BlockValues:
    """The known values from which blocks are chosen.

    Attributes:
        merged: the values of all levels so far on the grid of each level, level 0 first; in log10 if the figure is.
        losses: the losses themselves on the same grids.
        errors: the standard errors of the rise there; NaN, which counts as 0, if unknown.
        held: the blocks of each level from 1 on.
        relief: of level 0, in the units of `merged`.
        marked: indices, in the finest grid of `merged`, of the points around which pictures are read closely.
    """

    merged: Sequence[Floats]
    losses: Sequence[Floats]
    errors: Sequence[Floats]
    held: Sequence[Mask]
    relief: float
    marked: Sequence[Index] = ()

    @cached_property
    def rough(self) -> bool:
        """Whether neighbours differ as much as points farther apart, as in white noise; see `ROUGH`."""
        return is_rough(self.losses[0])


@dataclass(frozen=True)
class WantedBlocks:
    """The blocks that a level should hold, and the largest error of interpolation in every block."""

    level: int
    blocks: Mask
    eta: Floats


def interpolation_errors(values: BlockValues, level: int) -> Floats:
    """The error of interpolation from the level above at each point of a level, as a share of the relief.

    η = |f(L) − bilinear|/relief, and 0 if the point is not new, if either is not finite, and on a rough surface if
    |L − bilinear| ≤ 5·SE of the rise. For level 0, every second of its points makes the level above; points outside of
    its cells are not judged.
    """
    off = np.abs(values.merged[level] - _interpolate(values.merged, level))
    raw = np.abs(values.losses[level] - _interpolate(values.losses, level))
    noise = STANDARD_ERRORS * np.nan_to_num(values.errors[level], nan=0.0, posinf=math.inf) if values.rough else 0.0
    with np.errstate(invalid="ignore"):
        usable = np.isfinite(off) & (raw > noise)
    return np.where(usable, off, 0.0) / values.relief


def _interpolate(grids: Sequence[Floats], level: int) -> Floats:
    """The values at the points of a level, interpolated from the level above; NaN where that has no cell."""
    if level:
        return spread(grids[level - 1])
    whole = grids[0]
    odd = tuple(slice(0, size - (size + 1) % 2) for size in whole.shape)
    predicted = np.full(whole.shape, np.nan)
    predicted[odd] = spread(whole[odd][tuple(slice(None, None, 2) for _ in whole.shape)])
    return predicted


def is_rough(losses: Floats) -> bool:
    """Whether the error of interpolation of a grid is about as large as with twice its steps.

    >>> x = np.linspace(-1, 1, 17)
    >>> is_rough(np.add.outer(x**2, x**2)), is_rough(np.random.default_rng(0).normal(size=(17, 17)))
    (False, True)
    """
    coarse, errors = tuple(slice(None, None, 2) for _ in losses.shape), []
    for grid in (losses, losses[coarse]):
        off = np.abs(grid - _interpolate([grid], 0))
        new = np.ones(grid.shape, np.bool_)
        new[coarse] = False
        off = off[new & np.isfinite(off)]
        errors.append(float(np.median(off)) if off.size else 0.0)
    return errors[0] > ROUGH * errors[1] > 0


def block_maxima(points: Floats) -> Floats:
    """The largest value in each block of the next level, over the points of a level inside it and on its sides."""
    counts, half = block_counts(finer_shape(points.shape, 2)), BLOCK // 2
    for dimension, count in enumerate(counts):
        along = np.moveaxis(points, dimension, 0)
        largest = np.stack([along[k * half : (k + 1) * half + 1].max(axis=0) for k in range(count)])
        points = np.moveaxis(largest, 0, dimension)
    return points


def _marked_blocks(values: BlockValues, level: int) -> Mask:
    """The blocks of a level with a marked point in them."""
    base = values.merged[0].shape
    mask = np.zeros(block_counts(finer_shape(base, 2**level)), np.bool_)
    finest = len(values.merged) - 1
    for index in values.marked:
        places = (place * 2.0 ** (level - finest) // BLOCK for place in index)
        mask[tuple(min(int(place), count - 1) for place, count in zip(places, mask.shape, strict=True))] = True
    return mask


def wanted_blocks(values: BlockValues, tolerance: float, most_levels: int = MOST_LEVELS) -> list[WantedBlocks]:
    """The blocks that every level should hold, including those that it holds already; the coarsest level first.

    A block is wanted if half of η exceeds the tolerance at a point in it; at level 1, also if it holds a marked point
    and η is not 0. Neighbours differ by one level at most: the blocks around a block of level ℓ are wanted in level
    ℓ − 1.
    """
    if not values.relief > 0:
        return []
    base, levels = values.merged[0].shape, list[WantedBlocks]()
    for level in range(1, min(len(values.merged), most_levels) + 1):
        eta = block_maxima(interpolation_errors(values, level - 1))
        blocks = HALVED * eta > tolerance
        if level <= MARKED_LEVELS:
            blocks |= (eta > 0) & _marked_blocks(values, level)
        if level <= len(values.held):
            blocks |= values.held[level - 1]
        levels.append(WantedBlocks(level, blocks, eta))
    for finer, coarser in zip(reversed(levels), list(reversed(levels))[1:], strict=False):
        coarser.blocks[...] |= parents_of(grow_blocks(finer.blocks), finer_shape(base, 2**coarser.level))
    return levels


def next_blocks(
    values: BlockValues, tolerance: float, points: int | None, most_levels: int = MOST_LEVELS
) -> WantedBlocks | None:
    """The coarsest level that lacks a wanted block, with all blocks that it shall hold; None if no level does.

    Args:
        points: how many more points may be evaluated. If the blocks have more, those of the largest η that fit are
            chosen; blocks of equal η in the order of their indices.
    """
    for level in wanted_blocks(values, tolerance, most_levels):
        held = values.held[level.level - 1] if level.level <= len(values.held) else np.zeros_like(level.blocks)
        missing = level.blocks & ~held
        if not missing.any():
            continue
        chosen = _choose(level, held, missing, finer_shape(values.merged[0].shape, 2**level.level), points)
        return WantedBlocks(level.level, held | chosen, level.eta) if chosen.any() else None
    return None


def _choose(level: WantedBlocks, held: Mask, missing: Mask, shape: Index, points: int | None) -> Mask:
    """The missing blocks of the largest η that fit the budget."""
    if points is None:
        return missing
    per_tile, chosen = new_points_per_tile(shape), np.zeros_like(missing)
    numbers = np.flatnonzero(missing)
    spent = int(per_tile[tiles_of_blocks(held, shape)].sum())
    for number in numbers[np.argsort(-level.eta.reshape(-1)[numbers], kind="stable")]:
        chosen.flat[number] = True
        if int(per_tile[tiles_of_blocks(held | chosen, shape)].sum()) - spent > points:
            chosen.flat[number] = False
            break
    return chosen
