"""Commits to the store: the values of a tile are written and synced before its status, and names change at one moment.

A status other than 0 therefore means that the whole tile is stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from zarr.abc.store import Store

from landscape.core.errors import LandscapeError, StoreError, flat, quoted
from landscape.core.files import PARTIAL, Folder, Place
from landscape.core.folders import open_folder
from landscape.core.grid import Floats, Grid, Index, Tile
from landscape.store.arrays import LandscapeArrays, new_sample_arrays, status_of
from landscape.store.chunk_io import DurableStore, write_chunks, write_document
from landscape.store.documents import FOLDER, METADATA, Documents
from landscape.store.format import BadMetadataError, PathPlan, parameter_layout, rows_written
from landscape.store.runs import (
    Move,
    at_level,
    end_move,
    names_after,
    open_zarr,
    read_move,
    rename_record,
    unmark,
    write_move,
)
from landscape.surface.surface import MOMENTS, NOT_COMPUTED, QUARANTINED, RISE_STDERR, SAMPLE_INDEX

if TYPE_CHECKING:
    from landscape.model.parameters import State


def write_synced(arrays: LandscapeArrays, chunks: Sequence[tuple[str, Index, NDArray[Any]]]) -> None:
    """Write whole chunks, each of an array by its name; when this returns, they are on the disk.

    An index may omit dimensions at the end that have one chunk, such as the dimension of moments.
    """
    named = [(arrays[name], index, values) for name, index, values in chunks]
    whole = [(array, index + (0,) * (len(array.shape) - len(index)), values) for array, index, values in named]
    write_chunks(arrays.store, whole)
    flush(arrays.store)


def flush(store: Store) -> None:
    """Make all writes survive a power cut; objects in an object store do so once they are put."""
    if isinstance(store, DurableStore):
        store.flush()


def write_tiles(arrays: LandscapeArrays, tiles: Sequence[tuple[Tile, Mapping[str, Floats]]]) -> None:
    """Commit whole tiles with two syncs in all: first every observable of all tiles, then every status.

    Args:
        tiles: each with `loss`, `loss_stderr`, … as flat arrays over its points in C order.

    Raises:
        JobError: the losses of single samples do not fit the landscape.
    """
    if not tiles:
        return
    names = arrays.tile_names
    chunks = [
        (name, tile.index, _in_tile_shape(arrays, tile, values, name)) for tile, values in tiles for name in names
    ]
    samples = new_sample_arrays(arrays, [values for _, values in tiles])
    chunks += [(name, (0,), values) for name, values in samples.items()]
    write_synced(arrays, chunks)
    states = [(tile, status_of(values["loss"]).reshape(tile.shape)) for tile, values in tiles]
    write_synced(arrays, [("status", tile.index, _of_own_points(arrays, tile, status)) for tile, status in states])


def _of_own_points(arrays: LandscapeArrays, tile: Tile, status: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The status of a tile; points of a coarser level stay not computed."""
    coarser = arrays.points_of_coarser_levels(tile)
    return status if coarser is None else np.where(coarser, np.uint8(NOT_COMPUTED), status)


def _in_tile_shape(arrays: LandscapeArrays, tile: Tile, values: Mapping[str, Floats], name: str) -> Floats:
    """Values in the shape of the tile; NaN for errors of the rise and moments that were not computed."""
    if name in (RISE_STDERR, MOMENTS) and name not in values:
        return _nan_chunk(arrays, tile.shape, name)
    return values[name].reshape(tile.shape + arrays[name].shape[len(tile.shape) :])


def quarantine_tile(arrays: LandscapeArrays, tile: Tile) -> None:
    """Mark a tile as given up."""
    write_synced(arrays, [(name, tile.index, _nan_chunk(arrays, tile.shape, name)) for name in arrays.tile_names])
    status = _of_own_points(arrays, tile, np.full(tile.shape, QUARANTINED, np.uint8))
    write_synced(arrays, [("status", tile.index, status)])


def _nan_chunk(arrays: LandscapeArrays, points: Index, name: str) -> Floats:
    """A chunk of NaN for the array of this name; `points` is its shape over the grid or the path."""
    return np.full(points + arrays[name].shape[len(points) :], np.nan)


def write_path(arrays: LandscapeArrays, window: slice, values: Mapping[str, Floats]) -> None:
    """Commit the chunk of the path with the snapshots in `window`.

    Args:
        values: `path_loss`, `path_projected_loss` and `path_moments`, the snapshots in the first dimension. Without
            `path_loss`, which other software may not have computed, the losses at the snapshots are unknown.
    """
    index, count = (window.start // arrays.path_chunk,), (window.stop - window.start,)
    names = arrays.path_value_names
    write_synced(arrays, [(name, index, values.get(name, _nan_chunk(arrays, count, name))) for name in names])
    known = [status_of(values[name]) for name in ("path_loss", "path_projected_loss") if name in values]
    status = np.maximum.reduce(known)
    write_synced(arrays, [("path_status", index, status)])


def quarantine_path(arrays: LandscapeArrays, window: slice) -> None:
    """Mark the chunk of the path with the snapshots in `window` as given up."""
    index, count = (window.start // arrays.path_chunk,), window.stop - window.start
    write_synced(arrays, [(name, index, _nan_chunk(arrays, (count,), name)) for name in arrays.path_value_names])
    write_synced(arrays, [("path_status", index, np.full(count, QUARANTINED, np.uint8))])


def repair_constants(
    arrays: LandscapeArrays, grid: Grid, directions: Sequence[State], path: PathPlan | None,
    sample_index: NDArray[np.int64] | None = None,
) -> None:  # fmt: skip
    """Write coordinates, directions, and the places of samples and path again, after one of them was damaged."""
    from landscape.model.parameters import flat_pieces  # needs torch

    places: dict[str, NDArray[Any]] = dict(zip(grid.names, grid.coordinates, strict=True))
    if arrays.moment_rows and sample_index is not None and arrays.level is None:
        places[SAMPLE_INDEX] = sample_index
    if path is not None:
        places |= {f"path_{axis}": path.coordinates[:, k] for k, axis in enumerate(grid.names)}
        places |= {"path_step": np.array(path.step, np.int64), "path_distance": path.distance}
        places |= {"path_run": np.array(path.run, np.int64)} if arrays.has_runs else {}
    for k, direction in enumerate(directions if arrays.level is None else ()):
        array = arrays["directions"]
        if rows_written(array)[k]:
            for n, piece in enumerate(flat_pieces(direction, parameter_layout(array), array.chunks[1])):
                write_synced(arrays, [("directions", (k, n), piece[None])])
    write_synced(arrays, [(name, (0,), np.asarray(values)) for name, values in places.items()])


# ----------------------------------------------------------------------------------------------------


def mend_arrays(arrays: LandscapeArrays, path: str, store: Store, documents: Documents) -> None:
    """Replace damaged documents of arrays by their copies in the root, when a driver opens the landscape.

    Args:
        path: of the landscape in the store.
    """
    for name in arrays.names:
        array = arrays.describe(name)
        if array.problem:
            write_document(store, f"{path}/{name}/{METADATA}", documents.text(array.document))
    flush(store)


# ----------------------------------------------------------------------------------------------------
# Landscapes that are removed, renamed, or replaced, under the lock of their run.


def move_landscape(run: Place, move: Move) -> None:
    """Remove a landscape, or rename it and replace the landscape that had the new name.

    All readers see the change at one moment; if this process is killed afterwards, `finish_move` does the rest.

    Raises:
        LandscapeError: readers see the change, and the disk takes nothing more.
    """
    folder = open_folder(run)
    try:
        write_move(folder, move)
        finish_move(folder)
    except OSError as error:
        if isinstance(error, StoreError) or read_move(folder) != move:
            raise
        change = "is removed" if move.target is None else f"is {quoted(move.target)} now"
        raise LandscapeError(
            f"landscape {quoted(move.source)} {change}, but run {quoted(folder.name, 300)} cannot be written to the "
            f"end: {flat(error.strerror or str(error))}; make room or mend the rights: the next command that writes "
            "the run does the rest"
        ) from error


def finish_move(run: Place) -> Move | None:
    """Finish a change of names during which a process was killed.

    Returns:
        The change; None if there was none.
    """
    folder = open_folder(run)
    move = read_move(folder)
    if move is None:
        return None
    if move.target is not None:
        _rename(folder, move.source, move.target)
        _write_record(folder, move.target, move.position)
        _delete_partial(folder, move.target)
    _delete(folder, move.source)
    write_root(folder, Documents(folder))
    end_move(folder)
    return move


def _delete_partial(folder: Folder, name: str) -> None:
    """Delete partial documents of a landscape that a killed process was writing."""
    for file in folder.names(f"{FOLDER}/{name}"):
        if PARTIAL in file:
            folder.delete(f"{FOLDER}/{name}/{file}")


def _rename(folder: Folder, source: str, target: str) -> None:
    if not Documents(folder).exists(source):  # the document moves last: all other files have their new paths
        return
    _delete(folder, target)
    folder.rename(f"{FOLDER}/{source}", f"{FOLDER}/{target}", METADATA)


def _delete(folder: Folder, name: str) -> None:
    # Delete the document first: the rest is then no landscape for other readers of Zarr either.
    folder.delete(f"{FOLDER}/{name}/{METADATA}")
    folder.delete_below(f"{FOLDER}/{name}")
    unmark(folder, name)


def _write_record(folder: Folder, name: str, position: int | None) -> None:
    """Write the new name into the documents of a landscape and of its levels."""
    documents, store = Documents(folder), open_zarr(folder, read_only=False)
    for path in (name, *(at_level(name, number) for number in documents.levels(name))):
        try:
            record, _ = documents.own(path)
        except BadMetadataError:
            continue  # damaged meanwhile
        write_document(store, f"{path}/{METADATA}", documents.group(rename_record(record, name, position).attributes))
    flush(store)


def write_root(folder: Folder, documents: Documents, changed: str | None = None) -> None:
    """Write the root's document again, with copies of the documents of all landscapes, which xarray reads at once.

    Args:
        changed: the landscape whose copies may be out of date; default: all.
    """
    store = open_zarr(folder, read_only=False)
    write_document(store, METADATA, documents.root(names_after(folder.folders(FOLDER), None), changed))
    flush(store)
