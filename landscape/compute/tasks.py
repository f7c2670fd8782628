"""A landscape as tasks: what each costs, the work that it stands for, its outcome, and that outcome in the store."""

from __future__ import annotations

import hashlib
import logging
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Protocol, overload

import numpy as np
from numpy.typing import NDArray

from landscape.compute.eigen_stores import create_store, reopen_store
from landscape.compute.executor import EvaluationContext, WorkItem
from landscape.compute.extension import Extension
from landscape.compute.lanczos import with_eigenvalues
from landscape.compute.prepared import PreparedJob, PreparedLandscape
from landscape.compute.reuse import Task, Work, completed, take_over
from landscape.core.errors import Failure, Interrupted, JobError, NotRetried, Progress, RetryRule, quoted
from landscape.core.grid import Floats, Index, coarse_to_fine_order, tile_counts
from landscape.evaluation.evaluator import Evaluator
from landscape.evaluation.layers import LayersSeen, layers_at
from landscape.evaluation.values import Values
from landscape.model.layer_statistics import ValueStatistics
from landscape.problem.user_code import cause_of
from landscape.store.landscape import LandscapeStore
from landscape.surface.record_entries import LayersRecord
from landscape.surface.record_parts import ProgressRecord, WorkerRecord
from landscape.surface.surface import LOSS_SAMPLES, MOMENTS, OVER_SAMPLES, PATH_MOMENTS

# ----------------------------------------------------------------------------------------------------
# Which layer breaks first at the points of a tile, as observables of it: a map of where the network breaks.


def with_layers(evaluator: Evaluator, points: Floats, values: Values, record: LayersRecord) -> Values:
    """The values of points, and with them the first layer that breaks at each, the rule, and statistics of layers.

    `first_layer` and `first_rule` are places in the record's lists, counted from 1; 0 where nothing breaks. They have
    no standard error over the samples: NaN.

    Args:
        points: coordinates [points, axes].
        values: the observables there.
    """
    start, names = time.perf_counter(), record.observables
    table = np.array([_row(layers_at(evaluator, point), record) for point in points.tolist()], np.float64)
    table = table.reshape(len(points), len(names))
    found = {name: np.ascontiguousarray(table[:, column]) for column, name in enumerate(names)}
    errors = {name: np.full(len(points), np.nan) for name in names}
    seconds = values.seconds + time.perf_counter() - start
    return replace(values, mean={**values.mean, **found}, stderr={**values.stderr, **errors}, seconds=seconds)


def _row(seen: LayersSeen, record: LayersRecord) -> Sequence[float]:
    known = {layer.name: layer.statistics for layer in seen.layers}
    nothing = ValueStatistics()
    of_layers = [known.get(name, nothing) for name in record.layers]
    numbers = [_number(each, statistic) for each in of_layers for statistic in record.statistics]
    findings = seen.findings(record.rules)
    if not findings:
        return [0.0, 0.0, *numbers]
    first, names, rules = findings[0], record.names, list(record.rules)
    place = names.index(first.layer) if first.layer in names else len(names)
    return [place + 1.0, rules.index(first.rule) + 1.0, *numbers]


def _number(known: ValueStatistics, statistic: str) -> float:
    """A statistic by its name; of what is not finite and of zeros the share."""
    shares = {"zeros": known.zeros, "not_finite": known.not_finite}
    if statistic in shares:
        return known.share(shares[statistic])
    values = {"min": known.low, "max": known.high, "mean": known.mean, "spread": known.spread}
    return values.get(statistic, known.magnitude)


# ----------------------------------------------------------------------------------------------------
# How far a landscape is: counted while it is computed, and written to its record.

SECONDS_BETWEEN_UPDATES = 2.0  # at least, from one writing of the record to the next
SHARE_OF_UPDATES = 0.01  # of the time may be spent on writing it: the record of ten thousand workers is long


class ReportingWorker(Protocol):
    """A worker that reports what it has done for the landscape."""

    def record(self) -> WorkerRecord:
        """What is recorded of the worker: its place, its device and its work so far."""


class Tally:
    """Counts the tasks of one landscape and keeps `progress` and `failures` in its record up to date.

    Points include the evaluations of the path. What earlier sessions did counts as done, and does not count in the
    rate. A driver may set `workers`, by name, and `retries`; both are read whenever the record is written.
    """

    def __init__(
        self, store: LandscapeStore, points: int, missing_points: int, tasks: int, missing_tasks: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """
        Args:
            store: the landscape, which is written to.
            points: the evaluations of the whole landscape.
            missing_points: those of them that are left to this session.
            tasks: the tasks of the whole landscape.
            missing_tasks: those of them that are left to this session.
            clock: seconds from any zero; the rate is counted from the call of this constructor on.
        """
        self._store, self._clock, self._start = store, clock, clock()
        self._next_update = float("-inf")
        self._points, self._before = points, points - missing_points
        self._tasks, self._tasks_before = tasks, tasks - missing_tasks
        self._points_done = self._tasks_done = self._given_up = self._points_given_up = self.retries = 0
        earlier = store.record.progress
        self._seconds_before = earlier.seconds or 0.0
        self._reduced = dict(earlier.reduced_batches)
        # A failure of an earlier session stands until its task is done.
        self._failures = {failure.task: failure for failure in store.record.failures}
        self.workers: Mapping[str, ReportingWorker] = {}

    def done(self, task: str, points: int, batch_size: int | None = None) -> None:
        """Count a task that is committed.

        Args:
            task: its label.
            points: its evaluations.
            batch_size: with which it was evaluated, where the planned one did not fit the memory.
        """
        self._points_done += points
        self._tasks_done += 1
        self._failures.pop(task, None)
        if batch_size is not None:
            self._reduced[task] = batch_size
        self._update()

    def fail(self, failure: Failure, points: int) -> None:
        """Count a task of so many evaluations that was given up, and write the record at once."""
        self._given_up += 1
        self._points_given_up += points
        self._failures.pop(failure.task, None)  # so that the latest failure stands last
        self._failures[failure.task] = failure
        self._write("running")

    @property
    def idle(self) -> bool:
        """Whether this session has neither committed nor given up a task."""
        return not self._tasks_done and not self._given_up

    @property
    def failures(self) -> list[Failure]:
        """The tasks that were given up and have not been done since, the latest last."""
        return list(self._failures.values())

    def _update(self) -> None:
        begun = self._clock()
        if begun >= self._next_update:
            self._write("running")
            took = self._clock() - begun
            self._next_update = begun + max(SECONDS_BETWEEN_UPDATES, took / SHARE_OF_UPDATES)

    def progress(self) -> Progress:
        """How far the landscape is now, as the value that observers get."""
        elapsed = max(0.0, self._clock() - self._start)  # a clock may be set back
        return Progress(
            self._store.name,
            self._tasks_before + self._tasks_done,
            self._tasks,
            self._before + self._points_done,
            self._points,
            self._seconds_before + elapsed,
            self._points_done / elapsed if elapsed > 0 else 0.0,
            len(self._failures),
            max(1, len(self.workers)),
            self.retries,
            self._points_given_up,
        )

    def close(self) -> None:
        """Record that the landscape is complete, where a driver that was killed after its last tile could not."""
        if self._store.record.progress.state != "complete":
            self.finish()

    def finish(self, state: str | None = None) -> None:
        """Record the end: `complete`, `partial` where tasks were given up, or as `state` says."""
        self._write(state or ("partial" if self._failures else "complete"))
        self._store.consolidate()

    def _write(self, state: str) -> None:
        now = self.progress()
        progress = ProgressRecord(
            state=state,
            tiles_done=now.tasks_done,
            tiles=now.tasks,
            points_done=now.points_done,
            points=now.points,
            seconds=round(now.seconds, 3),
            rate=round(now.rate, 3),
            workers=now.workers,
            by_worker=tuple(worker.record() for worker in self.workers.values()),
            retries=now.retries,
            reduced_batches=dict(self._reduced),
            updated=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        self._store.update_attributes(progress=progress, failures=self.failures)


# ----------------------------------------------------------------------------------------------------

log = logging.getLogger("landscape")


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
class Outcome:
    """What comes back for a task: observables at its points, and at its whole weights where it has any."""

    points: Values
    states: Values | None = None

    @property
    def seconds(self) -> float:
        """Seconds that the evaluations took."""
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


@dataclass(frozen=True)
class GivenUp:
    """Why a task has no outcome.

    Attributes:
        attempts: how often it was tried.
        cause, traceback: of the last exception that user code raised.
    """

    attempts: int
    cause: str
    traceback: str


def try_task(evaluator: Evaluator, work: Work) -> Outcome | GivenUp:
    """The task's outcome; where user code raises, it is tried again as often as `RetryRule` says.

    Raises:
        Interrupted, NotRetried: the job ends here.
    """
    rule, exceptions = RetryRule(), 0
    while True:
        try:
            return evaluator.within_memory(lambda: evaluate(evaluator, work))
        except (Interrupted, NotRetried):
            raise
        except Exception as error:
            exceptions += 1
            if rule.after_exception(exceptions) == "quarantine":
                return GivenUp(exceptions, cause_of(error), traceback.format_exc())


def start_tally(store: LandscapeStore, landscape: PreparedLandscape, tasks: TaskList) -> Tally:
    """The progress of a landscape from now on; what is on disk already counts as done.

    Args:
        tasks: what is left to do.
    """
    path_tasks = -(-len(landscape.path.step) // store.path_chunk) if landscape.path else 0
    return Tally(store, landscape.points, tasks.points, store.tile_count + path_tasks, len(tasks))


@dataclass(frozen=True)
class OpenLandscape:
    """A landscape on disk that is open for writing, and what is left to do of it."""

    store: LandscapeStore
    tasks: TaskList


def open_landscape(prepared: PreparedJob, landscape: PreparedLandscape) -> OpenLandscape | None:
    """A landscape of the job that is on disk, every chunk of it checked; None where it is new."""
    store = reopen_store(prepared, landscape)
    return None if store is None else _opened(store, landscape)


def create_landscape(prepared: PreparedJob, landscape: PreparedLandscape, tile_shape: Index) -> OpenLandscape:
    """A new landscape on disk, in tiles of so many points per dimension of the grid."""
    store = create_store(prepared, landscape, tile_shape)
    return _opened(store, landscape)


def _opened(store: LandscapeStore, landscape: PreparedLandscape) -> OpenLandscape:
    tasks = missing_tasks(store, landscape.name)
    if landscape.extension is not None and take_over(landscape.extension, store, tasks):
        tasks = missing_tasks(store, landscape.name)
    return OpenLandscape(store, tasks)


def missing_tasks(store: LandscapeStore, landscape: str) -> TaskList:
    """What is left to do, every chunk being checked: the path first, then tiles coarse to fine."""
    found = store.examine()
    level = f"levels/{store.level}/" if store.level else ""
    for array, index in found.damaged:
        chunk = "/".join(map(str, index))
        log.warning("landscape %r: %s%s chunk %s is damaged and computed again", landscape, level, array, chunk)
    path = [(window.start, window.stop) for window in found.path_missing]
    points = 2 * sum(stop - start for start, stop in path) + store.arrays.points_in(found.missing_mask)
    counts = tile_counts(store.shape, store.tile_shape)
    return TaskList(landscape, path, coarse_to_fine_order(found.missing_mask), counts, points)


def task_points(store: LandscapeStore, task: Task) -> int:
    """How many evaluations a task costs."""
    return store.arrays.points_of(store.tile(task.tile)) if task.tile is not None else 2 * (task.path[1] - task.path[0])  # type: ignore[index]


def evaluate(evaluator: Evaluator, work: Work) -> Outcome:
    """One task: the only place where a landscape's numbers come from, in this process and in every worker."""
    states = evaluator.evaluate_states(work.states, work.states_before) if work.states else None
    points = evaluator.evaluate(work.points, rise=True, before=work.before, keep=work.keep)
    if work.convexity is not None:
        points = with_eigenvalues(evaluator, work.points, points, work.convexity)
    if work.layers is not None:
        points = with_layers(evaluator, work.points, points, work.layers)
    return Outcome(points, states)


def commit(store: LandscapeStore, task: Task, outcome: Outcome, extension: Extension | None = None) -> None:
    """Write a task's outcome to the store, whole."""
    commit_all(store, [(task, outcome)], extension)


def commit_all(
    store: LandscapeStore, outcomes: Sequence[tuple[Task, Outcome]], extension: Extension | None = None
) -> None:
    """Write the outcomes of several tasks to the store, each whole; the tiles among them share their syncs.

    Args:
        extension: what gives the values of points that were not evaluated.
    """
    for task, outcome in outcomes:
        _refuse_other_names(store, task, outcome)
    tiles = [(store.tile(task.tile), outcome.points.arrays()) for task, outcome in outcomes if task.tile is not None]
    if extension is not None:
        tiles = [(tile, completed(extension, store.name, tile, arrays)) for tile, arrays in tiles]
    store.write_tiles(tiles)
    for task, outcome in outcomes:
        if task.path is not None:
            store.write_path(slice(*task.path), _path_values(outcome))


def _refuse_other_names(store: LandscapeStore, task: Task, outcome: Outcome) -> None:
    """Refuse observables that the landscape does not hold, or that are missing."""
    names, held = set(outcome.points.mean), set(store.observables)
    if task.path is not None:
        held -= set(store.record.of_points)
    if names != held:
        raise JobError(
            f"observe: returned {sorted(names)}, the landscape {quoted(store.name)} holds {sorted(held)}; return "
            "the same ones at every point, or give the landscape another name"
        )


def _path_values(outcome: Outcome) -> dict[str, Floats]:
    """The arrays of a stretch of the path: losses and moments at the snapshots, and at their projections."""
    at_snapshots, projected = outcome.states, outcome.points
    assert at_snapshots is not None
    values = {"path_loss": at_snapshots.mean["loss"], "path_projected_loss": projected.mean["loss"]}
    if at_snapshots.moments is not None and projected.moments is not None:
        kept = [moments.of_losses() for moments in (at_snapshots.moments, projected.moments)]
        values[PATH_MOMENTS] = np.concatenate([table.reshape(len(table), -1) for table in kept], axis=1)
    return values


def well_formed(store: LandscapeStore, task: Task, outcome: Outcome, extension: Extension | None = None) -> bool:
    """Whether an outcome has one value per point of its task that is evaluated."""
    path = task.path[1] - task.path[0] if task.path else 0
    expected = store.tile(task.tile).points if task.tile is not None else path
    if extension is not None and task.tile is not None:
        expected -= int(extension.known(store.tile(task.tile)).sum())
    whole = _shapes(outcome.states) if outcome.states else set()
    return _shapes(outcome.points) == {(expected,)} and whole == ({(path,)} if path else set())


def _shapes(values: Values) -> set[tuple[int, ...]]:
    """The shapes of the arrays over the points, without the moments and the samples of a point."""
    beside = (MOMENTS, LOSS_SAMPLES)
    over_points = ((name, each) for name, each in values.arrays().items() if name not in OVER_SAMPLES)
    return {array.shape[:1] if name in beside else array.shape for name, array in over_points}


def quarantine(store: LandscapeStore, task: Task) -> None:
    """Record in the store that the points of a task are given up."""
    if task.tile is not None:
        store.quarantine_tile(store.tile(task.tile))
    else:
        assert task.path is not None
        store.quarantine_path(slice(*task.path))


# ----------------------------------------------------------------------------------------------------
# The question for what every layer gives at a point of the setting's axes.


@dataclass(frozen=True, eq=False)
class LayersAt(WorkItem[LayersSeen]):
    """What every layer gives at a point, its weights, and gradients where they are asked for.

    Attributes:
        point: coordinates on the setting's axes.
    """

    point: tuple[float, ...]
    gradients: bool = False

    @property
    def label(self) -> str:
        """What messages call it."""
        return f"point {', '.join(f'{each:.6g}' for each in self.point)}"

    def answer(self, station: EvaluationContext) -> LayersSeen:
        """Go through the network there."""
        return layers_at(station.evaluator, self.point, gradients=self.gradients)
