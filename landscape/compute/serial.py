"""The story on one page: prepare a job, choose how to compute it, evaluate its tasks, store them.

This is the serial reference of every faster path: a Ray driver does the same with the same functions, on many workers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

from landscape.compute.auto_range import serial_finder
from landscape.compute.dry_run import warn_of_constant
from landscape.compute.eigenpairs import serial_solver
from landscape.compute.point_extras import bound_to, make_evaluator, tile_shape_for, tune_landscape, tuning_scope
from landscape.compute.prepare import prepare
from landscape.compute.prepared import PreparedJob, PreparedLandscape, kept_samples
from landscape.compute.reproducibility import NotReproduced, check_reproduction
from landscape.compute.reuse import Task, make_work
from landscape.compute.tasks import (
    GivenUp,
    OpenLandscape,
    Tally,
    commit,
    create_landscape,
    open_landscape,
    quarantine,
    start_tally,
    task_points,
    try_task,
)
from landscape.core.errors import PREPARING, Failure, Interrupted, Observer, StoreError, quoted, stage
from landscape.core.lock import run_lock
from landscape.evaluation.evaluator import Evaluator
from landscape.evaluation.tuning.choices import Limits
from landscape.job.job import Job
from landscape.model.packed_snapshots import bring_snapshots
from landscape.problem.user_code import in_folder
from landscape.store.results import Run
from landscape.store.runs import write_error

# A landscape of the job that is on disk, open for writing; None for one that is new.
OpenOne: TypeAlias = Callable[[PreparedJob, PreparedLandscape], OpenLandscape | None]


def run(
    job: Job,
    observer: Observer | None = None,
    stop: Callable[[], bool] = lambda: False,
    limits: Limits | None = None,
    *,
    accept_origin: bool = False,
) -> Run:
    """Compute a job as `adapting.run` does, but without the levels of refinement that it asks for."""
    stage(PREPARING)
    prepared = prepare(job, solver=serial_solver(stop), finder=serial_finder(stop))
    try:
        with run_lock(prepared.run):
            bring_snapshots(prepared.run, prepared.job.problem, prepared.job.folder)
            run_prepared(
                prepared, observer or (lambda progress: None), stop, limits, accept_origin=accept_origin
            )  # fmt: skip
    except OSError as error:
        raise write_error(prepared.run, error) from error
    return Run(prepared.run)


def run_prepared(
    prepared: PreparedJob,
    observer: Observer,
    stop: Callable[[], bool],
    limits: Limits | None = None,
    open_one: OpenOne = open_landscape,
    *,
    accept_origin: bool = False,
) -> None:
    """Compute a job that is prepared, landscape by landscape, while its run's lock is held.

    All landscapes are on disk before the first point is computed, so that whoever looks at the run sees all of them.

    Args:
        open_one: another way to open its landscapes, where they have been opened already.
        accept_origin: go on, with a warning, where the user's own model has another loss at the origin or beside it.
    """

    def on_point() -> None:  # the evaluator calls it before each point
        if stop():
            raise Interrupted(
                f"run {quoted(prepared.run)} is interrupted; what is done is kept: the same command goes on"
            )

    prepared.log_warnings()
    for landscape, opened in _opened_or_created(prepared, on_point, limits, open_one):
        compute_landscape(prepared, landscape, opened, observer, on_point, accept_origin=accept_origin)


def _opened_or_created(
    prepared: PreparedJob, on_point: Callable[[], None], limits: Limits | None, open_one: OpenOne
) -> list[tuple[PreparedLandscape, OpenLandscape]]:
    """The landscapes of a job as they are planned, each open for writing; those that are new are tuned and created."""
    found = []
    scope, job_plan = tuning_scope(prepared)
    for landscape in prepared.landscapes:
        planned, opened = landscape, open_one(prepared, landscape)
        if opened is None:
            in_batches = landscape if job_plan is None else landscape.in_batches(job_plan.batch_size)
            planned, seconds = tune_landscape(prepared, in_batches, scope, on_point, limits)
            # One job has one engine: what was chosen for this landscape holds for the rest.
            job_plan, scope = planned.plan, bound_to(scope, planned.plan)
            kept, seconds = kept_samples(prepared, planned), seconds * planned.evaluations_per_point
            tile_shape = tile_shape_for(prepared.job, planned.grid, seconds, 1, kept)
            opened = create_landscape(prepared, planned, tile_shape)
        found.append((planned, opened))
    return found


def compute_landscape(
    prepared: PreparedJob,
    landscape: PreparedLandscape,
    opened: OpenLandscape,
    observer: Observer,
    on_point: Callable[[], None],
    *,
    accept_origin: bool = False,
) -> None:
    """Compute what is left to do of one landscape, task after task, and record how far it is.

    Args:
        on_point: is called before each point; what it raises ends the computation.
    """
    tally = start_tally(opened.store, landscape, opened.tasks)
    if not opened.tasks:
        tally.close()  # a process that was killed after the last task has not recorded that it was the last
    else:
        evaluator = make_evaluator(prepared, landscape, on_point)
        with recorded_end(tally):
            with in_folder(prepared.folder):
                check_reproduction(
                    opened.store, landscape.grid, evaluator, landscape.extension, accept_origin=accept_origin
                )
            for task in opened.tasks:
                compute_task(landscape, opened, task, evaluator, tally, prepared.folder)
                observer(tally.progress())
        warn_of_constant(opened.store, landscape)
    observer(tally.progress())


def compute_task(
    landscape: PreparedLandscape, opened: OpenLandscape, task: Task, evaluator: Evaluator, tally: Tally, folder: Path
) -> None:
    """Evaluate one task, user code running in its folder; commit its outcome, or give it up where user code fails."""
    work = make_work(landscape, opened.store, task)
    with in_folder(folder):
        outcome = try_task(evaluator, work)
    if isinstance(outcome, GivenUp):
        quarantine(opened.store, task)
        failure = Failure(task.label, outcome.attempts, "this process", outcome.cause, outcome.traceback)
        tally.fail(failure, task_points(opened.store, task))
    else:
        commit(opened.store, task, outcome, landscape.extension)
        reduced = evaluator.batch_size < evaluator.plan.batch_size
        tally.done(task.label, task_points(opened.store, task), evaluator.batch_size if reduced else None)


@contextlib.contextmanager
def recorded_end(tally: Tally) -> Iterator[None]:
    """Record at the end of the block that the landscape is complete or partial, or that it was interrupted.

    Nothing is recorded where the store cannot be reached, or where this process must not write to the landscape.
    """
    try:
        yield
    except (StoreError, NotReproduced):
        raise
    except BaseException:
        tally.finish("interrupted")
        raise
    tally.finish()
