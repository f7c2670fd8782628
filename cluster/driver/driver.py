"""The loop of the one process that schedules and writes: tasks go out to workers, outcomes come in to the stores."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cluster.driver.landscape_states import DrivenLandscape, Landscapes, NewLandscape
from cluster.driver.result_handler import ResultHandler
from cluster.driver.schedule import Policy, TaskSchedule
from cluster.driver.worker import Receipt
from cluster.driver.worker_manager import log_tuning_warning
from cluster.driver.worker_protocol import WorkerHandle, WorkerPool
from landscape.compute.plans import tile_shape_for, tuning_scope
from landscape.compute.prepared import PreparedJob, kept_samples
from landscape.compute.reproducibility import NotReproduced
from landscape.compute.serial import RunOptions
from landscape.compute.tasks import Task, create_landscape, make_work
from landscape.core.errors import Interrupted, StoreError, quoted
from landscape.core.progress import CHOOSING, stage
from landscape.evaluation.tuning.choices import Limits
from landscape.evaluation.tuning.search import Search, TuningRequest

if TYPE_CHECKING:
    from cluster.runtime.metrics import Metrics


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
