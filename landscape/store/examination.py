"""Examines the values of a landscape: missing and damaged tiles, counts by status, the lowest loss, a computed point.

Its chunks are read as a stream, so that few of them are in memory at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from landscape.core.grid import Index, tile_at
from landscape.store.arrays import Examination, LandscapeArrays, chunks_where, find_damaged_sample_arrays
from landscape.store.chunk_io import ChunkReader
from landscape.store.format import RUNS, PathPlan, parameter_layout, path_unit, rows_written, with_stderr
from landscape.surface.record_entries import path_records
from landscape.surface.surface import NOT_COMPUTED, NOT_FINITE, OK, QUARANTINED

if TYPE_CHECKING:
    from torch import Tensor


# ----------------------------------------------------------------------------------------------------
# The directions and the path of a landscape, which are written when it is made, read from the store.

MOST_RUNS = 64  # whose paths a landscape draws: more than a job may name, as the array may hold anything


def stored_directions(arrays: LandscapeArrays) -> list[dict[str, Tensor]] | None:
    """The stored directions; None if one is stored as its seed alone, or its chunk is damaged."""
    from landscape.model.parameters import unflatten  # needs torch

    array = arrays["directions"]
    # A missing chunk would read as zeros, and a damaged shape may need all memory: first check that all chunks exist.
    if not all(rows_written(array)) or not arrays.has_all_chunks("directions"):
        return None
    values, damaged, _ = arrays.reader("directions").whole()
    return None if damaged else [unflatten(row, parameter_layout(array)) for row in values]


def stored_path(arrays: LandscapeArrays) -> PathPlan | None:
    """The places of the snapshots; None if there is no path, or a chunk of it is damaged."""
    if not arrays.has_path or arrays.check_constants(arrays.path_constants):
        return None
    coordinates = np.stack([arrays.values(f"path_{axis}") for axis in arrays.axis_names], axis=1)
    steps = tuple(int(step) for step in arrays.values("path_step"))
    unit, distance = path_unit(arrays["path_step"]), arrays.values("path_distance")
    if not arrays.has_runs:
        return PathPlan(unit, steps, coordinates, distance)
    run = tuple(int(place) for place in arrays.values("path_run"))
    listed = arrays["path_run"].attributes.get(RUNS)
    count = max(run, default=-1) + 1
    if min(run, default=0) < 0 or count > MOST_RUNS:
        return None
    return PathPlan(unit, steps, coordinates, distance, run, path_records(listed, count))


# ----------------------------------------------------------------------------------------------------
# Counts by status, the lowest loss, missing and damaged tiles.

STATUSES = 4


def count_statuses(status: ChunkReader, points: int | None = None) -> NDArray[np.int64]:
    """How many points have each status, 0 to 3; points of absent and damaged chunks count as not computed.

    Args:
        points: how many points there are in all; default: all of the array.
    """
    counts = np.zeros(STATUSES, np.int64)
    for _, values, _ in status.read(indices_of(status.present())):
        if values is not None:
            counts += np.bincount(values.ravel(), minlength=STATUSES)[:STATUSES]
    counts[NOT_COMPUTED] = 0
    counts[NOT_COMPUTED] = (math.prod(status.shape) if points is None else points) - int(counts.sum())
    return counts


def lowest_and_unreadable(arrays: LandscapeArrays) -> tuple[tuple[float, Index] | None, int]:
    """The lowest finite committed loss with its index, the first of equals; and the number of unreadable points.

    A point is unreadable if the chunk of its status is damaged; a committed point also if the chunk of its loss is
    absent or damaged, or if its loss is not finite although its status is OK.
    """
    best: tuple[float, int] | None = None
    unreadable, status, losses = 0, arrays.reader("status"), arrays.reader("loss")
    present = status.present()
    pairs = zip(status.read(indices_of(present)), losses.read(indices_of(present)), strict=True)
    for (index, state, _), (_, chunk, _) in pairs:
        if state is None:
            unreadable += arrays.points_of(arrays.tile(index))
            continue
        if chunk is None:
            unreadable += int(np.isin(state, (OK, NOT_FINITE)).sum())
            continue
        unreadable += int(((state == OK) & ~np.isfinite(chunk)).sum())
        usable = np.where((state != NOT_COMPUTED) & np.isfinite(chunk), chunk, np.inf)
        place = np.unravel_index(int(usable.argmin()), usable.shape)
        if np.isfinite(usable[place]):
            start = tile_at(index, status.shape, status.chunks).start
            flat = np.ravel_multi_index(tuple(int(a + b) for a, b in zip(start, place, strict=True)), status.shape)
            candidate = (float(usable[place]), int(flat))
            best = candidate if best is None else min(best, candidate)
    if best is None:
        return None, unreadable
    return (best[0], tuple(int(component) for component in np.unravel_index(best[1], status.shape))), unreadable


def is_constant(values: ChunkReader) -> bool:
    """Whether all points, at least two, have the same finite value, to the bit; stops at the first other value."""
    present = values.present()
    if math.prod(values.shape) < 2 or not present.all():
        return False
    first: float | None = None
    for _, chunk, _ in values.read(indices_of(present)):
        if chunk is None:
            return False
        first = float(chunk.flat[0]) if first is None else first
        if not math.isfinite(first) or not (chunk == first).all():
            return False
    return True


def examine_tiles(
    status: ChunkReader, observables: Mapping[str, ChunkReader], arrays: LandscapeArrays
) -> tuple[NDArray[np.bool_], list[tuple[str, Index]]]:
    """Read and check every chunk of the grid.

    A chunk is damaged if its checksum fails, if it is absent although its tile is committed, or if its loss is not
    finite at a point whose status is OK.

    Returns:
        A mask of the tiles to compute, and the damaged chunks, each as its array and its index.
    """
    missing, committed = np.ones(status.counts, np.bool_), np.zeros(status.counts, np.bool_)
    damaged: list[tuple[str, Index]] = []
    sound: dict[Index, NDArray[np.uint8]] = {}  # packed mask of the points that are OK; absent means that all are
    for index, values, bad in status.read(indices_of(status.present())):
        if bad or values is None:
            damaged.append(("status", index))
        if values is None:
            continue
        undone, coarser = (
            np.isin(values, (NOT_COMPUTED, QUARANTINED)),
            arrays.points_of_coarser_levels(arrays.tile(index)),
        )
        missing[index] = bool((undone if coarser is None else undone & ~coarser).any())
        committed[index] = bool((values != NOT_COMPUTED).any())
        if not (values == OK).all():
            sound[index] = np.packbits(values == OK)
    for name, reader in observables.items():
        present = reader.present().reshape(status.counts)
        inner = (0,) * (len(reader.counts) - len(status.counts))  # moments have a dimension of their own
        damaged += [(name, index) for index in indices_of(committed & ~present)]
        for whole_index, values, bad in reader.read((*index, *inner) for index in indices_of(present)):
            index = whole_index[: len(status.counts)]
            bad = bad or values is None  # a broken link exists and has no bytes
            if values is not None and name == "loss" and committed[index]:
                bad = not np.isfinite(values[_unpack(sound.get(index), values.shape)]).all()
            if bad:
                damaged.append((name, index))
    for _, index in damaged:
        missing[index] = True
    own = arrays.own_tiles
    return (missing if own is None else missing & own), damaged


def _unpack(bits: NDArray[np.uint8] | None, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    if bits is None:
        return np.ones(shape, np.bool_)
    return np.unpackbits(bits, count=int(np.prod(shape))).reshape(shape).astype(np.bool_)


def indices_of(mask: NDArray[np.bool_]) -> Iterator[Index]:
    """The indices where a mask is true, in C order, made 4096 at a time."""
    flat = np.flatnonzero(mask)
    stretches = (np.stack(np.unravel_index(flat[k : k + 4096], mask.shape), 1) for k in range(0, len(flat), 4096))
    return (tuple(index) for index in chain.from_iterable(stretch.tolist() for stretch in stretches))


# ----------------------------------------------------------------------------------------------------


def examine(arrays: LandscapeArrays) -> Examination:
    """Read and check every chunk of the grid and the path: what to compute, and which chunks are damaged."""
    readers = {name: arrays.reader(name) for name in arrays.tile_names}
    missing, damaged = examine_tiles(arrays.reader("status"), readers, arrays)
    damaged += find_damaged_sample_arrays(arrays, missing)
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
    """Evaluations by status, 0 to 3: one per point, and two per snapshot of the path; reads the status alone."""
    points = count_statuses(arrays.reader("status"), arrays.points)
    return points + 2 * count_statuses(arrays.reader("path_status")) if arrays.has_path else points


def minimum(arrays: LandscapeArrays) -> tuple[dict[str, float], int]:
    """The lowest readable loss and its coordinates, and the number of unreadable points.

    The lowest loss is empty if there is none, or if the coordinates are damaged.
    """
    (best, unreadable), grid = lowest_and_unreadable(arrays), arrays.grid()
    if best is None or grid is None:
        return {}, unreadable
    value, index = best
    places = zip(grid.names, grid.coordinates, reversed(index), strict=True)
    return {"loss": value, **{name: float(axis[i]) for name, axis, i in places}}, unreadable


def loss_stderr_at(arrays: LandscapeArrays, place: Mapping[str, float]) -> float | None:
    """The standard error of the loss at a point, by its coordinates; None if it is not known."""
    grid = arrays.grid()
    if grid is None or "loss_stderr" not in arrays.value_names:
        return None
    pairs = zip(grid.names, grid.coordinates, strict=True)
    index = [int(np.flatnonzero(axis == place[name])[0]) for name, axis in pairs][::-1]
    reader = arrays.reader("loss_stderr")
    tile, inner = zip(*(divmod(i, size) for i, size in zip(index, reader.chunks, strict=True)), strict=True)
    values = next(values for _, values, _ in reader.read([tile]))
    return None if values is None or not np.isfinite(values[inner]) else float(values[inner])


def has_constant_loss(arrays: LandscapeArrays) -> bool:
    """Whether the loss is the same, finite and to the last bit, at all of several points."""
    return is_constant(arrays.reader("loss"))


def computed_point(arrays: LandscapeArrays, usable: Callable[[Index], bool]) -> tuple[Index, dict[str, float]] | None:
    """The index and the values of a computed point off the origin; None if there is none.

    Args:
        usable: whether a point of the tile with this index may be taken.
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
    """The values of one point of a tile by name; empty if a chunk of the tile is damaged."""
    names = tuple(with_stderr(arrays.observables))
    chunks = {name: values for name in names for _, values, _ in arrays.reader(name).read([tile])}
    if any(values is None for values in chunks.values()):
        return {}
    return {name: float(values[place]) for name, values in chunks.items() if values is not None}


def check_directions(arrays: LandscapeArrays) -> list[str]:
    """A phrase for each direction whose tensors contradict the digest recorded with its axis."""
    from landscape.model.parameters import direction_digest  # needs torch

    tensors = stored_directions(arrays) or []
    pairs = zip(arrays.axis_names, arrays.direction_digests(), tensors, strict=False)
    return [
        f"directions of {axis}: another digest than recorded"
        for axis, recorded, state in pairs
        if direction_digest(state) != recorded
    ]
