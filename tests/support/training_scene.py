"""A user's training, killed or cut off from power at every change of the disk: it goes on to the undisturbed run.

`python training_scene.py FOLDER kill,PART power,WORLDS` runs in an interpreter of its own without threads, like
`crash_scene`, and prints a JSON list, an object for each task. PART is a part of the paths whose changes kill; or `all`
"""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path
from typing import Any

import disk
import torch
import torch._dynamo  # optimisers do so at their first step, for a second
from crash_scene import changes, contents, forked, fresh, killed_at, preload
from disk import Call, Disk, Handler
from power import Chooser, Log, Model, fingerprint
from users_training import digest_of_training


def under(run: Path, handler: Handler) -> None:
    Disk(run, handler).install()
    digest_of_training(run)


def goes_on(run: Path, calm: Path, *, intact: bool) -> str:
    """Train on in another process, and compare every byte of the run; what went wrong, or nothing."""

    def compare() -> None:
        digest_of_training(run)
        found, expected = told_by(run), told_by(calm)
        assert found == expected, sorted(k for k in {*found, *expected} if found.get(k) != expected.get(k))
        assert not intact or left(run) == left(calm)

    return forked(compare)[1]


def told_by(run: Path) -> dict[str, Any]:
    """What each file of a run holds; of a checkpoint its digest, since the order in which it is pickled may differ."""
    loaded = {path.name: torch.load(path, weights_only=True)["digest"] for path in run.glob("checkpoints/*.pt")}
    return {name: loaded.get(Path(name).name, content) for name, content in contents(run).items()}


def left(run: Path) -> list[str]:
    return sorted(each.relative_to(run).as_posix() for each in run.rglob("*"))


def kill(folder: Path, calm: Path, calls: list[Call], part: str) -> dict[str, Any]:
    """Die before every change of a path with `part` in it, and in the middle of every write to it."""
    chosen = [n for n, each in enumerate(calls) if part == "all" or part in each.path or part in each.target]
    return killed_at(chosen, calls, folder, under, lambda run: goes_on(run, calm, intact=True))


def power(folder: Path, calm: Path, calls: list[Call], worlds: str, stride: str) -> dict[str, Any]:
    """Cut the power after every `stride`-th change, and go on in that many possible worlds; once in equal ones."""
    run, entries = fresh(folder, "logged"), folder / "entries"

    def work() -> None:
        log = Log()
        under(run, log)
        entries.write_text(json.dumps([{**vars(each), "data": each.data.hex()} for each in log.entries]))

    told = forked(work)[1]
    assert not told, told
    found = [Call(**{**each, "data": bytes.fromhex(each["data"])}) for each in json.loads(entries.read_text())]
    wrong, tried, chance, model = [], 0, random.Random(0), Model(run.parent)
    seen: dict[str, str] = {}
    for number, call in enumerate(found):
        model.apply(call)
        for keep in [0.0, 1.0, 0.5][: int(worlds)] if number % int(stride) == 0 else []:
            place = fresh(folder, "world")
            model.materialise(place.parent, Chooser(keep, chance))
            tried += 1
            world = fingerprint(place.parent)
            if world not in seen:
                seen[world] = goes_on(place, calm, intact=False)
            problem = seen[world]
            wrong += [f"cut {number} keep {keep} after {call.kind} {call.path}: {problem}"] if problem else []
    return {"changes": len(found), "worlds": tried, "wrong": wrong}


if __name__ == "__main__":
    torch.set_num_threads(1)
    place, tasks = Path(sys.argv[1]), [each.split(",") for each in sys.argv[2:]]
    preload(lambda: digest_of_training(place / "preloaded" / "run"))
    assert len(os.listdir("/proc/self/task")) == 1, "a fork keeps one thread only"
    disk.REAL_FSYNC = os.fsync = lambda descriptor: None  # what a kill leaves, and the model of a power cut, need none
    calm = fresh(place, "calm")
    calls = changes(lambda handler: under(calm, handler), place / "calls")
    known = {"kill": kill, "power": power}
    print(json.dumps([known[task](place / task, calm, calls, *given) for task, *given in tasks]), flush=True)
    os._exit(0)  # Python's own end would take as long as many a fork
