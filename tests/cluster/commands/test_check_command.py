"""`landscape check` as a user gives it: its text, its JSON, its exit codes, and what is kept."""

from __future__ import annotations

import errno
import json
import sys
from functools import partial
from pathlib import Path

import pytest

from landscape import open_run, run
from landscape.core.errors import JobError
from landscape.core.files import LocalFolder
from landscape.core.lock import run_lock
from landscape.job.reading import read_job
from landscape.store import results


@pytest.fixture
def place(write_job) -> Path:
    return Path(run(read_job(write_job())).path)


@pytest.fixture
def call(call):
    """Give the command, as `call` gives any."""
    return partial(call, "check")


def test_a_landscape_is_judged_and_what_is_found_is_kept(place, call):
    code, out, _ = call(place, "plane", "--serial")
    kept = open_run(place)["plane"].record.checks
    assert kept is not None
    assert out == f"{kept.text('plane')}\n"
    assert f"plane: can this picture be trusted? {kept.verdict}" in " ".join(out.split())
    assert all(len(line) <= 92 for line in out.splitlines())
    assert code == int(kept.fails)
    assert "correct" not in out
    code, out, _ = call(place, "--serial", "--json", "--deep")
    (found,) = json.loads(out)["landscapes"]
    assert found["name"] == "plane"
    assert found["deep"] is True
    assert [each["number"] for each in found["results"]] == [check.number for check in kept.results]
    assert {each["state"] for each in found["results"]} <= {"holds", "reservation", "fails", "unjudged", "information"}


def test_what_does_not_hold_is_told_by_the_exit_code(place, call):
    first, second = (place / f"landscapes.zarr/plane/directions/c/{k}/0" for k in range(2))
    data = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(data)
    code, out, _ = call(place, "--serial")
    assert code == 1
    assert "plane: can this picture be trusted? no: 1 check does not hold" in out
    assert "\n ✗ " in out


def test_a_run_that_is_being_written_is_judged_and_nothing_kept(place, call):
    with run_lock(str(place)):
        code, out, said = call(place, "--serial")
    assert code in (0, 1)
    assert "can this picture be trusted?" in out
    assert "what was found of plane is not kept: run: " in said
    assert open_run(place)["plane"].record.checks is None


def test_a_run_that_can_only_be_read_is_judged_and_nothing_kept(place, call, monkeypatch):
    def refuse(run: str) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    def refuse_job(folder: LocalFolder) -> None:
        raise JobError("run: is mounted read-only")

    monkeypatch.setattr(results, "run_lock", refuse)
    monkeypatch.setattr(LocalFolder, "refuse_unwritable", refuse_job)
    code, out, said = call(place, "--serial")
    assert code in (0, 1)
    assert "can this picture be trusted?" in out
    assert "what was found of plane is not kept: run " in said
    assert "cannot be written: Read-only file system" in said


def test_a_landscape_whose_callback_is_gone_is_not_judged(place, call, monkeypatch):
    (place.parent / "my_problem.py").write_text("import nothing_of_this_name")
    monkeypatch.delitem(sys.modules, "my_problem")
    code, out, _ = call(place, "--serial", "--json")
    (found,) = json.loads(out)["landscapes"]
    assert code == 4
    assert found["judged"] is False
    assert found["verdict"].startswith("not judged: ")
    assert "nothing speaks against it" not in out
    kept = open_run(place)["plane"].record.checks
    assert kept is not None
    assert kept.not_judged
    code, out, _ = call(place, "--serial")
    text = " ".join(out.split())
    assert code == 4
    assert "plane: can this picture be trusted? not judged: its network could not be evaluated" in text
    assert "No module named 'nothing_of_this_name'" in text
    assert "name it by --problem and --folder" in text
