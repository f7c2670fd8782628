"""Pure decisions: which task goes where, what is tried again, backed up, checked or given up.

No Ray here, and no clock: the time is passed in.
"""

from __future__ import annotations

import statistics
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterator, Sequence
from typing import Generic, TypeVar

from cluster.scheduling.policy import Answer, Fate, Policy, Record
from cluster.scheduling.task_queue import TaskQueue

T = TypeVar("T", bound=Hashable)


class Schedule(Generic[T]):
    """The state of all tasks: queued, in flight at one worker or more, done, or given up; each in exactly one.

    Workers run their tasks in the order given, so the first task in flight at a worker is the one it is running.
    What is done leaves nothing but a count behind: an answer counts where the task is in flight at who gives it.
    """

    def __init__(self, tasks: Sequence[T] | TaskQueue[T], policy: Policy | None = None) -> None:
        self.policy = policy or Policy()
        self.queue = _as_queue(tasks)
        self.again: OrderedDict[T, None] = OrderedDict()  # came back; these go first
        self.in_flight: dict[str, list[T]] = {}
        self.flights: dict[T, set[str]] = {}
        self.leaving: set[str] = set()
        self.done = 0
        self.quarantined: set[T] = set()
        self.retries = self.backups = self.checks = 0
        self._records: dict[T, Record] = {}
        self._confirmed: dict[str, int] = {}
        # Workers that could take more, by how many tasks they have; as dicts, which keep their order.
        self._open: list[dict[str, None]] = [{} for _ in range(self.policy.in_flight)]
        # Worker → its first task and since when, the oldest first: a start is always later than those before it.
        self._running: OrderedDict[str, tuple[T, float]] = OrderedDict()
        self._durations: deque[float] = deque(maxlen=101)
        self._median: float | None = None
        self._time = 0.0
        self._last: float | None = None

    # -- what there is ----------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        return not self.queue and not self.again and not self.flights

    @property
    def waiting(self) -> int:
        """Tasks that no worker has."""
        return len(self.queue) + len(self.again)

    def attempts(self, task: T) -> int:
        """How often a task has failed so far, by exceptions and by dead workers."""
        record = self._records.get(task, Record())
        return record.exceptions + record.kills

    def is_disputed(self, task: T) -> bool:
        """Whether a suspicious answer to it waits for a second opinion."""
        return task in self._records and bool(self._records[task].votes)

    def median_seconds(self) -> float | None:
        """The median of the last tasks' seconds; None before the first is done."""
        if self._median is None and self._durations:
            self._median = statistics.median(self._durations)
        return self._median

    def enqueue(self, tasks: Sequence[T] | TaskQueue[T]) -> None:
        """Give it the tasks that are to be done, where it has begun without any."""
        assert self.finished
        self.queue = _as_queue(tasks)

    # -- workers ----------------------------------------------------------------------------------------------

    def join(self, worker: str) -> None:
        if worker not in self.in_flight:
            self.in_flight[worker] = []
            self._open[0][worker] = None

    def drain(self, worker: str) -> None:
        """A worker that is to leave gets no more tasks; it ends those it has."""
        self.leaving.add(worker)
        self._shut(worker)

    def _shut(self, worker: str) -> None:
        for workers in self._open:
            workers.pop(worker, None)

    def _loaded(self, worker: str, before: int) -> None:
        """Note that a worker's number of tasks has changed."""
        now = len(self.in_flight[worker])
        if before < len(self._open):
            self._open[before].pop(worker, None)
        if now < len(self._open) and worker not in self.leaving:
            self._open[now][worker] = None

    def idle(self, worker: str) -> bool:
        return not self.in_flight.get(worker)

    def lost(self, worker: str, now: float, *, blame: bool = True) -> list[tuple[T, Fate]]:
        """A worker is gone: its tasks come back; with `blame`, the one it was running is charged with the death."""
        self._advance(now)
        flying = self.in_flight.pop(worker, [])
        self._running.pop(worker, None)
        self._shut(worker)
        self.leaving.discard(worker)
        found: list[tuple[T, Fate]] = []
        for position, task in reversed(list(enumerate(flying))):
            if worker not in self.flights.get(task, ()):
                continue  # done meanwhile
            if blame and position == 0:
                self._record(task).kills += 1
            if self._land(worker, task):
                continue  # still in flight elsewhere
            kills = self._records[task].kills if task in self._records else 0
            found.append((task, self._again_or_give_up(task, kills >= self.policy.kills)))
        return found[::-1]

    def hung(self, now: float) -> list[str]:
        """Workers whose task has run far beyond the median, and at least for the minimum."""
        self._advance(now)
        median = self.median_seconds()
        if median is None:
            return []
        limit = max(self.policy.hang_seconds, self.policy.hang_factor * median)
        oldest = ((worker, since) for worker, (_, since) in self._running.items())
        found = []
        for worker, since in oldest:
            if self._time - since <= limit:
                break
            found.append(worker)
        return found

    # -- tasks out --------------------------------------------------------------------------------------------

    def assign(self, now: float) -> Iterator[tuple[str, T]]:
        """Who gets which task now: all get a first one before any gets a second."""
        for share in range(self.policy.in_flight):
            for worker in tuple(self._open[share]):
                task = self.next_for(worker, now)
                if task is not None:
                    yield worker, task
                elif not self.waiting:
                    break  # only stragglers are left, and there is none for the other idle workers either
            if not self.waiting:
                break  # who has a task gets no straggler

    def next_for(self, worker: str, now: float) -> T | None:
        """The task to send to `worker` now; None where it has its share, is leaving, or nothing is left for it."""
        self._advance(now)
        self.join(worker)
        flying = self.in_flight[worker]
        if worker in self.leaving or len(flying) >= self.policy.in_flight or (flying and self._is_suspect(flying[0])):
            return None
        task = self._returned_for(worker, flying)
        if task is None and self.queue:
            task = self.queue.popleft()
        if task is None and not flying:
            task = self._straggler_for(worker)
        if task is None:
            return None
        self.flights.setdefault(task, set()).add(worker)
        flying.append(task)
        self._loaded(worker, len(flying) - 1)
        if len(flying) == 1:
            self._running[worker] = (task, self._time)
        return task

    def _returned_for(self, worker: str, flying: list[T]) -> T | None:
        for task in self.again:
            if flying and self._is_suspect(task):
                continue
            avoid = self._records[task].avoid if task in self._records else set()
            if worker in avoid and self._others(avoid):
                continue
            del self.again[task]
            return task
        return None

    def _is_suspect(self, task: T) -> bool:
        """A task that killed a worker runs alone, so that nothing else is lost with it."""
        return task in self._records and self._records[task].kills > 0

    def _others(self, avoid: set[str]) -> bool:
        """Whether a worker outside `avoid` could take a task."""
        return any(worker not in avoid and worker not in self.leaving for worker in self.in_flight)

    def _straggler_for(self, worker: str) -> T | None:
        """A task that another worker has had for far longer than usual, for an idle worker to do as well."""
        median = self.median_seconds()
        if median is None or len(self._durations) < self.policy.straggler_done:
            return None
        for slow, (_, since) in self._running.items():
            if self._time - since <= self.policy.straggler_factor * median:
                return None  # the oldest first: the rest has run for less
            for task in self.in_flight[slow]:  # what is queued behind the straggler waits as long
                if self.flights.get(task) == {slow}:
                    self.backups += 1
                    return task
        return None

    # -- answers ----------------------------------------------------------------------------------------------

    def completed(self, worker: str, task: T, now: float, *, fingerprint: str = "", suspicious: bool = False) -> Answer:
        """A result came; `fingerprint` stands for its values.

        A suspicious one is held until another worker has answered too: two that agree settle it, and who said
        otherwise is distrusted. Where there is no other worker it stands. Workers that all differ give the task up.
        A worker whose suspicions were confirmed often enough is believed from then on.
        """
        self._advance(now)
        self._took(worker)
        counts = worker in self.flights.get(task, ())
        self._land(worker, task)
        if not counts:
            return Answer("ignore")
        believed = not suspicious or self._confirmed.get(worker, 0) >= self.policy.confirmations
        if believed and not self.is_disputed(task):
            self._finish(task)
            return Answer("commit")
        record = self._record(task)
        if set(record.votes) <= {worker} and not self._others({worker}):
            self._finish(task)
            return Answer("commit")
        record.votes[worker] = fingerprint
        agreeing = [each for each, vote in record.votes.items() if vote == fingerprint]
        if len(agreeing) > 1:
            for each in agreeing:
                self._confirmed[each] = self._confirmed.get(each, 0) + 1
            self._finish(task)
            return Answer("commit", tuple(each for each in record.votes if each not in agreeing))
        if len(record.votes) > 1 and not self._others(set(record.votes)):
            self._give_up(task)
            return Answer("quarantine")
        record.avoid |= set(record.votes)
        self.checks += 1
        if task not in self.flights:
            self._put_back(task)
        return Answer("check")

    def failed(self, worker: str, task: T, now: float) -> Fate | None:
        """User code raised: the task is tried again, elsewhere if there is an elsewhere, then given up.

        None where another worker still has it, or it is settled.
        """
        self._advance(now)
        self._took(worker)
        counts = worker in self.flights.get(task, ())
        if counts:
            record = self._record(task)
            record.exceptions += 1
            record.avoid.add(worker)
        if self._land(worker, task) or not counts:
            return None
        return self._again_or_give_up(task, record.exceptions >= self.policy.attempts)

    def abandon(self) -> None:
        """Send nothing more; what is in flight may still come in."""
        self.queue.clear()
        self.again.clear()

    # -- inside -----------------------------------------------------------------------------------------------

    def _record(self, task: T) -> Record:
        return self._records.setdefault(task, Record())

    def _advance(self, now: float) -> None:
        """The schedule's own time: it follows `now`, but neither back nor by a leap."""
        if self._last is not None:
            self._time += min(max(now - self._last, 0.0), self.policy.longest_step)
        self._last = now

    def _took(self, worker: str) -> None:
        """The worker's first task has ended: note how long it took, and that the next one runs."""
        started = self._running.pop(worker, None)
        if started is not None:
            self._durations.append(self._time - started[1])
            self._median = None

    def _land(self, worker: str, task: T) -> bool:
        """Take the task from the worker; true where another worker still has it."""
        flying = self.in_flight.get(worker, [])
        if task in flying:
            flying.remove(task)
            self._loaded(worker, len(flying) + 1)
        if flying and worker not in self._running:
            self._running[worker] = (flying[0], self._time)
        workers = self.flights.get(task)
        if workers is None:
            return False
        workers.discard(worker)
        if not workers:
            del self.flights[task]
        return bool(workers)

    def _finish(self, task: T) -> None:
        self.done += 1
        self._records.pop(task, None)
        self._settle(task)

    def _give_up(self, task: T) -> None:
        self.quarantined.add(task)
        self._settle(task)

    def _settle(self, task: T) -> None:
        # Workers that still have it go on; what they answer is ignored, and nobody waits for it.
        self.flights.pop(task, None)
        self.again.pop(task, None)

    def _again_or_give_up(self, task: T, give_up: bool) -> Fate:
        if give_up:
            self._give_up(task)
            return "quarantine"
        self.retries += 1
        self._put_back(task)
        return "retry"

    def _put_back(self, task: T) -> None:
        self.again[task] = None
        self.again.move_to_end(task, last=False)


def _as_queue(tasks: Sequence[T] | TaskQueue[T]) -> TaskQueue[T]:
    return tasks if isinstance(tasks, TaskQueue) else TaskQueue(tasks)
