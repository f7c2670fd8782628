"""Workers give a landscape with an accuracy the bits of one process: interrupted, and with one of them killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest
from small_models import make_job, quadratic_samples
from torch import Tensor, nn

import cluster
from cluster.driver.pool import RayWorkerPool
from landscape import Job, Problem, open_run, run
from landscape.core.errors import Interrupted
from landscape.surface.surface import Surface


class Bowl(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        nn.init.eye_(self.layer.weight)


def observe(model: nn.Module, batch: Tensor) -> dict[str, Tensor]:
    moved = model.layer(batch.repeat(1, 4)[:, :4])
    return {"loss": moved.square().mean(1) + moved.sin().mean(1)}


def problem() -> Problem:
    return Problem(Bowl(), quadratic_samples(700), observe)


def job_of(folder: Path) -> Job:
    landscape = {"name": "a", "range": [-1, 1], "accuracy": "1%"}
    job = make_job(folder, problem, [landscape], num_samples=700, batch_size=256, engine="eager")
    job.model_fields_set.discard("num_samples")
    return job


def same(first: Surface, second: Surface) -> bool:
    return all(np.array_equal(first[name], second[name], equal_nan=True) for name in first.observables)


@pytest.mark.faults
@pytest.mark.usefixtures("local_ray")
def test_workers_give_the_bits_of_one_process_through_an_interruption_and_a_kill(tmp_path, monkeypatch) -> None:
    alone = run(job_of(tmp_path / "once"), progress=False)["a"]
    assert alone.record.accuracy.rounds > 2
    done: list[int] = []
    with pytest.raises(Interrupted):
        cluster.run(job_of(tmp_path / "run"), 2, observer=lambda told: done.append(1), stop=lambda: len(done) > 8)
    killed: list[int] = []
    ready = RayWorkerPool.note_start

    def start(pool, name, receipt):
        handle = ready(pool, name, receipt)
        if not killed:
            killed.append(handle.pid)
        return handle

    monkeypatch.setattr(RayWorkerPool, "note_start", start)
    after: list[int] = []

    def kill(told) -> None:
        after.append(1)
        if len(after) == 12 and killed:
            os.kill(killed[0], signal.SIGKILL)

    again = cluster.run(job_of(tmp_path / "run"), workers=2, observer=kill)["a"]
    assert same(again, alone)
    assert same(open_run(tmp_path / "run")["a"], alone)
    assert again.record.accuracy.evaluations == alone.record.accuracy.evaluations
