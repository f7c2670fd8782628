"""The story on one page: prepare a job, evaluate its tiles, store them. The serial reference of every faster path."""

from __future__ import annotations

import hashlib
import logging
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import overload

import numpy as np
from numpy.typing import NDArray

from landscape.arithmetic import Plan, pick_device
from landscape.errors import Interrupted, JobError, StoreError, shown
from landscape.evaluation import Evaluator, Values
from landscape.grid import Grid, Index, choose_tile_shape, coarse_to_fine_order, tile_counts
from landscape.kept import KeptChoices
from landscape.loaded import SamplesChanged
from landscape.lock import run_lock
from landscape.parameters import State
from landscape.preparation import PreparedJob, PreparedLandscape, create_store, existing_store, prepare
from landscape.problem import OtherObservables
from landscape.progress import CHOOSING, PREPARING, Failure, Observer, Tally, stage
from landscape.questions import Freedom, Limits
from landscape.reproduction import ATTRIBUTE, NotReproduced, bear_witness, check_point, other_network, recorded, refusal
from landscape.spec import Job, names_a_run
from landscape.store import LandscapeStore, landscape_names, write_error
from landscape.surface import Run
from landscape.tuning import tune
from landscape.usercode import cause_of, in_folder

ATTEMPTS = 3  # an exception in user code is tried twice more, then its tile is quarantined

log = logging.getLogger("landscape")

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Task:
    """One unit of work of a landscape: a tile of the grid, or a stretch of the path."""

    landscape: str
    tile: Index | None = None
    path: tuple[int, int] | None = None

    @property
    def label(self) -> str:
        return f"path {self.path[0]}-{self.path[1] - 1}" if self.path else f"tile {self.tile}"


class TaskList(Sequence[Task]):
    """What is left to do of a landscape: stretches of the path, then tiles, eight bytes each until one is taken."""

    def __init__(
        self,
        landscape: str,
        path: Sequence[tuple[int, int]] = (),
        tiles: NDArray[np.int64] | None = None,
        counts: Index = (),
        points: int = 0,
    ) -> None:
        """
        Args:
            tiles: their numbers in C order, in the order of their turn, of `counts` tiles per dimension.
            points: how many evaluations they cost in all.
        """
        self._landscape, self._path, self._counts, self.points = landscape, path, counts, points
        self._tiles = np.empty(0, np.int64) if tiles is None else tiles

    def __len__(self) -> int:
        return len(self._path) + len(self._tiles)

    @overload
    def __getitem__(self, position: int) -> Task: ...
    @overload
    def __getitem__(self, position: slice) -> list[Task]: ...
    def __getitem__(self, position: int | slice) -> Task | list[Task]:
        if isinstance(position, slice):
            return [self[k] for k in range(*position.indices(len(self)))]
        if not -len(self) <= position < len(self):
            raise IndexError(position)
        position %= len(self)
        if position < len(self._path):
            return Task(self._landscape, path=self._path[position])
        number, index = int(self._tiles[position - len(self._path)]), []
        for count in reversed(self._counts):
            number, component = divmod(number, count)
            index.append(component)
        return Task(self._landscape, tile=tuple(reversed(index)))


@dataclass(frozen=True)
class Work:
    """A task as plain arrays, all that is needed to evaluate it: points on the plane, and whole weights."""

    points: Floats
    states: tuple[State, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """What comes back for a task: observables at its points, and at its whole weights where it has any."""

    points: Values
    states: Values | None = None

    @property
    def seconds(self) -> float:
        return self.points.seconds + (self.states.seconds if self.states else 0.0)

    @property
    def finite(self) -> bool:
        """Whether every loss is finite."""
        return all(bool(np.isfinite(each.mean["loss"]).all()) for each in self._both() if "loss" in each.mean)

    def fingerprint(self) -> str:
        """The same for the same values, to the bit."""
        found = hashlib.sha256()
        for each in self._both():
            for name, values in sorted(each.arrays().items()):
                found.update(name.encode() + values.tobytes())
        return found.hexdigest()

    def _both(self) -> tuple[Values, ...]:
        return (self.points,) if self.states is None else (self.points, self.states)


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


def try_task(evaluator: Evaluator, work: Work) -> Outcome | tuple[str, str]:
    """The task's outcome, or after `ATTEMPTS` exceptions of user code the last one's cause and traceback."""
    cause = ("", "")
    for _ in range(ATTEMPTS):
        try:
            return evaluator.within_memory(lambda: evaluate(evaluator, work))
        except (Interrupted, SamplesChanged, OtherObservables):
            raise
        except Exception as error:
            cause = cause_of(error), traceback.format_exc()
    return cause


def start_tally(store: LandscapeStore, landscape: PreparedLandscape, tasks: TaskList) -> Tally:
    path_tasks = -(-len(landscape.path.step) // store.path_chunk) if landscape.path else 0
    return Tally(store, landscape.points, tasks.points, store.tile_count + path_tasks, len(tasks))


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


def missing_tasks(store: LandscapeStore, landscape: str) -> TaskList:
    """What is left to do, every chunk being checked: the path first, then tiles coarse to fine."""
    found = store.examine()
    for array, index in found.damaged:
        chunk = "/".join(map(str, index))
        log.warning("landscape %r: %s chunk %s is damaged and computed again", landscape, array, chunk)
    path = [(window.start, window.stop) for window in found.path_missing]
    points = 2 * sum(stop - start for start, stop in path) + found.missing_points(store.shape, store.tile_shape)
    counts = tile_counts(store.shape, store.tile_shape)
    return TaskList(landscape, path, coarse_to_fine_order(found.missing_mask), counts, points)


def task_points(store: LandscapeStore, task: Task) -> int:
    """How many evaluations a task costs."""
    return store.tile(task.tile).points if task.tile is not None else 2 * (task.path[1] - task.path[0])  # type: ignore[index]


def make_work(landscape: PreparedLandscape, store: LandscapeStore, task: Task) -> Work:
    if task.tile is not None:
        return Work(landscape.grid.tile_points(store.tile(task.tile)))
    assert task.path is not None
    assert landscape.path is not None
    window = slice(*task.path)
    states = tuple(landscape.snapshot_state(step) for step in landscape.path.step[window])
    return Work(landscape.path.coordinates[window], states)


def evaluate(evaluator: Evaluator, work: Work) -> Outcome:
    """One task: the only place where a landscape's numbers come from, in this process and in every worker."""
    return Outcome(
        evaluator.evaluate(work.points, rise=True), evaluator.evaluate_states(work.states) if work.states else None
    )


def commit(store: LandscapeStore, task: Task, outcome: Outcome) -> None:
    """Write a task's outcome to the store, whole."""
    commit_all(store, [(task, outcome)])


def commit_all(store: LandscapeStore, outcomes: Sequence[tuple[Task, Outcome]]) -> None:
    """Write the outcomes of several tasks to the store, each whole; the tiles among them share their syncs."""
    for _, outcome in outcomes:
        names = set(outcome.points.mean)
        if names != set(store.observables):
            raise JobError(
                f"observe: returned {sorted(names)}, the landscape {shown(store.name)} holds "
                f"{sorted(store.observables)}; return "
                " the same ones at every point, or give the landscape another name"
            )
    store.write_tiles(
        [(store.tile(task.tile), outcome.points.arrays()) for task, outcome in outcomes if task.tile is not None]
    )
    for task, outcome in outcomes:
        if task.path is not None:
            assert outcome.states is not None
            store.write_path(slice(*task.path), outcome.states.mean["loss"], outcome.points.mean["loss"])


def well_formed(store: LandscapeStore, task: Task, outcome: Outcome) -> bool:
    """Whether an outcome has one value per point of its task."""
    path = task.path[1] - task.path[0] if task.path else 0
    expected = store.tile(task.tile).points if task.tile is not None else path
    shapes = {values.shape for values in outcome.points.arrays().values()}
    whole = {values.shape for values in outcome.states.arrays().values()} if outcome.states else set()
    return shapes == {(expected,)} and whole == ({(path,)} if path else set())


def quarantine(store: LandscapeStore, task: Task) -> None:
    if task.tile is not None:
        store.quarantine_tile(store.tile(task.tile))
    else:
        assert task.path is not None
        store.quarantine_path(slice(*task.path))
