"""The runs in given places, and a row for each: its model, its landscapes, their progress, the lowest loss."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from landscape.core.errors import JobError, LandscapeError, NotFoundError, flat, quoted
from landscape.core.files import Folder
from landscape.core.folders import Usage, open_folder, usage_of
from landscape.core.lock import driver_alive, living_measurement
from landscape.core.text import digest
from landscape.core.validation import is_number
from landscape.model.history import log_end, training_state
from landscape.model.run_files import CHECKPOINTS, HISTORY_FILE, MEASURES_FILE
from landscape.model.run_files import FOLDER as TRAJECTORY
from landscape.store.changes import file_stamp
from landscape.store.landscape import LandscapeStore
from landscape.store.packed_run import run_at
from landscape.store.results import Run
from landscape.store.state import (
    COMPLETE,
    DAMAGED,
    INTERRUPTED,
    PARTIAL,
    RUNNING,
    UNREADABLE,
    WAITING,
    cause_of,
    finite,
    is_whole,
    landscape_status,
    read_landscapes,
    read_or_note,
    seconds_left,
    unreadable_in_words,
    unreadable_status,
)
from landscape.surface.refinement import MOST_LEVELS
from landscape.views.prepare.words import mapping

# ----------------------------------------------------------------------------------------------------
# The runs in given places. Addresses name a run by its identifier, never by a path. Links to folders are not followed,
# so nothing outside the places is found, and the inside of a run is not searched.

MARKS = ("run.json", "landscapes.zarr")  # a folder with one of these is a run
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
    """A folder or URL that the user named, and its runs; `problem` is the reason if it could not be searched fully."""

    name: str
    path: str
    runs: tuple[FoundRun, ...] = ()
    problem: str = ""


def open_place(name: str) -> RunPlace:
    """The place of this name, not searched yet.

    Raises:
        NotFoundError: there is no such folder.
        JobError: the name is no folder, no packed run, nor a URL of a known kind; or the packed run is damaged.
        StoreError: the object store does not answer.
    """
    folder = open_folder(run_at(name))
    if not folder.exists():
        fault = "is a file, not a folder" if os.path.isfile(name) else "does not exist"
        raise NotFoundError(
            f"place {quoted(name)} {fault}; name a run, a packed run, a folder of runs, or a URL such as s3://bucket/runs"
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
    """The identifier of a run, the same on every server, so that links can be shared."""
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
            continue  # removed meanwhile, or not permitted to read
        if any(mark in names for mark in MARKS):
            yield below
        elif depth < DEEPEST:
            inner = (name for name, is_folder in names.items() if is_folder and not name.startswith("."))
            waiting += [(f"{below}/{name}" if below else name, depth + 1) for name in inner]


def _walk_objects(folder: Folder) -> Iterator[str]:
    """The paths of the runs below a prefix of an object store, relative to it, as from `_walk`."""
    level = [""]
    for _ in range(DEEPEST + 1):
        listings = folder.map(lambda below: (folder.names(below), folder.folders(below)), level)
        inner: list[str] = []
        for below, (names, folders) in zip(level, listings, strict=True):
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
    """The runs of all places by their identifiers, from the last search."""

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
            The identifiers of the runs that disappeared.
        """
        self.places = tuple(search(place) for place in self.places)
        runs = {run.id: run for place in reversed(self.places) for run in place.runs}
        runs = {run.id: runs[run.id] for place in self.places for run in place.runs}
        # Runs in a place that could not be searched have not disappeared.
        unsearched = {
            run.id: run
            for run in self._runs.values()
            if run.id not in runs and any(place.problem and run.path.startswith(place.path) for place in self.places)
        }
        gone = frozenset(self._runs) - set(runs) - set(unsearched)
        self._runs = {**runs, **unsearched}
        self._gone = (self._gone | gone) - set(self._runs)
        self.searches += 1
        return gone

    def find(self, run: str) -> FoundRun:
        """The run with this identifier.

        Raises:
            GoneError: an earlier search found the run, the last one did not.
            NotFoundError: there is none.
        """
        if run in self._runs:
            return self._runs[run]
        if run in self._gone:
            raise GoneError(f"run {quoted(run)} was deleted or moved away meanwhile; choose another one in the list")
        raise NotFoundError(f"run {quoted(run)} is not in the places that this page shows; choose one in the list")


class GoneError(NotFoundError):
    """A run or a landscape does not exist any more."""


def changed(run: FoundRun) -> int:
    """The time of the last change in the folders of a local run, in nanoseconds; 0 in an object store."""
    times = [0]
    for place in (run.path, f"{run.path}/landscapes.zarr"):
        with contextlib.suppress(OSError):
            times.append(os.stat(place).st_mtime_ns)
    return max(times)


# ----------------------------------------------------------------------------------------------------

log = logging.getLogger("landscape.page")

EMPTY = "empty"  # the state of a run without landscapes
# The first of these among the states of its landscapes is the state of a run.
GRAVEST = (RUNNING, WAITING, UNREADABLE, DAMAGED, INTERRUPTED, PARTIAL, COMPLETE)
LEVELS = range(1, MOST_LEVELS + 1)
REST = 50  # a run is read again at the earliest after this many times as long as its row took to read
REMOTE_SECONDS, REMOTE_DONE_SECONDS = 10.0, 120.0  # until a running or other run in an object store is read again

Row = dict[str, Any]


@dataclass(frozen=True)
class Summary:
    """A row, the stamp of the run's files before it was read, and the earliest time to look again."""

    row: Row
    stamp: Stamp | None
    again: float


@dataclass(frozen=True)
class Stamp:
    """A value that changes whenever the row of a local run may change: its files, and whether its driver is alive."""

    landscapes: tuple[str, ...]
    files: tuple[object, ...]
    alive: bool


class Summaries:
    """The rows of all runs; one thread reads them, and reads a row again only if its files have changed."""

    def __init__(self) -> None:
        self._summaries: dict[str, Summary] = {}

    def row(self, run: FoundRun) -> Row:
        """The last row of a run; a pending one if none is read yet."""
        summary = self._summaries.get(run.id)
        return pending_row(run) if summary is None else summary.row

    def forget(self, runs: Iterable[str]) -> None:
        """Forget runs, by their identifiers."""
        for run in runs:
            self._summaries.pop(run, None)

    def is_due(self, run: FoundRun) -> bool:
        """Whether the row of a run may have changed, or has not been read."""
        summary = self._summaries.get(run.id)
        if summary is None:
            return True
        if time.monotonic() < summary.again:
            return False
        if summary.stamp is None:
            return True
        # New landscapes change the time of their folder, so they need not be listed here.
        now = stamp_of(open_folder(run.path), summary.stamp.landscapes, summary.row["state"] == COMPLETE)
        return summary.stamp != now

    def read(self, run: FoundRun) -> Row | None:
        """Read the row of a run; None if it has not changed."""
        began, before = time.monotonic(), self._summaries.get(run.id)
        folder = open_folder(run.path)
        # Take the stamp first: a later one would hide changes that are written while the row is read.
        stamp = None if "://" in folder.name else stamp_of(folder, tuple(folder.folders("landscapes.zarr")))
        row = read_row(run)
        if stamp is not None and row["state"] == COMPLETE:
            stamp = replace(stamp, alive=True)
        rest = REST * (time.monotonic() - began)
        if stamp is None:
            rest = max(rest, REMOTE_SECONDS if row["state"] == RUNNING else REMOTE_DONE_SECONDS)
        self._summaries[run.id] = Summary(row, stamp, time.monotonic() + rest)
        return row if before is None or before.row != row else None


def stamp_of(folder: Folder, landscapes: tuple[str, ...], complete: bool = False) -> Stamp:
    """The stamp of a local run.

    Args:
        complete: whether the run is complete, so that the end of its driver changes nothing.
    """
    paths = ["run.json", "landscapes.zarr", *(f"landscapes.zarr/{name}/zarr.json" for name in landscapes)]
    for name in landscapes:  # a level is a folder with a document that records its progress
        levels = [f"landscapes.zarr/{name}/levels", *(f"landscapes.zarr/{name}/levels/{k}/zarr.json" for k in LEVELS)]
        paths += levels if file_stamp(folder, levels[0]) is not None else levels[:1]
    files = tuple(file_stamp(folder, path) for path in paths)
    return Stamp(landscapes, files, complete or driver_alive(folder.name))


def read_row(run: FoundRun) -> Row:
    """The row of a run, read from its files; it also names what cannot be read."""
    problems: list[str] = []
    try:
        opened, alive = Run(run.path), driver_alive(run.path)
        infos = read_or_note(lambda: [opened.info], problems)
        landscapes = read_landscapes(run.path, lambda store: _landscape_status(store, alive), unreadable_status)
        info = mapping(infos[0]) if infos else {}
        return dict(finite(_head(run) | _training(info, landscapes) | progress_of(landscapes, alive, problems)))
    except (LandscapeError, OSError) as error:
        problem = cause_of(error)
    except Exception as error:  # an unforeseen error concerns this run, not the others
        log.debug("the row of %s failed", run.path, exc_info=True)
        problem = f"this run cannot be read: {flat(repr(error), 200)}; `landscape view --debug` shows where"
    names = ("model", "optimiser", "learning_rate", "source", "when", "eta_seconds", "lowest", "lowest_stderr")
    unknown = dict.fromkeys(names)
    empty = {"done": 0, "points": 0, "rate": 0.0, "landscapes": []}
    return _head(run) | unknown | empty | {"state": UNREADABLE, "problem": problem, "readable": False}


def _landscape_status(store: LandscapeStore, alive: bool) -> dict[str, Any]:
    status, provenance = landscape_status(store, alive), store.record.provenance
    parts = [store.record.digest, provenance.created, status["done"], status["failed"], status["updated"]]
    status["size"] = list(reversed(store.shape))
    status["model"], status["created"] = provenance.model, provenance.created
    status["at_end"] = store.record.is_at_end
    status["generation"] = digest([str(part) for part in parts])[:16]
    return status


def _head(run: FoundRun) -> Row:
    return {"id": run.id, "name": run.name, "path": run.path}


def pending_row(run: FoundRun) -> Row:
    """The row of a run that is not read yet."""
    return _head(run) | {"pending": True}


def _training(info: Mapping[str, Any], landscapes: list[dict[str, Any]]) -> Row:
    """The training, from `run.json`, and the time of the last change of the run."""
    optimiser = info.get("optimiser", info.get("optimizer"))
    name = optimiser.get("name") if isinstance(optimiser, Mapping) else optimiser
    rate = info.get("learning_rate")
    models = [info.get("model"), info.get("network"), *(landscape.get("model") for landscape in landscapes)]
    times = [landscape.get(key) for landscape in landscapes for key in ("updated", "created")]
    when = [moment for moment in (*times, info.get("created")) if isinstance(moment, str)]
    return {
        "model": next((flat(model, 200) for model in models if isinstance(model, str) and model), None),
        "optimiser": flat(name, 200) if isinstance(name, str) else None,
        "learning_rate": rate if isinstance(rate, (int, float)) and not isinstance(rate, bool) else None,
        "source": _source_in_words(info),
        "when": max(when, default=None),
    }


def _source_in_words(info: Mapping[str, Any]) -> str | None:
    """Where an imported training came from, such as `MindSpore, folder lenet` or `7 checkpoints`; else None."""
    source, files = mapping(info.get("source")), info.get("imported")
    software, folder = source.get("software"), source.get("folder")
    if isinstance(software, str) and isinstance(folder, str):
        return flat(f"{software}, folder {folder}", 200)
    if not isinstance(files, list) or not files:
        return None
    return f"{len(files)} checkpoint{'s' * (len(files) > 1)}"


def progress_of(landscapes: list[dict[str, Any]], alive: bool, problems: list[str]) -> Row:
    """The progress of the landscapes, of each and all together."""
    states = {landscape["state"] for landscape in landscapes}
    state = next((state for state in GRAVEST if state in states), EMPTY)
    # In a run with unreadable points, the lowest loss is unknown.
    known = [one for one in landscapes if one["minimum"] and DAMAGED not in states]
    lowest = min(known, key=lambda one: one["minimum"]["loss"], default=None)
    running = [landscape for landscape in landscapes if landscape["state"] in (RUNNING, WAITING)]
    rate = sum(landscape["rate"] for landscape in running if landscape["state"] == RUNNING)
    readable = is_whole(problems, landscapes)
    damaged = (landscape for landscape in landscapes if landscape["state"] == DAMAGED)
    problems = [
        *problems,
        *(f"landscape {quoted(one['name'])}: {unreadable_in_words(one['unreadable'])}" for one in damaged),
    ]
    problems += [problem for landscape in landscapes for problem in landscape["problems"]]
    return {
        "state": RUNNING if alive and state == EMPTY else state,
        "done": sum(landscape["done"] for landscape in landscapes),
        "points": sum(landscape["points"] for landscape in landscapes),
        "rate": rate,
        # Holds whether landscapes are computed at once or one after another, and counts those that have not begun.
        "eta_seconds": seconds_left(sum(landscape["missing"] for landscape in running), rate, RUNNING),
        "lowest": lowest["minimum"]["loss"] if lowest else None,
        "lowest_stderr": lowest["minimum_stderr"] if lowest else None,
        "problem": problems[0] if problems else "",
        "readable": readable,
        "landscapes": [_landscape_row(landscape) for landscape in landscapes],
    }


def _landscape_row(status: Mapping[str, Any]) -> Row:
    row = {key: status.get(key) for key in ("name", "size", "state", "done", "points", "generation", "at_end")}
    lowest = None if status["state"] == DAMAGED else status["minimum"].get("loss")
    return row | {"size": row["size"] or [], "lowest": lowest}


# ----------------------------------------------------------------------------------------------------
# The runs below a folder: their content, progress, size and age. Only reads.

# A run that another process is removing looks damaged until it is gone. A damaged run is therefore read again after a
# pause, until no more files vanish, or `MOST_READINGS` times.
PAUSE_SECONDS, MOST_READINGS = 0.2, 25
DATED = (HISTORY_FILE, MEASURES_FILE, TRAJECTORY, CHECKPOINTS)  # whose times count beside those that landscapes record
PARTS = {"landscapes": "landscapes.zarr", "trajectory": TRAJECTORY, "checkpoints": CHECKPOINTS}  # their folders


def list_runs(folder: str | Path = ".", older_than: float | None = None) -> list[dict[str, Any]]:
    """The runs in a folder or at a URL, at every depth, sorted by name; the folder itself may be a run.

    Runs that other processes remove meanwhile are left out.

    Args:
        older_than: seconds; only runs that were last written longer ago, and that nothing writes now.

    Returns:
        A dict per run: `run` (its path), `name` (its path below the folder), `state` (running, unreadable, damaged,
        interrupted, partial, complete, or empty if it has no landscapes), `done` and `points` (evaluations), `bytes`
        (of all its files; None if unknown), `parts` (bytes of its landscapes, trajectory and checkpoints), `changed`
        (the time of the last write, in ISO format), `age_seconds` (since then), `landscapes` (of each its name, size,
        state, done, points), `model`, `source` (where an imported training came from; else None), `training` (the
        state of its training; None if `landscape train` did not begin it), `problem` (the first one, as a phrase), and
        `readable` (False if a part of it cannot be read, nor its copy in the root's document).

    Raises:
        JobError: `older_than` is no number of seconds.
        NotFoundError: there is no such folder.
        LandscapeError: the folder cannot be searched.

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
    if older_than is not None and not (is_number(older_than) and older_than >= 0):
        raise JobError(f"older_than: must be a number of seconds from 0, not {quoted(older_than)}")
    place = search(open_place(str(folder)))
    if place.problem:
        open_place(str(folder))  # refuses a folder that was removed meanwhile
        raise LandscapeError(f"folder {quoted(place.name)} cannot be searched: {place.problem}")
    rows = [_row(run) for run in place.runs]
    return [row for row in rows if row is not None and (older_than is None or _is_older(row, older_than))]


def _is_older(row: Mapping[str, Any], seconds: float) -> bool:
    if row["age_seconds"] is None or row["age_seconds"] <= seconds or RUNNING in (row["state"], row["training"]):
        return False
    return not living_measurement(row["run"])


def _row(run: FoundRun) -> dict[str, Any] | None:
    """The row of a run; None if it was removed meanwhile."""
    row, usage = _settled_row(run), _usage(run)
    when = _last_write(run, row.get("when"), usage or {})
    training, problem = _listed_training(run)
    if problem:
        row |= {"problem": row["problem"] or problem, "readable": False}
    if not _is_there(run):
        return None
    names = ("name", "state", "done", "points", "landscapes", "model", "source", "problem", "readable")
    return {
        "run": run.path,
        **{name: row.get(name) for name in names},
        "training": training,
        "bytes": None if usage is None else sum(one.bytes for one in usage.values()),
        "parts": {part: None if usage is None else usage.get(name, Usage()).bytes for part, name in PARTS.items()},
        "changed": when.isoformat(timespec="seconds") if when else None,
        "age_seconds": max(0.0, (datetime.now(UTC) - when).total_seconds()) if when else None,
    }


def _listed_training(run: FoundRun) -> tuple[str | None, str]:
    """The state of a run's training, None if there is none; and why it cannot be read, empty if it can."""
    try:
        training = training_state(run.path, log_end(run.path))
    except (LandscapeError, OSError) as error:
        return None, cause_of(error)
    return None if training is None else training["state"], ""


def _settled_row(run: FoundRun) -> dict[str, Any]:
    """The row of a run; if something cannot be read, the row once no more files vanish."""
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
    """Whether a folder is still a run, or cannot be listed."""
    folder = open_folder(run.path)
    try:
        return not {*folder.names(""), *folder.folders("")}.isdisjoint(MARKS)
    except (LandscapeError, OSError):
        return True


def _files(folder: Folder) -> set[str]:
    """The paths of the files of all landscapes; empty if they cannot be listed."""
    try:
        return set(folder.stamps("landscapes.zarr"))
    except (LandscapeError, OSError):
        return set()


def _usage(run: FoundRun) -> dict[str, Usage] | None:
    try:
        return usage_of(run.path)
    except LandscapeError:
        return None


def _last_write(run: FoundRun, recorded: Any, usage: Mapping[str, Usage]) -> datetime | None:
    """The time of the last write of a run, as its landscapes record it, or by the files beside them if later.

    A local run that has neither has the time of its folders.
    """
    times = [one.changed for name, one in usage.items() if name in DATED]
    with contextlib.suppress(ValueError):
        time_recorded = datetime.fromisoformat(str(recorded))
        times.append(time_recorded if time_recorded.tzinfo else time_recorded.replace(tzinfo=UTC))
    if not times and (nanoseconds := changed(run)):
        return datetime.fromtimestamp(nanoseconds / 1e9, UTC)
    return max((time for time in times if time is not None), default=None)
