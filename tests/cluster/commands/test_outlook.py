"""What `plan` says of the engine: kept since when, to be searched for how long, or why neither."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import cluster
from landscape import Job, Problem, run
from landscape.compute.planning import RAY_SECONDS, plan_job, plan_text
from landscape.evaluation.tuning.choices import KeptChoices, Limits
from landscape.store.landscape import LandscapeStore

LONG = 3000  # points along an axis: the job takes far more than a search is worth


def problem():
    torch.manual_seed(0)
    return Problem.supervised(torch.nn.Linear(90, 7), (torch.randn(4000, 90), torch.randint(0, 7, (4000,))))


def job_of(tmp_path, size, **fields):
    landscapes = [{"name": "plane", "size": size}]
    return Job(run=str(tmp_path / "run"), problem=problem, num_samples=4000, landscapes=landscapes, **fields)


@pytest.mark.long
def test_a_plan_says_what_becomes_of_the_engine(tmp_path, monkeypatch):
    monkeypatch.setenv("LANDSCAPE_CACHE", str(tmp_path / "cache"))
    short, long = plan_job(job_of(tmp_path, 3)), plan_job(job_of(tmp_path, LONG))
    by_rule = "engine: eager+superposed, batches of 2048 (by rule, as the job is too short to search)"
    assert by_rule in plan_text(short)
    assert (short["here"], short["start_seconds"]) == (True, 0.0)
    assert " in this process: Ray, of " in plan_text(short)
    assert (long["here"], long["start_seconds"]) == (False, RAY_SECONDS)
    assert ", and about 8 s until Ray has started them\n" in plan_text(long)
    asked = plan_job(job_of(tmp_path, 3), workers=2)
    assert asked["start_seconds"] == RAY_SECONDS
    assert " with --serial\n" in plan_text(asked)
    assert long["engine"]["engine"] is None
    assert f"engine: to be searched: up to {long['engine']['search_seconds']:g} s" in plan_text(long)
    assert not (tmp_path / "cache").exists()  # a plan writes nothing

    # A small job that is given the time of a long one leaves a choice; here as if nothing had been left untried.
    found = run(job_of(tmp_path, 3), limits=Limits(share=1e6, longest=2.0, shortest=0.5))["plane"]
    record = found.attributes["provenance"]["engine"]
    (file,) = (tmp_path / "cache" / "engines").glob("*.json")
    kept = KeptChoices(file.parent)
    (choice,) = kept.read(file.stem).choices.values()
    kept.write(file.stem, 1.0, 2.0, replace(choice, complete=True), dropped=choice)
    said = plan_job(job_of(tmp_path / "elsewhere", LONG))["engine"]
    assert (said["engine"], said["batch_size"]) == (record["engine"], record["batch_size"])
    assert said["why"] == f"kept choice of {choice.since[:10]}"
    for job in (job_of(tmp_path / "short", 3), job_of(tmp_path / "elsewhere", LONG)):
        said = plan_job(job)["engine"]
        assert (said["engine"], said["batch_size"]) == (record["engine"], record["batch_size"])

    (planned,) = plan_job(job_of(tmp_path / "tiles", 40))["landscapes"]  # those of the kept choice, at its cost
    run(job_of(tmp_path / "tiles", 40))
    assert planned["tile_shape"] == list(LandscapeStore.open(str(tmp_path / "tiles" / "run"), "plane").tile_shape)


@pytest.mark.long
def test_an_engine_that_is_named_or_recorded_is_no_choice(tmp_path):
    named = job_of(tmp_path, 3, engine="vmap:2", batch_size=100)
    assert "engine: vmap:2, batches of 100 (the job's)" in plan_text(plan_job(named))
    run(named)
    assert "engine: vmap:2, batches of 100 (as recorded)" in plan_text(plan_job(job_of(tmp_path, 3)))
    other = plan_job(Job(**{**dict(job_of(tmp_path / "b", 3)), "engine": str(tmp_path / "run")}))
    assert other["engine"] == {
        "engine": "vmap:2", "batch_size": 100, "why": "as recorded", "search_seconds": 0.0
    }  # fmt: skip


def test_a_plan_counts_the_tiles_that_the_run_makes(tmp_path):
    def small():
        return Problem.supervised(torch.nn.Linear(2, 2), (torch.ones(8, 2), torch.zeros(8).long()))

    landscapes = [{"name": "plane", "size": 5}]  # so few that no time of a point decides
    job = Job(run=str(tmp_path / "run"), problem=small, num_samples=8, engine="eager", landscapes=landscapes)
    (planned,) = plan_job(job)["landscapes"]
    cluster.run(job)
    store = LandscapeStore.open(str(tmp_path / "run"), "plane")
    assert (planned["tile_shape"], planned["tiles"]) == (list(store.tile_shape), store.tile_count)
    assert plan_job(job)["landscapes"][0]["tiles"] == store.tile_count
