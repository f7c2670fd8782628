"""`landscape inspect` as a user gives it: its text, its JSON, its exit codes."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from cluster.runtime.status import run_status, status_text
from landscape import open_run, run
from landscape.core.errors import DONE
from landscape.job.reading import read_job
from landscape.model.layer_rules import RULES


@pytest.fixture
def call(call):
    """Give the command, as `call` gives any."""
    return partial(call, "inspect")


def test_a_point_is_told_in_text_and_json_and_nothing_is_written(write_job, call):
    place = Path(run(read_job(write_job())).path)
    before = sorted(place.rglob("*"))
    code, out, _ = call(place, "plane", "--at=-0.5,1", "--serial")
    assert code == DONE
    assert out.startswith("plane at alpha -0.5, beta 1\n")
    code, out, _ = call(place, "plane", "--at=-0.5,1", "--gradients", "--rules", "weights,tensor_overflow=0", "--json")
    data, surface = json.loads(out), open_run(place)["plane"]
    assert code == DONE
    assert data["loss"] == surface.loss[2, 2]
    assert data["at"] == {"alpha": -0.5, "beta": 1.0}
    assert set(data["thresholds"]) == {
        "weight_overflow", "weight_all_zero", "weight_too_large", "weight_too_small", "tensor_overflow",
    }  # fmt: skip
    assert [each["name"] for each in data["gradients"]] == ["x", "y"]
    code, out, _ = call(place, "plane", "--at=-0.5,1", "--json")  # a point has no step, and no gradients unless asked
    assert code == DONE
    assert {RULES[name].target for name in json.loads(out)["thresholds"]} == {"weights", "outputs"}
    assert sorted(place.rglob("*")) == before
    status = run_status(str(place))
    assert "inspect" not in status_text(status)
    status["landscapes"][0]["not_finite"] = 3
    assert status_text(status).endswith(f"why not finite: landscape inspect {place} plane")
