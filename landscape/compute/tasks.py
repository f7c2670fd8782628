"""The tasks of a landscape: their cost, their work, their outcomes, and storing these."""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from landscape.compute.eigenpairs import remove_bases
from landscape.compute.identity import changes
from landscape.compute.point_extras import with_eigenvalues, with_layers
from landscape.compute.prepared import PreparedJob, PreparedLandscape, kept_samples
from landscape.compute.reproducibility import NotReproduced
from landscape.compute.reused_values import Extension, join_levels
from landscape.compute.rounds import OpenRounds, evaluate_items, shape_of
from landscape.core.errors import JobError, LandscapeError, quoted
from landscape.core.grid import Floats, Index, Tile, coarse_to_fine_order, tile_counts
from landscape.core.validation import AUTO
from landscape.evaluation.evaluator import Evaluator
from landscape.evaluation.reduction import Before, Values
from landscape.job.directions.file import EigenDirection
from landscape.model.parameters import State, describe_parameters, layout
from landscape.store.format import NewArrays
from landscape.store.landscape import LandscapeStore
from landscape.surface.record_entries import ConvexityRecord, LayersRecord
from landscape.surface.surface import LOSS_SAMPLES, MOMENTS, OVER_SAMPLES, PATH_MOMENTS

log = logging.getLogger("landscape")


# ----------------------------------------------------------------------------------------------------
# A task, and the arrays that a process evaluates for it.


@dataclass(frozen=True, slots=True)
class Task:
    """One unit of work of a landscape: a tile of the grid, a stretch of the path, or a part of a round."""

    landscape: str
    tile: Index | None = None
    path: tuple[int, int] | None = None
    items: tuple[int, int] | None = None

    @property
    def label(self) -> str:
        """The task's name in records and messages: `tile (0, 1)`, `path 0-7`, ends included, or `round 2 part 5`."""
        if self.items is not None:
            return f"round {self.items[0]} part {self.items[1]}"
        return f"path {self.path[0]}-{self.path[1] - 1}" if self.path else f"tile {self.tile}"


@dataclass(frozen=True)
class Work:
    """A task as plain arrays, all that is needed to evaluate it: points on the plane, and whole sets of weights.

    `convexity` also asks for both ends of the Hessian's spectrum at the points, and `layers` for the layer that breaks.
    `before` and `states_before` are the known moments of points and states over the first blocks of samples. `keep`
    asks for the losses of single samples at the points. `own_model` first asks for the losses of the user's own model.
    `blocks` is the block of samples of each point, if points are the items of a round.
    """

    points: Floats
    states: tuple[State, ...] = ()
    before: Before | None = None
    states_before: Before | None = None
    keep: bool = False
    convexity: ConvexityRecord | None = None
    layers: LayersRecord | None = None
    own_model: bool = False
    blocks: NDArray[np.int64] | None = None


def work_at(landscape: PreparedLandscape, points: Floats) -> Work:
    """The work for any points [points, axes] of the plane."""
    return Work(points, convexity=landscape.record.convexity, layers=landscape.record.layers)


def make_work(landscape: PreparedLandscape, opened: OpenLandscape, task: Task) -> Work:
    """The work of a task: coordinates on the plane and, for the path, the weights of its snapshots."""
    extension, store = landscape.extension, opened.store
    if task.items is not None:
        assert opened.rounds is not None
        places, blocks = opened.rounds.items(*task.items)
        return Work(opened.rounds.coordinates(places), blocks=blocks)
    adds_samples = extension is not None and extension.blocks is not None
    if task.tile is not None:
        tile, keep = store.tile(task.tile), store.record.keep_samples
        points = landscape.grid.tile_points(tile)
        if extension is None:
            return replace(work_at(landscape, points), keep=keep)
        points = points[~extension.known(tile)]
        if adds_samples:
            return Work(points, before=extension.before(tile), keep=keep)
        return replace(work_at(landscape, points), keep=keep)
    assert task.path is not None
    assert landscape.path is not None
    window = slice(*task.path)
    states = tuple(landscape.snapshot_state(place) for place in range(*task.path))
    coordinates = landscape.path.coordinates[window]
    if extension is None or not adds_samples:
        return Work(coordinates, states)
    at_snapshots, projected = extension.before_path(window)
    return Work(coordinates, states, projected, at_snapshots)


class TaskList(Sequence[Task]):
    """The missing tasks of a landscape: stretches of the path, then tiles, each held as eight bytes until accessed."""

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
            tiles: C-order numbers of the tiles, in the order of computation, for `counts` tiles per dimension.
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
    """The result of a task: observables at its points, and at its whole sets of weights if it has any."""

    points: Values
    states: Values | None = None

    @property
    def seconds(self) -> float:
        """The seconds of the evaluations."""
        return self.points.seconds + (self.states.seconds if self.states else 0.0)

    @property
    def finite(self) -> bool:
        """Whether every loss is finite."""
        return all(bool(np.isfinite(values.mean["loss"]).all()) for values in self._both() if "loss" in values.mean)

    def fingerprint(self) -> str:
        """A digest of the bits of all values."""
        found = hashlib.sha256()
        for part in self._both():
            for name, values in sorted(part.arrays().items()):
                found.update(name.encode() + values.tobytes())
        return found.hexdigest()

    def _both(self) -> tuple[Values, ...]:
        return (self.points,) if self.states is None else (self.points, self.states)


@dataclass
class OpenLandscape:
    """A landscape that is open for writing, and its missing tasks.

    Attributes:
        rounds: of a landscape with an accuracy; None for a fixed grid.
    """

    store: LandscapeStore
    tasks: Sequence[Task]
    points: int
    """The evaluations of the missing tasks."""
    rounds: OpenRounds | None = None

    def points_of(self, task: Task) -> int:
        """The number of evaluations of a task: of all samples at a point, or of single ones in rounds."""
        if task.items is not None and self.rounds is not None:
            return self.rounds.evaluations(*task.items)
        points = task_points(self.store, task)
        return points if self.rounds is None else points * self.rounds.population

    @property
    def all_points(self) -> int | None:
        """The evaluations of all rounds so far and of the path; None for a fixed grid."""
        if self.rounds is None:
            return None
        return self.rounds.planned + 2 * self.path_snapshots * self.rounds.population

    @property
    def path_snapshots(self) -> int:
        """How many snapshots the path has."""
        return self.store.arrays["path_status"].shape[0] if self.store.arrays.has_path else 0

    def commit(self, outcomes: Sequence[tuple[Task, Outcome]], extension: Extension | None = None) -> None:
        """Write the outcomes of several tasks, each whole; those of one kind share their syncs."""
        of_rounds = [(task.items, outcome.points) for task, outcome in outcomes if task.items is not None]
        others = [(task, outcome) for task, outcome in outcomes if task.items is None]
        for task, outcome in outcomes:
            _refuse_other_names(self.store, task, outcome)
        if of_rounds:
            assert self.rounds is not None
            self.rounds.commit(of_rounds)
        if others:
            commit_all(self.store, others, extension)

    def quarantine(self, task: Task) -> None:
        """Record in the store that a task is given up."""
        if task.items is None:
            quarantine(self.store, task)
        else:
            assert self.rounds is not None
            self.rounds.quarantine(*task.items)

    def is_well_formed(self, task: Task, outcome: Outcome, extension: Extension | None = None) -> bool:
        """Whether an outcome has one value per evaluated point of its task."""
        if task.items is None:
            return well_formed(self.store, task, outcome, extension)
        assert self.rounds is not None
        return _shapes(outcome.points) == {(len(self.rounds.items(*task.items)[1]),)}

    def advance(self, seconds: float, workers: int = 1) -> Sequence[Task]:
        """The tasks that follow when all are done: those of the next round, if there is one.

        Args:
            seconds: that the landscape has taken so far.
        """
        if self.rounds is None or not self.rounds.advance(seconds, workers):
            return ()
        return self._tasks_of_rounds()

    def _tasks_of_rounds(self) -> list[Task]:
        assert self.rounds is not None
        return [Task(self.store.name, items=items) for items in self.rounds.missing()]

    def find_tasks(self, seconds: float, *, whole: bool) -> None:
        """Add the missing tasks of the rounds; if there are none, but the rounds have not ended, of the next one.

        Args:
            whole: whether the picture on disk is; else it is written again.
        """
        assert self.rounds is not None
        tasks: Sequence[Task] = self._tasks_of_rounds()
        if tasks:
            self.rounds.reopen()
        elif not (whole and self.rounds.is_settled):
            tasks = self.advance(seconds)
        self.tasks = [*self.tasks, *tasks]
        self.points = sum(map(self.points_of, self.tasks))


def open_landscape(prepared: PreparedJob, landscape: PreparedLandscape) -> OpenLandscape | None:
    """Open a landscape of the job that is on disk, and check every chunk; None if it is new."""
    store = reopen_store(prepared, landscape)
    return None if store is None else _open_for_writing(store, prepared, landscape)


def create_landscape(prepared: PreparedJob, landscape: PreparedLandscape, tile_shape: Index) -> OpenLandscape:
    """Create a landscape on disk, with tiles of so many points per dimension of the grid."""
    store = create_store(prepared, landscape, tile_shape)
    return _open_for_writing(store, prepared, landscape)


def _open_for_writing(store: LandscapeStore, prepared: PreparedJob, landscape: PreparedLandscape) -> OpenLandscape:
    tasks = missing_tasks(store, landscape.name)
    if landscape.extension is not None and take_over(landscape.extension, store, tasks):
        tasks = missing_tasks(store, landscape.name)
    if landscape.record.accuracy is None:
        return OpenLandscape(store, tasks, tasks.points)
    path = [task for task in tasks if task.path is not None]
    opened = OpenLandscape(store, path, 0, OpenRounds(store, landscape, shape_of(prepared, landscape)))
    opened.find_tasks(store.record.progress.seconds or 0.0, whole=len(path) == len(tasks))
    return opened


def missing_tasks(store: LandscapeStore, landscape: str) -> TaskList:
    """Check every chunk, and list the missing tasks: the path first, then tiles from coarse to fine."""
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
    """The number of evaluations of a task."""
    return store.arrays.points_of(store.tile(task.tile)) if task.tile is not None else 2 * (task.path[1] - task.path[0])  # type: ignore[index]


def evaluate(evaluator: Evaluator, work: Work) -> Outcome:
    """Evaluate one task: the only source of a landscape's numbers, in this process and in every worker."""
    if work.blocks is not None:
        return Outcome(evaluate_items(evaluator, work.points, work.blocks))
    states = evaluator.evaluate_states(work.states, work.states_before) if work.states else None
    points = evaluator.evaluate(work.points, rise=True, before=work.before, keep=work.keep)
    if work.convexity is not None:
        points = with_eigenvalues(evaluator, work.points, points, work.convexity)
    if work.layers is not None:
        points = with_layers(evaluator, work.points, points, work.layers)
    return Outcome(points, states)


def commit_all(
    store: LandscapeStore, outcomes: Sequence[tuple[Task, Outcome]], extension: Extension | None = None
) -> None:
    """Write the outcomes of several tasks to the store, each whole; tiles share their syncs.

    Args:
        extension: gives the values of points that were not evaluated.
    """
    tiles = [(store.tile(task.tile), outcome.points.arrays()) for task, outcome in outcomes if task.tile is not None]
    if extension is not None:
        tiles = [(tile, complete_tile(extension, store.name, tile, arrays)) for tile, arrays in tiles]
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
    """Whether an outcome has one value per evaluated point of its task."""
    path = task.path[1] - task.path[0] if task.path else 0
    expected = store.tile(task.tile).points if task.tile is not None else path
    if extension is not None and task.tile is not None:
        expected -= int(extension.known(store.tile(task.tile)).sum())
    whole = _shapes(outcome.states) if outcome.states else set()
    return _shapes(outcome.points) == {(expected,)} and whole == ({(path,)} if path else set())


def _shapes(values: Values) -> set[tuple[int, ...]]:
    """The shapes of the arrays over points, without moments and sample losses."""
    beside = (MOMENTS, LOSS_SAMPLES)
    over_points = ((name, array) for name, array in values.arrays().items() if name not in OVER_SAMPLES)
    return {array.shape[:1] if name in beside else array.shape for name, array in over_points}


def quarantine(store: LandscapeStore, task: Task) -> None:
    """Record in the store that the points of a task are given up."""
    if task.tile is not None:
        store.quarantine_tile(store.tile(task.tile))
    else:
        assert task.path is not None
        store.quarantine_path(slice(*task.path))


# ----------------------------------------------------------------------------------------------------
# The store of a prepared landscape: reopened, or created.


def reopen_store(prepared: PreparedJob, landscape: PreparedLandscape) -> LandscapeStore | None:
    """Open the landscape on disk for writing, and repair damaged coordinates and directions.

    Returns:
        None if there is none yet.

    Raises:
        LandscapeError: the stored landscape is no longer this one, or cannot be continued.
    """
    level = landscape.level
    store = LandscapeStore.find(prepared.run, landscape.name, write=True, level=level.number if level else 0)
    if store is None:
        return None
    if store.refusal:
        raise LandscapeError(store.refusal)
    changed = changes(store.identity.whole, landscape.identity)
    if changed or store.plan.whole != landscape.plan.record():
        raise JobError(
            f"run: landscape {quoted(landscape.name)} was made by another driver meanwhile; give the command again"
        )
    recomputed = [axis.record.digest for axis in landscape.directions]
    if recomputed != store.direction_digests():
        raise JobError(
            f"directions: those of landscape {quoted(landscape.name)} were recomputed, and this machine rounds "
            "them differently; resume on the machine where it was begun, or give it another name or run"
        )
    if level is not None and store.record.level is not None:
        blocks = join_levels(store.record.level, level)
        if blocks != store.record.level:
            store.update_attributes(level=blocks)
    if store.check_constants():
        store.repair_constants(
            landscape.grid, [axis.tensors for axis in landscape.directions], landscape.path, prepared.sample_index
        )
    return store


def create_store(prepared: PreparedJob, landscape: PreparedLandscape, tile_shape: Index) -> LandscapeStore:
    """Create a landscape on disk with its complete record and no values.

    Args:
        tile_shape: of a tile, in points per array dimension.
    """
    looked_at = any(axis.attributes.get("foreseen") for axis in landscape.directions)
    looked_at |= any(AUTO in axis for axis in landscape.identity["coordinates"])
    assert not looked_at, "prepared to be looked at only"
    states = [axis.tensors for axis in landscape.directions]
    moved = [name for name in landscape.origin if any(name in state for state in states)]
    parameters = [info.name for info in describe_parameters(prepared.problem.model)]
    names = [*parameters, *(name for name in moved if name not in parameters)]
    whole = landscape.record.accuracy is not None  # each picture is written at once
    new = NewArrays(
        landscape.grid, landscape.grid.shape if whole else tile_shape, landscape.observables,
        [axis.attributes for axis in landscape.directions], states,
        layout(landscape.origin, names), landscape.path, landscape.record.moment_rows,
        prepared.sample_index if landscape.record.moment_rows else None,
        kept_samples(prepared, landscape), landscape.record.accuracy is not None,
    )  # fmt: skip
    store = LandscapeStore.create(prepared.run, landscape.name, new, landscape.record)
    if any(axis.record.kind == EigenDirection.model_fields["kind"].default for axis in landscape.directions):
        remove_bases(prepared.run, landscape.name)
    return store


AT_ONCE = 64  # tiles that share their syncs

VALUES_AT_ONCE = 1 << 26  # losses of single samples in these tiles, as they are in memory together


def take_over(extension: Extension, store: LandscapeStore, tasks: Iterable[Task]) -> bool:
    """Write what needs no evaluation: tiles whose points are all known, and a path that stays the same.

    Returns:
        Whether anything was written.
    """
    tiles: list[Tile] = []
    written, at_once = False, _tiles_at_once(store)
    for task in tasks:
        if task.path is not None and extension.gives_path:
            window = slice(*task.path)
            store.write_path(window, extension.path_values(window))
            written = True
        elif task.tile is not None and extension.known(store.tile(task.tile)).all():
            tiles.append(store.tile(task.tile))
            written = True
        if len(tiles) == at_once:
            _write(extension, store, tiles)
            tiles = []
    _write(extension, store, tiles)
    return written


def _tiles_at_once(store: LandscapeStore) -> int:
    """The number of tiles that share their syncs."""
    values_per_tile = max(1, math.prod(store.tile_shape) * store.arrays.kept_samples)
    return max(1, min(AT_ONCE, VALUES_AT_ONCE // values_per_tile))


def _write(extension: Extension, store: LandscapeStore, tiles: Iterable[Tile]) -> None:
    store.write_tiles([(tile, extension.values(tile)) for tile in tiles])


def complete_tile(
    extension: Extension, name: str, tile: Tile, evaluated: dict[str, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    """The whole arrays of a tile, from its known points and its evaluated ones.

    Raises:
        NotReproduced: values that were evaluated again differ from the known ones.
    """
    if extension.more_observables and extension.blocks is None:
        _refuse_other(extension, name, tile, evaluated)
    before = extension.samples_before(tile)
    if before:
        return evaluated | {name: np.concatenate([kept, evaluated[name]], -1) for name, kept in before.items()}
    known = extension.known(tile)
    if not known.any():
        return evaluated
    whole = extension.values(tile)
    arrays = {}
    for array, values in evaluated.items():
        if array in OVER_SAMPLES:
            arrays[array] = values
            continue
        filled = np.array(whole[array])
        filled[~known] = values
        arrays[array] = filled
    return arrays


def _refuse_other(extension: Extension, name: str, tile: Tile, evaluated: Mapping[str, Floats]) -> None:
    """Refuse recomputed values of known observables that differ from the known ones."""
    again = ~extension.known(tile)
    for observable in extension.source.observables:
        before, now = extension.values_of(observable, tile)[again], evaluated[observable]
        differ = ~((before == now) | (np.isnan(before) & np.isnan(now)))
        if differ.any() and extension.exact:
            raise NotReproduced(
                f"landscape {quoted(name)} cannot be extended: {observable} {now[differ][0]:.9g} where it holds "
                f"{before[differ][0]:.9g}; the code or a version has changed: go back to those, or compute it again "
                "under another name"
            )
