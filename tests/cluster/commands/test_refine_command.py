"""`landscape refine` as a user gives it: its plan, its result on stdout, its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from landscape import open_run, run
from landscape.compute.planning import plan_job, plan_text
from landscape.job.reading import read_job


@pytest.fixture
def place(write_job) -> Path:
    return Path(run(read_job(write_job(num_samples=12, batch_size=4))).path)


def test_the_plan_is_shown_and_then_carried_out(place, call):
    code, out, _ = call("refine", place, "plane", "--plan")
    assert code == 0
    assert "level 1: 158 points of 17 x 13, about" in out
    assert " s in this process: Ray, of " in out.splitlines()[-1]
    assert not open_run(place)["plane"].levels
    code, out, _ = call("refine", place, "plane", "--serial", "--json")
    assert code == 0
    [status] = json.loads(out)["landscapes"]
    assert (status["state"], status["points"], status["levels"]) == (
        "complete", 63 + 158, [{"level": 1, "points": 158, "missing": 0, "failed": 0}],
    )  # fmt: skip
    assert "plane  complete     221/221 points (refined: 158 at level 1)" in call("status", place)[1]
    assert "plane: sound, " in call("validate", place)[1]
    chunk = place / "landscapes.zarr" / "plane" / "levels" / "1" / "loss" / "c" / "0" / "0"
    chunk.write_bytes(chunk.read_bytes()[:-1])
    code, out, _ = call("validate", place)
    assert code == 1
    assert "levels/1/loss chunk 0/0" in out
    assert call("refine", place, "plane", "--serial")[0] == 0
    code, out, said = call("refine", place, "plane", "--serial")
    done = "landscape 'plane' is finer by 2 everywhere already: nothing is left to do; for more, give factor 4\n"
    assert (code, said) == (0, done)
    assert "plane  complete" in out
    assert call("refine", place, "plane", "--plan")[:2] == (
        0,
        "plane is as fine as that already: nothing is left to do\n",
    )
    assert json.loads(call("refine", place, "plane", "--plan", "--json")[1])["levels"] == []
    assert np.isfinite(open_run(place)["plane"].merged().loss).all()
    assert call("rm", place, "plane", "--yes")[0] == 0
    assert not (place / "landscapes.zarr" / "plane").exists()


def test_the_plan_of_a_job_says_how_many_points_a_refinement_may_add(write_job):
    spec = {"name": "plane", "size": 9, "range": [-1, 1]}
    bounded = write_job(landscapes=[{**spec, "refine": {"points": 500}}])
    assert "refined where its values ask for it, to 500 points in all at most" in plan_text(plan_job(read_job(bounded)))
    free = plan_job(read_job(write_job(landscapes=[{**spec, "refine": {}}])))
    assert free["landscapes"][0]["refined_points"] == 129**2
    assert "refined" not in plan_text(plan_job(read_job(write_job(landscapes=[spec]))))
