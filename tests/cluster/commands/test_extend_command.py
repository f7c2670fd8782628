"""`landscape extend` as a user gives it: its plan, its result on stdout, its exit codes."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path

import pytest

from landscape import open_run, run
from landscape.compute.planning import plan_job
from landscape.core.lock import measuring_lock
from landscape.job.reading import read_job


@pytest.fixture
def place(write_job) -> Path:
    return Path(run(read_job(write_job(num_samples=12, batch_size=4))).path)


@pytest.fixture
def call(call):
    """Give the command, as `call` gives any."""
    return partial(call, "extend")


def test_the_plan_is_shown_and_then_carried_out(place, call):
    code, out, _ = call(place, "plane", "--samples", 24, "--plan")
    assert code == 0
    assert "extends plane: 63 points are evaluated, on 12 samples each: 50 % of what all of it costs at once" in out
    assert open_run(place)["plane"].record.num_samples == 12
    code, out, _ = call(place, "plane", "--samples", 24, "--serial", "--json")
    assert code == 0
    assert [(each["name"], each["state"]) for each in json.loads(out)["landscapes"]] == [("plane", "complete")]
    assert open_run(place)["plane"].record.num_samples == 24
    code, out, _ = call(place, "plane", "--range", "-1.25,1,0,3", "--serial")
    assert code == 0
    assert "plane  complete     70/70 points" in out


def test_the_same_command_again_has_nothing_to_do(place, call):
    words = (place, "plane", "--samples", 24, "--serial")
    assert call(*words)[0] == 0
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    code, out, said = call(*words)
    assert (code, said) == (0, "plane has all of this already: nothing is left to do\n")
    assert "plane  complete" in out
    code, out, _ = call(place, "plane", "--samples", 24, "--plan", "--json")
    assert (code, json.loads(out)["steps"]) == (0, [])
    assert call(place, "plane", "--samples", 24, "--plan")[1].endswith("nothing is left to do\n")
    assert {path: path.read_bytes() for path in place.rglob("*") if path.is_file()} == before


def test_the_job_from_before_is_planned_with_what_its_run_has(place, call, write_job):
    job = read_job(write_job(num_samples=12, batch_size=4))
    assert call(place, "plane", "--samples", 24, "--serial")[0] == 0
    planned = plan_job(job)
    assert (planned["num_samples"], planned["landscapes"][0]["missing_points"]) == (24, 0)


def test_a_measurement_that_goes_on_is_told(place, call):
    with measuring_lock(str(place)):
        code, _, said = call(place, "plane", "--samples", 24, "--serial")
    assert code == 0
    assert f"is being measured by process {os.getpid()} on" in said
    assert "measures of more samples replace these" in said
