"""A training and a job that are interrupted at every change of the disk, and what must hold afterwards.

`python crash_scene.py FOLDER TASK,ARGUMENT,… TASK,…` runs in an interpreter of its own, which has everything imported
and no threads, so that each interruption costs a fork; it prints a JSON list, an object for each task.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import importlib
import json
import os
import random
import shutil
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import disk
import numpy as np
import torch
from disk import Call, Disk, Handler, die_at, perform
from power import Chooser, Log, Model, fingerprint
from safetensors.torch import load_file
from small_models import Quadratic, make_job, observe_quadratic, quadratic_samples, train_quadratic
from torch import nn

import landscape
from cluster.runtime.status import run_status, validate_run
from landscape import Job, Problem, TrajectoryCollector, open_run
from landscape.core.grid import tile_at
from landscape.model.parameters import state_digest
from landscape.model.snapshots import read_trajectory
from landscape.store import commit
from landscape.store.landscape import LandscapeStore
from landscape.surface.record import Record, parse_axis
from landscape.surface.surface import NOT_COMPUTED

EPOCHS = 3
WILD = 9.0  # the loss above which the problem raises: the far end of `line`
SPECS = [
    {"name": "line", "directions": [{"kind": "random", "seed": 1}], "size": 5, "range": [-1, 3]},
    {"name": "plane", "trajectory": [1, 2, 3], "size": [4, 3]},
]
TILE_POINTS = 4  # 2 x 2


def train(run: Path) -> None:
    """Training as a user writes it: it goes on from the last snapshot that is there."""
    there = read_trajectory(run).snapshots if run.is_dir() else ()
    model = Quadratic()
    if there:
        model.load_state_dict(there[-1].load())
    start = there[-1].number if there else 0
    collector = TrajectoryCollector(run, model, unit="epoch", intervals=[[1, 2, 3]], start_epoch=start, num_samples=23)
    train_quadratic(collector, model, range(start, EPOCHS))


def job_of(run: Path) -> Job:
    """Its evaluated points leave a line each beside the run."""
    log = os.open(run.parent / "points.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def observe(model: nn.Module, batch: Any) -> dict[str, torch.Tensor]:
        values = observe_quadratic(model, batch)
        if len(batch) > 2:
            weights = b"".join(each.detach().numpy().tobytes() for each in model.parameters())
            os.write(log, hashlib.sha256(weights).hexdigest().encode() + b"\n")
            if float(values["loss"].mean()) > WILD:
                raise RuntimeError("too steep")
        return values

    problem = Problem(Quadratic(), quadratic_samples(), observe)
    return make_job(run, lambda: problem, SPECS, tile=[2], num_samples=23)


def session(run: Path) -> None:
    train(run)
    landscape.run(job_of(run))


# -- what must hold ----------------------------------------------------------------------------------------------


def contents(run: Path) -> dict[str, Any]:
    """Every byte of a run that an undisturbed one would have too: without clocks, and without leftovers."""
    found: dict[str, Any] = {}
    for path in sorted(run.rglob("*")):
        name = path.relative_to(run).as_posix()
        if not path.is_file() or ".partial" in name or path.name.startswith((".tmp", "driver.")):
            continue
        if name == "run.json" or (path.name == "zarr.json" and name.count("/") < 3):
            found[name] = _timeless(json.loads(path.read_bytes()))
        elif path.suffix == ".safetensors":  # the order of its metadata is left to chance
            found[name] = state_digest(load_file(path))
        else:
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        clocks = ("seconds", "rate", "updated", "created", "run", "traceback", "by_worker")
        return {key: _timeless(each) for key, each in sorted(value.items()) if key not in clocks}
    return [_timeless(each) for each in value] if isinstance(value, list) else value


def inspect(run: Path, calm: Path, *, intact: bool) -> None:
    """A reader does not fall over, and believes nothing that the undisturbed run does not say."""
    if not run.is_dir():
        return
    assert not run_status(str(run))["driver"]
    assert not validate_run(str(run))["damaged"] or not intact
    for snapshot in read_trajectory(run).snapshots:
        expected = read_trajectory(calm).snapshot(snapshot.number).load()
        assert all(torch.equal(tensor, expected[name]) for name, tensor in snapshot.load().items())
    for name, surface in open_run(run).items():
        expected = open_run(calm)[name]
        believed = surface.status != NOT_COMPUTED
        assert (surface.status[believed] == expected.status[believed]).all()
        for observable, values in surface.observables.items():
            assert values[believed].tobytes() == expected[observable][believed].tobytes(), observable
        if surface.path is not None and expected.path is not None:
            believed = surface.path.status != NOT_COMPUTED
            for part in ("loss", "projected_loss", "status"):
                values = getattr(surface.path, part)[believed]
                assert values.tobytes() == getattr(expected.path, part)[believed].tobytes(), part


def keeps(run: Path, promises: list[Any]) -> None:
    """What was promised before the power went is there."""
    for kind, *rest in promises:
        if kind == "snapshot":
            assert rest[0] in read_trajectory(run).numbers, rest
        elif kind == "landscape":
            assert rest[0] in open_run(run), rest
        else:
            name, array, windows = rest
            surface = open_run(run)[name]
            status = surface.status if array == "status" else surface.path and surface.path.status
            assert (status[tuple(slice(*each) for each in windows)] != NOT_COMPUTED).all(), rest


def recomputed(run: Path, calm: Path) -> int:
    """Points evaluated more often than by the undisturbed run; those of the tile that is given up left out."""
    lines, usual = (Counter((each.parent / "points.log").read_text().split()) for each in (run, calm))
    return sum(max(0, count - usual[point]) for point, count in lines.items() if usual[point] <= 2)


# -- processes -----------------------------------------------------------------------------------------------------


def forked(work: Callable[[], Any]) -> tuple[int, str]:
    """Run `work` in a process of its own; its signal (0: none), and what went wrong in it."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(read)
            work()
        except BaseException:
            os.write(write, traceback.format_exc().encode()[-3000:])
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        told = pipe.read().decode()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), told


def preload(work: Callable[[], Any]) -> None:
    """Import here what `work` imports, as a process of its own finds out: what is forked from here imports no more.

    Much is imported when it is first asked for only, and each of thousands of processes would compile it anew.
    """
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            work()
            os.write(write, json.dumps(sorted(sys.modules)).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        names = json.loads(pipe.read())
    assert os.waitpid(child, 0)[1] == 0
    Record.of({}), parse_axis({})  # what checks records is made when it is first asked for
    for name in names:
        if name.partition(".")[0] in ("landscape", "cluster", "numpy", "zarr"):
            with contextlib.suppress(ImportError):  # what is not to be imported by name
                importlib.import_module(name)
    gc.freeze()  # no process that is forked from here walks, and so copies, what was imported


def under(run: Path, handler: Handler) -> None:
    Disk(run, handler).install()
    session(run)


def changes(work: Callable[[Handler], Any], log: Path) -> list[Call]:
    """The changes of the disk that work makes in a process of its own, without the bytes of its writes."""

    def noted() -> None:
        calls: list[Call] = []

        def note(call: Call, change: Callable[..., Any]) -> Any:
            calls.append(call)
            return perform(call, change)

        work(note)
        text = [{"kind": each.kind, "path": each.path, "target": each.target} for each in calls]
        log.write_text(json.dumps(text))

    code, told = forked(noted)
    assert code == 0, code
    assert not told, told
    return [Call(**each) for each in json.loads(log.read_text())]


def calm_run(folder: Path) -> tuple[Path, list[Call]]:
    """The undisturbed run, and the changes of the disk it takes."""
    run = folder / "calm" / "run"
    run.parent.mkdir(parents=True)
    return run, changes(lambda handler: under(run, handler), folder / "calm.log")


def fresh(folder: Path, name: str) -> Path:
    place = folder / name
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    return place / "run"


def goes_on(run: Path, calm: Path, *, intact: bool, sessions: int = 1, promises: list[Any] | None = None) -> str:
    """Read what is there, compute the rest in another process, compare; what went wrong, or nothing."""

    def look() -> None:
        inspect(run, calm, intact=intact)
        keeps(run, promises or [])

    def compare() -> None:
        session(run)
        found, expected = contents(run), contents(calm)
        if not intact:  # lines of the history need not outlive a power cut
            found.pop("history.jsonl", None), expected.pop("history.jsonl", None)
        assert found == expected, sorted(k for k in {*found, *expected} if found.get(k) != expected.get(k))
        twice = recomputed(run, calm)
        assert not intact or twice <= sessions * TILE_POINTS, f"{twice} points again"

    return forked(look)[1] or forked(compare)[1]


# -- tasks -----------------------------------------------------------------------------------------------------------


def count(folder: Path, calm: Path, calls: list[Call]) -> dict[str, Any]:
    return {"calls": [[each.kind, each.path, each.target] for each in calls]}


def part_of(cases: list[int], share: str) -> list[int]:
    """Of `K/N` every N-th case, beginning with the K-th (from 0): N processes do all of them."""
    first, step = map(int, share.split("/"))
    return cases[first::step]


def kill(folder: Path, calm: Path, calls: list[Call], every: str, seed: str, sample: str, share: str) -> dict[str, Any]:
    """Die before every change, and in the middle of every write: at those whose paths have a part of `every` (separated
    by colons; or `all`), and at a sample of the rest; of these the share `K/N`."""
    parts = every.split(":")
    places = range(len(calls)) if every == "all" else [n for n, call in enumerate(calls) if _touches(call, parts)]
    rest = sorted({*range(len(calls))} - {*places})
    sampled = random.Random(int(seed)).sample(rest, min(int(sample), len(rest)))
    chosen = part_of(sorted({*places, *sampled}), share)
    return {"calls": len(calls), **killed_at(chosen, calls, folder, under, lambda run: goes_on(run, calm, intact=True))}


def killed_at(
    chosen: Sequence[int],
    calls: Sequence[Call],
    folder: Path,
    work: Callable[[Path, Handler], None],
    verdict: Callable[[Path], str],
) -> dict[str, Any]:
    """Die before each chosen change, and in the middle of it where it is a write; what is wrong afterwards."""
    wrong, killed = [], 0
    for number in chosen:
        for torn in (False, True)[: 1 + (calls[number].kind == "write")]:
            run = fresh(folder, "killed")
            code, told = forked(lambda r=run, n=number, t=torn: work(r, die_at(n, t)))  # type: ignore[misc]
            killed += code == -9
            problem = told or verdict(run)
            wrong += [f"{number} torn={torn} {calls[number].kind} {calls[number].path}: {problem}"] if problem else []
    return {"chosen": len(chosen), "killed": killed, "wrong": wrong}


def _touches(call: Call, parts: list[str]) -> bool:
    return any(part in call.path or part in call.target for part in parts)


def again(folder: Path, calm: Path, calls: list[Call], seed: str, runs: str) -> dict[str, Any]:
    """One run killed over and over, at a random change of each of its sessions."""
    chance, wrong, killed = random.Random(int(seed)), [], []
    for _ in range(int(runs)):
        run, kills = fresh(folder, "again"), 0
        while True:
            # Far enough for a landscape to be made in one session: a half-made one is begun anew.
            number, torn = chance.randrange(len(calls)), chance.random() < 0.5
            code, told = forked(lambda r=run, n=number, t=torn: under(r, die_at(n, t)))  # type: ignore[misc]
            problem = told or forked(lambda r=run: inspect(r, calm, intact=True))[1]  # type: ignore[misc]
            wrong += [problem] if problem else []
            if code == 0 or problem:
                break
            kills += 1
        problem = goes_on(run, calm, intact=True, sessions=kills)
        wrong += [problem] if problem else []
        killed.append(kills)
    return {"killed": killed, "wrong": wrong}


def power(
    folder: Path, calm: Path, calls: list[Call], seed: str, sample: str, worlds: str, share: str
) -> dict[str, Any]:
    """Cut the power at every promise and at a sample of the changes, and go on in several of the possible worlds.

    Of these cuts the share `K/N`.
    """
    run, log = fresh(folder, "logged"), folder / "entries"
    code, told = forked(lambda: _write_log(run, log))
    assert code == 0, code
    assert not told, told
    entries = _read_log(log)
    chance = random.Random(int(seed))
    promises = [n + 1 for n, each in enumerate(entries) if not isinstance(each, Call)]
    wanted = len(entries) if sample == "all" else int(sample)
    cuts = part_of(sorted({*promises, *chance.sample(range(len(entries) + 1), min(wanted, len(entries)))}), share)
    wrong, tried = [], 0
    seen: dict[tuple[str, str], str] = {}  # what is wrong in a world, by its fingerprint and what was promised
    for cut, model, kept in _at(entries, run, cuts):
        for keep in [0.0, 1.0, *[0.5] * int(worlds)]:
            place = fresh(folder, "world")
            model.materialise(place.parent, Chooser(keep, chance))
            world = (fingerprint(place.parent), str(kept))
            if world not in seen:
                seen[world] = goes_on(place, calm, intact=False, promises=kept)
            problem = seen[world]
            tried += 1
            if problem:
                wrong.append(f"cut {cut} keep {keep} after {str(entries[cut - 1])[:150]}: {problem}")
    made = len({*cuts} & {*promises})
    return {"entries": len(entries), "cuts": len(cuts), "promises": made, "worlds": tried, "wrong": wrong}


def _at(entries: list[Any], run: Path, cuts: list[int]) -> Iterator[tuple[int, Model, list[Any]]]:
    """The model of the disk after each of the numbers of entries, and what was promised by then."""
    model, kept, done = Model(run.parent), [], 0
    for cut in cuts:
        for each in entries[done:cut]:
            model.apply(each) if isinstance(each, Call) else kept.append(each)
        done = cut
        yield cut, model, list(kept)


def _write_log(run: Path, place: Path) -> None:
    log = Log()
    _mark_promises(log)
    under(run, log)
    plain = [
        {**vars(each), "data": each.data.hex()} if isinstance(each, Call) else each for each in log.entries
    ]  # fmt: skip
    place.write_text(json.dumps(plain))


def _read_log(place: Path) -> list[Any]:
    found = json.loads(place.read_text())
    return [Call(**{**each, "data": bytes.fromhex(each["data"])}) if isinstance(each, dict) else each for each in found]


def _mark_promises(log: Log) -> None:
    """A function that returns has promised that what it wrote will stay."""
    from landscape.training import collector as trajectory

    real_write, real_create, real_snapshot = (
        commit.write_synced,
        LandscapeStore.create.__func__,  # type: ignore[attr-defined]
        trajectory.write_snapshot,
    )

    def write(arrays: Any, chunks: Sequence[tuple[str, tuple[int, ...], np.ndarray]]) -> None:
        real_write(arrays, chunks)
        for array, index, _ in chunks:
            if array not in ("status", "path_status"):
                continue
            stored = arrays[array]
            windows = tile_at(index, stored.shape, stored.chunks).windows
            log.mark("tile", arrays.name, array, [[each.start, each.stop] for each in windows])

    def create(cls: Any, run: str, name: str, *given: Any, **options: Any) -> Any:
        made = real_create(cls, run, name, *given, **options)
        log.mark("landscape", name)
        return made

    def snapshot(folder: Path, unit: Any, number: int, *given: Any, **about: Any) -> None:
        real_snapshot(folder, unit, number, *given, **about)
        log.mark("snapshot", number)

    commit.write_synced = write  # type: ignore[assignment]
    LandscapeStore.create = classmethod(create)  # type: ignore[method-assign,assignment]
    trajectory.write_snapshot = snapshot  # type: ignore[assignment]


if __name__ == "__main__":
    torch.set_num_threads(1)
    assert len(os.listdir("/proc/self/task")) == 1, "a fork keeps one thread only"
    folder, tasks = Path(sys.argv[1]), [each.split(",") for each in sys.argv[2:]]
    if tasks != [["count"]]:
        # A killed process takes nothing with it that the kernel has: only the model of a power cut asks what is synced.
        disk.REAL_FSYNC = os.fsync = lambda descriptor: None
        place = folder / "preloaded"
        place.mkdir()
        preload(lambda: (session(place / "run"), inspect(place / "run", place / "run", intact=True)))
    known = {"count": count, "kill": kill, "again": again, "power": power}
    calm, calls = calm_run(folder)
    print(json.dumps([known[name](folder, calm, calls, *given) for name, *given in tasks]), flush=True)
    os._exit(0)  # Python's own end would take as long as many a fork
