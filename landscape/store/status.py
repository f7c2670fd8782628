"""The runs in given places, and a row for each: what was trained, its landscapes, how far they are, the lowest loss."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from landscape.core.errors import LandscapeError, NotFoundError, flat, quoted
from landscape.core.files import Folder
from landscape.core.folders import bytes_of, open_folder
from landscape.core.lock import driver_alive
from landscape.core.text import digest
from landscape.model.history import log_end, training_state
from landscape.store.changes import file_stamp
from landscape.store.landscape import LandscapeStore
from landscape.store.results import Run
from landscape.store.state import (
    COMPLETE,
    DAMAGED,
    INTERRUPTED,
    PARTIAL,
    RUNNING,
    UNREADABLE,
    all_read,
    cause_of,
    each_landscape,
    finite,
    landscape_status,
    or_note,
    seconds_left,
    unreadable_in_words,
    unreadable_status,
)
from landscape.surface.refinement import MOST_LEVELS
from landscape.views.prepare.words import mapping

# ----------------------------------------------------------------------------------------------------
# The runs in given places. Addresses name a run by its identifier, never by a path. Links to folders are not followed,
# so nothing outside the places is found, and the inside of a run is not searched.

MARKS = ("run.json", "landscapes.zarr")  # what makes a folder a run
DEEPEST = 12
MOST_FOLDERS = 200_000
ID_DIGITS = 12


@dataclass(frozen=True)
class FoundRun:
    """A run by its identifier; `name` is its path below the place where it was found, `path` its folder or URL."""

    id: str
    name: str
    path: str


@dataclass(frozen=True)
class RunPlace:
    """A folder or URL that the user named, and its runs; `problem` says why not all of it could be searched."""

    name: str
    path: str
    runs: tuple[FoundRun, ...] = ()
    problem: str = ""


def open_place(name: str) -> RunPlace:
    """The place of this name, not searched yet.

    Raises:
        NotFoundError: there is no such folder.
        JobError: the name is no folder and no URL that is known.
        StoreError: the object store does not answer.
    """
    folder = open_folder(name)
    if not folder.exists():
        what = "is a file, not a folder" if os.path.isfile(name) else "does not exist"
        raise NotFoundError(
            f"place {quoted(name)} {what}; name a run, a folder of runs, or a URL such as s3://bucket/runs"
        )
    return RunPlace(name, folder.name)


def search(place: RunPlace) -> RunPlace:
    """The place with the runs that lie there now, sorted by name."""
    runs: list[FoundRun] = []
    problem = ""
    try:
        folder = open_folder(place.path)
        walk = _walk_objects(folder) if "://" in place.path else _walk(Path(place.path))
        for below in walk:
            path = folder.place(below) if below else folder.name
            runs.append(FoundRun(identifier(path), below or path.rstrip("/").rpartition("/")[2], path))
    except (LandscapeError, OSError) as error:
        problem = cause_of(error)
    return replace(place, runs=tuple(sorted(runs, key=lambda run: run.name)), problem=problem)


def identifier(path: str) -> str:
    """The identifier of a run, the same in every server, so that a link serves a colleague too."""
    return hashlib.sha256(path.encode("utf-8", "surrogatepass")).hexdigest()[:ID_DIGITS]


def _walk(root: Path) -> Iterator[str]:
    """The paths of the runs below a local folder, relative to it; the folder itself is ''.

    Raises:
        OSError: the root cannot be listed. Folders below it that cannot be listed are left out.
    """
    waiting, count = [("", 0)], 0
    while waiting:
        below, depth = waiting.pop()
        count += 1
        if count > MOST_FOLDERS:
            raise _too_many()
        try:
            with os.scandir(root / below) as entries:
                names = {entry.name: entry.is_dir(follow_symlinks=False) for entry in entries}
        except OSError:
            if not below:
                raise
            continue  # removed meanwhile, or without the right to read
        if any(mark in names for mark in MARKS):
            yield below
        elif depth < DEEPEST:
            inner = (name for name, is_folder in names.items() if is_folder and not name.startswith("."))
            waiting += [(f"{below}/{name}" if below else name, depth + 1) for name in inner]


def _walk_objects(folder: Folder) -> Iterator[str]:
    """The paths of the runs below a prefix of an object store, as `_walk` gives those below a folder."""
    level = [""]
    for _ in range(DEEPEST + 1):
        looks = folder.map(lambda below: (folder.names(below), folder.folders(below)), level)
        inner: list[str] = []
        for below, (names, folders) in zip(level, looks, strict=True):
            if any(mark in names or mark in folders for mark in MARKS):
                yield below
            else:
                inner += [f"{below}/{name}" if below else name for name in folders if not name.startswith(".")]
        if len(inner) > MOST_FOLDERS:
            raise _too_many()
        level = inner


def _too_many() -> LandscapeError:
    return LandscapeError(f"holds more than {MOST_FOLDERS} folders, of which the rest is not looked at; name one below")


class Directory:
    """The runs of all places by their identifiers, as the last search found them."""

    def __init__(self, places: Sequence[RunPlace]) -> None:
        self.places = tuple(places)
        self.searches = 0
        self._runs: dict[str, FoundRun] = {}
        self._gone: set[str] = set()

    @property
    def runs(self) -> tuple[FoundRun, ...]:
        """All runs, each once, in the order of the places."""
        return tuple(self._runs.values())

    def search(self) -> frozenset[str]:
        """Search the places again.

        Returns:
            The identifiers of the runs that are gone.
        """
        self.places = tuple(search(place) for place in self.places)
        runs = {run.id: run for place in reversed(self.places) for run in place.runs}
        runs = {run.id: runs[run.id] for place in self.places for run in place.runs}
        # Runs in a store that does not answer are not gone.
        kept = {
            run.id: run
            for run in self._runs.values()
            if run.id not in runs and any(place.problem and run.path.startswith(place.path) for place in self.places)
        }
        gone = frozenset(self._runs) - set(runs) - set(kept)
        self._runs = {**runs, **kept}
        self._gone = (self._gone | gone) - set(self._runs)
        self.searches += 1
        return gone

    def find(self, run: str) -> FoundRun:
        """The run with this identifier.

        Raises:
            GoneError: a search has found it, and a later one has not.
            NotFoundError: there is none.
        """
        if run in self._runs:
            return self._runs[run]
        if run in self._gone:
            raise GoneError(f"run {quoted(run)} was deleted or moved away meanwhile; choose another one in the list")
        raise NotFoundError(f"run {quoted(run)} is not in the places that this page shows; choose one in the list")


class GoneError(NotFoundError):
    """A run or a landscape that was there is gone."""


def changed(run: FoundRun) -> int:
    """When a file or folder of a local run was last made, in nanoseconds; 0 in an object store."""
    times = [0]
    for place in (run.path, f"{run.path}/landscapes.zarr"):
        with contextlib.suppress(OSError):
            times.append(os.stat(place).st_mtime_ns)
    return max(times)


# ----------------------------------------------------------------------------------------------------

log = logging.getLogger("landscape.page")

EMPTY = "empty"  # the state of a run without landscapes
# The first of these among its landscapes' states is the run's state.
GRAVEST = (RUNNING, UNREADABLE, DAMAGED, INTERRUPTED, PARTIAL, COMPLETE)
LEVELS = range(1, MOST_LEVELS + 1)
REST = 50  # a run is not read again for so many times as long as its row took to read
REMOTE_SECONDS, REMOTE_DONE_SECONDS = 10.0, 120.0  # a run in an object store is read again after them

Row = dict[str, Any]


@dataclass(frozen=True)
class Summary:
    """A row, the stamp of the run's files before it was read, and the earliest time to look again."""

    row: Row
    stamp: Stamp | None
    again: float


@dataclass(frozen=True)
class Stamp:
    """Changes whenever the row of a local run may: its files, and whether its driver lives."""

    landscapes: tuple[str, ...]
    files: tuple[object, ...]
    alive: bool


class Summaries:
    """The rows of all runs; one thread reads them, and reads a row again only if its files have changed."""

    def __init__(self) -> None:
        self._known: dict[str, Summary] = {}

    def row(self, run: FoundRun) -> Row:
        """The last row of a run; a pending one where none is read yet."""
        known = self._known.get(run.id)
        return pending_row(run) if known is None else known.row

    def forget(self, runs: Iterable[str]) -> None:
        """Forget runs, by their identifiers."""
        for run in runs:
            self._known.pop(run, None)

    def is_due(self, run: FoundRun) -> bool:
        """Whether the row of a run may have changed, or has not been read."""
        known = self._known.get(run.id)
        if known is None:
            return True
        if time.monotonic() < known.again:
            return False
        if known.stamp is None:
            return True
        # New landscapes change the time of their folder, so they need not be listed here.
        now = stamp_of(open_folder(run.path), known.stamp.landscapes, known.row["state"] == COMPLETE)
        return known.stamp != now

    def read(self, run: FoundRun) -> Row | None:
        """Read the row of a run; None where it has not changed."""
        begun, before = time.monotonic(), self._known.get(run.id)
        folder = open_folder(run.path)
        # The stamp is taken first: a later one would hide what is written while the row is read.
        stamp = None if "://" in folder.name else stamp_of(folder, tuple(folder.folders("landscapes.zarr")))
        row = read_row(run)
        if stamp is not None and row["state"] == COMPLETE:
            stamp = replace(stamp, alive=True)
        rest = REST * (time.monotonic() - begun)
        if stamp is None:
            rest = max(rest, REMOTE_SECONDS if row["state"] == RUNNING else REMOTE_DONE_SECONDS)
        self._known[run.id] = Summary(row, stamp, time.monotonic() + rest)
        return row if before is None or before.row != row else None


def stamp_of(folder: Folder, landscapes: tuple[str, ...], complete: bool = False) -> Stamp:
    """The stamp of a local run.

    Args:
        complete: whether the run is complete, so that the end of its driver changes nothing.
    """
    paths = ["run.json", "landscapes.zarr", *(f"landscapes.zarr/{name}/zarr.json" for name in landscapes)]
    for name in landscapes:  # levels come and go as folders, each with a document that says how far it is
        levels = [f"landscapes.zarr/{name}/levels", *(f"landscapes.zarr/{name}/levels/{k}/zarr.json" for k in LEVELS)]
        paths += levels if file_stamp(folder, levels[0]) is not None else levels[:1]
    files = tuple(file_stamp(folder, path) for path in paths)
    return Stamp(landscapes, files, complete or driver_alive(folder.name))


def read_row(run: FoundRun) -> Row:
    """The row of a run, read from its files; it also says what cannot be read."""
    problems: list[str] = []
    try:
        opened, alive = Run(run.path), driver_alive(run.path)
        infos = or_note(lambda: [opened.info], problems)
        landscapes = each_landscape(run.path, _landscape(alive), lambda name, cause: unreadable_status(name, cause))
        info = mapping(infos[0]) if infos else {}
        return dict(finite(_head(run) | _training(info, landscapes) | progress_of(landscapes, alive, problems)))
    except (LandscapeError, OSError) as error:
        problem = cause_of(error)
    except Exception as error:  # whatever no reader foresees is a problem of this run, not of the others
        log.debug("the row of %s failed", run.path, exc_info=True)
        problem = f"this run cannot be read: {flat(repr(error), 200)}; `landscape view --debug` shows where"
    return _head(run) | _nothing() | {"state": UNREADABLE, "problem": problem, "readable": False}


def _landscape(alive: bool) -> Callable[[LandscapeStore], dict[str, Any]]:
    def read(store: LandscapeStore) -> dict[str, Any]:
        status = landscape_status(store, alive)
        provenance = store.record.provenance
        told = [store.record.digest, provenance.created, status["done"], status["failed"], status["updated"]]
        status["size"] = list(reversed(store.shape))
        status["model"], status["created"] = provenance.model, provenance.created
        status["generation"] = digest([str(part) for part in told])[:16]
        return status

    return read


def _head(run: FoundRun) -> Row:
    return {"id": run.id, "name": run.name, "path": run.path}


def _nothing() -> Row:
    unknown = ("model", "optimiser", "learning_rate", "when", "eta_seconds", "lowest")
    return {**dict.fromkeys(unknown), "done": 0, "points": 0, "rate": 0.0, "landscapes": []}


def pending_row(run: FoundRun) -> Row:
    """The row of a run that is not read yet."""
    return _head(run) | {"pending": True}


def _training(info: Mapping[str, Any], landscapes: list[dict[str, Any]]) -> Row:
    """What was trained, as `run.json` has it, and when the run last changed."""
    optimiser = info.get("optimiser", info.get("optimizer"))
    name = optimiser.get("name") if isinstance(optimiser, Mapping) else optimiser
    rate = info.get("learning_rate")
    models = [info.get("model"), info.get("network"), *(each.get("model") for each in landscapes)]
    times = [each.get(key) for each in landscapes for key in ("updated", "created")]
    when = [moment for moment in (*times, info.get("created")) if isinstance(moment, str)]
    return {
        "model": next((flat(model, 200) for model in models if isinstance(model, str) and model), None),
        "optimiser": flat(name, 200) if isinstance(name, str) else None,
        "learning_rate": rate if isinstance(rate, (int, float)) and not isinstance(rate, bool) else None,
        "when": max(when, default=None),
    }


def progress_of(landscapes: list[dict[str, Any]], alive: bool, problems: list[str]) -> Row:
    """How far the landscapes are, each and all together."""
    states = {each["state"] for each in landscapes}
    state = next((one for one in GRAVEST if one in states), EMPTY)
    # Of a run with points that cannot be read, the lowest loss is not known.
    lowest = [each["minimum"]["loss"] for each in landscapes if each["minimum"] and DAMAGED not in states]
    running = [each for each in landscapes if each["state"] == RUNNING]
    rate = sum(each["rate"] for each in running)
    readable = all_read(problems, landscapes)
    damaged = {each["name"]: each["unreadable"] for each in landscapes if each["state"] == DAMAGED}
    told = (f"landscape {quoted(name)}: {unreadable_in_words(points)}" for name, points in damaged.items())
    problems = [*problems, *told]
    problems += [problem for each in landscapes for problem in each["problems"]]
    return {
        "state": RUNNING if alive and state == EMPTY else state,
        "done": sum(each["done"] for each in landscapes),
        "points": sum(each["points"] for each in landscapes),
        "rate": rate,
        # Whether they are computed at once or one after another, and also of those that have not begun.
        "eta_seconds": seconds_left(sum(each["missing"] for each in running), rate, RUNNING),
        "lowest": min(lowest, default=None),
        "problem": problems[0] if problems else "",
        "readable": readable,
        "landscapes": [_landscape_row(each) for each in landscapes],
    }


def _landscape_row(status: Mapping[str, Any]) -> Row:
    kept = {key: status.get(key) for key in ("name", "size", "state", "done", "points", "generation")}
    return kept | {
        "size": kept["size"] or [],
        "lowest": None if status["state"] == DAMAGED else status["minimum"].get("loss"),
    }


# ----------------------------------------------------------------------------------------------------
# The runs below a folder: what each holds, how far it is, how much it takes and how old it is. Only reads.

# A run that another process is removing looks damaged until it is gone. A damaged run is therefore read again after a
# pause, until no more files vanish, at most so often.
PAUSE_SECONDS, MOST_READINGS = 0.2, 25


def list_runs(folder: str | Path = ".") -> list[dict[str, Any]]:
    """The runs in a folder or at a URL, at every depth, sorted by name; the folder itself may be a run.

    Runs that other processes remove meanwhile are left out.

    Returns:
        A dict per run: `run` (its path), `name` (its path below the folder), `state` (running, unreadable, damaged,
        interrupted, partial, complete, or empty where it has no landscapes), `done` and `points` (evaluations), `bytes`
        (of all its files; None where they cannot be told), `changed` (when it was last written, in ISO format),
        `age_seconds` (since then), `landscapes` (of each its name, size, state, done, points), `model`, `training` (the
        state of its training; None where `landscape train` did not begin it), `problem` (the first one, as a phrase),
        and `readable` (False where something of it cannot be read, also not from the copy of its documents).

    Raises:
        NotFoundError: there is no such folder.
        LandscapeError: it cannot be searched.

    Example:
        >>> import torch
        >>> from landscape import Job, Problem, run
        >>> def problem():
        ...     return Problem.supervised(torch.nn.Linear(2, 2), (torch.ones(8, 2), torch.zeros(8).long()))
        >>> landscapes = [{"name": "a", "size": 3}]
        >>> _ = run(Job(run="runs/one", problem=problem, num_samples=8, tile=3, landscapes=landscapes))
        >>> [(row["name"], row["state"]) for row in list_runs("runs")]
        [('one', 'complete')]
    """
    place = search(open_place(str(folder)))
    if place.problem:
        open_place(str(folder))  # refuses one that was removed meanwhile
        raise LandscapeError(f"folder {quoted(place.name)} cannot be searched: {place.problem}")
    rows = [_row(run) for run in place.runs]
    return [row for row in rows if row is not None]


def _row(run: FoundRun) -> dict[str, Any] | None:
    """The row of a run; None where it was removed meanwhile."""
    row = _settled_row(run)
    when = _changed(run, row.get("when"))
    names = ("name", "state", "done", "points", "landscapes", "model", "problem", "readable")
    kept = {key: row.get(key) for key in names}
    training, problem = _listed_training(run)
    if problem:
        kept |= {"problem": kept["problem"] or problem, "readable": False}
    size = _bytes(run)
    if not _is_there(run):
        return None
    return {
        "run": run.path,
        **kept,
        "training": training,
        "bytes": size,
        "changed": when.isoformat(timespec="seconds") if when else None,
        "age_seconds": max(0.0, (datetime.now(UTC) - when).total_seconds()) if when else None,
    }


def _listed_training(run: FoundRun) -> tuple[str | None, str]:
    """The state of a run's training, None where there is none; and why it cannot be told, empty where it can."""
    try:
        training = training_state(run.path, log_end(run.path))
    except (LandscapeError, OSError) as error:
        return None, cause_of(error)
    return None if training is None else training["state"], ""


def _settled_row(run: FoundRun) -> dict[str, Any]:
    """The row of a run; where something cannot be read, the row once no more files vanish."""
    row, folder = read_row(run), open_folder(run.path)
    if not row["problem"]:
        return row
    now = _files(folder)
    for _ in range(MOST_READINGS):
        time.sleep(PAUSE_SECONDS)
        before, row, now = now, read_row(run), _files(folder)
        if before <= now or not _is_there(run):
            break
    return row


def _is_there(run: FoundRun) -> bool:
    """Whether a folder is still a run, or cannot be looked at."""
    folder = open_folder(run.path)
    try:
        return not {*folder.names(""), *folder.folders("")}.isdisjoint(MARKS)
    except (LandscapeError, OSError):
        return True


def _files(folder: Folder) -> set[str]:
    """The paths of the files of all landscapes; empty where they cannot be looked at."""
    try:
        return set(folder.stamps("landscapes.zarr"))
    except (LandscapeError, OSError):
        return set()


def _bytes(run: FoundRun) -> int | None:
    try:
        return bytes_of(run.path)
    except LandscapeError:
        return None


def _changed(run: FoundRun, recorded: Any) -> datetime | None:
    """When a run was last written, as it records; else by the times of its folders, where it is local."""
    try:
        noted = datetime.fromisoformat(str(recorded))
    except ValueError:
        nanoseconds = changed(run)
        return datetime.fromtimestamp(nanoseconds / 1e9, UTC) if nanoseconds else None
    return noted if noted.tzinfo else noted.replace(tzinfo=UTC)
