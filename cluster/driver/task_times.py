"""How long tasks take: which task each worker is running and since when, and the medians of those that have ended."""

from __future__ import annotations

import statistics
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")

KEPT_DURATIONS = 101  # of the last tasks of a kind, from which the median is taken


class TaskTimes(Generic[T]):
    """The running tasks, the oldest first, and the durations of the last ones, on a clock that never leaps.

    Args:
        longest_step: seconds; a clock that jumps further than this, or back, says nothing about the tasks.
        kind: of a task; those of one kind take about as long as one another.
    """

    def __init__(self, longest_step: float, kind: Callable[[T], Hashable]) -> None:
        self._longest_step, self._kind = longest_step, kind
        # Worker → its running task and since when; a start is always later than those before it.
        self._running: OrderedDict[str, tuple[T, float]] = OrderedDict()
        self._durations: dict[Hashable, deque[float]] = {}
        self._medians: dict[Hashable, float] = {}
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
            kind = self._kind(started[0])
            self._durations.setdefault(kind, deque(maxlen=KEPT_DURATIONS)).append(self._time - started[1])
            self._medians.pop(kind, None)

    def forget(self, worker: str) -> None:
        """Drop the running task of a worker that is gone."""
        self._running.pop(worker, None)

    def beyond(self, limit: Callable[[float], float], least: int = 1) -> Iterator[str]:
        """The workers whose task has run for longer than a limit, the longest first.

        Args:
            limit: from the median seconds of the last tasks of the same kind.
            least: how many of these must have ended; those of a kind of which fewer have are let be.
        """
        limits = {kind: limit(self._median(kind)) for kind, ended in self._durations.items() if len(ended) >= least}
        lowest = min(limits.values(), default=None)
        for worker, (task, since) in self._running.items():
            if lowest is None or self._time - since <= lowest:
                return  # the oldest come first: the others have run for less
            known = limits.get(self._kind(task))
            if known is not None and self._time - since > known:
                yield worker

    def _median(self, kind: Hashable) -> float:
        if kind not in self._medians:
            self._medians[kind] = statistics.median(self._durations[kind])
        return self._medians[kind]
