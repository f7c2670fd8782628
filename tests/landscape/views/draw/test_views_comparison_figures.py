"""Comparisons as figures: what is told apart by more than colour, what is shared, what is marked, what is refused."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
from synthetic_surfaces import traces

from landscape.core.errors import JobError
from landscape.surface.surface import Surface
from landscape.views.draw.comparison import COMPARISON_KINDS, compare, compare_figures, side_by_side
from landscape.views.draw.layout import legend_rows
from landscape.views.draw.style import look
from landscape.views.prepare.figure import prepare_figure

Pair = list[tuple[str, Surface]]


@pytest.fixture
def planes(make: ModuleType) -> Pair:
    return [
        ("sgd: minimum", make.with_record(make.quadratic(20, 16, path=make.spiral()), origin_loss=0.1)),
        ("adam: minimum", make.quadratic(20, 16, offset=1.0, path=make.spiral(5, offset=1.0))),
    ]


@pytest.fixture
def lines(make: ModuleType) -> Pair:
    line = make.line(31)
    higher = {name: values * (1.5 if name == "loss" else 1) for name, values in line.observables.items()}
    return [("sgd: line", make.line(31, path=True)), ("adam: line", replace(line, observables=higher))]


def legend(figure: go.Figure) -> list[str]:
    return [trace.name for trace in figure.data if trace.name and trace.showlegend is not False]


def test_looks_differ_in_colour_and_style() -> None:
    looks = [look(k) for k in range(40)]
    assert len({(one.colours["light"], one.dash) for one in looks}) == 40
    assert len({one.colours["dark"] for one in looks[:8]}) == 8
    assert all(one.dash != other.dash for one, other in itertools.pairwise(looks))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_overlaid_contour_lines_have_a_colour_and_a_line_style_each(planes: Pair, theme: str) -> None:
    figure = compare(planes, "overlay", theme=theme)
    one, two = traces(figure, "field")
    assert one.type == two.type == "contour"
    assert one.line.dash != two.line.dash
    assert one.colorscale[0][1] == look(0).colours[theme]
    assert two.colorscale[0][1] == look(1).colours[theme]
    assert (one.contours.start, one.contours.end) == (two.contours.start, two.contours.end)
    keys = {trace.name: trace.line.dash for trace in traces(figure, "key")}
    assert keys == {"sgd: minimum": one.line.dash, "adam: minimum": two.line.dash}
    ends = {trace.name: (trace.x[0], trace.y[0]) for trace in traces(figure, "end")}
    assert set(ends) == {
        "sgd: minimum, last snapshot (epoch 10)",
        "adam: minimum, last snapshot (epoch 5)",
    }
    assert traces(figure, "origin")


def test_the_pointer_reads_all_landscapes_where_their_points_agree(planes: Pair, make: ModuleType) -> None:
    figure = compare(planes, "overlay")
    below, above = traces(figure, "field")
    assert below.hoverinfo == "skip"
    np.testing.assert_allclose(above.customdata[..., 0], planes[0][1].loss, rtol=1e-6)
    np.testing.assert_allclose(above.customdata[..., 2], planes[1][1].loss, rtol=1e-6)
    assert "sgd: minimum" in above.hovertemplate
    apart = compare([planes[0], ("coarse", make.quadratic(9, 7))], "overlay")
    assert [("coarse" in trace.hovertemplate) for trace in traces(apart, "field")] == [False, True]


def test_contour_lines_are_shared_only_with_the_lock(planes: Pair) -> None:
    free = compare(planes, "overlay", lock=False)
    one, two = traces(free, "field")
    assert one.contours.start != two.contours.start


def test_surfaces_are_overlaid_in_a_hue_each_on_one_height_scale(planes: Pair, make: ModuleType) -> None:
    figure = compare([*planes, ("holes", make.holed())], "overlay", "surface", opacity=0.6)
    surfaces = traces(figure, "field")
    assert [trace.type for trace in surfaces] == ["surface"] * 3
    assert len({trace.colorscale[1][1] for trace in surfaces}) == 3
    assert {trace.opacity for trace in surfaces} == {0.6}
    assert {(trace.cmin, trace.cmax) for trace in surfaces} == {(surfaces[0].cmin, surfaces[0].cmax)}
    assert legend(figure).count("origin") == 1
    assert "holes: not computed: 80 points" in legend(figure)
    assert len(traces(figure, "end")) == 3


@pytest.mark.parametrize("log", [False, True])
def test_curves_are_overlaid_with_bands_and_marks(lines: Pair, log: bool) -> None:
    figure = compare(lines, log=log)
    one, two = traces(figure, "field")
    assert (one.line.color, one.line.dash) != (two.line.color, two.line.dash)
    assert one.line.dash != two.line.dash
    assert len(traces(figure, "band")) == 2
    assert len(traces(figure, "end")) == 1
    (origin,) = traces(figure, "origin")
    np.testing.assert_allclose(origin.x, 0.0)
    assert figure.layout.yaxis.type == ("log" if log else None)


def test_tiles_share_the_scale_and_the_contour_lines_where_locked(planes: Pair) -> None:
    def ends(lock: bool) -> list[tuple[float, ...]]:
        fields = [traces(one.figure, "field")[0] for one in compare_figures(planes, "tiled", lock=lock)]
        return [(one.zmin, one.zmax, one.contours.start, one.contours.end) for one in fields]

    locked, free = ends(True), ends(False)
    assert locked[0] == locked[1]
    assert free[0] != free[1]


def test_the_caption_of_every_tile_says_what_sets_the_landscapes_apart(make: ModuleType) -> None:
    pair = [("one", make.quadratic()), ("two", make.quadratic(num_samples=64, batch_norm="batch"))]
    for kind in ("topographic", "contour", "surface"):
        for tile in compare_figures(pair, "tiled", kind):
            assert "The landscapes have other samples. Batch norm differs: " in tile.caption
    alike = compare_figures([("one", make.quadratic()), ("two", make.quadratic())], "tiled")
    assert not any("other samples" in tile.caption for tile in alike)


def test_tiled_curves_share_the_height(lines: Pair) -> None:
    one, two = (tile.figure.layout.yaxis.range for tile in compare_figures(lines, "tiled"))
    assert one == two


def test_tiles_may_be_of_any_kinds(planes: Pair, lines: Pair, make: ModuleType) -> None:
    tiles = compare_figures([planes[0], lines[0], ("cube", make.block())], "tiled")
    assert [tile.items for tile in tiles] == [(0,), (1,), (2,)]
    assert [tile.title for tile in tiles] == ["sgd: minimum", "sgd: line", "cube"]
    with pytest.raises(JobError, match="'surface' does not fit 'sgd: line'"):
        compare_figures([planes[0], lines[0]], "tiled", "surface")


@pytest.mark.parametrize("kind", ["topographic", "contour"])
def test_a_difference_has_a_scale_of_two_sides_and_marks_what_is_within_the_error(planes: Pair, kind: str) -> None:
    first, other = planes[0][1], planes[1][1]
    loss = first.loss + np.linspace(-1, 1, first.loss.shape[1])
    near = replace(other, observables={**first.observables, "loss": loss})
    figure = compare([planes[0], ("adam: minimum", near)], "difference", kind)
    assert figure.layout.title.text == "Loss of adam: minimum less sgd: minimum"
    field = traces(figure, "field")
    assert field[0].zmin == -field[0].zmax
    (uncertain,) = traces(figure, "uncertainty")
    assert uncertain.name == "within 2 standard errors of no difference"
    assert uncertain.fillpattern.shape == "\\"
    assert len(traces(figure, "end")) == 2
    if kind == "contour":
        assert [trace.line.dash for trace in field] == ["dash", "solid", "solid"]


def test_differences_of_several_share_their_scale_and_are_of_the_first(planes: Pair, make: ModuleType) -> None:
    third = ("far", make.quadratic(20, 16, offset=7.0))
    locked = compare_figures([*planes, third], "difference")
    assert [one.items for one in locked] == [(0, 1), (0, 2)]
    assert [one.title for one in locked] == [
        "Loss of adam: minimum less sgd: minimum",
        "Loss of far less sgd: minimum",
    ]
    ends = [traces(one.figure, "field")[0].zmax for one in locked]
    assert ends[0] == ends[1]
    free = compare_figures([*planes, third], "difference", lock=False)
    assert len({traces(one.figure, "field")[0].zmax for one in free}) == 2


def test_differences_are_drawn_for_every_number_of_axes(planes: Pair, lines: Pair, make: ModuleType) -> None:
    curve = compare(lines, "difference")
    assert any(shape.y0 == shape.y1 == 0.0 for shape in curve.layout.shapes)
    assert len(traces(curve, "end")) == 1
    assert traces(curve, "band")
    surface = compare(planes, "difference", "surface")
    assert {trace.type for trace in traces(surface, "field")} == {"surface"}
    assert len(traces(surface, "end")) == 2
    slices = compare([("a", make.block()), ("b", make.block())], "difference")
    assert len(slices.frames) == 9


@pytest.mark.parametrize(
    ("mode", "kind", "message"),
    [
        ("overlay", "topographic", "'topographic' does not fit the mode 'overlay'; known: contour, surface"),
        ("difference", "curve", "'curve' does not fit 'sgd: minimum'"),
        ("overlay", "bars", "unknown 'bars'"),
        ("nothing", None, "mode: unknown 'nothing'"),
    ],
)
def test_kinds_that_do_not_fit_are_refused(planes: Pair, mode: str, kind: str | None, message: str) -> None:
    with pytest.raises(JobError, match=message):
        compare(planes, mode, kind)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"opacity": 0}, "opacity: must be above 0"),
        ({"theme": "blue"}, "theme: unknown 'blue'"),
        ({"colour_scale": "x"}, "colour_scale: unknown 'x'"),
        ({"colours": 1}, "unknown option 'colours'"),
        ({"zmin": 3, "zmax": 1}, "zmin: must be below zmax"),
    ],
)
def test_options_are_checked(planes: Pair, options: dict[str, Any], message: str) -> None:
    with pytest.raises(JobError, match=message):
        compare(planes, "overlay", **options)


def test_every_mode_has_a_default_kind_for_the_axes_that_it_can_draw() -> None:
    assert {mode: {axes: kinds[0] for axes, kinds in table.items()} for mode, table in COMPARISON_KINDS.items()} == {
        "overlay": {1: "curve", 2: "contour"},
        "difference": {1: "curve", 2: "topographic", 3: "slices"},
        "tiled": {1: "curve", 2: "topographic", 3: "slices"},
    }


def test_figures_side_by_side_keep_axes_legends_and_colour_bars_of_their_own(planes: Pair, lines: Pair) -> None:
    tiles = [one.figure for one in compare_figures([*planes, lines[0]], "tiled")]
    whole = side_by_side(tiles)
    assert whole.layout.width == tiles[0].layout.width + max(tiles[1].layout.width, 0)
    names = {(trace.xaxis, trace.yaxis) for trace in whole.data}
    assert names == {("x", "y"), ("x2", "y2"), ("x4", "y3"), ("x3", "y4")}
    assert {trace.legend for trace in whole.data} == {"legend", "legend2", "legend3"}
    bars = [trace.colorbar.x for trace in traces(whole, "field") if trace.type == "contour"]
    assert bars[0] < 0.5 < bars[1]
    assert whole.layout.yaxis2.scaleanchor == "x2"
    titles = [annotation.text for annotation in whole.layout.annotations]
    assert "sgd: minimum: loss" in titles
    assert "adam: minimum: loss" in titles
    scenes = compare(planes, "tiled", "surface")
    assert scenes.layout.scene.domain.x[1] < scenes.layout.scene2.domain.x[0]
    assert {trace.scene for trace in scenes.data} == {"scene", "scene2"}


def test_labels_are_escaped(planes: Pair) -> None:
    figure = compare([("<b>x</b>", planes[0][1]), planes[1]], "overlay")
    assert "&lt;b&gt;x&lt;/b&gt;" in legend(figure)
    assert "<b>x</b>" not in str(figure.layout.title.text)


def hard_surfaces(make: ModuleType) -> dict[str, Surface]:
    plain = make.quadratic(7, 6, path=make.spiral())
    nothing = np.full(plain.status.shape, np.nan)

    def with_loss(loss: np.ndarray) -> Surface:
        status = np.where(np.isnan(loss), 0, np.where(np.isinf(loss), 2, 1)).astype(np.uint8)
        return replace(plain, observables={**plain.observables, "loss": loss}, status=status)

    row = nothing.copy()
    row[0] = plain.loss[0]
    return {
        "plain": plain,
        "nothing": with_loss(nothing),
        "infinite": with_loss(np.full(nothing.shape, np.inf)),
        "one row": with_loss(row),
        "constant": with_loss(np.full(nothing.shape, 2.0)),
        "negative": with_loss(-plain.loss),
        "huge": with_loss(plain.loss * 1e300),
        "tiny": with_loss(plain.loss * 1e-300),
        "three points": make.quadratic(3, 3),
        "bare": Surface("bare", plain.axes, {"loss": plain.loss}, plain.status),
    }


@pytest.mark.parametrize("log", [None, True])
def test_hard_surfaces_are_compared_without_a_warning(make: ModuleType, log: bool | None) -> None:
    surfaces = hard_surfaces(make)
    kinds = [(mode, kind) for mode in ("overlay", "difference") for kind in ("contour", "surface")]
    plain = surfaces.pop("plain")
    for (name, hard), (mode, kind) in itertools.product(surfaces.items(), kinds):
        figure = compare([("plain", plain), (name, hard)], mode, kind, log=log)
        assert traces(figure, "field"), (name, mode, kind)


def room_of_legend(figure: go.Figure) -> float:
    """Pixels between where the legend begins and where the caption does, both under the plot area."""
    (caption,) = [note for note in figure.layout.annotations if note.name == "caption"]
    height = figure.layout.height - figure.layout.margin.t - figure.layout.margin.b
    return float(-caption.yshift + figure.layout.legend.y * height)


@pytest.mark.parametrize(("length", "theme"), [(3, "light"), (45, "dark")])
@pytest.mark.parametrize("mode", list(COMPARISON_KINDS))
def test_all_rows_of_the_legend_have_room_above_the_caption(
    make: ModuleType, mode: str, length: int, theme: str
) -> None:
    """Also beside the two last snapshots of a difference, and where the names of the runs are long."""
    surfaces = [
        make.with_record(make.quadratic(20, 16, offset=k, path=make.spiral(10)), origin_loss=0.1) for k in (0, 1)
    ]
    pair = [(name * length, surface) for name, surface in zip("ab", surfaces, strict=True)]
    for kind in COMPARISON_KINDS[mode][2]:
        for one in compare_figures(pair, mode, kind, theme=theme, uncertainty=mode == "tiled"):
            drawn = one.figure
            assert room_of_legend(drawn) >= 22 * legend_rows(legend(drawn), drawn.layout.meta["plot"][0]), kind
            bottom = -min(note.yshift for note in drawn.layout.annotations if note.name == "caption")
            assert bottom < drawn.layout.margin.b


def test_the_name_of_the_hatched_area_of_a_difference_is_counted(planes: Pair) -> None:
    (label, first), (_, second) = planes
    near = [(label, first), ("near", replace(second, observables=first.observables))]
    drawn = compare(near, "difference")
    assert "within 2 standard errors of no difference" in legend(drawn)
    assert "within 2 standard errors of the origin" not in legend(drawn)
    assert room_of_legend(drawn) >= 22 * legend_rows(legend(drawn), drawn.layout.meta["plot"][0])


def test_last_snapshots_at_one_place_can_all_be_seen(planes: Pair, make: ModuleType) -> None:
    for mode in ("overlay", "difference"):
        at_one_place = [trace.marker.size for trace in traces(compare(planes, mode), "end")]
        assert at_one_place[0] > 1.5 * at_one_place[1]
    line = make.line(31, path=True)
    on_curves = [trace.marker.size for trace in traces(compare([("a", line), ("b", line)]), "end")]
    assert on_curves[0] > 1.5 * on_curves[1]
    path = make.spiral()
    moved = replace(path, coordinates={name: 0.5 + at for name, at in path.coordinates.items()})
    elsewhere = replace(planes[1][1], path=moved)
    apart = [trace.marker.size for trace in traces(compare([planes[0], ("moved", elsewhere)]), "end")]
    assert apart[0] == apart[1]
    assert [trace.marker.size for trace in traces(compare(planes, "overlay", "surface"), "end")] == [6, 6], (
        "not in space"
    )


def test_a_tile_counts_the_contour_lines_that_its_values_reach(make: ModuleType) -> None:
    low = make.quadratic(20, 16)
    shared = prepare_figure(low, zmin=0.05, zmax=20.0, log=True).scale
    reached = sum(np.log10(low.loss.min()) < tick < np.log10(low.loss.max()) for tick in shared.ticks)
    tiles = [("low", low), ("high", make.quadratic(20, 16, offset=10.1))]
    drawn = compare(tiles, "tiled", zmin=0.05, zmax=20.0, log=True)
    words = " ".join(annotation.text for annotation in drawn.layout.annotations).replace("<br>", " ")
    total = len(shared.ticks)
    assert re.findall(r"(\d+|None) of the scale's (\d+) contour lines", words) == [
        (str(reached), str(total)), ("None", str(total)),
    ]  # fmt: skip


def test_tiled_planes_are_hatched_where_the_loss_is_that_of_the_origin(planes: Pair, make: ModuleType) -> None:
    known = [
        (label, make.with_record(one, origin_loss=float(one.loss.min()), origin_loss_stderr=0.01))
        for label, one in planes
    ]
    for kind in ("topographic", "contour"):
        for tile in compare_figures(known, "tiled", kind):
            assert tile.file.endswith("loss_rise")
            (hatched,) = traces(tile.figure, "uncertainty")
            assert (hatched.name, hatched.showlegend) == ("within 2 standard errors of the origin", True)
            assert "loss above the origin" in tile.caption
    for tile in compare_figures(known, "tiled", "surface"):
        assert traces(tile.figure, "uncertainty") == []
    bare = [(label, replace(one, observables={"loss": one.loss})) for label, one in known]
    for tile in compare_figures(bare, "tiled"):
        assert traces(tile.figure, "uncertainty") == []
        assert "Standard errors, or the value at the origin, are not known" in tile.caption
    for tile in compare_figures(known, "tiled", rise=False):
        assert traces(tile.figure, "uncertainty") == []
