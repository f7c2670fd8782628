"""`landscape rm` and `landscape rename` as a user gives them: exit codes, questions, one or two lines."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_models import make_job, quadratic_problem

from cluster.commands.app import command
from landscape import open_run, run
from landscape.core.lock import measuring_lock, run_lock

Called = Callable[..., tuple[int, str]]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    folder = tmp_path / "one"  # in a folder that no other test writes to, as the runs beside it are listed
    run(make_job(folder, quadratic_problem, [{"name": name, "size": 3} for name in ("a", "b")], tile=3))
    return folder


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def call(capsys, monkeypatch, logging_as_it_was) -> Called:
    """Give a command; its exit code, and what it said on stderr. Nothing may be on stdout."""

    def give(*words: object, answer: str | None = None) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["landscape", *map(str, words)])
        monkeypatch.setattr(sys, "stdin", io.StringIO() if answer is None else Terminal(answer))
        capsys.readouterr()
        code = command()
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.count("\n") <= 7
        return code, said.err

    return give


@pytest.mark.parametrize(("answer", "code", "left"), [("y\n", 0, ["b"]), ("n\n", 1, ["a", "b"]), ("", 1, ["a", "b"])])
def test_rm_asks_on_a_terminal(place, call, answer, code, left):
    found, said = call("rm", place, "a", answer=answer)
    assert found == code
    assert f"remove a (3 × 3 points) from {place}? [y/N]" in said
    assert list(open_run(place)) == left


def test_rm_needs_yes_where_nobody_can_be_asked(place, call):
    assert call("rm", place, "a") == (
        2, "yes: is needed where nobody can be asked; give --yes to remove without asking\n"
    )  # fmt: skip
    assert list(open_run(place)) == ["a", "b"]
    assert call("rm", place, "a", "b", "--yes") == (0, f"removed a from {place}\nremoved b from {place}\n")
    assert list(open_run(place)) == []


def test_rename_says_what_a_job_needs(place, call):
    assert call("rename", place, "a", "z") == (0, "a is z now; a job that goes on with it needs `name: z`\n")
    assert list(open_run(place)) == ["z", "b"]


def test_compact_says_how_many_files_there_were_and_status_and_validate_find_all_points(place, call, capsys):
    spec = {"name": "c", "size": 9}
    run(make_job(place, quadratic_problem, [spec], tile=3))
    assert call("compact", place, "c") == (0, "c: 60 files are 20 now\n")
    assert call("compact", place) == (0, "".join(f"{name}: 20 files, no fewer to be had\n" for name in "acb"))
    for name in ("status", "validate"):
        sys.argv[1:] = [name, str(place), "--json"]
        assert command() == 0
        found = json.loads(capsys.readouterr().out)
        assert [row["name"] for row in found["landscapes"]] == ["a", "c", "b"]
    (place / "landscapes.zarr" / "a" / "loss" / "c" / "0" / "0").write_bytes(b"")
    code, said = call("compact", place)
    assert code == 4
    assert "landscape 'a' cannot be compacted: a chunk of it is damaged; run its own job first\n" in said
    assert call("compact", place, "a")[0] == 2
    assert call("compact", place, "z")[0] == call("compact", place / "x")[0] == 3
    with run_lock(str(place)):
        assert call("compact", place, "b")[0] == 1


def test_what_cannot_be_done_ends_with_the_code_that_says_why(place, call):
    with run_lock(str(place)):
        assert call("rm", place, "a", "--yes")[0] == call("rename", place, "a", "z")[0] == 1
    assert call("rm", place, "c", "--yes")[0] == call("rename", place, "c", "z")[0] == 3
    assert call("rm", place / "x", "c", "--yes")[0] == call("rename", place / "x", "c", "z")[0] == 3
    assert call("rename", place, "a", "b")[0] == call("rename", place, "a", "x/y")[0] == call("rm", place)[0] == 2
    assert call("rm", place, "a", "--trajectory", "--yes")[0] == 2
    assert list(open_run(place)) == ["a", "b"]


@pytest.mark.parametrize("words", [(), ("",), (" ",), ("file://",), ("--run", ""), ("", "a"), (".", "")])
def test_rm_of_an_unset_variable_removes_nothing(place, call, monkeypatch, words):
    """`landscape rm "$RUN" --yes`, where the current folder is a run, or holds files."""
    monkeypatch.chdir(place)
    code, said = call("rm", *words, "--yes")
    assert (code, said.count("\n")) == (2, 1)
    assert list(open_run(place)) == ["a", "b"]
    (place.parent / "empty").mkdir()
    monkeypatch.chdir(place.parent / "empty")
    assert call("rm", ".", "--yes")[0] == 3
    assert (place.parent / "empty").is_dir()


def test_rm_of_a_run_lists_what_goes_and_asks(place, call):
    (place / "run.json").write_text('{"created": "2020-02-03T04:05:06+00:00"}')
    (place / "trajectory").mkdir()
    (place / "trajectory" / "epoch-00001.safetensors").write_bytes(bytes(2048))
    (place / "notes.txt").write_text("mine")
    code, said = call("rm", place, answer="n\n")
    assert code == 1
    first, *lines = said.splitlines()
    assert first.startswith(f"run {place} (")
    assert re.fullmatch(r"  remove landscapes \(.*KiB\): a \(3 × 3 points\), b \(3 × 3 points\)", lines[0])
    assert lines[1] == "  remove the trajectory (2 KiB): 1 file"
    assert lines[2].startswith("  remove the run's other files: ")
    assert lines[3:] == ["  leave notes.txt", "remove this? [y/N] nothing was removed"]
    assert list(open_run(place)) == ["a", "b"]
    assert call("rm", place, "--trajectory", "--yes") == (0, f"removed the trajectory: 1 file from {place}\n")
    assert call("rm", place, "--checkpoints", "--yes") == (0, f"nothing of that is in {place}\n")
    code, said = call("rm", place, answer="y\n")
    assert code == 0
    assert f"left in {place}, as it is no part of the run: notes.txt" in said
    assert f"removed landscapes: a, b from {place}" in said
    assert [path.name for path in place.iterdir()] == ["notes.txt"]
    assert call("rm", place, "--yes")[0] == 3


def test_rm_asks_about_a_run_of_which_only_a_lock_is_left(place, call):
    (place.parent / "bare").mkdir()
    (place.parent / "bare" / "driver.lock").touch()
    place.rename(place.parent / "bare" / "inner")  # another run in it, which is no part of it
    code, said = call("rm", place.parent / "bare", answer="y\n")
    assert code == 0
    first, *lines = said.splitlines()
    assert first == f"run {place.parent / 'bare'}:"
    assert lines[:2] == ["  remove the run's other files: 1 file", "  leave inner/"]
    assert list(open_run(place.parent / "bare" / "inner")) == ["a", "b"]


def test_list_older_than_leaves_out_what_is_young_or_written(place, capsys, monkeypatch, logging_as_it_was):
    for name in ("old", "trained", "driven", "measured"):
        (place.parent / name).mkdir()
        (place.parent / name / "run.json").write_text('{"created": "2020-02-03T04:05:06+00:00"}')
    (place.parent / "trained" / "history.jsonl").write_text("")  # written now, by a training that began long ago

    def listed(*words: str) -> tuple[int, list[dict[str, Any]], str]:
        monkeypatch.setattr(sys, "argv", ["landscape", "list", str(place.parent), *words, "--json"])
        code = command()
        out, err = capsys.readouterr()
        return code, json.loads(out or "[]"), err

    with run_lock(str(place.parent / "driven")), measuring_lock(str(place.parent / "measured")):
        assert [row["name"] for row in listed("--older-than", "30d")[1]] == ["old"]
    assert [row["name"] for row in listed("--older-than", "1.5 w")[1]] == ["driven", "measured", "old"]
    (place.parent / "measured" / "measures.json").write_text("{}")
    assert [row["name"] for row in listed("--older-than", "1.5 w")[1]] == ["driven", "old"]
    rows = listed("--older-than=0s")[1]
    assert [row["name"] for row in rows] == ["driven", "measured", "old", "one", "trained"]
    assert rows[3]["parts"] == {"landscapes": rows[3]["bytes"], "trajectory": 0, "checkpoints": 0}
    for wrong in ("30", "d", "-1d", "nan d", "1y"):
        code, _, err = listed(f"--older-than={wrong}")
        assert code == 2
        assert "must be a number with one of the units s, min, h, d, w, such as 30d" in err


def test_list_prints_the_runs_below_the_current_folder(place, capsys, monkeypatch, logging_as_it_was):
    monkeypatch.chdir(place.parent)

    def listed(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["landscape", "list", *words])
        code = command()
        return code, *capsys.readouterr()

    code, out, _ = listed()
    assert code == 0
    assert [line.split()[:3] for line in out.splitlines()[1:]] == [[place.name, "complete", "18/18"]]
    code, out, _ = listed(".", "--json")
    assert [row["run"] for row in json.loads(out)] == [str(place)]
    (place / "empty").mkdir()
    code, out, said = listed(str(place / "empty"))
    assert (code, out) == (0, "")
    assert said.startswith("no runs in ")
    assert listed("absent")[0] == 3
