"""The geometry of levels: every new point of a grid lives in exactly one tile, and blocks and tiles go together."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from landscape.core.grid import Grid, axis_coordinates, coordinates_through_zero, tile_at
from landscape.surface.refinement import (
    block_counts,
    blocks_over,
    finer_axis,
    finer_grid,
    finer_shape,
    from_stretches,
    grow_blocks,
    in_coarser_level,
    new_points_per_tile,
    parents_of,
    tile_shape,
    tiles_of_blocks,
    to_stretches,
)

SHAPES = [(5,), (9,), (17, 17), (17, 33), (3, 9), (21, 13), (9, 17, 5)]


@pytest.mark.parametrize("shape", SHAPES)
def test_all_blocks_hold_every_new_point_once(shape):
    tiles = tiles_of_blocks(np.ones(block_counts(shape), bool), shape)
    held = np.zeros(shape, int)
    for index in np.argwhere(tiles):
        tile = tile_at(tuple(index), shape, tile_shape(shape))
        held[tile.windows] += ~in_coarser_level(tile)
        assert new_points_per_tile(shape)[tuple(index)] == (~in_coarser_level(tile)).sum() > 0
    coarse = np.zeros(shape, bool)
    coarse[tuple(slice(None, None, 2) for _ in shape)] = True
    assert np.array_equal(held, ~coarse)
    assert new_points_per_tile(shape)[~tiles].sum() == 0


@pytest.mark.parametrize("axis", [axis_coordinates(9, -1, 1), axis_coordinates(5, -0.2, 1.1)])
def test_a_finer_axis_is_that_of_a_job_that_asks_for_it_at_once(axis):
    at_once = axis_coordinates(4 * len(axis) - 3, float(axis[0]), float(axis[-1]))
    assert np.array_equal(finer_axis(axis, 4), at_once)


def test_a_finer_axis_holds_the_points_of_a_fitted_one():
    axis = coordinates_through_zero(7, -0.93, 3.1)
    finer = finer_axis(axis, 4)
    assert np.array_equal(finer[::4], axis)
    assert np.array_equal(finer[::2], finer_axis(axis, 2))
    assert (np.diff(finer) > 0).all()


def test_a_box_takes_the_blocks_of_its_points_with_its_ends():
    grid = finer_grid(Grid(("alpha", "beta"), (axis_coordinates(9, -1, 1), axis_coordinates(17, 0, 2))), 2)
    assert grid.shape == (33, 17)
    for noise in (-1e-12, 0.0, 1e-12):
        low, high = [-1 + noise, noise], [noise, 2 + noise]
        assert to_stretches(blocks_over(grid, low, high)) == ((0, 8),)  # the points of alpha 0 are the next block's
        low, high = [noise, 0.5 + noise], [1 + noise, 0.75]
        assert to_stretches(blocks_over(grid, low, high)) == ((3, 4),)  # and those of beta 0.5 too
    assert to_stretches(blocks_over(grid, [-1, 0], [-0.01, 2])) == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert to_stretches(blocks_over(grid, [-0.01, 0.6], [0.01, 0.9])) == ((2, 4),)


def test_blocks_have_parents_and_neighbours():
    blocks = np.zeros((4, 4), bool)
    blocks[3, 1] = True
    assert np.argwhere(parents_of(blocks, finer_shape((9, 9), 2))).tolist() == [[1, 0]]
    assert int(grow_blocks(blocks).sum()) == 6


@given(st.lists(st.booleans(), min_size=12, max_size=12))
def test_stretches_are_read_as_they_were_written(held):
    mask = np.array(held).reshape(3, 4)
    assert np.array_equal(from_stretches(to_stretches(mask), (3, 4)), mask)
