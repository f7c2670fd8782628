"""Words that commands on a finished landscape refuse: one line that names them, its exit code, and nothing changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from landscape import Job, run
from landscape.job.reading import read_job

REFUSED = [
    ("extend", ["plane"], 2, "extend: needs at least one of samples, observable, range, accuracy and budget"),
    ("extend", ["plane", "--samples", "1.5"], 2, "must be a whole number"),
    ("extend", ["plane", "--samples", "0"], 2, "samples: must be a whole number from 1 on, not 0"),
    ("extend", ["plane", "--samples", "5"], 2, "samples: must be more than the 12 of landscape 'plane', not 5"),
    ("extend", ["plane", "--samples", "99999", "--serial"], 2, "samples: must be at most the "),
    ("extend", ["plane", "--observable", "los", "--plan"], 2, "observable: observe returns no los, only loss"),
    ("extend", ["plane", "--range=-1.1,1,0,3", "--plan"], 2, "range: must be wider than"),
    (
        "extend",
        ["plane", "--range", "-2"],
        2,
        "must be LOW,HIGH or LOW,HIGH per axis, such as --range=-2,2, not '-2'",
    ),
    ("extend", ["plane", "--range", "2,-2"], 2, "range: must be LOW,HIGH or LOW,HIGH per axis"),
    ("extend", ["plane", "--samples", "24", "--serial", "--workers", "2"], 2, "serial: runs in this process alone"),
    ("extend", ["b", "--samples", "24"], 3, "landscape 'b' is not in run"),
    ("refine", ["plane", "--factor", "3"], 2, "factor: must be 2 or 4, not 3"),
    ("refine", ["plane", "--box", "0,1,2"], 2, "of each axis, such as --box=-0.5,0.5,-0.2,0.2, not '0,1,2'"),
    ("refine", ["plane", "--box=-9,1,0,3", "--plan"], 2, "must lie in the landscape, -1 to 1 along alpha, not -9 to 1"),
    ("refine", ["plane", "--box", "0,0,0,3"], 2, "box: must have a width along each axis, not 0 to 0 along alpha"),
    ("refine", ["plane", "--serial", "--workers", "2"], 2, "serial: runs in this process alone"),
    ("refine", ["b"], 3, "landscape 'b' is not in run"),
    ("check", ["plain"], 3, "landscape 'plain' is not in run"),
    ("check", ["plane", "--serial", "--workers", "2"], 2, "serial: runs in this process alone"),
    ("check", ["plane", "--problem", "nothing", "--serial"], 2, "problem: must be 'module:function'"),
    ("inspect", ["plane", "--at", "0.3"], 2, "at: must have a number for each of the axes alpha, beta, not 1"),
    ("inspect", ["plane", "--at=0.3,nan"], 2, "at: must be finite numbers, not [0.3, nan]"),
    ("inspect", ["plane", "--at=0.3;1"], 2, "at: must be a number for each axis, such as --at=0.3,-0.7, not '0.3;1'"),
    ("inspect", ["plane", "--rules", "relu_zero"], 2, "unknown rule 'relu_zero'; did you mean 'relu_zeros'?"),
    ("inspect", ["plane", "--rules", "relu_zeros=much"], 2, "must be a finite number of at least 0, not 'much'"),
    ("inspect", ["plan"], 3, "landscape 'plan' is not in run"),
]


def files(place: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in place.rglob("*") if path.is_file() and "driver" not in path.name}


@pytest.fixture(scope="module")
def place(write_job_to, tmp_path_factory) -> Path:
    """A run of the plane, on 12 samples."""
    return Path(run(read_job(write_job_to(tmp_path_factory.mktemp("plane"), num_samples=12, batch_size=4))).path)


@pytest.mark.parametrize(
    ("command", "words", "code", "told"), REFUSED, ids=[f"{command}: {told}" for command, _, _, told in REFUSED]
)
def test_what_cannot_be_done_is_told_in_two_lines_and_changes_nothing(place, call, command, words, code, told):
    before = files(place)
    ended = call(command, place, *words)
    assert (ended.code, ended.out) == (code, "")
    assert told in ended.err
    assert "num_samples:" not in ended.err, "options are called as they are given"
    assert ended.err.count("\n") <= 2
    assert files(place) == before


PROBLEM = """
import torch
from torch import nn
from landscape import Problem


def problem():
    torch.manual_seed(0)
    data = torch.randn(20, 3), torch.randn(20, 2)
    return Problem.supervised(nn.Linear(3, 2), data, nn.MSELoss())
"""


@pytest.fixture(scope="module")
def accurate(tmp_path_factory) -> Path:
    """A run of a plane with an accuracy."""
    folder = tmp_path_factory.mktemp("accurate")
    (folder / "linear.py").write_text(PROBLEM)
    spec = {"name": "plane", "range": [-1, 1], "accuracy": "20%"}
    return Path(run(Job(run=str(folder / "run"), problem="linear:problem", landscapes=[spec]).in_folder(folder)).path)


@pytest.mark.parametrize(("option", "value"), [
    ("accuracy", "foo"), ("accuracy", "0%"), ("budget", "foo"), ("budget", "0 evaluations"), ("budget", "-5 min"),
])  # fmt: skip
def test_options_of_an_accuracy_are_named_as_they_are_given(accurate, call, option: str, value: str) -> None:
    before = files(accurate)
    ended = call("extend", accurate, "plane", f"--{option}={value}", "--serial")
    assert (ended.code, ended.out) == (2, "")
    assert f"{option}: " in ended.err
    assert "landscapes.0" not in ended.err
    assert files(accurate) == before
