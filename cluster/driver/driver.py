"""The loop of the one process that schedules and writes: tasks go out to workers, outcomes come in to the stores."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from cluster.driver.landscape_state import DrivenLandscape
from cluster.driver.landscapes import Landscapes
from cluster.driver.measuring import Measuring
from cluster.driver.policy import Policy
from cluster.driver.protocol import Crew
from cluster.driver.receipts import Receipts
from cluster.driver.results import Results
from cluster.driver.schedule import Schedule
from cluster.driver.workers import WorkerManager
from landscape.compute.prepared import PreparedJob
from landscape.compute.reproducibility import NotReproduced
from landscape.compute.reuse import Task, make_work
from landscape.core.errors import Interrupted, Observer, StoreError, shown
from landscape.evaluation.tuning.protocol import Limits

if TYPE_CHECKING:
    from cluster.runtime.metrics import Metrics

POLL_SECONDS = 0.25
DRAIN_SECONDS = 2.0  # outcomes that come in within it after a stop are still committed; the rest is dropped


class Driver:
    """Computes what is left to do of a job's landscapes with the workers of a crew; it alone writes the stores."""

    def __init__(
        self,
        prepared: PreparedJob,
        landscapes: Sequence[DrivenLandscape],
        crew: Crew,
        observer: Observer,
        stop: Callable[[], bool],
        policy: Policy,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
        limits: Limits | None = None,
        *,
        accept_origin: bool = False,
    ) -> None:
        """
        Args:
            crew: workers that have computed for another driver are taken over; it is not closed at the end.
            observer: is told the progress of a landscape after every task.
            stop: is asked several times a second whether to end early.
            limits: how long the search for the fastest engine may take.
            accept_origin: go on, with a warning, where the user's own model has another loss at the origin or beside.
        """
        self._run, self._crew, self._stop, self._clock = prepared.run, crew, stop, clock
        self._landscapes = Landscapes(landscapes, prepared.job)
        self._schedule: Schedule[Task] = Schedule(policy=policy, kind=_kind_of)
        results = Results(self._landscapes, self._schedule, metrics, observer)
        self._manager = WorkerManager(results, crew, self._schedule, metrics, clock)
        self._receipts = Receipts(
            self._landscapes, crew, self._schedule, self._manager, results, clock, accept_origin=accept_origin
        )
        self._measuring = Measuring(
            prepared, crew, self._manager, self._receipts, self._wait, clock, tries=policy.kills, limits=limits
        )

    def run(self) -> None:
        """Compute until every task is committed or given up.

        Raises:
            Interrupted: `stop` said so.
            JobError, LandscapeError: the job cannot go on; what is committed is kept.
        """
        self._landscapes.share(self._crew.share, self._crew.ready)
        try:
            self._manager.take_over()
            self._measuring.create_stores(self._landscapes)
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
        while self._receipts.waits_for_worker and self._clock() < end:
            if self._stop():
                end = min(end, self._clock() + DRAIN_SECONDS)
            self._manager.patrol()
            self._take_in()
        self._receipts.commit_held("its own forward pass had not ended when all else was computed")

    def _look_after(self) -> None:
        self._check_stop()
        self._manager.patrol()

    def _send_tasks(self) -> None:
        if self._receipts.holds_many:
            return
        for name, task in self._schedule.assign(self._clock()):
            state = self._landscapes.of(task)
            state.begin()
            asks = state.asks_own_model(name, task, self._crew.handles)
            work = replace(make_work(state.landscape, state.store, task), own_model=asks)
            self._crew.send(name, task, state.sent.inputs, work)

    def _take_in(self) -> None:
        self._receipts.handle(self._crew.arrivals(POLL_SECONDS))

    def _check_stop(self) -> None:
        """Where a stop is asked for, commit what comes in soon, and end.

        Raises:
            Interrupted: a stop was asked for.
        """
        if not self._stop():
            return
        self._schedule.abandon()
        end = self._clock() + DRAIN_SECONDS
        while self._clock() < end and not (self._schedule.finished and not self._receipts.waits_for_worker):
            self._take_in()
            self._schedule.abandon()
        self._receipts.commit_held("its own forward pass had not ended when the job was stopped")
        raise Interrupted(f"run {shown(self._run)} is interrupted; what is done is kept: the same command goes on")


def _kind_of(task: Task) -> tuple[str, bool]:
    """What tasks take about as long as one another: tiles of one landscape, or stretches of its path."""
    return task.landscape, task.tile is None
