"""`landscape inspect` as a user gives it: its text, its JSON, its exit codes."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from small_models import make_job, quadratic_problem

from cluster.runtime.status import run_status, status_text
from landscape import open_run, run
from landscape.core.errors import BAD_USAGE, DONE, NOT_FOUND
from landscape.job.reading import read_job
from landscape.model.layer_rules import RULES


@pytest.fixture
def call(call):
    """Give the command, as `call` gives any."""
    return partial(call, "inspect")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A run of a plane of nine points."""
    job = make_job(tmp_path_factory.mktemp("tiny"), quadratic_problem, [{"name": "plane", "size": 3}])
    return run(job).path


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


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["plane", "--at", "0.3"], BAD_USAGE, "at: must have a number for each of the axes alpha, beta, not 1"),
        (["plane", "--at=0.3,nan"], BAD_USAGE, "at: must be finite numbers, not [0.3, nan]"),
        (["plane", "--at=0.3;1"], BAD_USAGE, "at: must be a number for each axis, such as --at=0.3,-0.7, not '0.3;1'"),
        (["plane", "--rules", "relu_zero"], BAD_USAGE, "rules: unknown rule 'relu_zero'; did you mean 'relu_zeros'?"),
        (
            ["plane", "--rules", "relu_zeros=much"],
            BAD_USAGE,
            "rules.relu_zeros: must be a finite number of at least 0, not 'much'",
        ),
        (["plan"], NOT_FOUND, "landscape 'plan' is not in run"),
    ],
)
def test_what_is_wrong_is_told_in_a_line(tiny, call, words, code, message):
    given, out, err = call(tiny, *words)
    assert (given, out) == (code, "")
    assert message in err
    assert err.count("\n") == 1
