"""A job on Ray from its beginning to its end: in this process where that is quicker, else by a driver and workers.

The driver is the one process that schedules and writes: tasks go out to workers, outcomes come in to the stores.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from cluster.driver.landscape_states import DrivenLandscape, Landscapes, LandscapeState, NewLandscape
from cluster.driver.ray_executor import ClusterOptions, LazyPool, executor_of
from cluster.driver.result_handler import ResultHandler
from cluster.driver.schedule import Policy, TaskSchedule
from cluster.driver.short_jobs import is_quicker_here
from cluster.driver.worker import Receipt, WorkerHandle, WorkerPool
from cluster.driver.worker_manager import log_tuning_warning
from cluster.runtime.console import show_progress
from cluster.runtime.logs import graceful_stop, is_supervised, tell
from cluster.runtime.session import ray_workers
from landscape.compute.executor import Executors
from landscape.compute.plans import tile_shape_for, tuning_scope
from landscape.compute.prepared import PreparedJob, PreparedLandscape, kept_samples
from landscape.compute.refine import with_levels
from landscape.compute.reproducibility import NotReproduced
from landscape.compute.serial import ALONE, OpenOne, RunOptions, run_locked, run_prepared
from landscape.compute.tasks import OpenLandscape, Task, create_landscape, make_work, open_landscape
from landscape.core.devices import keep_freed_memory
from landscape.core.errors import Interrupted, StoreError, quoted
from landscape.core.progress import CHOOSING, Observer, stage
from landscape.evaluation.tuning.choices import Limits
from landscape.evaluation.tuning.search import Search, TuningRequest
from landscape.job.job import Job
from landscape.store.results import Run

if TYPE_CHECKING:
    from cluster.driver.pool import Metrics


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
        results: ResultHandler,
        wait: Callable[[], None],
        clock: Callable[[], float],
        *,
        tries: int,
        limits: Limits | None,
    ) -> None:
        """
        Args:
            wait: looks after the pool, then waits a moment for receipts and handles them.
            tries: how many workers may die of measuring a point until a guess is taken for its cost.
            limits: how long the search for the fastest engine may take.
        """
        self._prepared, self._pool, self._results = prepared, pool, results
        self._wait, self._clock, self._tries, self._limits = wait, clock, tries, limits
        self._timed_together: list[str] | None = None  # workers of one node

    def create_stores(self, landscapes: Landscapes) -> None:
        """Create the stores of the landscapes that are new, their tile shape from one point measured on a worker."""
        new = landscapes.new
        if not new:
            return
        seconds = self._plan(new)
        for each in new:
            kept = kept_samples(self._prepared, each.landscape)
            cost = seconds * each.landscape.evaluations_per_point
            shape = tile_shape_for(self._prepared.job, each.landscape.grid, cost, self._pool.size, kept)
            landscapes.mark_created(each, create_landscape(self._prepared, each.landscape, shape))

    def _plan(self, new: Sequence[NewLandscape]) -> float:
        """Choose engine and batches for the new landscapes; seconds per point, a guess where it cannot be measured.

        Batches that do not fit the device are found here and made smaller for the whole job, before any value is
        stored: smaller ones later would give other bits.
        """
        stage(CHOOSING)
        scope, chosen = tuning_scope(self._prepared)
        self._first_ready()  # when it started, the landscapes were planned for its device
        if chosen is not None:
            for each in new:
                each.sent.replan(each.landscape.in_batches(chosen.batch_size))
        first = new[0]
        tuned = Search(first.landscape.plan, scope, lambda request: self._answers(request, first), self._limits).run()
        for each in new:
            each.sent.replan(each.landscape.tuned(tuned))
        if tuned.warning:
            log_tuning_warning(tuned.warning)
        return float(tuned.seconds_per_point)

    def _answers(self, request: TuningRequest, landscape: NewLandscape) -> list[Any]:
        """What the search asks for, done by the workers of one node at the same time, or by one of them.

        The answers of workers that die or hang are missing. Measuring a point is tried on one worker after the other.
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
        """The first worker and those of its node that have started; waits a little for those that have not."""
        if self._timed_together is None:
            end = self._clock() + GATHER_SECONDS
            while len(self._pool.ready) < len(self._pool.handles) and self._clock() < end:
                self._wait()
            node = self._first_ready().node
            self._timed_together = [each.name for each in self._pool.ready.values() if each.node == node]
        return [self._pool.ready[name] for name in self._timed_together if name in self._pool.ready]

    def _ask_together(self, workers: Sequence[WorkerHandle], request: TuningRequest, inputs: Any) -> list[Receipt]:
        """The receipts of the workers that give one; a worker that takes too long is taken for hung."""
        names = [worker.name for worker in workers]
        received = self._results.measurements
        received.clear()
        end = self._clock() + MEASURE_SECONDS
        for name in names:
            self._pool.measure(name, inputs, request)
        while waiting := [name for name in names if name in self._pool.handles and name not in received]:
            if self._clock() > end:
                cause = f"it took more than {MEASURE_SECONDS:.0f} s to measure a few points"
                for name in waiting:
                    self._results.manager.lose(name, cause)
                break
            self._wait()
        return [received[name] for name in names if name in received]


POLL_SECONDS = 0.25
DRAIN_SECONDS = 2.0  # outcomes that come in within it after a stop are still committed; the rest is dropped


class Driver:
    """Computes what is left to do of a job's landscapes with the workers of a pool; it alone writes the stores."""

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
            pool: workers that have computed for another driver are taken over; it is not closed at the end.
            options: `stop` is asked several times a second.
        """
        self._run, self._pool, self._stop, self._clock = prepared.run, pool, options.stop, clock
        self._landscapes = Landscapes(landscapes, prepared.job)
        self._schedule: TaskSchedule[Task] = TaskSchedule(policy=policy, kind=_kind_of)
        self._results = ResultHandler(self._landscapes, pool, self._schedule, metrics, options, clock)
        self._planner = LandscapePlanner(
            prepared, pool, self._results, self._wait, clock, tries=policy.kills, limits=options.limits
        )

    def run(self) -> None:
        """Compute until every task is committed or given up.

        Raises:
            Interrupted: `stop` said so.
            JobError, LandscapeError: the job cannot go on; what is committed is kept.
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
        """Where another worker was quicker with the task of the one that evaluates the user's own model, wait for it.

        It may hang, so that what is accepted is stored in the end. All tasks are done: a stop only shortens the wait.
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
            work = replace(make_work(state.landscape, state.store, task), own_model=asks)
            self._pool.send(name, task, state.sent.inputs, work)

    def _take_in(self) -> None:
        self._results.handle(self._pool.arrivals(POLL_SECONDS))

    def _check_stop(self) -> None:
        """Where a stop is asked for, commit what comes in soon, and end.

        Raises:
            Interrupted: a stop was asked for.
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
    """What tasks take about as long as one another: tiles of one landscape, or stretches of its path."""
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
) -> Run:
    """Compute a job on Ray, or go on with it where it stopped; returns when it is done.

    Without workers or an address asked for, a job that takes less time than a private Ray needs to start is computed
    in this process, to the same bits.

    Args:
        workers: how many actors; default: one per GPU, else one per CPU core.
        address: `host:port` or `auto` to attach to a cluster; default: RAY_ADDRESS, else a private local Ray.
        observer: is told the `Progress` after every task; default: a bar on a terminal and in a notebook, nothing
            elsewhere. `lambda progress: None` silences it.
        stop: is asked several times a second; when true, what is in flight is dropped and `Interrupted` raised.
        policy: when a task is tried again, backed up, checked or given up, and when a worker counts as hung.
        allow_open: also attach to a cluster that answers beyond loopback and asks for no token.
        limits: how long the search for the fastest engine may take.
        accept_origin: go on, with a warning that the landscape keeps, where the model that the callback returned has
            another loss at the origin, or at one point beside it, by its own forward pass; else that is an error.

    Returns:
        The run, opened for reading. Tasks that were given up are listed in its landscapes' `failures`.

    Raises:
        JobError: the job is wrong, or asks for what the cluster cannot give.
        ClusterUnreachableError: no cluster answers at the address, or a private Ray does not start.
        Interrupted: `stop` or a signal ended it early; the same call goes on.
    """
    with show_progress(observer) as shown:
        options = ClusterOptions(shown, stop, limits, accept_origin, workers, address, policy, allow_open)
        on_ray = ray_workers(job, address, workers, allow_open, stop)
        executors: Executors = partial(executor_of, workers=workers, address=address, allow_open=allow_open, stop=stop)
        with LazyPool(options) as pool:
            compute = partial(_compute, pool=pool)
            # Levels have the directions of their landscape.
            return with_levels(job, lambda each: run_locked(each, compute, executors, on_ray if each is job else ALONE))


def run_serially(job: Job, observer: Observer, *, accept_origin: bool = False) -> Run:
    """Compute a job in this process alone; once preparation is over, a signal stops it in an orderly way."""
    options = RunOptions(observer, accept_origin=accept_origin)
    executors: Executors = partial(executor_of, serial=True)
    compute = partial(_compute_until_signalled, options=options)
    return with_levels(job, lambda each: run_locked(each, compute, executors))


def _compute(prepared: PreparedJob, pool: LazyPool) -> None:
    options = pool.options
    opened = {landscape.name: open_landscape(prepared, landscape) for landscape in prepared.landscapes}
    landscapes = [_begun_or_new(landscape, opened[landscape.name]) for landscape in prepared.landscapes]
    finished = [each for each in landscapes if isinstance(each, LandscapeState) and each.finished]
    unfinished = [each for each in landscapes if each not in finished]
    missing = sum(each.points_left * each.landscape.evaluations_per_point for each in unfinished)
    if unfinished and is_quicker_here(prepared, unfinished[0].landscape, missing, options.workers, options.address):
        _compute_here(prepared, options, lambda _, landscape: opened[landscape.name])
        return
    for each in finished:
        each.tally.close()
        options.observer(each.tally.progress())
    if unfinished:  # a job with nothing left to do needs no cluster
        _compute_on_ray(prepared, landscapes, pool)


def _begun_or_new(landscape: PreparedLandscape, opened: OpenLandscape | None) -> DrivenLandscape:
    return NewLandscape(landscape) if opened is None else LandscapeState(landscape, opened)


def _compute_here(prepared: PreparedJob, options: RunOptions, open_one: OpenOne) -> None:
    """Compute in this process, as the serial reference does; if it is killed, its supervisor goes on with Ray."""
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
