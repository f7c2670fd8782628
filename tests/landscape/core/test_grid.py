"""Coordinates are exact, tiles cover the grid once, and coarse ones come first."""

from __future__ import annotations

import itertools
import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from landscape import Landscape
from landscape.compute.axes_and_paths import axis_ranges, fit_range, make_coordinates
from landscape.core.grid import (
    MAX_TILE_EDGE,
    Grid,
    Tile,
    axis_coordinates,
    choose_tile_shape,
    coarse_to_fine_order,
    coordinates_through_zero,
    coordinates_through_zero_and_one,
    size_through,
    tile_at,
    tile_counts,
)
from landscape.store.format import PathPlan

SHAPES = st.lists(st.integers(1, 23), min_size=1, max_size=3).map(tuple)
DECIMALS = st.integers(-(10**6), 10**6).flatmap(lambda n: st.integers(0, 6).map(lambda e: Decimal(n).scaleb(-e)))


def test_fifteen_points_from_minus_a_fifth_pass_through_zero_and_one():
    found = axis_coordinates(15, -0.2, 1.2).tolist()
    assert found == [-0.2, -0.1, 0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2]
    assert math.copysign(1, found[2]) == 1
    assert np.linspace(-0.2, 1.2, 15)[2] != 0  # what the usual function gives


@given(size=st.integers(3, 401), half=st.floats(1e-6, 1e6))
def test_a_symmetric_axis_is_symmetric_to_the_bit_and_holds_zero_if_odd(size, half):
    found = axis_coordinates(size, -half, half)
    np.testing.assert_array_equal(found, -found[::-1])
    assert (0.0 in found.tolist()) == (size % 2 == 1)


@given(size=st.integers(3, 300), low=DECIMALS, length=DECIMALS.filter(lambda d: d > 0))
def test_coordinates_are_the_decimals_rounded_once(size, low, length):
    high = low + length
    found = axis_coordinates(size, float(low), float(high))
    assert len(found) == size
    assert found.dtype == np.float64
    assert (found[0], found[-1]) == (float(low), float(high))
    exact = [Fraction(low) + Fraction(length) * i / (size - 1) for i in range(size)]
    # Decimals of few digits survive float and back, so the exact values are those the user wrote.
    assert found.tolist() == [float(value) for value in exact]
    assert (np.diff(found) > 0).all()
    assert (0.0 in found.tolist()) == (Fraction(0) in exact)


@given(size=st.integers(3, 64), low=st.floats(1e-6, 1e6), high=st.floats(1e-6, 1e6))
def test_coordinates_through_zero_cover_a_range_with_the_least_step(size, low, high):
    found = coordinates_through_zero(size, -low, high)
    assert found[0] <= -low
    assert found[-1] >= high
    assert found[0] == -low or found[-1] == high
    assert found.tolist().count(0.0) == 1
    assert math.copysign(1, found[found == 0][0]) == 1
    step = max(np.diff(found))
    np.testing.assert_allclose(np.diff(found), step, rtol=1e-9)
    # No other place of zero leaves a smaller step.
    assert step <= min(max(low / k, high / (size - 1 - k)) for k in range(1, size - 1)) * (1 + 1e-9)


PATHS = st.integers(1, 3).flatmap(
    lambda axes: st.lists(st.lists(st.floats(-1e3, 1e3), min_size=axes, max_size=axes), min_size=3, max_size=8)
)


@given(path=PATHS, size=st.integers(3, 64))
def test_a_fitted_range_goes_through_zero_and_widens_by_at_most_a_step(path, size):
    places = np.array(path)
    spec = Landscape(name="a", trajectory=range(len(path)), axes=places.shape[1], size=size)
    plan = PathPlan("step", tuple(range(len(path))), places, np.zeros(len(path)))
    for k, found in enumerate(make_coordinates(spec, plan)):
        low, high = fit_range(places[:, k])
        assert len(found) == size
        assert 0.0 in found.tolist()
        assert found[0] <= low < places[:, k].min() or low == found[0]
        assert found[-1] >= high
        steps = np.diff(found)
        np.testing.assert_allclose(steps, steps[0], rtol=1e-6)
        # A whole step is the least where zero would lie in the middle of two points, such as at 0 of [-1, 1] by 4.
        assert (found[-1] - found[0]) - (high - low) <= steps[0] * (1 + 1e-6)


@given(size=st.integers(4, 3000))
def test_a_line_holds_both_of_its_ends_and_covers_a_fifth_beyond_each(size):
    found = coordinates_through_zero_and_one(size)
    assert len(found) == size
    assert found.dtype == np.float64
    between = round(1 / found[found > 0].min())  # steps from 0 to 1
    zero = found.tolist().index(0.0)
    assert found.tolist() == [float(Fraction(i - zero, between)) for i in range(size)]
    assert math.copysign(1, found[zero]) == 1
    assert found[zero + between] == 1.0
    low, high = -Fraction(zero, between), Fraction(size - 1 - zero, between)
    assert low <= Fraction(-1, 5)
    assert high >= Fraction(6, 5)
    # Less than two steps are added at either end, and one step more between 0 and 1 would not fit.
    assert (Fraction(-1, 5) - low) * between < 2
    assert (high - Fraction(6, 5)) * between < 2
    assert between + 1 + 2 * math.ceil((between + 1) / 5) > size - 1


@pytest.mark.parametrize(
    ("size", "low", "zero", "step"),
    [
        (4, -1.0, 1, 1.0),
        (8, -0.2, 1, 0.2),
        (15, -0.2, 2, 0.1),
        (41, -6 / 28, 6, 1 / 28),
        (65536, -9362 / 46810, 9362, 1 / 46810),
    ],
)
def test_lines_of_usual_sizes(size, low, zero, step):
    found = coordinates_through_zero_and_one(size)
    assert (found[0], found[zero], found[zero + 1]) == (low, 0.0, step)
    assert 1.0 in found.tolist()


@given(
    size=st.integers(3, 60), low=st.integers(-50, 10), high=st.integers(-10, 50),
    places=st.sampled_from([(0,), (1,), (0, 1)]),
)  # fmt: skip
def test_the_next_size_with_points_at_all_places_is_the_least(size, low, high, places):
    assume(low < high)
    low, high = low / 10, high / 10
    found = size_through(size, low, high, places)
    if not all(low <= place <= high for place in places):
        assert found is None
        return
    assert set(places) <= set(axis_coordinates(found, low, high).tolist())
    assume(found - size < 200)
    assert not any(set(places) <= set(axis_coordinates(each, low, high).tolist()) for each in range(size, found))


def towards(**fields) -> Landscape:
    return Landscape(name="a", directions=[{"kind": "towards", "target": "first"}], **fields)


@pytest.mark.parametrize("size", [3, 4, 40, 41])
def test_the_range_of_a_line_is_chosen_only_where_none_is_given(size):
    (chosen,) = make_coordinates(towards(size=size), None)
    if size > 3:
        np.testing.assert_array_equal(chosen, coordinates_through_zero_and_one(size))
    asked = axis_coordinates(size, -0.2, 1.2)
    others = [towards(size=size, range=[-0.2, 1.2])]
    others += [towards(size=size)] if size == 3 else []  # too few points for both ends and beyond
    for spec in others:
        np.testing.assert_array_equal(make_coordinates(spec, None)[0], asked)
        assert axis_ranges(spec) == [(-0.2, 1.2)]
    # What tells one landscape from another names the range that was chosen.
    assert axis_ranges(towards(size=size)) == [(chosen[0], chosen[-1])]


def test_a_line_beside_another_axis_has_its_own_range():
    kinds = [{"kind": "random"}, {"kind": "towards", "target": "first"}]
    spec = Landscape(name="a", directions=kinds, size=[5, 8])
    one, other = make_coordinates(spec, None)
    assert one.tolist() == [-1.0, -0.5, 0.0, 0.5, 1.0]
    assert other.tolist() == [-0.2, 0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2]


@given(size=st.integers(3, 100), low=st.floats(-1e300, 1e300), high=st.floats(-1e300, 1e300))
def test_any_two_ends_are_hit_exactly_and_coordinates_ascend(size, low, high):
    if low > high:
        low, high = high, low
    found = axis_coordinates(size, low, high)
    assert (found[0], found[-1]) == (low, high)
    assert (np.diff(found) >= 0).all()


def test_array_dimensions_are_the_axes_reversed():
    grid = Grid(("alpha", "beta", "gamma"), tuple(np.arange(n, dtype=float) for n in (5, 3, 2)))
    assert grid.shape == (2, 3, 5)
    assert grid.dimensions == ("gamma", "beta", "alpha")
    assert grid.points == 30


@given(shape=SHAPES, data=st.data())
def test_tiles_cover_every_point_once_with_its_own_coordinates(shape, data):
    tile_shape = tuple(data.draw(st.integers(1, n)) for n in shape)
    # Coordinates that tell axis and index: 1000·axis + index.
    axes = tuple(1000.0 * k + np.arange(n) for k, n in enumerate(reversed(shape)))
    grid = Grid(("alpha", "beta", "gamma")[: len(shape)], axes)
    covered = np.zeros(shape, int)
    for index in itertools.product(*map(range, tile_counts(shape, tile_shape))):
        tile = tile_at(index, shape, tile_shape)
        assert tile.points == math.prod(tile.shape) > 0
        assert all(edge <= most for edge, most in zip(tile.shape, tile_shape, strict=True))
        covered[tile.windows] += 1
        points = grid.tile_points(tile)
        assert points.shape == (tile.points, len(shape))
        for row, place in zip(points, np.ndindex(*tile.shape), strict=True):
            where = [start + i for start, i in zip(tile.start, place, strict=True)]
            assert row.tolist() == [axes[k][i] for k, i in enumerate(reversed(where))]
    assert (covered == 1).all()


def test_the_last_tile_is_cut_off_by_the_grid():
    assert tile_at((1, 2), (5, 7), (3, 3)) == Tile((1, 2), (3, 6), (5, 7))


def coarse_to_fine(counts):
    """The indices of all tiles in the order of the visit."""
    return [tuple(map(int, np.unravel_index(k, counts))) for k in coarse_to_fine_order(np.ones(counts, np.bool_))]


@given(counts=SHAPES)
def test_coarse_to_fine_visits_each_tile_once_and_coarse_lattices_first(counts):
    order = coarse_to_fine(counts)
    assert sorted(order) == sorted(itertools.product(*map(range, counts)))

    def level(index):
        """The largest power of two that divides every component."""
        return min((i & -i if i else 1 << 30) for i in index)

    levels = [level(index) for index in order]
    assert levels == sorted(levels, reverse=True)
    assert order[0] == (0,) * len(counts)


def test_coarse_to_fine_of_five_by_two_written_out():
    assert coarse_to_fine((5, 2)) == [
        (0, 0), (4, 0), (2, 0), (0, 1), (1, 0), (1, 1), (2, 1), (3, 0), (3, 1), (4, 1),
    ]  # fmt: skip


@given(
    shape=st.lists(st.integers(3, 300), min_size=1, max_size=3).map(tuple),
    seconds=st.floats(0, 1e4),
    workers=st.integers(1, 200),
    in_rows=st.booleans(),
)
def test_tiles_are_between_one_and_64_and_at_least_four_per_worker(shape, seconds, workers, in_rows):
    found = choose_tile_shape(shape, seconds, workers, in_rows=in_rows)
    assert all(1 <= edge <= min(n, MAX_TILE_EDGE) for edge, n in zip(found, shape, strict=True))
    assert math.prod(tile_counts(shape, found)) >= min(math.prod(shape), 4 * workers)
    # No tile of more than one point is dearer than about ten seconds.
    assert math.prod(found) == 1 or math.prod(found) * seconds <= 10.0 * (1 + 1e-9)


@pytest.mark.parametrize(
    "shape, seconds, workers, expected",
    [((40, 40), 100.0, 2, (1, 1)), ((4000, 4000), 1e-6, 1, (64, 64)), ((1000, 1000), 0.1, 2, (10, 10))],
)
def test_tile_shapes_of_typical_jobs(shape, seconds, workers, expected):
    assert choose_tile_shape(shape, seconds, workers) == expected


def test_tiles_hold_the_points_that_are_computed_at_once_unless_that_takes_long():
    assert choose_tile_shape((51,), 1e-4, 1, at_once=32) == (32,)
    assert choose_tile_shape((5, 5), 1e-4, 8, at_once=32) == (5, 5)
    assert choose_tile_shape((25, 25), 1e-4, 8, at_once=32) == (5, 6), "as square as it can be"
    assert choose_tile_shape((25, 25), 100.0, 8, at_once=32) == (1, 1)


@pytest.mark.parametrize(
    "shape, seconds, workers, expected",
    [((25, 25), 0.01, 1, (25, 2)), ((40, 40), 100.0, 2, (1, 1)), ((200, 30), 0.1, 1, (64, 1)),
     ((9, 9, 9), 0.01, 1, (9, 5, 1)), ((1000,), 0.01, 1, (62,)), ((12, 4), 1e-6, 1, (12, 1))],
)  # fmt: skip
def test_tiles_of_rows_are_whole_rows_where_that_leaves_every_worker_some(shape, seconds, workers, expected):
    assert choose_tile_shape(shape, seconds, workers, in_rows=True) == expected
