"""Commits to a landscape's arrays: the values of a tile are written and synced first, and its status last.

A status other than 0 therefore means that the whole tile is there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from zarr.abc.store import Store
from zarr.core.sync import sync

from landscape import parameters
from landscape.grid import Grid, Index, Tile
from landscape.store.arrays import LandscapeArrays
from landscape.store.chunks import status_of
from landscape.store.durable import DurableStore
from landscape.store.layout import PathPlan, parameter_layout, rows_written
from landscape.store.writing import write_chunks
from landscape.surface import QUARANTINED, RISE_STDERR

Floats = NDArray[np.float64]


def write_synced(arrays: LandscapeArrays, chunks: Sequence[tuple[str, Index, NDArray[Any]]]) -> None:
    """Write whole chunks, each of an array by its name; when this returns they are on the disk."""
    write_chunks(arrays.store, [(arrays[name], index, values) for name, index, values in chunks])
    flush(arrays.store)


def flush(store: Store) -> None:
    """Make sure that all that was written survives a power cut; an object in a store does so once it is put."""
    if isinstance(store, DurableStore):
        sync(store.flush())


def write_tiles(arrays: LandscapeArrays, tiles: Sequence[tuple[Tile, Mapping[str, Floats]]]) -> None:
    """Commit whole tiles with two syncs in all: every observable of each, then the status of each.

    Args:
        tiles: each with `loss`, `loss_stderr`, … as flat arrays over its points in C order.
    """
    if not tiles:
        return
    names = arrays.value_names
    write_synced(arrays, [(name, tile.index, _over(tile, values, name)) for tile, values in tiles for name in names])
    states = [("status", tile.index, status_of(values["loss"]).reshape(tile.shape)) for tile, values in tiles]
    write_synced(arrays, states)


def _over(tile: Tile, values: Mapping[str, Floats], name: str) -> Floats:
    """The values of that name in the shape of the tile; NaN for the error of the rise where it was not computed."""
    return values[name].reshape(tile.shape) if name in values or name != RISE_STDERR else np.full(tile.shape, np.nan)


def quarantine_tile(arrays: LandscapeArrays, tile: Tile) -> None:
    """Mark a tile as given up."""
    write_synced(arrays, [(name, tile.index, np.full(tile.shape, np.nan)) for name in arrays.value_names])
    write_synced(arrays, [("status", tile.index, np.full(tile.shape, QUARANTINED, np.uint8))])


def write_path(arrays: LandscapeArrays, window: slice, loss: Floats, projected: Floats) -> None:
    """Commit one chunk of the path, the snapshots in `window`: their losses, and those at their projections."""
    index = (window.start // arrays.path_chunk,)
    write_synced(arrays, [("path_loss", index, loss), ("path_projected_loss", index, projected)])
    write_synced(arrays, [("path_status", index, np.maximum(status_of(loss), status_of(projected)))])


def quarantine_path(arrays: LandscapeArrays, window: slice) -> None:
    """Mark one chunk of the path as given up."""
    index, count = (window.start // arrays.path_chunk,), window.stop - window.start
    write_synced(arrays, [(name, index, np.full(count, np.nan)) for name in ("path_loss", "path_projected_loss")])
    write_synced(arrays, [("path_status", index, np.full(count, QUARANTINED, np.uint8))])


def repair_constants(
    arrays: LandscapeArrays, grid: Grid, directions: Sequence[parameters.State], path: PathPlan | None
) -> None:
    """Write coordinates, directions and path places anew, where one of them was damaged."""
    places = dict(zip(grid.names, grid.coordinates, strict=True))
    if path is not None:
        places |= {f"path_{axis}": path.coordinates[:, k] for k, axis in enumerate(grid.names)}
        places |= {"path_step": np.array(path.step, np.int64), "path_distance": path.distance}
    array = arrays["directions"]
    for k, (direction, written) in enumerate(zip(directions, rows_written(array), strict=True)):
        if written:
            flat, width = parameters.flatten(direction, parameter_layout(array)), array.chunks[1]
            starts = range(0, len(flat), width)
            pieces = [("directions", (k, n), flat[start : start + width][None]) for n, start in enumerate(starts)]
            write_synced(arrays, pieces)
    write_synced(arrays, [(name, (0,), np.asarray(values)) for name, values in places.items()])
