"""What is prepared equals what the closed form says, on square and other grids."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest
import synthetic_surfaces

from landscape.core.errors import JobError
from landscape.surface.surface import Axis, Surface
from landscape.views.draw.figure import figure
from landscape.views.prepare.figure import prepare_figure, rectangles, square_states, suggests_log, thinned, why_empty
from landscape.views.prepare.geometry import isolines, isosurface, refined
from landscape.views.prepare.paths import prepare_paths
from landscape.views.prepare.tables import landscape_rows
from landscape.views.prepare.words import fitting_title, short_axis_title


def test_a_non_square_grid_keeps_beta_in_rows_and_alpha_in_columns(make: ModuleType) -> None:
    data = prepare_figure(make.quadratic(40, 30))
    assert data.values.shape == (30, 40)
    alpha, beta = (axis.coordinates for axis in data.axes)
    for j, i in ((0, 0), (3, 37), (29, 5)):
        assert data.drawn[j, i] == make.bowl(alpha[i], beta[j])
    assert data.ratio == pytest.approx(0.75)
    assert data.equal


def test_the_surface_is_not_changed(make: ModuleType) -> None:
    surface = make.holed()
    before = {name: values.copy() for name, values in surface.observables.items()}
    prepare_figure(surface, log=True)
    for name, values in before.items():
        np.testing.assert_array_equal(surface.observables[name], values)


def test_logarithm_of_zero_is_a_marked_hole_not_a_low_value(make: ModuleType) -> None:
    data = prepare_figure(make.quadratic(21, 21, offset=0.0), log=True)
    assert data.states[10, 10] == 4
    assert np.isnan(data.drawn[10, 10])
    assert np.isfinite(data.drawn[10, 11])


def test_caption_says_samples_resolution_kind_and_state(make: ModuleType) -> None:
    caption = ". ".join(prepare_figure(make.holed()).caption)
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
    assert "Logarithmic scale" in prepare_figure(make.quadratic(), log=True).caption


def test_axes_say_what_they_are(make: ModuleType) -> None:
    """In a few words beside the plot, and at length in the caption."""
    random, pca, line = (prepare_figure(surface) for surface in (make.quadratic(), make.pca_plane(), make.line()))
    assert random.axes[0].title == "α · random direction, filter-normalised (seed 1)"
    assert "Alpha: random direction (seed 1, filter-normalised, bias and norm ignored)" in random.caption
    assert pca.axes[1].title.replace("\u00a0", " ") == "PC 2 (12.4 %)"
    assert any("12.4\u00a0% of the variance (random walk: 15.2\u00a0%)" in part for part in pca.caption)
    assert line.axes[0].title == "α · epoch 10 (0) to epoch 1 (1)"
    assert "Alpha: from epoch 10 (0) towards epoch 1 (1)" in line.caption
    label = "second eigenvector of the Hessian (λ = 3.4 ± 0.1)"
    sharp = dataclasses.replace(make.line().axes[0], attributes={"kind": "eigen", "label": label})
    assert short_axis_title(sharp) == "α · second eigenvector"


def test_values_over_more_than_two_decades_start_logarithmic_and_the_caption_says_why(make: ModuleType) -> None:
    wide, narrow = make.quadratic(41, 31, offset=0.01), make.quadratic(offset=0.1)
    assert suggests_log(wide)
    assert not suggests_log(narrow)
    assert prepare_figure(wide).scale.log
    assert "Logarithmic scale, as the values span 2.5 decades" in prepare_figure(wide).caption
    assert not prepare_figure(wide, log=False).scale.log
    assert "Logarithmic scale" in prepare_figure(narrow, log=True).caption
    assert not prepare_figure(wide, zmin=1.0, zmax=10.0).scale.log
    assert not prepare_figure(wide, zmin=0.0).scale.log
    assert not suggests_log(make.quadratic(21, 21, offset=0.0)), "zero has no logarithm"


def test_fractions_stay_linear(make: ModuleType) -> None:
    surface = make.valley()
    assert surface.accuracy.max() > 100 * surface.accuracy.min()
    assert suggests_log(surface)
    assert not suggests_log(surface, "accuracy")


def test_an_origin_that_training_went_on_after_says_so(make: ModuleType) -> None:
    surface = make.with_record(make.line(), origin="epoch <10>", went_on_to="epoch 12")
    data = prepare_figure(surface)
    assert "Origin: epoch <10> (training went on to epoch 12)" in data.caption
    assert data.origin.hover.startswith("<b>origin</b> (epoch &lt;10&gt;)<br>")
    assert data.origin.hover.endswith("<br>training went on to epoch 12")
    assert ("origin", "epoch <10> (training went on to epoch 12)") in landscape_rows(surface)


def test_the_origin_is_marked_where_it_lies_inside_the_axes(make: ModuleType) -> None:
    odd, even = make.quadratic(41, 31), make.quadratic(40, 30)
    assert prepare_figure(odd).origin.height == pytest.approx(0.1)
    assert prepare_figure(odd, log=True).origin.height == pytest.approx(-1)
    assert "epoch 10" in prepare_figure(odd).origin.hover
    assert np.isnan(prepare_figure(even).origin.height), "no point of the grid is there, and no loss was recorded"
    recorded = make.with_record(even, origin_loss=0.3)
    assert prepare_figure(recorded).origin.height == 0.3
    assert np.isnan(prepare_figure(recorded, "accuracy").origin.height)
    aside = make.two_axes("aside", np.linspace(1, 2, 5), np.linspace(-1, 1, 5), np.ones((5, 5)))
    assert prepare_figure(aside).origin is None
    assert prepare_figure(make.line()).origin.height == pytest.approx(0.05, abs=0.01), "interpolated along a line"


def test_the_layer_of_uncertainty_is_the_difference_over_two_errors_of_it(make: ModuleType) -> None:
    surface = make.with_record(make.quadratic(41, 31), origin_loss=0.1, origin_loss_stderr=0.004)
    error = np.full(surface.loss.shape, 0.05)
    paired = dataclasses.replace(surface, observables={**surface.observables, "loss_rise_stderr": error})
    expected = np.minimum((surface.loss - 0.1) / 0.1, 10)
    np.testing.assert_allclose(prepare_figure(paired, uncertainty=True).difference, expected, atol=1e-12)
    assert prepare_figure(paired).difference is None
    bound = (surface.loss - 0.1) / (2 * (surface.stderr() + 0.004))
    np.testing.assert_allclose(prepare_figure(surface, uncertainty=True).difference, np.minimum(bound, 10), atol=1e-12)
    risen = dataclasses.replace(surface, observables={**surface.observables, "loss_rise": surface.loss - 0.1})
    of_rise = prepare_figure(risen, "loss_rise", uncertainty=True).difference  # without its own error: the same bound
    np.testing.assert_allclose(of_rise, np.minimum(bound, 10), atol=1e-12)
    accuracy = prepare_figure(surface, "accuracy", uncertainty=True).difference
    assert accuracy[15, 20] == 0
    assert accuracy.max() > 1
    bare = dataclasses.replace(surface, observables={"loss": surface.loss})
    data = prepare_figure(bare, uncertainty=True)
    assert data.difference is None
    assert any("standard errors, or the value at the origin, are not known" in part.lower() for part in data.caption)


def test_an_exact_origin_is_no_difference_and_a_missing_point_has_none(make: ModuleType) -> None:
    surface = make.with_record(make.holed(), origin_loss=0.1)
    rise = np.where(surface.loss == surface.loss[10, 10], 0.0, 0.01)
    surface = dataclasses.replace(surface, observables={**surface.observables, "loss_rise_stderr": rise})
    difference = prepare_figure(surface, uncertainty=True).difference
    np.testing.assert_array_equal(np.isnan(difference), ~np.isfinite(surface.loss))
    assert difference[10, 10] == 10


def test_needle_like_axes_fall_back_and_say_so(make: ModuleType) -> None:
    alpha, beta = np.linspace(-10, 10, 9), np.linspace(-1, 1, 9)
    data = prepare_figure(make.two_axes("needle", alpha, beta, make.bowl(alpha[None], beta[:, None])))
    assert not data.equal
    assert "Axes not to one scale: they span 20 and 2" in data.caption


def test_thinning_picks_and_says_so(make: ModuleType) -> None:
    surface = make.quadratic(40, 30)
    few = thinned(surface, 16)
    assert few.loss.shape == (16, 16)
    assert few.alpha[0] == surface.alpha[0]
    assert few.alpha[-1] == surface.alpha[-1]
    assert set(few.loss.ravel()) <= set(surface.loss.ravel())
    assert "Drawn from 16 × 16 points of them" in prepare_figure(surface, max_points=16).caption


def test_unknown_observable_names_the_right_ones(make: ModuleType) -> None:
    with pytest.raises(JobError, match="did you mean 'accuracy'"):
        prepare_figure(make.quadratic(), "acuracy")


def test_the_drawn_path_follows_the_path(make: ModuleType) -> None:
    path = make.spiral(10)
    (drawn,) = prepare_paths(make.quadratic(path=path), "loss", log=True)
    np.testing.assert_allclose(drawn.height, np.log10(path.projected_loss))
    assert drawn.numbers == tuple(range(1, 11))
    assert "<b>epoch 10</b> (last snapshot)" in drawn.hover[-1]
    for word in ("alpha", "beta", "loss ", "loss at its projection", "distance off the plane 0.4"):
        assert word in drawn.hover[0]


def test_an_uncomputed_path_has_gaps_and_no_invented_height(make: ModuleType) -> None:
    path = make.spiral(6)
    path = dataclasses.replace(path, projected_loss=np.array([1, np.nan, 1, np.inf, -1, 1.0]), loss=np.full(6, np.nan))
    (drawn,) = prepare_paths(make.quadratic(path=path), "loss", log=True)
    assert np.isfinite(drawn.height).tolist() == [True, False, True, False, False, True]
    assert "loss not known" in drawn.hover[0]
    assert "Loss on the path known at 4 of 6 points" in prepare_figure(make.quadratic(path=path), log=True).caption


def test_the_title_of_an_axis_is_whole_smaller_or_left_to_the_caption_and_never_cut_off() -> None:
    label = "from the first of many trainings (0) towards the last of many trainings (1)"
    title = short_axis_title(Axis("alpha", np.array([0.0, 1.0]), {"kind": "towards", "label": label}))
    whole = "α · the first of many trainings (0) to the last of many trainings (1)"
    plain = "α · the first of many trainings to the last of many trainings"
    end = "α · to the last of many trainings"
    assert [fitting_title(title, most) for most in (72, 54, 48, 40, 20)] == [
        (whole, 1.0), (whole, 54 / len(whole)), (plain, 48 / len(plain)), (end, 1.0), ("α", 1.0),
    ]  # fmt: skip
    file = {"kind": "file", "label": "direction from the-sharpest-direction-of-seed-12.safetensors (layer-normalised)"}
    words = "α · direction from the-sharpest-direction-of-seed-12.safetensors"
    wide, paper = (figure(labelled(file), "contour", width=width).layout.xaxis.title for width in (None, "3in"))
    scene = figure(labelled(file), "surface").layout.scene.xaxis.title
    assert wide.text == words
    for title in (paper, scene):
        assert title.text.count("<br>") == 1
        assert title.text.replace("<br>", "" if "-<br>" in title.text else " ") == words
    assert figure(labelled(file), width="2in").layout.xaxis.title.text == "α"


def labelled(attributes: dict[str, str] | None) -> Surface:
    """A plane whose first axis has this label."""
    plane = synthetic_surfaces.quadratic()
    alpha, beta = plane.axes
    return plane if attributes is None else replace(plane, axes=(replace(alpha, attributes=attributes), beta))


def test_the_pointer_has_as_many_digits_as_the_errors_allow(make: ModuleType) -> None:
    plane = make.quadratic()
    rough = replace(plane, observables=plane.observables | {"loss_stderr": 0.1 * plane.loss})
    exact = replace(plane, observables={"loss": plane.loss})
    digits = [figure(one, "contour").data[0].hovertemplate for one in (rough, exact)]
    assert "loss %{customdata[0]:.3g}" in digits[0]
    assert "loss %{customdata[0]:.5g}" in digits[1]


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


def test_a_sentence_stands_where_there_is_no_picture(make: ModuleType) -> None:
    states = np.zeros((5, 6), np.uint8)
    assert why_empty(states) == "No point has a value to draw: 30 not computed."
    states[2] = 1
    assert why_empty(states) == "6 of 30 points can be drawn, but no four surround a square: 24 not computed."
    states[states == 0] = 4
    assert why_empty(states).endswith("a square: 24 no logarithm (zero or below).")  # they have values
    states[1, 3:5] = 1
    assert why_empty(states) == ""
    assert why_empty(np.array([1, 0, 1], np.uint8))
    assert not why_empty(np.array([1, 1, 0], np.uint8))
    nowhere = np.full((3, 3, 3), 2, np.uint8)
    nowhere[0, 0, 0] = 4
    assert "26 not finite, 1 no logarithm" in why_empty(nowhere)


def test_isosurface_of_a_sphere_has_its_radius_and_area() -> None:
    x, y, z = np.linspace(-1, 1, 33), np.linspace(-1, 1, 31), np.linspace(-1, 1, 29)
    radius = np.sqrt(x[None, None] ** 2 + y[None, :, None] ** 2 + z[:, None, None] ** 2)
    vertices, triangles = isosurface(radius, (x, y, z), 0.7)
    np.testing.assert_allclose(np.linalg.norm(vertices, axis=1), 0.7, atol=0.004)
    a, b, c = (vertices[triangles[:, k]] for k in range(3))
    area = np.linalg.norm(np.cross(b - a, c - a), axis=1).sum() / 2
    assert area == pytest.approx(4 * np.pi * 0.7**2, rel=0.01)


def test_an_isosurface_stays_open_where_a_value_is_missing() -> None:
    x = np.linspace(-1, 1, 21)
    radius = np.sqrt(x[None, None] ** 2 + x[None, :, None] ** 2 + x[:, None, None] ** 2)
    radius[10:, 10:, 10:] = np.nan
    vertices, triangles = isosurface(radius, (x, x, x), 0.6)
    assert len(triangles)
    assert not (vertices > 0.05).all(axis=1).any()


def test_isolines_lie_on_their_levels_and_skip_holes() -> None:
    x, y = np.linspace(-1, 1, 41), np.linspace(-1, 1, 37)
    height = x[None] ** 2 + y[:, None] ** 2
    height[18:, 20:] = np.nan
    found = isolines(x, y, height, (0.25, 0.5))
    points = found[np.isfinite(found[:, 0])]
    assert np.isnan(found[-1]).all()
    lines = np.split(found, np.flatnonzero(np.isnan(found[:, 0])))
    assert 2 <= len([line for line in lines if len(line) > 1]) <= 6, "segments are joined to lines"
    assert set(np.round(points[:, 2], 9)) == {0.25, 0.5}
    np.testing.assert_allclose((points[:, :2] ** 2).sum(axis=1), points[:, 2], atol=0.004)
    assert not (points[:, :2] > 0).all(axis=1).any()
    length = np.nansum(np.linalg.norm(np.diff(found, axis=0), axis=1))
    assert length == pytest.approx(2 * np.pi * (0.5 + np.sqrt(0.5)) * 3 / 4, rel=0.06)


def test_a_closed_isoline_ends_where_it_begins() -> None:
    x = np.linspace(-1, 1, 21)
    found = isolines(x, x, x[None] ** 2 + x[:, None] ** 2, (0.5,))
    np.testing.assert_array_equal(found[0], found[-2])
    assert np.isnan(found[:, 0]).sum() == 1
    assert isolines(x, x, np.full((21, 21), np.nan), (0.5,)).shape == (0, 3)
    np.testing.assert_allclose(refined(np.array([0.0, 1.0, 3.0]), 2), [0, 0.5, 1, 2, 3])


def test_errors_are_found_beside_their_observable(make: ModuleType) -> None:
    surface: Surface = make.quadratic()
    data = prepare_figure(surface, "accuracy")
    assert data.error is not None
    np.testing.assert_array_equal(data.error, surface.stderr("accuracy"))
