"""The path of a training in the figures: its line, its snapshots at their own loss, what captions say of both."""

from __future__ import annotations

import dataclasses
import re
from types import ModuleType

import numpy as np
import pytest
from synthetic_surfaces import traces

from landscape.surface.surface import NOT_FINITE, ProjectedPath
from landscape.views.draw.figure import figure
from landscape.views.draw.paths import LIFT, MARK_LIFT
from landscape.views.draw.style import colours_at
from landscape.views.prepare.figure import prepare_figure
from landscape.views.prepare.geometry import PIECES, along_normals, path_on_surface
from landscape.views.prepare.tables import path_rows

PLANES = ("topographic", "contour", "surface")


def off_the_plane(make: ModuleType) -> ProjectedPath:
    """A path whose start has a loss higher than the plane by 0.4, and whose snapshot 4 has half that of the plane."""
    path = make.spiral(10)
    loss = path.projected_loss.copy()
    loss[0] += 0.4
    loss[3] *= 0.5
    return dataclasses.replace(path, loss=loss)


def test_path_has_start_end_and_numbers(make: ModuleType) -> None:
    path = make.spiral(10)
    drawn = figure(make.quadratic(path=path), "contour")
    line = traces(drawn, "path")[-1]
    np.testing.assert_array_equal(line.x, path.coordinates["alpha"])
    np.testing.assert_array_equal(line.y, path.coordinates["beta"])
    assert [trace.name for trace in traces(drawn, "end")] == ["start (epoch 1)", "last snapshot (epoch 10)"]
    labels = [each.text for each in drawn.layout.annotations if each.name == "step"]
    assert labels[0] == "<b>1</b>"
    assert labels[-1] == "<b>10</b>"
    assert not traces(figure(make.quadratic(path=path), "contour", path=False), "path")


@pytest.mark.parametrize("log", [False, True])
def test_the_line_lies_on_the_surface_and_snapshots_at_their_own_loss_with_a_thread(
    make: ModuleType, log: bool
) -> None:
    path = off_the_plane(make)
    drawn = figure(make.quadratic(path=path), "surface", log=log)
    field, (line, threads, edges, marks) = drawn.data[0], traces(drawn, "path")
    lift = LIFT * (field.cmax - field.cmin)
    on_plane, own = (np.log10(each) if log else each for each in (path.projected_loss, path.loss))
    np.testing.assert_allclose(line.z[::PIECES], on_plane + lift, rtol=1e-9)
    off = np.abs(own - on_plane) > MARK_LIFT * lift  # the others would be half hidden
    assert 0 < off.sum() < len(off)
    np.testing.assert_allclose(marks.z, np.where(off, own, on_plane + MARK_LIFT * lift), rtol=1e-9)
    np.testing.assert_array_equal(edges.z, marks.z)
    np.testing.assert_allclose(
        threads.z.reshape(-1, 3)[:, :2], np.stack([marks.z, np.where(off, on_plane, marks.z)], axis=1), rtol=1e-9
    )
    raised = f"within 3\u00a0% of the range drawn of the surface are drawn just above it: {(~off).sum()}."
    assert raised in drawn.layout.meta["caption"]
    assert np.isnan(threads.z[2::3]).all()
    low, high = drawn.layout.scene.zaxis.range
    assert low < marks.z.min() < marks.z.max() < high, "a snapshot is cut off"
    ends = {trace.name: trace.z[0] for trace in traces(drawn, "end") if trace.name}
    assert sorted(ends.values()) == sorted([marks.z[0], marks.z[-1]])


@pytest.mark.parametrize(("loss", "log", "end"), [(250.0, False, 1), (-9.0, False, 0), (1e-12, True, 0)])
def test_a_snapshot_far_off_the_surface_is_at_an_end_of_the_scene_and_the_caption_says_so(
    make: ModuleType, loss: float, log: bool, end: int
) -> None:
    path = make.spiral(10)
    path = dataclasses.replace(path, loss=np.where(path.step == 1, loss, path.loss))
    drawn = figure(make.quadratic(path=path), "surface", log=log)
    marks, ends, caption = traces(drawn, "path")[3], drawn.layout.scene.zaxis.range, drawn.layout.meta["caption"]
    assert marks.z[0] == pytest.approx(ends[end], abs=0.04 * (ends[1] - ends[0]))
    assert ends[0] <= marks.z.min() < marks.z.max() <= ends[1], "a snapshot is cut off"
    side, name = ("below", "lower") if end == 0 else ("above", "upper")
    value = f"{loss:.3g}".replace("-9", "−9")
    assert f"Snapshots {side} the heights shown, and drawn at their {name} end: epoch 1 ({value})." in caption
    assert f"it is {value}" in caption
    assert caption.count("the heights shown") == 1


def test_snapshots_without_a_height_of_their_own_are_white_on_the_surface_and_counted(make: ModuleType) -> None:
    path = make.spiral(10)
    loss = path.loss.copy()
    loss[:5] = np.inf, np.nan, np.nan, 0.0, np.nan
    status = np.where(path.step == 5, NOT_FINITE, path.status).astype(np.uint8)
    drawn = figure(make.quadratic(path=dataclasses.replace(path, loss=loss, status=status)), "surface", log=True)
    marks, threads = traces(drawn, "path")[3], traces(drawn, "path")[1]
    assert [colour == "#ffffff" for colour in marks.marker.color] == [True] * 5 + [False] * 5
    np.testing.assert_array_equal(threads.z.reshape(-1, 3)[:5, 0], threads.z.reshape(-1, 3)[:5, 1])
    assert (
        "White snapshots lie on the surface: 2 whose loss is not finite, 2 whose loss is not known, "
        "1 whose loss has no logarithm." in drawn.layout.meta["caption"]
    )
    assert "White snapshots" not in figure(make.quadratic(path=path), "surface").layout.meta["caption"]
    nowhere = dataclasses.replace(path, loss=loss, status=status, projected_loss=np.where(path.step > 6, 1.0, np.nan))
    assert "White snapshots" not in figure(make.quadratic(path=nowhere), "surface").layout.meta["caption"], "not drawn"


def test_the_loss_of_the_plane_is_told_as_it_is_where_it_has_no_logarithm(make: ModuleType) -> None:
    path = make.spiral(4)
    path = dataclasses.replace(
        path, loss=np.array([np.nan, 1.0, 1.0, 1.0]), status=np.array([NOT_FINITE, 1, 1, 1], np.uint8),
        projected_loss=np.array([-0.3, 1.0, 1.0, 1.0]),
    )  # fmt: skip
    for log in (False, True):
        caption = " ".join(prepare_figure(make.quadratic(path=path), log=log).caption)
        assert f"{path.unit} {path.step[0]} it is not finite, the plane has" in caption
        assert "Loss on the path known at" not in caption


def test_the_table_names_a_snapshot_whose_losses_are_both_known(make: ModuleType) -> None:
    path = make.spiral(4)
    losses = np.array([np.nan, np.nan, 0.5, 0.4])
    surface = make.quadratic(path=dataclasses.replace(path, loss=losses, projected_loss=losses))
    name = "path, own loss and the plane's where furthest apart"
    assert dict(path_rows(surface, surface.paths[0]))[name] == f"0.5 and 0.5 at {path.unit} {path.step[2]}"


@pytest.mark.parametrize(("log", "theme"), [(False, "dark"), (True, "light")])
@pytest.mark.parametrize("kind", ["topographic", "contour", "surface"])
def test_snapshots_have_the_colours_of_the_plane_at_their_own_loss(
    make: ModuleType, kind: str, log: bool, theme: str
) -> None:
    path = off_the_plane(make)
    surface = make.quadratic(path=path)
    scale = prepare_figure(surface, log=log).scale
    own = np.log10(path.loss) if log else path.loss
    share = (own - scale.low) / (scale.high - scale.low)
    if kind == "topographic":
        edges = np.array([scale.low, *scale.ticks, scale.high])
        band = [int((np.array(scale.ticks) <= value).sum()) for value in own]
        middle = (edges[band] + edges[np.array(band) + 1]) / 2
        share = (middle - scale.low) / (scale.high - scale.low)
    if kind == "contour":  # lines leave out the end of the scale that is too faint
        start, stop = {"light": (0.0, 0.88), "dark": (0.35, 1.0)}[theme]
        share = start + (stop - start) * np.clip(share, 0, 1)
    drawn = figure(surface, kind, log=log, theme=theme)
    (marks,) = (trace for trace in traces(drawn, "path") if trace.hoverinfo == "text")
    assert list(marks.marker.color) == colours_at("viridis", share)
    assert marks.marker.line.color == "#d6336c"
    ends = [trace.marker.color[0] for trace in traces(drawn, "end") if trace.name]
    assert ends == [marks.marker.color[0], marks.marker.color[-1]]
    assert "have the colour" in drawn.layout.meta["caption"]


def test_the_page_can_change_the_theme_of_snapshots_on_lines(make: ModuleType) -> None:
    surface = make.quadratic(path=off_the_plane(make))
    light, dark = (traces(figure(surface, "contour", theme=theme), "path")[2] for theme in ("light", "dark"))
    assert light.marker.color != dark.marker.color
    for theme, one in (("light", light), ("dark", dark)):
        assert list(one.marker.color) == list(light.meta["themed"][theme]["marker"]["color"])


@pytest.mark.parametrize("kind", ["topographic", "contour"])
def test_snapshots_of_which_the_own_loss_is_not_known_are_hollow(make: ModuleType, kind: str) -> None:
    path = make.spiral(5)
    path = dataclasses.replace(path, loss=np.array([0.5, np.nan, np.inf, 0.2, 0.1]))
    drawn = figure(make.quadratic(path=path), kind)
    marks = traces(drawn, "path")[2]
    assert [colour == "#ffffff" for colour in marks.marker.color] == [False, True, True, False, False]
    assert "<br>loss not known<br>" in marks.hovertext[1]
    assert "<br>loss not finite<br>" in marks.hovertext[2]
    assert "at epoch 3 it is not finite, the plane has" in drawn.layout.meta["caption"]
    accuracy = figure(make.quadratic(path=path), kind, observable="accuracy")
    marks = traces(accuracy, "path")[2]
    assert set(marks.marker.color) == {"#ffffff"}
    assert all(line.endswith("accuracy not known along the path") for line in marks.hovertext)
    assert "colour of their own loss" not in accuracy.layout.meta["caption"]


@pytest.mark.parametrize("kind", ["topographic", "contour", "surface"])
def test_the_caption_gives_the_largest_difference_between_path_and_plane(make: ModuleType, kind: str) -> None:
    agrees = figure(make.quadratic(path=make.spiral()), kind).layout.meta["caption"]
    assert "is not that of the plane" not in agrees
    path = off_the_plane(make)
    apart = np.abs(path.loss - path.projected_loss)
    assert int(np.argmax(apart)) == 0
    said = figure(make.quadratic(path=path), kind, log=False).layout.meta["caption"]
    loss, plane = path.loss[0], path.projected_loss[0]
    sentence = (
        f"The loss of the path is not that of the plane: at epoch 1 it is {loss:.3g}, the plane has {plane:.3g} there."
    )
    assert sentence in said
    assert sentence in figure(make.quadratic(path=path), kind, log=True).layout.meta["caption"]


def test_a_plane_that_is_not_finite_below_a_snapshot_is_furthest_from_it(make: ModuleType) -> None:
    path = off_the_plane(make)
    below, status = path.projected_loss.copy(), path.status.copy()
    below[3], status[3] = np.nan, NOT_FINITE
    surface = make.quadratic(path=dataclasses.replace(path, projected_loss=below, status=status))
    said = figure(surface, "contour").layout.meta["caption"]
    assert f"at epoch {path.step[3]} it is {path.loss[3]:.3g}, the plane's is not finite there" in said
    assert (
        "The loss of the path is not that of"
        in figure(surface, "contour", observable="accuracy").layout.meta["caption"]
    )


def test_the_path_between_snapshots_follows_the_surface(make: ModuleType) -> None:
    """A straight line from rim to rim of a bowl would run high above it, and through it on the other side."""
    grid = np.linspace(-1, 1, 201)
    height = grid[None] ** 2 + grid[:, None] ** 2
    places = (np.array([-0.9, 0.9, 0.9]), np.array([-0.2, -0.2, 0.7]))
    ends = places[0] ** 2 + places[1] ** 2 + 0.05
    line = path_on_surface(places, ends, grid, grid, height)
    np.testing.assert_allclose(line[:, 2], line[:, 0] ** 2 + line[:, 1] ** 2 + 0.05, atol=1e-4)
    np.testing.assert_array_equal(line[::PIECES, 2], ends)
    gap = path_on_surface(places, np.array([np.nan, 1.0, 2.0]), grid, grid, height)
    assert np.isnan(gap[:PIECES, 2]).all()
    assert np.isfinite(gap[PIECES:, 2]).all()


def test_points_are_moved_off_a_slope_along_its_normal() -> None:
    alpha, beta = np.linspace(-1, 1, 5), np.linspace(0, 3, 4)
    height = 4 * alpha[None, :] + 0 * beta[:, None]
    points = np.array([[0.3, 1.2, 1.2], [np.nan, np.nan, np.nan], [-1.0, 3.0, -4.0]])
    moved = along_normals(points, alpha, beta, height, 0.1, (0.5, 2.0, 0.25))
    # In the drawing the plane rises by 4 * 0.25 / 0.5 = 2 along alpha: its normal is (-2, 0, 1) / sqrt(5).
    expected = points + 0.1 * np.array([-2, 0, 1]) / np.sqrt(5) / np.array([0.5, 2.0, 0.25])
    np.testing.assert_allclose(moved, expected)
    height[0, 0] = np.nan
    beside = along_normals(np.array([[-0.9, 0.1, -3.6]]), alpha, beta, height, 0.1, (0.5, 2.0, 0.25))
    assert np.isfinite(beside).all()


def test_a_path_outside_the_grid_is_not_cut_off(make: ModuleType) -> None:
    path = make.spiral(10)
    path = dataclasses.replace(
        path, coordinates={"alpha": path.coordinates["alpha"] - 3, "beta": path.coordinates["beta"]}
    )
    low, high = figure(make.quadratic(path=path)).layout.xaxis.range
    assert low < path.coordinates["alpha"].min()
    assert high >= path.coordinates["alpha"].max()


def test_animation_grows_the_path_to_its_end(make: ModuleType) -> None:
    drawn = figure(make.pca_plane(), animate=True)
    lengths = [len(frame.data[-1].x) for frame in drawn.frames]
    assert lengths == sorted(set(lengths))
    assert (lengths[0], lengths[-1]) == (1, 26)
    labels = [button.label for button in drawn.layout.updatemenus[0].buttons]
    assert drawn.layout.updatemenus[0].buttons[0].args[1]["frame"]["redraw"], "else plotly takes contour lines away"
    assert labels[0].endswith("play path")


def test_curve_path_keeps_real_and_projected_loss_apart(make: ModuleType) -> None:
    surface = make.line(path=True)
    drawn = figure(surface, log=True)
    np.testing.assert_allclose(traces(drawn, "path")[-1].y, surface.path.projected_loss)
    real = next(trace for trace in drawn.data if trace.name == "loss at the snapshot itself")
    np.testing.assert_array_equal(real.y, surface.path.loss)


def test_another_observable_along_a_path_says_why_snapshots_are_white_and_how_far_off_the_loss_is(
    make: ModuleType,
) -> None:
    surface = make.quadratic(path=off_the_plane(make))
    loss, other = (figure(surface, "contour", observable=name).layout.meta["caption"] for name in ("loss", "accuracy"))
    sentence = re.search(r"The loss of the path is not that of the plane: [^.]*\.[^.]*\.[^.]*", loss)
    assert sentence is not None
    assert sentence[0] in other
    assert "Snapshots are white, as their own accuracy is not kept." in other


def test_what_is_derived_from_the_loss_is_known_along_a_path(make: ModuleType) -> None:
    surface = make.quadratic(path=off_the_plane(make))
    values = {**surface.observables, "perplexity": np.exp(surface.loss)}
    surface = dataclasses.replace(surface, observables=values)
    record = surface.record.changed(derived={"perplexity": "exp(loss)"}, observables=["loss", "accuracy"])
    surface = dataclasses.replace(surface, attributes=record.attributes)
    data = prepare_figure(surface, "perplexity", log=False)
    np.testing.assert_allclose(data.paths[0].own, np.exp(surface.path.loss))
    np.testing.assert_allclose(data.paths[0].height, np.exp(surface.path.projected_loss))
    caption = figure(surface, "contour", observable="perplexity").layout.meta["caption"]
    assert "Snapshots have the colour of their own perplexity." in caption
