"""Runs that earlier versions made are read to the same bits, and gone on with to the same bits."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest

from landscape import open_run, read_job, run
from landscape.core.errors import JobError

HERE = Path(__file__).resolve().parent
NAMES = {
    "random": "minimum", "spelled": "minimum", "trajectory": "path", "line": "line",
    "interrupted": "plane", "whole": "plane",
}  # fmt: skip
OLD = sorted(HERE.glob("runs-*.tar.gz"))


@pytest.fixture(scope="module", params=OLD, ids=lambda path: path.name)
def archive(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("old")
    with tarfile.open(request.param) as opened:
        opened.extractall(folder, filter="data")
    (found,) = folder.iterdir()
    return found


@pytest.fixture
def runs(archive, tmp_path, monkeypatch):
    """The kept runs in a folder of this test's own."""
    monkeypatch.delitem(__import__("sys").modules, "legacy_problem", raising=False)
    return Path(shutil.copytree(archive, tmp_path / "runs"))


def files_of(folder: Path) -> dict[str, bytes]:
    """Every chunk of a run by its path."""
    chunks = (each for each in folder.rglob("c/**/*") if each.is_file())
    return {str(each.relative_to(folder)): each.read_bytes() for each in chunks}


@pytest.mark.parametrize("name", NAMES)
def test_a_run_of_an_earlier_version_reads_as_it_was(runs, name):
    surface = open_run(runs / name)[NAMES[name]]
    assert surface.loss.shape == surface.status.shape
    there = surface.status == 1
    assert np.isfinite(surface.loss[there]).all()
    assert there.all() or name == "interrupted"
    if name == "random":
        assert surface.loss.shape == (40, 40)
        assert surface.axes[0].attributes["ignore"] == ["bias", "norm"]
    if name == "spelled":
        assert surface.axes[0].attributes["ignore"] == []
    if name == "trajectory":
        assert surface.path is not None
        assert np.isfinite(surface.path.loss).all()
        (path,) = surface.paths  # of the run itself, which no legend needs to name
        assert (path.label, path.runs, path.step.tolist()) == ("", (), surface.path.step.tolist())
        assert not (runs / name / "landscapes.zarr" / NAMES[name] / "path_run").exists()


@pytest.mark.parametrize("name", [name for name in NAMES if name != "interrupted"])
def test_a_finished_run_of_an_earlier_version_is_left_as_it_is(runs, name):
    before = files_of(runs / name)
    run(read_job(runs / f"{name}.yaml"))
    after = files_of(runs / name)
    assert {key: after[key] for key in before} == before


def test_an_interrupted_run_of_an_earlier_version_goes_on_to_the_same_bits(runs):
    """On another kind of processor, whose bits differ, it is refused by name and left as it is."""
    before = files_of(runs / "interrupted")
    if not go_on(runs / "interrupted.yaml"):
        assert files_of(runs / "interrupted") == before
        return
    found, whole = open_run(runs / "interrupted")["plane"], open_run(runs / "whole")["plane"]
    for name in whole.observables:
        np.testing.assert_allclose(found[name], whole[name], rtol=1e-5)
    after = files_of(runs / "interrupted")
    for key, data in before.items():
        if "/status/" not in key:
            assert after[key] == data
    assert (found.status == whole.status).all()


@pytest.mark.parametrize(("name", "size", "ignored"), [("random", 40, ["bias", "norm"]), ("spelled", 7, [])])
def test_a_run_whose_job_leaves_fields_out_goes_on_under_the_defaults_of_its_version(runs, name, size, ignored):
    """The size of `random` and what the directions of `spelled` ignore have other defaults since."""
    before = files_of(runs / name)
    gone = next(key for key in sorted(before) if "/status/" in key)
    (runs / name / gone).unlink()
    if go_on(runs / f"{name}.yaml"):
        after = files_of(runs / name)
        assert after == before
    surface = open_run(runs / name)["minimum"]
    assert surface.loss.shape == (size, size)
    assert all(axis.attributes["ignore"] == ignored for axis in surface.axes)


def test_fitted_coordinates_of_an_earlier_version_are_mended_as_they_were(runs):
    """They did not go through zero, as those that are fitted since do."""
    before = files_of(runs / "trajectory")
    gone = next(key for key in before if "/path/beta/c/" in f"/{key}")
    (runs / "trajectory" / gone).unlink()
    if go_on(runs / "trajectory.yaml"):
        assert files_of(runs / "trajectory") == before
        assert 0.0 not in open_run(runs / "trajectory")["path"].axes[1].coordinates


def test_a_field_that_the_job_states_is_compared_as_it_stands(runs):
    text = (runs / "spelled.yaml").read_text()
    stated = text.replace("seed: 1\n", "seed: 1\n    ignore: [bias, norm]\n")
    assert stated != text
    (runs / "spelled.yaml").write_text(stated)
    with pytest.raises(JobError, match=r"directions .*axis 1"):
        run(read_job(runs / "spelled.yaml"))


def test_a_landscape_of_an_earlier_version_and_those_beside_it_keep_no_losses_of_samples(runs):
    before = files_of(runs / "line")
    job = read_job(runs / "line.yaml").replace(keep_samples=True)
    with pytest.raises(JobError, match=r"keep_samples: landscape 'line' .* as an earlier version began it"):
        run(job)
    beside = job.landscapes[0].model_dump(exclude_unset=True) | {"name": "beside"}
    with pytest.raises(JobError, match="keep_samples: an earlier version began a landscape of this job"):
        run(job.replace(landscapes=(beside, job.landscapes[0])))
    assert files_of(runs / "line") == before


def go_on(job: Path) -> bool:
    """Whether this machine's bits are those of the one that made the runs; refused with that reason where not."""
    try:
        run(read_job(job))
    except JobError as refused:
        if "processor" not in str(refused):
            raise
        return False
    return True
