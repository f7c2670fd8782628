"""How far a landscape is: counted while it is computed, and kept in its attributes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Protocol

from landscape.progress import Failure, Progress
from landscape.record import ProgressRecord, WorkerRecord
from landscape.store import LandscapeStore

SECONDS_BETWEEN_UPDATES = 2.0  # of the attributes on disk; an observer is told every time
SHARE_OF_UPDATES = 0.01  # of the time: ten thousand workers make a long record


class Accountable(Protocol):
    """A worker that says what it has done."""

    def record(self) -> WorkerRecord: ...


class Tally:
    """Counts one landscape's tasks and keeps `progress` and `failures` in its attributes up to date.

    Points include the path's evaluations. What earlier sessions did counts as done, but not in the rate.
    """

    def __init__(
        self, store: LandscapeStore, points: int, missing_points: int, tasks: int, missing_tasks: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._store, self._clock, self._start = store, clock, clock()
        self._next_update = float("-inf")
        self._points, self._before = points, points - missing_points
        self._tasks, self._tasks_before = tasks, tasks - missing_tasks
        self._points_done = self._tasks_done = self._given_up = self.retries = 0
        earlier = store.record.progress
        self._seconds_before = earlier.seconds or 0.0
        self._reduced = dict(earlier.reduced_batches)
        # A failure of an earlier session stands until its task is done.
        self._failures = {failure.task: failure for failure in store.record.failures}
        self.workers: Mapping[str, Accountable] = {}  # by name; may change, and is read each time that it is written

    def done(self, task: str, points: int, batch_size: int | None = None) -> None:
        """A task is committed; `batch_size` is what it needed where the planned one did not fit the memory."""
        self._points_done += points
        self._tasks_done += 1
        self._failures.pop(task, None)
        if batch_size is not None:
            self._reduced[task] = batch_size
        self._update()

    def fail(self, failure: Failure) -> None:
        self._given_up += 1
        self._failures.pop(failure.task, None)  # the latest come last
        self._failures[failure.task] = failure
        self._write("running")

    @property
    def idle(self) -> bool:
        """Whether nothing was done since it began."""
        return not self._tasks_done and not self._given_up

    @property
    def failures(self) -> list[Failure]:
        return list(self._failures.values())

    def _update(self) -> None:
        begun = self._clock()
        if begun >= self._next_update:
            self._write("running")
            took = self._clock() - begun
            self._next_update = begun + max(SECONDS_BETWEEN_UPDATES, took / SHARE_OF_UPDATES)

    def progress(self) -> Progress:
        elapsed = max(0.0, self._clock() - self._start)  # a clock may leap back
        return Progress(
            self._store.name,
            self._tasks_before + self._tasks_done,
            self._tasks,
            self._before + self._points_done,
            self._points,
            self._seconds_before + elapsed,
            self._points_done / elapsed if elapsed > 0 else 0.0,
            len(self._failures),
            max(1, len(self.workers)),
            self.retries,
        )

    def close(self) -> None:
        """Nothing is left to do: correct what a driver that was killed after its last tile could not record."""
        if self._store.record.progress.state != "complete":
            self.finish()

    def finish(self, state: str | None = None) -> None:
        """Record the end: `complete`, `partial` where tasks were given up, or as `state` says."""
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
