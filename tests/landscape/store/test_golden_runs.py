"""Runs of every schema since the first release are read as they were, and gone on with to the same bits."""

from __future__ import annotations

import shutil
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

from landscape import open_run, read_job, run
from landscape.core.errors import JobError

GOLDEN = sorted((Path(__file__).resolve().parent / "golden").glob("schema-*.tar.gz"))
NAMES = {"trajectory": "path", "line": "line", "interrupted": "plane", "whole": "plane"}


@pytest.fixture(scope="module", params=GOLDEN, ids=lambda path: path.name)
def archive(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("golden")
    with tarfile.open(request.param) as opened:
        opened.extractall(folder, filter="data")
    (inner,) = folder.iterdir()
    return inner


@pytest.fixture
def runs(archive, tmp_path, monkeypatch):
    """The golden runs in a folder of this test's own."""
    monkeypatch.delitem(sys.modules, "golden_problem", raising=False)
    return Path(shutil.copytree(archive, tmp_path / "runs"))


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
