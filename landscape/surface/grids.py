"""The grids of refinement levels: their coordinates, the points that a level adds, and the blocks that it is made of.

Level ℓ halves the steps of level ℓ−1; level 0 is the landscape itself. A point lives in the coarsest level that has it:
one all of whose indices are even belongs to a coarser level. A *block* is 8 cells along each axis, and one tile.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from landscape.core.grid import Floats, Grid, Index, Tile, axis_coordinates, tile_counts

BLOCK = 8  # cells of a block along each axis, and points of a tile
Mask = NDArray[np.bool_]


def finer_shape(shape: Sequence[int], times: int) -> Index:
    """The shape of a grid between two neighbours of which so many steps lie, where one lay.

    >>> finer_shape((3, 5), 2)
    (5, 9)
    """
    return tuple((size - 1) * times + 1 for size in shape)


def finer_axis(axis: Floats, times: int) -> Floats:
    """An axis with every step divided by `times`: the coordinates of a job that asks for so many points at once.

    Where those do not hold all coordinates that there are, to the bit, the steps are divided in rational arithmetic.

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


def of_coarser_level(tile: Tile) -> Mask:
    """Which points of a tile of a level live in a coarser one, in the shape of the tile: all of their indices are even.

    >>> from landscape.core.grid import tile_at
    >>> of_coarser_level(tile_at((0, 0), (5, 5), (2, 4))).astype(int).tolist()
    [[1, 0, 1, 0], [0, 0, 0, 0]]
    """
    mask = np.ones(tile.shape, np.bool_)
    for dimension, (start, stop) in enumerate(zip(tile.start, tile.stop, strict=True)):
        even = np.arange(start, stop) % 2 == 0
        mask &= even.reshape([-1 if k == dimension else 1 for k in range(len(tile.shape))])
    return mask


def new_points(tile: Tile) -> int:
    """How many points of a tile of a level live in that level."""
    return tile.points - int(of_coarser_level(tile).sum())


def new_points_per_tile(shape: Sequence[int]) -> NDArray[np.int64]:
    """How many points of each tile of a level live in that level, over the tiles.

    >>> new_points_per_tile((9, 17)).tolist()
    [[48, 48, 4], [4, 4, 0]]
    """
    every, even = np.ones((), np.int64), np.ones((), np.int64)
    for size, edge in zip(shape, tile_shape(shape), strict=True):
        sizes = np.minimum(edge, size - np.arange(0, size, edge))
        # Tiles begin at even places: of an odd number of points the first one is even.
        every, even = np.multiply.outer(every, sizes), np.multiply.outer(even, -(-sizes // 2))
    return every - even


def points_left(blocks: tuple[tuple[int, int], ...], done: Mask) -> int:
    """How many points a level is still to get.

    Args:
        blocks: the tiles that it holds, as `as_stretches` writes them.
        done: which of its points are there, over its whole grid.
    """
    held = of_stretches(blocks, tile_counts(done.shape, tile_shape(done.shape)))
    return int(new_points_per_tile(done.shape)[held].sum()) - int(done.sum())


def block_counts(shape: Sequence[int]) -> Index:
    """How many blocks a grid has along each dimension.

    >>> block_counts((17, 18, 5))
    (2, 3, 1)
    """
    return tuple(max(1, -(-(size - 1) // BLOCK)) for size in shape)


def tiles_of_blocks(blocks: Mask, shape: Sequence[int]) -> Mask:
    """The tiles that hold the points of some blocks, a mask over the tiles of a level.

    A tile holds the points of its block without those on its far sides, which belong to the next blocks. At the far end
    of the grid these are tiles of their own, one point wide, which go with the last block.
    """
    counts = tile_counts(shape, tile_shape(shape))
    tiles = blocks
    for dimension, count in enumerate(counts):
        if count > tiles.shape[dimension]:
            tiles = np.concatenate([tiles, np.take(tiles, [-1], dimension)], dimension)
    tiles = np.array(tiles, np.bool_)
    if all(size % BLOCK == 1 for size in shape):
        tiles[(-1,) * tiles.ndim] = False  # a tile of one point, which lives in a coarser level
    return tiles


def blocks_of_tiles(tiles: Mask, shape: Sequence[int]) -> Mask:
    """The blocks of the tiles, those one point wide left out: the inverse of `tiles_of_blocks`."""
    return np.array(tiles[tuple(slice(0, count) for count in block_counts(shape))])


def tile_shape(shape: Sequence[int]) -> Index:
    """The shape of the tiles of a level: a block, or the whole of a grid that is smaller."""
    return tuple(min(BLOCK, size) for size in shape)


def as_stretches(mask: Mask) -> tuple[tuple[int, int], ...]:
    """Where a mask holds, by numbers in C order, as stretches [first, end).

    >>> as_stretches(np.array([[True, True, False], [False, True, True]]))
    ((0, 2), (4, 6))
    """
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask.reshape(-1), [False]]).astype(np.int8)))
    return tuple((int(first), int(end)) for first, end in edges.reshape(-1, 2))


@lru_cache(maxsize=64)
def of_stretches(stretches: tuple[tuple[int, int], ...], counts: Index) -> Mask:
    """The mask over so many tiles that `as_stretches` has written; what lies outside is left out. Not to be changed."""
    mask = np.zeros(int(np.prod(counts)), np.bool_)
    for first, end in stretches:
        mask[first:end] = True
    mask.setflags(write=False)
    return mask.reshape(counts)


def blocks_over(grid: Grid, low: Sequence[float], high: Sequence[float]) -> Mask:
    """The blocks of a level whose cells overlap a box, a mask over `block_counts`.

    Args:
        grid: of the level.
        low, high: the corners of the box, a coordinate per axis.
    """
    mask = np.ones(block_counts(grid.shape), np.bool_)
    for k, (axis, start, end) in enumerate(zip(grid.coordinates, low, high, strict=True)):
        dimension = mask.ndim - 1 - k
        cells = (axis[:-1] < end) & (axis[1:] > start)
        inside = np.array([cells[first : first + BLOCK].any() for first in range(0, len(cells), BLOCK)])
        mask &= inside.reshape([-1 if d == dimension else 1 for d in range(mask.ndim)])
    return mask


def parents_of(blocks: Mask, coarser: Sequence[int]) -> Mask:
    """The blocks of the next coarser level that hold some blocks.

    Args:
        coarser: the shape of the grid of the coarser level.
    """
    parents = np.zeros(block_counts(coarser), np.bool_)
    for index in np.argwhere(blocks):
        parents[tuple(place // 2 for place in index)] = True
    return parents


def grown(blocks: Mask) -> Mask:
    """The blocks, and all that touch one of them."""
    mask = np.array(blocks)
    for dimension in range(mask.ndim):
        moved = np.moveaxis(mask, dimension, 0)
        before = moved.copy()
        moved[1:] |= before[:-1]
        moved[:-1] |= before[1:]
    return mask


def any_of(masks: Iterable[Mask], counts: Index) -> Mask:
    """Where any of some masks over so many blocks holds."""
    mask = np.zeros(counts, np.bool_)
    for one in masks:
        mask |= one
    return mask
