"""matplotlib draws the same prepared values: on axes of the caller's, in every kind, with everything labelled."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_rgba
from mpl_toolkits.mplot3d import proj3d
from refined_surfaces import refined
from synthetic_surfaces import traces

from landscape.core.errors import JobError
from landscape.surface.surface import Axis, ProjectedPath, Surface
from landscape.views.draw.marks import NAME as EDGES
from landscape.views.plots import plot, rgb
from landscape.views.prepare.figure import prepare_figure

matplotlib = pytest.importorskip("matplotlib")


@pytest.fixture(autouse=True)
def pyplot() -> Iterator[Any]:
    matplotlib.use("Agg")
    from matplotlib import pyplot

    yield pyplot
    pyplot.close("all")


def labels(ax: Any) -> list[str]:
    return ax.get_legend_handles_labels()[1]


def line_named(ax: Any, name: str) -> Any:
    return next(line for line in ax.get_lines() if line.get_label() == name)


def test_it_draws_on_the_axes_that_are_given(make: ModuleType, pyplot: Any) -> None:
    figure, (left, right) = pyplot.subplots(1, 2)
    assert make.holed().plot(left) is left
    assert make.line().plot(ax=right, colour_bar=False) is right
    figure.canvas.draw()
    assert left.get_xlabel() == "alpha: random direction"
    assert left.get_aspect() == 1.0
    assert right.get_ylabel() == "loss"


@pytest.mark.parametrize("log", [False, True])
def test_a_plane_has_the_levels_of_all_figures(make: ModuleType, pyplot: Any, log: bool) -> None:
    surface = make.quadratic(path=make.spiral())
    scale = prepare_figure(surface, log=log).scale
    lines = next(each for each in surface.plot(kind="contour", log=log).collections if len(each.levels) > 1)
    assert tuple(lines.levels) == scale.ticks
    ax = surface.plot(kind="topographic", log=log)
    (bar,) = ax.child_axes
    assert [text.get_text() for text in bar.get_yticklabels()] == list(scale.texts)
    assert {"trajectory", "start (epoch 1)", "last snapshot (epoch 10)", "origin"} <= set(labels(ax))
    np.testing.assert_array_equal(line_named(ax, "trajectory").get_xdata(), surface.path.coordinates["alpha"])
    ax.figure.canvas.draw()


def own_losses(make: ModuleType) -> ProjectedPath:
    path = make.spiral(6)
    return dataclasses.replace(path, loss=path.projected_loss * np.array([1.8, 1.0, np.nan, 0.4, 1.0, 1.0]))


@pytest.mark.parametrize("kind", ["contour", "topographic"])
def test_snapshots_have_the_colours_of_the_plane_at_their_own_loss(make: ModuleType, kind: str) -> None:
    surface = make.quadratic(path=own_losses(make))
    ax = surface.plot(kind=kind)
    (dots,) = (each for each in ax.collections if each.get_label() == "_snapshots")
    np.testing.assert_allclose(dots.get_offsets()[:, 0], surface.path.coordinates["alpha"])
    figure_marks = next(trace for trace in traces(surface.figure(kind), "path") if trace.name)
    expected = [to_rgba(rgb(colour) if colour.startswith("rgb") else colour) for colour in figure_marks.marker.color]
    np.testing.assert_allclose(dots.get_facecolor(), expected, atol=1e-6)
    assert figure_marks.marker.color[2] == "#ffffff", "its loss is not known"
    np.testing.assert_allclose(dots.get_edgecolor()[0], to_rgba("#d6336c"))
    assert line_named(ax, "last snapshot (epoch 6)").get_markerfacecolor() == pytest.approx(expected[-1][:3])


def test_snapshots_float_at_their_own_loss_over_a_surface_with_a_thread(make: ModuleType) -> None:
    surface = make.quadratic(path=own_losses(make))
    ax = surface.plot(kind="surface", log=False)
    scale = prepare_figure(surface, log=False).scale
    lift, path = 0.03 * (scale.high - scale.low), surface.path
    off = np.abs(path.loss - path.projected_loss) > lift
    known = np.where(off, path.loss, path.projected_loss + lift)
    (dots,) = (each for each in ax.collections if each.get_label() == "_snapshots")
    ax.figure.canvas.draw()  # which projects them
    seen = proj3d.proj_transform(path.coordinates["alpha"], path.coordinates["beta"], known, ax.get_proj())
    np.testing.assert_allclose(np.sort(dots.get_offsets()[:, 1]), np.sort(seen[1]), rtol=1e-6)
    threads = [line.get_data_3d()[2] for line in ax.lines if len(line.get_data_3d()[2]) == 2]
    np.testing.assert_allclose(threads, np.stack([np.where(off, path.projected_loss, known), known], axis=1))


def test_a_plot_says_which_snapshots_are_not_at_their_own_loss(make: ModuleType) -> None:
    path = make.spiral(6)
    off = dataclasses.replace(path, loss=np.array([250.0, -9.0, np.inf, 0.4, 0.3, 0.2]))
    ax = make.quadratic(path=off).plot(kind="surface", log=False)
    assert [each.get_text() for each in ax.texts] == [
        "Snapshots below the heights shown, and drawn at their lower end: epoch 2 (-9)\n"
        "Snapshots above the heights shown, and drawn at their upper end: epoch 1 (250)\n"
        "White snapshots lie on the surface: 1 whose loss is not finite\n"
        "Snapshots within 3\u00a0% of the range drawn of the surface are drawn just above it: 2"
    ]
    (note,) = make.quadratic(path=path).plot(kind="surface").texts
    assert note.get_text().startswith("Snapshots within 3")


def test_missing_points_are_hatched_each_in_its_own_way(make: ModuleType) -> None:
    ax = make.holed().plot()
    hatched = {each.get_label(): each.get_hatch() for each in ax.collections if each.get_hatch()}
    assert list(hatched) == ["not computed: 80 points", "not finite: 40 points", "quarantined: 16 points"]
    assert len(set(hatched.values())) == 3


@pytest.mark.parametrize("log", [False, True])
def test_a_line_has_its_band_and_real_values(make: ModuleType, log: bool) -> None:
    surface = make.line(path=True)
    ax = surface.plot(log=log)
    np.testing.assert_allclose(line_named(ax, "loss").get_ydata(), surface.loss)
    assert ax.get_yscale() == ("log" if log else "linear")
    assert {"± 2 standard errors", "origin", "trajectory"} <= set(labels(ax))
    np.testing.assert_allclose(line_named(ax, "trajectory").get_ydata(), surface.path.projected_loss)


@pytest.mark.parametrize(
    ("dimensions", "kind", "name"),
    [(2, "topographic", EDGES), (2, "contour", EDGES), (2, "surface", EDGES), (1, "curve", "evaluated")],
)
def test_a_refined_landscape_shows_where_it_was_evaluated(dimensions: int, kind: str, name: str) -> None:
    surface = refined(dimensions)
    ax = surface.plot(kind=kind)
    assert name in labels(ax)
    if kind == "curve":
        assert np.array_equal(
            line_named(ax, name).get_xdata(), surface.merged().alpha[surface.merged().interpolated == 0]
        )


def test_a_surface_needs_three_dimensional_axes_and_makes_its_own(make: ModuleType, pyplot: Any) -> None:
    ax = make.holed().plot(kind="surface", uncertainty=True)
    assert ax.name == "3d"
    ax.figure.canvas.draw()
    with pytest.raises(
        JobError, match="must be three-dimensional axes for 'surface'; make them with projection=\"3d\""
    ):
        make.holed().plot(pyplot.subplots()[1], kind="surface")
    with pytest.raises(JobError, match="must be two-dimensional axes for 'contour'"):
        make.holed().plot(ax, kind="contour")


def test_the_uncertain_region_is_a_layer(make: ModuleType) -> None:
    surface = make.with_record(make.quadratic(41, 31), origin_loss=0.1, origin_loss_stderr=0.01)
    assert "within 2 standard errors of the origin" in labels(surface.plot(uncertainty=True))
    assert "within 2 standard errors of the origin" not in labels(surface.plot())


@pytest.mark.parametrize("kind", ["contour", "topographic", "surface"])
def test_minima_and_saddles_are_marked(make: ModuleType, kind: str) -> None:
    surface = make.two_bowls()
    ax = surface.plot(kind=kind, extrema=True)
    assert {"2 minima above the noise", "1 merge saddle"} <= set(labels(ax))
    if kind != "surface":
        np.testing.assert_allclose(line_named(ax, "2 minima above the noise").get_xdata(), [-0.5, 0.5], atol=1e-9)
    assert not [name for name in labels(surface.plot(kind=kind)) if "minima" in name]


def test_minima_of_a_curve_are_marked_at_their_values(make: ModuleType) -> None:
    line = make.line()
    saddle = line_named(line.plot(extrema=True, log=True), "1 merge saddle")
    assert saddle.get_ydata() == pytest.approx([line.loss[10:50].max()])


def test_of_three_axes_the_slice_through_the_origin_is_drawn(make: ModuleType) -> None:
    ax = make.block().plot()
    assert "origin" in labels(ax)
    with pytest.raises(JobError, match="'volume' is not drawn with matplotlib; take curve, topographic"):
        make.block().plot(kind="volume")


def test_nothing_computed_yet_still_draws(make: ModuleType) -> None:
    surface = make.quadratic(8, 6)
    empty = {name: np.full(values.shape, np.nan) for name, values in surface.observables.items()}
    surface = dataclasses.replace(surface, observables=empty, status=np.zeros((6, 8), np.uint8))
    for kind in ("topographic", "contour", "surface"):
        ax = surface.plot(kind=kind)
        ax.figure.canvas.draw()
        assert "not computed: 48 points" in labels(ax)
        assert any("No point has a value to draw" in text.get_text() for text in ax.texts)


def test_wrong_options_name_the_right_ones(make: ModuleType) -> None:
    with pytest.raises(JobError, match="plot: unknown option 'logs'; did you mean 'log'"):
        plot(make.quadratic(), logs=True)
    with pytest.raises(JobError, match="colour_scale: unknown 'virids'"):
        plot(make.quadratic(), colour_scale="virids")


@pytest.mark.parametrize("height", [1.0, 0.3, 3.0], ids=["square", "flat", "tall"])
@pytest.mark.parametrize("label", ["principal component {} of epochs 1-9", "{} eigenvector of the Hessian (λ = 3.1)"])
def test_all_figures_of_a_plane_title_its_axes_in_the_same_words(label, height):
    x = np.linspace(-1, 1, 9)
    values = np.add.outer(x * x, 2 * x * x)
    shares = {"explained_variance": 0.625} if "component" in label else {}
    kind = "pca" if shares else "eigen"
    numbers = ("1", "2") if shares else ("first", "second")
    axes = tuple(
        Axis(name, x * factor, attributes={"label": label.format(number), "kind": kind, **shares})
        for name, number, factor in zip(("alpha", "beta"), numbers, (1.0, height), strict=True)
    )
    surface = Surface("plane", axes, {"loss": values}, status=np.ones(values.shape, np.uint8))
    flat, scene = (surface.figure(kind).layout for kind in ("contour", "surface"))
    titles = [(layout.xaxis.title.text, layout.yaxis.title.text) for layout in (flat, scene.scene)]
    plots = [surface.plot(kind=kind) for kind in ("contour", "surface")]
    titles += [(plot.get_xlabel(), plot.get_ylabel()) for plot in plots]
    assert len(set(titles)) == 1
    assert titles[0][1].startswith("beta: PC 2 (62.5" if shares else "beta: second eigenvector")
