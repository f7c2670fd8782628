"""Whatever replaces a trajectory loses none: killed, without power, on a full disk, or given what cannot be read."""

from __future__ import annotations

import errno
import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from object_stores import Raw, new_url, use
from scenes import needs_proc, play

from landscape import TrajectoryCollector
from landscape.core.errors import JobError, LandscapeError
from landscape.core.object_store import ObjectFolder
from landscape.model import snapshots
from landscape.model.checkpoint_import import import_checkpoints
from landscape.model.history import read_history
from landscape.model.run_files import read_info
from landscape.model.snapshots import read_trajectory

pytestmark = needs_proc


def slow(*tasks: str) -> list[Any]:
    return [pytest.param([task], marks=pytest.mark.slow) for task in tasks]


ALL_OTHERS = slow("kill,overwrite", "kill,resume", "power,import", "power,overwrite")


@pytest.mark.long
@pytest.mark.faults
@pytest.mark.parametrize("tasks", [["kill,import", "power,resume"], *ALL_OTHERS])
def test_killed_or_without_power_at_any_change_the_old_trajectory_or_the_new_one_is_there_whole(tmp_path, tasks):
    """In one process, where there are several tasks."""
    for task, found in zip(tasks, play("replacement_scene.py", tmp_path, *tasks), strict=True):
        assert not found["wrong"]
        assert found["changes"] > 10
        if task.startswith("kill"):
            assert found["states"] == ["new", "old"]
        else:
            assert found["worlds"] == 5 * (found["changes"] + 1)


# -- on any store ----------------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path, endpoint, monkeypatch):
    use(monkeypatch, endpoint)
    return new_url()


def collect(place, epochs: int = 3, begin: int = 0, **options) -> None:
    model = torch.nn.Linear(2, 2, bias=False)
    given = {"unit": "epoch", "intervals": [[1, 2, 3]], **options}
    collector = TrajectoryCollector(place, model, start_epoch=begin, **given)
    for epoch in range(begin, epochs):
        with torch.no_grad():
            model.weight.fill_(epoch + 1)
        collector.step(float(epoch))
        collector.end_epoch()


def checkpoints(folder: Path, numbers=(7, 9)) -> list[Path]:
    paths = [folder / f"ckpt_{number}.pt" for number in numbers]
    for path, number in zip(paths, numbers, strict=True):
        torch.save({"weight": torch.full((2, 2), float(number))}, path)
    return paths


def believed(place) -> tuple[object, ...]:
    trajectory = read_trajectory(place)
    weights = [float(each.load()["weight"][0, 0]) for each in trajectory.snapshots]
    return trajectory.unit, trajectory.numbers, weights, read_history(place), read_info(place).get("imported")


class Killed(BaseException):
    """What ends a process, as far as a process that goes on can play it."""


def dies_at(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Every request that changes the store from the `number`-th on is never sent."""
    seen = 0
    for name in ("write", "whole", "copy", "delete", "delete_below"):
        real = getattr(ObjectFolder, name)

        def change(self, *given, real=real):
            nonlocal seen
            seen += 1
            if seen > number:
                raise Killed
            return real(self, *given)

        monkeypatch.setattr(ObjectFolder, name, change)


@pytest.mark.parametrize("kind", [pytest.param("import", marks=pytest.mark.slow), "overwrite", "resume"])
def test_in_an_object_store_the_old_or_the_new_is_there_whole_after_each_request(place, tmp_path, endpoint, kind):
    files = checkpoints(tmp_path)

    def act() -> None:
        if kind == "import":
            import_checkpoints(files, place, overwrite=True)
        else:
            collect(place, 0, **({"begin": 1} if kind == "resume" else {"overwrite": True}))

    collect(place)
    old = believed(place)
    act()
    new, keys = believed(place), Raw(place, endpoint).keys()
    assert new != old
    number, ended, states = 0, False, set()
    while not ended:
        collect(place, overwrite=True)
        with pytest.MonkeyPatch.context() as patch:
            dies_at(patch, number)
            try:
                act()
                ended = True
            except Killed:
                number += 1
        found = believed(place)
        assert found in (old, new), number
        states.add(found == old)
        act()
        assert believed(place) == new
        assert Raw(place, endpoint).keys() == keys
    assert number > 4
    assert states == {True, False}


# -- failures and damage ---------------------------------------------------------------------------------------


def everything(run: Path) -> dict[str, bytes]:
    return {path.relative_to(run).as_posix(): path.read_bytes() for path in run.rglob("*") if path.is_file()}


@pytest.mark.parametrize("nth", [1, 2])
def test_an_import_that_meets_a_full_disk_leaves_the_run_as_it_was(tmp_path, monkeypatch, nth):
    run, files, calls = tmp_path / "run", checkpoints(tmp_path), []
    collect(run)
    before = everything(run)

    def full(*given):
        calls.append(given)
        if len(calls) == nth:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*given)

    real = safetensors.torch.save_file
    monkeypatch.setattr(safetensors.torch, "save_file", full)
    with pytest.raises(LandscapeError, match="No space left on device"):
        import_checkpoints(files, run, overwrite=True)
    assert everything(run) == before


def test_a_collector_that_meets_a_full_disk_leaves_the_run_as_it_was(tmp_path, monkeypatch):
    collect(tmp_path)
    before = everything(tmp_path)

    def full(*given):
        raise LandscapeError("'run.json' cannot be written: No space left on device")

    monkeypatch.setattr(snapshots, "write_info", full)
    for options in ({"overwrite": True}, {"begin": 1}):
        with pytest.raises(LandscapeError, match="No space left"):
            collect(tmp_path, 0, **options)
        assert everything(tmp_path) == before


HISTORY = '{"step": 1, "epoch": 1, "loss": 0.5}\n'


def test_an_import_keeps_a_history_that_no_snapshots_belong_to(tmp_path):
    run, files = tmp_path / "run", checkpoints(tmp_path)
    run.mkdir()
    (run / "history.jsonl").write_text(HISTORY)
    for options in ({}, {"overwrite": True}):
        import_checkpoints(files, run, **options)
        assert (run / "history.jsonl").read_text() == HISTORY


def test_a_collector_refuses_a_run_with_a_history_of_another_training(tmp_path):
    (tmp_path / "history.jsonl").write_text(HISTORY)
    before = everything(tmp_path)
    with pytest.raises(JobError, match="holds a history of another training"):
        collect(tmp_path)
    assert everything(tmp_path) == before
    collect(tmp_path, overwrite=True)
    assert len(read_history(tmp_path)) == 6


def test_a_training_killed_before_its_first_snapshot_starts_again_and_loses_no_history_before_there_is_one(tmp_path):
    collect(tmp_path, 2, intervals=[[3, 4, 5]])
    former = (tmp_path / "history.jsonl").read_bytes()
    collect(tmp_path, 2, intervals=[[3, 4, 5]])
    (kept,) = tmp_path.glob("history.jsonl.interrupted-*")
    assert kept.read_bytes() == former
    with pytest.raises(JobError, match="holds a history of another training"):
        collect(tmp_path, 2, intervals=[[4, 5, 6]])
    collect(tmp_path, 3, intervals=[[3, 4, 5]])
    assert sorted(everything(tmp_path)) == ["history.jsonl", "run.json", "trajectory/epoch-00003.safetensors"]
    assert len(read_history(tmp_path)) == 6


@pytest.mark.parametrize("damage", [b"\xff", b"{", b"[1]", b"3", b'{"loss": 1, "loss": 2}'])
def test_a_damaged_line_of_the_history_costs_that_line_alone(tmp_path, damage, caplog):
    collect(tmp_path)
    history, file = read_history(tmp_path), tmp_path / "history.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    damaged = b"".join([lines[0], damage + b"\n", *lines[2:]])
    file.write_bytes(damaged)
    with caplog.at_level(logging.WARNING, "landscape"):
        assert read_history(tmp_path) == [history[0], *history[2:]]
    assert "line 2 cannot be read" in caplog.text
    collect(tmp_path, 3, begin=2)
    assert len(read_history(tmp_path)) == 5
    (kept,) = tmp_path.glob("history.jsonl.damaged-*")
    assert kept.read_bytes() == damaged
    assert "line 2" in caplog.text.splitlines()[-1]


def test_lines_that_other_programs_wrote_stay_as_they_are(tmp_path):
    collect(tmp_path, 1)
    foreign = b'{"note": "lr halved",   "grad": NaN}\n'
    with open(tmp_path / "history.jsonl", "ab") as file:
        file.write(foreign)
    collect(tmp_path, 2, begin=1)
    assert foreign in (tmp_path / "history.jsonl").read_bytes()


# -- what is not ours ------------------------------------------------------------------------------------------

DEAD = 4194304 + 7  # above the largest process number


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    ["model.partial", "weights.partial.pt", "results.partial-2.csv", f".notes-{DEAD}.partial.txt",
     f".run-{os.getppid()}.partial.json", ".partial", "trajectory/mine.partial.safetensors", "trajectory/.tmpabcdef",
     "trajectory/epoch-1.safetensors", f".trajectory-{DEAD}-mine.partial/a.bin"],
)  # fmt: skip
def test_files_of_the_users_are_left_alone(tmp_path, name):
    run = tmp_path / "run"
    for options in ({}, {"overwrite": True}, {"begin": 1}):
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_bytes(b"mine, whatever it is")
        collect(run, **options)
        import_checkpoints(checkpoints(tmp_path), run, overwrite=True)
        assert (run / name).read_bytes() == b"mine, whatever it is"
        run.joinpath("run.json").unlink()
        collect(run, overwrite=True)


@pytest.mark.parametrize(
    "name",
    [
        f".run-{DEAD}.partial.json",
        f".history-{DEAD}-0123abcd.partial.jsonl",
        f"trajectory/.epoch-00001-{DEAD}.partial.safetensors",
        f"trajectory/.epoch-00001-{DEAD}-0123abcd.partial.safetensors",
        "trajectory/.tmpa1B2c3",
        f".trajectory-{DEAD}-0123abcd.partial/epoch-00001.safetensors",
    ],
)
def test_what_a_dead_process_left_half_written_goes(tmp_path, name):
    run = tmp_path / "run"
    collect(run)
    (run / name).parent.mkdir(parents=True, exist_ok=True)
    (run / name).write_bytes(b'\x00{"__metadata__":{"format":"landscape-snapshot-1"')
    before = read_trajectory(run)
    collect(run, 3, begin=3)
    assert not (run / name).exists()
    assert read_trajectory(run) == before


def test_snapshots_of_the_other_unit_are_no_reason_to_delete_them(tmp_path):
    collect(tmp_path)
    info = read_info(tmp_path) | {"unit": "step"}
    (tmp_path / "run.json").write_text(json.dumps(info))
    before = everything(tmp_path)
    for act in (lambda: collect(tmp_path), lambda: import_checkpoints(checkpoints(tmp_path.parent), tmp_path)):
        with pytest.raises(JobError, match="already holds a trajectory of 3 epochs"):
            act()
    assert everything(tmp_path) == before


def test_a_snapshot_of_the_other_unit_stands_for_none_of_this_one(tmp_path):
    collect(tmp_path)
    (tmp_path / "trajectory/epoch-00002.safetensors").rename(tmp_path / "trajectory/step-00002.safetensors")
    collect(tmp_path, 2, begin=2)
    assert read_trajectory(tmp_path).numbers == (1, 2)
    assert (tmp_path / "trajectory/step-00002.safetensors").is_file()


@pytest.mark.parametrize(
    "replacing",
    [5, {}, {"snapshots": 3}, {"snapshots": ["../../other/trajectory/epoch-00001.safetensors"], "history": None},
     {"snapshots": [], "history": "/etc/passwd"}, {"snapshots": [None], "history": None},
     {"snapshots": ["epoch-00001.safetensors"], "history": None}],
    ids=str,
)  # fmt: skip
def test_a_run_json_that_names_what_is_not_its_own_is_refused(tmp_path, replacing):
    collect(tmp_path)
    (tmp_path / "run.json").write_text(json.dumps(read_info(tmp_path) | {"replacing": replacing}))
    before = everything(tmp_path)
    for act in (read_trajectory, read_history, collect):
        with pytest.raises(LandscapeError, match=r"run\.json' must name snapshots and a history of this run"):
            act(tmp_path)
    assert everything(tmp_path) == before


def test_a_replacement_whose_files_are_gone_is_named(tmp_path):
    collect(tmp_path)
    gone = {"snapshots": [".trajectory-1-0123abcd.partial/epoch-00001.safetensors"], "history": None}
    (tmp_path / "run.json").write_text(json.dumps(read_info(tmp_path) | {"replacing": gone}))
    before = everything(tmp_path)
    with pytest.raises(LandscapeError, match="are gone"):
        collect(tmp_path, overwrite=True)
    assert everything(tmp_path) == before
