"""A job on Ray from its beginning to its end: in this process where that is quicker, else by a driver and workers.

The driver is the one process that schedules and writes: tasks go out to workers, outcomes come in to the stores.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from cluster.driver.landscape_states import DrivenLandscape, Landscapes, LandscapeState, NewLandscape
from cluster.driver.ray_executor import ClusterOptions, LazyPool, executor_of
from cluster.driver.schedule import Policy, TaskSchedule
from cluster.driver.short_jobs import is_quicker_here
from cluster.driver.worker import MEASURE, Arrival, Receipt, WorkerHandle, WorkerPool
from cluster.driver.worker_manager import (
    LandscapePlanner,
    WorkerManager,
    log_done,
    log_failure,
    log_given_up,
)
from cluster.runtime.logs import graceful_stop, is_supervised, tell
from cluster.runtime.session import ray_workers
from landscape.compute.executor import Executors
from landscape.compute.prepared import PreparedJob, PreparedLandscape
from landscape.compute.refine import with_levels
from landscape.compute.reproducibility import NotReproduced, ReferencePoint
from landscape.compute.serial import ALONE, OpenOne, RunOptions, run_locked, run_prepared
from landscape.compute.tasks import (
    OpenLandscape,
    Outcome,
    Task,
    make_work,
    open_landscape,
)
from landscape.core.devices import keep_freed_memory
from landscape.core.errors import Interrupted, JobError, StoreError, quoted
from landscape.core.progress import Observer, show_progress, stage
from landscape.evaluation.reference_loss import OwnLosses
from landscape.evaluation.tuning.choices import Limits
from landscape.job.job import Job
from landscape.store.results import Run
from landscape.surface.record_parts import Failure

if TYPE_CHECKING:
    from cluster.driver.pool import Metrics


# ----------------------------------------------------------------------------------------------------
# What the driver does with each receipt of a worker: a start, a measurement, or the outcome of a task.


@dataclass(frozen=True, slots=True)
class AcceptedOutcome:
    """An outcome that is to be committed, and who computed it.

    Attributes:
        attempt: the number of the attempt that succeeded, from 1.
        batch_size: that of the computation, where it had to be smaller than planned.
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
        manager: of the workers; it asks this object which of them suit.
        measurements: the last receipt of each worker that was asked to measure.
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

        The outcomes of a landscape wait until it is known to be of the user's own model.

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
        """Commit all accepted outcomes that wait.

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
        states = map(self._landscapes.of, (accepted.task for accepted in self._held))
        return any(state.is_asking(self._pool.handles) for state in states)

    @property
    def holds_many(self) -> bool:
        """Whether no more tasks are to be sent, as many outcomes wait: they take memory, and may be of another model.

        Where a worker must still be asked for what the user's own model gives, tasks are sent, as it is asked with one.
        """
        if any(state.is_to_be_asked_again(self._pool.handles) for state in self._landscapes.on_disk):
            return False
        return len(self._held) >= MOST_HELD * len(self._pool.handles)

    def _held_of(self, state: LandscapeState) -> int:
        return sum(self._landscapes.of(accepted.task) is state for accepted in self._held)

    def _commit(self) -> None:
        for state in self._landscapes.on_disk:
            state.stop_asking(self._pool.handles, self._held_of(state))
            if not state.awaits_own_model(self._pool.handles):
                state.keep_first()
        ready, waiting = list[AcceptedOutcome](), list[AcceptedOutcome]()
        for accepted in self._held:
            waits = self._landscapes.of(accepted.task).awaits_own_model(self._pool.handles)
            (waiting if waits else ready).append(accepted)
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
        """The outcome of a task, where it is to be committed; otherwise this does what the receipt calls for."""
        state = self._landscapes.of(task)
        if not self._check_reproduction(worker, state, receipt):
            state.note_own_model_unanswered(worker.name)
            return None
        own_losses: OwnLosses | None = receipt.details.get("own_model")
        if own_losses is None and receipt.outcome is None:
            state.note_own_model_unanswered(worker.name)
        else:
            state.note_own_model_answer(worker.name, task, own_losses, accept_origin=self._options.accept_origin)
        if receipt.outcome is None:
            self.manager.note_answer()
            self._handle_failure(worker, task, receipt)
            self.report(state)
            return None
        if not state.opened.is_well_formed(task, receipt.outcome, state.landscape.extension):
            self.manager.lose(worker.name, f"its answer to {task.label} has the wrong shape", blame=False)
            return None
        self.manager.note_answer()
        attempt = self._schedule.attempts(task) + 1  # asked first: the schedule forgets a task that is done
        if not self._is_accepted(worker, task, receipt.outcome):
            self.report(state)
            return None
        return AcceptedOutcome(worker, task, attempt, receipt.outcome, receipt.details.get("batch_size"))

    def _check_reproduction(self, worker: WorkerHandle, state: LandscapeState, receipt: Receipt) -> bool:
        """Whether the worker has reproduced the landscape's values, or was not asked to; otherwise it is left out."""
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
        """Whether the schedule accepts an outcome; parts with the workers that it distrusts from now on."""
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
            landscape.opened.commit([(one.task, one.outcome) for one in outcomes], extension)
            for one in outcomes:
                self._count(one, landscape)

    def _count(self, accepted: AcceptedOutcome, landscape: LandscapeState) -> None:
        worker, seconds = accepted.worker, accepted.outcome.seconds
        points = landscape.opened.points_of(accepted.task)
        worker.tasks += 1
        worker.points += points
        worker.seconds += seconds
        self._metrics.committed(accepted.task.landscape, points, seconds)
        log_done(worker, accepted.task, accepted.attempt, points, seconds)
        landscape.tally.count_done(accepted.task.label, points, accepted.batch_size)
        self._schedule.enqueue(landscape.settle())
        self.report(landscape)

    def give_up(self, task: Task, worker: WorkerHandle, cause: str, trace: str = "") -> None:
        """Quarantine a task, and record why.

        Args:
            worker: the last one that tried it.
            trace: the traceback, where user code raised.
        """
        landscape = self._landscapes.of(task)
        landscape.opened.quarantine(task)
        self._metrics.failed(task.landscape)
        attempts = self._schedule.attempts(task)
        failure = Failure(task.label, attempts, worker.name, cause, trace, worker.host, worker.node)
        landscape.tally.count_given_up(failure, landscape.opened.points_of(task))
        log_given_up(task.landscape, failure)
        self._schedule.enqueue(landscape.settle())
        self.report(landscape)

    def report(self, landscape: LandscapeState) -> None:
        """Tell the observer how far a landscape is."""
        landscape.tally.retries = self._schedule.retries
        self._options.observer(landscape.tally.progress())


# ----------------------------------------------------------------------------------------------------
# The loop: tasks go out to workers, outcomes come in.

POLL_SECONDS = 0.25
DRAIN_SECONDS = 2.0  # after a stop, in which outcomes are still committed


class Driver:
    """Computes what is left to do of a job's landscapes with the workers of a pool, and alone writes the stores."""

    def __init__(
        self,
        prepared: PreparedJob,
        landscapes: Sequence[DrivenLandscape],
        pool: WorkerPool,
        options: RunOptions,
        policy: Policy,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            pool: it may have workers that computed for another driver, and is not closed at the end.
            options: `stop` is asked several times a second.
        """
        self._run, self._pool, self._stop, self._clock = prepared.run, pool, options.stop, clock
        self._landscapes = Landscapes(landscapes, prepared.job)
        self._schedule: TaskSchedule[Task] = TaskSchedule(policy=policy, kind=_kind_of)
        self._results = ResultHandler(self._landscapes, pool, self._schedule, metrics, options, clock)
        self._planner = LandscapePlanner(
            prepared, pool, self._results.manager, self._results.measurements, self._wait, clock,
            tries=policy.kills, limits=options.limits,
        )  # fmt: skip

    def run(self) -> None:
        """Compute until every task is committed or given up.

        Raises:
            Interrupted: `stop` was true.
            JobError, LandscapeError: the job cannot continue; committed outcomes are kept.
        """
        self._landscapes.share(self._pool.share, self._pool.ready)
        try:
            self._results.manager.take_over()
            self._planner.create_stores(self._landscapes)
            for state in self._landscapes.on_disk:
                self._schedule.enqueue(state.tasks)
            while not self._schedule.finished:
                self._look_after()
                self._send_tasks()
                self._take_in()
            self._wait_for_own_model()
        except StoreError:
            raise  # the store cannot be reached, so do not try to record the interruption
        except BaseException as error:
            for state in self._landscapes.on_disk:
                state.interrupt(unless_idle=isinstance(error, NotReproduced))
            raise

    def _wait(self) -> None:
        """One round of the loop before there are tasks."""
        self._look_after()
        self._take_in()

    def _wait_for_own_model(self) -> None:
        """Wait for the worker that evaluates the user's own model, if another one was quicker with its task.

        As it may hang, the accepted outcomes are stored in the end. All tasks are done, so a stop only shortens the
        wait.
        """
        end = self._clock() + self._schedule.policy.hang_seconds
        while self._results.waits_for_worker and self._clock() < end:
            if self._stop():
                end = min(end, self._clock() + DRAIN_SECONDS)
            self._results.manager.patrol()
            self._take_in()
        self._results.commit_held("its own forward pass had not ended when all else was computed")

    def _look_after(self) -> None:
        self._check_stop()
        self._results.manager.patrol()

    def _send_tasks(self) -> None:
        if self._results.holds_many:
            return
        for name, task in self._schedule.assign(self._clock()):
            state = self._landscapes.of(task)
            state.begin()
            asks = state.asks_own_model(name, task, self._pool.handles)
            work = replace(make_work(state.landscape, state.opened, task), own_model=asks)
            self._pool.send(name, task, state.sent.inputs, work)

    def _take_in(self) -> None:
        self._results.handle(self._pool.arrivals(POLL_SECONDS))

    def _check_stop(self) -> None:
        """If a stop was requested, commit what comes in soon, and end.

        Raises:
            Interrupted: a stop was requested.
        """
        if not self._stop():
            return
        self._schedule.abandon()
        end = self._clock() + DRAIN_SECONDS
        while self._clock() < end and not (self._schedule.finished and not self._results.waits_for_worker):
            self._take_in()
            self._schedule.abandon()
        self._results.commit_held("its own forward pass had not ended when the job was stopped")
        raise Interrupted(f"run {quoted(self._run)} is interrupted; what is done is kept: the same command goes on")


def _kind_of(task: Task) -> tuple[str, bool]:
    """The kind of a task, whose tasks take about as long as one another: tiles of a landscape, or parts of its path."""
    return task.landscape, task.tile is None


# ----------------------------------------------------------------------------------------------------
# A job from its beginning to its end.


def run(
    job: Job,
    workers: int | None = None,
    address: str | None = None,
    observer: Observer | None = None,
    stop: Callable[[], bool] = lambda: False,
    policy: Policy | None = None,
    allow_open: bool = False,
    limits: Limits | None = None,
    *,
    accept_origin: bool = False,
    progress: bool = True,
) -> Run:
    """Compute a job on Ray, or go on with it where it stopped; returns when it is done.

    Without workers or an address asked for, a job that takes less time than a private Ray needs to start is computed
    in this process, to the same bits.

    Args:
        workers: how many actors; default: one per GPU, else one per CPU core.
        address: `host:port` or `auto` to attach to a cluster; default: RAY_ADDRESS, else a private local Ray.
        observer: is called with the `Progress` after every task, and nothing else shows it then.
        stop: is asked several times a second; when true, tasks in flight are dropped and `Interrupted` is raised.
        policy: when a task is tried again, backed up, checked or given up, and when a worker counts as hung.
        allow_open: also attach to a cluster that answers beyond loopback and asks for no token.
        limits: how long the search for the fastest engine may take.
        accept_origin: go on, with a warning that the landscape keeps, where the model that the callback returned has
            another loss at the origin, or at one point beside it, by its own forward pass; else that is an error.
        progress: show the progress, on stderr: a bar on a terminal and in a notebook, elsewhere a line for every 10 %.

    Returns:
        The run, opened for reading. Tasks that were given up are listed in its landscapes' `failures`.

    Raises:
        JobError: the job is wrong, or asks for what the cluster cannot give.
        ClusterUnreachableError: no cluster answers at the address, or a private Ray does not start.
        Interrupted: `stop` or a signal ended it early; the same call goes on.
    """
    with show_progress(observer, progress) as display:
        options = ClusterOptions(display, stop, limits, accept_origin, workers, address, policy, allow_open)
        on_ray = ray_workers(job, address, workers, allow_open, stop)
        executors: Executors = partial(executor_of, workers=workers, address=address, allow_open=allow_open, stop=stop)
        with LazyPool(options) as pool:
            compute = partial(_compute, pool=pool)
            # Levels have the directions of their landscape.
            return with_levels(job, lambda part: run_locked(part, compute, executors, on_ray if part is job else ALONE))


def run_serially(job: Job, observer: Observer, *, accept_origin: bool = False) -> Run:
    """Compute a job in this process alone; after the preparation, a signal stops it in an orderly way."""
    options = RunOptions(observer, accept_origin=accept_origin)
    executors: Executors = partial(executor_of, serial=True)
    compute = partial(_compute_until_signalled, options=options)
    return with_levels(job, lambda each: run_locked(each, compute, executors))


def _compute(prepared: PreparedJob, pool: LazyPool) -> None:
    options = pool.options
    opened = {landscape.name: open_landscape(prepared, landscape) for landscape in prepared.landscapes}
    landscapes = [_begun_or_new(landscape, opened[landscape.name]) for landscape in prepared.landscapes]
    finished = [state for state in landscapes if isinstance(state, LandscapeState) and state.finished]
    unfinished = [driven for driven in landscapes if driven not in finished]
    missing = sum(driven.points_left * driven.landscape.evaluations_per_point for driven in unfinished)
    if unfinished and is_quicker_here(prepared, unfinished[0].landscape, missing, options.workers, options.address):
        _compute_here(prepared, options, lambda _, landscape: opened[landscape.name])
        return
    for state in finished:
        state.tally.close()
        options.observer(state.tally.progress())
    if unfinished:  # a job with nothing left to do needs no cluster
        _compute_on_ray(prepared, landscapes, pool)


def _begun_or_new(landscape: PreparedLandscape, opened: OpenLandscape | None) -> DrivenLandscape:
    return NewLandscape(landscape) if opened is None else LandscapeState(landscape, opened)


def _compute_here(prepared: PreparedJob, options: RunOptions, open_one: OpenOne) -> None:
    """Compute in this process, as the serial reference does; if it is killed, its supervisor continues on Ray."""
    stage("computing in this process: it is done before Ray would have started (--workers N asks for Ray)")
    tell(here=True)
    if is_supervised():  # a command's own process, and not a notebook's
        keep_freed_memory()
    _compute_until_signalled(prepared, options, open_one)


def _compute_until_signalled(prepared: PreparedJob, options: RunOptions, open_one: OpenOne = open_landscape) -> None:
    with graceful_stop() as signalled:
        run_prepared(prepared, replace(options, stop=lambda: options.stop() or signalled()), open_one)


def _compute_on_ray(prepared: PreparedJob, landscapes: Sequence[DrivenLandscape], lazy_pool: LazyPool) -> None:
    prepared.log_warnings()
    pool, signalled = lazy_pool.workers_for(prepared)
    options = lazy_pool.options
    stoppable = replace(options, stop=lambda: options.stop() or signalled())
    Driver(prepared, landscapes, pool, stoppable, options.policy or Policy(), lazy_pool.metrics).run()
