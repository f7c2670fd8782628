"""Landscapes that no job computed: values of other software, written at once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from landscape.core.files import Place
from landscape.core.folders import open_folder
from landscape.core.grid import Grid, tile_counts
from landscape.store.commit import write_synced
from landscape.store.documents import FOLDER
from landscape.store.format import NewArrays, PathPlan
from landscape.store.journal import Move
from landscape.store.landscape import LandscapeStore
from landscape.store.moving import move_landscape
from landscape.store.rename import staged_name
from landscape.surface.record import Record

Floats = NDArray[np.float64]
TILE = {1: 4096, 2: 256, 3: 32}  # points per axis of a tile, by the number of axes


@dataclass(frozen=True)
class ImportedValues:
    """The values of a landscape that no job computed.

    Attributes:
        values: float64 in the shape of the grid by their names; errors that are not there are NaN.
        status: uint8 of the same shape.
        labels: what the axes are; empty where that is not known.
        path: the snapshots on the plane, with the losses there and at their projections.
    """

    grid: Grid
    observables: Sequence[str]
    values: Mapping[str, Floats]
    status: NDArray[np.uint8]
    labels: Sequence[str] = ()
    path: tuple[PathPlan, Floats, Floats] | None = None


def write_imported(run: Place, name: str, imported: ImportedValues, record: Record) -> None:
    """Write a landscape whole; readers find it when all its values are there. Under the lock of the run.

    Raises:
        LandscapeError: something lies at the place in which it is made.
        OSError: the run cannot be written.
    """
    from landscape.model.parameters import direction_digest  # of torch

    folder, staged, grid = open_folder(run), staged_name(name), imported.grid
    if folder.folders(f"{FOLDER}/{staged}"):
        move_landscape(folder, Move(staged))  # of an import that was killed
    # There are no directions; the digest of none is recorded with each axis.
    nothing = direction_digest({})
    labels = [*imported.labels, *[""] * len(grid.names)]
    axes = [{"kind": "imported", "label": label, "digest": nothing} for label in labels[: len(grid.names)]]
    tile = tuple(min(size, TILE[len(grid.shape)]) for size in grid.shape)
    plan = imported.path[0] if imported.path else None
    new = NewArrays(grid, tile, tuple(imported.observables), axes, [{} for _ in grid.names], [], plan)
    store = LandscapeStore.create(folder, staged, new, record)
    for index in np.ndindex(tile_counts(grid.shape, tile)):
        windows = store.tile(index).windows
        chunks = [
            (
                array,
                index,
                imported.values[array][windows]
                if array in imported.values
                else np.full(store.tile(index).shape, math.nan),
            )
            for array in store.arrays.value_names
        ]
        write_synced(store.arrays, chunks)
        write_synced(store.arrays, [("status", index, imported.status[windows])])
    if imported.path is not None:
        _, loss, projected = imported.path
        for start in range(0, len(loss), store.path_chunk):
            window = slice(start, min(start + store.path_chunk, len(loss)))
            store.write_path(window, {"path_loss": loss[window], "path_projected_loss": projected[window]})
    move_landscape(folder, Move(staged, name))
