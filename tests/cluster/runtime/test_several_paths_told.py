"""What commands say of a landscape that draws the paths of several runs, and what of it is sent to a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_models import make_job, quadratic_problem, wandering, write_trajectory

from cluster.runtime.status import run_status, status_text, validate_run
from cluster.submit.options import refuse_files_left_behind
from landscape import Job, JobError, run
from landscape.compute.planning import plan_job, plan_text

PATHS = ["sgd", {"run": "thor", "label": "THOR"}]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    model = quadratic_problem().model
    write_trajectory(tmp_path / "sgd", wandering(model, 4, seed=1))
    write_trajectory(tmp_path / "thor", wandering(model, 3, seed=2), "step")
    spec = {"name": "both", "paths": PATHS, "size": [4, 3]}
    return make_job(tmp_path / "run", quadratic_problem, [spec], num_samples=23).in_folder(tmp_path)


def test_plan_status_and_validation_know_the_paths(job: Job):
    plan = plan_job(job)
    assert plan["landscapes"][0]["paths"] == ["sgd (epochs 1-4)", "THOR (steps 1-3)"]
    assert "  paths: sgd (epochs 1-4), THOR (steps 1-3)" in plan_text(plan).splitlines()
    run(job)
    status = run_status(job.run_path)
    assert status["landscapes"][0]["paths"] == ["sgd", "THOR"]
    assert "26/26 points (14 of them on the paths of sgd, THOR, beside the grid)" in status_text(status)
    assert validate_run(job.run_path)["landscapes"][0]["damaged"] == []
    chunk = Path(job.run_path) / "landscapes.zarr/both/path_run/c/0"
    chunk.write_bytes(chunk.read_bytes()[:-1])
    assert validate_run(job.run_path)["landscapes"][0]["damaged"] == ["path_run: does not read"]


def test_runs_by_relative_names_are_not_sent(job: Job, tmp_path: Path):
    with pytest.raises(JobError, match="run 'sgd' is not sent with the job; name it by an absolute path"):
        refuse_files_left_behind(job)
    end = {"name": "end", "origin": "thor@last", "size": 3}
    with pytest.raises(JobError, match="run 'thor' is not sent"):
        refuse_files_left_behind(job.replace(landscapes=[end]).in_folder(tmp_path))
    seen = {"name": "both", "paths": [f"{tmp_path}/sgd", "s3://bucket/thor"]}
    refuse_files_left_behind(job.replace(landscapes=[seen]).in_folder(tmp_path))
