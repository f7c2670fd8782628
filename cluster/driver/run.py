"""A job on Ray from its beginning to its end: in this process where that is quicker, else by a driver and workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from cluster.driver.driver import Driver
from cluster.driver.landscape_states import DrivenLandscape, LandscapeState, NewLandscape
from cluster.driver.ray_executor import ClusterOptions, LazyPool, executor_of
from cluster.driver.schedule import Policy
from cluster.driver.short_jobs import is_quicker_here
from cluster.runtime.console import show_progress
from cluster.runtime.logs import graceful_stop, is_supervised, tell
from cluster.runtime.mapping import ray_workers
from landscape.compute.executor import Executors
from landscape.compute.prepared import PreparedJob, PreparedLandscape
from landscape.compute.refine import with_levels
from landscape.compute.serial import ALONE, OpenOne, RunOptions, run_locked, run_prepared
from landscape.compute.tasks import OpenLandscape, open_landscape
from landscape.core.devices import keep_freed_memory
from landscape.core.progress import Observer, stage
from landscape.evaluation.tuning.choices import Limits
from landscape.job.job import Job
from landscape.store.results import Run


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
