"""`landscape export` names every file that it writes, of runs as they are computed."""

from __future__ import annotations

import csv
import errno
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from cluster.commands.exporting import FigureOptions, export, export_run, export_runs, runs_or_names
from cluster.commands.output import exit_code_of
from cluster.runtime.status import run_status, status_text
from landscape import Job, JobError, NotFoundError, Problem, TrajectoryCollector, open_run, run
from landscape.views.figure_spec import FigureSpec


def problem() -> Problem:
    torch.manual_seed(0)
    return Problem.supervised(torch.nn.Linear(4, 3), (torch.randn(16, 4), torch.randint(0, 3, (16,))))


@pytest.fixture(scope="module")
def computed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trajectory of four epochs, its plane and its line, and a plane of random directions."""
    folder, model = tmp_path_factory.mktemp("exported") / "run", problem().model
    collector = TrajectoryCollector(folder, model, unit="epoch", intervals=[[1, 2, 3, 7]])
    for _ in range(7):
        with torch.no_grad():
            for each in model.parameters():
                each += 0.1 * torch.randn_like(each)
        collector.step(1.0)
        collector.end_epoch()
    along = {"trajectory": "all"}
    landscapes = [
        {"name": "path", "size": [3, 5], **along},
        {"name": "path-of-1", "axes": 1, "size": 4, **along},
        {"name": "cube", "axes": 3, "size": [3, 4, 5], **along},
        {"name": "plane", "size": 3},
    ]
    run(Job(run=str(folder), problem=problem, num_samples=16, landscapes=landscapes, engine="eager"))
    return folder


@pytest.fixture
def place(computed: Path, tmp_path: Path) -> Path:
    return shutil.copytree(computed, tmp_path / "run")


@pytest.mark.long
def test_the_path_is_written_beside_the_surface_and_named(place, tmp_path):
    written = [each.name for each in export_run(str(place), [], ["csv"], tmp_path / "out")]
    assert sorted(written) == sorted(each.name for each in (tmp_path / "out").iterdir())
    with_path = ("path", "path-of-1", "cube")
    assert sorted(written) == sorted(
        [*(f"{name}.csv" for name in (*with_path, "plane")), *(f"{name}+path.csv" for name in with_path)]
    )
    for name in with_path:
        surface = open_run(place)[name]
        with (tmp_path / "out" / f"{name}+path.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert [row["epoch"] for row in rows] == ["1", "2", "3", "7"]
        found = {key: np.array([float(row[key]) for row in rows]) for key in rows[0]}
        np.testing.assert_array_equal(found["projected_loss"], surface.path.projected_loss)
        np.testing.assert_array_equal(found["loss"], surface.path.loss)
        for axis in surface.axes:
            np.testing.assert_array_equal(found[axis.name], surface.path.coordinates[axis.name])


@pytest.mark.long
def test_landscapes_come_in_the_order_of_their_job(place):
    """Those that are added stand where the job lists them, after one of the same place; the unreadable come first."""
    names = ["path", "path-of-1", "cube", "plane"]
    assert list(open_run(place)) == names
    assert [each["name"] for each in run_status(str(place))["landscapes"]] == names
    added = [{"name": "zoom", "size": 3, "range": [-0.1, 0.1]}, {"name": "later", "size": 3}]
    run(Job(run=str(place), problem=problem, num_samples=16, landscapes=added, engine="eager"))
    names = ["path", "zoom", "later", "path-of-1", "cube", "plane"]
    assert list(open_run(place)) == names
    for broken in ("landscapes.zarr/cube/zarr.json", "landscapes.zarr/zarr.json"):
        (place / broken).write_text("")
    assert [each["name"] for each in run_status(str(place))["landscapes"]] == [
        "cube",
        *(each for each in names if each != "cube"),
    ]


@pytest.mark.long
def test_points_of_the_path_are_told_apart(place):
    found = {each["name"]: each for each in run_status(str(place))["landscapes"]}
    assert (found["path"]["points"], found["path"]["path_points"], found["plane"]["path_points"]) == (23, 8, 0)
    text = status_text(run_status(str(place)))
    assert "23/23 points (8 of them on the path, beside the grid)" in text
    assert "9/9 points," in text


def small(folder: Path, seed: int) -> Path:
    landscapes = [{"name": "minimum", "size": 3, "directions": [{"kind": "random", "seed": seed}]}]
    run(Job(run=str(folder), problem=problem, num_samples=16, landscapes=landscapes, engine="eager"))
    return folder


def test_several_runs_are_one_report_that_compares_them(tmp_path, monkeypatch):
    runs = [str(small(tmp_path / name, seed)) for seed, name in enumerate(("first", "second"))]
    monkeypatch.chdir(tmp_path)
    (written,) = export_runs(runs, ["report"], None)
    assert written == Path("comparison-export/report.html")
    page = written.read_text(encoding="utf-8")
    for words in ("Comparison: minimum", "first: minimum", "second: minimum", "<td>0</td><td>1</td>"):
        assert words in page
    with pytest.raises(JobError, match="zmax: must not be given for several runs"):
        next(export_runs(runs, ["report"], None, {"zmax": 2.0}))
    with pytest.raises(NotFoundError, match="does not exist"):
        next(export_runs([*runs, "none"], ["report"], None))


def test_files_of_several_runs_lie_in_one_folder_and_no_name_is_taken_twice(tmp_path, monkeypatch):
    runs = [
        str(small(tmp_path / name, seed)) for seed, name in enumerate(("one/a-b", "two/a-b", "one/a/b", "three/a/b"))
    ]
    monkeypatch.chdir(tmp_path)
    written = [str(path) for path in export_runs([*runs, runs[0]], ["report", "csv", "html"], None, {"log": True})]
    stems = ["one-a-b", "two-a-b", "one-a-b-2", "three-a-b"]
    names = ["report.html", *(f"{stem}+minimum{ending}" for stem in stems for ending in (".csv", "-curve-log.html"))]
    assert written == [f"comparison-export/{name}" for name in names]
    assert len({Path(path).read_bytes() for path in written if path.endswith(".csv")}) == len(runs)


def test_a_run_of_which_nothing_fits_is_told_and_the_others_are_written(tmp_path, capsys):
    first = str(small(tmp_path / "first", 0))
    second = tmp_path / "second"
    run(
        Job(run=str(second), problem=problem, num_samples=16, landscapes=[{"name": "plane", "size": 3}], engine="eager")
    )
    written = list(export_runs([first, str(second)], ["csv", "html"], tmp_path / "out", {"kind": "surface"}))
    assert [path.name for path in written] == ["first+minimum.csv", "second+plane.csv", "second+plane-surface.html"]
    assert "nothing of run first is written as html" in capsys.readouterr().err
    with pytest.raises(JobError, match="minimum"):
        next(export_runs([first], ["html"], tmp_path / "none", {"kind": "surface"}))
    assert not (tmp_path / "none").exists()


def test_no_option_of_figures_is_lost_on_the_page_of_several_runs(monkeypatch):
    given = []
    monkeypatch.setattr("cluster.commands.exporting.runs_or_names", lambda run, more: (list(more), []))
    monkeypatch.setattr("cluster.commands.exporting.export_runs", lambda *asked: given.append(asked[3]) or [])
    export("a", "b", to="report")
    export("a", "b", to="report", kind="surface", observable="accuracy", look=FigureOptions(log=False, levels=5))
    assert given == [{}, {"kind": "surface", "observable": "accuracy", "log": False, "levels": 5}]


def test_a_word_after_the_run_is_a_landscape_of_it_where_there_is_one(tmp_path, monkeypatch):
    first, second = (str(small(tmp_path / name, 0)) for name in ("first", "second"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "minimum").mkdir()
    assert runs_or_names(first, []) == ([], [])
    assert runs_or_names(first, ["minimum"]) == ([], ["minimum"])
    assert runs_or_names(first, ["misspelt"]) == ([], ["misspelt"])
    assert runs_or_names(first, [second]) == ([second], [])
    assert runs_or_names(first, ["none", "minimum"]) == ([], ["none", "minimum"])
    assert runs_or_names(first, ["minimum", second]) == (["minimum", second], [])


def test_several_landscapes_of_one_run_are_written(place, tmp_path):
    def write(names, formats, kind=None):
        out = tmp_path / "out"
        yield from (each.name for each in export_run(str(place), names, formats, out, FigureSpec(kind=kind)))

    assert list(write(["path", "plane"], ["npz"])) == ["path.npz", "plane.npz"]
    with pytest.raises(NotFoundError, match="'plain' is not in run"):
        list(write(["plane", "plain"], ["npz"]))


def test_what_has_other_axes_is_left_out_of_all_and_said(place, tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr("cluster.commands.exporting.write_remark", lambda text, *rest: said.append(text))

    def write(names, formats, kind):
        return [each.name for each in export_run(str(place), names, formats, tmp_path / "out", FigureSpec(kind=kind))]

    assert write([], ["html", "stl"], "surface") == [
        "path-surface.html", "path.stl", "plane-surface.html", "plane.stl",
    ]  # fmt: skip
    assert said == [
        "left out of html: path-of-1 (1 axis), cube (3 axes); the kind 'surface' is for another number of axes",
        "left out of stl: path-of-1 (1 axis), cube (3 axes); stl is for another number of axes",
    ]
    (tmp_path / "out").rename(tmp_path / "before")
    with pytest.raises(JobError, match="kind: 'surface' does not fit 'path-of-1', which has 1 axis"):
        write(["plane", "path-of-1"], ["html"], "surface")
    with pytest.raises(JobError, match="format: stl needs 2 axes, 'cube' has 3; use vtk"):
        write(["plane", "cube"], ["stl"], None)
    with pytest.raises(JobError, match="kind: unknown 'surfaec'; did you mean 'surface'"):
        write([], ["html"], "surfaec")
    assert not (tmp_path / "out").exists(), "all are refused before the first file"


def test_a_disk_that_takes_no_file_is_told_in_one_line_with_a_remedy(tmp_path, capsys, logging_as_it_was):
    def read_only():
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(tmp_path / "export"))

    assert exit_code_of(read_only, debug=False) == 2
    told = "/export' lies on a disk that is mounted read-only; mount it for writing or name another place"
    assert told in capsys.readouterr().err
    assert exit_code_of(lambda: Path("/dev/full").write_text("x"), debug=False) == 1
    assert capsys.readouterr().err == (
        "a file cannot be written: No space left on device; make room or name another place\n"
    )
    assert exit_code_of(lambda: (tmp_path / "none").read_text(), debug=False) == 1
    assert "(--debug shows where)" in capsys.readouterr().err
