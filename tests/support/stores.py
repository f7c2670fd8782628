"""Landscapes of a known quadratic in a run's store, laid out with nothing computed, and values for their tiles."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from small_models import Quadratic

from landscape.core.grid import Grid, Tile, axis_coordinates, tile_counts
from landscape.model.parameters import layout, state_of
from landscape.store.format import NewArrays
from landscape.store.landscape import LandscapeStore
from landscape.surface.record import Record


def make_store(
    run: str | Path,
    size: Sequence[int] = (5, 4),
    tile: tuple[int, ...] = (2, 3),
    observables: Sequence[str] = ("loss",),
) -> LandscapeStore:
    """The landscape `a` of `size` points (alpha first) in tiles of `tile` (array order)."""
    names = ("alpha", "beta", "gamma")[: len(size)]
    grid = Grid(names, tuple(axis_coordinates(n, -1, 1) for n in size))
    directions = [{"vector": torch.full((5,), float(k + 1))} for k in range(len(size))]
    axes = [{"kind": "random", "label": f"axis {k}"} for k in range(len(size))]
    new = NewArrays(grid, tile, observables, axes, directions, layout(state_of(Quadratic()), ["matrix", "vector"]))
    return LandscapeStore.create(str(run), "a", new, Record().changed(observables=list(observables), identity={}))


def all_tiles(store: LandscapeStore) -> list[Tile]:
    return [store.tile(index) for index in np.ndindex(tile_counts(store.shape, store.tile_shape))]


def constant(tile: Tile, value: float, names: Sequence[str] = ("loss", "loss_stderr")) -> dict[str, np.ndarray]:
    """The same value of every array at every point of a tile."""
    return {name: np.full(tile.points, value) for name in names}
