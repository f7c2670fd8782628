"""The runs below a folder: what each holds, how far it is, how much it takes and how old it is. Only reads."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from landscape.core.errors import LandscapeError, shown
from landscape.core.files import Folder
from landscape.core.folders import bytes_of, open_folder
from landscape.model.history import log_end, training_state
from landscape.store.places import MARKS, FoundRun, changed, open_place, search
from landscape.store.state import cause_of
from landscape.store.status import read_row

# A run that another process is removing looks damaged until it is gone. What looks so is therefore read again after a
# pause, until none of its files has vanished meanwhile; at most so often.
PAUSE_SECONDS, MOST_READINGS = 0.2, 25


def list_runs(folder: str | Path = ".") -> list[dict[str, Any]]:
    """The runs in a folder or at a URL, at every depth, sorted by name; the folder itself may be a run.

    What other processes remove meanwhile is left out.

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
        raise LandscapeError(f"folder {shown(place.name)} cannot be searched: {place.problem}")
    rows = [_row(run) for run in place.runs]
    return [row for row in rows if row is not None]


def _row(run: FoundRun) -> dict[str, Any] | None:
    """The row of a run; None where it was removed meanwhile."""
    row = _settled_row(run)
    when = _changed(run, row.get("when"))
    names = ("name", "state", "done", "points", "landscapes", "model", "problem", "readable")
    kept = {key: row.get(key) for key in names}
    training, problem = _training(run)
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


def _training(run: FoundRun) -> tuple[str | None, str]:
    """The state of a run's training, None where there is none; and why it cannot be told, empty where it can."""
    try:
        training = training_state(run.path, log_end(run.path))
    except (LandscapeError, OSError) as error:
        return None, cause_of(error)
    return None if training is None else training["state"], ""


def _settled_row(run: FoundRun) -> dict[str, Any]:
    """What the files of a run say; where something cannot be read, when nothing vanishes any more."""
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
    """Whether what makes a folder a run is still there, or cannot be looked at."""
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
    """When a run was last written, as it records, or as the times of a local one's folders say."""
    try:
        noted = datetime.fromisoformat(str(recorded))
    except ValueError:
        nanoseconds = changed(run)
        return datetime.fromtimestamp(nanoseconds / 1e9, UTC) if nanoseconds else None
    return noted if noted.tzinfo else noted.replace(tzinfo=UTC)
