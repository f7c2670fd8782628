"""The callback runs in the job file's folder, wherever the command is given: here and on workers."""

from __future__ import annotations

import os
import sys
import textwrap
from pathlib import Path

import pytest
import torch

import cluster
import landscape
from landscape.bench.measure import bench
from landscape.bench.options import options_for
from landscape.compute.planning import plan_job
from landscape.job.reading import read_job
from landscape.problem.user_code import in_folder
from landscape.store.results import open_run
from landscape.surface.surface import OK

# Each part reads a file by a path relative to the job file; `helper` is found relative to the shell.
PROBLEM = """
import os
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import Dataset

import helper
from landscape import Problem

SCALE = float(Path("scale.txt").read_text())


class Rows(Dataset):
    def __len__(self):
        return len(torch.load("data.pt"))

    def __getitem__(self, index):
        return torch.load("data.pt")[index]


def observe(model, batch):
    import late
    return {"loss": model(batch).flatten() ** 2 * float(Path("scale.txt").read_text()) * SCALE}


def problem():
    model = nn.Linear(2, 1)
    model.load_state_dict(torch.load("model.pt"))
    return Problem(model, Rows(), observe)
"""


@pytest.fixture
def job(tmp_path, monkeypatch) -> Path:
    """A job in a folder of its own, the shell in another one."""
    folder, shell = tmp_path / "job", tmp_path / "shell"
    folder.mkdir()
    shell.mkdir()
    (folder / "folder_problem.py").write_text(textwrap.dedent(PROBLEM))
    (folder / "scale.txt").write_text("2")
    torch.save(torch.arange(8.0).reshape(4, 2), folder / "data.pt")
    torch.save(torch.nn.Linear(2, 1).state_dict(), folder / "model.pt")
    (folder / "job.yaml").write_text(
        "{run: here, problem: 'folder_problem:problem', num_samples: 4, engine: eager, tile: 2, "
        "landscapes: [{name: plane, size: 3}]}"
    )
    (shell / "helper.py").write_text("")
    (shell / "late.py").write_text("")
    monkeypatch.chdir(shell)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    yield Path("../job/job.yaml")
    for name in ("helper", "late", "folder_problem"):
        sys.modules.pop(name, None)


def test_import_callback_data_and_observe_run_in_the_jobs_folder(job, tmp_path):
    shell, path = Path.cwd(), list(sys.path)
    seen = []
    plan_job(read_job(job))
    assert not (tmp_path / "job" / "here").exists()
    landscape.run(read_job(job, run="mine"), observer=lambda progress: seen.append(Path.cwd()))
    assert (open_run(tmp_path / "shell" / "mine")["plane"].status == OK).all()
    assert set(seen) == {shell} == {Path.cwd()}
    assert sys.path == [str(read_job(job).folder), *path]


@pytest.mark.faults
def test_a_bench_runs_there_too(job):
    options = options_for(("float32",), ("eager",), quick=True)
    (measured,) = bench(read_job(job), options)["precisions"]
    assert not any("failed" in each for each in measured["engines"])


def test_workers_have_the_jobs_folder_too(job, tmp_path, local_ray):
    expected = landscape.run(read_job(job, run="mine"))["plane"]
    found = cluster.run(read_job(job), workers=1)["plane"]
    assert (tmp_path / "job" / "here" / "landscapes.zarr").is_dir()
    assert found.loss.tobytes() == expected.loss.tobytes()


def test_a_callback_that_changes_the_folder_itself_keeps_it(job, tmp_path):
    """As it did when it ran in the shell's: its data and observe are read from there."""
    data = tmp_path / "job" / "elsewhere"
    data.mkdir()
    for name in ("data.pt", "scale.txt"):
        (tmp_path / "job" / name).rename(data / name)
    module = tmp_path / "job" / "folder_problem.py"
    module.write_text(
        module.read_text().replace("SCALE = ", "os.chdir('elsewhere')\nSCALE = ").replace("model.pt", "../model.pt")
    )
    assert (landscape.run(read_job(job))["plane"].status == OK).all()
    assert Path.cwd() == tmp_path / "shell"


@pytest.mark.long
def test_the_working_directory_comes_back_whatever_happens(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir()
    with pytest.raises(ValueError, match="no"), in_folder(tmp_path / "a"):
        raise ValueError("no")
    assert Path.cwd() == tmp_path
    with in_folder(tmp_path / "absent"):
        assert Path.cwd() == tmp_path
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with in_folder(tmp_path / "a"):
        assert os.listdir() == []
