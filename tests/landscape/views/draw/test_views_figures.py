"""The figures carry the prepared numbers, in every kind and scale, and refuse what does not fit."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from types import ModuleType
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
from one_run import render_report
from synthetic_surfaces import traces

from landscape.core.errors import JobError
from landscape.surface.surface import Axis, Surface
from landscape.views.draw.comparison import compare
from landscape.views.draw.curve import band, y_limits
from landscape.views.draw.figure import figure
from landscape.views.draw.layout import bar_title
from landscape.views.draw.space import LINE_LIFT
from landscape.views.draw.style import colour_scale, colours_at, config
from landscape.views.figure_spec import (
    COLOUR_SCALES,
    COLOUR_TABLE,
    KIND_TABLE,
    KINDS,
    PROPORTIONS,
    ColourMap,
    FigureSpec,
    Kind,
    figure_name,
)
from landscape.views.prepare.figure import FigureData, prepare_figure

PLANES = ("topographic", "contour", "surface")


@pytest.mark.parametrize(("log", "theme"), [(False, "light"), (True, "dark")])
@pytest.mark.parametrize(("name", "axes"), [("line", 1), ("holed", 2), ("valley", 2), ("pca_plane", 2), ("block", 3)])
def test_every_kind_draws(make: ModuleType, name: str, axes: int, log: bool, theme: str) -> None:
    for kind in KINDS[axes]:
        drawn = figure(getattr(make, name)(), kind, log=log, theme=theme, animate=True)
        assert isinstance(drawn, go.Figure)
        assert "sendChartToCloud" in drawn.layout.modebar.remove
        drawn.to_json()


def test_defaults_fit_the_number_of_axes(make: ModuleType) -> None:
    assert figure(make.quadratic()).data[0].type == "contour"
    assert figure(make.line()).data[0].type == "scatter"
    assert figure(make.block()).layout.sliders
    assert make.quadratic().figure("surface").data[0].type == "surface"


@pytest.mark.parametrize(
    ("surface", "options", "message"),
    [
        ("line", {"kind": "contour"}, "'contour' does not fit 'line', which has 1 axis; known: curve"),
        ("block", {"kind": "surface"}, "which has 3 axes; known: slices, volume"),
        ("quadratic", {"kind": "contuor"}, "kind: unknown 'contuor'; did you mean 'contour'"),
        ("quadratic", {"observable": "los"}, "did you mean 'loss'"),
        ("quadratic", {"colour_scale": "virids"}, "colour_scale: unknown 'virids'; did you mean 'viridis'"),
        ("quadratic", {"theme": "blue"}, "theme: unknown 'blue'"),
        ("quadratic", {"logs": True}, "unknown option 'logs'; did you mean 'log'"),
    ],
)
def test_wrong_options_name_the_right_ones(
    make: ModuleType, surface: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(JobError, match=message):
        figure(getattr(make, surface)(), **options)


def test_the_pointer_finds_the_values_of_a_surface_where_plotly_looks_them_up(make: ModuleType) -> None:
    surface = make.quadratic(20, 15)
    field = traces(figure(surface, "surface"), "field")[-1]
    assert np.shape(field.z) == (15, 20)
    np.testing.assert_allclose(field.customdata[..., 0], surface.loss.T, rtol=1e-6)


def test_contour_carries_log10_for_drawing_and_real_values_for_the_pointer(make: ModuleType) -> None:
    surface = make.quadratic(20, 15)
    field = traces(figure(surface, "contour", log=True), "field")[-1]
    # The levels 0.15, 0.2, 0.3 … are not evenly spaced: the n-th of them is drawn at n.
    levels = field.meta["levels"]
    inside = (surface.loss > 10 ** levels[0]) & (surface.loss < 10 ** levels[-1])
    expected = np.interp(np.log10(surface.loss), levels, np.arange(len(levels)))
    np.testing.assert_allclose(field.z[inside], expected[inside], rtol=1e-6)
    assert field.z[~inside & (surface.loss > 1)].min() >= len(levels) - 1
    np.testing.assert_allclose(field.customdata[..., 0], surface.loss, rtol=1e-6)
    np.testing.assert_allclose(field.customdata[..., 1], 2 * surface.stderr(), rtol=1e-6)
    assert field.z.dtype == np.float32
    for tick, label in zip(field.colorbar.tickvals, field.colorbar.ticktext, strict=True):
        assert float(label) == pytest.approx(10 ** levels[round(tick)], rel=1e-6)


def test_evenly_spaced_levels_leave_the_drawn_values_as_they_are(make: ModuleType) -> None:
    surface = make.valley()
    for kind, log in (("contour", True), ("topographic", False)):
        field = traces(figure(surface, kind, log=log), "field")[-1]
        np.testing.assert_allclose(field.z, np.log10(surface.loss) if log else surface.loss, rtol=1e-6)
        assert "levels" not in field.meta


@pytest.mark.parametrize("log", [False, True])
def test_a_band_has_the_colour_of_its_middle_value(make: ModuleType, log: bool) -> None:
    surface = make.quadratic()
    field = figure(surface, "topographic", log=log).data[0]
    scale = prepare_figure(surface, log=log).scale
    edges = [scale.low, *scale.ticks, scale.high]
    places = [((a + b) / 2 - scale.low) / (scale.high - scale.low) for a, b in itertools.pairwise(edges)]
    assert [colour for _, colour in field.colorscale] == colours_at("viridis", places)
    assert [at for at, _ in field.colorscale] == pytest.approx(np.linspace(0, 1, len(scale.ticks) + 1))


def test_lines_with_values_have_no_legend_that_says_the_same(make: ModuleType) -> None:
    lines = traces(figure(make.quadratic(), "contour"), "field")[-1]
    assert lines.contours.showlabels
    assert (lines.colorbar.showticklabels, lines.colorbar.thickness) == (False, 0)
    bands = figure(make.quadratic(), "topographic").data[0]
    assert not bands.contours.showlabels
    assert all(bands.colorbar.ticktext)


def test_the_caption_of_a_drawing_with_contour_lines_has_their_number(make: ModuleType) -> None:
    for kind in PLANES:
        meta = figure(make.quadratic(), kind, levels=20).layout.meta
        assert re.search(r"\d+ contour lines at round values, the nearest to 20", meta["caption"])
    assert "contour line" not in figure(make.line()).layout.meta["caption"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("quadratic", "contour"),
        ("quadratic", "topographic"),
        ("holed", "surface"),
        ("line", "curve"),
        ("block", "slices"),
        ("block", "volume"),
    ],
)
def test_the_origin_has_a_mark_of_its_own_in_every_kind(make: ModuleType, name: str, kind: str) -> None:
    surface = make.with_record(getattr(make, name)(), origin_loss=0.1)
    marks = [trace for trace in traces(figure(surface, kind), "origin") if trace.name == "origin"]
    assert [mark.name for mark in marks if mark.showlegend is not False] == ["origin"]
    assert (np.nanmean(marks[0].x), np.nanmean(marks[0].y)) == pytest.approx((0, 0.1 if kind == "curve" else 0))
    if kind == "surface":
        assert np.nanmean(marks[0].z) == pytest.approx(0.1, abs=0.1)


def test_entries_of_a_surface_look_like_what_they_name(make: ModuleType) -> None:
    drawn = figure(make.quadratic(path=make.spiral()), "surface")
    entries = {trace.name: trace for trace in drawn.data if trace.showlegend is not False and trace.name}
    assert (entries["origin"].mode, entries["origin"].marker.symbol) == ("markers", "cross")
    line = next(trace for trace in traces(drawn, "path") if trace.mode == "lines")
    assert (entries["trajectory"].mode, entries["trajectory"].line) == ("lines+markers", line.line)
    for name, role in (("origin", "origin"), ("trajectory", "path")):
        assert {trace.legendgroup for trace in traces(drawn, role)} == {name}, "a click hides all of it"
    ends = traces(drawn, "end")
    for name in ("start (epoch 1)", "last snapshot (epoch 10)"):
        assert [trace.name for trace in ends if trace.legendgroup == name] == [None, name], "the mark and its edge"


def test_only_the_slice_through_the_origin_marks_it(make: ModuleType) -> None:
    drawn = figure(make.block(), "slices")
    shown = [[trace.x[0] for trace in frame.data if trace.meta["role"] == "origin"] for frame in drawn.frames]
    assert shown == [[0, 0] if k == 4 else [None, None] for k in range(9)]


def test_uncertainty_is_a_layer_of_its_own(make: ModuleType) -> None:
    surface = make.with_record(make.quadratic(41, 31), origin_loss=0.1, origin_loss_stderr=0.01)
    for kind in ("contour", "topographic"):
        layer = traces(figure(surface, kind, uncertainty=True), "uncertainty")
        assert len(layer) == 1
        inside = [(x, y) for x, y in zip(layer[0].x, layer[0].y, strict=True) if x is not None]
        assert len(inside) > 4
        reach = max(math.hypot(x, y) for x, y in inside)
        assert reach < 0.5, "the hatched area lies around the origin"
        assert layer[0].showlegend
        assert traces(figure(surface, kind), "uncertainty") == []
    low, high = traces(figure(surface, "surface", uncertainty=True), "uncertainty")
    np.testing.assert_allclose(high.z - low.z, 4 * surface.stderr(), rtol=1e-3)
    block = make.with_record(make.block(), origin_loss=0.1, origin_loss_stderr=0.1)
    mesh = traces(figure(block, "volume", uncertainty=True), "uncertainty")[0]
    assert len(mesh.x)
    planes = figure(block, "slices", uncertainty=True)
    assert all([trace.meta["role"] for trace in frame.data].count("uncertainty") == 1 for frame in planes.frames)


def test_what_differs_by_theme_is_there_for_both(make: ModuleType) -> None:
    surface = make.with_record(make.quadratic(41, 31), origin_loss=0.1, origin_loss_stderr=0.01)
    for kind in KINDS[2]:
        for theme in ("light", "dark"):
            drawn = figure(surface, kind, uncertainty=True, theme=theme)
            for trace in [*traces(drawn, "origin"), *traces(drawn, "uncertainty")]:
                assert set(trace.meta["themed"]) == {"light", "dark"}
                plain = trace.to_plotly_json()
                assert all(plain[key] == value for key, value in trace.meta["themed"][theme].items())


def test_values_beyond_float32_are_not_turned_into_infinity(make: ModuleType) -> None:
    surface = make.quadratic(10, 8)
    loss = surface.loss.copy()
    loss[0, 0] = 1e200
    drawn = figure(dataclasses.replace(surface, observables={"loss": loss}), log=False)
    assert drawn.data[0].z[0, 0] == 1e200


def test_axes_are_drawn_to_one_scale(make: ModuleType) -> None:
    layout = figure(make.quadratic(40, 30), "contour").layout
    assert (layout.yaxis.scaleanchor, layout.yaxis.scaleratio) == ("x", 1)
    width = layout.width - layout.margin.l - layout.margin.r
    height = layout.height - layout.margin.t - layout.margin.b
    assert width / height == pytest.approx(2 / 1.5, rel=0.01)


def spread(plane: Surface, *spans: float) -> Surface:
    """The same values over axes of these lengths."""
    axes = zip(plane.axes, spans, strict=True)
    return dataclasses.replace(
        plane,
        axes=tuple(
            Axis(axis.name, np.linspace(0, span, len(axis.coordinates)), axis.attributes) for axis, span in axes
        ),
    )


def test_a_flat_plane_fills_a_figure_of_the_usual_height_where_that_is_asked_for(make: ModuleType) -> None:
    flat = spread(make.quadratic(), 4.8, 1.6)
    heights = {}
    for proportions in PROPORTIONS:
        drawn = figure(flat, "topographic", proportions=proportions)
        heights[proportions] = drawn.layout.meta["plot"][1]
        assert (drawn.layout.yaxis.scaleanchor == "x") == (proportions == "true")
        assert ("Axes not to one scale: they span 4.8 and 1.6" in drawn.layout.meta["caption"]) == (
            proportions == "fill"
        )
    assert heights["fill"] > 2 * heights["true"]
    scenes = {name: figure(flat, "surface", proportions=name).layout.scene.aspectratio for name in PROPORTIONS}
    assert (scenes["fill"].x, scenes["fill"].y) == (1, 1)
    assert scenes["true"].y == pytest.approx(1 / 3)
    for mode, kind in (("overlay", "contour"), ("difference", "topographic")):
        both = compare([("a", flat), ("b", flat)], mode, kind, proportions="fill")
        assert both.layout.yaxis.scaleanchor is None
        assert "they span 4.8 and 1.6" in both.layout.meta["caption"]
    with pytest.raises(JobError, match="proportions: unknown 'wide'; known: true, fill"):
        figure(flat, proportions="wide")


def test_levels_and_shared_range(make: ModuleType) -> None:
    range_drawn = {"levels": 7, "exact_levels": True, "zmin": 0, "zmax": 8}
    one = figure(make.quadratic(), "topographic", **range_drawn).data[0]
    other = figure(make.quadratic(offset=1.0), "topographic", **range_drawn).data[0]
    assert one.contours == other.contours
    assert one.contours.start == 1
    assert one.contours.end == 7
    assert one.contours.size == 1


def test_many_lines_are_labelled_every_few(make: ModuleType) -> None:
    thin, heavy = figure(make.quadratic(), "contour", levels=80).data[:2]
    assert not thin.contours.showlabels
    assert heavy.contours.showlabels
    assert (heavy.contours.size / thin.contours.size) == pytest.approx(round(heavy.contours.size / thin.contours.size))
    assert all(heavy.colorbar.ticktext)


def test_missing_points_have_hatches_and_legends_of_their_own(make: ModuleType) -> None:
    missing = traces(figure(make.holed()), "missing")
    assert [trace.name for trace in missing] == [
        "not computed: 80 points",
        "not finite: 40 points",
        "quarantined: 16 points",
    ]
    assert len({trace.fillpattern.shape for trace in missing}) == 3
    assert all(trace.showlegend for trace in missing)
    assert traces(figure(make.quadratic()), "missing") == []


def test_zero_loss_on_a_log_scale_is_marked(make: ModuleType) -> None:
    surface = make.quadratic(21, 21, offset=0.0)
    for kind in ("contour", "topographic", "surface"):
        names = [trace.name for trace in traces(figure(surface, kind, log=True), "missing")]
        assert names == ["no logarithm (zero or below): 1 point"]
    assert traces(figure(surface, "contour"), "missing") == []


def test_nothing_computed_yet_still_draws(make: ModuleType) -> None:
    surface = make.quadratic(8, 6, done=0)
    empty = {name: np.full(values.shape, np.nan) for name, values in surface.observables.items()}
    surface = dataclasses.replace(surface, observables=empty, status=np.zeros((6, 8), np.uint8))
    for kind in PLANES:
        drawn = figure(surface, kind, log=True)
        assert traces(drawn, "missing")[0].name == "not computed: 48 points"
        sentences = [note.text for note in drawn.layout.annotations if note.name == "empty"]
        assert sentences == ["No point has a value to draw: 48 not computed."]
        assert "contour line" not in drawn.layout.meta["caption"]
    assert not [note for note in figure(make.holed()).layout.annotations if note.name == "empty"]


def test_a_surface_brings_its_isolines_along(make: ModuleType) -> None:
    """Plotly's own take a browser minutes as soon as values are missing, and know even distances only."""
    for surface in (make.quadratic(), make.holed()):
        field, lines = figure(surface, "surface", log=True).data[:2]
        assert not field.contours.z.show
        levels = prepare_figure(surface, log=True).scale.ticks
        heights = np.sort(lines.z[np.isfinite(lines.z)])
        above = heights - np.array(levels)[np.searchsorted(levels, heights + 1e-6) - 1]
        assert above.min() > -1e-6
        assert above.max() <= 1.001 * LINE_LIFT * (field.cmax - field.cmin)
        assert np.isfinite(lines.z).sum() > 500


def test_curve_has_both_observables_and_the_band_of_two_errors(make: ModuleType) -> None:
    surface = make.line()
    drawn = figure(surface)
    loss, accuracy = traces(drawn, "field")
    np.testing.assert_array_equal(loss.y, surface.loss)
    np.testing.assert_array_equal(accuracy.y, surface.accuracy)
    bands = [trace for trace in drawn.data if trace.name == "± 2 standard errors"]
    assert len(bands) == 2
    upper = np.array(bands[0].y[: len(surface.alpha)], float)
    np.testing.assert_allclose(upper, surface.loss + 2 * surface.stderr())
    assert len(traces(figure(surface, observable="accuracy"), "field")) == 1


def test_a_band_has_one_polygon_per_gapless_stretch() -> None:
    x, error = np.arange(6.0), np.full(6, 0.5)
    xs, ys = band(x, np.array([1, 2, np.nan, 3, 4, 5.0]), error, floor=0.5)
    assert xs == [0, 1, 1, 0, None, 3, 4, 5, 5, 4, 3, None]
    assert ys == [2, 3, 1, 0.5, None, 4, 5, 6, 4, 3, 2, None]


def test_slices_hold_each_plane_of_the_grid(make: ModuleType) -> None:
    surface = make.block()
    drawn = figure(surface, "slices")
    assert len(drawn.frames) == len(surface.gamma)
    np.testing.assert_allclose(drawn.frames[3].data[0].z, surface.loss[3], rtol=1e-6)
    assert drawn.layout.sliders[0].active == 4
    starts = {frame.data[0].contours.start for frame in drawn.frames}
    assert len(starts) == 1
    assert [step.label for step in drawn.layout.sliders[0].steps][4] == "0"


def test_isosurfaces_of_a_volume_lie_where_the_closed_form_puts_them(make: ModuleType) -> None:
    drawn = figure(make.block(), "volume")
    meshes = [trace for trace in drawn.data if trace.type == "mesh3d"]
    assert len(meshes) >= 2
    for trace in meshes:
        level = float(trace.name.split("= ")[1])
        loss = 0.1 + trace.x**2 + 2 * trace.y**2 + 3 * trace.z**2
        np.testing.assert_allclose(loss, level, atol=0.06)


def test_text_from_outside_cannot_bring_markup_into_a_figure(make: ModuleType) -> None:
    surface = dataclasses.replace(make.quadratic(), name="<b>bold</b> & <a href='x'>link</a>")
    assert figure(surface).layout.title.text.startswith("&lt;b&gt;bold&lt;/b&gt; &amp;")


@pytest.mark.parametrize("kind", ["contour", "topographic", "surface"])
def test_the_names_of_observables_and_of_the_origin_bring_no_markup_into_what_the_pointer_shows(
    make: ModuleType, kind: str
) -> None:
    plain = make.quadratic()
    name, attributes = "<u>acc%{x}", {**plain.attributes, "origin": "<em>here"}
    observables = {**plain.observables, name: plain.loss}
    drawn = figure(dataclasses.replace(plain, observables=observables, attributes=attributes), kind, observable=name)
    told = drawn.to_json()
    assert "<u>" not in told.replace("Mean <u>acc", "")  # the caption, which is no part of the drawing
    assert "(<em>" not in told
    assert "&lt;u&gt;acc&#37;{x}" in told
    assert "(&lt;em&gt;here)" in told


def test_the_caption_warns_of_a_scale_that_misleads(make: ModuleType) -> None:
    jet, viridis = (figure(make.quadratic(), colour_scale=name).layout.meta["caption"] for name in ("jet", "viridis"))
    assert "Jet misleads: its lightness rises and falls again" in jet
    assert "misleads" not in viridis


def test_colour_scales_are_complete_and_rdbu_is_blue_when_low() -> None:
    for name in COLOUR_SCALES:
        scale = colour_scale(name)
        assert (scale[0][0], scale[-1][0]) == (0.0, 1.0)
    perceptual = [look.perceptual for look in COLOUR_TABLE.values()]
    assert perceptual == sorted(perceptual, reverse=True), "those that mislead come last"
    assert all(bool(look.warning) != look.perceptual for look in COLOUR_TABLE.values())
    red, _, blue = (int(part) for part in colour_scale("rdbu")[0][1][4:-1].split(","))
    assert blue > red


def test_config_has_no_cloud(make: ModuleType) -> None:
    chosen = config(figure_name(make.quadratic(), "contour", log=True))
    assert chosen["showSendToCloud"] is False
    assert chosen["displaylogo"] is False
    assert chosen["toImageButtonOptions"]["filename"] == "minimum-contour-log"


@pytest.mark.parametrize("seed", range(0, 20, 3))
def test_rounding_never_leaves_the_colour_scale(make: ModuleType, seed: int) -> None:
    low, span = np.random.default_rng(seed).random(2) * 7
    alpha, beta = np.linspace(-1, 1, 9), np.linspace(-1, 1, 7)
    surface = make.two_axes("any", alpha, beta, low + span * make.bowl(alpha[None], beta[:, None]))
    for log in (False, True):
        assert figure(surface, "contour", log=log, theme="dark", levels=seed + 30).data
        assert figure(surface, "contour", log=log).data


def test_a_band_that_is_broad_all_along_is_shown_whole(make: ModuleType) -> None:
    """Cut off, it would fill the panel, and noise look like a shape."""
    line = make.line(29)
    noise = 0.1 + 0.01 * np.cos(np.arange(29.0))
    for error, limits in ((0.02, (0.04, 0.16)), (np.where(np.arange(29) > 26, 5.0, 0.001), (0.08, 0.12))):
        stderr = np.broadcast_to(error, 29).astype(float)
        observables = {"loss": line.loss, "accuracy": noise, "accuracy_stderr": stderr}
        low, high = y_limits(prepare_figure(dataclasses.replace(line, observables=observables), "accuracy"))
        shown = (noise - 2 * stderr >= low) & (noise + 2 * stderr <= high)
        assert shown[:27].all()
        assert limits[0] <= low < high <= limits[1]


def test_a_kind_is_added_by_one_line_of_the_table(make: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def draw_heat(data: FigureData, spec: FigureSpec) -> go.Figure:
        meta = {"plot": [1, 1], "below": 0, "equal": True, "caption": data.caption[0]}
        return go.Figure(go.Heatmap(z=data.drawn, colorscale=colour_scale(spec.colour_scale)), {"meta": meta})

    monkeypatch.setitem(KIND_TABLE, "heat", Kind(2, "Heat map", "plane:draw_heat"))
    monkeypatch.setattr("landscape.views.draw.plane.draw_heat", draw_heat, raising=False)
    surface = make.quadratic(9, 7)
    np.testing.assert_array_equal(figure(surface, "heat", log=True).data[0].z, np.log10(surface.loss))
    assert figure(surface).data[0].type == "contour"
    assert figure_name(surface, "heat") == "minimum-heat"
    page = render_report([surface])
    assert "Heat map" in page
    assert '"0/heat/accuracy/True"' in page
    with pytest.raises(JobError, match="'heat' does not fit 'line'"):
        figure(make.line(), "heat")


def test_a_colour_scale_is_added_by_one_line_of_the_table(make: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(COLOUR_TABLE, "ice", ColourMap("Ice", "ice_r"))
    for kind in ("contour", "topographic", "surface"):
        assert figure(make.quadratic(9, 7), kind, colour_scale="ice").data
    assert colour_scale("ice") != colour_scale("viridis")


def test_kinds_and_colour_scales_are_those_of_the_documentation() -> None:
    plain = {1: ("curve",), 2: PLANES, 3: ("slices", "volume")}
    assert {axes: kinds[:-1] for axes, kinds in KINDS.items()} == plain
    assert {kinds[-1] for kinds in KINDS.values()} == {"barcode"}
    assert {"cividis", "viridis", "magma", "inferno", "plasma", "turbo", "jet", "rdbu"} <= set(COLOUR_SCALES)


@pytest.mark.parametrize(
    ("words", "lines", "size"),
    [
        ("loss", "loss", 13),
        ("token accuracy", "token<br>accuracy", 13),
        ("classification error", "classification<br>error", 11),
        ("a<b", "a&lt;b", 13),
    ],
)
def test_the_title_of_a_colour_bar_fits_its_margin(words: str, lines: str, size: int) -> None:
    title = bar_title(words)
    assert (title["text"], title["font"]["size"]) == (lines, size)


def test_captions_say_that_nobody_compared_the_model_and_which_points_were_found_wrong(make: ModuleType) -> None:
    wrong = {"number": "3", "name": "spot check", "state": "fails", "text": "11 of 12 points differ"}
    surface = make.with_record(
        make.quadratic(), own_model={"state": "not compared", "text": "why"}, checks={"results": [wrong]}
    )
    caption = figure(surface, "contour").layout.meta["caption"]
    assert "Not compared with your own model. 11 of 12 points differ. Complete." in caption
    assert "own model" not in figure(make.quadratic(), "contour").layout.meta["caption"]
