"""`landscape extend` as a user gives it: its plan, its result on stdout, its exit codes."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from landscape import open_run, run
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


REFUSED = [
    (["plane"], 2, "extend: needs at least one of samples, observable and range"),
    (["plane", "--samples", "1.5"], 2, "must be a whole number"),
    (["plane", "--samples", "0"], 2, "samples: must be a whole number from 1 on, not 0"),
    (["plane", "--samples", "5"], 2, "samples: must be more than the 12 of landscape 'plane', not 5"),
    (["plane", "--samples", "99999", "--serial"], 2, "samples: must be at most the "),
    (["plane", "--observable", "los", "--plan"], 2, "observable: observe returns no los, only loss"),
    (["plane", "--range=-1.1,1,0,3", "--plan"], 2, "range: must be wider than"),
    (["plane", "--range", "-2"], 2, "range: must be LOW,HIGH or LOW,HIGH per axis, such as --range=-2,2, not '-2'"),
    (["plane", "--range", "2,-2"], 2, "range: must be LOW,HIGH or LOW,HIGH per axis"),
    (["plane", "--samples", "24", "--serial", "--workers", "2"], 2, "serial: runs in this process alone"),
    (["b", "--samples", "24"], 3, "landscape 'b' is not in run"),
]


def test_what_cannot_be_done_is_told_in_two_lines_and_changes_nothing(place, call):
    for words, code, told in REFUSED:
        found, out, said = call(place, *words)
        assert (found, out) == (code, ""), words
        assert told in said
        assert "num_samples:" not in said
        assert said.count("\n") <= 2
    assert list(open_run(place)) == ["plane"]
    assert open_run(place)["plane"].record.num_samples == 12
