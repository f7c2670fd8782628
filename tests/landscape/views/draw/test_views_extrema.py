"""Marks of minima and saddles, and the barcode: at the places of the closed form, of all points, in every kind."""

from __future__ import annotations

import dataclasses
from dataclasses import asdict
from types import ModuleType
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
from synthetic_surfaces import traces

from landscape.core.text import count_text
from landscape.surface.surface import NOT_COMPUTED, QUARANTINED, Surface
from landscape.surface.topology import topology_of
from landscape.views.draw.figure import entries, figure
from landscape.views.prepare.figure import prepare_figure
from landscape.views.prepare.uncertainty import MOST_BARS, MOST_MARKS, topology_rows

SLICE = "A minimum of this slice is not a minimum of the network"


def marks(drawn: go.Figure) -> dict[str, Any]:
    """The traces of the marks by the first letters of their names, which count them."""
    return {trace.name: trace for trace in traces(drawn, "extrema")}


def with_walls(surface: Surface, rows: slice, columns: slice, status: int = 2) -> Surface:
    states, values = surface.status.copy(), {name: each.copy() for name, each in surface.observables.items()}
    states[rows, columns] = status
    for each in values.values():
        each[rows, columns] = np.nan
    return dataclasses.replace(surface, observables=values, status=states)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("kind", ["topographic", "contour", "surface"])
def test_minima_and_their_saddle_are_marked_where_they_are(make: ModuleType, kind: str, theme: str) -> None:
    drawn = figure(make.two_bowls(), kind, extrema=True, theme=theme)
    found = marks(drawn)
    assert list(found) == ["1 merge saddle", "2 minima above the noise"]
    np.testing.assert_allclose(found["2 minima above the noise"].x, [-0.5, 0.5], atol=1e-12)
    np.testing.assert_allclose(found["2 minima above the noise"].y, [0, 0], atol=1e-12)
    np.testing.assert_allclose(found["1 merge saddle"].x, [0.1], atol=1e-12)
    assert [trace.marker.symbol for trace in found.values()] == ["x", "circle"]
    for trace in found.values():
        assert trace.marker.color == trace.meta["themed"][theme]["marker"]["color"]
    assert SLICE in drawn.layout.meta["caption"]
    assert not marks(figure(make.two_bowls(), kind))


def test_the_pointer_tells_value_persistence_saddle_and_basin(make: ModuleType) -> None:
    found = marks(figure(make.two_bowls(), "contour", extrema=True))
    first, second = found["2 minima above the noise"].hovertext
    assert first.split("<br>")[:2] == ["<b>minimum 1 of 2</b>", "alpha -0.5, beta 0"]
    assert "no way leads to a lower one" in first
    assert second.split("<br>")[2:4] == ["loss 0.3 ± 0.02 (2 s.e.)", "persistence 0.16, saddle at alpha 0.1, beta 0"]
    assert "of the points" in second
    (saddle,) = found["1 merge saddle"].hovertext
    assert saddle.startswith(
        "<b>saddle of minimum 2 of 2</b><br>alpha 0.1, beta 0<br>loss 0.46 ± 0.03 (2 s.e.)<br>0.16 above"
    )


def test_a_surface_has_its_marks_above_their_heights_on_either_scale(make: ModuleType) -> None:
    for log in (False, True):
        found = marks(figure(make.two_bowls(), "surface", extrema=True, log=log))
        heights = np.array([0.1, 0.3])
        assert (found["2 minima above the noise"].z > (np.log10(heights) if log else heights)).all()


def test_a_curve_has_its_marks_at_real_values_in_the_panel_of_the_loss(make: ModuleType) -> None:
    drawn = figure(make.line(path=True), extrema=True, log=True)
    found = marks(drawn)
    low = found["2 minima above the noise"]
    assert low.yaxis == "y"
    np.testing.assert_allclose(low.y, sorted(np.array(topology_values(make.line()))))
    assert found["1 merge saddle"].x[0] == pytest.approx(0.5, abs=0.05)


def topology_values(surface: Surface) -> list[float]:
    return [basin.minimum.value for basin in topology_of(surface).basins]


def test_a_thinned_figure_marks_the_extrema_of_all_points(make: ModuleType) -> None:
    surface = make.two_bowls(41, 31)
    whole, few = (prepare_figure(surface, extrema=True, max_points=most).extrema for most in (None, 7))
    np.testing.assert_equal(asdict(whole), asdict(few))
    assert prepare_figure(surface, extrema=True, max_points=7).drawn.shape == (7, 7)


def test_of_a_refined_landscape_all_levels_count(make: ModuleType) -> None:
    fine = make.two_bowls(41, 31)
    fine.loss[15, 31] -= 0.3  # at (0.55, 0), between the points of the coarse grid
    pick = np.ix_(range(0, 31, 2), range(0, 41, 2))
    held = np.zeros(fine.status.shape, bool)
    held[10:21, 26:37] = True
    held[pick] = False
    states = np.where(held, fine.status, NOT_COMPUTED).astype(np.uint8)
    coarse = dataclasses.replace(
        fine,
        axes=tuple(dataclasses.replace(axis, coordinates=axis.coordinates[::2]) for axis in fine.axes),
        observables={name: values[pick] for name, values in fine.observables.items()},
        status=fine.status[pick],
        levels=(dataclasses.replace(fine, status=states),),
    )
    found = topology_of(coarse)
    assert found.labels.shape == (31, 41)
    assert found.basins[0].minimum.place == {"alpha": pytest.approx(0.55), "beta": 0.0}
    *_, minima = marks(figure(coarse, "contour", extrema=True)).values()
    np.testing.assert_allclose(minima.x, [0.55, -0.5])


def test_a_slice_has_the_marks_nearest_to_it(make: ModuleType) -> None:
    drawn = figure(make.block(path=True), "slices", extrema=True)
    name = "minima of the computed points"  # the block has missing points
    assert name in marks(drawn)
    shown = []
    for frame in drawn.frames:
        assert len(frame.data) == len(frame.traces)
        (trace,) = (trace for trace in frame.data if trace.meta["role"] == "extrema")
        assert drawn.data[frame.traces[-1]].name == trace.name == name, "a frame changes the marks, and not the path"
        shown.append(trace.x[0] is not None)
    assert np.flatnonzero(shown).tolist() == [len(shown) // 2]
    assert [trace.x[0] is not None for trace in marks(figure(make.block(), "volume", extrema=True)).values()] == [True]


def test_noise_is_counted_and_not_marked(make: ModuleType) -> None:
    surface = make.two_bowls(81, 61, noise=0.01)
    drawn = figure(surface, "contour", extrema=True)
    assert list(marks(drawn)) == ["1 merge saddle", "2 minima above the noise"]
    dropped = topology_of(surface).dropped
    assert dropped > MOST_BARS
    assert (
        f"2 minima above the noise (persistence over 0.04), {dropped} below it left out" in drawn.layout.meta["caption"]
    )


def test_minima_are_not_counted_before_all_points_are_known(make: ModuleType) -> None:
    whole = make.two_bowls()
    assert dict(topology_rows(whole))["minima above the noise"].startswith("2, persistence over")
    for state in (NOT_COMPUTED, QUARANTINED):
        third = with_walls(whole, slice(None), slice(0, whole.status.shape[1] // 3), state)
        missing = f"{count_text((third.status == state).sum())} of {count_text(third.status.size)} points are missing"
        assert topology_rows(third) == [("minima above the noise", f"not counted, as {missing}")]
        drawn = figure(third, extrema=True)
        assert f"Minima are not counted, as {missing}" in drawn.layout.meta["caption"]
        assert list(marks(drawn))[-1] == "minima of the computed points"
        assert not any(" of 2" in words for mark in marks(drawn).values() for words in mark.hovertext)


def test_parts_that_missing_points_separate_and_unfinished_landscapes_are_told(make: ModuleType) -> None:
    walled = with_walls(make.two_bowls(), slice(None), slice(21, 23))
    found = figure(walled, "contour", extrema=True)
    assert list(marks(found)) == ["2 minima above the noise"]
    assert "Missing points part the grid: 2 minima are the lowest of their parts" in found.layout.meta["caption"]
    unfinished = with_walls(make.two_bowls(), slice(0, 3), slice(0, 3), NOT_COMPUTED)
    assert "Minima beside missing points may be none" in figure(unfinished, extrema=True).layout.meta["caption"]
    nothing = with_walls(make.two_bowls(), slice(None), slice(None), NOT_COMPUTED)
    for kind in ("contour", "surface", "barcode"):
        drawn = figure(nothing, kind, extrema=True)
        assert not marks(drawn)
        assert [note.text for note in drawn.layout.annotations if note.name == "empty"]


def test_a_minimum_at_the_edge_of_what_is_known_says_so(make: ModuleType) -> None:
    slope = make.two_axes(
        "slope", np.linspace(0, 1, 5), np.linspace(0, 1, 4), np.add.outer(np.arange(4.0), np.arange(5.0))
    )
    (minimum,) = marks(figure(slope, "contour", extrema=True)).values()
    assert minimum.hovertext[0].endswith("on the rim: what lies beyond is not known")
    assert minimum.name == "1 minimum above the noise"
    with_hole = with_walls(make.two_bowls(), slice(14, 17), slice(29, 31))
    *_, minima = marks(figure(with_hole, "contour", extrema=True)).values()
    assert "not known" not in minima.hovertext[0]
    assert minima.hovertext[1].endswith("beside missing points: what lies there is not known")


def test_of_very_many_minima_the_most_persistent_are_marked(make: ModuleType) -> None:
    alpha = np.linspace(-1, 1, 2 * MOST_MARKS + 101)
    saw = 1.0 + np.arange(len(alpha)) % 2 + 1e-3 * np.arange(len(alpha))
    line = dataclasses.replace(
        make.line(),
        axes=(make.axis("alpha", alpha),),
        observables={"loss": saw},
        status=np.ones(len(alpha), np.uint8),
    )
    data = prepare_figure(line, extrema=True)
    assert data.extrema is not None
    assert len(data.extrema.minima.hover) == MOST_MARKS
    assert f"The {MOST_MARKS} most persistent are marked" in data.caption


@pytest.mark.parametrize("name", ["line", "two_bowls", "block"])
def test_a_barcode_has_a_bar_for_each_minimum_of_any_number_of_axes(make: ModuleType, name: str) -> None:
    surface = getattr(make, name)()
    drawn = figure(surface, "barcode")
    found = topology_of(surface)
    (bars,) = (trace for trace in drawn.data if trace.name == "minima above the noise")
    assert len(bars.y) == len(found.basins)
    np.testing.assert_allclose(bars.x[1:], [pair.persistence for pair in found.pairs[1 : len(found.basins)]])
    (threshold,) = traces(drawn, "noise")
    np.testing.assert_allclose(threshold.x, [found.threshold] * 2)
    assert SLICE in drawn.layout.meta["caption"]
    with_log = figure(surface, "barcode", log=True, theme="dark", preset="column")
    assert all(
        np.isfinite(trace.x).all() and (np.asarray(trace.x) >= 0).all()
        for trace in with_log.data
        if trace.type == "bar"
    )


def test_a_barcode_says_nothing_of_the_range_of_colours(make: ModuleType) -> None:
    diverging = make.valley()
    assert "range drawn" in figure(diverging, "contour", log=False).layout.meta["caption"].lower()
    assert "range drawn" not in figure(diverging, "barcode", log=False).layout.meta["caption"].lower()


def test_bars_below_the_noise_are_grey_and_counted(make: ModuleType) -> None:
    surface = make.two_bowls(81, 61, noise=0.01)
    found = topology_of(surface)
    drawn = figure(surface, "barcode")
    clear, below = (trace for trace in drawn.data if trace.type == "bar")
    assert len(clear.y) + len(below.y) == MOST_BARS
    assert max(below.x) <= found.threshold < clear.x[1]
    left_out = found.dropped - len(below.y)
    assert below.name == f"{found.dropped} below the noise, {left_out} of them left out"
    assert (np.diff(np.concatenate([clear.x[1:], below.x])) <= 0).all()
    assert clear.marker.color != below.marker.color
    assert list(drawn.layout.yaxis.ticktext) == [f"{basin.minimum.value:.4g}" for basin in found.basins]
    assert entries(drawn)[-1] == "noise ends at 0.04"
