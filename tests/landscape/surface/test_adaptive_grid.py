"""Interpolation over points of several levels: exact polynomials, holes, canyons, and the cells that are refined."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from landscape.surface.adaptive_grid import (
    Levels,
    Places,
    from_base,
    from_coarser,
    halve_steps,
    halving_matrix,
    interpolate,
    levels_above,
    points_in_cells,
)

GRIDS = [((21,), 4), ((11, 9), 2), ((7, 6, 8), 2)]


def coordinates(levels: Levels, places: Places) -> np.ndarray:
    """Each index over [-1, 1]."""
    sizes = np.array(levels.shape(levels.finest))
    return 2.0 * places / (sizes - 1) - 1.0


@pytest.mark.parametrize(("base", "finest"), GRIDS)
def test_a_polynomial_of_degree_five_along_each_axis_is_interpolated_exactly(base, finest) -> None:
    levels = Levels(base, finest)
    every = levels.places(finest)

    def polynomial(places: Places) -> np.ndarray:
        terms = [np.polynomial.polynomial.polyval(x, [1, -2, 0.5, 1, -1, 0.7]) for x in coordinates(levels, places).T]
        return np.prod(terms, axis=0)

    places = levels.places(0)
    found = interpolate(levels, places, polynomial(places))
    assert np.allclose(found.values.ravel(), polynomial(every), rtol=0, atol=1e-12)
    assert found.error.shape == levels.shape(finest)


def test_the_matrix_is_that_of_lagrange_polynomials_at_the_ends_too() -> None:
    matrix, x = halving_matrix(7), np.linspace(0, 3, 13)
    for degree in range(6):
        assert np.allclose(matrix @ x[::2] ** degree, x**degree, atol=1e-12)


def test_few_points_are_interpolated_by_the_polynomial_through_all_of_them() -> None:
    assert np.allclose(halve_steps(np.array([1.0, 0.0, 1.0]), 1), [1.0, 0.25, 0.0, 0.25, 1.0])


def test_beside_a_value_that_is_not_finite_the_two_neighbours_decide() -> None:
    values = np.arange(9.0) ** 2
    values[4] = np.nan
    finer = halve_steps(values, 1)
    assert np.isnan(finer[[7, 8, 9]]).all()
    assert np.isfinite(np.delete(finer, [7, 8, 9])).all()
    assert finer[5] == (values[2] + values[3]) / 2


@pytest.mark.parametrize(("base", "finest"), GRIDS)
def test_the_coefficients_from_the_coarsest_level_are_those_of_the_interpolation(base, finest) -> None:
    levels, draw = Levels(base, finest), np.random.default_rng(0)
    places = levels.places(0)
    values = draw.normal(size=len(places))
    every = levels.places(finest)
    picked = every[draw.integers(0, len(every), 50)]
    finer = picked[levels.level_of(picked) > 0]
    found = interpolate(levels, places, values).values[tuple(finer.T)]
    coefficients = from_base(levels, np.concatenate([places, finer])).dense(
        np.arange(len(places) + len(finer)), len(places)
    )
    assert np.allclose(coefficients[len(places) :] @ values, found)
    assert not coefficients[: len(places)].any()


@pytest.mark.parametrize(("base", "finest"), GRIDS)
def test_the_coefficients_from_coarser_levels_are_those_of_the_interpolation_without_the_point(base, finest) -> None:
    levels, draw = Levels(base, finest), np.random.default_rng(1)
    every = levels.places(finest)
    picked = every[draw.choice(len(every), min(60, len(every)), replace=False)]
    depth = levels.level_of(picked)
    places = np.concatenate([levels.places(0), picked[depth > 0]])
    values, depth = draw.normal(size=len(places)), levels.level_of(places)
    coefficients = from_coarser(levels, places)
    rows = coefficients.dense(np.arange(len(places)), len(places))
    for point in np.flatnonzero(depth):
        coarser = depth < depth[point]
        found = interpolate(levels, places[coarser], values[coarser]).values[tuple(places[point])]
        assert np.isclose(rows[point] @ values, found)
    kept = np.arange(1, len(places))  # without the first point
    left = coefficients.among(kept).dense(np.arange(len(kept)), len(kept))
    assert np.array_equal(left, np.where(rows[1:, :1] != 0, 0.0, rows[1:, 1:]))


def test_known_points_have_their_values_and_levels_are_counted_from_the_finest() -> None:
    levels = Levels((3, 3), 2)
    places = np.concatenate([levels.places(0), [[2, 2], [1, 0]]])
    values = np.concatenate([np.zeros(9), [5.0, 7.0]])
    found = interpolate(levels, places, values)
    assert found.values[2, 2] == 5.0
    assert found.values[1, 0] == 7.0
    above = levels_above(levels, places)
    assert above[2, 2] == above[1, 0] == above[0, 0] == 0
    assert above[8, 7] == 2


def test_points_in_cells_are_those_of_the_next_level_inside_and_on_the_sides() -> None:
    levels = Levels((3, 3), 2)
    mask = np.zeros((2, 2), np.bool_)
    mask[0, 1] = True
    found = points_in_cells(levels, [mask, np.zeros((4, 4), np.bool_), np.zeros((8, 8), np.bool_)], levels.places(0))
    assert sorted(map(tuple, found.tolist())) == [(0, 6), (2, 4), (2, 6), (2, 8), (4, 6)]


@pytest.mark.parametrize("axes", [1, 2])
def test_a_canyon_is_followed_until_its_cells_are_small(axes: int) -> None:
    levels = Levels((21,) * axes, 3)
    places = levels.places(0)

    def canyon(places: Places) -> np.ndarray:
        return np.square(coordinates(levels, places)).sum(axis=1) - np.exp(
            -np.square((coordinates(levels, places)[:, 0] - 0.137) / 0.06)
        )

    every = levels.places(3)
    for _ in range(6):
        found = interpolate(levels, places, canyon(places))
        new = points_in_cells(levels, [cells > 0.003 for cells in found.open], places)
        if not len(new):
            break
        places = np.concatenate([places, new])
    error = np.abs(found.values.ravel() - canyon(every))
    assert np.percentile(error, 95) < 0.003
    assert len(places) < 0.6 * len(every)
    assert found.error[tuple(places.T)].max() == 0.0


def test_the_expected_error_is_about_the_true_one() -> None:
    """Over smooth random surfaces, the root mean square of what is expected is within a factor of 4 of what is."""
    levels, draw, ratios = Levels((11, 11), 2), np.random.default_rng(1), []
    every = levels.places(2)
    x = coordinates(levels, every)
    for _ in range(20):
        waves = draw.normal(size=(12, 2)) * 3.0
        truth = (np.cos(x @ waves.T + draw.uniform(0, 6, 12)) * draw.normal(size=12)).sum(axis=1)
        grid = truth.reshape(levels.shape(2))
        places = levels.places(1)
        found = interpolate(levels, places, grid[tuple(places.T)])
        unknown = found.error > 0
        true = np.abs(found.values - grid)[unknown]
        ratios.append(np.sqrt(np.square(found.error[unknown]).mean() / np.square(true).mean()))
    assert 1.0 < np.median(ratios) < 4.0


def test_a_cell_without_points_has_one_error_however_fine_the_last_level() -> None:
    draw = np.random.default_rng(4)
    values = draw.normal(size=81)
    coarse, fine = (Levels((9, 9), finest) for finest in (1, 4))
    errors = [interpolate(levels, levels.places(0), values).error for levels in (coarse, fine)]
    cells = interpolate(fine, fine.places(0), values).open[0]
    assert np.allclose(errors[1][8::16, 8::16], cells)
    assert np.allclose(errors[0][1::2, 1::2], cells)
    assert cells.min() > 0


def test_noise_is_not_taken_for_surplus() -> None:
    """A flat surface whose finer points are noise of a known size: the picture stays flat, and no cell is refined."""
    levels, draw = Levels((11, 11), 2), np.random.default_rng(2)
    coarse, places = levels.places(0), levels.places(1)
    finer = levels.level_of(places) == 1
    errors = np.where(finer[:, None], draw.normal(size=(len(places), 128)), 0.0)
    values = np.where(finer, draw.normal(size=len(places)), 0.0)
    found = interpolate(levels, places, values, errors)
    assert np.abs(found.values).max() < 3.5
    assert np.sqrt(np.square(found.values).mean()) < 0.35
    assert max(cells.max() for cells in found.open) < 0.7
    assert np.isfinite(interpolate(levels, coarse, np.zeros(len(coarse))).values).all()


def test_the_larger_a_variance_may_be_the_less_a_surplus_counts() -> None:
    levels, draw = Levels((11, 11), 2), np.random.default_rng(5)
    places = levels.places(1)
    values, errors = draw.normal(size=len(places)), 0.3 * draw.normal(size=(len(places), 128))
    plain, inflated = (
        interpolate(levels, places, values, errors, np.full(len(places), factor)) for factor in (1.0, 9.0)
    )
    finer = levels.level_of(places) == 1
    assert (inflated.weight[finer] <= plain.weight[finer]).all()
    assert inflated.weight[finer].mean() < 0.8 * plain.weight[finer].mean()
    assert (plain.weight[~finer] == 1).all()


def test_every_cell_of_the_finest_grid_lies_in_one_open_cell() -> None:
    levels, draw = Levels((5, 5), 3), np.random.default_rng(3)
    places = levels.places(0)
    values = draw.normal(size=len(places))
    mask = draw.random((4, 4)) < 0.4
    places = np.concatenate([places, points_in_cells(levels, [mask], places)])
    values = draw.normal(size=len(places))
    found = interpolate(levels, places, values)
    covered = np.zeros((32, 32), np.int64)
    for level, cells in enumerate(found.open):
        size = 2 ** (levels.finest - level)
        for index in itertools.product(*map(range, cells.shape)):
            if cells[index] > 0:
                covered[index[0] * size : (index[0] + 1) * size, index[1] * size : (index[1] + 1) * size] += 1
    assert covered.max() == 1
