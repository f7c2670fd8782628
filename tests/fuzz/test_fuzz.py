"""A short run of the fuzzers; `make fuzz N=5000` is a long one. And that their rules catch what they are for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from judging import Ended, Kept, judge

HERE = Path(__file__).resolve().parent


def slow(fuzzer: str) -> object:
    return pytest.param(["--cases", "60", "--fuzzer", fuzzer], id=fuzzer, marks=pytest.mark.slow)


@pytest.mark.faults  # a scene and a command
@pytest.mark.parametrize("words", [["--cases", "6"], *map(slow, ("inputs", "damage", "attributes", "page"))])
def test_a_short_run_breaks_no_rule(words, tmp_path):
    """In a process of its own, which may hang or die; one of the cases is a real command."""
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(HERE.parents[1])}
    command = [sys.executable, "-W", "ignore", str(HERE / "fuzz.py"), *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert f"{words[1]} cases" in done.stdout, done.stderr
    assert "0 break a rule" in done.stdout, done.stdout


@pytest.mark.faults  # what bounds refuse is in tests/landscape/model
def test_a_short_run_of_hostile_graphs_breaks_no_rule():
    """The crashes that were found before are its first cases."""
    command = [sys.executable, "-W", "ignore", str(HERE / "fuzz_graphs.py"), "--cases", "40"]
    environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "40 graphs" in done.stdout
    assert "0 break a rule" in done.stdout


@pytest.mark.parametrize(
    ("ended", "expected"),
    [
        (Ended(None, "", ""), "hangs"),
        (Ended(139, "", ""), "code 139"),
        (Ended(0, "", ""), "code 0"),
        (Ended(1, "", "Traceback (most recent call last):"), "Traceback"),
        (Ended(2, "", "job: JSONDecodeError: Expecting value"), "JSONDecodeError"),
        (Ended(2, "", "job: \x1b[31mred"), "control character"),
    ],
)
def test_what_breaks_a_rule_is_found(ended, expected):
    verdict = judge(ended, ("job",), refused=True)
    assert any(expected in fault for fault in verdict.faults), verdict


@pytest.mark.parametrize(
    ("ended", "expected"),
    [
        (Ended(2, "", ""), "without a word"),
        (Ended(2, "", "something else is wrong"), "names none"),
        (Ended(2, "", "size: " + "x" * 500), "characters"),
        (Ended(2, "", "size: bad\n" * 20), "lines"),
    ],
)
def test_what_is_unclear_is_found(ended, expected):
    verdict = judge(ended, ("size",), refused=True)
    assert not verdict.faults
    assert any(expected in each for each in verdict.unclear), verdict


def test_what_is_fine_is_fine(tmp_path):
    assert judge(
        Ended(2, "", "size: must be from 3 to 65536 points per axis, not 2"), ("size",), refused=True
    ) == judge(Ended(0, "plane complete", ""))
    assert not judge(
        Ended(2, "", "problem: raised KeyError: 'a'"), ("problem",), refused=True, raised="KeyError"
    ).faults


def test_a_file_that_was_touched_is_found(tmp_path):
    mine = tmp_path / "mine"
    mine.write_text("a")
    kept = Kept.of(mine)
    assert not kept.verdict().faults
    mine.write_text("b")
    assert kept.verdict().faults
    mine.unlink()
    assert kept.verdict().faults
