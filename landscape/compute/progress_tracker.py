"""The progress of a landscape: counted while it is computed, and written to its record."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Protocol

from landscape.compute.prepared import PreparedLandscape
from landscape.compute.tasks import OpenLandscape
from landscape.core.progress import Progress
from landscape.store.landscape import LandscapeStore
from landscape.surface.record_parts import Failure, ProgressRecord, WorkerRecord

SECONDS_BETWEEN_UPDATES = 2.0  # of the record, at least

SHARE_OF_UPDATES = 0.01  # of the time, at most, for writing the record: that of ten thousand workers is long


class ReportingWorker(Protocol):
    """A worker that reports its work for the landscape."""

    def record(self) -> WorkerRecord:
        """The worker's record: its place, its device and its work so far."""


class Tally:
    """Counts the tasks of one landscape and keeps `progress` and `failures` in its record up to date.

    Points include the evaluations of the path. Work of earlier sessions counts as done, but not in the rate. A driver
    may set `workers`, by name, and `retries`; both are read whenever the record is written.
    """

    def __init__(
        self, store: LandscapeStore, points: int, missing_points: int, tasks: int, missing_tasks: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """
        Args:
            store: the landscape that is written to.
            points: the evaluations of the whole landscape.
            missing_points: the evaluations left to this session.
            tasks: the tasks of the whole landscape.
            missing_tasks: the tasks left to this session.
            clock: seconds from any zero; the rate is counted from the call of this constructor.
        """
        self._store, self._clock, self._start = store, clock, clock()
        self._next_update = float("-inf")
        self._points, self._before = points, points - missing_points
        self._tasks, self._tasks_before = tasks, tasks - missing_tasks
        self._points_done = self._tasks_done = self._given_up = self._points_given_up = self.retries = 0
        earlier = store.record.progress
        self._seconds_before = earlier.seconds or 0.0
        self._reduced = dict(earlier.reduced_batches)
        # A failure of an earlier session stands until its task is done.
        self._failures = {failure.task: failure for failure in store.record.failures}
        self.workers: Mapping[str, ReportingWorker] = {}

    def count_done(self, task: str, points: int, batch_size: int | None = None) -> None:
        """Count a task that is committed.

        Args:
            task: its label.
            points: its evaluations.
            batch_size: the one in use, if the planned one did not fit the memory.
        """
        self._points_done += points
        self._tasks_done += 1
        self._failures.pop(task, None)
        if batch_size is not None:
            self._reduced[task] = batch_size
        self._update()

    def count_given_up(self, failure: Failure, points: int) -> None:
        """Count a task that was given up, with its number of evaluations, and write the record at once."""
        self._given_up += 1
        self._points_given_up += points
        self._failures.pop(failure.task, None)  # so that the latest failure stands last
        self._failures[failure.task] = failure
        self._write("running")

    def add(self, points: int, tasks: int) -> None:
        """Count further evaluations and tasks that are to be done: those of another round."""
        self._points += points
        self._tasks += tasks

    @property
    def seconds(self) -> float:
        """The seconds of all sessions so far."""
        return self._seconds_before + max(0.0, self._clock() - self._start)

    @property
    def idle(self) -> bool:
        """Whether this session has neither committed nor given up a task."""
        return not self._tasks_done and not self._given_up

    @property
    def failures(self) -> list[Failure]:
        """The tasks that were given up and have not been done since, the latest last."""
        return list(self._failures.values())

    def _update(self) -> None:
        begun = self._clock()
        if begun >= self._next_update:
            self._write("running")
            took = self._clock() - begun
            self._next_update = begun + max(SECONDS_BETWEEN_UPDATES, took / SHARE_OF_UPDATES)

    def progress(self) -> Progress:
        """The current progress, as observers get it."""
        elapsed = max(0.0, self._clock() - self._start)  # a clock may be set back
        accuracy = self._store.record.accuracy
        return Progress(
            self._store.name,
            self._tasks_before + self._tasks_done,
            self._tasks,
            self._before + self._points_done,
            self._points if accuracy is None else max(self._points, accuracy.evaluations + accuracy.rest),
            self._seconds_before + elapsed,
            self._points_done / elapsed if elapsed > 0 else 0.0,
            len(self._failures),
            max(1, len(self.workers)),
            self.retries,
            self._points_given_up,
            "points" if accuracy is None else "evaluations",
            "" if accuracy is None or not accuracy.rounds else f"true to {accuracy.amount(accuracy.reached)} so far",
        )

    def close(self) -> None:
        """Record that the landscape is complete, if a driver was killed after its last tile and could not."""
        if self._store.record.progress.state != "complete":
            self.finish()

    def finish(self, state: str | None = None) -> None:
        """Record the end: `state`, or `partial` if tasks were given up, else `complete`."""
        self._write(state or ("partial" if self._failures else "complete"))
        self._store.consolidate()

    def _write(self, state: str) -> None:
        now = self.progress()
        progress = ProgressRecord(
            state=state,
            tiles_done=now.tasks_done,
            tiles=now.tasks,
            points_done=now.points_done,
            points=now.points,
            seconds=round(now.seconds, 3),
            rate=round(now.rate, 3),
            workers=now.workers,
            by_worker=tuple(worker.record() for worker in self.workers.values()),
            retries=now.retries,
            reduced_batches=dict(self._reduced),
            updated=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        self._store.update_attributes(progress=progress, failures=self.failures)


def start_tally(opened: OpenLandscape, landscape: PreparedLandscape) -> Tally:
    """The tally of a landscape from now on; tasks on disk count as done."""
    store, tasks = opened.store, opened.tasks
    path_tasks = -(-len(landscape.path.step) // store.path_chunk) if landscape.path else 0
    whole = store.tile_count if opened.rounds is None else opened.rounds.chunks
    points = landscape.points if opened.all_points is None else opened.all_points
    return Tally(store, points, opened.points, whole + path_tasks, len(tasks))
