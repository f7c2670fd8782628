"""A refined landscape in every figure: all its levels as one grid, what is interpolated marked, and its words."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from one_run import render_report
from refined_surfaces import at, plain, refined
from synthetic_surfaces import traces

from landscape.views.draw.comparison import compare_figures
from landscape.views.draw.figure import figure
from landscape.views.draw.layout import INTERPOLATED, pointer_notes
from landscape.views.draw.marks import NAME as EDGES
from landscape.views.notebook import run_bundle, small_svg
from landscape.views.prepare.comparison import compared
from landscape.views.prepare.difference import prepare_difference
from landscape.views.prepare.differences import TableItem, tabulate
from landscape.views.prepare.figure import prepare_figure, thinned
from landscape.views.prepare.tables import landscape_rows, observable_rows
from landscape.views.prepare.uncertainty import finer_edges
from landscape.views.prepare.words import state_text
from landscape.views.report_sections import Bundle


def field(drawn):
    return next(trace for trace in traces(drawn, "field") if trace.text is not None)


@pytest.mark.parametrize("kind", ["topographic", "contour", "surface"])
def test_planes_show_all_levels_with_edges_and_say_what_is_interpolated(kind):
    surface = refined()
    drawn, merged = figure(surface, kind), surface.merged()
    shown = field(drawn)
    assert np.shape(shown.z) == (17, 17)
    assert np.array_equal(np.array(shown.text) == INTERPOLATED, merged.interpolated > 0)
    assert str(shown.text[1][1]).startswith(" ± 0.02 (2 s.e.)<br>rise over the origin")
    assert "%{text}" in shown.hovertemplate
    assert "customdata[1]" not in shown.hovertemplate
    assert np.isfinite(shown.customdata[..., 0]).all()
    assert EDGES in [trace.name for trace in drawn.data]


def test_a_curve_has_dots_where_it_was_evaluated():
    surface = refined(1)
    drawn = figure(surface, "curve")
    assert np.array_equal(np.array(field(drawn).marker.size) > 0, surface.merged().interpolated == 0)
    assert field(drawn).text[-2] == INTERPOLATED


def test_slices_have_the_same_traces_whether_they_have_edges_or_not():
    drawn = figure(refined(3), "slices")
    assert len({len(frame.data) for frame in drawn.frames}) == 1
    edges = [len(trace.x) for frame in drawn.frames for trace in frame.data if trace.name == EDGES]
    assert min(edges) == 1 < max(edges)


def test_a_landscape_that_is_finer_everywhere_has_no_marks():
    surface = replace(refined(), levels=())
    axes = plain().axes
    held = np.ones((17, 17), bool)
    held[::2, ::2] = False
    whole = replace(surface, levels=(at(axes, held, {}),))
    data = prepare_figure(whole.merged())
    assert data.values.shape == (17, 17)
    assert data.interpolated is None is pointer_notes(data)
    assert EDGES not in [trace.name for trace in figure(whole).data]


def test_edges_lie_between_cells_of_other_levels():
    found = np.zeros((5, 5), np.uint8)
    found[:, 3] = 1
    lines = {(tuple(rows.tolist()), tuple(columns.tolist())) for rows, columns in finer_edges(found)}
    assert lines == {((0, 1, 2, 3, 4), (2,) * 5)}
    assert finer_edges(np.zeros((5, 5), np.uint8)) == []


def test_fewer_points_are_those_of_a_coarser_level():
    merged = refined().merged()
    few = thinned(merged, 10)
    assert few.loss.shape == (9, 9)
    assert np.array_equal(few.loss, refined().loss)
    assert not few.interpolated.any()
    assert thinned(merged, 5).loss.shape == (5, 5)
    assert thinned(plain(18), 10).loss.shape == (10, 10)


def test_words_count_what_was_evaluated_and_what_is_still_missing():
    whole = refined().merged()
    rows = dict(landscape_rows(whole))
    count = int((whole.interpolated == 0).sum())
    assert rows["resolution"] == "17 × 17 points"
    assert rows["evaluated"] == f"{count} of 289 points"
    assert (rows["state"], rows["time"]) == ("complete", "15.0 s")
    assert dict(observable_rows(whole, "loss"))["standard error, median"] == "0.01"
    missing = refined(left=7).merged()
    assert missing.unfinished == 7
    assert state_text(missing) == f"running: {count - 7} of {count} points"


@pytest.mark.parametrize("mode", ["overlay", "difference", "tiled"])
def test_comparisons_show_all_levels(mode):
    first, other = refined(), replace(refined(), name="other")
    for kind in ("contour", "surface"):
        for one in compare_figures([first, other], mode, kind):
            fields = traces(one.figure, "field")
            assert {np.shape(trace.z) for trace in fields} == {(17, 17)}
            assert any(trace.text is not None for trace in fields)


def test_a_difference_counts_points_where_both_were_evaluated():
    pair = compared([refined(), plain()])
    data = prepare_difference(*pair)
    merged = refined().merged()
    assert np.array_equal(data.field.interpolated, merged.interpolated)
    count = int((merged.interpolated == 0).sum())
    assert f"at {count} of which both were evaluated" in " ".join(data.field.caption)
    assert f"at {count} of {count} points" in " ".join(data.field.caption)
    coarse = prepare_difference(*compared([refined(), plain(9)]))
    assert coarse.field.interpolated is None
    assert coarse.field.values.shape == (9, 9)


def test_tables_the_report_and_small_pictures_are_of_all_levels():
    surface = refined()
    rows = {row.name: row.values for row in tabulate([TableItem("a", surface.merged())]).sections[0].rows}
    count = str(int((surface.merged().interpolated == 0).sum()))
    assert (rows["points"], rows["points evaluated"], rows["done"]) == (("17 × 17",), (count,), ("100.0\u00a0%",))
    page = render_report([surface])
    assert f"{count} grid points computed" in page
    assert "17 × 17 points" in page
    assert small_svg(surface) == small_svg(surface.merged()) != small_svg(replace(surface, levels=()))
    assert "17 × 17 points" in run_bundle({"a": surface})["text/html"]


def test_a_report_holds_what_the_pointer_says_once():
    bundle = Bundle()
    for name, kind in enumerate(("topographic", "contour", "topographic")):
        bundle.add(str(name), figure(refined(), kind))
    texts = [array for array in bundle.arrays.values() if isinstance(array, list)]
    assert [len(rows) for rows in texts] == [17]
    used = [
        trace["text"]
        for shown in bundle.figures.values()
        for trace in shown["data"]
        if "$array" in str(trace.get("text"))
    ]
    assert len(used) == 3
    assert all(bundle.arrays[text["$array"]] == texts[0] for text in used)
