"""The Zarr layout of a landscape: create it, commit whole tiles, find what is missing or damaged, read it.

Only this module knows Zarr. A tile is a whole chunk; its observables are written and synced first and its
`status` last, so a `status` other than 0 means that the tile is there. Every chunk ends in a CRC32C.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from torch import Tensor
from zarr.codecs import Crc32cCodec, ZstdCodec
from zarr.core.buffer import Buffer
from zarr.core.sync import sync
from zarr.storage import LocalStore

from landscape.errors import JobError, LandscapeError, NotFoundError, nearest
from landscape.files import fsync
from landscape.grid import Grid, Index, Tile, tile_at, tile_counts
from landscape.parameters import State, direction_digest, flatten, unflatten
from landscape.spec import locate
from landscape.surface import NOT_COMPUTED, NOT_FINITE, OK, QUARANTINED, Axis, Path, Surface

SCHEMA_VERSION = 1
FOLDER = "landscapes.zarr"
DIRECTION_BYTES = 1 << 30  # above it a random direction is kept as its seed and digest alone
DIRECTION_CHUNK = 1 << 24


@dataclass(frozen=True)
class PathPlan:
    """Where the snapshots of a trajectory lie on the plane, before their losses are known."""

    unit: str
    step: tuple[int, ...]
    coordinates: NDArray[np.float64]  # [snapshots, axes]
    distance: NDArray[np.float64]


class DurableStore(LocalStore):
    """A local store that can make what it wrote survive a power cut: Zarr renames files, but never syncs them."""

    def __init__(self, root: FilePath | str, *, read_only: bool = False) -> None:
        super().__init__(root, read_only=read_only)
        self._unsynced: set[FilePath] = set()
        self._synced_folders: set[FilePath] = set()

    async def _set(self, key: str, value: Buffer, exclusive: bool = False) -> None:
        await super()._set(key, value, exclusive)
        self._unsynced.add(self.root / key)

    async def flush(self) -> None:
        """Sync every file written since the last call, the folders that name them, and new folders above."""
        files, self._unsynced = self._unsynced, set()
        await asyncio.to_thread(self._sync_all, files)

    def _sync_all(self, files: set[FilePath]) -> None:
        folders = {file.parent for file in files}
        for folder in tuple(folders):
            above = folder
            while above != self.root.parent and above not in self._synced_folders:
                folders.add(above.parent)
                above = above.parent
        for place in (*files, *folders):
            fsync(place)
        self._synced_folders |= folders


def store_root(run: str) -> FilePath:
    return FilePath(locate(run, FilePath.cwd())) / FOLDER


def landscape_names(run: str) -> list[str]:
    """The landscapes of a run, finished or not, in the order of their names."""
    root = store_root(run)
    if not (root / "zarr.json").is_file():
        return []
    return sorted(each.parent.name for each in root.glob("*/zarr.json") if _is_complete(root, each.parent.name))


def _is_complete(root: FilePath, name: str) -> bool:
    """Whether the landscape's creation was finished: its attributes are written last."""
    try:
        return "schema_version" in zarr.open_group(LocalStore(root, read_only=True), path=name, mode="r").attrs
    except (OSError, ValueError, KeyError):
        return False


def _remove_half_made(folder: FilePath) -> None:
    """Remove what a driver that was killed while making it left; never one whose metadata have become unreadable."""
    metadata = folder / "zarr.json"
    if metadata.exists():
        try:
            json.loads(metadata.read_bytes())
        except ValueError:
            raise LandscapeError(
                f"landscape {folder.name!r}: its metadata {str(metadata)!r} are damaged; "
                "restore that file, or remove the folder to compute it anew"
            ) from None
    if folder.exists():
        shutil.rmtree(folder)


class LandscapeStore:
    """One landscape on disk. Made by `create`, or `open` for reading and going on."""

    def __init__(self, store: LocalStore, name: str, group: zarr.Group) -> None:
        self.name, self._store, self._group = name, store, group
        self.attributes: dict[str, Any] = dict(group.attrs)
        # The setting is not stored with an array: opened without it, a tile of nothing but NaN leaves no trace.
        self._arrays: dict[str, Any] = {
            key: array.with_config({"write_empty_chunks": True}) for key, array in group.arrays()
        }

    # -- making and opening ---------------------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        run: str,
        name: str,
        grid: Grid,
        tile_shape: Index,
        observables: Sequence[str],
        *,
        axes: Sequence[Mapping[str, Any]],
        directions: Sequence[State],
        layout: Sequence[Mapping[str, Any]],
        path: PathPlan | None,
        attributes: Mapping[str, Any],
    ) -> LandscapeStore:
        """Lay out a landscape with nothing computed. A half-made one of a killed driver is replaced."""
        root = store_root(run)
        root.parent.mkdir(parents=True, exist_ok=True)
        store = DurableStore(root)
        if not (root / "zarr.json").is_file():
            zarr.open_group(store, mode="a", zarr_format=3)
        _remove_half_made(root / name)
        group = zarr.open_group(store, path=name, mode="a", zarr_format=3)
        for axis, coordinates, described in zip(grid.names, grid.coordinates, axes, strict=True):
            _make(group, axis, coordinates, (axis,), attributes=dict(described))
        for observable in _with_stderr(observables):
            _make_empty(group, observable, np.float64, np.nan, grid.shape, tile_shape, grid.dimensions)
        _make_empty(group, "status", np.uint8, 0, grid.shape, tile_shape, grid.dimensions)
        _make_directions(group, directions, layout, axes)
        if path is not None:
            _make_path(group, grid, path, int(np.prod(tile_shape)))
        sync(store.flush())
        # Last, and in one file: a landscape without its attributes was never finished being made.
        group.attrs.update({"schema_version": SCHEMA_VERSION, "name": name, **attributes})
        sync(store.flush())
        found = cls.open(run, name, write=True)
        found.consolidate()
        return found

    @classmethod
    def open(cls, run: str, name: str, *, write: bool = False) -> LandscapeStore:
        """Open an existing landscape; a reader needs no lock, also while it is being written.

        Raises:
            NotFoundError: there is none of that name.
            JobError: it was written by a newer version of this software.
        """
        names = landscape_names(run)
        if name not in names:
            raise NotFoundError(f"landscape {name!r} is not in run {run!r}; {nearest(name, names)}")
        store = DurableStore(store_root(run), read_only=not write)
        found = cls(store, name, zarr.open_group(store, path=name, mode="r+" if write else "r"))
        version = found.attributes["schema_version"]
        if not isinstance(version, int) or version > SCHEMA_VERSION:
            raise JobError(
                f"landscape {name!r} has schema version {version}, this software reads up to {SCHEMA_VERSION}; "
                "update it, or use another run"
            )
        return found

    # -- what it holds --------------------------------------------------------------------------------------

    @property
    def shape(self) -> Index:
        return tuple(self._arrays["status"].shape)

    @property
    def tile_shape(self) -> Index:
        return tuple(self._arrays["status"].chunks)

    @property
    def observables(self) -> tuple[str, ...]:
        return tuple(self.attributes["observables"])

    @property
    def axis_names(self) -> tuple[str, ...]:
        return tuple(reversed(self._arrays["status"].metadata.dimension_names))

    @property
    def tile_count(self) -> int:
        return int(np.prod(tile_counts(self.shape, self.tile_shape)))

    def tile(self, index: Index) -> Tile:
        return tile_at(index, self.shape, self.tile_shape)

    def grid(self) -> Grid | None:
        """The stored coordinates, or None where a chunk of them is damaged."""
        if self.check_constants(self.axis_names):
            return None
        return Grid(self.axis_names, tuple(self._arrays[axis][:] for axis in self.axis_names))

    @property
    def has_path(self) -> bool:
        return "path_status" in self._arrays

    @property
    def path_chunk(self) -> int:
        return int(self._arrays["path_status"].chunks[0])

    def path_plan(self) -> PathPlan | None:
        """Where the snapshots lie, or None where there is no path or a chunk of it is damaged."""
        if not self.has_path or self.check_constants(self._path_constants()):
            return None
        coordinates = np.stack([self._arrays[f"path_{axis}"][:] for axis in self.axis_names], axis=1)
        array = self._arrays["path_step"]
        steps = tuple(int(step) for step in array[:])
        return PathPlan(str(array.attrs["unit"]), steps, coordinates, self._arrays["path_distance"][:])

    def directions(self) -> list[dict[str, Tensor]] | None:
        """The stored directions, or None where one is kept as its seed alone or its chunk is damaged."""
        array = self._arrays["directions"]
        # A chunk that is gone reads as zeros, a direction that goes nowhere.
        if not all(array.attrs["stored"]) or self._absent_chunks("directions", self._constant_chunks("directions")):
            return None
        try:
            return [unflatten(array[axis], array.attrs["layout"]) for axis in range(array.shape[0])]
        except (ValueError, OSError):
            return None

    # -- writing --------------------------------------------------------------------------------------------

    def write_tile(self, tile: Tile, values: Mapping[str, NDArray[np.float64]]) -> None:
        """Commit a whole tile: every observable, synced, then `status`, synced.

        Args:
            values: `loss`, `loss_stderr`, … as flat arrays over the tile's points in C order.
        """
        for observable in _with_stderr(self.observables):
            self._arrays[observable][tile.windows] = values[observable].reshape(tile.shape)
        sync(self._flush())
        self._write_status("status", tile.windows, status_of(values["loss"]).reshape(tile.shape))

    def quarantine_tile(self, tile: Tile) -> None:
        """Mark a tile as given up; running the job again tries it anew."""
        for observable in _with_stderr(self.observables):
            self._arrays[observable][tile.windows] = np.full(tile.shape, np.nan)
        sync(self._flush())
        self._write_status("status", tile.windows, np.full(tile.shape, QUARANTINED, np.uint8))

    def write_path(self, window: slice, loss: NDArray[np.float64], projected: NDArray[np.float64]) -> None:
        """Commit one chunk of the path, like a tile."""
        self._arrays["path_loss"][window] = loss
        self._arrays["path_projected_loss"][window] = projected
        sync(self._flush())
        self._write_status("path_status", (window,), np.maximum(status_of(loss), status_of(projected)))

    def quarantine_path(self, window: slice) -> None:
        for name in ("path_loss", "path_projected_loss"):
            self._arrays[name][window] = np.full(window.stop - window.start, np.nan)
        sync(self._flush())
        self._write_status("path_status", (window,), np.full(window.stop - window.start, QUARANTINED, np.uint8))

    def _write_status(self, array: str, windows: tuple[slice, ...], status: NDArray[np.uint8]) -> None:
        self._arrays[array][windows] = status
        sync(self._flush())

    async def _flush(self) -> None:
        if isinstance(self._store, DurableStore):
            await self._store.flush()

    def update_attributes(self, **changes: Any) -> None:
        """Replace some of the group's attributes; the driver alone writes them."""
        self.attributes.update(changes)
        self._group.attrs.update(changes)

    def consolidate(self) -> None:
        """Copy all metadata of the run into the root's, which xarray reads at once and warns where it is not."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # "not part of the Zarr format 3 specification"
            zarr.consolidate_metadata(self._store)
        sync(self._flush())

    # -- what is missing, what is damaged --------------------------------------------------------------------

    def examine(self) -> Examination:
        """Read and check every chunk of the grid and the path."""
        status = self._read_checked("status")
        damaged = list(status.damaged)
        gone = status.values == NOT_COMPUTED
        committed = self._tiles_where(~gone)
        for observable in _with_stderr(self.observables):
            found = self._read_checked(observable, committed)
            damaged += found.damaged
            if observable == "loss":
                # A chunk that reads well but holds nothing where `status` promises a value.
                damaged += [
                    ("loss", index) for index in self._tiles_where((status.values == OK) & ~np.isfinite(found.values))
                ]
        missing = set(self._tiles_where(gone | (status.values == QUARANTINED))) | {index for _, index in damaged}
        path_missing, path_damaged = self._examine_path() if self.has_path else ([], [])
        return Examination(frozenset(missing), tuple(path_missing), tuple(dict.fromkeys(damaged + path_damaged)))

    def _examine_path(self) -> tuple[list[slice], list[tuple[str, Index]]]:
        damaged: list[tuple[str, Index]] = []
        status = self._read_checked("path_status")
        missing = {
            int(i) // self.path_chunk for i in np.flatnonzero(np.isin(status.values, (NOT_COMPUTED, QUARANTINED)))
        }
        committed = _chunks_where(status.values != NOT_COMPUTED, (self.path_chunk,))
        for name in ("path_loss", "path_projected_loss"):
            damaged += self._read_checked(name, committed).damaged
        damaged += status.damaged
        starts = sorted(missing | {index[0] for _, index in damaged})
        count = self._arrays["path_status"].shape[0]
        chunk = self.path_chunk
        return [slice(i * chunk, min((i + 1) * chunk, count)) for i in starts], damaged

    def _read_checked(self, name: str, expected: Set[Index] = frozenset()) -> _Checked:
        """An array with its damaged chunks: those whose checksum fails, and those of `expected` that are absent."""
        array = self._arrays[name]
        absent = self._absent_chunks(name, expected)
        try:
            return _Checked(array[...], [(name, index) for index in absent])
        except (ValueError, OSError):
            values = np.full(array.shape, array.fill_value, array.dtype)
        damaged = [(name, index) for index in absent]
        for index in itertools.product(*map(range, tile_counts(array.shape, array.chunks))):
            windows = tile_at(index, array.shape, array.chunks).windows
            try:
                values[windows] = array[windows]
            except (ValueError, OSError):
                damaged.append((name, index))
        return _Checked(values, damaged)

    def _absent_chunks(self, name: str, expected: Set[Index]) -> list[Index]:
        if not expected:
            return []
        prefix = f"{self.name}/{name}/c/"
        there = {tuple(map(int, key[len(prefix) :].split("/"))) for key in sync(_listed(self._store, prefix))}
        return sorted(expected - there)

    def _tiles_where(self, mask: NDArray[np.bool_]) -> set[Index]:
        return _chunks_where(mask, self.tile_shape)

    def check_constants(self, names: Sequence[str] | None = None) -> list[str]:
        """Those of the coordinate, direction and path arrays that do not read as they were written.

        Args:
            names: look at these only; the directions may be large.
        """
        constant = [*self.axis_names, "directions", *self._path_constants()] if names is None else names
        return [name for name in constant if self._read_checked(name, self._constant_chunks(name)).damaged]

    def _path_constants(self) -> list[str]:
        places = [f"path_{axis}" for axis in self.axis_names]
        return [*places, "path_step", "path_distance"] if self.has_path else []

    def _constant_chunks(self, name: str) -> set[Index]:
        """The chunks that an array written at creation must have; a direction kept as its seed has none."""
        array = self._arrays[name]
        chunks = itertools.product(*map(range, tile_counts(array.shape, array.chunks)))
        return {index for index in chunks if name != "directions" or array.attrs["stored"][index[0]]}

    def direction_digests(self) -> list[str]:
        """The digest of each axis's direction, as recorded when it was made."""
        return [str(self._arrays[axis].attrs["digest"]) for axis in self.axis_names]

    def check_directions(self) -> list[str]:
        """Directions whose tensors are not those whose digest was recorded with their axis."""
        tensors = self.directions() or []
        pairs = zip(self.axis_names, tensors, strict=False)
        return [
            f"directions of {axis}: another digest than recorded"
            for axis, state in pairs
            if direction_digest(state) != self._arrays[axis].attrs["digest"]
        ]

    def repair_constants(self, grid: Grid, directions: Sequence[State], path: PathPlan | None) -> None:
        """Write coordinates, directions and path places anew, where one of them was damaged."""
        for axis, coordinates in zip(grid.names, grid.coordinates, strict=True):
            self._arrays[axis][:] = coordinates
        array = self._arrays["directions"]
        for k, direction in enumerate(directions):
            if array.attrs["stored"][k]:
                array[k] = flatten(direction, array.attrs["layout"])
        if path is not None:
            for k, axis in enumerate(grid.names):
                self._arrays[f"path_{axis}"][:] = path.coordinates[:, k]
            self._arrays["path_step"][:] = np.array(path.step, np.int64)
            self._arrays["path_distance"][:] = path.distance
        sync(self._flush())

    # -- reading ----------------------------------------------------------------------------------------------

    def read_surface(self) -> Surface:
        """All values as a `Surface`; damaged chunks read as not computed.

        Raises:
            LandscapeError: the coordinates themselves are damaged.
        """
        # The status first: what it promises was there before it, also when a driver writes meanwhile.
        status = self._read_checked("status").values.astype(np.uint8)
        committed = self._tiles_where(status != NOT_COMPUTED)
        arrays = {name: self._read_checked(name, committed) for name in _with_stderr(self.observables)}
        for found in arrays.values():
            for _, index in found.damaged:
                status[self.tile(index).windows] = NOT_COMPUTED
        # A tile whose status is not written yet is not committed, whatever its chunks hold.
        observables = {name: np.where(status == NOT_COMPUTED, np.nan, found.values) for name, found in arrays.items()}
        grid = self.grid()
        if grid is None:
            raise LandscapeError(
                f"landscape {self.name!r}: its coordinates are damaged on disk; give the command that computed it "
                "again, which mends them"
            )
        axes = tuple(
            Axis(axis, coordinates, dict(self._arrays[axis].attrs))
            for axis, coordinates in zip(grid.names, grid.coordinates, strict=True)
        )
        return Surface(self.name, axes, observables, status, self._read_path(), dict(self.attributes))

    def _read_path(self) -> Path | None:
        plan = self.path_plan()
        if plan is None:
            return None
        values = {name: self._read_checked(f"path_{name}").values for name in ("status", "loss", "projected_loss")}
        coordinates = {axis: plan.coordinates[:, k] for k, axis in enumerate(self.axis_names)}
        steps = np.array(plan.step, np.int64)
        return Path(
            plan.unit, steps, coordinates, values["loss"], values["projected_loss"], plan.distance, values["status"]
        )


@dataclass(frozen=True)
class Examination:
    """What a landscape lacks: tiles and stretches of the path to compute, and the chunks found damaged."""

    missing: frozenset[Index]
    path_missing: tuple[slice, ...]
    damaged: tuple[tuple[str, Index], ...]

    @property
    def complete(self) -> bool:
        return not self.missing and not self.path_missing


@dataclass(frozen=True)
class _Checked:
    values: NDArray[Any]
    damaged: list[tuple[str, Index]]


def status_of(loss: NDArray[np.float64]) -> NDArray[np.uint8]:
    """1 where the loss is finite, 2 where it is NaN or infinite."""
    return np.where(np.isfinite(loss), OK, NOT_FINITE).astype(np.uint8)


def _chunks_where(mask: NDArray[np.bool_], chunks: Sequence[int]) -> set[Index]:
    """The indices of the chunks in which `mask` holds anywhere."""
    places = np.argwhere(mask) // np.asarray(chunks)
    return set(map(tuple, np.unique(places, axis=0).tolist())) if len(places) else set()


async def _listed(store: LocalStore, prefix: str) -> list[str]:
    # Files with other names are leftovers of a write that was cut off.
    return [key async for key in store.list_prefix(prefix) if key[len(prefix) :].replace("/", "").isdigit()]


def _with_stderr(observables: Sequence[str]) -> Iterator[str]:
    for name in observables:
        yield name
        yield f"{name}_stderr"


def _make(group: zarr.Group, name: str, data: NDArray[Any], dimensions: tuple[str, ...], **options: Any) -> None:
    group.create_array(
        name, data=data, chunks=tuple(max(1, n) for n in data.shape), compressors=[Crc32cCodec()],
        dimension_names=dimensions, config={"write_empty_chunks": True}, **options,
    )  # fmt: skip


def _make_empty(
    group: zarr.Group, name: str, dtype: Any, fill: float, shape: Index, chunks: Index, dimensions: tuple[str, ...]
) -> None:
    # Without write_empty_chunks a tile of nothing but NaN would leave no trace.
    group.create_array(
        name, shape=shape, chunks=chunks, dtype=dtype, fill_value=fill, dimension_names=dimensions,
        compressors=[ZstdCodec(level=1), Crc32cCodec()], config={"write_empty_chunks": True},
    )  # fmt: skip


def _make_directions(
    group: zarr.Group,
    directions: Sequence[State],
    layout: Sequence[Mapping[str, Any]],
    axes: Sequence[Mapping[str, Any]],
) -> None:
    size = sum(int(np.prod(place["shape"], dtype=np.int64)) for place in layout)
    fits = 4 * size * len(directions) <= DIRECTION_BYTES
    stored = [fits or axis["kind"] != "random" for axis in axes]
    array = group.create_array(
        "directions", shape=(len(directions), size), chunks=(1, min(max(size, 1), DIRECTION_CHUNK)), dtype=np.float32,
        fill_value=0.0, compressors=[Crc32cCodec()], dimension_names=("axis", "parameter"),
        attributes={"layout": [dict(place) for place in layout], "stored": stored},
        config={"write_empty_chunks": True},
    )  # fmt: skip
    for k, direction in enumerate(directions):
        if stored[k]:
            array[k] = flatten(direction, layout)


def _make_path(group: zarr.Group, grid: Grid, path: PathPlan, tile_points: int) -> None:
    count, dimension = len(path.step), ("snapshot",)
    _make(group, "path_step", np.array(path.step, np.int64), dimension, attributes={"unit": path.unit})
    for k, axis in enumerate(grid.names):
        _make(group, f"path_{axis}", np.ascontiguousarray(path.coordinates[:, k]), dimension)
    _make(group, "path_distance", np.asarray(path.distance, np.float64), dimension)
    # A snapshot costs two evaluations, and its weights travel to the worker: few at a time.
    chunk = (max(1, min(count, tile_points // 2, 8)),)
    for name in ("path_loss", "path_projected_loss"):
        _make_empty(group, name, np.float64, np.nan, (count,), chunk, dimension)
    _make_empty(group, "path_status", np.uint8, 0, (count,), chunk, dimension)


def refuse_unwritable(run: str) -> None:
    """Raise before anything is computed where the run cannot be written.

    Raises:
        JobError: the folder, or the one it would be made in, does not exist or takes no files.
    """
    place = store_root(run).parent
    above = next(each for each in (place, *place.parents) if each.exists())
    if not above.is_dir():
        raise JobError(f"run: {str(above)!r} is a file, not a folder; name another run")
    if not os.access(above, os.W_OK | os.X_OK):
        raise JobError(f"run: no permission to write in {str(above)!r}; change its rights or name another run")


def write_error(run: str, error: OSError) -> LandscapeError:
    """A failed write as one line with its remedy."""
    return LandscapeError(
        f"run {run!r} cannot be written: {error.strerror or error}; what was committed is intact: "
        "make room or mend the rights, then give the same command again"
    )
