"""The one process that schedules and writes: it joins schedule, workers and store, resumes and reports."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError

from cluster.schedule import KILLS, Schedule
from cluster.session import Placement, explain_placement, ray_session
from cluster.signals import graceful_stop
from cluster.worker import Payload, ProblemSource, Receipt, Worker, pack_samples, pack_state
from landscape.errors import Interrupted, JobError, LandscapeError
from landscape.lock import run_lock
from landscape.pipeline import (
    DEFAULT_POINT_SECONDS,
    Task,
    commit,
    make_work,
    missing_tasks,
    quarantine,
    start_tally,
    task_points,
    tile_shape_for,
)
from landscape.preparation import PreparedJob, PreparedLandscape, create_store, existing_store, prepare
from landscape.progress import Failure, Observer, Tally
from landscape.spec import Job
from landscape.store import LandscapeStore, write_error
from landscape.surface import Run

log = logging.getLogger("landscape")

POLL_SECONDS = 0.25
PLACEMENT_SECONDS = 30.0
DRAIN_SECONDS = 2.0  # what ends within it after a stop is still committed; the rest is dropped


def run(
    job: Job,
    workers: int | None = None,
    address: str | None = None,
    observer: Observer | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Run:
    """Compute a job on Ray, or go on with it where it stopped; returns when done.

    Args:
        workers: how many actors; default: one per GPU, else one per CPU core.
        address: `host:port` or `auto` to attach to a cluster; default: RAY_ADDRESS, else a private local Ray.
        observer: is told the `Progress` after every task.
        stop: is asked several times a second; when true, what is in flight is dropped and `Interrupted` raised.

    Returns:
        The run, opened for reading. Tasks that were given up are listed in its landscapes' `failures`.
    """
    prepared = prepare(job)
    try:
        with run_lock(prepared.run):
            _run_locked(prepared, workers, address, observer or (lambda progress: None), stop)
    except LandscapeError:
        raise
    except OSError as error:
        raise write_error(prepared.run, error) from error
    return Run(prepared.run)


def _run_locked(
    prepared: PreparedJob, workers: int | None, address: str | None, observer: Observer, stop: Callable[[], bool]
) -> None:
    jobs = [_LandscapeWork(landscape, existing_store(prepared, landscape)) for landscape in prepared.landscapes]
    for each in jobs:
        each.examine()
    for each in jobs:
        if each.finished:
            each.tally.close()
            observer(each.tally.progress())
    if all(each.finished for each in jobs):
        return  # nothing to do needs no cluster
    # The handlers come after `ray.init`, which puts one of its own in place.
    with ray_session(prepared.job, address, workers) as placement, graceful_stop() as signalled:
        Driver(prepared, jobs, placement, observer, lambda: stop() or signalled()).run()


class _LandscapeWork:
    """One landscape in the driver's hands: its store once made, what is missing, its tally."""

    def __init__(self, landscape: PreparedLandscape, store: LandscapeStore | None) -> None:
        self.landscape, self.store = landscape, store
        self.tasks: list[Task] = []
        self.left = 0
        self.payload: Any = None
        self._tally: Tally | None = None

    def examine(self) -> None:
        if self.store is not None:
            self.tasks = list(missing_tasks(self.store, self.landscape.name))
            self.left = len(self.tasks)

    @property
    def finished(self) -> bool:
        return self.store is not None and not self.tasks

    @property
    def tally(self) -> Tally:
        """Begun when it is first asked for, so that its clock runs from this landscape's own first task."""
        if self._tally is None:
            self._tally = start_tally(self.created(), self.landscape, self.tasks)
        return self._tally

    def created(self) -> LandscapeStore:
        assert self.store is not None, "stores are made before tasks are sent"
        return self.store

    def settle(self) -> None:
        """One task fewer: committed or given up. The last one closes the landscape."""
        self.left -= 1
        if not self.left:
            self.tally.finish()

    def interrupt(self) -> None:
        if self.left and self._tally is not None:
            self._tally.finish("interrupted")


@dataclass
class _Hand:
    """A worker as the driver sees it."""

    name: str
    actor: Any
    ready: bool = False
    place: str = ""


class Driver:
    """A `ray.wait` loop over plain actors. Receipts come inline; only this process writes the store."""

    def __init__(
        self,
        prepared: PreparedJob,
        works: list[_LandscapeWork],
        placement: Placement,
        observer: Observer,
        stop: Callable[[], bool],
    ) -> None:
        self._prepared, self._placement, self._observer, self._stop = prepared, placement, observer, stop
        self._works = {each.landscape.name: each for each in works}
        self._samples = ray.put(pack_samples(prepared.samples))
        self._source = ProblemSource(prepared.job.problem, prepared.job.folder, tuple(sys.path))
        self._hands: dict[str, _Hand] = {}
        self._pending: dict[Any, tuple[str, Task | None]] = {}  # reference → worker and task; None for its start
        self._born = 0
        self._deaths_in_a_row = 0
        self._death_budget = 3 + 3 * placement.workers
        self._schedule: Schedule[Task] = Schedule(())

    def run(self) -> None:
        for each in self._works.values():
            each.payload = ray.put(_payload(each.landscape))
        for _ in range(self._placement.workers):
            self._hire()
        try:
            self._make_stores()
            self._schedule = Schedule([task for each in self._works.values() for task in each.tasks])
            self._loop()
        except BaseException:
            for each in self._works.values():
                each.interrupt()
            raise
        finally:
            for hand in self._hands.values():
                ray.kill(hand.actor)

    # -- workers ----------------------------------------------------------------------------------------------

    def _hire(self) -> None:
        """Ask for a worker; it counts once its problem is loaded."""
        self._born += 1
        name = f"worker-{self._born}"
        options = {"num_cpus": self._placement.num_cpus, "num_gpus": self._placement.num_gpus}
        # Ray would restart an actor in silence, and for ever: the driver decides, within a budget.
        actor = ray.remote(Worker).options(max_restarts=0, max_task_retries=0, **options)
        use_gpu = self._placement.num_gpus > 0 and self._prepared.job.device != "cpu"
        # References in a list are not resolved on the way: the worker fetches what it needs.
        hand = _Hand(name, actor.remote(self._source, [self._samples], use_gpu, fetch))
        self._hands[name] = hand
        self._pending[hand.actor.start.remote()] = (name, None)

    def _started(self, hand: _Hand, receipt: Receipt) -> None:
        if receipt.cause:
            raise JobError(f"problem: fails to load on {hand.name}: {receipt.cause}")
        plan = next(iter(self._works.values())).landscape.plan
        if receipt.details["device"] != plan.device:
            device, host = receipt.details["device"], receipt.details["host"]
            raise JobError(
                f"device: {hand.name} on {host} has {device}, the landscape is planned for {plan.device}, and the bits "
                f"would differ; set device: {device} and another name or run"
            )
        hand.ready, hand.place = True, f"{hand.name} ({receipt.details['host']}, pid {receipt.details['pid']})"

    def _bury(self, name: str, cause: str) -> None:
        """A worker is gone: its tasks go back, one that killed three is given up, a new worker is hired."""
        hand = self._hands.pop(name)
        self._pending = {reference: owner for reference, owner in self._pending.items() if owner[0] != name}
        self._deaths_in_a_row += 1
        log.warning("%s is lost (%s); its tasks go back to the queue", hand.place or name, cause)
        for task, verdict in self._schedule.lost(name):
            if verdict == "quarantine":
                self._give_up(
                    task, Failure(task.label, self._schedule.attempts(task), hand.place, f"worker died: {cause}")
                )
            else:
                self._works[task.landscape].tally.retries += 1
        if self._deaths_in_a_row > self._death_budget:
            raise LandscapeError(
                f"workers: {self._deaths_in_a_row} died in a row without finishing a task, the last one of: {cause}; "
                "mend that, then give the same command again"
            )
        self._hire()

    # -- before the first tile --------------------------------------------------------------------------------

    def _make_stores(self) -> None:
        """Create the landscapes that are new, their tile shape from one point measured on a worker."""
        new = [each for each in self._works.values() if each.store is None]
        seconds = self._measure(new[0]) if new else DEFAULT_POINT_SECONDS
        for each in new:
            shape = tile_shape_for(self._prepared.job, each.landscape.grid, seconds, self._placement.workers)
            each.store = create_store(self._prepared, each.landscape, shape)
            each.examine()

    def _measure(self, work: _LandscapeWork) -> float:
        """Seconds per point; where user code raises at these two points, or kills, a guess: their tile will tell."""
        for _ in range(KILLS):
            hand = self._first_ready()
            try:
                receipt: Receipt = ray.get(hand.actor.measure.remote([work.payload]))
            except RayError as error:
                self._bury(hand.name, _short(error))
                continue
            return float(receipt.details.get("seconds_per_point", DEFAULT_POINT_SECONDS))
        return DEFAULT_POINT_SECONDS

    def _first_ready(self) -> _Hand:
        while True:
            ready = [hand for hand in self._hands.values() if hand.ready]
            if ready:
                return ready[0]
            self._check_stop()
            self._wait_once()

    # -- the loop ---------------------------------------------------------------------------------------------

    def _loop(self) -> None:
        waiting_since, explained = time.monotonic(), False
        while not self._schedule.finished:
            self._check_stop()
            self._fill()
            self._wait_once()
            if any(hand.ready for hand in self._hands.values()):
                waiting_since = time.monotonic()
            elif not explained and time.monotonic() - waiting_since > PLACEMENT_SECONDS:
                log.warning(explain_placement(self._placement, ray.cluster_resources(), ray.available_resources()))
                explained = True

    def _fill(self) -> None:
        """Give every worker its share; all get a first task before any gets a second."""
        for share in range(self._schedule.in_flight_limit):
            for hand in self._hands.values():
                if hand.ready and len(self._schedule.in_flight.get(hand.name, ())) <= share:
                    task = self._schedule.next_for(hand.name)
                    if task is not None:
                        self._send(hand, task)

    def _send(self, hand: _Hand, task: Task) -> None:
        each = self._works[task.landscape]
        each.tally.workers = sum(other.ready for other in self._hands.values())
        work = make_work(each.landscape, each.created(), task)
        states = [ray.put(pack_state(state)) for state in work.states]
        reference = hand.actor.evaluate.remote([each.payload], work.points, states)
        self._pending[reference] = (hand.name, task)

    def _wait_once(self) -> None:
        """Handle every receipt that is there, after waiting a moment for the first."""
        if not self._pending:
            time.sleep(POLL_SECONDS)
            return
        ready, _ = ray.wait(list(self._pending), num_returns=1, timeout=POLL_SECONDS)
        if ready:
            ready, _ = ray.wait(list(self._pending), num_returns=len(self._pending), timeout=0)
        self._handle(ready)

    def _handle(self, references: Iterable[Any]) -> None:
        for reference in references:
            if reference not in self._pending:
                continue  # its worker died in this very round
            name, task = self._pending.pop(reference)
            try:
                receipt: Receipt = ray.get(reference)
            except RayActorError as error:
                self._bury(name, _short(error))
                continue
            except RayError as error:
                receipt = Receipt(cause=_short(error))
            if task is None:
                self._started(self._hands[name], receipt)
            else:
                self._receive(name, task, receipt)

    def _receive(self, name: str, task: Task, receipt: Receipt) -> None:
        each = self._works[task.landscape]
        self._deaths_in_a_row = 0
        if receipt.outcome is not None:
            commit(each.created(), task, receipt.outcome)
            self._schedule.completed(name, task)
            each.tally.done(task_points(each.created(), task))
            each.settle()
        elif self._schedule.failed(name, task) == "quarantine":
            attempts = self._schedule.attempts(task)
            place = self._hands[name].place
            self._give_up(task, Failure(task.label, attempts, place, receipt.cause, receipt.traceback))
        else:
            each.tally.retries += 1
        self._observer(each.tally.progress())

    def _give_up(self, task: Task, failure: Failure) -> None:
        each = self._works[task.landscape]
        quarantine(each.created(), task)
        each.tally.fail(failure)
        each.settle()

    # -- the end ----------------------------------------------------------------------------------------------

    def _check_stop(self) -> None:
        if not self._stop():
            return
        end = time.monotonic() + DRAIN_SECONDS
        self._schedule.queue.clear()
        while self._schedule.in_flight and time.monotonic() < end and not self._schedule.finished:
            ready, _ = ray.wait(list(self._pending), num_returns=1, timeout=POLL_SECONDS)
            self._handle(ready)
        raise Interrupted(f"run {self._prepared.run!r} is interrupted; what is done is kept: the same command goes on")


def fetch(reference: Any) -> Any:
    """Get an object by its reference; a list of one reference is what keeps Ray from resolving it early."""
    return ray.get(reference[0] if isinstance(reference, list) else reference)


def _payload(landscape: PreparedLandscape) -> Payload:
    return Payload(
        landscape.name,
        pack_state(landscape.origin),
        [pack_state(each.tensors) for each in landscape.directions],
        landscape.grid,
        landscape.plan,
    )


def _short(error: BaseException) -> str:
    """Ray's many-line messages cut to their first sentence."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:200]
