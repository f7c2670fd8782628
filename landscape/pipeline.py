"""The story on one page: prepare a job, choose how to compute it, evaluate its tasks, store them.

This is the serial reference of every faster path: a Ray driver does the same with the same functions, on many workers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from landscape.choosing import freedom_of, make_evaluator, tile_shape_for, tune_landscape
from landscape.errors import Interrupted, StoreError, shown
from landscape.evaluation.choice.questions import Limits
from landscape.evaluation.evaluator import Evaluator
from landscape.folders.lock import run_lock
from landscape.preparation import PreparedJob, PreparedLandscape, prepare
from landscape.problem.user_code import in_folder
from landscape.progress import PREPARING, Failure, Observer, stage
from landscape.reproduction import NotReproduced, check_reproduction
from landscape.results import Run
from landscape.spec import Job
from landscape.store import write_error
from landscape.tally import Tally
from landscape.tasks import (
    GivenUp,
    OpenLandscape,
    Task,
    commit,
    create_landscape,
    make_work,
    open_landscape,
    quarantine,
    start_tally,
    task_points,
    try_task,
)


def run(
    job: Job,
    observer: Observer | None = None,
    stop: Callable[[], bool] = lambda: False,
    limits: Limits | None = None,
) -> Run:
    """Compute a job serially, in this process, or go on with it where it stopped.

    Args:
        observer: is told the `Progress` after every task.
        stop: is asked between points; when true, the tile in hand is dropped and `Interrupted` raised.
        limits: how long the search for the fastest engine may take; other processes compute beside this one meanwhile.

    Returns:
        The run, opened for reading.
    """
    stage(PREPARING)
    prepared = prepare(job)
    try:
        with run_lock(prepared.run):
            run_prepared(prepared, observer or (lambda progress: None), stop, limits)
    except OSError as error:
        raise write_error(prepared.run, error) from error
    return Run(prepared.run)


def run_prepared(
    prepared: PreparedJob,
    observer: Observer,
    stop: Callable[[], bool],
    limits: Limits | None = None,
    already_open: Mapping[str, OpenLandscape | None] | None = None,
) -> None:
    """Compute a job that is prepared, landscape by landscape, while its run's lock is held.

    Args:
        already_open: its landscapes by name, where they have been opened already; None for those that are new.
    """

    def check_stop() -> None:
        if stop():
            raise Interrupted(
                f"run {shown(prepared.run)} is interrupted; what is done is kept: the same command goes on"
            )

    prepared.log_warnings()
    freedom, chosen = freedom_of(prepared)
    for landscape in prepared.landscapes:
        opened = open_landscape(prepared, landscape) if already_open is None else already_open[landscape.name]
        if opened is None:
            landscape = landscape if chosen is None else landscape.in_batches(chosen.batch_size)
            landscape, seconds = tune_landscape(prepared, landscape, freedom, check_stop, limits)
            # One job has one engine: what was chosen for this landscape holds for the rest.
            chosen, freedom = landscape.plan, replace(freedom, engine=landscape.plan.engine, batch_size=False)
            tile_shape = tile_shape_for(prepared.job, landscape.grid, seconds, workers=1)
            opened = create_landscape(prepared, landscape, tile_shape)
        compute_landscape(prepared, landscape, opened, observer, check_stop)


def compute_landscape(
    prepared: PreparedJob,
    landscape: PreparedLandscape,
    opened: OpenLandscape,
    observer: Observer,
    check_stop: Callable[[], None],
) -> None:
    """Compute what is left to do of one landscape, task after task, and record how far it is."""
    tally = start_tally(opened.store, landscape, opened.tasks)
    if not opened.tasks:
        tally.close()
    else:
        evaluator = make_evaluator(prepared, landscape, check_stop)
        with recorded_end(tally):
            with in_folder(prepared.folder):
                check_reproduction(opened.store, landscape.grid, evaluator)
            for task in opened.tasks:
                compute_task(landscape, opened, task, evaluator, tally, prepared.folder)
                observer(tally.progress())
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
        tally.fail(Failure(task.label, outcome.attempts, "this process", outcome.cause, outcome.traceback))
    else:
        commit(opened.store, task, outcome)
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
