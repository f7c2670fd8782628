"""A row per run for the list: what was trained, what there is of landscapes, how far they are, their lowest loss."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from landscape.core.digests import digest
from landscape.core.errors import LandscapeError, flat, shown
from landscape.core.files import Folder
from landscape.core.folders import open_folder
from landscape.core.lock import driver_alive
from landscape.store import LandscapeStore
from landscape.store.places import FoundRun
from landscape.store.results import Run
from landscape.store.stamps import file_stamp
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

log = logging.getLogger("landscape.page")

EMPTY = "empty"  # the state of a run without landscapes
# The first of these among its landscapes' states is the run's state.
GRAVEST = (RUNNING, UNREADABLE, DAMAGED, INTERRUPTED, PARTIAL, COMPLETE)
LEVELS = range(1, MOST_LEVELS + 1)
REST = 50  # times as long as its row took to read, a run is not read again
REMOTE_SECONDS, REMOTE_DONE_SECONDS = 10.0, 120.0  # after which a run in an object store is read again

Row = dict[str, Any]


@dataclass(frozen=True)
class Summary:
    """A row, what the run's files were like before it was read, and when to look again at the earliest."""

    row: Row
    stamp: Stamp | None
    again: float


@dataclass(frozen=True)
class Stamp:
    """What changes whenever the row of a local run may: its files, and whether its driver lives."""

    landscapes: tuple[str, ...]
    files: tuple[object, ...]
    alive: bool


class Summaries:
    """The rows of all runs, each read again only where its files have changed. One thread reads."""

    def __init__(self) -> None:
        self._known: dict[str, Summary] = {}

    def row(self, run: FoundRun) -> Row:
        """The row of a run as far as it is known; one that is not read yet is pending."""
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
        # New landscapes show by the time of their folder, so that they need not be listed here.
        now = stamp_of(open_folder(run.path), known.stamp.landscapes, known.row["state"] == COMPLETE)
        return known.stamp != now

    def read(self, run: FoundRun) -> Row | None:
        """Read the row of a run; None where it is as it was."""
        begun, before = time.monotonic(), self._known.get(run.id)
        folder = open_folder(run.path)
        # Before the row is read: what is written meanwhile is then read again, where a later stamp would hide it.
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
        complete: the row is that of a complete run, on which a driver that ends changes nothing.
    """
    paths = ["run.json", "landscapes.zarr", *(f"landscapes.zarr/{name}/zarr.json" for name in landscapes)]
    for name in landscapes:  # levels come and go as folders, and each has a document that tells how far it is
        levels = [f"landscapes.zarr/{name}/levels", *(f"landscapes.zarr/{name}/levels/{k}/zarr.json" for k in LEVELS)]
        paths += levels if file_stamp(folder, levels[0]) is not None else levels[:1]
    files = tuple(file_stamp(folder, path) for path in paths)
    return Stamp(landscapes, files, complete or driver_alive(folder.name))


def read_row(run: FoundRun) -> Row:
    """The row of a run, read from its files; what cannot be read is told in it."""
    problems: list[str] = []
    try:
        opened, alive = Run(run.path), driver_alive(run.path)
        infos = or_note(lambda: [opened.info], problems)
        landscapes = each_landscape(run.path, _landscape(alive), lambda name, cause: unreadable_status(name, cause))
        info = mapping(infos[0]) if infos else {}
        return dict(finite(_head(run) | _training(info, landscapes) | progress_of(landscapes, alive, problems)))
    except (LandscapeError, OSError) as error:
        problem = cause_of(error)
    except Exception as error:  # what no reader has foreseen is told of this run, and does not take the others along
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
    """How far the landscapes are, one by one and all together."""
    states = {each["state"] for each in landscapes}
    state = next((one for one in GRAVEST if one in states), EMPTY)
    # Of a run with points that cannot be read, the lowest loss is not known.
    lowest = [each["minimum"]["loss"] for each in landscapes if each["minimum"] and DAMAGED not in states]
    running = [each for each in landscapes if each["state"] == RUNNING]
    rate = sum(each["rate"] for each in running)
    readable = all_read(problems, landscapes)
    damaged = {each["name"]: each["unreadable"] for each in landscapes if each["state"] == DAMAGED}
    told = (f"landscape {shown(name)}: {unreadable_in_words(points)}" for name, points in damaged.items())
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
