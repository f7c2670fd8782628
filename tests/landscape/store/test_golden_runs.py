"""Runs of every schema since the first release are read as they were, and gone on with to the same bits."""

from __future__ import annotations

import json
import shutil
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from golden_values import digests

from landscape import open_run, read_job, run
from landscape.analysis.inspection import inspect
from landscape.core.errors import JobError
from landscape.views import figure
from landscape.views.report import write_report

HERE = Path(__file__).resolve().parent / "golden"
GOLDEN = sorted(HERE.glob("*.tar.gz"))
RELEASED = [file for file in GOLDEN if file.name.startswith("release-")]  # with more kinds of runs, and values.json
NAMES = {"trajectory": "path", "line": "line", "interrupted": "plane", "whole": "plane"}
MORE = ("refined", "quantised", "imported")


def unpacked(archive: Path, folder: Path, monkeypatch) -> Path:
    """The golden runs of an archive in a folder of a test's own."""
    monkeypatch.delitem(sys.modules, "golden_problem", raising=False)
    with tarfile.open(archive) as opened:
        opened.extractall(folder, filter="data")
    (inner,) = folder.iterdir()
    return inner.rename(folder / "runs")


@pytest.fixture(params=GOLDEN, ids=lambda path: path.name)
def runs(request, tmp_path, monkeypatch):
    return unpacked(request.param, tmp_path / "golden", monkeypatch)


@pytest.fixture(params=RELEASED, ids=lambda path: path.name)
def released(request, tmp_path, monkeypatch):
    return unpacked(request.param, tmp_path / "golden", monkeypatch)


def chunks_of(folder: Path) -> dict[str, bytes]:
    """Every chunk of a run by its path."""
    chunks = (each for each in folder.rglob("c/**/*") if each.is_file())
    return {str(each.relative_to(folder)): each.read_bytes() for each in chunks}


def goes_on(job: Path) -> bool:
    """Whether this machine's bits are those of the one that made the runs; refused with that reason where not."""
    try:
        run(read_job(job))
    except JobError as refused:
        if "processor" not in str(refused):
            raise
        return False
    return True


@pytest.mark.parametrize("name", NAMES)
def test_a_golden_run_reads_as_it_was_and_its_end_is_left_alone(runs, name):
    surface, before = open_run(runs / name)[NAMES[name]], chunks_of(runs / name)
    there = surface.status == 1
    assert there.all() == (name != "interrupted")
    assert np.isfinite(surface.loss[there]).all()
    assert np.isfinite(surface.rise_stderr[there]).all()
    if name == "trajectory":
        assert np.isfinite(surface.path.loss).all()
        assert surface.path.step.tolist() == [0, 1, 2, 3, 4]
    if name == "line":
        np.testing.assert_allclose(surface.loss_samples[:].mean(-1), surface.loss, rtol=1e-6)
    if name != "interrupted":
        run(read_job(runs / f"{name}.yaml"))
        assert chunks_of(runs / name) == before


def test_an_interrupted_golden_run_goes_on_to_the_same_bits(runs):
    """On another kind of processor, whose bits differ, it is refused by name and left as it is."""
    before = chunks_of(runs / "interrupted")
    if not goes_on(runs / "interrupted.yaml"):
        assert chunks_of(runs / "interrupted") == before
        return
    found, whole = open_run(runs / "interrupted")["plane"], open_run(runs / "whole")["plane"]
    assert all(found[name].tobytes() == whole[name].tobytes() for name in whole.observables)
    assert (found.status == whole.status).all()


def test_damaged_coordinates_of_a_golden_run_are_mended_as_they_were(runs):
    before = chunks_of(runs / "trajectory")
    lost = next(key for key in before if "/path/beta/c/" in f"/{key}")
    (runs / "trajectory" / lost).unlink()
    if goes_on(runs / "trajectory.yaml"):
        assert chunks_of(runs / "trajectory") == before


# ----------------------------------------------------------------------------------------------------
# What releases wrote.


def test_every_value_of_a_release_is_read_to_the_same_bits(released):
    expected = json.loads((released / "values.json").read_text())
    assert set(expected) == {*NAMES, *MORE}
    for name, values in expected.items():
        assert digests(released / name) == values
    line = open_run(released / "line")
    (measured,) = line.measures["origins"].values()
    assert measured["rows"]["loss"]["value"] == line["line"].loss[line["line"].alpha == 0.0]


@pytest.mark.parametrize("name", [*NAMES, *MORE])
def test_every_landscape_of_a_release_is_drawn(released, name):
    opened = open_run(released / name)
    for surface in opened.values():
        drawn = figure(surface).to_dict()
        assert drawn["data"]
        if name == "trajectory":
            assert any(trace.get("name") == "trajectory" for trace in drawn["data"])
    assert all(name in write_report(opened, released / "report.html").read_text() for name in opened)


@pytest.mark.parametrize("name", ["trajectory", "line", "whole", "refined", "quantised"])
def test_a_whole_job_of_a_release_computes_nothing(released, name):
    before = chunks_of(released / name)
    asked = []
    run(read_job(released / f"{name}.yaml"), stop=lambda: bool(asked.append("between points")))
    assert chunks_of(released / name) == before
    assert asked == []


def test_a_packed_run_of_a_release_opens_and_its_points_have_the_bits_of_the_grid(released):
    expected = json.loads((released / "values.json").read_text())
    assert digests(released / "line.landscape") == expected["line"]
    shutil.rmtree(released / "line")
    (released / "golden_problem.py").unlink()
    surface = open_run(released / "line.landscape")["line"]
    found = inspect(released / "line.landscape", "line", at=[surface.alpha[3]])
    # Another kind of processor rounds differently.
    assert found.loss == pytest.approx(surface.loss[3], rel=1e-6)


def test_a_packed_job_of_a_release_computes_the_values_of_its_source(released):
    computed = run(read_job(released / "whole.landscape", run=str(released / "anew")))["plane"]
    np.testing.assert_allclose(computed.loss, open_run(released / "whole")["plane"].loss, rtol=1e-6)
