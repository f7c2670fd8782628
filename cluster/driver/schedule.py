"""Which worker gets which task, and which task is tried again, checked or given up. The time is always an argument."""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

from landscape.core.progress import Fate, RetryRule

# ----------------------------------------------------------------------------------------------------
# The numbers behind the schedule's decisions, and its answers.
#
# When a task is tried again: `landscape/core/progress.py`.

Verdict = Literal["commit", "check", "ignore", "quarantine"]


@dataclass(frozen=True)
class Policy:
    """The numbers behind the decisions: counts, seconds, and multiples of the median seconds of tasks of a kind.

    Backups follow cubed's rule (`runtime/backup.py`): enough tasks done to know the median, and a task far over it.
    """

    in_flight: int = 2  # tasks of a worker, so that it has the next one when it ends one
    attempts: int = RetryRule.attempts
    kills: int = RetryRule.kills
    straggler_factor: float = 3.0
    straggler_done: int = 10
    hang_factor: float = 20.0
    hang_seconds: float = 300.0
    confirmations: int = 2  # of suspicious answers by other workers, until a worker is believed
    longest_step: float = 30.0  # a clock that jumps further than this, or back, says nothing about the tasks

    @property
    def retry_rule(self) -> RetryRule:
        """When a task that failed is tried again, and when it is given up."""
        return RetryRule(self.attempts, self.kills)


@dataclass(frozen=True)
class ResultDecision:
    """What to do with a result, and which workers turned out to be wrong."""

    verdict: Verdict
    distrusted: tuple[str, ...] = ()


# ----------------------------------------------------------------------------------------------------
# What happened to the tasks that did not simply succeed.

T = TypeVar("T", bound=Hashable)


@dataclass
class TaskHistory:
    """What happened to one task so far.

    Attributes:
        exceptions: how often user code raised.
        kills: how many workers died while they ran it.
        avoid: workers that failed it or have answered it.
        votes: worker → fingerprint of its answer, where one of the answers was suspicious.
    """

    exceptions: int = 0
    kills: int = 0
    avoid: set[str] = field(default_factory=set)
    votes: dict[str, str] = field(default_factory=dict)

    @property
    def attempts(self) -> int:
        """How often the task has failed, by exceptions and by dead workers."""
        return self.exceptions + self.kills

    def vote(self, worker: str, fingerprint: str) -> tuple[list[str], tuple[str, ...]]:
        """Note a worker's answer; the workers whose answer is the same, and those whose answer differs."""
        self.votes[worker] = fingerprint
        agreeing = [voter for voter, vote in self.votes.items() if vote == fingerprint]
        return agreeing, tuple(voter for voter in self.votes if voter not in agreeing)


NO_TROUBLE = TaskHistory()  # of a task that has no history


# ----------------------------------------------------------------------------------------------------
# The tasks that no worker has had yet, in their order; each is made when it is taken.


class TaskQueue(Generic[T]):
    """A queue over several sequences, which may make their items on demand: a million tasks need not exist at once."""

    def __init__(self, *sequences: Sequence[T]) -> None:
        self._sequences: list[Sequence[T]] = []
        self._ends: list[int] = []  # of each sequence, the position after its last item
        self._taken = 0
        for sequence in sequences:
            self.extend(sequence)

    def __len__(self) -> int:
        return self._end - self._taken

    def __iter__(self) -> Iterator[T]:
        return (self._at(position) for position in range(self._taken, self._end))

    @property
    def _end(self) -> int:
        return self._ends[-1] if self._ends else 0

    def extend(self, tasks: Sequence[T]) -> None:
        """Add tasks behind those that are in the queue."""
        self._sequences.append(tasks)
        self._ends.append(self._end + len(tasks))

    def popleft(self) -> T:
        """Take the next task."""
        task = self._at(self._taken)
        self._taken += 1
        return task

    def clear(self) -> None:
        """Drop all tasks."""
        self._sequences, self._ends, self._taken = [], [], 0

    def _at(self, position: int) -> T:
        number = bisect_right(self._ends, position)
        return self._sequences[number][position - (self._ends[number - 1] if number else 0)]


# ----------------------------------------------------------------------------------------------------
# How long tasks take: which task each worker is running and since when, and the medians of those that have ended.

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

    def note_begin(self, worker: str, task: T) -> None:
        """Note that the worker has begun a task."""
        self._running[worker] = (task, self._time)

    def note_end(self, worker: str) -> None:
        """Note that the worker's running task has ended, and how long it took."""
        started = self._running.pop(worker, None)
        if started is not None:
            kind = self._kind(started[0])
            self._durations.setdefault(kind, deque(maxlen=KEPT_DURATIONS)).append(self._time - started[1])
            self._medians.pop(kind, None)

    def forget(self, worker: str) -> None:
        """Drop the running task of a worker that is gone."""
        self._running.pop(worker, None)

    def find_beyond(self, limit: Callable[[float], float], least: int = 1) -> Iterator[str]:
        """The workers whose task has run for longer than a limit, the longest first.

        Args:
            limit: from the median seconds of the last tasks of the same kind.
            least: how many of these must have ended; workers with a task of another kind are not reported.
        """
        limits = {kind: limit(self._median(kind)) for kind, ended in self._durations.items() if len(ended) >= least}
        lowest = min(limits.values(), default=None)
        for worker, (task, since) in self._running.items():
            if lowest is None or self._time - since <= lowest:
                return  # the oldest come first: the others have run for less
            limit_of_kind = limits.get(self._kind(task))
            if limit_of_kind is not None and self._time - since > limit_of_kind:
                yield worker

    def _median(self, kind: Hashable) -> float:
        if kind not in self._medians:
            self._medians[kind] = statistics.median(self._durations[kind])
        return self._medians[kind]


class OpenWorkers:
    """The workers that may get another task. Of two with as many tasks, the one that got its last earlier comes first.

    Args:
        most: how many tasks a worker may have; one that has so many is not open.
    """

    def __init__(self, most: int) -> None:
        self._by_load: list[dict[str, None]] = [{} for _ in range(most)]  # as dicts, which keep their order

    def with_load(self, load: int) -> tuple[str, ...]:
        """The open workers that have this many tasks."""
        return tuple(self._by_load[load])

    def move(self, worker: str, before: int, now: int) -> None:
        """Note that a worker's number of tasks has changed."""
        if before < len(self._by_load):
            self._by_load[before].pop(worker, None)
        self.add(worker, now)

    def add(self, worker: str, load: int = 0) -> None:
        """Let a worker get more tasks, unless it has the most already."""
        if load < len(self._by_load):
            self._by_load[load][worker] = None

    def remove(self, worker: str) -> None:
        """Let a worker get no more tasks."""
        for workers in self._by_load:
            workers.pop(worker, None)


class TaskSchedule(Generic[T]):
    """The state of all tasks: queued, in flight at one worker or more, done, or given up; each in exactly one.

    Workers run their tasks in the order in which they get them. So the first task in flight at a worker is the one
    that it is running, or the one whose answer is lost if it dies right after. Of tasks that are done only the number
    is kept. An answer counts if the task is in flight at the worker that gives it.

    Attributes:
        queue: tasks that no worker has had yet.
        returned: tasks that came back; they go out before those of the queue.
        in_flight: worker → its tasks, in their order.
        holders: task → the workers that have it.
        open_workers: those that may get more tasks.
        leaving: workers that get no more tasks.
        done: how many tasks are done.
        quarantined: the tasks that were given up.
    """

    def __init__(
        self, tasks: Sequence[T] = (), policy: Policy | None = None, kind: Callable[[T], Hashable] = lambda task: None
    ) -> None:
        """
        Args:
            kind: gives the kind of a task; its duration is compared with those of its kind alone.
        """
        self.policy = policy or Policy()
        self.queue = TaskQueue(tasks)
        self.returned: OrderedDict[T, None] = OrderedDict()
        self.in_flight: dict[str, list[T]] = {}
        self.holders: dict[T, set[str]] = {}
        self.leaving: set[str] = set()
        self.done = 0
        self.quarantined: set[T] = set()
        self.retries = self.backups = self.checks = 0
        self._histories: dict[T, TaskHistory] = {}  # of the tasks that have had trouble
        self._confirmed: Counter[str] = Counter()  # worker → its suspicious answers that others confirmed
        self.open_workers = OpenWorkers(self.policy.in_flight)
        self._times: TaskTimes[T] = TaskTimes(self.policy.longest_step, kind)

    @property
    def finished(self) -> bool:
        """Whether every task is done or given up."""
        return not self.queue and not self.returned and not self.holders

    @property
    def waiting(self) -> int:
        """How many tasks no worker has."""
        return len(self.queue) + len(self.returned)

    def attempts(self, task: T) -> int:
        """How often a task has failed so far, by exceptions and by dead workers."""
        return self._history(task).attempts

    def is_disputed(self, task: T) -> bool:
        """Whether a suspicious answer to it waits for a second opinion."""
        return bool(self._history(task).votes)

    def _history(self, task: T) -> TaskHistory:
        """What happened to the task, to be read."""
        return self._histories.get(task, NO_TROUBLE)

    def _begin_history(self, task: T) -> TaskHistory:
        """What happened to the task, to be added to."""
        return self._histories.setdefault(task, TaskHistory())

    def enqueue(self, tasks: Sequence[T]) -> None:
        """Add tasks, at any time; they go out after those that are queued already."""
        self.queue.extend(tasks)

    def join(self, worker: str) -> None:
        """Give tasks to this worker from now on."""
        if worker not in self.in_flight:
            self.in_flight[worker] = []
            self.open_workers.add(worker)

    def drain(self, worker: str) -> None:
        """Give no more tasks to a worker that is to leave; it finishes those that it has."""
        self.leaving.add(worker)
        self.open_workers.remove(worker)

    def idle(self, worker: str) -> bool:
        """Whether a worker has no task."""
        return not self.in_flight.get(worker)

    def take_back(self, worker: str, now: float, *, blame: bool = True) -> list[tuple[T, Fate]]:
        """Take back the tasks of a worker that is gone.

        Args:
            blame: charge the task that it was running with the death.

        Returns:
            Those that no other worker has, and whether they are tried again.
        """
        self._times.advance(now)
        tasks = self.in_flight.pop(worker, [])
        self._times.forget(worker)
        self.open_workers.remove(worker)
        self.leaving.discard(worker)
        fates: list[tuple[T, Fate]] = []
        for position, task in reversed(list(enumerate(tasks))):
            if worker not in self.holders.get(task, ()):
                continue  # done meanwhile
            if blame and position == 0:
                self._begin_history(task).kills += 1
            if self._take_from(worker, task):
                continue  # still in flight elsewhere
            fate = self.policy.retry_rule.after_death(self._history(task).kills)
            self._follow(task, fate)
            fates.append((task, fate))
        return fates[::-1]

    def find_hung(self, now: float) -> list[str]:
        """The workers whose task has run for far longer than the median of its kind, and for `hang_seconds` or more."""
        self._times.advance(now)
        policy = self.policy
        return list(self._times.find_beyond(lambda median: max(policy.hang_seconds, policy.hang_factor * median)))

    def assign(self, now: float) -> Iterator[tuple[str, T]]:
        """Which worker gets which task now: every worker gets a first one before any gets a second."""
        for share in range(self.policy.in_flight):
            for worker in self.open_workers.with_load(share):
                task = self.next_for(worker, now)
                if task is not None:
                    yield worker, task
                elif not self.waiting:
                    break  # nothing waits, and there is no straggler to back up
            if not self.waiting:
                break  # a worker that has a task gets no straggler

    def next_for(self, worker: str, now: float) -> T | None:
        """The task to send to a worker now; None where it has enough, is leaving, or no task is left for it."""
        self._times.advance(now)
        self.join(worker)
        tasks = self.in_flight[worker]
        if worker in self.leaving or len(tasks) >= self.policy.in_flight or (tasks and self._is_suspect(tasks[0])):
            return None
        task = self._returned_for(worker, tasks)
        if task is None and self.queue:
            task = self.queue.popleft()
        if task is None and not tasks:
            task = self._straggler_for(worker)
        if task is None:
            return None
        self.holders.setdefault(task, set()).add(worker)
        tasks.append(task)
        self.open_workers.move(worker, len(tasks) - 1, len(tasks))
        if len(tasks) == 1:
            self._times.note_begin(worker, task)
        return task

    def _returned_for(self, worker: str, tasks: list[T]) -> T | None:
        for task in self.returned:
            if tasks and self._is_suspect(task):
                continue
            avoid = self._history(task).avoid
            if worker in avoid and self._others(avoid):
                continue
            del self.returned[task]
            return task
        return None

    def _is_suspect(self, task: T) -> bool:
        """Whether a task has killed a worker; it then runs alone, on one worker at a time, so that no more is lost."""
        return self._history(task).kills > 0

    def _others(self, avoid: Set[str]) -> bool:
        """Whether a worker outside `avoid` could take a task."""
        return any(worker not in avoid and worker not in self.leaving for worker in self.in_flight)

    def _straggler_for(self, worker: str) -> T | None:
        """A task that another worker has had for far longer than usual, for this idle worker to do as well."""
        factor = self.policy.straggler_factor
        for slow in self._times.find_beyond(lambda median: factor * median, self.policy.straggler_done):
            for task in self.in_flight[slow]:  # a task that is queued behind the straggler waits as long
                if self.holders.get(task) == {slow} and not self._is_suspect(task):
                    self.backups += 1
                    return task
        return None

    def judge_result(
        self, worker: str, task: T, now: float, *, fingerprint: str = "", suspicious: bool = False
    ) -> ResultDecision:
        """What to do with the result of a task.

        A suspicious result is held until another worker has answered too. Two results that agree are accepted, and
        the workers that gave another one are distrusted. Where there is no other worker the result is accepted. Where
        all workers disagree the task is given up. A worker whose suspicious results were confirmed often enough is
        believed from then on.

        Args:
            fingerprint: the same for the same values.
            suspicious: whether the values are such as broken hardware gives, too.
        """
        self._times.advance(now)
        self._times.note_end(worker)
        is_awaited = worker in self.holders.get(task, ())
        self._take_from(worker, task)
        if not is_awaited:
            return ResultDecision("ignore")
        believed = not suspicious or self._confirmed[worker] >= self.policy.confirmations
        if believed and not self.is_disputed(task):
            self._finish(task)
            return ResultDecision("commit")
        record = self._begin_history(task)
        if set(record.votes) <= {worker} and not self._others({worker}):
            self._finish(task)
            return ResultDecision("commit")
        agreeing, differing = record.vote(worker, fingerprint)
        if len(agreeing) > 1:
            self._confirmed.update(agreeing)
            self._finish(task)
            return ResultDecision("commit", differing)
        if len(record.votes) > 1 and not self._others(set(record.votes)):
            self._give_up(task)
            return ResultDecision("quarantine")
        record.avoid |= set(record.votes)
        self.checks += 1
        if task not in self.holders:
            self._return(task)
        return ResultDecision("check")

    def note_failure(self, worker: str, task: T, now: float) -> Fate | None:
        """What to do after user code raised: try the task again, on another worker if there is one, or give it up.

        Returns:
            None where another worker still has the task, or it is done or given up already.
        """
        self._times.advance(now)
        self._times.note_end(worker)
        is_awaited = worker in self.holders.get(task, ())
        if is_awaited:
            record = self._begin_history(task)
            record.exceptions += 1
            record.avoid.add(worker)
        if self._take_from(worker, task) or not is_awaited:
            return None
        fate = self.policy.retry_rule.after_exception(record.exceptions)
        self._follow(task, fate)
        return fate

    def abandon(self) -> None:
        """Drop every task that is not in flight."""
        self.queue.clear()
        self.returned.clear()

    def _take_from(self, worker: str, task: T) -> bool:
        """Take the task from the worker; whether another worker still has it."""
        tasks = self.in_flight.get(worker, [])
        if task in tasks:
            tasks.remove(task)
            if worker in self.leaving:
                self.open_workers.remove(worker)
            else:
                self.open_workers.move(worker, len(tasks) + 1, len(tasks))
        if tasks and not self._times.is_running(worker):
            self._times.note_begin(worker, tasks[0])
        workers = self.holders.get(task)
        if workers is None:
            return False
        workers.discard(worker)
        if not workers:
            del self.holders[task]
        return bool(workers)

    def _finish(self, task: T) -> None:
        self.done += 1
        self._histories.pop(task, None)
        self._settle(task)

    def _give_up(self, task: T) -> None:
        self.quarantined.add(task)
        self._settle(task)

    def _settle(self, task: T) -> None:
        # Workers that still have it go on, but nobody waits for their answers, which are ignored.
        self.holders.pop(task, None)
        self.returned.pop(task, None)

    def _follow(self, task: T, fate: Fate) -> None:
        """Give the task up, or return it to be tried again."""
        if fate == "quarantine":
            self._give_up(task)
        else:
            self.retries += 1
            self._return(task)

    def _return(self, task: T) -> None:
        self.returned[task] = None
        self.returned.move_to_end(task, last=False)
