"""The state of the landscapes of a run: how much is done, missing and failed, at what rate, and for how long."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from landscape.core.errors import LandscapeError, NotFoundError, StoreError, flat
from landscape.core.files import Place
from landscape.store.examination import has_constant_loss, loss_stderr_at
from landscape.store.landscape import LandscapeStore
from landscape.store.runs import is_there, survey
from landscape.surface.record import Record, plain
from landscape.surface.record_parts import AccuracyRecord
from landscape.surface.surface import NOT_COMPUTED, NOT_FINITE, OK, QUARANTINED

T = TypeVar("T")

COMPLETE, PARTIAL, RUNNING, INTERRUPTED = "complete", "partial", "running", "interrupted"
WAITING = "waiting"  # for the landscapes before it, which its driver computes first
UNREADABLE = "unreadable"  # a landscape that cannot be opened
DAMAGED = "damaged"  # a landscape with points that cannot be read
MOST_TILES = 10_000  # in larger landscapes, the lowest loss is not searched: that would read a chunk of every tile


def read_landscapes(
    run: Place, read: Callable[[LandscapeStore], dict[str, Any]], unreadable: Callable[[str, str], dict[str, Any]]
) -> list[dict[str, Any]]:
    """The result of `read` for each landscape of a run, in the job's order; unreadable ones come first, by name.

    Args:
        unreadable: makes the entry of an unreadable landscape from its name and the cause.

    Raises:
        StoreError: the store does not answer; this says nothing about the landscapes.
    """
    landscapes = survey(run)
    entries = {name: unreadable(name, cause) for name, cause in sorted(landscapes.unreadable.items())}
    for name in landscapes.names:
        try:
            entries[name] = read(LandscapeStore.open(run, name))
        except StoreError:
            raise
        except NotFoundError:
            continue  # removed meanwhile
        except (LandscapeError, OSError) as error:
            if is_there(run, name):  # if not, it was removed meanwhile
                entries[name] = unreadable(name, cause_of(error))
    if turn := in_turn([(name, entry.get("state", "")) for name, entry in entries.items()]):
        entries[turn]["state"] = RUNNING
    return list(entries.values())


def cause_of(error: Exception) -> str:
    """The cause of a failed read, as a phrase of one line that names the file."""
    if isinstance(error, OSError) and error.strerror:
        return flat(f"{error.filename}: {error.strerror}" if error.filename else error.strerror)
    return flat(str(error), 1000)


def read_or_note(read: Callable[[], list[T]], problems: list[str]) -> list[T]:
    """The result of `read`; if that fails, an empty list, and the cause is added to `problems`.

    Raises:
        StoreError: the store does not answer.
    """
    try:
        return read()
    except StoreError:
        raise
    except (LandscapeError, OSError) as error:
        problems.append(cause_of(error))
        return []


def finite(value: Any) -> Any:
    """The same value with None for numbers that are not finite, which JSON cannot hold."""
    if isinstance(value, dict):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def state_of_counts(record: Record, counts: Sequence[int], alive: bool, unreadable: int = 0) -> str:
    """The state of a landscape; of one that waits while no other runs, `in_turn` says more.

    Args:
        record: of the landscape, with the progress of the part that is computed now.
        counts: its evaluations by status, 0 to 3, as `LandscapeStore.counts`; those that cannot be read count as
            missing, or as what their status said.
        alive: whether its driver is.
        unreadable: how many evaluations cannot be read.
    """
    missing, failed = counts[NOT_COMPUTED], counts[QUARANTINED]
    if alive and (missing or unreadable):  # its driver will compute missing and damaged points
        return RUNNING if record.progress.state == RUNNING else WAITING
    if unreadable:
        return DAMAGED
    if missing:
        return PARTIAL if record.is_imported else INTERRUPTED  # no job will compute the rest of an imported one
    return PARTIAL if failed else COMPLETE


def in_turn(states: Sequence[tuple[str, str]]) -> str:
    """The name of the landscape that a driver computes before its first tile is recorded; '' if another one runs.

    Args:
        states: the name and the state, by `state_of_counts`, of each landscape in the job's order.

    >>> in_turn([("a", "complete"), ("b", "waiting"), ("c", "waiting")]), in_turn([("a", "running"), ("b", "waiting")])
    ('b', '')
    """
    if any(state == RUNNING for _, state in states):
        return ""
    return next((name for name, state in states if state == WAITING), "")


def unreadable_in_words(points: int, run: str = "RUN") -> str:
    """The message that some points cannot be read, with the command that names their files."""
    return f"{points} point{'s' * (points != 1)} cannot be read; `landscape validate {run}` names the damaged files"


def is_whole(problems: Sequence[str], landscapes: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the whole run could be read: it has no problem, and no landscape is unreadable or damaged."""
    return not problems and all(landscape["state"] not in (UNREADABLE, DAMAGED) for landscape in landscapes)


def seconds_left(missing: int, rate: float | None, state: str) -> float | None:
    """Seconds until a running landscape is done at this rate, in points per second; None if unknown."""
    return missing / rate if rate and missing and state == RUNNING else None


def unreadable_status(name: str, cause: str) -> dict[str, Any]:
    """The status of a landscape that cannot be read."""
    counts = dict.fromkeys(("points", "done", "not_finite", "missing", "failed", "unreadable", "path_points"), 0)
    names = (
        "minimum_stderr",
        "seconds",
        "engine",
        "precision",
        "quantised",
        "precision_error",
        "workers",
        "updated",
        "eta_seconds",
    )
    unknown = dict.fromkeys((*names, "own_model", "accuracy"))
    unknown["unit"] = "points"
    empty: dict[str, Any] = {
        "rate": 0.0, "retries": 0, "by_worker": [], "levels": [], "paths": [], "found_range": {},
        "reduced_batches": {}, "minimum": {}, "constant": False, "failures": [],
    }  # fmt: skip
    return {"name": name, "state": UNREADABLE, **counts, **unknown, **empty, "problems": [cause]}


def counts_of_rounds(record: Record) -> NDArray[np.int64]:
    """The evaluations of a landscape with an accuracy, by status: those of all rounds so far, as recorded."""
    accuracy, progress = record.accuracy, record.progress
    assert accuracy is not None
    done, planned = progress.points_done or 0, progress.points or 0
    missing = max(planned - done, 0 if accuracy.stopped else 1)
    failed = missing if accuracy.stopped == "given up" else 0
    return np.array([missing - failed, done, 0, failed], np.int64)


def _accuracy(record: AccuracyRecord) -> dict[str, Any]:
    """What is asked for, what is reached, and with what."""
    return {**plain(record), "text": record.text, "ending": record.ending}


def landscape_status(store: LandscapeStore, alive: bool) -> dict[str, Any]:
    """The state of a landscape, counted from the status of its points and not from the recorded progress.

    Args:
        alive: whether the driver of its run is.
    """
    record = store.record
    own, levels = store.counts(), [(level, level.counts()) for level in store.levels()]
    current = next((level.record for level, of_level in levels if of_level[NOT_COMPUTED]), record)
    progress = current.progress  # of the unfinished level, if any, which a job computes now
    counts = own + sum(of_level for _, of_level in levels)
    if record.accuracy is not None:
        counts = counts_of_rounds(record)
    missing, failed = int(counts[NOT_COMPUTED]), int(counts[QUARANTINED])
    lowest, lowest_stderr, unreadable = _lowest_and_unreadable([store, *(level for level, _ in levels)])
    state = state_of_counts(record.changed(progress=progress), counts.tolist(), alive, unreadable)
    rate = progress.rate or 0.0
    return {
        "name": store.name,
        "state": state,
        "points": int(sum(counts)),
        "unit": "points" if record.accuracy is None else "evaluations",
        "accuracy": None if record.accuracy is None else _accuracy(record.accuracy),
        "path_points": int(sum(own)) - math.prod(store.shape),
        "paths": path.labels if store.has_path and (path := store.path_plan()) is not None else [],
        "levels": [_level_status(level, of_level) for level, of_level in levels],
        "done": int(counts[OK] + counts[NOT_FINITE]),
        "not_finite": int(own[NOT_FINITE] if record.accuracy is not None else counts[NOT_FINITE]),
        "missing": missing,
        "failed": failed,
        "unreadable": unreadable,
        "rate": rate,
        "eta_seconds": seconds_left(missing, rate, state),
        "seconds": sum(part.record.progress.seconds or 0.0 for part in (store, *(level for level, _ in levels)))
        or None,
        "engine": record.plan.engine if record.plan else None,
        "precision": record.precision,
        "quantised": record.rounding_in_words or None,
        "precision_error": plain(record.precision_error),
        "workers": progress.workers,
        "by_worker": plain(progress.by_worker),
        "reduced_batches": progress.reduced_batches,
        "retries": progress.retries,
        "updated": progress.updated,
        "own_model": plain(record.own_model),
        "found_range": _found_range(store),
        "minimum": lowest,
        "minimum_stderr": lowest_stderr,
        "constant": store.tile_count <= MOST_TILES and has_constant_loss(store.arrays),
        "origin": record.origin_name or None,
        "origin_loss": record.origin_loss,
        "origin_loss_stderr": record.origin_loss_stderr,
        "guessing": record.guessing,
        "no_better_than_guessing": bool(record.guessing_in_words),
        "failures": plain([*record.failures, *(failure for level, _ in levels for failure in level.record.failures)]),
        "problems": [*store.own_problems, *(problem for level, _ in levels for problem in level.own_problems)],
    }


def _found_range(store: LandscapeStore) -> dict[str, float]:
    """The radius of each axis that `range: auto` found; empty if the range was given, or was widened since."""
    found_range, grid = store.record.found_range, store.grid() if store.record.found_range is not None else None
    if found_range is None or grid is None or len(found_range.axes) != len(grid.names):
        return {}
    ends = [(float(axis[0]), float(axis[-1])) for axis in grid.coordinates]
    radii = [axis.radius for axis in found_range.axes]
    return dict(zip(grid.names, radii, strict=True)) if ends == [(-radius, radius) for radius in radii] else {}


def _lowest_and_unreadable(stores: list[LandscapeStore]) -> tuple[dict[str, float], float | None, int]:
    """The lowest loss of a landscape and of its levels, its standard error, and the number of their unreadable points.

    The lowest loss is empty if it is unknown. Landscapes of many tiles are not searched: that would take long.
    """
    if sum(store.tile_count for store in stores) > MOST_TILES:
        return {}, None, 0
    results = [(store, *store.minimum()) for store in stores]
    known = [(store, low) for store, low, _ in results if low]
    unreadable = sum(unreadable for _, _, unreadable in results)
    if not known:
        return {}, None, unreadable
    store, lowest = min(known, key=lambda one: one[1]["loss"])
    return lowest, loss_stderr_at(store.arrays, lowest), unreadable


def _level_status(level: LandscapeStore, counts: NDArray[np.int64]) -> dict[str, Any]:
    """The state of a level: its number, its points, and how many of them are missing and given up."""
    missing, failed = int(counts[NOT_COMPUTED]), int(counts[QUARANTINED])
    return {"level": level.level, "points": int(sum(counts)), "missing": missing, "failed": failed}
