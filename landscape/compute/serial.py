"""The whole story on one page: prepare a job, choose how to compute it, evaluate its tasks, store them.

This is the serial reference of every faster path: a Ray driver calls the same functions for many workers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from landscape.compute.auto_range import finder_of
from landscape.compute.eigenpairs import solver_of
from landscape.compute.executor import Executors, GivenUp, local_executors, try_computing
from landscape.compute.job_warnings import warn_of_constant
from landscape.compute.packed_copy import keep_packed_copy
from landscape.compute.plans import bound_to, make_evaluator, tile_shape_for, tune_landscape, tuning_scope
from landscape.compute.prepare import prepare
from landscape.compute.prepared import PreparedJob, PreparedLandscape, kept_samples
from landscape.compute.progress_tracker import Tally, start_tally
from landscape.compute.reproducibility import NotReproduced, check_reproduction
from landscape.compute.tasks import (
    OpenLandscape,
    Task,
    create_landscape,
    evaluate,
    make_work,
    open_landscape,
)
from landscape.core.errors import Interrupted, LandscapeError, StoreError, quoted
from landscape.core.lock import run_lock
from landscape.core.progress import PREPARING, Observer, show_progress, stage
from landscape.evaluation.evaluator import Evaluator
from landscape.evaluation.tuning.choices import Limits
from landscape.job.directions.base import Workers, in_this_process
from landscape.job.job import Job
from landscape.model.packed_snapshots import bring_snapshots
from landscape.problem.user_code import in_folder
from landscape.store.results import Run
from landscape.store.runs import write_error
from landscape.surface.record_parts import Failure

ALONE: AbstractContextManager[Workers] = nullcontext(in_this_process)
# Opens a landscape of the job for writing; returns None for a new one.
OpenOne: TypeAlias = Callable[[PreparedJob, PreparedLandscape], OpenLandscape | None]


@dataclass(frozen=True)
class RunOptions:
    """The options of `run`.

    Attributes:
        observer: is called with the `Progress` after every task.
        stop: is called between points; if it returns true, the current task is dropped and `Interrupted` raised.
        limits: how long the search for the fastest engine may take.
        accept_origin: continue, with a warning, if the user's own model has another loss at the origin or beside it.
    """

    observer: Observer = lambda progress: None
    stop: Callable[[], bool] = lambda: False
    limits: Limits | None = None
    accept_origin: bool = False


def run(
    job: Job,
    observer: Observer | None = None,
    stop: Callable[[], bool] = lambda: False,
    limits: Limits | None = None,
    *,
    accept_origin: bool = False,
) -> Run:
    """Compute a job like `refine.run`, but without its levels of refinement."""
    options = RunOptions(observer or RunOptions.observer, stop, limits, accept_origin)
    return run_locked(job, lambda prepared: run_prepared(prepared, options), local_executors(stop))


@contextlib.contextmanager
def computing_by(compute: Callable[[Job], Run] | None, progress: bool) -> Iterator[Callable[[Job], Run]]:
    """What computes a job: `compute`, else this process, whose progress is shown if `progress` says so."""
    if compute is not None:
        yield compute
        return
    with show_progress(None, progress) as display:
        yield lambda job: run(job, display)


def run_locked(
    job: Job,
    compute: Callable[[PreparedJob], None],
    executors: Executors,
    workers: AbstractContextManager[Workers] = ALONE,
) -> Run:
    """Prepare the job, and compute it while its run is locked against other drivers.

    Args:
        executors: compute eigenvectors for axes and ranges that are left to the loss, before the run is locked.
        workers: compute costly directions. They are released before anything is computed: later work in this process
            must not share it with a Ray session.
    """
    stage(PREPARING)
    with workers as mapping:
        prepared = prepare(job, mapping, solver_of(executors), finder_of(executors))
    try:
        with run_lock(prepared.run):
            bring_snapshots(prepared.run, prepared.job.problem, prepared.job.folder)
            compute(prepared)
            keep_packed_copy(prepared)
    except LandscapeError:
        raise
    except OSError as error:
        raise write_error(prepared.run, error) from error
    return Run(prepared.run)


def run_prepared(prepared: PreparedJob, options: RunOptions, open_one: OpenOne = open_landscape) -> None:
    """Compute a prepared job, landscape by landscape; the caller holds the run's lock.

    All landscapes are created before the first point is computed, so every reader of the run sees all of them.

    Args:
        open_one: opens a landscape; a caller that has opened them already passes its own function.
    """

    def on_point() -> None:  # the evaluator calls it before each point
        if options.stop():
            raise Interrupted(
                f"run {quoted(prepared.run)} is interrupted; finished tiles are kept: the same command goes on"
            )

    prepared.log_warnings()
    for landscape, opened in _open_or_create(prepared, on_point, options.limits, open_one):
        compute_landscape(prepared, landscape, opened, options, on_point)


def _open_or_create(
    prepared: PreparedJob, on_point: Callable[[], None], limits: Limits | None, open_one: OpenOne
) -> list[tuple[PreparedLandscape, OpenLandscape]]:
    """The planned landscapes of a job, each open for writing; new ones are tuned and created."""
    landscapes = []
    scope, job_plan = tuning_scope(prepared)
    for landscape in prepared.landscapes:
        planned, opened = landscape, open_one(prepared, landscape)
        if opened is None:
            in_batches = landscape if job_plan is None else landscape.in_batches(job_plan.batch_size)
            planned, seconds = tune_landscape(prepared, in_batches, scope, on_point, limits)
            # One job has one engine: the choice for this landscape holds for the rest.
            job_plan, scope = planned.plan, bound_to(scope, planned)
            kept, seconds = kept_samples(prepared, planned), seconds * planned.evaluations_per_point
            tile_shape = tile_shape_for(prepared.job, planned.grid, planned.plan.engine, seconds, 1, kept)
            opened = create_landscape(prepared, planned, tile_shape)
        landscapes.append((planned, opened))
    return landscapes


def compute_landscape(
    prepared: PreparedJob,
    landscape: PreparedLandscape,
    opened: OpenLandscape,
    options: RunOptions,
    on_point: Callable[[], None],
) -> None:
    """Compute the missing tasks of one landscape, and record its progress.

    Args:
        on_point: is called before each point; an exception that it raises ends the computation.
    """
    tally = start_tally(opened, landscape)
    if not opened.tasks:
        tally.close()  # a process that was killed after the last task could not record the end
    else:
        evaluator = make_evaluator(prepared, landscape, on_point)
        with recorded_end(tally):
            with in_folder(prepared.folder):
                check_reproduction(
                    opened.store, landscape.grid, evaluator, landscape.extension, accept_origin=options.accept_origin
                )
            while opened.tasks:
                for task in opened.tasks:
                    compute_task(landscape, opened, task, evaluator, tally, prepared.folder)
                    options.observer(tally.progress())
                opened.tasks = opened.advance(tally.seconds)
                tally.add(sum(map(opened.points_of, opened.tasks)), len(opened.tasks))
        warn_of_constant(opened.store, landscape)
    options.observer(tally.progress())


def compute_task(
    landscape: PreparedLandscape, opened: OpenLandscape, task: Task, evaluator: Evaluator, tally: Tally, folder: Path
) -> None:
    """Evaluate one task with `folder` as working directory; commit its outcome, or give it up if user code fails."""
    work = make_work(landscape, opened, task)
    with in_folder(folder):
        outcome = try_computing(evaluator, lambda: evaluate(evaluator, work))
    if isinstance(outcome, GivenUp):
        opened.quarantine(task)
        failure = Failure(task.label, outcome.attempts, "this process", outcome.cause, outcome.traceback)
        tally.count_given_up(failure, opened.points_of(task))
    else:
        opened.commit([(task, outcome)], landscape.extension)
        reduced = evaluator.batch_size < evaluator.plan.batch_size
        tally.count_done(task.label, opened.points_of(task), evaluator.batch_size if reduced else None)


@contextlib.contextmanager
def recorded_end(tally: Tally) -> Iterator[None]:
    """Record at the end of the block that the landscape is complete, partial or interrupted.

    Nothing is recorded if the store is unreachable, or if this process must not write to the landscape.
    """
    try:
        yield
    except (StoreError, NotReproduced):
        raise
    except BaseException:
        tally.finish("interrupted")
        raise
    tally.finish()
