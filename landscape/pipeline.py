"""The story on one page: prepare a job, evaluate its tiles, store them. The serial reference of every faster path."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from landscape.devices import pick_device
from landscape.errors import Interrupted, JobError, StoreError, shown
from landscape.evaluation.choice.kept import KeptChoices
from landscape.evaluation.choice.questions import Freedom, Limits
from landscape.evaluation.choice.tuning import tune
from landscape.evaluation.evaluator import Evaluator
from landscape.folders.lock import run_lock
from landscape.grid import Grid, Index, choose_tile_shape
from landscape.plan import Plan
from landscape.preparation.preparing import PreparedJob, PreparedLandscape, create_store, existing_store, prepare
from landscape.problem.user_code import in_folder
from landscape.progress import CHOOSING, PREPARING, Failure, Observer, stage
from landscape.reproduction import ATTRIBUTE, NotReproduced, bear_witness, check_point, other_network, recorded, refusal
from landscape.results import Run
from landscape.spec.job import Job, names_a_run
from landscape.store import LandscapeStore, landscape_names, write_error
from landscape.tally import Tally
from landscape.tasks import (
    ATTEMPTS,
    Outcome,
    Task,
    TaskList,
    commit,
    make_work,
    missing_tasks,
    quarantine,
    start_tally,
    task_points,
    try_task,
)

log = logging.getLogger("landscape")


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


@dataclass(frozen=True)
class Begun:
    """A landscape on disk, and what is left to do of it."""

    store: LandscapeStore
    tasks: TaskList


def examine(prepared: PreparedJob, landscape: PreparedLandscape) -> Begun | None:
    """The landscape on disk, every chunk being checked; None where it is new."""
    store = existing_store(prepared, landscape)
    return None if store is None else Begun(store, missing_tasks(store, landscape.name))


def run_prepared(
    prepared: PreparedJob,
    observer: Observer,
    stop: Callable[[], bool],
    limits: Limits | None = None,
    begun: Mapping[str, Begun | None] | None = None,
) -> None:
    """The job, its run's lock being held.

    Args:
        begun: its landscapes by name, where they have been examined already.
    """

    def check_stop() -> None:
        if stop():
            raise Interrupted(
                f"run {shown(prepared.run)} is interrupted; what is done is kept: the same command goes on"
            )

    prepared.log_warnings()
    freedom, chosen = freedom_of(prepared)
    for landscape in prepared.landscapes:
        found = begun[landscape.name] if begun is not None else examine(prepared, landscape)
        if found is None:
            landscape = landscape if chosen is None else landscape.in_batches(chosen.batch_size)
            landscape, seconds = tune_landscape(prepared, landscape, freedom, check_stop, limits)
            chosen, freedom = landscape.plan, replace(freedom, engine=landscape.plan.engine, batch_size=False)
            store = create_store(prepared, landscape, tile_shape_for(prepared.job, landscape.grid, seconds, 1))
            found = Begun(store, missing_tasks(store, landscape.name))
        store, tasks = found.store, found.tasks
        tally = start_tally(store, landscape, tasks)
        if tasks:
            evaluator = make_evaluator(prepared, landscape, check_stop)
            compute_serially(landscape, store, evaluator, tasks, tally, observer, prepared.folder)
        else:
            tally.close()
        observer(tally.progress())


def freedom_of(prepared: PreparedJob) -> tuple[Freedom, Plan | None]:
    """What is to be chosen for the landscapes that are new, and the plan of the job's other ones, or of another run.

    One job has one engine: what was chosen for one landscape holds for the rest.
    """
    stored = landscape_names(prepared.run)
    # Of the whole job: what is done already must not make it one that is over sooner.
    points = sum(each.points for each in prepared.landscapes)
    chosen = next((each.plan for each in prepared.landscapes if each.name in stored), prepared.borrowed)
    job = prepared.job
    left_open = job.engine == "auto" or names_a_run(job.engine)
    engine = chosen.engine if chosen and left_open else job.engine
    # In the store the last axis comes first.
    rows = [tile_shape_for(job, each.grid, 1.0, 1)[0] for each in prepared.landscapes if job.tile is not None]
    return Freedom(engine, job.batch_size is None and chosen is None, points, min(rows, default=None)), chosen


def tune_landscape(
    prepared: PreparedJob,
    landscape: PreparedLandscape,
    freedom: Freedom,
    on_point: Callable[[], None],
    limits: Limits | None = None,
) -> tuple[PreparedLandscape, float]:
    """The landscape with the engine and batches that suit it, and the seconds a point costs; before any value."""
    stage(CHOOSING)
    evaluator, kept = make_evaluator(prepared, landscape, on_point), KeptChoices.of_user()
    with in_folder(prepared.folder):
        tuned = tune(evaluator, landscape.grid, freedom, kept=kept, limits=limits)
    if tuned.warning:
        log.warning("%s", tuned.warning)
    return landscape.tuned(tuned), tuned.seconds_per_point


def keep_witness(landscape: PreparedLandscape, store: LandscapeStore, evaluator: Evaluator) -> None:
    """Have this process reproduce what the landscape holds before it adds to it; the first one leaves its word.

    Raises:
        JobError: it computes something else.
    """
    expected = recorded(store, landscape.grid)
    witness = bear_witness(evaluator, expected.point if expected else check_point(landscape.grid))
    if witness is None:
        return
    difference = witness.differs_from(expected) if expected else other_network(store, witness)
    if difference:
        raise refusal(landscape.name, expected, witness, difference)
    if ATTRIBUTE not in store.attributes:
        store.update_attributes(**witness.attributes())


def compute_serially(
    landscape: PreparedLandscape,
    store: LandscapeStore,
    evaluator: Evaluator,
    tasks: Sequence[Task],
    tally: Tally,
    observer: Observer,
    folder: Path,
) -> None:
    """The tasks of one landscape, one after the other; the user's code in its folder, the observer in the caller's."""
    try:
        with in_folder(folder):
            keep_witness(landscape, store, evaluator)
        for task in tasks:
            work = make_work(landscape, store, task)
            with in_folder(folder):
                outcome = try_task(evaluator, work)
            if isinstance(outcome, Outcome):
                commit(store, task, outcome)
                reduced = evaluator.batch_size < evaluator.plan.batch_size
                tally.done(task.label, task_points(store, task), evaluator.batch_size if reduced else None)
            else:
                quarantine(store, task)
                tally.fail(Failure(task.label, ATTEMPTS, "this process", *outcome))
            observer(tally.progress())
    except (StoreError, NotReproduced):
        raise  # the store cannot be reached, or this process has no business with it: do not record the interruption
    except BaseException:
        tally.finish("interrupted")
        raise
    tally.finish()


def make_evaluator(
    prepared: PreparedJob, landscape: PreparedLandscape, on_point: Callable[[], None] = lambda: None
) -> Evaluator:
    problem, device = prepared.problem, pick_device(prepared.job.device)
    if device.type != landscape.plan.device:
        raise JobError(
            f"device: landscape {shown(landscape.name)} is computed on {landscape.plan.device}, here is {device.type}, "
            "and the bits would differ; go on where it was begun, or give it another name or run"
        )
    with in_folder(prepared.folder):
        evaluator = Evaluator(problem.model, prepared.samples, problem.observe, landscape.plan, device, on_point)
        evaluator.load(landscape.origin, [each.tensors for each in landscape.directions])
    return evaluator


def tile_shape_for(job: Job, grid: Grid, seconds_per_point: float, workers: int) -> Index:
    """The job's own tile shape, given per axis, or the one that suits the cost of a point."""
    if job.tile is None:
        return choose_tile_shape(grid.shape, seconds_per_point, workers)
    per_axis = job.tile * len(grid.shape) if len(job.tile) == 1 else job.tile
    return tuple(min(t, n) for t, n in zip(reversed(per_axis), grid.shape, strict=True))
