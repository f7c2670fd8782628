"""What the driver does with each receipt of a worker: a start, a measurement, or the outcome of a task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cluster.driver.landscape_states import Landscapes, LandscapeState
from cluster.driver.schedule import TaskSchedule
from cluster.driver.worker import MEASURE, Arrival, Receipt, WorkerHandle, WorkerPool
from cluster.driver.worker_manager import WorkerManager, log_done, log_failure, log_given_up
from landscape.compute.reproducibility import ReferencePoint
from landscape.compute.serial import RunOptions
from landscape.compute.tasks import Outcome, Task, commit_all, quarantine, task_points, well_formed
from landscape.core.errors import JobError
from landscape.core.progress import Failure
from landscape.evaluation.reference_loss import OwnLosses

if TYPE_CHECKING:
    from cluster.driver.pool import Metrics


@dataclass(frozen=True, slots=True)
class AcceptedOutcome:
    """An outcome that is to be committed, and who computed it.

    Attributes:
        attempt: the number of the try that succeeded, from 1.
        batch_size: with which it was computed, where that had to be smaller than planned.
    """

    worker: WorkerHandle
    task: Task
    attempt: int
    outcome: Outcome
    batch_size: int | None


MOST_HELD = 4  # outcomes per worker that wait for what the user's own model gives


class ResultHandler:
    """Decides on every receipt: which outcome is committed, which task is tried again or given up, whom to distrust.

    It writes outcomes to the stores, and reports what becomes of tasks to the log, the metrics and the observer.

    Attributes:
        manager: of the workers, which asks this object which of them suit.
        measurements: what came in last of each worker that was asked to measure.
    """

    def __init__(
        self,
        landscapes: Landscapes,
        pool: WorkerPool,
        schedule: TaskSchedule[Task],
        metrics: Metrics,
        options: RunOptions,
        clock: Callable[[], float],
    ) -> None:
        self._landscapes, self._pool, self._schedule = landscapes, pool, schedule
        self._metrics, self._options, self._clock = metrics, options, clock
        self.manager = WorkerManager[Task](self, pool, schedule, metrics, clock)
        self.measurements: dict[str, Receipt] = {}
        self._held: list[AcceptedOutcome] = []  # of landscapes that are not known to be of the user's own model yet

    def handle(self, arrivals: Sequence[Arrival]) -> None:
        """Decide on all receipts, then commit the accepted outcomes together, so that they share their syncs.

        Those of a landscape wait until it is known to be of the user's own model.

        Raises:
            JobError: no worker could do what one reports that it cannot.
        """
        accepted: list[AcceptedOutcome] = []
        try:
            for arrival in arrivals:
                self._handle_one(arrival, accepted)
        finally:
            self._held += accepted
            self._commit()

    def commit_held(self, reason: str) -> None:
        """Commit all accepted outcomes.

        Args:
            reason: why the comparison with the user's own model is no longer waited for.
        """
        for state in self._landscapes.on_disk:
            if self._held_of(state):  # else nothing of it is stored, and the next run compares
                state.stop_waiting(reason)
        self._commit()

    @property
    def waits_for_worker(self) -> bool:
        """Whether accepted outcomes wait for what a worker is evaluating."""
        states = map(self._landscapes.of, (one.task for one in self._held))
        return any(state.is_asking(self._pool.handles) for state in states)

    @property
    def holds_many(self) -> bool:
        """Whether so many wait that no more tasks are to be sent: they take memory, and may be of another model.

        Where a worker is still to be asked for what the user's own model gives, it is asked with a task.
        """
        if any(state.is_to_be_asked_again(self._pool.handles) for state in self._landscapes.on_disk):
            return False
        return len(self._held) >= MOST_HELD * len(self._pool.handles)

    def _held_of(self, state: LandscapeState) -> int:
        return sum(self._landscapes.of(one.task) is state for one in self._held)

    def _commit(self) -> None:
        for state in self._landscapes.on_disk:
            state.stop_asking(self._pool.handles, self._held_of(state))
            if not state.awaits_own_model(self._pool.handles):
                state.keep_first()
        ready, waiting = list[AcceptedOutcome](), list[AcceptedOutcome]()
        for one in self._held:
            waits = self._landscapes.of(one.task).awaits_own_model(self._pool.handles)
            (waiting if waits else ready).append(one)
        self._held = waiting
        self.commit(ready)

    def _handle_one(self, arrival: Arrival, accepted: list[AcceptedOutcome]) -> None:
        name, receipt = arrival.worker, self.manager.receive(arrival)
        if receipt is None:
            return
        if receipt.fatal:
            raise JobError(receipt.cause)
        if arrival.asked == MEASURE:
            self.measurements[name] = receipt
            return
        assert isinstance(arrival.asked, Task)  # a driver asks no queries
        outcome = self._decide(self._pool.handles[name], arrival.asked, receipt)
        if outcome is not None:
            accepted.append(outcome)

    def _decide(self, worker: WorkerHandle, task: Task, receipt: Receipt) -> AcceptedOutcome | None:
        """The outcome of a task where it is to be committed; else what the receipt calls for is done."""
        state = self._landscapes.of(task)
        if not self._check_reproduction(worker, state, receipt):
            state.note_own_model_unanswered(worker.name)
            return None
        found: OwnLosses | None = receipt.details.get("own_model")
        if found is None and receipt.outcome is None:
            state.note_own_model_unanswered(worker.name)
        else:
            state.note_own_model_answer(worker.name, task, found, accept_origin=self._options.accept_origin)
        if receipt.outcome is None:
            self.manager.note_answer()
            self._handle_failure(worker, task, receipt)
            self.report(state)
            return None
        if not well_formed(state.store, task, receipt.outcome, state.landscape.extension):
            self.manager.lose(worker.name, f"its answer to {task.label} has the wrong shape", blame=False)
            return None
        self.manager.note_answer()
        attempt = self._schedule.attempts(task) + 1  # asked first: the schedule forgets a task that is done
        if not self._is_accepted(worker, task, receipt.outcome):
            self.report(state)
            return None
        return AcceptedOutcome(worker, task, attempt, receipt.outcome, receipt.details.get("batch_size"))

    def _check_reproduction(self, worker: WorkerHandle, state: LandscapeState, receipt: Receipt) -> bool:
        """Whether the worker has reproduced the landscape's values, if it was asked to; else it is left out."""
        reference: ReferencePoint | None = receipt.details.get("reference")
        if reference is None:
            return True
        difference = state.compare_or_keep(reference)
        if difference:
            self.manager.leave_out(worker, state, reference, difference)
            return False
        state.agreeing.add(worker.name)
        return True

    def _handle_failure(self, worker: WorkerHandle, task: Task, receipt: Receipt) -> None:
        """User code raised: the schedule says whether the task is tried again."""
        fate = self._schedule.note_failure(worker.name, task, self._clock())
        log_failure(worker, task, self._schedule.attempts(task), receipt)
        if fate == "quarantine":
            self.give_up(task, worker, receipt.cause, receipt.traceback)

    def _is_accepted(self, worker: WorkerHandle, task: Task, outcome: Outcome) -> bool:
        """Whether the schedule accepts an outcome; parts with the workers that it turns out to distrust."""
        suspicious = not outcome.finite
        fingerprint = outcome.fingerprint() if suspicious or self._schedule.is_disputed(task) else ""
        answer = self._schedule.judge_result(
            worker.name, task, self._clock(), fingerprint=fingerprint, suspicious=suspicious
        )
        if answer.verdict == "quarantine":
            self.give_up(task, worker, "workers disagree on its values")
        for name in answer.distrusted:
            if name in self._pool.handles:
                self.manager.lose(name, f"two others agree on {task.label} and it does not", blame=False)
        return answer.verdict == "commit"

    # -- what becomes of tasks --------------------------------------------------------------------------------

    def admit(self, worker: WorkerHandle) -> None:
        """Plan what is new for a worker's device.

        Raises:
            JobError: a landscape that is on disk was computed on another kind of device.
        """
        self._landscapes.admit(worker)

    def is_excused(self, task: Task) -> bool:
        """Whether a worker's death is charged to the point that it was to reproduce, and not to its task."""
        return self._landscapes.of(task).charges_death_to_check(self._schedule.policy.kills)

    def commit(self, accepted: Sequence[AcceptedOutcome]) -> None:
        """Write outcomes to their landscapes' stores; those of one landscape share their syncs."""
        by_landscape: dict[LandscapeState, list[AcceptedOutcome]] = {}
        for one in accepted:
            by_landscape.setdefault(self._landscapes.of(one.task), []).append(one)
        for landscape, outcomes in by_landscape.items():
            extension = landscape.landscape.extension
            commit_all(landscape.store, [(one.task, one.outcome) for one in outcomes], extension)
            for one in outcomes:
                self._count(one, landscape)

    def _count(self, one: AcceptedOutcome, landscape: LandscapeState) -> None:
        worker, seconds = one.worker, one.outcome.seconds
        points = task_points(landscape.store, one.task)
        worker.tasks += 1
        worker.points += points
        worker.seconds += seconds
        self._metrics.committed(points, seconds)
        log_done(worker, one.task, one.attempt, points, seconds)
        landscape.tally.count_done(one.task.label, points, one.batch_size)
        landscape.settle()
        self.report(landscape)

    def give_up(self, task: Task, worker: WorkerHandle, cause: str, trace: str = "") -> None:
        """Quarantine a task, and record why.

        Args:
            worker: the last one that tried it.
            trace: the traceback, where user code raised.
        """
        landscape = self._landscapes.of(task)
        quarantine(landscape.store, task)
        self._metrics.failed()
        attempts = self._schedule.attempts(task)
        failure = Failure(task.label, attempts, worker.name, cause, trace, worker.host, worker.node)
        landscape.tally.count_given_up(failure, task_points(landscape.store, task))
        log_given_up(task.landscape, failure)
        landscape.settle()
        self.report(landscape)

    def report(self, landscape: LandscapeState) -> None:
        """Tell the observer how far a landscape is."""
        landscape.tally.retries = self._schedule.retries
        self._options.observer(landscape.tally.progress())
