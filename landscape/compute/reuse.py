"""Values that an extension takes over: written where whole tiles are known, and put beside what was evaluated."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from landscape.compute.extension import Extension
from landscape.compute.prepared import PreparedLandscape
from landscape.compute.reproducibility import NotReproduced
from landscape.core.errors import quoted
from landscape.core.grid import Floats, Index, Tile
from landscape.evaluation.reduction import Before
from landscape.model.parameters import State
from landscape.store.landscape import LandscapeStore
from landscape.surface.record_entries import ConvexityRecord, LayersRecord
from landscape.surface.surface import OVER_SAMPLES

# ----------------------------------------------------------------------------------------------------
# One unit of work of a landscape: what it is called, and the arrays that a process evaluates for it.


@dataclass(frozen=True, slots=True)
class Task:
    """One unit of work of a landscape: a tile of the grid, or a stretch of the path."""

    landscape: str
    tile: Index | None = None
    path: tuple[int, int] | None = None

    @property
    def label(self) -> str:
        """What records and messages call the task: `tile (0, 1)` or `path 0-7`, ends included."""
        return f"path {self.path[0]}-{self.path[1] - 1}" if self.path else f"tile {self.tile}"


@dataclass(frozen=True)
class Work:
    """A task as plain arrays, all that is needed to evaluate it: points on the plane, and whole weights.

    `convexity` asks for the ends of the Hessian's spectrum at the points, too, and `layers` for which layer breaks.
    `before` and `states_before` are what is known of the two over the first blocks of samples. `keep` asks for the
    losses of the single samples at the points. `own_model` asks first for what the user's own model gives.
    """

    points: Floats
    states: tuple[State, ...] = ()
    before: Before | None = None
    states_before: Before | None = None
    keep: bool = False
    convexity: ConvexityRecord | None = None
    layers: LayersRecord | None = None
    own_model: bool = False


def work_at(landscape: PreparedLandscape, points: Floats) -> Work:
    """What a process evaluates for points [points, axes] of the plane, those of the grid as any others."""
    return Work(points, convexity=landscape.record.convexity, layers=landscape.record.layers)


def make_work(landscape: PreparedLandscape, store: LandscapeStore, task: Task) -> Work:
    """What a process evaluates for a task: coordinates on the plane and, for the path, the weights of its snapshots."""
    extension = landscape.extension
    adds_samples = extension is not None and extension.blocks is not None
    if task.tile is not None:
        tile, keep = store.tile(task.tile), store.record.keep_samples
        points = landscape.grid.tile_points(tile)
        if extension is None:
            return replace(work_at(landscape, points), keep=keep)
        if adds_samples:
            return Work(points, before=extension.before(tile), keep=keep)
        return replace(work_at(landscape, points[~extension.known(tile)]), keep=keep)
    assert task.path is not None
    assert landscape.path is not None
    window = slice(*task.path)
    states = tuple(landscape.snapshot_state(place) for place in range(*task.path))
    coordinates = landscape.path.coordinates[window]
    if extension is None or not adds_samples:
        return Work(coordinates, states)
    at_snapshots, projected = extension.before_path(window)
    return Work(coordinates, states, projected, at_snapshots)


# ----------------------------------------------------------------------------------------------------

AT_ONCE = 64  # tiles that share their syncs
VALUES_AT_ONCE = 1 << 26  # losses of single samples that they may have, as they are in memory together


def take_over(extension: Extension, store: LandscapeStore, tasks: Iterable[Task]) -> bool:
    """Write what needs no evaluation: tiles all of whose points are known, and a path that stays as it is.

    Returns:
        Whether there was any.
    """
    tiles: list[Tile] = []
    written, at_once = False, _at_once(store)
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


def _at_once(store: LandscapeStore) -> int:
    """How many tiles share their syncs."""
    each = max(1, math.prod(store.tile_shape) * store.arrays.kept_samples)
    return max(1, min(AT_ONCE, VALUES_AT_ONCE // each))


def _write(extension: Extension, store: LandscapeStore, tiles: Iterable[Tile]) -> None:
    store.write_tiles([(tile, extension.values(tile)) for tile in tiles])


def completed(
    extension: Extension, name: str, tile: Tile, evaluated: dict[str, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    """The arrays of a tile, of which only the points that are not known were evaluated.

    Raises:
        NotReproduced: what was evaluated again is not what is known.
    """
    if extension.more_observables:
        if extension.blocks is None:
            _refuse_other(extension, name, tile, evaluated)
        return evaluated
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
    """Refuse values of known observables that were evaluated again and are other ones."""
    for observable in extension.store.observables:
        before, now = extension.values_of(observable, tile), evaluated[observable]
        differ = ~((before == now) | (np.isnan(before) & np.isnan(now)))
        if differ.any() and extension.exact:
            raise NotReproduced(
                f"landscape {quoted(name)} cannot be extended: {observable} {now[differ][0]:.9g} where it holds "
                f"{before[differ][0]:.9g}; the code or a version has changed: go back to those, or compute it anew "
                "under another name"
            )
