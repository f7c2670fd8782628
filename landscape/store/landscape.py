"""One landscape on disk: create it, commit whole tiles, find what is missing or damaged, read it.

A tile's observables are written and synced first and its `status` last, so a `status` other than 0 means that the
tile is there.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Mapping, Sequence, Set
from functools import cached_property
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from torch import Tensor
from zarr.abc.store import Store
from zarr.core.sync import sync

from landscape.errors import JobError, LandscapeError, NotFoundError, nearest, shown
from landscape.evaluation import RISE_STDERR
from landscape.folders import Folder, Place, open_folder
from landscape.grid import Grid, Index, Tile, tile_at, tile_counts
from landscape.parameters import State, direction_digest, flatten, unflatten
from landscape.store.chunks import Checked, Examination, chunks_where, listed, status_of
from landscape.store.durable import DurableStore
from landscape.store.inspection import count_statuses, examine_tiles, indices_of, lowest
from landscape.store.layout import SCHEMA_VERSION, PathPlan, lay_out, with_stderr
from landscape.store.reading import ChunkReader
from landscape.store.runs import METADATA, is_complete, landscape_names, open_zarr, remove_half_made
from landscape.store.writing import write_chunks
from landscape.surface import NOT_COMPUTED, OK, QUARANTINED, Axis, Path, Surface


class _Arrays(dict[str, Any]):
    """The arrays of a group by their known names, each opened when it is first needed.

    Listing the group instead would stumble over the temporary files of a writer beside us.
    """

    def __init__(self, group: zarr.Group) -> None:
        super().__init__()
        self._group = group

    def __missing__(self, name: str) -> Any:
        # The setting is not stored with an array: opened without it, a tile of nothing but NaN leaves no trace.
        self[name] = self._group[name].with_config({"write_empty_chunks": True})  # type: ignore[union-attr]
        return self[name]


async def _flush(store: Store) -> None:
    """Have what was written survive a power cut; an object that was put already does."""
    if isinstance(store, DurableStore):
        await store.flush()


def _over(tile: Tile, values: Mapping[str, NDArray[np.float64]], name: str) -> NDArray[np.float64]:
    """An array of values in the shape of its tile; the rise's error is not known where the origin was not evaluated."""
    return values[name].reshape(tile.shape) if name in values or name != RISE_STDERR else np.full(tile.shape, np.nan)


class LandscapeStore:
    """One landscape on disk. Made by `create`, or `open` for reading and going on."""

    def __init__(self, folder: Folder, store: Store, name: str, group: zarr.Group) -> None:
        self.name, self._folder, self._store, self._group = name, folder, store, group
        self.attributes: dict[str, Any] = dict(group.attrs)
        self._arrays: dict[str, Any] = _Arrays(group)
        self.has_path = "path_status" in group
        self._has_rise = RISE_STDERR in group  # landscapes of version 0.1.0 have none

    # -- making and opening ---------------------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        run: Place,
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
        open_folder(run).make()
        store = open_zarr(run, read_only=False)
        if not sync(store.exists(METADATA)):
            zarr.open_group(store, mode="a", zarr_format=3)
        remove_half_made(run, name)
        group = zarr.open_group(store, path=name, mode="a", zarr_format=3)
        lay_out(group, grid, tile_shape, observables, axes, directions, layout, path)
        sync(_flush(store))
        # Last, and in one write, which `attrs.update` is not: without its attributes a landscape was never made.
        group.update_attributes({"schema_version": SCHEMA_VERSION, "name": name, **attributes})
        sync(_flush(store))
        found = cls.open(run, name, write=True)
        found.consolidate()
        return found

    @classmethod
    def open(cls, run: Place, name: str, *, write: bool = False) -> LandscapeStore:
        """Open an existing landscape; a reader needs no lock, also while it is being written.

        Raises:
            NotFoundError: there is none of that name.
            JobError: it was written by a newer version of this software.
        """
        if not is_complete(run, name):
            raise NotFoundError(
                f"landscape {shown(name)} is not in run {shown(run)}; {nearest(name, landscape_names(run))}"
            )
        store = open_zarr(run, read_only=not write)
        found = cls(open_folder(run), store, name, zarr.open_group(store, path=name, mode="r+" if write else "r"))
        version = found.attributes["schema_version"]
        if not isinstance(version, int) or version > SCHEMA_VERSION:
            raise JobError(
                f"landscape {shown(name)} has schema version {version}, this software reads up to {SCHEMA_VERSION}; "
                "update it, or use another run"
            )
        return found

    # -- what it holds --------------------------------------------------------------------------------------

    @cached_property
    def shape(self) -> Index:
        return tuple(self._arrays["status"].shape)

    @cached_property
    def tile_shape(self) -> Index:
        return tuple(self._arrays["status"].chunks)

    @property
    def observables(self) -> tuple[str, ...]:
        return tuple(self.attributes["observables"])

    @property
    def value_names(self) -> tuple[str, ...]:
        """The arrays over the grid that hold values: each observable and its standard error, and that of the rise."""
        return (*with_stderr(self.observables), *([RISE_STDERR] if self._has_rise else []))

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
        self.write_tiles([(tile, values)])

    def write_tiles(self, tiles: Sequence[tuple[Tile, Mapping[str, NDArray[np.float64]]]]) -> None:
        """Commit several whole tiles with two syncs in all: every observable of each, then the status of each."""
        if not tiles:
            return
        names = self.value_names
        self._write([(name, tile.index, _over(tile, values, name)) for tile, values in tiles for name in names])
        self._write_status(
            [("status", tile.index, status_of(values["loss"]).reshape(tile.shape)) for tile, values in tiles]
        )

    def quarantine_tile(self, tile: Tile) -> None:
        """Mark a tile as given up; running the job again tries it anew."""
        self._write([(name, tile.index, np.full(tile.shape, np.nan)) for name in self.value_names])
        self._write_status([("status", tile.index, np.full(tile.shape, QUARANTINED, np.uint8))])

    def write_path(self, window: slice, loss: NDArray[np.float64], projected: NDArray[np.float64]) -> None:
        """Commit one chunk of the path, like a tile."""
        index = (window.start // self.path_chunk,)
        self._write([("path_loss", index, loss), ("path_projected_loss", index, projected)])
        self._write_status([("path_status", index, np.maximum(status_of(loss), status_of(projected)))])

    def quarantine_path(self, window: slice) -> None:
        index, count = (window.start // self.path_chunk,), window.stop - window.start
        self._write([(name, index, np.full(count, np.nan)) for name in ("path_loss", "path_projected_loss")])
        self._write_status([("path_status", index, np.full(count, QUARANTINED, np.uint8))])

    def _write_status(self, chunks: Sequence[tuple[str, Index, NDArray[np.uint8]]]) -> None:
        self._write(chunks)

    def _write(self, chunks: Sequence[tuple[str, Index, NDArray[Any]]]) -> None:
        """Write whole chunks; when this returns they are on the disk."""
        write_chunks(self._store, [(self._arrays[name], index, values) for name, index, values in chunks])
        sync(self._flush())

    async def _flush(self) -> None:
        await _flush(self._store)

    def update_attributes(self, **changes: Any) -> None:
        """Replace some of the group's attributes; the driver alone writes them."""
        self.attributes.update(changes)
        self._group.update_attributes(changes)

    def consolidate(self) -> None:
        """Copy all metadata of the run into the root's, which xarray reads at once and warns where it is not."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # "not part of the Zarr format 3 specification"
            zarr.consolidate_metadata(self._store)
        sync(self._flush())

    # -- what is missing, what is damaged --------------------------------------------------------------------

    def examine(self) -> Examination:
        """Read and check every chunk of the grid and the path, few of them in memory at once."""
        readers = {name: self._reader(name) for name in self.value_names}
        missing, damaged = examine_tiles(self._reader("status"), readers)
        path_missing, path_damaged = self._examine_path() if self.has_path else ([], [])
        return Examination(missing, tuple(path_missing), tuple(dict.fromkeys(damaged + path_damaged)))

    def counts(self) -> NDArray[np.int64]:
        """Points by status 0 to 3, the snapshots of the path among them; reads the status alone."""
        found = count_statuses(self._reader("status"))
        return found + count_statuses(self._reader("path_status")) if self.has_path else found

    def minimum(self) -> dict[str, float]:
        """The lowest loss and its coordinates; empty where there is none, or where the coordinates are damaged."""
        best, grid = lowest(self._reader("status"), self._reader("loss")), self.grid()
        if best is None or grid is None:
            return {}
        value, index = best
        places = zip(grid.names, grid.coordinates, reversed(index), strict=True)
        return {"loss": value, **{name: float(axis[i]) for name, axis, i in places}}

    def computed_point(self, usable: Callable[[Index], bool]) -> tuple[Index, dict[str, float]] | None:
        """The index and the values of a point that is computed, off the origin; None where there is none.

        Args:
            usable: whether the point may be of the tile with this index.
        """
        grid, status = self.grid(), self._reader("status")
        if grid is None:
            return None
        for tile, values, _ in status.read(filter(usable, indices_of(status.present()))):
            start = self.tile(tile).start
            for place in np.argwhere(values == OK) if values is not None else ():
                index = tuple(int(a + b) for a, b in zip(start, place, strict=True))
                if any(axis[i] for axis, i in zip(grid.coordinates, reversed(index), strict=True)):
                    found = self._values_at(tile, tuple(place))
                    if found:
                        return index, found
        return None

    def _values_at(self, tile: Index, place: tuple[int, ...]) -> dict[str, float]:
        """Of one point of a tile; empty where a chunk of it is damaged."""
        names = tuple(with_stderr(self.observables))
        chunks = {name: values for name in names for _, values, _ in self._reader(name).read([tile])}
        if any(values is None for values in chunks.values()):
            return {}
        return {name: float(values[place]) for name, values in chunks.items() if values is not None}

    def _reader(self, name: str) -> ChunkReader:
        return ChunkReader(self._store, self._arrays[name])

    def _examine_path(self) -> tuple[list[slice], list[tuple[str, Index]]]:
        damaged: list[tuple[str, Index]] = []
        status = self._read_checked("path_status")
        missing = {
            int(i) // self.path_chunk for i in np.flatnonzero(np.isin(status.values, (NOT_COMPUTED, QUARANTINED)))
        }
        committed = chunks_where(status.values != NOT_COMPUTED, (self.path_chunk,))
        for name in ("path_loss", "path_projected_loss"):
            damaged += self._read_checked(name, committed).damaged
        damaged += status.damaged
        starts = sorted(missing | {index[0] for _, index in damaged})
        count = self._arrays["path_status"].shape[0]
        chunk = self.path_chunk
        return [slice(i * chunk, min((i + 1) * chunk, count)) for i in starts], damaged

    def _read_checked(self, name: str, expected: Set[Index] = frozenset()) -> Checked:
        """An array with its damaged chunks: those whose checksum fails, and those of `expected` that are absent."""
        array = self._arrays[name]
        absent = self._absent_chunks(name, expected)
        try:
            return Checked(array[...], [(name, index) for index in absent])
        except (ValueError, OSError):
            values = np.full(array.shape, array.fill_value, array.dtype)
        damaged = [(name, index) for index in absent]
        for index in itertools.product(*map(range, tile_counts(array.shape, array.chunks))):
            windows = tile_at(index, array.shape, array.chunks).windows
            try:
                values[windows] = array[windows]
            except (ValueError, OSError):
                damaged.append((name, index))
        return Checked(values, damaged)

    def _absent_chunks(self, name: str, expected: Set[Index]) -> list[Index]:
        if not expected:
            return []
        prefix = f"{self.name}/{name}/c/"
        there = {tuple(map(int, key[len(prefix) :].split("/"))) for key in sync(listed(self._store, prefix))}
        return sorted(expected - there)

    def _tiles_where(self, mask: NDArray[np.bool_]) -> set[Index]:
        return chunks_where(mask, self.tile_shape)

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
        arrays = {name: self._read_checked(name, committed) for name in self.value_names}
        for found in arrays.values():
            for _, index in found.damaged:
                status[self.tile(index).windows] = NOT_COMPUTED
        # A tile whose status is not written yet is not committed, whatever its chunks hold.
        observables = {name: np.where(status == NOT_COMPUTED, np.nan, found.values) for name, found in arrays.items()}
        grid = self.grid()
        if grid is None:
            raise LandscapeError(
                f"landscape {shown(self.name)}: its coordinates are damaged on disk; give the command that computed it "
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
