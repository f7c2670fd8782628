"""Counts by status, the lowest loss, missing and damaged tiles: all from the chunks, which are read as a stream."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from landscape.core.grid import Index, tile_at
from landscape.store.arrays import LandscapeArrays
from landscape.store.chunk_io import ChunkReader
from landscape.surface.surface import NOT_COMPUTED, NOT_FINITE, OK, QUARANTINED

STATUSES = 4


def count_statuses(status: ChunkReader, points: int | None = None) -> NDArray[np.int64]:
    """How many points have each status, 0 to 3; those of absent and damaged chunks count as not computed.

    Args:
        points: how many there are, where these are not all of the array.
    """
    counts = np.zeros(STATUSES, np.int64)
    for _, values, _ in status.read(indices_of(status.present())):
        if values is not None:
            counts += np.bincount(values.ravel(), minlength=STATUSES)[:STATUSES]
    counts[NOT_COMPUTED] = 0
    counts[NOT_COMPUTED] = (math.prod(status.shape) if points is None else points) - int(counts.sum())
    return counts


def lowest_and_unreadable(arrays: LandscapeArrays) -> tuple[tuple[float, Index] | None, int]:
    """The lowest finite committed loss with its index, the first one of equals; and how many points cannot be read.

    These are the points of a damaged chunk of the status, and committed points whose loss is in a chunk that is absent
    or damaged, or is not finite although their status is OK.
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
    """Whether there is one finite value, to the last bit, at all of several points; reads until another one is met."""
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

    A chunk is damaged where its checksum fails, where it is absent although its tile is committed, and where it holds
    no finite loss at a point whose status is OK.

    Returns:
        A mask over the tiles of those to compute, and the damaged chunks, each as its array and its index.
    """
    missing, committed = np.ones(status.counts, np.bool_), np.zeros(status.counts, np.bool_)
    damaged: list[tuple[str, Index]] = []
    sound: dict[Index, NDArray[np.uint8]] = {}  # packed mask of the points that are OK; absent means that all are
    for index, values, bad in status.read(indices_of(status.present())):
        if bad or values is None:
            damaged.append(("status", index))
        if values is None:
            continue
        undone, left_out = np.isin(values, (NOT_COMPUTED, QUARANTINED)), arrays.points_left_out(arrays.tile(index))
        missing[index] = bool((undone if left_out is None else undone & ~left_out).any())
        committed[index] = bool((values != NOT_COMPUTED).any())
        if not (values == OK).all():
            sound[index] = np.packbits(values == OK)
    for name, reader in observables.items():
        present = reader.present().reshape(status.counts)
        beside = (0,) * (len(reader.counts) - len(status.counts))  # moments have a dimension of their own
        damaged += [(name, index) for index in indices_of(committed & ~present)]
        for whole_index, values, bad in reader.read((*index, *beside) for index in indices_of(present)):
            index = whole_index[: len(status.counts)]
            bad = bad or values is None  # a link that leads nowhere exists and has no bytes
            if values is not None and name == "loss" and committed[index]:
                bad = not np.isfinite(values[_unpacked(sound.get(index), values.shape)]).all()
            if bad:
                damaged.append((name, index))
    for _, index in damaged:
        missing[index] = True
    held = arrays.tiles_held
    return (missing if held is None else missing & held), damaged


def _unpacked(bits: NDArray[np.uint8] | None, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    if bits is None:
        return np.ones(shape, np.bool_)
    return np.unpackbits(bits, count=int(np.prod(shape))).reshape(shape).astype(np.bool_)


def indices_of(mask: NDArray[np.bool_]) -> Iterator[Index]:
    """The indices at which a mask holds, in C order; 4096 of them are made at once."""
    flat = np.flatnonzero(mask)
    stretches = (np.stack(np.unravel_index(flat[k : k + 4096], mask.shape), 1) for k in range(0, len(flat), 4096))
    return (tuple(index) for index in chain.from_iterable(stretch.tolist() for stretch in stretches))
