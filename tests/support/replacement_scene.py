"""A trajectory that is replaced, killed or cut off from power at every change of the disk: the old or the new is there.

`python replacement_scene.py FOLDER TASK,KIND TASK,KIND…` runs in an interpreter of its own without threads, like
`crash_scene`, and prints a JSON list, an object for each task. KIND says what replaces:
`import`, `overwrite` (a new training) or `resume` (from epoch 1).
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import disk
import torch
from crash_scene import changes, contents, forked, fresh, preload
from disk import Call, Disk, Handler, die_at
from power import Chooser, Log, Model, fingerprint

from landscape import TrajectoryCollector
from landscape.model.checkpoint_import import import_checkpoints
from landscape.model.history import read_history
from landscape.model.parameters import state_digest
from landscape.model.run_files import read_info
from landscape.model.snapshots import read_trajectory

EPOCHS = 3


def before(run: Path) -> None:
    """The trajectory that is there, and two checkpoints beside the run."""
    train(run, 0, EPOCHS)
    for number in (7, 9):
        torch.save({"weight": torch.full((2, 2), float(number))}, run.parent / f"ckpt_{number}.pt")


def train(run: Path, begin: int, end: int, **options: Any) -> None:
    model = torch.nn.Linear(2, 2, bias=False)
    collector = TrajectoryCollector(run, model, unit="epoch", intervals=[[1, 2, 3]], start_epoch=begin, **options)
    for epoch in range(begin, end):
        with torch.no_grad():
            model.weight.fill_(epoch + 1)
        collector.step(float(epoch))
        collector.end_epoch()


REPLACE: dict[str, Callable[[Path], Any]] = {
    "import": lambda run: import_checkpoints([run.parent / f"ckpt_{n}.pt" for n in (7, 9)], run, overwrite=True),
    "overwrite": lambda run: train(run, 0, 0, overwrite=True),
    "resume": lambda run: train(run, 1, 1),
}


def believed(run: Path) -> dict[str, Any]:
    """What a reader sees."""
    trajectory, info = read_trajectory(run), read_info(run)
    return {
        "unit": trajectory.unit,
        "snapshots": {each.number: state_digest(each.load()) for each in trajectory.snapshots},
        "sources": [each.source for each in trajectory.snapshots],
        "history": read_history(run),
        "imported": info.get("imported"),
    }


def left(run: Path) -> list[str]:
    return sorted(each.relative_to(run).as_posix() for each in run.rglob("*"))


def expected(kind: str, folder: Path) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any], list[str]]:
    """What readers see before and after; every byte and every name afterwards."""
    run = fresh(folder, "calm")
    before(run)
    old = believed(run)
    REPLACE[kind](run)
    return old, believed(run), contents(run), left(run)


def verdict(kind: str, run: Path, known: tuple[dict[str, Any], dict[str, Any], dict[str, Any], list[str]]) -> str:
    """What is wrong after an interruption, and after the same command again; or nothing."""
    old, new, whole, names = known

    def look() -> None:
        found = believed(run)
        assert found in (old, new), found
        REPLACE[kind](run)
        assert believed(run) == new
        assert contents(run) == whole
        assert left(run) == names

    return forked(look)[1]


def kill(kind: str, folder: Path) -> dict[str, Any]:
    known, run = expected(kind, folder), fresh(folder, "counted")
    before(run)

    def work(run: Path, handler: Handler) -> None:
        Disk(run, handler).install()
        REPLACE[kind](run)

    calls = changes(lambda handler: work(run, handler), folder / "calls")
    wrong, states = [], set()
    for number, call in enumerate(calls):
        for torn in (False, True)[: 1 + (call.kind == "write")]:
            run = fresh(folder, "killed")
            before(run)
            code, told = forked(lambda r=run, n=number, t=torn: work(r, die_at(n, t)))  # type: ignore[misc]
            states.add("old" if believed(run) == known[0] else "new")
            problem = told or ("" if code == -9 else "not killed") or verdict(kind, run, known)
            wrong += [f"{number} torn={torn}: {problem}"] if problem else []
    return {"changes": len(calls), "states": sorted(states), "wrong": wrong}


def power(kind: str, folder: Path) -> dict[str, Any]:
    known = expected(kind, folder)
    run, entries = fresh(folder, "logged"), folder / "entries"

    def work() -> None:
        log = Log()
        Disk(run, log).install()
        before(run)
        log.mark("begun")
        REPLACE[kind](run)
        entries.write_text(
            json.dumps([{**vars(e), "data": e.data.hex()} if isinstance(e, Call) else "begun" for e in log.entries])
        )

    told = forked(work)[1]
    assert not told, told
    found = json.loads(entries.read_text())
    calls = [Call(**{**e, "data": bytes.fromhex(e["data"])}) if isinstance(e, dict) else e for e in found]
    begun, chance = calls.index("begun"), random.Random(0)
    wrong, worlds = [], 0
    seen: dict[str, str] = {}  # what is wrong in a world, by its fingerprint
    for cut in range(begun + 1, len(calls) + 1):
        model = Model(run.parent)
        for each in calls[:cut]:
            if each != "begun":
                model.apply(each)
        for keep in (0.0, 1.0, 0.5, 0.5, 0.5):
            place = fresh(folder, "world")
            model.materialise(place.parent, Chooser(keep, chance))
            worlds += 1
            world = fingerprint(place.parent)
            for number in (7, 9):  # they lie beside the run, where nothing is watched
                torch.save({"weight": torch.full((2, 2), float(number))}, place.parent / f"ckpt_{number}.pt")
            if world not in seen:
                seen[world] = verdict(kind, place, known)
            problem = seen[world]
            wrong += [f"cut {cut} keep {keep} after {str(calls[cut - 1])[:150]}: {problem}"] if problem else []
    return {"changes": len(calls) - begun - 1, "worlds": worlds, "wrong": wrong}


if __name__ == "__main__":
    torch.set_num_threads(1)
    place, tasks = Path(sys.argv[1]), [each.split(",") for each in sys.argv[2:]]
    preload(lambda: [expected(kind, place / "preloaded" / kind) for _, kind in tasks])
    assert len(os.listdir("/proc/self/task")) == 1, "a fork keeps one thread only"
    disk.REAL_FSYNC = os.fsync = lambda descriptor: None  # what a kill leaves, and the model of a power cut, need none
    known = {"kill": kill, "power": power}
    print(json.dumps([known[task](kind, place / task / kind) for task, kind in tasks]), flush=True)
    os._exit(0)  # Python's own end would take as long as many a fork
