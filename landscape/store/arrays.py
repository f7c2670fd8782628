"""The arrays of one landscape: their names, their documents, and their chunks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from zarr.abc.store import Store

from landscape.core.errors import JobError, LandscapeError, quoted
from landscape.core.grid import Floats, Grid, Index, Tile, overlap, points_per_tile, tile_at, tile_counts
from landscape.store.chunk_io import ChunkReader
from landscape.store.documents import DescribedArray, Documents, Expected
from landscape.store.format import ACCURATE, StoredArray, path_moment_rows, rows_written, with_stderr
from landscape.surface.record import Record, parse_axis
from landscape.surface.refinement import from_stretches, in_coarser_level, new_points, new_points_per_tile
from landscape.surface.surface import (
    LOSS_SAMPLES,
    MOMENT_PARTS,
    MOMENTS,
    NOT_FINITE,
    OK,
    ORIGIN_SAMPLES,
    PATH_MOMENTS,
    RISE_STDERR,
    SAMPLE_INDEX,
    SAMPLE_WEIGHTS,
    SampleLosses,
)


# ----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Examination:
    """The tiles and snapshots of a landscape that are left to compute, and its damaged chunks.

    Attributes:
        missing_mask: over the tiles; true for those to compute.
        path_missing: the stretches of the path to compute, in snapshots.
        damaged: the damaged chunks, each as the name of its array and its index.
    """

    missing_mask: NDArray[np.bool_]
    path_missing: tuple[slice, ...]
    damaged: tuple[tuple[str, Index], ...]

    @property
    def missing(self) -> frozenset[Index]:
        """The indices of the tiles to compute."""
        return frozenset(map(tuple, np.argwhere(self.missing_mask).tolist()))

    @property
    def complete(self) -> bool:
        """Whether no tile and no snapshot is left to compute."""
        return not self.missing_mask.any() and not self.path_missing


@dataclass(frozen=True)
class CheckedArray:
    """The values of an array, and its damaged chunks, each as the name of the array and its index."""

    values: NDArray[Any]
    damaged: list[tuple[str, Index]]


def status_of(loss: Floats) -> NDArray[np.uint8]:
    """1 where the loss is finite, 2 where it is NaN or infinite."""
    return np.where(np.isfinite(loss), OK, NOT_FINITE).astype(np.uint8)


def chunks_where(mask: NDArray[np.bool_], chunks: Sequence[int]) -> set[Index]:
    """The indices of the chunks in which `mask` is true anywhere."""
    places = np.argwhere(mask) // np.asarray(chunks)
    return set(map(tuple, np.unique(places, axis=0).tolist())) if len(places) else set()


# ----------------------------------------------------------------------------------------------------


def draws_runs(record: Record) -> bool:
    """Whether the job of a landscape names the runs whose paths it draws."""
    return record.job is not None and any(spec.get("paths") for spec in record.job.landscapes)


class LandscapeArrays:
    """The arrays of one landscape by their names. Each document is read once."""

    def __init__(self, name: str, store: Store, documents: Documents, record: Record, path: str) -> None:
        """
        Args:
            name: of the landscape.
            store: the Zarr store of its run.
            path: of the landscape's folder in the store.
        """
        self.name, self.store, self._documents, self._path = name, store, documents, path
        self.observables, self.moment_rows = record.observables, record.moment_rows
        self.kept_samples = record.num_samples or 0 if record.keep_samples else 0
        self.level, self.accurate = record.level, record.accuracy is not None
        self._described: dict[str, DescribedArray] = {}
        self.has_path = documents.has(path, "path_status")
        # A landscape that was made from `paths` has this array, even if the array is lost.
        self.has_runs = self.has_path and (documents.has(path, "path_run") or draws_runs(record))

    # -- documents --------------------------------------------------------------------------------------------

    @property
    def names(self) -> list[str]:
        """The names of all arrays."""
        path = [*self.path_constants, "path_status", *self.path_value_names] if self.has_path else []
        return ["status", *self.tile_names, *self._constants, *self.over_samples, *path]

    def describe(self, name: str) -> DescribedArray:
        """An array as its document, or the root's copy of it, describes it.

        Raises:
            LandscapeError: neither can be read.
        """
        if name not in self._described:
            self._described[name] = self._documents.array(self._path, name, *self._expectation(name))
        return self._described[name]

    def __getitem__(self, name: str) -> StoredArray:
        return self.describe(name).array

    def _expectation(self, name: str) -> tuple[Expected | None, tuple[str, ...] | None]:
        """The shape and chunks that an array must have, and the names of the axes; None if it determines them."""
        if name == "status":
            return None, None
        if name in self.axis_names:
            size = (self.shape[-1 - self.axis_names.index(name)],)
            return Expected(size, size), self.axis_names
        if name in ("directions", "path_status", SAMPLE_INDEX):
            return None, self.axis_names
        if name == MOMENTS:
            width = MOMENT_PARTS * len(self.moment_rows)
            return Expected((*self.shape, width), (*self.tile_shape, width)), self.axis_names
        if name == LOSS_SAMPLES:
            return Expected((*self.shape, self.kept_samples), (*self.tile_shape, self.kept_samples)), self.axis_names
        if name in (ORIGIN_SAMPLES, SAMPLE_WEIGHTS):
            return Expected((self.kept_samples,), (self.kept_samples,)), self.axis_names
        if name == PATH_MOMENTS:
            width, path = MOMENT_PARTS * len(path_moment_rows(self.moment_rows)), self["path_status"]
            return Expected((*path.shape, width), (*path.chunks, width)), self.axis_names
        if name.startswith("path_") and self.has_path:
            path = self["path_status"]
            whole = name in self.path_constants
            return Expected(path.shape, path.shape if whole else path.chunks), self.axis_names
        return Expected(self.shape, self.tile_shape), self.axis_names

    @cached_property
    def shape(self) -> Index:
        """Points per dimension, the last axis first."""
        return self["status"].shape

    @cached_property
    def tile_shape(self) -> Index:
        """Points per dimension of a tile, the last axis first."""
        return self["status"].chunks

    @property
    def value_names(self) -> tuple[str, ...]:
        """The arrays of values over the grid: each observable and its standard error, and that of the rise."""
        return (*with_stderr(self.observables), RISE_STDERR, *(name for name, _, _ in ACCURATE if self.accurate))

    @property
    def tile_names(self) -> tuple[str, ...]:
        """The arrays that are written with a tile before its status: values, and stored moments and sample losses."""
        moments, losses = [MOMENTS] if self.moment_rows else [], [LOSS_SAMPLES] if self.kept_samples else []
        return (*self.value_names, *moments, *losses)

    @property
    def over_samples(self) -> tuple[str, ...]:
        """The arrays over the samples that are written with the first tile, if the losses of samples are stored."""
        return (SAMPLE_WEIGHTS, ORIGIN_SAMPLES) if self.kept_samples else ()

    @property
    def path_value_names(self) -> tuple[str, ...]:
        """The arrays that are written with a stretch of the path before its status."""
        return ("path_loss", "path_projected_loss", *([PATH_MOMENTS] if self.moment_rows else []))

    @property
    def _constants(self) -> list[str]:
        """The arrays that are written when the landscape is made; a level has coordinates alone."""
        samples = [SAMPLE_INDEX] if self.moment_rows else []
        return [*self.axis_names] if self.level else [*self.axis_names, "directions", *samples]

    # -- points -------------------------------------------------------------------------------------------------

    @property
    def own_tiles(self) -> NDArray[np.bool_] | None:
        """For a level, a mask over its grid of the tiles that it holds; None for a landscape, which holds all."""
        return from_stretches(self.level.blocks, tile_counts(self.shape, self.tile_shape)) if self.level else None

    @property
    def tile_count(self) -> int:
        """The number of its tiles, computed or not."""
        own = self.own_tiles
        return math.prod(tile_counts(self.shape, self.tile_shape)) if own is None else int(own.sum())

    def points_of_coarser_levels(self, tile: Tile) -> NDArray[np.bool_] | None:
        """A mask of the points of a tile that belong to a coarser level; None for a landscape, which has none."""
        return in_coarser_level(tile) if self.level else None

    def points_of(self, tile: Tile) -> int:
        """The number of its own points in a tile."""
        return new_points(tile) if self.level else tile.points

    @property
    def points(self) -> int:
        """The number of its own points, computed or not."""
        return math.prod(self.shape) if self.own_tiles is None else self.points_in(self.own_tiles)

    def points_in(self, tiles: NDArray[np.bool_]) -> int:
        """The number of its own points in the tiles that a mask selects."""
        per_tile = new_points_per_tile(self.shape) if self.level else points_per_tile(self.shape, self.tile_shape)
        return int(per_tile[tiles].sum())

    @property
    def axis_names(self) -> tuple[str, ...]:
        """The names of the axes: the dimensions of the arrays in reverse."""
        return tuple(reversed(self["status"].dimension_names))

    @property
    def path_chunk(self) -> int:
        """Snapshots per chunk of the path."""
        return self["path_status"].chunks[0]

    @property
    def path_constants(self) -> list[str]:
        """The arrays of the path that are written when the landscape is made; empty without a path."""
        places = [f"path_{axis}" for axis in self.axis_names]
        return [*places, "path_step", "path_distance", *["path_run"] * self.has_runs] if self.has_path else []

    def direction_digests(self) -> list[str]:
        """The recorded digest of each axis's direction; empty if it is lost."""
        return [parse_axis(self[axis].attributes)[0].digest for axis in self.axis_names]

    def tile(self, index: Index) -> Tile:
        """The tile with this index, cut off by the end of the grid."""
        return tile_at(index, self.shape, self.tile_shape)

    # -- values -----------------------------------------------------------------------------------------------

    def reader(self, name: str) -> ChunkReader:
        """The reader of the chunks of an array."""
        return ChunkReader(self.store, self[name])

    def values(self, name: str) -> NDArray[Any]:
        """A whole array, with the fill value for absent and damaged chunks."""
        return self.reader(name).whole()[0]

    def over(self, name: str, start: Index, stop: Index) -> NDArray[Any]:
        """The values of an array over the points from `start` to before `stop`, whatever tiles they lie in.

        Raises:
            LandscapeError: a chunk of them is absent or damaged.
        """
        array, edges = self[name], self.tile_shape
        beside = array.shape[len(edges) :]  # such as moments, which a chunk holds all of
        values = np.empty((*(b - a for a, b in zip(start, stop, strict=True)), *beside), array.dtype)
        ranges = [range(a // edge, -(-b // edge)) for a, b, edge in zip(start, stop, edges, strict=True)]
        chunks = ((*index, *(0,) * len(beside)) for index in itertools.product(*ranges))
        for index, chunk, _ in self.reader(name).read(chunks):
            if chunk is None:
                raise LandscapeError(
                    f"landscape {quoted(self.name)}: {name} chunk {'/'.join(map(str, index))} is damaged; run its own "
                    "job, which mends it"
                )
            here, in_chunk = overlap(start, stop, self.tile(index[: len(edges)]))
            values[here] = chunk[in_chunk]
        return values

    def read_checked(self, name: str, expected: Set[Index] = frozenset()) -> CheckedArray:
        """An array with its damaged chunks: those whose checksum fails, and those of `expected` that are absent."""
        values, damaged, present = self.reader(name).whole()
        absent = sorted(index for index in expected if not present[index])
        return CheckedArray(values, [(name, index) for index in (*absent, *damaged)])

    def grid(self) -> Grid | None:
        """The stored coordinates; None if a chunk of them is damaged."""
        if self.check_constants(self.axis_names):
            return None
        return Grid(self.axis_names, tuple(self.values(axis) for axis in self.axis_names))

    def check_constants(self, names: Sequence[str] | None = None) -> list[str]:
        """The names of the coordinate, direction and path arrays that are damaged.

        Args:
            names: check these only; default: all. The directions may be large.
        """
        names = [*self._constants, *self.path_constants] if names is None else names
        return [name for name in names if any(self.reader(name).find_unsound(self._constant_chunks(name)))]

    def has_all_chunks(self, name: str) -> bool:
        """Whether an array that is written when the landscape is made has all its chunks, sound or not."""
        present = self.reader(name).present()
        return all(present[index] for index in self._constant_chunks(name))

    def _constant_chunks(self, name: str) -> Iterator[Index]:
        """The chunks that a coordinate, direction or path array must have; none for a direction stored as its seed."""
        array = self[name]
        chunks = itertools.product(*map(range, tile_counts(array.shape, array.chunks)))
        written = rows_written(array) if name == "directions" else []
        return (index for index in chunks if name != "directions" or written[index[0]])


# ----------------------------------------------------------------------------------------------------
# Single samples: their places in the data, their losses, and their weights.


def sample_index(arrays: LandscapeArrays) -> NDArray[np.int64] | None:
    """The places of the samples in the data; None if they were not recorded, or are damaged."""
    if not arrays.moment_rows or arrays.level:
        return None
    checked = arrays.read_checked(SAMPLE_INDEX, {(0,)})
    return None if checked.damaged else checked.values


def stored_losses(arrays: LandscapeArrays) -> SampleLosses | None:
    """The losses of single samples, read when they are indexed; None if they are not stored."""
    if not arrays.kept_samples:
        return None
    reader = arrays.reader(LOSS_SAMPLES)

    def read(index: Index) -> NDArray[Any] | None:
        return next(values for _, values, _ in reader.read([index]))

    over: dict[str, Callable[[], NDArray[Any] | None]] = {
        name: partial(_over_samples, arrays, name) for name in arrays.over_samples
    }
    return SampleLosses(arrays.name, reader.shape, reader.chunks, read, over)


def _over_samples(arrays: LandscapeArrays, name: str) -> NDArray[Any] | None:
    """An array over the samples; None if it is not written yet, or damaged."""
    return next(values for _, values, _ in arrays.reader(name).read([(0,)]))


def new_sample_arrays(arrays: LandscapeArrays, tiles: Sequence[Mapping[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    """The arrays over the samples that must be written with these tiles, because they are not stored yet.

    Raises:
        JobError: the tiles have another number of samples than the landscape, or other weights.
    """
    if not arrays.kept_samples:
        return {}
    stored = {name: _over_samples(arrays, name) for name in arrays.over_samples}
    weights = stored[SAMPLE_WEIGHTS]
    for values in tiles:
        count = values[LOSS_SAMPLES].shape[-1]
        if count != arrays.kept_samples:
            raise JobError(
                f"keep_samples: observe returned {count} losses for the {arrays.kept_samples} samples of landscape "
                f"{quoted(arrays.name)}; return one per sample, or leave keep_samples out"
            )
        weights = values[SAMPLE_WEIGHTS] if weights is None else weights
        refuse_other_weights(weights, values[SAMPLE_WEIGHTS])
    absent = any(values is None for values in stored.values())
    return {name: tiles[0][name] for name in arrays.over_samples} if absent else {}


def refuse_other_weights(before: Floats, now: Floats) -> None:
    """Refuse weights of samples that differ between two points.

    Raises:
        JobError: names the first sample whose weights differ.
    """
    differ = before != now
    if differ.any():
        sample = int(np.argmax(differ))
        raise JobError(
            f"keep_samples: 'weight' must be the same at every point, not {before[sample]:.6g} and then "
            f"{now[sample]:.6g} for sample {sample}; leave keep_samples out, or return weights of the data alone"
        )


def find_damaged_sample_arrays(arrays: LandscapeArrays, missing: NDArray[np.bool_]) -> list[tuple[str, Index]]:
    """The damaged arrays over the samples, each as its name and chunk.

    Args:
        missing: a mask over the tiles to compute. If an array is damaged, one more tile is marked here: its values will
            rewrite the array.
    """
    if missing.all():  # the first tile that is computed writes them
        return []
    damaged: list[tuple[str, Index]] = [
        (name, (0,)) for name in arrays.over_samples if _over_samples(arrays, name) is None
    ]
    if damaged:
        missing[np.unravel_index(int(np.argmin(missing)), missing.shape)] = True
    return damaged
