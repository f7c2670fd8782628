"""The one process that schedules and writes: it joins schedule, workers and store, resumes and reports."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cluster.driver import journal
from cluster.driver.assignment import LandscapeWork
from cluster.driver.shortness import is_shorter_here
from cluster.process.console import shown_progress
from cluster.process.lifeline import HERE, supervised, tell
from cluster.process.signals import graceful_stop
from cluster.scheduling.backlog import Backlog
from cluster.scheduling.policy import Policy
from cluster.scheduling.schedule import Schedule
from cluster.session.session import ray_session
from cluster.workers.hands import LOOK_SECONDS, MEASURE, NODE_LOST, START, Arrival, Crew, Hand
from cluster.workers.worker import Receipt
from landscape.choosing import freedom_of, tile_shape_for
from landscape.errors import Interrupted, JobError, LandscapeError, StoreError, shown
from landscape.evaluation.choice.questions import DEFAULT_POINT_SECONDS, Limits, Measure, Request, follow
from landscape.evaluation.choice.search import Search
from landscape.folders.lock import run_lock
from landscape.memory import keep_freed_memory
from landscape.pipeline import run_prepared
from landscape.preparation import PreparedJob, create_store, existing_store, prepare
from landscape.progress import CHOOSING, PREPARING, Failure, Observer, stage
from landscape.reproduction import NotReproduced, Witness
from landscape.results import Run
from landscape.spec import Job
from landscape.store import write_error
from landscape.tasks import OpenLandscape, Outcome, Task, commit_all, make_work, quarantine, task_points, well_formed

if TYPE_CHECKING:
    from cluster.session.metrics import Metrics

POLL_SECONDS = 0.25
MEASURE_SECONDS = 600.0  # a worker that takes longer to measure is taken for hung
GATHER_SECONDS = 10.0  # from the first worker until those of its node are timed without the ones that still start
LOADS = 3  # workers that fail to load the problem, with none that has, until the job ends
DEATHS = 3  # in a row and per worker, without a task done in between, until the job ends
IDLE_SECONDS = 120.0  # with nobody but workers that are left out, until the job ends
DRAIN_SECONDS = 2.0  # what ends within it after a stop is still committed; the rest is dropped


def run(
    job: Job,
    workers: int | None = None,
    address: str | None = None,
    observer: Observer | None = None,
    stop: Callable[[], bool] = lambda: False,
    policy: Policy | None = None,
    allow_open: bool = False,
    limits: Limits | None = None,
) -> Run:
    """Compute a job on Ray, or go on with it where it stopped; returns when done.

    Without workers or an address asked for, a job that is over sooner than a private Ray would start is computed in
    this process, to the same bits.

    Args:
        workers: how many actors; default: one per GPU, else one per CPU core.
        address: `host:port` or `auto` to attach to a cluster; default: RAY_ADDRESS, else a private local Ray.
        observer: is told the `Progress` after every task; default: a bar on a terminal and in a notebook, nothing
            elsewhere. `lambda progress: None` silences it.
        stop: is asked several times a second; when true, what is in flight is dropped and `Interrupted` raised.
        policy: when a task is tried again, backed up, checked or given up, and when a worker counts as hung.
        allow_open: also attach to a cluster that answers beyond loopback and asks for no token.
        limits: how long the search for the fastest engine may take.

    Returns:
        The run, opened for reading. Tasks that were given up are listed in its landscapes' `failures`.
    """
    with shown_progress(observer) as shown:
        return _with_lock(
            job,
            lambda prepared: _run_locked(
                prepared, workers, address, shown, stop, policy or Policy(), allow_open, limits
            ),
        )


def run_serially(job: Job, observer: Observer) -> Run:
    """The job in this process alone; signals are answered in order once there is something to stop in order."""
    return _with_lock(job, lambda prepared: _until_signalled(prepared, observer, lambda: False))


def _with_lock(job: Job, compute: Callable[[PreparedJob], None]) -> Run:
    stage(PREPARING)
    prepared = prepare(job)
    try:
        with run_lock(prepared.run):
            compute(prepared)
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
    limits: Limits | None,
) -> None:
    jobs = [LandscapeWork(landscape, existing_store(prepared, landscape)) for landscape in prepared.landscapes]
    for each in jobs:
        each.examine()
    left = not all(each.finished for each in jobs)
    if left and is_shorter_here(prepared, jobs, workers, address):
        _run_here(prepared, jobs, observer, stop, limits)
        return
    for each in jobs:
        if each.finished:
            each.tally.close()
            observer(each.tally.progress())
    if not left:
        return  # nothing to do needs no cluster
    # Importing Ray takes seconds, which what is computed here should not cost.
    from cluster.session.metrics import Metrics
    from cluster.workers.crew import RayCrew

    prepared.log_warnings()
    # The handlers come after `ray.init`, which puts one of its own in place.
    with ray_session(prepared.job, address, workers, allow_open) as placement, graceful_stop() as signalled:
        crew = RayCrew(prepared, placement, workers)
        Driver(prepared, jobs, crew, observer, lambda: stop() or signalled(), policy, Metrics(), limits=limits).run()


def _run_here(
    prepared: PreparedJob,
    jobs: Sequence[LandscapeWork],
    observer: Observer,
    stop: Callable[[], bool],
    limits: Limits | None,
) -> None:
    """In this process, by the serial reference: where that fails its supervisor has Ray's workers go on."""
    stage("computing in this process: it is done before Ray would have started (--workers N asks for Ray)")
    tell(HERE)
    if supervised():  # a command's own process, and not a notebook's
        keep_freed_memory()
    opened = {
        each.landscape.name: None if each.store is None else OpenLandscape(each.store, each.tasks) for each in jobs
    }
    _until_signalled(prepared, observer, stop, limits, opened)


def _until_signalled(
    prepared: PreparedJob,
    observer: Observer,
    stop: Callable[[], bool],
    limits: Limits | None = None,
    opened: Mapping[str, OpenLandscape | None] | None = None,
) -> None:
    with graceful_stop() as signalled:
        run_prepared(prepared, observer, lambda: stop() or signalled(), limits, opened)


@dataclass(frozen=True, slots=True)
class _Believed:
    """A task's outcome that is to be committed."""

    hand: Hand
    task: Task
    attempt: int
    outcome: Outcome
    batch_size: int | None


class Driver:
    """A loop over what comes in from the crew. Only this process writes the store."""

    def __init__(
        self,
        prepared: PreparedJob,
        works: list[LandscapeWork],
        crew: Crew,
        observer: Observer,
        stop: Callable[[], bool],
        policy: Policy,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
        limits: Limits | None = None,
    ) -> None:
        self._prepared, self._crew, self._observer, self._stop = prepared, crew, observer, stop
        self._works = {each.landscape.name: each for each in works}
        self._deaths_in_a_row = self._unloaded = 0
        self._schedule: Schedule[Task] = Schedule((), policy)
        self._metrics, self._clock, self._limits = metrics, clock, limits
        self._looked = 0.0
        self._refusal: NotReproduced | None = None
        self._idle_since = clock()
        self._left_out: set[str] = set()  # workers whose values have other bits than those that are kept
        self._measured: dict[str, Receipt] = {}
        self._gathered: list[str] | None = None  # the workers that are timed at once

    def run(self) -> None:
        for each in self._works.values():
            each.share(self._crew.share, self._crew.ready)
        try:
            self._make_stores()
            tasks: Backlog[Task] = Backlog(*(each.tasks for each in self._works.values()))
            waiting, self._schedule = self._schedule, Schedule(tasks, self._schedule.policy)
            for worker in waiting.in_flight:
                self._schedule.join(worker)
            self._loop()
        except StoreError:
            raise  # the store cannot be reached, so do not try to record the interruption
        except BaseException as error:
            for each in self._works.values():
                each.interrupt(unless_idle=isinstance(error, NotReproduced))
            raise
        finally:
            self._crew.close()

    # -- workers ----------------------------------------------------------------------------------------------

    def _patrol(self) -> None:
        """What is looked after between receipts: the stop, the crew's size, nodes that leave, workers that hang."""
        self._check_stop()
        for _ in range(self._crew.missing()):
            self._crew.hire()
        self._crew.explain_absence(journal.absent)
        self._refuse_idle_crew()
        now = self._clock()
        for name in self._schedule.hung(now):
            self._bury(name, "no progress for far longer than the median task")
        if now - self._looked > LOOK_SECONDS:
            self._looked = now
            self._metrics.queue(self._schedule.waiting, len(self._crew.ready))
            for name in self._crew.on_draining_nodes():
                self._schedule.drain(name)
        for name in [name for name in self._schedule.leaving if self._schedule.idle(name)]:
            journal.leaves(self._crew.hands[name])
            self._part(name, blame=False, cause="")

    def _started(self, name: str, receipt: Receipt) -> None:
        if receipt.cause:
            self._not_started(name, receipt.cause)
            return
        self._unloaded = 0
        hand = self._crew.started(name, receipt)
        # Earlier workers already agree, so comparing with one is enough.
        other = next((each for each in self._crew.ready.values() if each is not hand), hand)
        if other.device != hand.device:
            raise JobError(
                f"device: {hand.place} has {hand.device}, the other workers {other.device}, and their bits would "
                "differ; set device: cpu or cuda, or leave out the nodes that have no GPU"
            )
        for each in self._works.values():
            if not each.finished and not each.plan_for(hand.device, self._prepared.job):
                planned = each.landscape.plan.device
                raise JobError(
                    f"device: landscape {shown(each.landscape.name)} is computed on {planned}, {hand.place} has "
                    f"{hand.device}, and the bits would differ; go on where it was begun, "
                    "or give it another name or run"
                )
        self._schedule.join(name)
        journal.ready(hand)

    def _not_started(self, name: str, cause: str) -> None:
        """The driver has loaded the problem: where workers cannot, one may be at fault; all are not."""
        self._unloaded += 1
        if not self._crew.ready and self._unloaded >= LOADS:
            raise JobError(f"problem: fails to load on {name}: {cause}")
        self._bury(name, f"it cannot load the problem: {cause}", blame=False)

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
        self._left_out.discard(name)
        flying = self._schedule.in_flight.get(name)
        if blame and flying and self._works[flying[0].landscape].died_unproven(self._schedule.policy.kills):
            blame = False
        for task, fate in self._schedule.lost(name, self._clock(), blame=blame):
            if fate == "quarantine":
                self._give_up(task, hand, f"worker died: {cause}")

    def _leave_out(self, hand: Hand, work: LandscapeWork, witness: Witness, difference: str) -> None:
        """A worker with other bits gets no task. It keeps its place, so that nobody is hired to the same node for it.

        Raises:
            JobError: there is no other worker.
        """
        if hand.name not in self._left_out:
            self._left_out.add(hand.name)
            self._tell_left_out(hand, work, witness, difference)
        self._schedule.lost(hand.name, self._clock(), blame=False)
        self._refusal = work.refusal(witness, difference)
        if len(self._left_out) >= self._crew.size:
            raise self._refusal

    def _tell_left_out(self, hand: Hand, work: LandscapeWork, witness: Witness, difference: str) -> None:
        name, agreeing, left_out = work.landscape.name, len(work.agreeing), len(self._left_out)
        journal.left_out(hand, name, witness, difference, agreeing)
        if left_out == agreeing + 1 and agreeing:  # at the moment when they become more
            journal.outnumbered(name, work.processor, left_out, agreeing)

    def _refuse_idle_crew(self) -> None:
        """Workers that are left out keep their places, which those that are still waited for may need.

        Raises:
            JobError: for long no worker has been there that could do anything.
        """
        if not self._left_out or set(self._crew.ready) - self._left_out:
            self._idle_since = self._clock()
        elif self._refusal and self._clock() - self._idle_since > IDLE_SECONDS:
            raise self._refusal

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
        """Seconds per point, once the engine is chosen; where user code kills at the points tried, a guess.

        Batches that do not fit the device are found here, before any value is kept, and made smaller for the
        whole job: later they would give other bits.
        """
        stage(CHOOSING)
        freedom, chosen = freedom_of(self._prepared)
        self._first_ready()  # plans for the device that it has
        if chosen is not None:
            for each in new:
                each.adopt(each.landscape.in_batches(chosen.batch_size))
        work = new[0]
        tuned = follow(
            Search(work.landscape.plan, freedom, self._limits).steps(), lambda request: self._answers(request, work)
        )
        if tuned.warning:
            journal.tuned(tuned.warning)
        for each in new:
            each.adopt(each.landscape.tuned(tuned))
        return float(tuned.seconds_per_point)

    def _answers(self, request: Request, work: LandscapeWork) -> list[Any]:
        """What the search asks for, done by the workers of one node at once, or by one of them.

        Who dies of it or hangs is left out. That a point can be measured is tried on one worker after the other.
        """
        tries = self._schedule.policy.kills if isinstance(request, Measure) else 1
        for _ in range(tries):
            hands = self._node_mates() if request.everyone else [self._first_ready()]
            receipts = self._ask_at_once(hands, request, work)
            if receipts:
                return [each.details["answer"] for each in receipts if "answer" in each.details]
        return []

    def _node_mates(self) -> list[Hand]:
        """The first worker, and those of its node that have started; waits a little for those that have not."""
        if self._gathered is None:
            end = self._clock() + GATHER_SECONDS
            while len(self._crew.ready) < len(self._crew.hands) and self._clock() < end:
                self._patrol()
                self._handle(self._crew.arrivals(POLL_SECONDS))
            first = self._first_ready()
            self._gathered = [each.name for each in self._crew.ready.values() if each.node == first.node]
        return [self._crew.ready[name] for name in self._gathered if name in self._crew.ready]

    def _ask_at_once(self, hands: Sequence[Hand], request: Request, work: LandscapeWork) -> list[Receipt]:
        """The answers of those that give one; who takes too long is taken for hung."""
        self._measured, end = {}, self._clock() + MEASURE_SECONDS
        asked = [hand.name for hand in hands]
        for name in asked:
            self._crew.measure(name, work.payload, request)
        while waiting := [name for name in asked if name in self._crew.hands and name not in self._measured]:
            if self._clock() > end:
                for name in waiting:
                    self._bury(name, f"it took more than {MEASURE_SECONDS:.0f} s to measure a few points")
                break
            self._patrol()
            self._handle(self._crew.arrivals(POLL_SECONDS))
        return [self._measured[name] for name in asked if name in self._measured]

    def _first_ready(self) -> Hand:
        while not self._crew.ready:
            self._patrol()
            self._handle(self._crew.arrivals(POLL_SECONDS))
        return next(iter(self._crew.ready.values()))

    # -- the loop ---------------------------------------------------------------------------------------------

    def _loop(self) -> None:
        while not self._schedule.finished:
            self._patrol()
            self._fill()
            self._handle(self._crew.arrivals(POLL_SECONDS))

    def _fill(self) -> None:
        for name, task in self._schedule.assign(self._clock()):
            each = self._works[task.landscape]
            each.begin()
            self._crew.send(name, task, each.payload, make_work(each.landscape, each.created(), task))

    def _handle(self, arrivals: Sequence[Arrival]) -> None:
        """Decide on every receipt, then commit those believed together: one sync serves them all."""
        believed: list[_Believed] = []
        try:
            for each in arrivals:
                if each.worker not in self._crew.hands:
                    continue  # lost in this very round
                if each.receipt is None:
                    self._bury(each.worker, each.lost)
                    continue
                journal.said(self._crew.hands[each.worker], each.receipt)
                if each.asked == START:
                    self._started(each.worker, each.receipt)
                elif each.asked == MEASURE:
                    self._refuse_fatal(each.receipt)
                    self._measured[each.worker] = each.receipt
                else:
                    assert isinstance(each.asked, Task)
                    self._receive(each.worker, each.asked, each.receipt, believed)
        finally:
            self._commit(believed)

    @staticmethod
    def _refuse_fatal(receipt: Receipt) -> None:
        if receipt.fatal:
            raise JobError(receipt.cause)

    def _receive(self, name: str, task: Task, receipt: Receipt, believed: list[_Believed]) -> None:
        self._refuse_fatal(receipt)
        each, hand = self._works[task.landscape], self._crew.hands[name]
        witness: Witness | None = receipt.details.get("witness")
        difference = each.refuses(witness) if witness else ""
        if witness and not difference:
            each.agreeing.add(name)
        if witness and difference:
            self._leave_out(hand, each, witness, difference)
        elif receipt.outcome is None:
            self._deaths_in_a_row = 0
            fate = self._schedule.failed(name, task, self._clock())
            journal.failed(hand, task, self._schedule.attempts(task), receipt)
            if fate == "quarantine":
                self._give_up(task, hand, receipt.cause, receipt.traceback)
            self._report(each)
        elif not well_formed(each.created(), task, receipt.outcome):
            self._bury(name, f"its answer to {task.label} has the wrong shape", blame=False)
        else:
            self._deaths_in_a_row = 0
            attempt = self._schedule.attempts(task) + 1  # nothing is kept of a task that is done
            if not self._believes(hand, task, receipt.outcome):
                self._report(each)
            else:
                believed.append(_Believed(hand, task, attempt, receipt.outcome, receipt.details.get("batch_size")))

    def _believes(self, hand: Hand, task: Task, outcome: Outcome) -> bool:
        """Whether the schedule does; parts with the workers that it no longer does."""
        suspicious = not outcome.finite
        fingerprint = outcome.fingerprint() if suspicious or self._schedule.is_disputed(task) else ""
        answer = self._schedule.completed(
            hand.name, task, self._clock(), fingerprint=fingerprint, suspicious=suspicious
        )
        if answer.verdict == "quarantine":
            self._give_up(task, hand, "workers disagree on its values")
        for name in answer.distrusted:
            if name in self._crew.hands:
                self._bury(name, f"two others agree on {task.label} and it does not", blame=False)
        return answer.verdict == "commit"

    def _commit(self, believed: Sequence[_Believed]) -> None:
        by_landscape: dict[str, list[_Believed]] = {}
        for each in believed:
            by_landscape.setdefault(each.task.landscape, []).append(each)
        for name, those in by_landscape.items():
            work = self._works[name]
            commit_all(work.created(), [(each.task, each.outcome) for each in those])
            for each in those:
                points, seconds = task_points(work.created(), each.task), each.outcome.seconds
                each.hand.tasks, each.hand.points = each.hand.tasks + 1, each.hand.points + points
                each.hand.seconds += seconds
                self._metrics.committed(points, seconds)
                journal.done(each.hand, each.task, each.attempt, points, seconds)
                work.tally.done(each.task.label, points, each.batch_size)
                work.settle()
                self._report(work)

    def _report(self, each: LandscapeWork) -> None:
        each.tally.retries = self._schedule.retries
        self._observer(each.tally.progress())

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
        end = self._clock() + DRAIN_SECONDS
        while self._clock() < end and not self._schedule.finished:
            self._handle(self._crew.arrivals(POLL_SECONDS))
            self._schedule.abandon()
        raise Interrupted(
            f"run {shown(self._prepared.run)} is interrupted; what is done is kept: the same command goes on"
        )
