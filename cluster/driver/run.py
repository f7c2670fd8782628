"""A job on Ray from its beginning to its end: in this process where that is quicker, else by a driver and workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial
from types import TracebackType
from typing import TYPE_CHECKING

from cluster.driver.driver import Driver
from cluster.driver.executor import executor_of
from cluster.driver.landscapes import DrivenLandscape, LandscapeState, NewLandscape
from cluster.driver.schedule import Policy
from cluster.driver.short_jobs import is_quicker_here
from cluster.runtime.console import show_progress
from cluster.runtime.logs import graceful_stop, is_supervised, tell
from cluster.runtime.mapping import ray_workers
from cluster.runtime.session import ray_session
from landscape.compute.auto_range import finder_of
from landscape.compute.eigenpairs import solver_of
from landscape.compute.executor import Executors
from landscape.compute.prepare import prepare
from landscape.compute.prepared import PreparedJob, PreparedLandscape
from landscape.compute.refine import with_levels
from landscape.compute.serial import OpenOne, run_prepared
from landscape.compute.tasks import OpenLandscape, open_landscape
from landscape.core.devices import keep_freed_memory
from landscape.core.errors import PREPARING, LandscapeError, Observer, stage
from landscape.core.lock import run_lock
from landscape.evaluation.tuning.choices import Limits
from landscape.job.directions.base import Workers, in_this_process
from landscape.job.job import Job
from landscape.model.packed_snapshots import bring_snapshots
from landscape.store.results import Run
from landscape.store.runs import write_error

if TYPE_CHECKING:
    from cluster.driver.pool import RayWorkerPool
    from cluster.runtime.metrics import Metrics


# ----------------------------------------------------------------------------------------------------
# The workers of a job on Ray: hired where a landscape first needs them, kept while its levels are computed.


@dataclass
class Company:
    """A Ray session with its workers, from the first need of them to the end of the block.

    Starting both takes seconds, which a level of refinement often does not. Once Ray runs, all that follows is computed
    on it: what is computed in this process must not share it with a session.

    Attributes:
        workers: how many actors; default: one per GPU, else one per core.
        address: `host:port` or `auto` to attach to a cluster; default: RAY_ADDRESS, else a private local Ray.
        allow_open: also attach to a cluster that answers beyond loopback and asks for no token.
    """

    workers: int | None = None
    address: str | None = None
    allow_open: bool = False
    _stack: ExitStack = field(default_factory=ExitStack, init=False)
    _hired: tuple[RayWorkerPool, Callable[[], bool]] | None = field(default=None, init=False)

    def __enter__(self) -> Company:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def workers_for(self, prepared: PreparedJob) -> tuple[RayWorkerPool, Callable[[], bool]]:
        """The pool, and whether a signal has come since it was hired.

        Args:
            prepared: the job; every later one has its problem and its samples.
        """
        if self._hired is None:
            # Importing Ray takes seconds, which what is computed here should not cost.
            from cluster.driver.pool import RayWorkerPool

            session = ray_session(prepared.job, self.address, self.workers, self.allow_open)
            placement = self._stack.enter_context(session)
            # The handlers of signals come after `ray.init`, which installs some of its own.
            signalled = self._stack.enter_context(graceful_stop())
            pool = RayWorkerPool(prepared, placement, self.workers)
            self._stack.callback(pool.close)
            self._hired = pool, signalled
        else:
            self._hired[0].part_with_busy()
        return self._hired

    @cached_property
    def metrics(self) -> Metrics:
        """What Ray's metrics are told of the job."""
        from cluster.runtime.metrics import Metrics

        return Metrics()


# ----------------------------------------------------------------------------------------------------

ALONE: AbstractContextManager[Workers] = nullcontext(in_this_process)


@dataclass(frozen=True)
class _Options:
    """What `run` is told beside the job; its docstring describes each."""

    observer: Observer
    stop: Callable[[], bool]
    workers: int | None = None
    address: str | None = None
    policy: Policy | None = None
    limits: Limits | None = None
    accept_origin: bool = False


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
    with show_progress(observer) as shown, Company(workers, address, allow_open) as company:
        options = _Options(shown, stop, workers, address, policy, limits, accept_origin)
        on_ray = ray_workers(job, address, workers, allow_open, stop)
        executors: Executors = partial(executor_of, workers=workers, address=address, allow_open=allow_open, stop=stop)
        compute = partial(_compute, company=company, options=options)
        # Levels have the directions of their landscape.
        return with_levels(job, lambda each: _while_locked(each, compute, executors, on_ray if each is job else ALONE))


def run_serially(job: Job, observer: Observer, *, accept_origin: bool = False) -> Run:
    """Compute a job in this process alone; once preparation is over, a signal stops it in an orderly way."""
    options = _Options(observer, lambda: False, accept_origin=accept_origin)
    executors: Executors = partial(executor_of, serial=True)
    compute = partial(_until_signalled, options=options)
    return with_levels(job, lambda each: _while_locked(each, compute, executors, ALONE))


def _while_locked(
    job: Job,
    compute: Callable[[PreparedJob], None],
    executors: Executors,
    workers: AbstractContextManager[Workers],
) -> Run:
    """Prepare the job, and compute it while its run is locked against other drivers.

    Args:
        executors: evaluate what is found out before the run is locked: eigenvectors that are axes, whose steps are
            kept beside the store, and ranges that are left to the loss.
        workers: where directions that are costly to make may run. They are given back before anything is computed:
            what then runs in this process must not share it with a Ray session.
    """
    stage(PREPARING)
    with workers as mapping:
        prepared = prepare(job, mapping, solver_of(executors), finder_of(executors))
    try:
        with run_lock(prepared.run):
            bring_snapshots(prepared.run, prepared.job.problem, prepared.job.folder)
            compute(prepared)
    except LandscapeError:
        raise
    except OSError as error:
        raise write_error(prepared.run, error) from error
    return Run(prepared.run)


def _compute(prepared: PreparedJob, company: Company, options: _Options) -> None:
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
        _compute_on_ray(prepared, landscapes, company, options)


def _begun_or_new(landscape: PreparedLandscape, opened: OpenLandscape | None) -> DrivenLandscape:
    return NewLandscape(landscape) if opened is None else LandscapeState(landscape, opened)


def _compute_here(prepared: PreparedJob, options: _Options, open_one: OpenOne) -> None:
    """Compute in this process, as the serial reference does; if it is killed, its supervisor goes on with Ray."""
    stage("computing in this process: it is done before Ray would have started (--workers N asks for Ray)")
    tell(here=True)
    if is_supervised():  # a command's own process, and not a notebook's
        keep_freed_memory()
    _until_signalled(prepared, options, open_one)


def _until_signalled(prepared: PreparedJob, options: _Options, open_one: OpenOne = open_landscape) -> None:
    with graceful_stop() as signalled:
        run_prepared(
            prepared, options.observer, lambda: options.stop() or signalled(), options.limits, open_one,
            accept_origin=options.accept_origin,
        )  # fmt: skip


def _compute_on_ray(
    prepared: PreparedJob, landscapes: Sequence[DrivenLandscape], company: Company, options: _Options
) -> None:
    prepared.log_warnings()
    pool, signalled = company.workers_for(prepared)
    Driver(
        prepared,
        landscapes,
        pool,
        options.observer,
        lambda: options.stop() or signalled(),
        options.policy or Policy(),
        company.metrics,
        limits=options.limits,
        accept_origin=options.accept_origin,
    ).run()
