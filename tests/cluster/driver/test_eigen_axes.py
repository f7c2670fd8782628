"""Eigenvectors and convexity maps of workers: the bytes of this process's, whatever happens to workers and driver."""

from __future__ import annotations

from pathlib import Path

import pytest

import cluster
import landscape
from landscape.core.errors import Interrupted
from landscape.job.job import Job

pytestmark = pytest.mark.usefixtures("local_ray")

PROBLEM = """
import os, signal, sys
from pathlib import Path

import torch
from torch import nn

from landscape import Problem

HERE, calls = Path(__file__).parent, []


def observe(model, batch):
    calls.append(1)
    if len(calls) > 40 and sys.argv[0].endswith("default_worker.py"):
        try:
            os.rename(HERE / "kill", HERE / "killed")
            os.kill(os.getpid(), signal.SIGKILL)
        except FileNotFoundError:
            pass
    x, y = batch
    return {"loss": nn.functional.cross_entropy(model(x), y, reduction="none")}


def problem():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    return Problem(model, (torch.randn(20, 4), torch.randint(0, 3, (20,))), observe)
"""


def arrays_of(run: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(run)): path.read_bytes()
        for path in run.rglob("*")
        if path.is_file() and "/c/" in str(path.relative_to(run))
    }


@pytest.mark.faults  # what workers answer is tested in test_work_items
def test_workers_lost_and_a_driver_interrupted_leave_no_trace_in_the_bytes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_problem.py").write_text(PROBLEM)
    directions = [{"kind": "eigen", "rank": 1}, {"kind": "eigen", "rank": -1}]

    def job(name: str) -> Job:
        plane = {"name": "plane", "directions": directions, "size": 3}
        convexity = {"name": "map", "convexity": {"steps": 3}, "layers": True, "size": 3}
        fields = {
            "num_samples": 20,
            "batch_size": 3,
            "engine": "eager",
            "tile": 3,
            "landscapes": [plane, convexity],
            "device": "cpu",
        }
        return Job(run=str(tmp_path / name), problem="my_problem:problem", **fields)

    landscape.run(job("here"))
    kept = tmp_path / "workers" / "curvature"
    with pytest.raises(Interrupted, match="each step towards its eigenvectors is kept: the same command goes on"):
        landscape.run(job("workers"), stop=lambda: len(list(kept.rglob("step-*"))) >= 3)
    assert len(list(kept.rglob("step-*"))) == 3
    (tmp_path / "kill").touch()
    cluster.run(job("workers"), workers=2)
    assert (tmp_path / "killed").exists()
    assert not kept.exists()
    assert arrays_of(tmp_path / "workers") == arrays_of(tmp_path / "here")
