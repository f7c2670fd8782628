"""The one process that schedules and writes: it joins schedule, workers and store, resumes and reports."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from cluster import journal
from cluster.assignment import LandscapeWork
from cluster.crew import LOOK_SECONDS, Crew, Hand
from cluster.metrics import Metrics
from cluster.schedule import Policy, Schedule
from cluster.session import ray_session
from cluster.signals import graceful_stop
from cluster.worker import Receipt, pack_state
from landscape.errors import Interrupted, JobError, LandscapeError
from landscape.lock import run_lock
from landscape.pipeline import (
    DEFAULT_POINT_SECONDS,
    Task,
    commit,
    make_work,
    quarantine,
    task_points,
    tile_shape_for,
    well_formed,
)
from landscape.preparation import PreparedJob, create_store, existing_store, prepare
from landscape.progress import Failure, Observer
from landscape.spec import Job
from landscape.store import write_error
from landscape.surface import Run

POLL_SECONDS = 0.25
MEASURE_SECONDS = 600.0  # a worker that takes longer for two points is taken for hung
NODE_LOST = "its node is lost"
DEATHS = 3  # in a row and per worker, without a task done in between, until the job ends
DRAIN_SECONDS = 2.0  # what ends within it after a stop is still committed; the rest is dropped


def run(
    job: Job,
    workers: int | None = None,
    address: str | None = None,
    observer: Observer | None = None,
    stop: Callable[[], bool] = lambda: False,
    policy: Policy | None = None,
    allow_open: bool = False,
) -> Run:
    """Compute a job on Ray, or go on with it where it stopped; returns when done.

    Args:
        workers: how many actors; default: one per GPU, else one per CPU core.
        address: `host:port` or `auto` to attach to a cluster; default: RAY_ADDRESS, else a private local Ray.
        observer: is told the `Progress` after every task.
        stop: is asked several times a second; when true, what is in flight is dropped and `Interrupted` raised.
        policy: when a task is tried again, backed up, checked or given up, and when a worker counts as hung.
        allow_open: also attach to a cluster that answers beyond loopback and asks for no token.

    Returns:
        The run, opened for reading. Tasks that were given up are listed in its landscapes' `failures`.
    """
    prepared = prepare(job)
    try:
        with run_lock(prepared.run):
            _run_locked(
                prepared, workers, address, observer or (lambda progress: None), stop, policy or Policy(), allow_open
            )
    except LandscapeError:
        raise
    except OSError as error:
        raise write_error(prepared.run, error) from error
    return Run(prepared.run)


def _run_locked(
    prepared: PreparedJob,
    workers: int | None,
    address: str | None,
    observer: Observer,
    stop: Callable[[], bool],
    policy: Policy,
    allow_open: bool,
) -> None:
    jobs = [LandscapeWork(landscape, existing_store(prepared, landscape)) for landscape in prepared.landscapes]
    for each in jobs:
        each.examine()
    for each in jobs:
        if each.finished:
            each.tally.close()
            observer(each.tally.progress())
    if all(each.finished for each in jobs):
        return  # nothing to do needs no cluster
    # The handlers come after `ray.init`, which puts one of its own in place.
    with ray_session(prepared.job, address, workers, allow_open) as placement, graceful_stop() as signalled:
        crew = Crew(prepared, placement, workers)
        Driver(prepared, jobs, crew, observer, lambda: stop() or signalled(), policy).run()


class Driver:
    """A `ray.wait` loop over plain actors. Receipts come inline; only this process writes the store."""

    def __init__(
        self,
        prepared: PreparedJob,
        works: list[LandscapeWork],
        crew: Crew,
        observer: Observer,
        stop: Callable[[], bool],
        policy: Policy,
    ) -> None:
        self._prepared, self._crew, self._observer, self._stop = prepared, crew, observer, stop
        self._works = {each.landscape.name: each for each in works}
        self._pending: dict[Any, tuple[str, Task | None]] = {}  # reference → worker and task; None for its start
        self._deaths_in_a_row = 0
        self._schedule: Schedule[Task] = Schedule((), policy)
        self._metrics = Metrics()
        self._looked = 0.0

    def run(self) -> None:
        for each in self._works.values():
            each.payload = ray.put(each.pack())
        try:
            self._make_stores()
            tasks = [task for each in self._works.values() for task in each.tasks]
            waiting, self._schedule = self._schedule, Schedule(tasks, self._schedule.policy)
            for worker in waiting.in_flight:
                self._schedule.join(worker)
            self._loop()
        except BaseException:
            for each in self._works.values():
                each.interrupt()
            raise
        finally:
            self._crew.close()

    # -- workers ----------------------------------------------------------------------------------------------

    def _patrol(self) -> None:
        """What is looked after between receipts: the stop, the crew's size, nodes that leave, workers that hang."""
        self._check_stop()
        for _ in range(self._crew.missing()):
            name, reference = self._crew.hire()
            self._pending[reference] = (name, None)
        self._crew.explain_absence(journal.absent)
        now = time.monotonic()
        for name in self._schedule.hung(now):
            self._bury(name, "no progress for far longer than the median task")
        if now - self._looked > LOOK_SECONDS:
            self._looked = now
            self._metrics.queue(self._schedule.waiting, len(self._crew.ready()))
            for name in self._crew.on_draining_nodes():
                self._schedule.drain(name)
        for name in [name for name in self._schedule.leaving if self._schedule.idle(name)]:
            journal.leaves(self._crew.hands[name])
            self._part(name, blame=False, cause="")

    def _started(self, name: str, receipt: Receipt) -> None:
        if receipt.cause:
            raise JobError(f"problem: fails to load on {name}: {receipt.cause}")
        hand = self._crew.started(name, receipt)
        others = {other.device for other in self._crew.ready() if other is not hand}
        if others - {hand.device}:
            raise JobError(
                f"device: {hand.place} has {hand.device}, the other workers {', '.join(others)}, and their bits would "
                "differ; set device: cpu or cuda, or leave out the nodes that have no GPU"
            )
        for each in self._works.values():
            if not each.finished and not each.plan_for(hand.device, self._prepared.job):
                planned = each.landscape.plan.device
                raise JobError(
                    f"device: landscape {each.landscape.name!r} is computed on {planned}, {hand.place} has "
                    f"{hand.device}, and the bits would differ; go on where it was begun, "
                    "or give it another name or run"
                )
        self._schedule.join(name)
        journal.ready(hand)

    def _bury(self, name: str, cause: str, *, blame: bool = True) -> None:
        """A worker is gone or no good: its tasks go back, one that killed three is given up."""
        if cause == NODE_LOST:
            blame = False  # no tile takes a machine away, and however many go, others may come
        else:
            self._deaths_in_a_row += 1
        journal.lost(self._crew.hands[name], cause)
        self._part(name, blame=blame, cause=cause)
        if self._deaths_in_a_row > DEATHS + DEATHS * self._crew.size:
            raise LandscapeError(
                f"workers: {self._deaths_in_a_row} died in a row without finishing a task, the last one of: {cause}; "
                "mend that, then give the same command again"
            )

    def _part(self, name: str, *, blame: bool, cause: str) -> None:
        hand = self._crew.dismiss(name)
        self._pending = {reference: owner for reference, owner in self._pending.items() if owner[0] != name}
        for task, fate in self._schedule.lost(name, time.monotonic(), blame=blame):
            if fate == "quarantine":
                self._give_up(task, hand, f"worker died: {cause}")

    # -- before the first tile --------------------------------------------------------------------------------

    def _make_stores(self) -> None:
        """Create the landscapes that are new, their tile shape from one point measured on a worker."""
        new = [each for each in self._works.values() if each.store is None]
        seconds = self._measure(new) if new else DEFAULT_POINT_SECONDS
        for each in new:
            shape = tile_shape_for(self._prepared.job, each.landscape.grid, seconds, self._crew.size)
            each.store = create_store(self._prepared, each.landscape, shape)
            each.examine()

    def _measure(self, new: list[LandscapeWork]) -> float:
        """Seconds per point; where user code raises at these two points, or kills, a guess: their tile will tell.

        Batches that do not fit the device are found here, before any value is kept, and made smaller for the
        whole job: later they would give other bits.
        """
        for _ in range(self._schedule.policy.kills):
            hand = self._first_ready()
            try:
                receipt = self._await(hand.actor.measure.remote([new[0].payload]))
            except RayError as error:
                self._bury(hand.name, _short(error))
                continue
            journal.said(hand, receipt)
            for each in new:
                each.shrink_batches(receipt.details.get("batch_size"))
            return float(receipt.details.get("seconds_per_point", DEFAULT_POINT_SECONDS))
        return DEFAULT_POINT_SECONDS

    def _await(self, reference: Any) -> Receipt:
        """One receipt, asking for the stop meanwhile.

        Raises:
            RayError: the worker died, or took so long that it is taken for hung.
        """
        end = time.monotonic() + MEASURE_SECONDS
        while time.monotonic() < end:
            self._check_stop()
            if ray.wait([reference], timeout=POLL_SECONDS)[0]:
                break
        receipt: Receipt = ray.get(reference, timeout=POLL_SECONDS)
        return receipt

    def _first_ready(self) -> Hand:
        while True:
            ready = self._crew.ready()
            if ready:
                return ready[0]
            self._patrol()
            self._wait_once()

    # -- the loop ---------------------------------------------------------------------------------------------

    def _loop(self) -> None:
        while not self._schedule.finished:
            self._patrol()
            self._fill()
            self._wait_once()

    def _fill(self) -> None:
        """Give every worker its share; all get a first task before any gets a second."""
        for share in range(self._schedule.policy.in_flight):
            for hand in self._crew.ready():
                if len(self._schedule.in_flight.get(hand.name, ())) <= share:
                    task = self._schedule.next_for(hand.name, time.monotonic())
                    if task is not None:
                        self._send(hand, task)

    def _send(self, hand: Hand, task: Task) -> None:
        each = self._works[task.landscape]
        each.begin()
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
                continue  # its worker was lost in this very round
            name, task = self._pending.pop(reference)
            try:
                receipt: Receipt = ray.get(reference)
            except RayTaskError as error:
                receipt = Receipt(cause=_short(error), traceback=str(error))
            except RayError as error:
                self._bury(name, _short(error))
                continue
            journal.said(self._crew.hands[name], receipt)
            if task is None:
                self._started(name, receipt)
            else:
                self._receive(name, task, receipt)

    def _receive(self, name: str, task: Task, receipt: Receipt) -> None:
        each, hand, now = self._works[task.landscape], self._crew.hands[name], time.monotonic()
        if receipt.outcome is None:
            fate = self._schedule.failed(name, task, now)
            self._deaths_in_a_row = 0
            journal.failed(hand, task, self._schedule.attempts(task), receipt)
            if fate == "quarantine":
                self._give_up(task, hand, receipt.cause, receipt.traceback)
        elif not well_formed(each.created(), task, receipt.outcome):
            self._bury(name, f"its answer to {task.label} has the wrong shape", blame=False)
            return
        else:
            self._deaths_in_a_row = 0
            self._accept(each, hand, task, receipt)
        each.tally.retries = self._schedule.retries
        each.tally.workers = [other.record() for other in self._crew.ready()]
        self._observer(each.tally.progress())

    def _accept(self, each: LandscapeWork, hand: Hand, task: Task, receipt: Receipt) -> None:
        """Commit what the schedule believes, and part with the workers it no longer does."""
        outcome = receipt.outcome
        assert outcome is not None
        suspicious = not outcome.finite
        fingerprint = outcome.fingerprint() if suspicious or self._schedule.is_disputed(task) else ""
        answer = self._schedule.completed(
            hand.name, task, time.monotonic(), fingerprint=fingerprint, suspicious=suspicious
        )
        points = task_points(each.created(), task)
        if answer.verdict == "commit":
            commit(each.created(), task, outcome)
            hand.tasks, hand.points, hand.seconds = hand.tasks + 1, hand.points + points, hand.seconds + outcome.seconds
            self._metrics.committed(points, outcome.seconds)
            journal.done(hand, task, self._schedule.attempts(task) + 1, points, outcome.seconds)
            each.tally.done(task.label, points, receipt.details.get("batch_size"))
            each.settle()
        elif answer.verdict == "quarantine":
            self._give_up(task, hand, "workers disagree on its values")
        for name in answer.distrusted:
            if name in self._crew.hands:
                self._bury(name, f"two others agree on {task.label} and it does not", blame=False)

    def _give_up(self, task: Task, hand: Hand, cause: str, trace: str = "") -> None:
        each = self._works[task.landscape]
        quarantine(each.created(), task)
        self._metrics.failed()
        attempts = self._schedule.attempts(task)
        failure = Failure(task.label, attempts, hand.name, cause, trace, hand.host, hand.node)
        each.tally.fail(failure)
        journal.given_up(task.landscape, failure)
        each.settle()

    # -- the end ----------------------------------------------------------------------------------------------

    def _check_stop(self) -> None:
        if not self._stop():
            return
        self._schedule.abandon()
        end = time.monotonic() + DRAIN_SECONDS
        while self._pending and time.monotonic() < end and not self._schedule.finished:
            ready, _ = ray.wait(list(self._pending), num_returns=1, timeout=POLL_SECONDS)
            self._handle(ready)
            self._schedule.abandon()
        raise Interrupted(f"run {self._prepared.run!r} is interrupted; what is done is kept: the same command goes on")


def _short(error: BaseException) -> str:
    """Ray's many-line messages cut to their first sentence, or to the one that matters."""
    if "node has died" in str(error):
        return NODE_LOST
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:200]
