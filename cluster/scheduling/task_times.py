"""How long tasks take: which task each worker is running and since when, and the median of those that have ended."""

from __future__ import annotations

import statistics
from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")

KEPT_DURATIONS = 101  # of the last tasks, from which the median is taken


class TaskTimes(Generic[T]):
    """The running tasks, the oldest first, and the durations of the last ones, on a clock that never leaps.

    Args:
        longest_step: seconds; a clock that jumps further than this, or back, says nothing about the tasks.
    """

    def __init__(self, longest_step: float) -> None:
        self._longest_step = longest_step
        # Worker → its running task and since when; a start is always later than those before it.
        self._running: OrderedDict[str, tuple[T, float]] = OrderedDict()
        self._durations: deque[float] = deque(maxlen=KEPT_DURATIONS)
        self._median: float | None = None
        self._time = 0.0
        self._last: float | None = None

    def advance(self, now: float) -> None:
        """Follow the clock, but neither back nor by a leap."""
        if self._last is not None:
            self._time += min(max(now - self._last, 0.0), self._longest_step)
        self._last = now

    def is_running(self, worker: str) -> bool:
        """Whether a running task is known of the worker."""
        return worker in self._running

    def began(self, worker: str, task: T) -> None:
        """Note that the worker has begun a task."""
        self._running[worker] = (task, self._time)

    def ended(self, worker: str) -> None:
        """Note that the worker's running task has ended, and how long it took."""
        started = self._running.pop(worker, None)
        if started is not None:
            self._durations.append(self._time - started[1])
            self._median = None

    def forget(self, worker: str) -> None:
        """Drop the running task of a worker that is gone."""
        self._running.pop(worker, None)

    @property
    def count(self) -> int:
        """How many durations are known, up to the number that is kept."""
        return len(self._durations)

    @property
    def median(self) -> float | None:
        """The median seconds of the last tasks; None before the first has ended."""
        if self._median is None and self._durations:
            self._median = statistics.median(self._durations)
        return self._median

    def longer_than(self, seconds: float) -> Iterator[str]:
        """The workers whose task has run for longer, the longest first."""
        for worker, (_, since) in self._running.items():
            if self._time - since <= seconds:
                return  # the oldest come first: the others have run for less
            yield worker
