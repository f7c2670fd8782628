"""One landscape on disk: create it, commit whole tiles, find what is missing or damaged, read it.

A tile's observables are written and synced first and its `status` last, so a `status` other than 0 means that the
tile is there.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
import zarr
from numpy.typing import NDArray
from torch import Tensor
from zarr.abc.store import Store
from zarr.core.sync import sync

from landscape.errors import JobError, LandscapeError, NotFoundError, nearest, shown
from landscape.folders import Folder, Place, open_folder
from landscape.grid import Grid, Index, Tile, tile_at, tile_counts
from landscape.memory import free_bytes
from landscape.parameters import State, direction_digest, flatten, unflatten
from landscape.record import IdentityRecord, JobRecord, PlanRecord, Record
from landscape.store.attributes import ESSENTIAL, Essential, axis_attributes, missing_essentials
from landscape.store.chunks import Checked, Examination, chunks_where, status_of
from landscape.store.documents import (
    FOLDER,
    METADATA,
    Described,
    DescribedArray,
    Documents,
    Expected,
    unreadable,
)
from landscape.store.durable import DurableStore
from landscape.store.inspection import count_statuses, examine_tiles, indices_of, lowest
from landscape.store.layout import SCHEMA_VERSION, PathPlan, lay_out, with_stderr
from landscape.store.metadata import MOST_CHUNK_POINTS, StoredArray
from landscape.store.reading import ChunkReader
from landscape.store.runs import (
    describe,
    landscape_names,
    mark,
    open_zarr,
    refuse_outside,
    remove_half_made,
    survey_folder,
    unmark,
)
from landscape.store.writing import write_chunks, write_document
from landscape.surface import NOT_COMPUTED, OK, QUARANTINED, RISE_STDERR, Axis, ProjectedPath, Surface

T = TypeVar("T")
log = logging.getLogger("landscape")


async def _flush(store: Store) -> None:
    """Have what was written survive a power cut; an object that was put already does."""
    if isinstance(store, DurableStore):
        await store.flush()


def _over(tile: Tile, values: Mapping[str, NDArray[np.float64]], name: str) -> NDArray[np.float64]:
    """An array of values in the shape of its tile; the rise's error is not known where the origin was not evaluated."""
    return values[name].reshape(tile.shape) if name in values or name != RISE_STDERR else np.full(tile.shape, np.nan)


class LandscapeStore:
    """One landscape on disk. Made by `create`, or `open` for reading and going on."""

    def __init__(self, folder: Folder, store: Store, name: str, documents: Documents, described: Described) -> None:
        self.name, self._folder, self._store, self._documents = name, folder, store, documents
        self.record = described.record
        self._described = described
        self._found: dict[str, DescribedArray] = {}
        self.has_path = documents.has(name, "path_status")
        # Landscapes of version 0.1.0, which recorded no version of their defaults, have none; of others it may be lost.
        self._has_rise = documents.has(name, RISE_STDERR) or self.record.states("defaults")

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
        record: Record,
    ) -> LandscapeStore:
        """Lay out a landscape with nothing computed. A half-made one of a killed driver is replaced.

        Raises:
            LandscapeError: something else lies there.
            JobError: its tiles are too large.
        """
        folder, store = open_folder(run), open_zarr(run, read_only=False)
        if int(np.prod(tile_shape)) > MOST_CHUNK_POINTS:
            raise JobError(
                f"tile: must be at most {MOST_CHUNK_POINTS} points, not {shown(tile_shape)}; make it smaller"
            )
        folder.make()
        if isinstance(store, DurableStore):
            store.refuse_elsewhere(f"{name}/{METADATA}")
        remove_half_made(folder, name)
        documents = Documents(folder)
        if not documents.exists(""):
            write_document(store, METADATA, documents.group({}))
        mark(folder, name)
        group = zarr.create_group(store, path=name, zarr_format=3)
        lay_out(group, grid, tile_shape, observables, axes, directions, layout, path)
        sync(_flush(store))
        # Last, and in one write: without its attributes a landscape was never made.
        first = Record().changed(schema_version=SCHEMA_VERSION, name=name)
        whole = documents.group({**first.attributes, **record.attributes})
        write_document(store, f"{name}/{METADATA}", whole)
        sync(_flush(store))
        return cls.open(run, name, write=True)

    @classmethod
    def open(cls, run: Place, name: str, *, write: bool = False) -> LandscapeStore:
        """Open an existing landscape; a reader needs no lock, also while it is being written.

        Raises:
            NotFoundError: there is none of that name.
            LandscapeError: its metadata cannot be read.
            JobError: it was written by a newer version of this software.
        """
        found = cls.find(run, name, write=write)
        if found is None:
            known = nearest(name, landscape_names(run))
            raise NotFoundError(f"landscape {shown(name)} is not in run {shown(str(run), 300)}; {known}")
        return found

    @classmethod
    def find(cls, run: Place, name: str, *, write: bool = False) -> LandscapeStore | None:
        """The same; None where there is none of that name, or a half-made one.

        Args:
            write: for going on with it, under the run's lock: damaged metadata are mended.
        """
        refuse_outside(run, name)
        folder = open_folder(run)
        documents = Documents(folder)
        described = describe(folder, documents, name)
        if described is None:
            return None
        found = cls(folder, open_zarr(run, read_only=not write), name, documents, described)
        if write:
            found._mend()
        return found

    def _mend(self) -> None:
        """Write what was read from the root's copy in place of the damaged, and the copy where that is out of date."""
        unmark(self._folder, self.name)
        for problem in self.problems():
            if problem != self.refusal:  # which ends the job, and is told then
                log.warning("landscape %r: %s", self.name, problem)
        if self._described.mend:
            self.update_attributes()
        for name in self._array_names():
            found = self._describe(name)
            if found.problem:
                write_document(self._store, f"{self.name}/{name}/{METADATA}", self._documents.text(found.document))
        sync(self._flush())
        known = self._documents.copy.get(self.name)
        if not isinstance(known, dict) or not _same_landscape(known.get("attributes"), self.attributes):
            self.consolidate()

    @property
    def attributes(self) -> Mapping[str, Any]:
        """The record as the JSON values that are written."""
        return self.record.attributes

    def siblings(self) -> dict[str, Record]:
        """The records of the run's other landscapes, of those that can be read."""
        readable = survey_folder(self._folder).readable
        return {name: each.record for name, each in readable.items() if name != self.name}

    @property
    def refusal(self) -> str:
        """Why no job goes on with it although it is read, and what to do; empty where one does, and mends the rest."""
        missing = missing_essentials(self.record)
        return self._refusal(missing[0]) if missing else ""

    def _refusal(self, attribute: str) -> str:
        place = self._folder.place(f"{FOLDER}/{self.name}")
        return unreadable(self.name, f"{shown(f'{place}/{METADATA}', 300)}: {attribute}: is missing", place)

    @property
    def own_problems(self) -> tuple[str, ...]:
        """What is wrong with the landscape's own document, without those of its arrays."""
        return (*self._described.problems, *filter(None, [self.refusal]))

    def problems(self) -> list[str]:
        """What is wrong with the metadata and does not keep it from being read."""
        found = [self._describe(name).problem for name in self._array_names()]
        return [*self.own_problems, *filter(None, found)]

    @property
    def identity(self) -> IdentityRecord:
        """What decides the values.

        Raises:
            LandscapeError: the record lacks it, and with it what going on depends on; `plan` and `job` likewise.
        """
        return self._needed("identity", self.record.identity)

    @property
    def plan(self) -> PlanRecord:
        """How the landscape is computed."""
        return self._needed("plan", self.record.plan)

    @property
    def job(self) -> JobRecord:
        """The job that began the landscape."""
        return self._needed("job", self.record.job)

    def _needed(self, name: Essential, part: T | None) -> T:
        if part is None:
            raise LandscapeError(self._refusal(name))
        return part

    def _array_names(self) -> list[str]:
        """Every array that a landscape of these axes and observables has."""
        path = [*self._path_constants(), "path_status", "path_loss", "path_projected_loss"] if self.has_path else []
        return ["status", *self.value_names, *self.axis_names, "directions", *path]

    def _array(self, name: str) -> StoredArray:
        return self._describe(name).array

    def _describe(self, name: str) -> DescribedArray:
        if name not in self._found:
            self._found[name] = self._documents.array(self.name, name, *self._expectation(name))
        return self._found[name]

    def _expectation(self, name: str) -> tuple[Expected | None, tuple[str, ...] | None]:
        """The shape and chunks that an array must have, where others tell, and the axes."""
        if name == "status":
            return None, None
        if name in self.axis_names:
            size = (self.shape[-1 - self.axis_names.index(name)],)
            return Expected(size, size), self.axis_names
        if name in ("directions", "path_status"):
            return None, self.axis_names
        if name.startswith("path_") and self.has_path:
            path = self._array("path_status")
            whole = name in self._path_constants()
            return Expected(path.shape, path.shape if whole else path.chunks), self.axis_names
        return Expected(self.shape, self.tile_shape), self.axis_names

    # -- what it holds --------------------------------------------------------------------------------------

    @cached_property
    def shape(self) -> Index:
        return self._array("status").shape

    @cached_property
    def tile_shape(self) -> Index:
        return self._array("status").chunks

    @property
    def observables(self) -> tuple[str, ...]:
        return self.record.observables

    @property
    def value_names(self) -> tuple[str, ...]:
        """The arrays over the grid that hold values: each observable and its standard error, and that of the rise."""
        return (*with_stderr(self.observables), *([RISE_STDERR] if self._has_rise else []))

    @property
    def axis_names(self) -> tuple[str, ...]:
        return tuple(reversed(self._array("status").dimension_names))

    @property
    def tile_count(self) -> int:
        return int(np.prod(tile_counts(self.shape, self.tile_shape)))

    def tile(self, index: Index) -> Tile:
        return tile_at(index, self.shape, self.tile_shape)

    def grid(self) -> Grid | None:
        """The stored coordinates, or None where a chunk of them is damaged."""
        if self.check_constants(self.axis_names):
            return None
        return Grid(self.axis_names, tuple(self._values(axis) for axis in self.axis_names))

    @property
    def path_chunk(self) -> int:
        return self._array("path_status").chunks[0]

    def path_plan(self) -> PathPlan | None:
        """Where the snapshots lie, or None where there is no path or a chunk of it is damaged."""
        if not self.has_path or self.check_constants(self._path_constants()):
            return None
        coordinates = np.stack([self._values(f"path_{axis}") for axis in self.axis_names], axis=1)
        steps = tuple(int(step) for step in self._values("path_step"))
        unit = self._array("path_step").attributes.get("unit")
        return PathPlan("step" if unit == "step" else "epoch", steps, coordinates, self._values("path_distance"))

    def directions(self) -> list[dict[str, Tensor]] | None:
        """The stored directions, or None where one is kept as its seed alone or its chunk is damaged."""
        array = self._array("directions")
        # A chunk that is gone reads as zeros, a direction that goes nowhere; and first of all nothing large is made
        # for a shape that no bytes on the disk stand behind.
        if not all(array.attributes["stored"]) or not self._all_there("directions"):
            return None
        values, damaged, _ = self._reader("directions").whole()
        return None if damaged else [unflatten(row, array.attributes["layout"]) for row in values]

    # -- writing --------------------------------------------------------------------------------------------

    def write_tiles(self, tiles: Sequence[tuple[Tile, Mapping[str, NDArray[np.float64]]]]) -> None:
        """Commit whole tiles with two syncs in all: every observable of each, then the status of each.

        Args:
            tiles: each with `loss`, `loss_stderr`, … as flat arrays over its points in C order.
        """
        if not tiles:
            return
        names = self.value_names
        self._write([(name, tile.index, _over(tile, values, name)) for tile, values in tiles for name in names])
        self._write([("status", tile.index, status_of(values["loss"]).reshape(tile.shape)) for tile, values in tiles])

    def quarantine_tile(self, tile: Tile) -> None:
        """Mark a tile as given up; running the job again tries it anew."""
        self._write([(name, tile.index, np.full(tile.shape, np.nan)) for name in self.value_names])
        self._write([("status", tile.index, np.full(tile.shape, QUARANTINED, np.uint8))])

    def write_path(self, window: slice, loss: NDArray[np.float64], projected: NDArray[np.float64]) -> None:
        """Commit one chunk of the path, like a tile."""
        index = (window.start // self.path_chunk,)
        self._write([("path_loss", index, loss), ("path_projected_loss", index, projected)])
        self._write([("path_status", index, np.maximum(status_of(loss), status_of(projected)))])

    def quarantine_path(self, window: slice) -> None:
        index, count = (window.start // self.path_chunk,), window.stop - window.start
        self._write([(name, index, np.full(count, np.nan)) for name in ("path_loss", "path_projected_loss")])
        self._write([("path_status", index, np.full(count, QUARANTINED, np.uint8))])

    def _write(self, chunks: Sequence[tuple[str, Index, NDArray[Any]]]) -> None:
        """Write whole chunks; when this returns they are on the disk."""
        write_chunks(self._store, [(self._array(name), index, values) for name, index, values in chunks])
        sync(self._flush())

    async def _flush(self) -> None:
        await _flush(self._store)

    def update_attributes(self, **changes: Any) -> None:
        """Change some entries of the record and write it; the driver alone does."""
        self.record = self.record.changed(**changes)
        if isinstance(self._store, DurableStore):
            self._store.refuse_taken_away(self.name)
        write_document(self._store, f"{self.name}/{METADATA}", self._documents.group(self.attributes))

    def consolidate(self) -> None:
        """Copy all metadata of the run into the root's, which xarray reads at once and warns where it is not."""
        root = self._documents.root(self._folder.folders(FOLDER))
        write_document(self._store, METADATA, root)
        sync(self._flush())

    # -- what is missing, what is damaged --------------------------------------------------------------------

    def examine(self) -> Examination:
        """Read and check every chunk of the grid and the path, few of them in memory at once."""
        readers = {name: self._reader(name) for name in self.value_names}
        missing, damaged = examine_tiles(self._reader("status"), readers)
        path_missing, path_damaged = self._examine_path() if self.has_path else ([], [])
        return Examination(missing, tuple(path_missing), tuple(dict.fromkeys(damaged + path_damaged)))

    def counts(self) -> NDArray[np.int64]:
        """Evaluations by status 0 to 3: the points, and two per snapshot of the path; reads the status alone."""
        found = count_statuses(self._reader("status"))
        return found + 2 * count_statuses(self._reader("path_status")) if self.has_path else found

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
        return ChunkReader(self._store, self._array(name))

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
        count = self._array("path_status").shape[0]
        chunk = self.path_chunk
        return [slice(i * chunk, min((i + 1) * chunk, count)) for i in starts], damaged

    def _read_checked(self, name: str, expected: Set[Index] = frozenset()) -> Checked:
        """An array with its damaged chunks: those whose checksum fails, and those of `expected` that are absent."""
        values, damaged, there = self._reader(name).whole()
        absent = sorted(index for index in expected if not there[index])
        return Checked(values, [(name, index) for index in (*absent, *damaged)])

    def _values(self, name: str) -> NDArray[Any]:
        return self._reader(name).whole()[0]

    def _all_there(self, name: str) -> bool:
        there = self._reader(name).present()
        return all(there[index] for index in self._constant_chunks(name))

    def _tiles_where(self, mask: NDArray[np.bool_]) -> set[Index]:
        return chunks_where(mask, self.tile_shape)

    def check_constants(self, names: Sequence[str] | None = None) -> list[str]:
        """Those of the coordinate, direction and path arrays that do not read as they were written.

        Args:
            names: look at these only; the directions may be large.
        """
        constant = [*self.axis_names, "directions", *self._path_constants()] if names is None else names
        return [name for name in constant if any(self._reader(name).unsound(self._constant_chunks(name)))]

    def _path_constants(self) -> list[str]:
        places = [f"path_{axis}" for axis in self.axis_names]
        return [*places, "path_step", "path_distance"] if self.has_path else []

    def _constant_chunks(self, name: str) -> Iterator[Index]:
        """The chunks that an array written at creation must have; a direction kept as its seed has none."""
        array = self._array(name)
        chunks = itertools.product(*map(range, tile_counts(array.shape, array.chunks)))
        return (index for index in chunks if name != "directions" or array.attributes["stored"][index[0]])

    def direction_digests(self) -> list[str]:
        """The digest of each axis's direction, as recorded when it was made; empty where that is lost."""
        return [str(self._array(axis).attributes.get("digest", "")) for axis in self.axis_names]

    def check_directions(self) -> list[str]:
        """Directions whose tensors are not those whose digest was recorded with their axis."""
        tensors = self.directions() or []
        pairs = zip(self.axis_names, self.direction_digests(), tensors, strict=False)
        return [
            f"directions of {axis}: another digest than recorded"
            for axis, recorded, state in pairs
            if direction_digest(state) != recorded
        ]

    def repair_constants(self, grid: Grid, directions: Sequence[State], path: PathPlan | None) -> None:
        """Write coordinates, directions and path places anew, where one of them was damaged."""
        places = dict(zip(grid.names, grid.coordinates, strict=True))
        if path is not None:
            places |= {f"path_{axis}": path.coordinates[:, k] for k, axis in enumerate(grid.names)}
            places |= {"path_step": np.array(path.step, np.int64), "path_distance": path.distance}
        array = self._array("directions")
        for k, direction in enumerate(directions):
            if array.attributes["stored"][k]:
                flat, width = flatten(direction, array.attributes["layout"]), array.chunks[1]
                pieces = range(0, len(flat), width)
                self._write(
                    [("directions", (k, n), flat[start : start + width][None]) for n, start in enumerate(pieces)]
                )
        self._write([(name, (0,), np.asarray(values)) for name, values in places.items()])

    # -- reading ----------------------------------------------------------------------------------------------

    def read_surface(self) -> Surface:
        """All values as a `Surface`; damaged chunks read as not computed.

        Raises:
            LandscapeError: the coordinates themselves are damaged.
        """
        self._refuse_too_large()
        # The status first: what it promises was there before it, also when a driver writes meanwhile.
        states = self._read_checked("status")
        status = states.values.astype(np.uint8)
        committed = self._tiles_where(status != NOT_COMPUTED)
        arrays = {name: self._read_checked(name, committed) for name in self.value_names}
        for found in arrays.values():
            for _, index in found.damaged:
                status[self.tile(index).windows] = NOT_COMPUTED
        self._tell_of_damage([*states.damaged, *(each for found in arrays.values() for each in found.damaged)])
        # A tile whose status is not written yet is not committed, whatever its chunks hold.
        observables = {name: np.where(status == NOT_COMPUTED, np.nan, found.values) for name, found in arrays.items()}
        grid = self.grid()
        if grid is None:
            raise LandscapeError(
                f"landscape {shown(self.name)}: its coordinates are damaged on disk; give the command that computed it "
                "again, which mends them"
            )
        axes = tuple(
            Axis(axis, coordinates, axis_attributes(self._array(axis).attributes))
            for axis, coordinates in zip(grid.names, grid.coordinates, strict=True)
        )
        return Surface(self.name, axes, observables, status, self._read_path(), dict(self.attributes))

    def _tell_of_damage(self, damaged: Sequence[tuple[str, Index]]) -> None:
        if damaged:
            array, index = damaged[0]
            more = f" and {len(damaged) - 1} more" if len(damaged) > 1 else ""
            log.warning(
                "landscape %r: %s chunk %s%s cannot be read: its points are shown as not computed; "
                "running the job again mends them", self.name, array, "/".join(map(str, index)), more,
            )  # fmt: skip

    def _refuse_too_large(self) -> None:
        """Refuse by the metadata alone what this machine's memory does not hold: they may promise anything."""
        points, values = int(np.prod(self.shape)), len(self.value_names)
        needed, free = points * (2 * 8 * values + 8), free_bytes(torch.device("cpu"))
        if needed > free:
            raise LandscapeError(
                f"landscape {shown(self.name)}: its {points} points need {needed / 2**30:.3g} GiB of memory, of which "
                f"{free / 2**30:.3g} GiB are free; read it on a larger machine, or by parts with zarr or xarray"
            )

    def _read_path(self) -> ProjectedPath | None:
        plan = self.path_plan()
        if plan is None:
            return None
        values = {name: self._read_checked(f"path_{name}").values for name in ("status", "loss", "projected_loss")}
        coordinates = {axis: plan.coordinates[:, k] for k, axis in enumerate(self.axis_names)}
        steps = np.array(plan.step, np.int64)
        return ProjectedPath(
            plan.unit, steps, coordinates, values["loss"], values["projected_loss"], plan.distance, values["status"]
        )


def _same_landscape(one: Any, other: Mapping[str, Any]) -> bool:
    """Whether two records are of one landscape, whatever its progress."""
    return isinstance(one, dict) and all(one.get(each) == other.get(each) for each in ESSENTIAL)
