"""Pure decisions: which task goes to which worker, what is tried again, what is given up. No Ray, no clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

T = TypeVar("T", bound=Hashable)

IN_FLIGHT = 2  # the next task is at the worker when it ends one
ATTEMPTS = 3  # exceptions of user code before a task is given up
KILLS = 3  # workers that die over a task before it is given up


@dataclass
class _Record:
    exceptions: int = 0
    kills: int = 0


@dataclass
class Schedule(Generic[T]):
    """The state of all tasks: queued, in flight at a worker, done, or given up.

    Every task is in exactly one of the four. Workers run their tasks in the order given, so the first task in
    flight at a worker is the one it was running.
    """

    tasks: Iterable[T]
    in_flight_limit: int = IN_FLIGHT
    queue: deque[T] = field(init=False)
    in_flight: dict[str, list[T]] = field(init=False, default_factory=dict)
    done: set[T] = field(init=False, default_factory=set)
    quarantined: set[T] = field(init=False, default_factory=set)
    retries: int = field(init=False, default=0)
    _records: dict[T, _Record] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.queue = deque(self.tasks)

    @property
    def finished(self) -> bool:
        return not self.queue and not any(self.in_flight.values())

    def attempts(self, task: T) -> int:
        """How often a task has failed so far, by exceptions and by dead workers."""
        record = self._records.get(task, _Record())
        return record.exceptions + record.kills

    def next_for(self, worker: str) -> T | None:
        """The task to send to `worker` now; None where it has its share or nothing is queued."""
        flying = self.in_flight.setdefault(worker, [])
        if not self.queue or len(flying) >= self.in_flight_limit:
            return None
        if flying and self._is_suspect(self.queue[0]):
            return None  # a task that killed a worker runs alone, so that nothing else is lost with it
        task = self.queue.popleft()
        flying.append(task)
        return task

    def _is_suspect(self, task: T) -> bool:
        return self._records.get(task, _Record()).kills > 0

    def completed(self, worker: str, task: T) -> None:
        self.in_flight[worker].remove(task)
        self.done.add(task)

    def failed(self, worker: str, task: T) -> Literal["retry", "quarantine"]:
        """User code raised: the task is tried twice more, by whoever is free, then given up."""
        self.in_flight[worker].remove(task)
        record = self._records.setdefault(task, _Record())
        record.exceptions += 1
        return self._again_or_give_up(task, record.exceptions >= ATTEMPTS)

    def lost(self, worker: str) -> list[tuple[T, Literal["retry", "quarantine"]]]:
        """A worker died: all its tasks go back to the front; the one it was running is charged with the death."""
        flying = self.in_flight.pop(worker, [])
        found: list[tuple[T, Literal["retry", "quarantine"]]] = []
        for position, task in reversed(list(enumerate(flying))):
            record = self._records.setdefault(task, _Record())
            record.kills += position == 0
            found.append((task, self._again_or_give_up(task, record.kills >= KILLS)))
        return found[::-1]

    def _again_or_give_up(self, task: T, give_up: bool) -> Literal["retry", "quarantine"]:
        if give_up:
            self.quarantined.add(task)
            return "quarantine"
        self.retries += 1
        self.queue.appendleft(task)
        return "retry"
