"""What becomes of the tasks: outcomes are committed, tasks that cannot be computed are given up, both are reported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cluster.driver import journal
from cluster.driver.landscape_state import LandscapeState
from cluster.driver.landscapes import Landscapes
from cluster.driver.protocol import WorkerHandle
from cluster.driver.schedule import Schedule
from landscape.compute.reuse import Task
from landscape.compute.tasks import Outcome, commit_all, quarantine, task_points
from landscape.core.errors import Failure, Observer

if TYPE_CHECKING:
    from cluster.runtime.metrics import Metrics


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


class Results:
    """Writes outcomes to the stores, and reports them to the journal, the metrics and the observer."""

    def __init__(
        self,
        landscapes: Landscapes,
        schedule: Schedule[Task],
        metrics: Metrics,
        observer: Observer,
    ) -> None:
        self._landscapes, self._schedule, self._metrics, self._observer = landscapes, schedule, metrics, observer

    def admit(self, worker: WorkerHandle) -> None:
        """Plan what is new for a worker's device.

        Raises:
            JobError: a landscape that is on disk was computed on another kind of device.
        """
        self._landscapes.admit(worker)

    def excuses(self, task: Task) -> bool:
        """Whether a worker's death is charged to the point that it was to reproduce, and not to its task."""
        return self._landscapes.of(task).died_before_agreement(self._schedule.policy.kills)

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
        journal.done(worker, one.task, one.attempt, points, seconds)
        landscape.tally.done(one.task.label, points, one.batch_size)
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
        landscape.tally.fail(failure, task_points(landscape.store, task))
        journal.given_up(task.landscape, failure)
        landscape.settle()
        self.report(landscape)

    def report(self, landscape: LandscapeState) -> None:
        """Tell the observer how far a landscape is."""
        landscape.tally.retries = self._schedule.retries
        self._observer(landscape.tally.progress())
