"""One unit of work of a landscape: what it is called, and the arrays that a process evaluates for it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from landscape.compute.prepared import PreparedLandscape
from landscape.core.grid import Index
from landscape.evaluation.reduction import Before
from landscape.model.parameters import State
from landscape.store.landscape import LandscapeStore
from landscape.surface.record_entries import ConvexityRecord, LayersRecord

Floats = NDArray[np.float64]


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
