"""Questions about the values of a landscape: what is missing, the lowest loss, a computed point.

Its chunks are read as a stream, so that few of them are in memory at once.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from landscape.core.grid import Index
from landscape.store.arrays import LandscapeArrays
from landscape.store.chunks import Examination, chunks_where
from landscape.store.constants import stored_directions
from landscape.store.format import with_stderr
from landscape.store.inspection import count_statuses, examine_tiles, indices_of, is_constant, lowest_and_unreadable
from landscape.store.kept import spoilt_over_samples
from landscape.surface.surface import NOT_COMPUTED, OK, QUARANTINED


def examine(arrays: LandscapeArrays) -> Examination:
    """Read and check every chunk of the grid and the path: what is left to compute, and which chunks are damaged."""
    readers = {name: arrays.reader(name) for name in arrays.tile_names}
    missing, damaged = examine_tiles(arrays.reader("status"), readers, arrays)
    damaged += spoilt_over_samples(arrays, missing)
    path_missing, path_damaged = _examine_path(arrays) if arrays.has_path else ([], [])
    return Examination(missing, tuple(path_missing), tuple(dict.fromkeys(damaged + path_damaged)))


def _examine_path(arrays: LandscapeArrays) -> tuple[list[slice], list[tuple[str, Index]]]:
    """The stretches of the path to compute, and its damaged chunks."""
    damaged: list[tuple[str, Index]] = []
    status, chunk = arrays.read_checked("path_status"), arrays.path_chunk
    missing = {int(i) // chunk for i in np.flatnonzero(np.isin(status.values, (NOT_COMPUTED, QUARANTINED)))}
    committed = chunks_where(status.values != NOT_COMPUTED, (chunk,))
    for name in arrays.path_value_names:
        whole = {(*index, *(0,) * (len(arrays[name].shape) - 1)) for index in committed}
        damaged += [(name, index[:1]) for _, index in arrays.read_checked(name, whole).damaged]
    damaged += status.damaged
    numbers = sorted(missing | {index[0] for _, index in damaged})
    count = arrays["path_status"].shape[0]
    return [slice(i * chunk, min((i + 1) * chunk, count)) for i in numbers], damaged


def counts(arrays: LandscapeArrays) -> NDArray[np.int64]:
    """Evaluations by status 0 to 3: the points, and two per snapshot of the path; reads the status alone."""
    points = count_statuses(arrays.reader("status"), arrays.points)
    return points + 2 * count_statuses(arrays.reader("path_status")) if arrays.has_path else points


def minimum(arrays: LandscapeArrays) -> tuple[dict[str, float], int]:
    """The lowest loss that can be read and its coordinates, and how many committed points cannot be read.

    The lowest loss is empty where there is none, or where the coordinates are damaged.
    """
    (best, unreadable), grid = lowest_and_unreadable(arrays), arrays.grid()
    if best is None or grid is None:
        return {}, unreadable
    value, index = best
    places = zip(grid.names, grid.coordinates, reversed(index), strict=True)
    return {"loss": value, **{name: float(axis[i]) for name, axis, i in places}}, unreadable


def has_constant_loss(arrays: LandscapeArrays) -> bool:
    """Whether the loss is the same, finite and to the last bit, at all of several points."""
    return is_constant(arrays.reader("loss"))


def computed_point(arrays: LandscapeArrays, usable: Callable[[Index], bool]) -> tuple[Index, dict[str, float]] | None:
    """The index and the values of a point that is computed, off the origin; None where there is none.

    Args:
        usable: whether the point may be of the tile with this index.
    """
    grid, status = arrays.grid(), arrays.reader("status")
    if grid is None:
        return None
    for tile, states, _ in status.read(filter(usable, indices_of(status.present()))):
        start = arrays.tile(tile).start
        for place in np.argwhere(states == OK) if states is not None else ():
            index = tuple(int(a + b) for a, b in zip(start, place, strict=True))
            if any(axis[i] for axis, i in zip(grid.coordinates, reversed(index), strict=True)):
                values = _values_at(arrays, tile, tuple(place))
                if values:
                    return index, values
    return None


def _values_at(arrays: LandscapeArrays, tile: Index, place: tuple[int, ...]) -> dict[str, float]:
    """The values of one point of a tile by name; empty where a chunk of the tile is damaged."""
    names = tuple(with_stderr(arrays.observables))
    chunks = {name: values for name in names for _, values, _ in arrays.reader(name).read([tile])}
    if any(values is None for values in chunks.values()):
        return {}
    return {name: float(values[place]) for name, values in chunks.items() if values is not None}


def check_directions(arrays: LandscapeArrays) -> list[str]:
    """A phrase for each direction whose tensors contradict the digest that is recorded with its axis."""
    from landscape.model.parameters import direction_digest  # of torch

    tensors = stored_directions(arrays) or []
    pairs = zip(arrays.axis_names, arrays.direction_digests(), tensors, strict=False)
    return [
        f"directions of {axis}: another digest than recorded"
        for axis, recorded, state in pairs
        if direction_digest(state) != recorded
    ]
