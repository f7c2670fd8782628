"""The runs below a folder: what each holds, how far it is, how much it takes and how old it is. Only reads."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from landscape.errors import LandscapeError
from landscape.folders.sizes import bytes_of
from landscape.page.places import FoundRun, changed, open_place, search
from landscape.page.summaries import read_row


def list_runs(folder: str | Path = ".") -> list[dict[str, Any]]:
    """The runs in a folder or at a URL, at every depth, sorted by name; the folder itself may be a run.

    Returns:
        A dict per run: `run` (its path), `name` (its path below the folder), `state` (running, unreadable, interrupted,
        partial, complete, or empty where it has no landscapes), `done` and `points` (evaluations), `bytes` (of all its
        files; None where they cannot be told), `changed` (when it was last written, in ISO format), `age_seconds`
        (since then), `landscapes` (of each its name, size, state, done, points), `model`, and `problem`.

    Raises:
        NotFoundError: there is no such folder.
        LandscapeError: it cannot be searched.

    Example:
        >>> import torch
        >>> from landscape import Job, Problem, run
        >>> def problem():
        ...     return Problem.supervised(torch.nn.Linear(2, 2), (torch.ones(8, 2), torch.zeros(8).long()))
        >>> landscapes = [{"name": "a", "size": 3}]
        >>> _ = run(Job(run="studies/one", problem=problem, num_samples=8, tile=3, landscapes=landscapes))
        >>> [(row["name"], row["state"]) for row in list_runs("studies")]
        [('one', 'complete')]
    """
    place = search(open_place(str(folder)))
    if place.problem:
        raise LandscapeError(f"folder {place.name!r} cannot be searched: {place.problem}")
    return [_row(run) for run in place.runs]


def _row(run: FoundRun) -> dict[str, Any]:
    row = read_row(run)
    when = _changed(run, row.get("when"))
    kept = {key: row.get(key) for key in ("name", "state", "done", "points", "landscapes", "model", "problem")}
    return {
        "run": run.path,
        **kept,
        "bytes": _bytes(run),
        "changed": when.isoformat(timespec="seconds") if when else None,
        "age_seconds": max(0.0, (datetime.now(UTC) - when).total_seconds()) if when else None,
    }


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
