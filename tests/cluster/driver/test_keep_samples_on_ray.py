"""Workers keep the losses of single samples as one process does, in tiles that a receipt can carry."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from small_models import Quadratic, chunks_of, make_job, quadratic_samples

import cluster
from landscape import Job, Problem, extend, run
from landscape.compute.planning import plan_job, plan_text
from landscape.store.landscape import LandscapeStore

LANDSCAPE = {"name": "a", "size": [5, 4], "range": [[-1, 1], [-0.5, 1]]}


def problem() -> Problem:
    def observe(model, batch):
        return {"loss": model(batch), "weight": 1.0 + batch[:, 0].abs()}

    return Problem(Quadratic(), quadratic_samples(97), observe)


def job_of(folder: Path, samples: int = 20, **fields: object) -> Job:
    fields = {"batch_size": 8, "tile": [3, 2], "seed": 3, "keep_samples": True, **fields}
    return make_job(folder, problem, [LANDSCAPE], num_samples=samples, engine="eager", **fields)


@pytest.mark.faults
@pytest.mark.long
@pytest.mark.usefixtures("local_ray")
@pytest.mark.parametrize("workers", [1, 2])
def test_workers_give_the_bytes_of_one_process_and_extend_them(tmp_path, workers):
    run(job_of(tmp_path / "once"))
    run(job_of(tmp_path / "more", 53))
    cluster.run(job_of(tmp_path / "run"), workers=workers)
    assert chunks_of(tmp_path / "run") == chunks_of(tmp_path / "once")
    extend(
        tmp_path / "run", "a", num_samples=53, problem=problem,
        compute=lambda job: cluster.run(job, workers=workers),
    )  # fmt: skip
    assert chunks_of(tmp_path / "run") == chunks_of(tmp_path / "more")


def test_the_plan_shows_their_bytes(tmp_path):
    kept, without = plan_job(job_of(tmp_path)), plan_job(job_of(tmp_path, keep_samples=False))
    assert kept["landscapes"][0]["kept_bytes"] == 20 * 20 * 4
    assert kept["bytes"] == without["bytes"] + 20 * 20 * 4
    assert "keeps the loss of every sample: 1.6 kB of these" in plan_text(kept)
    assert "keeps" not in plan_text(without)


def test_tiles_are_no_larger_than_a_worker_hands_over_in_one_piece(tmp_path, monkeypatch):
    monkeypatch.setattr("landscape.compute.plans.TILE_BYTES", 4 * 20 * 3)
    run(job_of(tmp_path, tile=None))
    shape = LandscapeStore.open(str(tmp_path), "a").tile_shape
    assert np.prod(shape) <= 3
