"""The landscapes of a job while the driver computes them: those that are new, and those that are on disk."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from cluster.driver.transfer import pack_axes
from cluster.driver.worker import LandscapeInputs, WorkerHandle
from landscape.compute.job_warnings import warn_of_constant
from landscape.compute.prepared import PreparedLandscape
from landscape.compute.progress_tracker import ReportingWorker, Tally, start_tally
from landscape.compute.reproducibility import (
    NO_LOSSES,
    NotReproduced,
    ReferencePoint,
    check_point,
    difference_from_siblings,
    is_to_be_compared,
    keep_comparison,
    keep_not_compared,
    keep_reference_point,
    keep_why_not_compared,
    not_reproduced,
    recorded_reference_point,
)
from landscape.compute.tasks import OpenLandscape, Task
from landscape.core.errors import JobError, quoted
from landscape.evaluation.reference_loss import OwnLosses
from landscape.job.job import Job

# ----------------------------------------------------------------------------------------------------
# What the workers are sent of one landscape. It is shared with them again whenever it changes.


class SentLandscape:
    """A landscape as the workers know it.

    Attributes:
        landscape: as prepared, with the plan by which it is computed.
        point: the point that a worker reproduces before its first task; None stands for the one nearest to the origin.
        check_workers: whether workers reproduce a point at all.
        inputs: a reference to what is sent; None until it is shared.
    """

    def __init__(self, landscape: PreparedLandscape, point: tuple[float, ...] | None = None) -> None:
        self.landscape, self.point = landscape, point
        self.check_workers = True
        self.inputs: Any = None
        self._share: Callable[[Any], Any] = lambda value: value

    def share(self, share: Callable[[Any], Any]) -> None:
        """Make it available to the workers, now and whenever it changes.

        Args:
            share: gives a reference that every worker can follow to a value.
        """
        self._share = share
        self.inputs = share(self.pack())

    def replan(self, landscape: PreparedLandscape) -> None:
        """Send the same landscape with another plan."""
        self.landscape = landscape
        self.share(self._share)

    def stop_checking(self) -> None:
        """Let the workers reproduce nothing any more."""
        self.check_workers = False
        self.share(self._share)

    def pack(self) -> LandscapeInputs:
        """What the workers need of it."""
        check = (self.point or check_point(self.landscape.grid)) if self.check_workers else None
        extension = self.landscape.extension
        origin, directions = pack_axes(self.landscape.origin, self.landscape.directions)
        return LandscapeInputs(
            self.landscape.name,
            origin,
            directions,
            self.landscape.grid,
            self.landscape.plan,
            check,
            extension.before_at(self.landscape.grid, check) if extension and check else None,
        )


# ----------------------------------------------------------------------------------------------------
# One landscape of the job while the driver computes it: new until it is planned, then on disk with its tasks.

MOST_ASKED = 2  # workers that evaluate the user's own model, one after another: the first may have died of it


class NewLandscape:
    """A landscape that is not on disk yet: its plan may still change.

    Attributes:
        sent: what the workers are sent of it.
    """

    def __init__(self, landscape: PreparedLandscape) -> None:
        check = landscape.record.check  # an extension takes it over
        self.sent = SentLandscape(landscape, None if check is None else check.point)

    @property
    def landscape(self) -> PreparedLandscape:
        """As prepared, with the plan by which it is to be computed."""
        return self.sent.landscape

    @property
    def points_left(self) -> int:
        """How many evaluations are left to do."""
        return self.landscape.points

    def plan_for(self, device: str, job: Job) -> None:
        """Plan for the workers' kind of device."""
        if self.landscape.plan.device != device:
            self.sent.replan(self.landscape.on_device(device, job))


class LandscapeState:
    """A landscape on disk: its tasks, its progress, and the values of it that every worker must reproduce.

    Attributes:
        sent: what the workers are sent of it.
        agreeing: names of the workers that have reproduced its recorded values.
        workers: by name, those whose work `status` shows.
    """

    def __init__(self, landscape: PreparedLandscape, opened: OpenLandscape, sent: SentLandscape | None = None) -> None:
        """
        Args:
            sent: what was sent to the workers already, where the landscape was new until now.
        """
        self.opened, self.store, self.tasks = opened, opened.store, opened.tasks
        # What every worker must reproduce: the recorded values, or else those of the first worker.
        self._expected = recorded_reference_point(opened.store, landscape.grid)
        self.sent = sent or SentLandscape(landscape, self._expected.point if self._expected else None)
        self.agreeing: set[str] = set()
        self.workers: Mapping[str, ReportingWorker] = {}
        self._unsettled = len(opened.tasks)  # tasks that are neither committed nor given up
        self._tally: Tally | None = None
        self._deaths_before_agreement = 0
        self._to_keep: ReferencePoint | None = None  # once the landscape is known to be of the user's own model
        extends, has_values = landscape.extension is not None, self._expected is not None
        self._is_open = is_to_be_compared(opened.store.record, extends=extends, begun=has_values)
        self._times_asked = 0  # how often a worker was asked to evaluate the user's own model
        self._awaited: tuple[str, Task] | None = None  # the worker that was asked last, and its task

    @property
    def landscape(self) -> PreparedLandscape:
        """As prepared, with the plan by which it is computed."""
        return self.sent.landscape

    # -- the tasks --------------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """Whether nothing was left to do when it was opened."""
        return not self.tasks

    @property
    def points_left(self) -> int:
        """How many evaluations were left to do when it was opened."""
        return self.opened.points

    def begin(self) -> Tally:
        """Start the clock of its progress, unless it runs; returns its progress."""
        if self._tally is None:
            self._tally = start_tally(self.opened, self.landscape)
            self._tally.workers = self.workers
        return self._tally

    @property
    def tally(self) -> Tally:
        """Its progress; the clock runs from the first use on."""
        return self.begin()

    def settle(self) -> Sequence[Task]:
        """Count a task that is committed or given up; the last one completes the landscape.

        Returns:
            The tasks of a further round, if the landscape needs one.
        """
        self._unsettled -= 1
        if self._unsettled:
            return ()
        following = self.opened.advance(self.tally.seconds, max(1, len(self.workers)))
        self._unsettled = len(following)
        if following:
            self.tally.add(sum(map(self.opened.points_of, following)), len(following))
        else:
            self.tally.finish()
            warn_of_constant(self.store, self.landscape)
        return following

    def interrupt(self, *, unless_idle: bool = False) -> None:
        """Record that the job stopped here.

        Args:
            unless_idle: record it only where this job has added something.
        """
        if self._unsettled and self._tally is not None and not (unless_idle and self._tally.idle):
            self._tally.finish("interrupted")

    # -- the values that every worker must reproduce ----------------------------------------------------------

    def compare_or_keep(self, reference: ReferencePoint) -> str:
        """Why a worker's values do not belong to this landscape; '' where they do.

        Where no values are recorded yet, the worker's will be recorded, and every other worker must reproduce them.
        """
        expected = self._expected
        difference = reference.differs_from(expected) if expected else difference_from_siblings(self.store, reference)
        if not difference and not self.store.record.has_check and self._to_keep is None:
            self._to_keep = reference
            self._expected = expected or reference
        return difference

    def keep_first(self) -> None:
        """Record the values of the first worker, if that is still to be done."""
        if self._to_keep is not None:
            keep_why_not_compared(self.store, self.landscape.extension)
            keep_reference_point(self.store, self._to_keep)
            self._to_keep = None

    @property
    def processor(self) -> str:
        """The processor that computed the values which every worker must reproduce; '' where it is not recorded."""
        return self._expected.processor if self._expected else ""

    def refusal(self, reference: ReferencePoint, difference: str) -> NotReproduced:
        """The error of a job whose workers all compute other values."""
        return not_reproduced(self.landscape.name, self._expected, reference, difference)

    def charges_death_to_check(self, most: int) -> bool:
        """Whether a worker's death is charged to the point that it was to reproduce.

        It is, as long as no worker has reproduced the point. After `most` such deaths no worker is asked to reproduce
        it any more; the tile that holds the point then shows whether the point is to blame.
        """
        if not self.sent.check_workers or self._to_keep is not None or self.store.record.has_check:
            return False
        self._deaths_before_agreement += 1
        if self._deaths_before_agreement == most:
            self.sent.stop_checking()
        return True

    # -- the user's own model ---------------------------------------------------------------------------------

    def asks_own_model(self, worker: str, task: Task, workers: Container[str]) -> bool:
        """Whether a worker is to evaluate the user's own model before this task.

        It is, unless a worker has done so already, or is doing it.

        Args:
            workers: the names of all workers.
        """
        if not self._needs_asking(workers):
            return False
        self._times_asked, self._awaited = self._times_asked + 1, (worker, task)
        return True

    def is_asking(self, workers: Container[str]) -> bool:
        """Whether a worker evaluates the user's own model."""
        return self._is_open and self._awaited is not None and self._awaited[0] in workers

    def _needs_asking(self, workers: Container[str]) -> bool:
        """Whether the next worker that gets a task is to evaluate the user's own model."""
        return self._is_open and self._times_asked < MOST_ASKED and not self.is_asking(workers)

    def is_to_be_asked_again(self, workers: Container[str]) -> bool:
        """Whether the worker that evaluated the user's own model is lost or raised, and another one is to do it."""
        return self._times_asked > 0 and self._needs_asking(workers)

    def awaits_own_model(self, workers: Container[str]) -> bool:
        """Whether what the user's own model gives may still become known; until then nothing is stored."""
        return self.is_asking(workers) or self.is_to_be_asked_again(workers)

    def note_own_model_answer(self, worker: str, task: Task, losses: OwnLosses | None, *, accept_origin: bool) -> None:
        """Take note of what a worker says of the user's own model, if this worker was asked with this task.

        Args:
            losses: what the receipt says of it; None where it says nothing.

        Raises:
            OtherModel: the landscape is of another model, and that is not accepted.
        """
        if self._awaited != (worker, task):
            return
        if losses is None:
            self.stop_waiting(NO_LOSSES)
        elif self._is_open:
            keep_comparison(self.store, losses, accept_origin=accept_origin)
        self._is_open = False

    def stop_asking(self, workers: Container[str], waiting: int) -> None:
        """Record that nobody evaluates the user's own model, if nobody can be asked any more.

        Args:
            waiting: how many tasks are done, but not stored; where no others are left, no task is sent any more.
        """
        if self._times_asked and not self.is_asking(workers):
            if self._times_asked == MOST_ASKED:
                self.stop_waiting("the workers that were asked to evaluate your model were lost, or raised")
            elif waiting == self._unsettled:
                self.stop_waiting("no worker is left to evaluate your model: the last one was lost, or raised")

    def stop_waiting(self, reason: str) -> None:
        """Record why the landscape is not compared with the user's own model, unless it has been compared."""
        if self._is_open:
            keep_not_compared(self.store, reason)
        self._is_open = False

    def note_own_model_unanswered(self, worker: str) -> None:
        """Note that a worker will not answer, as it raised or is left out; the next one that gets a task is asked."""
        if self._awaited is not None and self._awaited[0] == worker:
            self._awaited = None


DrivenLandscape: TypeAlias = NewLandscape | LandscapeState


class Landscapes:
    """All landscapes of a job. Only those on disk have tasks, so every task has a store.

    Args:
        landscapes: in the order in which their tasks are done.
        job: whose landscapes they are.
    """

    def __init__(self, landscapes: Iterable[DrivenLandscape], job: Job) -> None:
        self._job = job
        self._in_order = list(landscapes)
        self._workers: Mapping[str, ReportingWorker] = {}
        self._by_name = {state.landscape.name: state for state in self.on_disk}

    @property
    def new(self) -> list[NewLandscape]:
        """Those that are not on disk yet, in their order."""
        return [landscape for landscape in self._in_order if isinstance(landscape, NewLandscape)]

    @property
    def on_disk(self) -> list[LandscapeState]:
        """Those that are on disk, in their order."""
        return [landscape for landscape in self._in_order if isinstance(landscape, LandscapeState)]

    def of(self, task: Task) -> LandscapeState:
        """The landscape that a task is of."""
        return self._by_name[task.landscape]

    def share(self, share: Callable[[Any], Any], workers: Mapping[str, ReportingWorker]) -> None:
        """Make what the workers need of each landscape available to them, now and whenever it changes.

        Args:
            share: gives a reference that every worker can follow to a value.
            workers: by name, those whose work `status` shows.
        """
        self._workers = workers
        for landscape in self._in_order:
            landscape.sent.share(share)
        for state in self.on_disk:
            state.workers = workers

    def admit(self, worker: WorkerHandle) -> None:
        """Plan the new landscapes for the kind of device of a worker.

        Raises:
            JobError: a landscape on disk was computed on another kind.
        """
        for new in self.new:
            new.plan_for(worker.device, self._job)
        for state in self.on_disk:
            if not state.finished and state.landscape.plan.device != worker.device:
                planned = state.landscape.plan.device
                raise JobError(
                    f"device: landscape {quoted(state.landscape.name)} is computed on {planned}, {worker.place} has "
                    f"{worker.device}, and the bits would differ; go on where it was begun, "
                    "or give it another name or run"
                )

    def mark_created(self, new: NewLandscape, opened: OpenLandscape) -> None:
        """Go on with a landscape that was new, and is on disk now."""
        state = LandscapeState(new.landscape, opened, new.sent)
        state.workers = self._workers
        self._in_order[self._in_order.index(new)] = state
        self._by_name[state.landscape.name] = state
