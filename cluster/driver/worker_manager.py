"""The workers of a driver: kept at the number that is wanted, and asked to measure before the first task."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from cluster.driver.landscape_states import Landscapes, LandscapeState, NewLandscape
from cluster.driver.schedule import TaskSchedule
from cluster.driver.worker import LOOK_SECONDS, NODE_LOST, START, Arrival, Receipt, WorkerHandle, WorkerPool
from cluster.runtime.logs import TASKS, event_fields, relay
from landscape.compute.job_warnings import raising_warning
from landscape.compute.plans import bound_to, tile_shape_for, tuning_scope
from landscape.compute.prepared import PreparedJob, kept_samples
from landscape.compute.reproducibility import NotReproduced, ReferencePoint
from landscape.compute.tasks import Task, create_landscape
from landscape.core.errors import JobError, LandscapeError
from landscape.core.plan import Engine
from landscape.core.progress import CHOOSING, STARTING_WORKERS, stage
from landscape.evaluation.tuning.choices import Limits, Tuned, TuningScope
from landscape.evaluation.tuning.search import Search, TuningRequest
from landscape.surface.record_parts import Failure

if TYPE_CHECKING:
    from cluster.driver.pool import Metrics


# ----------------------------------------------------------------------------------------------------
# What a driver logs of its workers and tasks: one function per event, with its message and its fields.

workers = logging.getLogger("landscape")
# A job may give up thousands of tasks, and `status` lists them: in text logs they do not appear one by one.
tasks = logging.getLogger(TASKS)


def _place(worker: WorkerHandle) -> dict[str, str]:
    return {"worker": worker.name, "host": worker.host, "node": worker.node}


def log_ready(worker: WorkerHandle) -> None:
    """A worker has loaded the problem."""
    workers.info(
        "%s is ready",
        worker.place,
        extra=event_fields("worker-ready", **_place(worker), pid=worker.pid, device=worker.device),
    )


def log_tuning_warning(warning: str) -> None:
    """The search for the fastest engine warns of something."""
    workers.warning("%s", warning, extra=event_fields("tuned", cause=warning))


def log_leaving(worker: WorkerHandle) -> None:
    """A worker ends because its node is about to be taken away."""
    workers.warning("%s leaves with its node", worker.place, extra=event_fields("worker-leaves", **_place(worker)))


def log_lost(worker: WorkerHandle, cause: str) -> None:
    """A worker is gone or unusable."""
    workers.warning(
        "%s is lost (%s); its tasks go back to the queue", worker.place, cause,
        extra=event_fields("worker-lost", cause=cause, pid=worker.pid, **_place(worker)),
    )  # fmt: skip


def log_left_out(
    worker: WorkerHandle, landscape: str, reference: ReferencePoint, difference: str, agreeing: int
) -> None:
    """A worker gets no tasks, as its values have other bits."""
    workers.warning(
        "%s is left out: its processor, %s, computes other values for landscape %r than this run holds (%s), which %d "
        "%s so far", worker.place, reference.processor, landscape, difference, agreeing,
        "worker agrees with" if agreeing == 1 else "workers agree with",
        extra=event_fields(
            "worker-left-out", landscape=landscape, cause=difference, processor=reference.processor, **_place(worker)
        ),
    )  # fmt: skip


def log_outnumbered(landscape: str, processor: str, left_out: int, agreeing: int) -> None:
    """The first worker's values are kept, though it may be the odd one."""
    workers.warning(
        "landscape %r holds the values of the first worker, on %s, with which %d of %d workers agree; where that one "
        "is the odd one, stop, leave out its node, and give the landscape another name",
        landscape, processor or "a processor that is not recorded", agreeing, agreeing + left_out,
        extra=event_fields(
            "outnumbered", landscape=landscape, processor=processor, left_out=left_out, agreeing=agreeing
        ),
    )  # fmt: skip


def log_absence(text: str) -> None:
    """No worker has been placed for long; the text says why."""
    workers.warning("%s", text, extra=event_fields("no-worker", cause=text))


def log_done(worker: WorkerHandle, task: Task, attempt: int, points: int, seconds: float) -> None:
    """A task is committed."""
    fields = event_fields(
        "task-done", landscape=task.landscape, task=task.label, attempt=attempt, points=points,
        seconds=round(seconds, 6), **_place(worker),
    )  # fmt: skip
    tasks.info("%s is done", task.label, extra=fields)


def log_failure(worker: WorkerHandle, task: Task, attempt: int, receipt: Receipt) -> None:
    """User code raised; the schedule decides whether it is tried again."""
    fields = event_fields(
        "task-failed", landscape=task.landscape, task=task.label, attempt=attempt, cause=receipt.cause,
        traceback=receipt.traceback, **_place(worker),
    )  # fmt: skip
    tasks.warning("%s failed: %s", task.label, receipt.cause, extra=fields)


def log_given_up(landscape: str, failure: Failure) -> None:
    """A task is quarantined."""
    fields = event_fields(
        "task-given-up", landscape=landscape, task=failure.task, worker=failure.worker, host=failure.host,
        node=failure.node, attempt=failure.attempts, cause=failure.cause, traceback=failure.traceback,
    )  # fmt: skip
    tasks.error("%s is given up: %s", failure.task, failure.cause, extra=fields)


def relay_log(worker: WorkerHandle, receipt: Receipt) -> None:
    """Log what the worker itself logged while it did what it was asked."""
    relay(receipt.said, worker.name, worker.host, worker.node)


# What ends a job:
LOADS = 3  # so many workers fail to load the problem, and none has loaded it
DEATHS = 3  # so many deaths in a row for each worker, without a finished task in between
IDLE_SECONDS = 120.0  # for so long all workers are left out


T = TypeVar("T", bound=Hashable)
TaskT = TypeVar("TaskT", contravariant=True)


class Workload(Protocol[TaskT]):
    """What the workers compute, as far as it decides who may work."""

    def admit(self, worker: WorkerHandle) -> None:
        """Take note of a worker that has loaded the problem.

        Raises:
            JobError: its device does not suit.
        """

    def is_excused(self, task: TaskT) -> bool:
        """Whether a death is not charged to this task, which was the worker's first."""

    def give_up(self, task: TaskT, worker: WorkerHandle, cause: str) -> None:
        """Note that a task will not be tried again."""


class WorkerManager(Generic[T]):
    """Decides who works for a job: the pool hires and dismisses, and the schedule learns which workers there are.

    A worker whose values have other bits than those that are stored is *left out*: it gets no task, and keeps its
    place.
    """

    def __init__(
        self,
        computed: Workload[T],
        pool: WorkerPool,
        schedule: TaskSchedule[T],
        metrics: Metrics,
        clock: Callable[[], float],
    ) -> None:
        self._computed, self._pool = computed, pool
        self._schedule, self._metrics, self._clock = schedule, metrics, clock
        self._looked = 0.0
        self._failed_loads = 0  # since a worker last loaded the problem
        self._deaths_in_a_row = 0
        self._left_out: set[str] = set()
        self._refusal: NotReproduced | None = None  # of the worker that was left out last
        self._idle_since = clock()

    # -- between receipts -------------------------------------------------------------------------------------

    def patrol(self) -> None:
        """Look after the pool: its size, workers that hang, nodes that are about to be taken away.

        Raises:
            JobError: for too long there has been no worker whose values can be used.
            LandscapeError: too many workers died in a row.
        """
        for _ in range(self._pool.missing()):
            self._pool.hire()
        self._pool.explain_absence(log_absence)
        self._refuse_idle_workers()
        now = self._clock()
        for name in self._schedule.find_hung(now):
            self.lose(name, "no progress for far longer than the median task")
        if now - self._looked > LOOK_SECONDS:
            self._looked = now
            self._metrics.publish(self._schedule.waiting, len(self._pool.ready))
            for name in self._pool.on_draining_nodes():
                self._schedule.drain(name)
        for name in [name for name in self._schedule.leaving if self._schedule.idle(name)]:
            log_leaving(self._pool.handles[name])
            self._dismiss(name, blame=False, cause="")

    def _refuse_idle_workers(self) -> None:
        """End the job if only workers that are left out remain: they keep their places, which others may need.

        Raises:
            JobError: for too long there has been no other worker.
        """
        if not self._left_out or set(self._pool.ready) - self._left_out:
            self._idle_since = self._clock()
        elif self._refusal and self._clock() - self._idle_since > IDLE_SECONDS:
            raise self._refusal

    def receive(self, arrival: Arrival) -> Receipt | None:
        """The receipt of a worker's work; None where the worker is lost, or has only started.

        Raises:
            JobError, LandscapeError: as `take_on` and `lose` do.
        """
        name, receipt = arrival.worker, arrival.receipt
        if name not in self._pool.handles:  # it was lost in this very round
            return None
        if receipt is None:
            self.lose(name, arrival.lost)
            return None
        relay_log(self._pool.handles[name], receipt)
        if arrival.asked == START:
            self.take_on(name, receipt)
            return None
        return receipt

    # -- workers that start -----------------------------------------------------------------------------------

    def take_over(self) -> None:
        """Let the schedule use the workers that have loaded the problem already, for an earlier landscape.

        Raises:
            JobError: their device does not suit.
        """
        for worker in self._pool.ready.values():
            self._computed.admit(worker)
            self._schedule.join(worker.name)

    def take_on(self, name: str, receipt: Receipt) -> None:
        """Let the schedule use a worker that has loaded the problem.

        Raises:
            JobError: it has another kind of device than the stored values or the other workers, or none can load the
                problem.
        """
        if receipt.cause:
            self._refuse_start(name, receipt.cause)
            return
        self._failed_loads = 0
        worker = self._pool.note_start(name, receipt)
        # Earlier workers already agree, so comparing with one is enough.
        other = next((ready for ready in self._pool.ready.values() if ready is not worker), worker)
        if other.device != worker.device:
            raise JobError(
                f"device: {worker.place} has {worker.device}, the other workers {other.device}, and their bits would "
                "differ; set device: cpu or cuda, or leave out the nodes that have no GPU"
            )
        self._computed.admit(worker)
        self._schedule.join(name)
        log_ready(worker)

    def _refuse_start(self, name: str, cause: str) -> None:
        """Part with a worker that cannot load the problem, or end the job if none can.

        The driver has loaded the problem itself, so a single worker that fails may be at fault.
        """
        self._failed_loads += 1
        if not self._pool.ready and self._failed_loads >= LOADS:
            raise JobError(f"problem: fails to load on {name}: {cause}")
        self.lose(name, f"it cannot load the problem: {cause}", blame=False)

    # -- workers that end -------------------------------------------------------------------------------------

    def note_answer(self) -> None:
        """Note that a worker has given a usable answer, or an exception of user code."""
        self._deaths_in_a_row = 0

    def lose(self, name: str, cause: str, *, blame: bool = True) -> None:
        """Part with a worker that is gone or unusable: its tasks go back to the queue.

        Args:
            blame: charge the task that it was running with the death; a task with too many of them is given up.

        Raises:
            LandscapeError: too many workers died in a row.
        """
        if cause == NODE_LOST:
            blame = False  # no task takes a machine away; and however many machines go, others may come
        else:
            self._deaths_in_a_row += 1
        log_lost(self._pool.handles[name], cause)
        self._dismiss(name, blame=blame, cause=cause)
        if self._deaths_in_a_row > DEATHS + DEATHS * self._pool.size:
            raise LandscapeError(
                f"workers: {self._deaths_in_a_row} died in a row without finishing a task, the last one of: {cause}; "
                "mend that, then give the same command again"
            )

    def _dismiss(self, name: str, *, blame: bool, cause: str) -> None:
        worker = self._pool.dismiss(name)
        self._left_out.discard(name)
        tasks = self._schedule.in_flight.get(name)
        if blame and tasks and self._computed.is_excused(tasks[0]):
            blame = False
        for task, fate in self._schedule.take_back(name, self._clock(), blame=blame):
            if fate == "quarantine":
                self._computed.give_up(task, worker, f"worker died: {cause}")

    # -- workers with other bits ------------------------------------------------------------------------------

    def leave_out(
        self, worker: WorkerHandle, state: LandscapeState, reference: ReferencePoint, difference: str
    ) -> None:
        """Give a worker no more tasks. It keeps its place, so that no replacement is hired to the same node.

        Args:
            difference: how the values that it reproduced differ from the stored ones.

        Raises:
            JobError: there is no other worker.
        """
        if worker.name not in self._left_out:
            self._left_out.add(worker.name)
            self._log_left_out(worker, state, reference, difference)
        self._schedule.take_back(worker.name, self._clock(), blame=False)
        self._refusal = state.refusal(reference, difference)
        if len(self._left_out) >= self._pool.size:
            raise self._refusal

    def _log_left_out(
        self, worker: WorkerHandle, state: LandscapeState, reference: ReferencePoint, difference: str
    ) -> None:
        name, agreeing, others = state.landscape.name, len(state.agreeing), len(self._left_out)
        log_left_out(worker, name, reference, difference, agreeing)
        if others == agreeing + 1 and agreeing:  # logged once, when they become the majority
            log_outnumbered(name, state.processor, others, agreeing)


# ----------------------------------------------------------------------------------------------------
# Before the first task: workers measure which engine is fastest, and from a point's cost follow the tiles.

MEASURE_SECONDS = 600.0  # a worker that takes longer to measure is taken for hung
GATHER_SECONDS = 10.0  # how long the first worker waits for others of its node to be timed together with it


class LandscapePlanner:
    """Plans the landscapes that are new, and creates their stores."""

    def __init__(
        self,
        prepared: PreparedJob,
        pool: WorkerPool,
        manager: WorkerManager[Task],
        measurements: dict[str, Receipt],
        wait: Callable[[], None],
        clock: Callable[[], float],
        *,
        tries: int,
        limits: Limits | None,
    ) -> None:
        """
        Args:
            measurements: what came in last of each worker that was asked to measure.
            wait: looks after the pool, then waits a moment for receipts and handles them.
            tries: how many workers may die of measuring a point until a guess is taken for its cost.
            limits: how long the search for the fastest engine may take.
        """
        self._prepared, self._pool, self._manager, self._measurements = prepared, pool, manager, measurements
        self._wait, self._clock, self._tries, self._limits = wait, clock, tries, limits
        self._timed_together: list[str] | None = None  # workers of one node

    def create_stores(self, landscapes: Landscapes) -> None:
        """Plan the new landscapes and create their stores; a point measured on a worker decides the shape of tiles.

        Batches that do not fit the device are made smaller here for the whole job, before any value is stored, as
        smaller ones later would give other bits.
        """
        if not landscapes.new:
            return
        if not self._pool.ready:
            stage(STARTING_WORKERS)
        self._first_ready()  # when it started, the landscapes were planned for its device
        stage(CHOOSING)
        scope, job_plan = tuning_scope(self._prepared)
        tuned: Tuned | None = None
        for new in landscapes.new:
            planned = new.landscape if job_plan is None else new.landscape.in_batches(job_plan.batch_size)
            if tuned is None or tuned.plan.engine != Engine():
                if planned.plan != new.landscape.plan:
                    new.sent.replan(planned)
                tuned = self._tune(new, scope)
            else:  # no rewrite needs a check on this landscape's weights
                tuned = Tuned(planned.plan, tuned.seconds_per_point, by=scope.by)
            new.sent.replan(planned.tuned(tuned))
            # One job has one engine: the choice for this landscape holds for the rest.
            job_plan, scope = new.landscape.plan, bound_to(scope, new.landscape)
            samples = kept_samples(self._prepared, new.landscape)
            cost = tuned.seconds_per_point * new.landscape.evaluations_per_point
            of_landscape = new.landscape.grid, new.landscape.plan.engine
            shape = tile_shape_for(self._prepared.job, *of_landscape, cost, self._pool.size, samples)
            landscapes.mark_created(new, create_landscape(self._prepared, new.landscape, shape))

    def _tune(self, new: NewLandscape, scope: TuningScope) -> Tuned:
        """Choose engine and batches for a landscape, or check those of the job on it."""
        if scope.engine is not None:  # as far as this landscape's rounding allows
            scope = replace(scope, engine=scope.engine.suiting(new.landscape.plan.quantise))
        tuned = Search(new.landscape.plan, scope, lambda request: self._answers(request, new), self._limits).run()
        if tuned.warning:
            log_tuning_warning(tuned.warning)
        if tuned.raised:
            log_tuning_warning(raising_warning(new.landscape.name, tuned.raised))
        return tuned

    def _answers(self, request: TuningRequest, landscape: NewLandscape) -> list[Any]:
        """The answers to a request of the search, by the workers of one node at the same time, or by one of them.

        Workers that die or hang give none. To measure a point, one worker after the other is tried.
        """
        for _ in range(self._tries if request.method == "measure" else 1):
            workers = self._workers_of_one_node() if request.everyone else [self._first_ready()]
            receipts = self._ask_together(workers, request, landscape.sent.inputs)
            if receipts:
                return [receipt.details["answer"] for receipt in receipts if "answer" in receipt.details]
        return []

    def _first_ready(self) -> WorkerHandle:
        while not self._pool.ready:
            self._wait()
        return next(iter(self._pool.ready.values()))

    def _workers_of_one_node(self) -> list[WorkerHandle]:
        """The first worker and others of its node; waits a little for those that have not started."""
        if self._timed_together is None:
            end = self._clock() + GATHER_SECONDS
            while len(self._pool.ready) < len(self._pool.handles) and self._clock() < end:
                self._wait()
            node = self._first_ready().node
            self._timed_together = [worker.name for worker in self._pool.ready.values() if worker.node == node]
        return [self._pool.ready[name] for name in self._timed_together if name in self._pool.ready]

    def _ask_together(self, workers: Sequence[WorkerHandle], request: TuningRequest, inputs: Any) -> list[Receipt]:
        """The receipts of the workers that give one; a worker that takes too long counts as hung."""
        names = [worker.name for worker in workers]
        received = self._measurements
        received.clear()
        end = self._clock() + MEASURE_SECONDS
        for name in names:
            self._pool.measure(name, inputs, request)
        while waiting := [name for name in names if name in self._pool.handles and name not in received]:
            if self._clock() > end:
                cause = f"it took more than {MEASURE_SECONDS:.0f} s to measure a few points"
                for name in waiting:
                    self._manager.lose(name, cause)
                break
            self._wait()
        return [received[name] for name in names if name in received]
