"""One landscape on disk: made, opened, committed to tile by tile, examined and read."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.abc.store import Store

from landscape.core.errors import JobError, LandscapeError, NotFoundError, nearest, quoted
from landscape.core.files import Folder, Place
from landscape.core.folders import open_folder
from landscape.core.grid import Floats, Grid, Index, Tile
from landscape.core.system import free_host_bytes
from landscape.store import commit, examination, runs
from landscape.store.arrays import Examination, LandscapeArrays, chunks_where, sample_index, stored_losses
from landscape.store.chunk_io import DurableStore, write_document
from landscape.store.commit import finish_move, flush, mend_arrays, write_root
from landscape.store.documents import (
    FOLDER,
    LEVELS,
    METADATA,
    Documents,
    LandscapeSummary,
    axis_attributes,
    is_same,
    missing_essentials,
    resume_refusal,
)
from landscape.store.examination import stored_directions, stored_path
from landscape.store.format import MOST_CHUNK_POINTS, NETWORK, SCHEMA_VERSION, NewArrays, PathPlan, lay_out
from landscape.store.runs import at_level, mark, open_zarr, remove_half_made
from landscape.surface.derived import derive
from landscape.surface.record import Record
from landscape.surface.record_parts import IdentityRecord, JobRecord, PlanRecord
from landscape.surface.surface import MOMENT_PARTS, NOT_COMPUTED, Axis, ProjectedPath, Surface

if TYPE_CHECKING:
    from torch import Tensor

    from landscape.model.parameters import State


# ----------------------------------------------------------------------------------------------------
# A new landscape on disk, with nothing computed.


def create_landscape(run: Place, name: str, new: NewArrays, record: Record) -> None:
    """Lay out a landscape, or the level that its record names, with nothing computed.

    One that a killed driver left half made is replaced.

    Raises:
        LandscapeError: something else lies there.
        JobError: its tiles are too large.
    """
    folder, store = open_folder(run), open_zarr(run, read_only=False)
    most = MOST_CHUNK_POINTS // max(1, MOMENT_PARTS * len(new.moment_rows), new.kept_samples)
    if int(np.prod(new.tile_shape)) > most:
        raise JobError(f"tile: must be at most {most} points, not {quoted(new.tile_shape)}; make it smaller")
    folder.make()
    finish_move(folder)
    path = name if record.level is None else at_level(name, record.level.number)
    if isinstance(store, DurableStore):
        store.refuse_elsewhere(f"{path}/{METADATA}")
    remove_half_made(folder, path)
    documents = Documents(folder)
    for group_above in [""] if record.level is None else ["", f"{name}/{LEVELS}"]:
        if not documents.exists(group_above):
            write_document(store, f"{group_above}/{METADATA}".lstrip("/"), documents.group({}))
    mark(folder, path)
    group = zarr.create_group(store, path=path, zarr_format=3)
    lay_out(group, new, of_level=record.level is not None)
    flush(store)
    # Last, and in one write: without its attributes a landscape was never made.
    first = Record().changed(schema_version=SCHEMA_VERSION, name=name)
    write_document(store, f"{path}/{METADATA}", documents.group({**first.attributes, **record.attributes}))
    flush(store)


# ----------------------------------------------------------------------------------------------------
# A whole landscape read into a `Surface`.

log = logging.getLogger("landscape")


def read_surface(arrays: LandscapeArrays, record: Record) -> Surface:
    """All values of a landscape; damaged chunks read as not computed.

    Raises:
        LandscapeError: the coordinates themselves are damaged, or the values need more memory than is free.
    """
    _refuse_too_large(arrays)
    # The status is read first: values are written before their status, also by a driver that writes meanwhile.
    states = arrays.read_checked("status")
    status = states.values.astype(np.uint8)
    committed = chunks_where(status != NOT_COMPUTED, arrays.tile_shape)
    values = {name: arrays.read_checked(name, committed) for name in arrays.value_names}
    for array in values.values():
        for _, index in array.damaged:
            status[arrays.tile(index).windows] = NOT_COMPUTED
    _warn_of_damage(arrays.name, [*states.damaged, *(chunk for array in values.values() for chunk in array.damaged)])
    # A tile whose status is not written yet is not committed, whatever its chunks hold.
    observables = {name: np.where(status == NOT_COMPUTED, np.nan, array.values) for name, array in values.items()}
    observables |= derive(record.derived, observables)
    path, networks = read_path(arrays)
    return Surface(
        arrays.name, read_axes(arrays), observables, status, path, dict(record.attributes),
        stored_losses(arrays), sample_index(arrays), networks=networks,
    )  # fmt: skip


def read_axes(arrays: LandscapeArrays) -> tuple[Axis, ...]:
    """The axes of a landscape with their coordinates and attributes.

    Raises:
        LandscapeError: the coordinates are damaged.
    """
    grid = arrays.grid()
    if grid is None:
        raise LandscapeError(
            f"landscape {quoted(arrays.name)}: its coordinates are damaged on disk; give the command that computed it "
            "again, which mends them"
        )
    return tuple(
        Axis(axis, coordinates, axis_attributes(arrays[axis].attributes))
        for axis, coordinates in zip(grid.names, grid.coordinates, strict=True)
    )


def read_path(arrays: LandscapeArrays) -> tuple[ProjectedPath | None, ProjectedPath | None]:
    """The path of a landscape and the networks of a plane; None where it has none, or their places are damaged."""
    plan = stored_path(arrays)
    if plan is None:
        return None, None
    values = {name: arrays.read_checked(f"path_{name}").values for name in ("status", "loss", "projected_loss")}
    coordinates = {axis: plan.coordinates[:, k] for k, axis in enumerate(arrays.axis_names)}
    steps = np.array(plan.step, np.int64)
    run = np.array(plan.run, np.int64) if plan.runs else None
    found = ProjectedPath(
        plan.unit, steps, coordinates, values["loss"], values["projected_loss"], plan.distance, values["status"],
        run, plan.runs,
    )  # fmt: skip
    networks = next((part for part in found.parts() if part.unit == NETWORK), None)
    return found.without(NETWORK), networks


def _warn_of_damage(name: str, damaged: Sequence[tuple[str, Index]]) -> None:
    if damaged:
        array, index = damaged[0]
        more = f" and {len(damaged) - 1} more" if len(damaged) > 1 else ""
        log.warning(
            "landscape %r: %s chunk %s%s cannot be read: its points are shown as not computed; "
            "running the job again mends them", name, array, "/".join(map(str, index)), more,
        )  # fmt: skip


def _refuse_too_large(arrays: LandscapeArrays) -> None:
    """Refuse, by the metadata alone, what does not fit the memory: metadata may promise anything."""
    points, values = int(np.prod(arrays.shape)), len(arrays.value_names)
    needed, free = points * (2 * 8 * values + 8), free_host_bytes()
    if needed > free:
        raise LandscapeError(
            f"landscape {quoted(arrays.name)}: its {points} points need {needed / 2**30:.3g} GiB of memory, of which "
            f"{free / 2**30:.3g} GiB are free; read it on a larger machine, or by parts with zarr or xarray"
        )


# ----------------------------------------------------------------------------------------------------

T = TypeVar("T")


class LandscapeStore:
    """One landscape on disk. Made by `create`, or `open` for reading and going on."""

    def __init__(
        self, folder: Folder, store: Store, name: str, documents: Documents, described: LandscapeSummary, level: int = 0
    ) -> None:
        self.name, self.level, self._folder, self._store, self._documents = name, level, folder, store, documents
        self.record, self._described = described.record, described
        self.path = runs.at_level(described.path or name, level)
        self.arrays = LandscapeArrays(name, store, documents, described.record, self.path)

    # -- making and opening ---------------------------------------------------------------------------------

    @classmethod
    def create(cls, run: Place, name: str, new: NewArrays, record: Record) -> LandscapeStore:
        """Make a landscape with nothing computed, as `creation.create_landscape` does, and open it for writing."""
        create_landscape(run, name, new, record)
        return cls.open(run, name, write=True, level=record.level.number if record.level else 0)

    @classmethod
    def open(cls, run: Place, name: str, *, write: bool = False, level: int = 0) -> LandscapeStore:
        """Open an existing landscape, or a level of it; a reader needs no lock, also while it is being written.

        Raises:
            NotFoundError: there is none of that name.
            LandscapeError: its metadata cannot be read.
            JobError: it was written by a newer version of this software.
        """
        store = cls.find(run, name, write=write, level=level)
        if store is None:
            known = nearest(name, runs.landscape_names(run))
            raise NotFoundError(f"landscape {quoted(name)} is not in run {quoted(str(run), 300)}; {known}")
        return store

    @classmethod
    def find(cls, run: Place, name: str, *, write: bool = False, level: int = 0) -> LandscapeStore | None:
        """Open an existing landscape; None where there is none of that name, or a half-made one.

        Args:
            write: open it for going on, under the run's lock; damaged metadata are then mended.
            level: of its refinement; 0 for the landscape itself.
        """
        runs.refuse_outside(run, name)
        folder = open_folder(run)
        if write:
            finish_move(folder)
        documents = Documents(folder)
        described = runs.describe(folder, documents, name, level)
        if described is None:
            return None
        store = cls(folder, runs.open_zarr(run, read_only=not write), name, documents, described, level)
        if write:
            store._mend()
        return store

    def _mend(self) -> None:
        """Replace damaged documents by their copies in the root, and bring these copies up to date."""
        runs.unmark(self._folder, self.path)
        for problem in self.problems():
            if problem != self.refusal:  # which ends the job as an error
                log.warning("landscape %r: %s", self.name, problem)
        if self._described.mend:
            self.update_attributes()
        mend_arrays(self.arrays, self.path, self._store, self._documents)
        known = self._documents.copy.get(self.path)
        if not isinstance(known, dict) or not is_same(known.get("attributes"), dict(self.attributes)):
            self.consolidate()

    # -- what it records ------------------------------------------------------------------------------------

    @property
    def attributes(self) -> Mapping[str, Any]:
        """The record as the JSON values that are written."""
        return self.record.attributes

    @property
    def identity(self) -> IdentityRecord:
        """What decides the values.

        Raises:
            LandscapeError: the record lacks it, so that no job can resume; so of `plan` and `job`.
        """
        return self._needed(self.record.identity)

    @property
    def plan(self) -> PlanRecord:
        """How the landscape is computed."""
        return self._needed(self.record.plan)

    @property
    def job(self) -> JobRecord:
        """The job that began the landscape."""
        return self._needed(self.record.job)

    def _needed(self, part: T | None) -> T:
        if part is None:
            raise (JobError if self.record.is_imported else LandscapeError)(self.refusal)
        return part

    def siblings(self) -> dict[str, Record]:
        """The records of the run's other landscapes that can be read, by name."""
        found = runs.survey_folder(self._folder).readable.items()
        return {name: each.record for name, each in found if name != self.name}

    @property
    def refusal(self) -> str:
        """Why no job can resume this landscape, and the remedy; empty where one can."""
        missing = next(iter(missing_essentials(self.record)), None)
        place = self._folder.place(f"{FOLDER}/{self.path}")
        return resume_refusal(self.name, self.record, missing, place) if missing else ""

    @property
    def own_problems(self) -> tuple[str, ...]:
        """What is wrong with the document of the landscape itself, a sentence each."""
        return (*self._described.problems, *filter(None, [self.refusal if not self.record.is_imported else ""]))

    def problems(self) -> list[str]:
        """What is wrong with its metadata although it can be read, a sentence each."""
        of_arrays = [self.arrays.describe(name).problem for name in self.arrays.names]
        return [*self.own_problems, *filter(None, of_arrays)]

    def update_attributes(self, **changes: Any) -> None:
        """Change fields of the record, given as values or JSON values, and write its document. Only the driver may."""
        self.record = self.record.changed(**changes)
        self.arrays.level = self.record.level
        if isinstance(self._store, DurableStore):
            self._store.refuse_taken_away(self.path)
        write_document(self._store, f"{self.path}/{METADATA}", self._documents.group(self.attributes))

    def consolidate(self) -> None:
        """Copy all metadata of the run into the root's document, which xarray reads at once."""
        write_root(self._folder, self._documents)

    # -- what it is made of ---------------------------------------------------------------------------------

    @property
    def shape(self) -> Index:
        """Points per dimension, the last axis first."""
        return self.arrays.shape

    @property
    def tile_shape(self) -> Index:
        """Points per dimension of a tile; those at the grid's end are cut off."""
        return self.arrays.tile_shape

    @property
    def tile_count(self) -> int:
        """How many tiles it has; of a level, how many it holds."""
        return self.arrays.tile_count

    def levels(self) -> list[LandscapeStore]:
        """The levels of its refinement, opened for reading, the coarsest first, up to one that is half made."""
        found: list[LandscapeStore] = []
        for number in [] if self.level else self._documents.levels(self.path):
            if (level := LandscapeStore.find(self._folder, self.name, level=number)) is None:
                break
            found.append(level)
        return found

    @property
    def observables(self) -> tuple[str, ...]:
        """The names of the observables, without their standard errors."""
        return self.arrays.observables

    @property
    def has_path(self) -> bool:
        """Whether a trajectory is drawn on it."""
        return self.arrays.has_path

    @property
    def path_chunk(self) -> int:
        """Snapshots per chunk of the path."""
        return self.arrays.path_chunk

    def tile(self, index: Index) -> Tile:
        """The tile with this index."""
        return self.arrays.tile(index)

    def grid(self) -> Grid | None:
        """The stored coordinates, or None where a chunk of them is damaged."""
        return self.arrays.grid()

    def path_plan(self) -> PathPlan | None:
        """The places of the snapshots; None where there is no path or a chunk of it is damaged."""
        return stored_path(self.arrays)

    def directions(self) -> list[dict[str, Tensor]] | None:
        """The stored directions, or None where one is kept as its seed alone or its chunk is damaged."""
        return stored_directions(self.arrays)

    def direction_digests(self) -> list[str]:
        """The recorded digest of each axis's direction; empty where that is lost."""
        return self.arrays.direction_digests()

    # -- writing --------------------------------------------------------------------------------------------

    def write_tiles(self, tiles: Sequence[tuple[Tile, Mapping[str, Floats]]]) -> None:
        """Commit whole tiles with two syncs in all, as `commit.write_tiles` does."""
        commit.write_tiles(self.arrays, tiles)

    def quarantine_tile(self, tile: Tile) -> None:
        """Mark a tile as given up; running the job again tries it anew."""
        commit.quarantine_tile(self.arrays, tile)

    def write_path(self, window: slice, values: Mapping[str, Floats]) -> None:
        """Commit one chunk of the path, the snapshots in `window`, as `commit.write_path` does."""
        commit.write_path(self.arrays, window, values)

    def quarantine_path(self, window: slice) -> None:
        """Mark one chunk of the path as given up."""
        commit.quarantine_path(self.arrays, window)

    def repair_constants(
        self, grid: Grid, directions: Sequence[State], path: PathPlan | None,
        sample_index: NDArray[np.int64] | None = None,
    ) -> None:  # fmt: skip
        """Write coordinates, directions, and the places of samples and path anew, after one of them was damaged."""
        commit.repair_constants(self.arrays, grid, directions, path, sample_index)

    # -- examining and reading ------------------------------------------------------------------------------

    def examine(self) -> Examination:
        """Read and check every chunk of the grid and the path."""
        return examination.examine(self.arrays)

    def counts(self) -> NDArray[np.int64]:
        """Evaluations by status 0 to 3: the points, and two per snapshot of the path; reads the status alone."""
        return examination.counts(self.arrays)

    def minimum(self) -> tuple[dict[str, float], int]:
        """The lowest loss with its coordinates, and how many points cannot be read, as `examination.minimum` says."""
        return examination.minimum(self.arrays)

    def computed_point(self, usable: Callable[[Index], bool]) -> tuple[Index, dict[str, float]] | None:
        """A point that is computed, off the origin, as `examination.computed_point` finds it."""
        return examination.computed_point(self.arrays, usable)

    def check_constants(self, names: Sequence[str] | None = None) -> list[str]:
        """The names of damaged arrays among `names`; default: those of the coordinates, directions and path."""
        return self.arrays.check_constants(names)

    def check_directions(self) -> list[str]:
        """A phrase for each direction whose tensors contradict the digest that is recorded with its axis."""
        return examination.check_directions(self.arrays)

    def read_surface(self) -> Surface:
        """All values as a `Surface`, with its levels; damaged chunks read as not computed.

        Raises:
            LandscapeError: the coordinates themselves are damaged, the values need more memory than is free, or the
                landscape was removed or replaced meanwhile.
        """
        try:
            surface = read_surface(self.arrays, self.record)
            return replace(surface, levels=tuple(level.read_surface() for level in self.levels()))
        finally:  # also where it failed, as that may be the reason
            runs.refuse_moved(self._folder, self.name, self.path, self.record, self.level)
