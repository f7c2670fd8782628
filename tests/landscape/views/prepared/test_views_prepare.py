"""What is prepared equals what the closed form says, on square and other grids."""

from __future__ import annotations

import dataclasses
from types import ModuleType

import numpy as np
import pytest

from landscape.errors import JobError
from landscape.surface import Surface
from landscape.views import prepare
from landscape.views.figures.holes import rectangles, square_states
from landscape.views.figures.isolines import isolines
from landscape.views.figures.shells import shell
from landscape.views.prepared.prepare import thinned
from landscape.views.prepared.track import place_labels, prepare_track


def test_a_non_square_grid_keeps_beta_in_rows_and_alpha_in_columns(make: ModuleType) -> None:
    grid = prepare(make.quadratic(40, 30))
    assert grid.values.shape == (30, 40)
    alpha, beta = (axis.coordinates for axis in grid.axes)
    for j, i in ((0, 0), (3, 37), (29, 5)):
        assert grid.drawn[j, i] == make.bowl(alpha[i], beta[j])
    assert grid.ratio == pytest.approx(0.75)
    assert grid.equal


def test_prepared_values_compare_by_content(make: ModuleType) -> None:
    assert prepare(make.holed()) == prepare(make.holed())
    assert prepare(make.holed()) != prepare(make.holed(), log=True)
    assert prepare(make.quadratic(offset=0.1)) != prepare(make.quadratic(offset=0.2))


def test_the_surface_is_not_changed(make: ModuleType) -> None:
    surface = make.holed()
    before = {name: values.copy() for name, values in surface.observables.items()}
    prepare(surface, log=True)
    for name, values in before.items():
        np.testing.assert_array_equal(surface.observables[name], values)


def test_logarithm_of_zero_is_a_marked_hole_not_a_low_value(make: ModuleType) -> None:
    grid = prepare(make.quadratic(21, 21, offset=0.0), log=True)
    assert grid.states[10, 10] == 4
    assert np.isnan(grid.drawn[10, 10])
    assert np.isfinite(grid.drawn[10, 11])


def test_caption_says_samples_resolution_kind_and_state(make: ModuleType) -> None:
    caption = ". ".join(prepare(make.holed()).caption)
    for part in (
        "512 samples",
        "float32",
        "batch norm eval",
        "40 × 30 points",
        "epoch 10",
        "artial: 1\u202f104 of 1\u202f200 points",
    ):
        assert part in caption
    assert "40 points not finite, 16 points quarantined" in caption
    assert "Logarithmic scale" in prepare(make.quadratic(), log=True).caption


def test_axes_say_what_they_are(make: ModuleType) -> None:
    random, pca = prepare(make.quadratic()).axes[0].title, prepare(make.pca_plane()).axes[1].title
    assert random == "alpha: random direction (seed 1, filter-normalised, bias and norm ignored)"
    assert pca.replace("\u00a0", " ").endswith("12.4 % of the variance (random walk: 15.2 %)")


def test_needle_like_axes_fall_back_and_say_so(make: ModuleType) -> None:
    alpha, beta = np.linspace(-10, 10, 9), np.linspace(-1, 1, 9)
    grid = prepare(make.two_axes("needle", alpha, beta, make.bowl(alpha[None], beta[:, None])))
    assert not grid.equal
    assert "Axes not to one scale: they span 20 and 2" in grid.caption


def test_thinning_picks_and_says_so(make: ModuleType) -> None:
    surface = make.quadratic(40, 30)
    few = thinned(surface, 16)
    assert few.loss.shape == (16, 16)
    assert few.alpha[0] == surface.alpha[0]
    assert few.alpha[-1] == surface.alpha[-1]
    assert set(few.loss.ravel()) <= set(surface.loss.ravel())
    assert "Drawn from 16 × 16 points of them" in prepare(surface, max_points=16).caption


def test_unknown_observable_names_the_right_ones(make: ModuleType) -> None:
    with pytest.raises(JobError, match="did you mean 'accuracy'"):
        prepare(make.quadratic(), "acuracy")


def test_track_follows_the_path(make: ModuleType) -> None:
    path = make.spiral(10)
    track = prepare_track(make.quadratic(path=path), "loss", log=True)
    assert track is not None
    np.testing.assert_allclose(track.height, np.log10(path.projected_loss))
    assert track.numbers == tuple(range(1, 11))
    assert "<b>epoch 10</b> (convergence point)" in track.hover[-1]
    for word in ("alpha", "beta", "loss ", "loss at its projection", "distance off the plane 0.4"):
        assert word in track.hover[0]
    assert {0, 9} <= {label.index for label in track.labels}


def test_an_uncomputed_path_has_gaps_and_no_invented_height(make: ModuleType) -> None:
    path = make.spiral(6)
    path = dataclasses.replace(path, projected_loss=np.array([1, np.nan, 1, np.inf, -1, 1.0]), loss=np.full(6, np.nan))
    track = prepare_track(make.quadratic(path=path), "loss", log=True)
    assert track is not None
    assert np.isfinite(track.height).tolist() == [True, False, True, False, False, True]
    assert "loss not known" in track.hover[0]
    assert "Loss on the path known at 3 of 6 points" in prepare(make.quadratic(path=path), log=True).caption


def test_labels_of_a_crowded_path_keep_apart() -> None:
    t = np.linspace(0, 1, 300)
    points = np.stack([t * np.cos(4 * t), t * np.sin(4 * t)], axis=1) / 2
    labels = place_labels(points, [str(k) for k in range(300)])
    assert labels[0].index == 0
    assert labels[-1].index == 299
    assert 5 < len(labels) < 60


def test_rectangles_cover_exactly_the_mask() -> None:
    mask = np.random.default_rng(3).random((13, 17)) < 0.4
    covered = np.zeros(mask.shape, int)
    for top, bottom, left, right in rectangles(mask):
        covered[top:bottom, left:right] += 1
    np.testing.assert_array_equal(covered, mask.astype(int))


def test_a_square_is_a_hole_if_any_corner_is() -> None:
    states = np.ones((3, 4), np.uint8)
    states[0, 0], states[2, 3] = 0, 3
    assert square_states(states).tolist() == [[0, 1, 1], [1, 1, 3]]


def test_shell_of_a_sphere_has_its_radius_and_area() -> None:
    x, y, z = np.linspace(-1, 1, 33), np.linspace(-1, 1, 31), np.linspace(-1, 1, 29)
    radius = np.sqrt(x[None, None] ** 2 + y[None, :, None] ** 2 + z[:, None, None] ** 2)
    vertices, triangles = shell(radius, (x, y, z), 0.7)
    np.testing.assert_allclose(np.linalg.norm(vertices, axis=1), 0.7, atol=0.004)
    a, b, c = (vertices[triangles[:, k]] for k in range(3))
    area = np.linalg.norm(np.cross(b - a, c - a), axis=1).sum() / 2
    assert area == pytest.approx(4 * np.pi * 0.7**2, rel=0.01)


def test_a_shell_stays_open_at_a_hole() -> None:
    x = np.linspace(-1, 1, 21)
    radius = np.sqrt(x[None, None] ** 2 + x[None, :, None] ** 2 + x[:, None, None] ** 2)
    radius[10:, 10:, 10:] = np.nan
    vertices, triangles = shell(radius, (x, x, x), 0.6)
    assert len(triangles)
    assert not (vertices > 0.05).all(axis=1).any()


def test_isolines_lie_on_their_levels_and_skip_holes() -> None:
    x, y = np.linspace(-1, 1, 41), np.linspace(-1, 1, 37)
    height = x[None] ** 2 + y[:, None] ** 2
    height[18:, 20:] = np.nan
    found = isolines(x, y, height, (0.25, 0.5))
    points = found[np.isfinite(found[:, 0])]
    assert len(points) == 2 * len(found) // 3
    assert set(np.round(points[:, 2], 9)) == {0.25, 0.5}
    np.testing.assert_allclose((points[:, :2] ** 2).sum(axis=1), points[:, 2], atol=0.004)
    assert not (points[:, :2] > 0).all(axis=1).any()
    segments = found[np.isfinite(found[:, 0])].reshape(-1, 2, 3)
    length = np.linalg.norm(segments[:, 1] - segments[:, 0], axis=1).sum()
    assert length == pytest.approx(2 * np.pi * (0.5 + np.sqrt(0.5)) * 3 / 4, rel=0.06)


def test_errors_are_found_beside_their_observable(make: ModuleType) -> None:
    surface: Surface = make.quadratic()
    grid = prepare(surface, "accuracy")
    assert grid.error is not None
    np.testing.assert_array_equal(grid.error, surface.stderr("accuracy"))
