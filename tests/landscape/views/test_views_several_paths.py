"""The paths of several runs as figures, plots, tables and checks show them."""

from __future__ import annotations

import csv
import itertools
import json
from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest
from one_run import prepare_history
from synthetic_surfaces import traces

from landscape.analysis.checks.evidence import NotJudged
from landscape.analysis.checks.paths import OnPlane, judge_path, judge_paths
from landscape.surface.record import Along
from landscape.surface.record_entries import PathRecord, path_records
from landscape.surface.surface import RISE_STDERR, ProjectedPath, Surface
from landscape.views.draw.comparison import compare
from landscape.views.draw.figure import figure
from landscape.views.draw.layout import text
from landscape.views.draw.style import PATH_COLOURS, path_look
from landscape.views.exporting import export
from landscape.views.notebook import small_svg
from landscape.views.prepare.figure import prepare_figure
from landscape.views.prepare.tables import landscape_rows

SGD = PathRecord(label="sgd", run="runs/sgd", unit="epoch", own=True, shown=0.8, shown_of_walk=0.6)
THOR = PathRecord(label="THOR <2>", run="runs/thor", unit="step", shown=0.3, shown_of_walk=0.5)


def two_paths(make: ModuleType, names: tuple[str, ...] = ("alpha", "beta")) -> ProjectedPath:
    """A spiral of ten epochs, and its mirror image of four steps."""
    one, other = make.spiral(10, names=names), make.spiral(4, "step", names)
    other = replace(other, coordinates={name: -places for name, places in other.coordinates.items()})
    joined = {name: np.concatenate([getattr(each, name) for each in (one, other)]) for name in ARRAYS}
    places = {name: np.concatenate([each.coordinates[name] for each in (one, other)]) for name in names}
    return ProjectedPath("mixed", coordinates=places, run=np.repeat([0, 1], [10, 4]), runs=(SGD, THOR), **joined)


ARRAYS = ("step", "loss", "projected_loss", "distance", "status")


@pytest.fixture
def surface(make: ModuleType) -> Surface:
    return make.quadratic(path=two_paths(make))


def test_each_run_has_a_path_a_name_and_a_look_of_its_own(surface: Surface) -> None:
    data = prepare_figure(surface)
    assert [path.name for path in data.paths] == ["sgd (epochs 1 to 10)", "THOR <2> (steps 1 to 4)"]
    assert [path.numbers[-1] for path in data.paths] == [10, 4]
    assert "Of each path's own variance the axes show: sgd 80\u00a0%, THOR <2> 30\u00a0%" in data.caption
    assert data.paths[1].hover[0].startswith("<b>THOR &lt;2&gt;, step 1</b> (start)<br>alpha ")
    np.testing.assert_array_equal(data.paths[1].places[0], surface.paths[1].coordinates["alpha"])
    drawn = figure(surface, "topographic")
    lines = [trace for trace in traces(drawn, "path") if trace.mode == "lines+markers"]
    assert [trace.name for trace in lines] == ["sgd (epochs 1 to 10)", "THOR &lt;2&gt; (steps 1 to 4)"]
    assert [len(trace.x) for trace in lines] == [10, 4]
    assert len({trace.line.color for trace in lines}) == len({trace.marker.symbol for trace in lines}) == 2
    entries = [trace.name for trace in drawn.data if trace.showlegend is not False and trace.name]
    assert entries[-4:] == [lines[0].name, lines[1].name, "start", "last snapshot"]


@pytest.mark.parametrize("kind", ["contour", "surface"])
def test_paths_grow_together_each_to_its_own_end(surface: Surface, kind: str) -> None:
    drawn = figure(surface, kind, animate=True)
    assert len(drawn.frames) == 10
    moving = [drawn.data[k] for k in drawn.frames[0].traces]
    assert {trace.meta["path"] for trace in moving} == {0, 1}
    for stop, frame in enumerate(drawn.frames, 1):
        for trace, part in zip(moving, frame.data, strict=True):
            count = (10, 4)[trace.meta["path"]]
            share = (min(stop, count) - 1) / (count - 1)
            points = round(share * (len(trace.x) - 1)) + 1
            if "each" in trace.meta:  # a thread from each snapshot that is shown
                points = trace.meta["each"] * min(stop, count)
            assert len(part.x) == points


def test_in_a_comparison_snapshots_float_over_their_surface_and_the_caption_says_how_far_off(make: ModuleType) -> None:
    path = make.spiral()
    off = replace(path, loss=path.projected_loss + np.where(path.step == 1, 0.5, 0.0))
    drawn = compare([("a", make.quadratic(path=path)), ("b", make.quadratic(21, 11, path=off))], "overlay", "surface")
    caption = drawn.layout.meta["caption"]
    assert caption.count("is not that of the plane") == 1
    assert (
        "b: 21 × 11 points, complete, the loss of the path is not that of the plane: at epoch 1 it is "
        f"{off.loss[0]:.3g}, the plane has" in caption
    )
    marks = [
        each for each in drawn.data if (each.meta or {}).get("item") == 1 and getattr(each, "mode", "") == "markers"
    ]
    heights = next(trace.z for trace in marks if len(trace.x) == 10)
    assert heights[0] == off.loss[0]
    raised = (heights - off.loss)[1:]  # which lie on the surface, and would be half hidden
    np.testing.assert_allclose(raised, raised[0], rtol=1e-9)
    assert raised[0] > 0
    flat = compare([("a", make.quadratic(path=path)), ("b", make.quadratic(21, 11, path=off))], "overlay")
    assert "b: 21 × 11 points, complete, the loss of the path is not that of the plane" in flat.layout.meta["caption"]


def test_an_overlay_has_one_pair_of_ends_and_says_what_lies_beyond_them(make: ModuleType) -> None:
    path = make.spiral()
    high = replace(path, loss=np.where(path.step == 1, 250.0, np.where(path.step == 10, np.nan, path.loss)))
    low = replace(path, loss=np.where(path.step == 1, -9.0, path.loss))
    pair = [("a", make.quadratic(path=high)), ("b", make.quadratic(path=low))]
    drawn = compare(pair, "overlay", "surface", log=False)
    caption, ends = drawn.layout.meta["caption"], drawn.layout.scene.zaxis.range
    assert "Snapshots above the heights shown, and drawn at their upper end: a, epoch 1 (250)." in caption
    assert "Snapshots below the heights shown, and drawn at their lower end: b, epoch 1 (−9)." in caption
    assert "White snapshots lie on the surface: 1 whose loss is not known." in caption
    marks = [each for each in traces(drawn, "path") if each.mode == "markers"]
    assert marks[0].z[0] == ends[1]
    assert marks[1].z[0] == pytest.approx(ends[0], abs=0.04 * (ends[1] - ends[0]))
    assert [colour == "#ffffff" for colour in marks[0].marker.color] == [False] * 9 + [True]
    assert traces(drawn, "end")[0].marker.color == "#ffffff"


def test_check_table_and_caption_name_the_same_snapshot(make: ModuleType) -> None:
    path, surface = make.spiral(10), make.quadratic()
    cases = {
        "not finite": (np.where(path.step == 3, np.inf, np.where(path.step == 5, 9.0, path.loss)), None, 3),
        "finite": (np.where(path.step == 4, 2.0, np.where(path.step == 5, 9.0, path.loss)), None, 5),
        "noise": (np.where(path.step == 4, 2.0, np.where(path.step == 5, 9.0, path.loss)), 5, 4),
    }
    for loss, noisy, epoch in cases.values():
        error = np.full(surface.status.shape, 1e-4)
        if noisy is not None:
            place = tuple(
                int(np.abs(axis.coordinates - path.coordinates[axis.name][noisy - 1]).argmin())
                for axis in reversed(surface.axes)
            )
            error[place] = 10.0
        observables = {**surface.observables, RISE_STDERR: error}
        shown = replace(surface, path=replace(path, loss=loss), observables=observables)
        found = judge_path(OnPlane(shown.along(shown.path), np.full(10, 0.1), np.nan, np.nan))
        assert found.numbers["snapshot"] == f"epoch {epoch}"
        rows = dict(landscape_rows(shown))
        assert rows["path, own loss and the plane's where furthest apart"].endswith(f" at epoch {epoch}")
        caption = " ".join(prepare_figure(shown, log=False).caption)
        assert f"the loss of the path is not that of the plane: at epoch {epoch} it is" in caption.replace("The", "the")


def test_the_caption_names_each_run_that_lies_off_the_plane(make: ModuleType, surface: Surface) -> None:
    path = surface.path
    off = replace(path, loss=path.projected_loss + np.where(np.isin(np.arange(14), (2, 11)), 1.5, 0.0))
    caption = figure(replace(surface, path=off), "topographic").layout.meta["caption"]
    first, second = (f"(loss {off.loss[k]:.3g}, plane {off.projected_loss[k]:.3g})" for k in (2, 11))
    steps = path.step[[2, 11]]
    assert (
        f"The losses of the paths are not those of the plane, furthest apart at sgd epoch {steps[0]} {first}, "
        f"THOR <2> step {steps[1]} {second}." in caption
    )
    one = replace(path, loss=path.projected_loss + np.where(np.arange(14) == 11, 1.5, 0.0))
    caption = figure(replace(surface, path=one), "topographic").layout.meta["caption"]
    assert (
        f"The loss of the path of THOR <2> is not that of the plane: at step {steps[1]} it is {one.loss[11]:.3g}"
        in caption
    )


def test_a_comparison_marks_the_end_of_each_path(surface: Surface, make: ModuleType) -> None:
    """In the colour of its landscape, by a mark of its own."""
    for kind in ("contour", "surface"):
        drawn = compare([("a", surface), ("b", make.quadratic(21, 11, path=make.spiral()))], "overlay", kind)
        ends = traces(drawn, "end")
        assert [trace.name for trace in ends] == [
            "a, last snapshot of sgd (epoch 10)",
            "a, last snapshot of THOR &lt;2&gt; (step 4)",
            "b, last snapshot (epoch 10)",
        ]
        assert ends[0].marker.color == ends[1].marker.color != ends[2].marker.color
        assert ends[0].marker.symbol != ends[1].marker.symbol


def test_a_click_on_a_path_in_space_hides_its_ends_too(surface: Surface) -> None:
    drawn = figure(surface, "surface")
    for number, path in enumerate(prepare_figure(surface).paths):
        own = [trace for trace in drawn.data if (trace.meta or {}).get("path") == number]
        assert {trace.meta["role"] for trace in own} == {"path", "path key", "end"}
        assert {trace.legendgroup for trace in own} == {text(path.name)}


def test_a_single_path_is_called_as_before(make: ModuleType) -> None:
    drawn = figure(make.quadratic(path=make.spiral()), "topographic")
    names = [trace.name for trace in drawn.data if (trace.meta or {}).get("role") in ("path", "end") and trace.name]
    assert names == ["trajectory", "start (epoch 1)", "last snapshot (epoch 10)"]


def test_paths_over_one_and_three_axes(make: ModuleType) -> None:
    line, cube = make.line(), make.block(path=False)
    curve = figure(replace(line, path=two_paths(make, ("alpha",))), "curve")
    assert [trace.name for trace in curve.data if trace.name == "loss at the snapshot itself"] == [
        "loss at the snapshot itself"
    ] * 2
    places = figure(replace(cube, path=two_paths(make, ("alpha", "beta", "gamma"))), "volume")
    assert "THOR &lt;2&gt; (steps 1 to 4)" in [trace.name for trace in places.data]


# -- colours -------------------------------------------------------------------------------------------------

# Machado, Oliveira and Fernandes (2009), of eyes without one kind of cones, on linear RGB.
BLIND = {
    "red": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "green": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "blue": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
    "none": np.eye(3),
}
TO_XYZ = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.072175], [0.0193339, 0.119192, 0.9503041]]


def lab(colour: str, eye: str) -> np.ndarray:
    """CIE L*a*b* of a colour as such an eye sees it."""
    rgb = np.array([int(colour[k : k + 2], 16) for k in (1, 3, 5)]) / 255
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    xyz = np.array(TO_XYZ) @ np.clip(np.array(BLIND[eye]) @ linear, 0, 1) / [0.95047, 1, 1.08883]
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("eye", BLIND)
def test_colours_of_paths_differ_for_every_eye_and_in_grey_print(eye: str) -> None:
    for one, other in itertools.combinations(PATH_COLOURS, 2):
        assert np.linalg.norm(lab(one, eye) - lab(other, eye)) > 25, (one, other)
        assert abs(lab(one, "none")[0] - lab(other, "none")[0]) > 10, (one, other)


def test_the_first_three_colours_stand_out_from_the_dark_minima_where_paths_end() -> None:
    low = lab("#440154", "none")[0]  # of viridis
    assert all(lab(colour, "none")[0] > low + 30 for colour in PATH_COLOURS[:3])


def test_twelve_paths_have_twelve_looks() -> None:
    looks = [path_look(number) for number in range(12)]
    assert len({(look.colour, look.dash) for look in looks}) == 12
    assert len({(look.colour, look.symbol) for look in looks}) == 12, "where dots stand close, they hide the dashes"
    assert len({(look.colour, look.space_symbol) for look in looks}) == 12
    assert len({look.symbol for look in looks[:4]}) == 4


# -- beside the figure ---------------------------------------------------------------------------------------


def test_tables_say_of_each_path_how_much_of_it_shows(surface: Surface) -> None:
    rows = dict(landscape_rows(surface))
    assert rows["path of sgd"].replace("\u00a0", " ") == (
        "epochs 1 to 10 of runs/sgd, 80.0 % of its own variance on the axes (a random walk in its place: 60.0 %)"
    )
    assert rows["path of sgd, furthest off the plane"] == "0.4"
    assert rows["path of THOR <2>"].startswith("steps 1 to 4 of runs/thor, 30.0")


def test_the_history_of_a_run_has_the_stretch_of_its_own_path(surface: Surface) -> None:
    rows = [{"step": k, "epoch": k, "loss": 1.0 / k} for k in range(1, 11)]
    found = prepare_history(rows, [surface])
    assert [(each.start, each.stop) for each in found.intervals] == [(1.0, 10.0)]
    others = replace(surface.path, runs=(replace(SGD, own=False), THOR))
    assert prepare_history(rows, [replace(surface, path=others)]).intervals == ()


def test_tables_and_arrays_say_which_run_each_snapshot_is_of(surface: Surface, tmp_path) -> None:
    export(surface, "csv", tmp_path / "s.csv")
    with (tmp_path / "s+path.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["run"], row["unit"], row["number"]) for row in rows[9:11]] == [
        ("sgd", "epoch", "10"), ("THOR <2>", "step", "1"),
    ]  # fmt: skip
    export(surface, "npz", tmp_path / "s.npz")
    with np.load(tmp_path / "s.npz") as found:
        assert found["path_run"].tolist() == [0] * 10 + [1] * 4
        assert [run["label"] for run in json.loads(str(found["metadata"]))["path_runs"]] == ["sgd", "THOR <2>"]


def test_xarray_has_the_paths_over_their_snapshots(surface: Surface) -> None:
    pytest.importorskip("xarray")
    found = surface.to_xarray()
    assert found["path_run"].dims == ("snapshot",)
    thor = found.where(found["path_run"] == "THOR <2>", drop=True)
    np.testing.assert_array_equal(thor["path_alpha"].dropna("snapshot"), surface.paths[1].coordinates["alpha"])


def test_small_pictures_have_a_line_per_path(surface: Surface) -> None:
    picture = small_svg(surface)
    assert [picture.count(f'stroke="{colour}" stroke-width="1.5"') for colour in PATH_COLOURS[:2]] == [1, 1]


def test_plots_have_an_entry_per_run(surface: Surface) -> None:
    pytest.importorskip("matplotlib").use("Agg")
    from matplotlib import pyplot

    for kind in ("topographic", "surface"):
        ax = surface.plot(kind=kind)
        entries = [line.get_label() for line in ax.get_lines() if not line.get_label().startswith("_")]
        assert entries[-4:] == ["sgd (epochs 1 to 10)", "THOR <2> (steps 1 to 4)", "start", "last snapshot"]
        pyplot.close(ax.figure)


# -- checks --------------------------------------------------------------------------------------------------


def on_plane(off: float, explained: float = 0.9, of_walk: float = 0.5) -> OnPlane:
    losses = np.array([1.0, 2.0, 3.0])
    along = Along(["epoch 1", "epoch 2", "epoch 3"], losses, losses, 2.0, np.zeros(3))
    return OnPlane(along, np.full(3, off), explained, of_walk)


def test_each_path_is_judged_and_the_worst_one_decides() -> None:
    found = judge_paths({"sgd": on_plane(0.1), "thor": on_plane(0.7), "adam": on_plane(0.2, 0.5, 0.5)})
    assert found.state == "reservation"
    assert [part.split(":")[0] for part in found.text.split("; ") if ": " in part] == [
        "path of sgd", "path of thor", "path of adam",
    ]  # fmt: skip
    assert found.numbers["thor, off"] == 0.7
    assert found.remedy.endswith("; the path of adam looks as pure drift would: its shape says nothing of the training")
    nothing = replace(on_plane(0.1), off=np.empty(0))
    assert judge_paths({"sgd": nothing, "thor": on_plane(0.1)}).state == "holds"
    with pytest.raises(NotJudged, match="no snapshot off the origin"):
        judge_paths({"sgd": nothing})


# -- documents that anything may have written ----------------------------------------------------------------


def test_a_malformed_run_is_called_by_its_number() -> None:
    found = path_records([{"label": "sgd", "unit": 3}, "sgd", {"label": "x" * 1000}, {"label": "ok", "later": 1}], 5)
    assert [record.label for record in found] == ["path 1", "path 2", "path 3", "ok", "path 5"]
    assert path_records(None, 1)[0].unit == "epoch"


def test_a_label_with_signs_of_formulas_and_markup_is_shown_as_it_is(surface: Surface) -> None:
    pytest.importorskip("matplotlib").use("Agg")
    from matplotlib import pyplot

    odd = replace(surface.path, runs=(replace(SGD, label=r"$\frac{a$"), replace(THOR, label="<b>&")))
    ax = replace(surface, path=odd).plot(kind="topographic")
    ax.legend()
    ax.figure.canvas.draw()
    pyplot.close(ax.figure)
    names = [trace.name for trace in figure(replace(surface, path=odd), "contour").data if trace.name]
    assert "&lt;b&gt;&amp; (steps 1 to 4)" in names
