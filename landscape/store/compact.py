"""A complete landscape stored in few files: copied into large tiles beside it, verified, and put in its place."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from landscape.core.errors import JobError, LandscapeError, quoted
from landscape.core.files import PARTIAL, Folder, Place
from landscape.core.folders import open_folder
from landscape.core.grid import Index, Tile, tile_at, tile_counts, within
from landscape.store.arrays import LandscapeArrays
from landscape.store.chunk_io import write_document
from landscape.store.commit import finish_move, flush, move_landscape, write_synced
from landscape.store.documents import FOLDER, METADATA, Documents
from landscape.store.landscape import LandscapeStore
from landscape.store.levels import why_incomplete
from landscape.store.results import (
    begun_extension,
    open_run,
    refuse_driven,
    removable,
    replace_landscape,
    staged_name,
    writing,
)
from landscape.store.runs import Move, open_zarr

# Of a stored tile. A damaged chunk has its whole tile computed again, by one worker, which sends it in one message: so
# no tile is larger than one that a job may have by itself.
MOST_POINTS = 64 * 64
MOST_BYTES = 8 << 20


@dataclass(frozen=True)
class Compaction:
    """What a compaction did.

    Attributes:
        files_before, files: how many files the landscape had, and has; equal if nothing was to be done.
    """

    name: str
    files_before: int
    files: int


def compact_landscape(run: str | Path, name: str) -> Compaction:
    """Store a complete landscape in few files; its values, its record and its levels stay as they are, to the bit.

    At every moment readers find one whole landscape: the one in many files, or the one in few. A read during the change
    is refused. If the process is killed meanwhile, the same call, or the next job of the run, finishes the change or
    begins it anew. Levels of a refinement keep their files: their tiles are the blocks that were refined.

    Raises:
        NotFoundError: there is no such run or landscape.
        JobError: the landscape is incomplete or damaged, or is being extended or refined.
        LandscapeError: a driver writes the run, the landscape cannot be read, or it holds files that this software did
            not write.

    Example:
        >>> import torch
        >>> from landscape import Job, Problem, compact_landscape, run
        >>> def problem():
        ...     return Problem.supervised(torch.nn.Linear(2, 2), (torch.ones(8, 2), torch.zeros(8).long()))
        >>> landscapes = [{"name": "minimum", "size": 9}]
        >>> _ = run(Job(run="runs/compact", problem=problem, num_samples=8, tile=1, landscapes=landscapes))
        >>> found = compact_landscape("runs/compact", "minimum")
        >>> found.files_before > 81 * 3, found.files < 40
        (True, True)
    """
    path = open_run(run).path
    refuse_driven(path)
    refuse_uncompactable(path, name)  # so that a refusal leaves no lock in the run
    with writing(path):
        return compact_stored(path, name)


def compact_stored(run: Place, name: str) -> Compaction:
    """The same, by a caller that holds the run's lock."""
    folder = open_folder(run)
    finish_move(folder)
    store = refuse_uncompactable(folder, name)
    files = _count_files(folder, store)
    tile = compact_tile(store.arrays)
    if math.prod(tile_counts(store.shape, tile)) >= store.tile_count:
        return Compaction(name, files, files)
    LandscapeStore.open(folder, name, write=True)  # mends documents that were read from the root's copies
    staged = staged_name(name)
    _write_copy(folder, store, tile, staged)
    _verify_copy(folder, store, staged)
    replace_landscape(folder, staged, name)
    return Compaction(name, files, _count_files(folder, LandscapeStore.open(folder, name)))


def refuse_uncompactable(run: Place, name: str) -> LandscapeStore:
    """Open a landscape that can be compacted.

    Raises:
        NotFoundError, JobError, LandscapeError: it cannot be; with the reason, and the remedy.
    """
    called = f"landscape {quoted(name)} cannot be compacted"
    if removable(run, name) is None:
        raise JobError(f"{called}: it is half made; run its job again, or remove it")
    store = LandscapeStore.open(run, name)
    if (extension := begun_extension(run, name)) is not None:
        raise JobError(f"{called}: it is being extended; give that command again first, or remove {quoted(extension)}")
    if (why := why_incomplete(store)) is not None:
        raise JobError(f"{called}: {why}; run its own job first")
    levels = store.levels()
    if len(levels) < len(Documents(open_folder(run)).levels(store.path)) or any(map(why_incomplete, levels)):
        raise JobError(f"{called}: it is being refined; give that command, or its own job, again first")
    if damaged := store.check_constants():
        raise JobError(f"{called}: its array {damaged[0]} is damaged; run its own job first")
    return store


def compact_tile(arrays: LandscapeArrays) -> Index:
    """The largest tiles that a compacted landscape may have, in points per dimension, the last axis first."""
    widest = max(
        math.prod(array.shape[len(arrays.shape) :]) * array.dtype.itemsize
        for array in map(arrays.__getitem__, arrays.tile_names)
    )
    return within(arrays.shape, min(MOST_POINTS, MOST_BYTES // widest))


def _count_files(folder: Folder, store: LandscapeStore) -> int:
    return len(folder.stamps(f"{FOLDER}/{store.path}"))


def _tiled(arrays: LandscapeArrays) -> tuple[str, ...]:
    """The arrays whose chunks are tiles; the status last, as at every commit."""
    return (*arrays.tile_names, "status")


def _other_files(folder: Folder, store: LandscapeStore) -> list[str]:
    """The files of a landscape that a copy in other tiles shares, by their paths in it."""
    tiled = _tiled(store.arrays)
    return [
        file
        for file in folder.stamps(f"{FOLDER}/{store.path}")
        if file != METADATA and file.partition("/")[0] not in tiled and PARTIAL not in file.rpartition("/")[2]
    ]


def _tiles(arrays: LandscapeArrays) -> Iterator[Tile]:
    counts = tile_counts(arrays.shape, arrays.tile_shape)
    return (tile_at(index, arrays.shape, arrays.tile_shape) for index in product(*map(range, counts)))


def _write_copy(folder: Folder, store: LandscapeStore, tile: Index, staged: str) -> None:
    """Write a landscape in other tiles under a name that readers skip; its own document, which makes it whole, last."""
    source, target = f"{FOLDER}/{store.path}", f"{FOLDER}/{staged}"
    if folder.folders(target) or folder.names(target):
        move_landscape(folder, Move(staged))  # left by a process that was killed
    folder.map(lambda file: folder.copy(f"{source}/{file}", f"{target}/{file}"), _other_files(folder, store))
    documents, zarr_store = Documents(folder), open_zarr(folder, read_only=False)
    for name in _tiled(store.arrays):
        described = store.arrays.describe(name)
        chunks = (*tile, *described.array.shape[len(tile) :])
        grid = {"name": "regular", "configuration": {"chunk_shape": chunks}}
        write_document(
            zarr_store, f"{staged}/{name}/{METADATA}", documents.text({**described.document, "chunk_grid": grid})
        )
    flush(zarr_store)
    copy = LandscapeArrays(staged, zarr_store, documents, store.record, staged)
    for part in _tiles(copy):
        values = [(name, part.index, store.arrays.over(name, part.start, part.stop)) for name in _tiled(copy)]
        write_synced(copy, values[:-1])
        write_synced(copy, values[-1:])
    record = store.record.changed(computed_tile=store.computed_tile)
    write_document(zarr_store, f"{staged}/{METADATA}", documents.group(record.attributes))
    flush(zarr_store)


def _verify_copy(folder: Folder, store: LandscapeStore, staged: str) -> None:
    """Compare every value and every other file of the copy, as they are on disk, with those of the landscape.

    Raises:
        LandscapeError: they differ; the landscape stays as it is.
    """
    arrays = LandscapeStore.open(folder, staged).arrays
    differing = [
        f"{name} at tile {part.index}"
        for part in _tiles(arrays)
        for name in _tiled(arrays)
        if arrays.over(name, part.start, part.stop).tobytes()
        != store.arrays.over(name, part.start, part.stop).tobytes()
    ]
    differing += [
        file
        for file in _other_files(folder, store)
        if folder.read(f"{FOLDER}/{staged}/{file}") != folder.read(f"{FOLDER}/{store.path}/{file}")
    ]
    if differing:
        raise LandscapeError(
            f"landscape {quoted(store.name)}: its copy in large tiles differs in {differing[0]}, so it stays as it is; "
            "check the disk, and give the command again"
        )
