"""Processes killed at each change of the disk that a training and a job make: nothing is lost, nothing made up.

What is killed, and what must hold afterwards, is in `crash_scene`.
"""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from scenes import needs_proc, play

pytestmark = [needs_proc, pytest.mark.faults]


def scenes(folder: Path, *tasks: str, before: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """Tasks of `crash_scene`, in one process."""
    found: list[dict[str, Any]] = play("crash_scene.py", folder, *tasks, before=before)
    return found


@pytest.mark.long
def test_the_changes_that_are_caught_are_those_that_a_commit_needs_and_all_that_the_kernel_sees(tmp_path):
    """Where strace is installed, the kernel is asked too: no more renames, syncs and removals than were caught."""
    log = tmp_path / "strace"
    traced = "trace=/rename,/mkdir,/unlink,/link,fsync"
    tracer = ("strace", "-f", "-qq", "-s", "4096", "-y", "-e", traced, "-o", str(log))
    [found] = scenes(tmp_path, "count", before=tracer if shutil.which("strace") else ())
    calls = [tuple(call) for call in found["calls"]]
    chunks = [target for kind, _, target in calls if kind in ("rename", "link")]
    chunks = [target for target in chunks if "/c/" in target.removeprefix(str(tmp_path))]
    # Two observables' files and a status for each of 4 + 3 tiles, and the same for two stretches of the path.
    tiles = [each for each in chunks if Path(each.rpartition("/c/")[0]).name in ("loss", "loss_stderr", "status")]
    assert Counter(Path(each.rpartition("/c/")[0]).name for each in tiles) == dict.fromkeys(
        ("loss", "loss_stderr", "status"), 7
    )
    assert Counter(Path(each.rpartition("/c/")[0]).name for each in chunks)["path_status"] == 2
    for chunk in chunks:
        renamed = next(n for n, call in enumerate(calls) if call[2] == chunk)
        synced = [call[1] for call in calls[renamed:] if call[0] == "fsync"]
        assert chunk in synced, "its bytes"
        assert str(Path(chunk).parent) in synced, "its name"
    assert sum(kind == "rename" and target.endswith(".safetensors") for kind, _, target in calls) == 3
    kinds = Counter(kind for kind, _, _ in calls)
    assert min(kinds[kind] for kind in ("create", "write", "rename", "mkdir", "fsync", "unlink")) > 10
    if log.exists():
        _assert_that_none_escapes(kinds, log, tmp_path / "calm")


def _assert_that_none_escapes(caught: Counter[str], log: Path, run: Path) -> None:
    names = {each: each.removesuffix("at") for each in ("rename", "mkdir", "unlink", "unlinkat", "link", "fsync")}
    seen: Counter[str] = Counter()
    begun: dict[str, str] = {}
    for line in log.read_text().splitlines():
        thread, call = line.split(maxsplit=1)
        if call.endswith("<unfinished ...>"):  # another thread's call came between: how it ended is told later
            begun[thread] = call
            continue
        if call.startswith("<..."):
            call = begun.pop(thread, "") + call
        name = call.partition("(")[0]
        if str(run) in call and "= -1" not in call and name in names:
            seen[names[name]] += 1
    # safetensors renames a file of its own for each of three snapshots.
    assert seen - Counter(rename=3) <= caught
    assert caught["fsync"] == seen["fsync"]


@pytest.mark.long
def test_killed_at_any_change_of_a_commit_and_at_others_and_one_run_over_and_over(tmp_path):
    """Of one tile; `test_killed_at_every_change` has all of them, and all that a training and a job change besides."""
    once, again = scenes(tmp_path, "kill,line/loss/c/1:line/status/c/1,0,3,0/1", "again,2,1")
    assert not once["wrong"]
    assert once["chosen"] >= 3 + 8
    assert once["killed"] > once["chosen"], "some writes are torn as well"
    assert not again["wrong"]
    assert sum(again["killed"]) > 1


PARTS = 6  # so that several processes share the work, and each ends within minutes


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(PARTS))
def test_killed_at_every_change(tmp_path, part):
    [found] = scenes(tmp_path, f"kill,all,0,0,{part}/{PARTS}")
    assert not found["wrong"]
    assert found["chosen"] == len(range(part, found["calls"], PARTS))
