"""One landscape on disk: made, opened, committed to tile by tile, examined and read."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from zarr.abc.store import Store

from landscape.core.errors import JobError, LandscapeError, NotFoundError, nearest, shown
from landscape.core.files import Folder, Place
from landscape.core.folders import open_folder
from landscape.core.grid import Grid, Index, Tile
from landscape.store import commit, examination, runs
from landscape.store.arrays import LandscapeArrays
from landscape.store.attributes import is_same, missing_essentials
from landscape.store.chunks import Examination
from landscape.store.constants import stored_directions, stored_path
from landscape.store.creation import create_landscape
from landscape.store.described import Described
from landscape.store.documents import FOLDER, METADATA, Documents, refusal_of
from landscape.store.durable import DurableStore
from landscape.store.format import NewArrays, PathPlan
from landscape.store.mending import mend_arrays
from landscape.store.moving import finish_move, write_root
from landscape.store.surfaces import read_surface
from landscape.store.writing import write_document
from landscape.surface.record import Record
from landscape.surface.record_parts import IdentityRecord, JobRecord, PlanRecord
from landscape.surface.surface import Floats, Surface

if TYPE_CHECKING:
    from torch import Tensor

    from landscape.model.parameters import State

T = TypeVar("T")
log = logging.getLogger("landscape")


class LandscapeStore:
    """One landscape on disk. Made by `create`, or `open` for reading and going on."""

    def __init__(
        self, folder: Folder, store: Store, name: str, documents: Documents, described: Described, level: int = 0
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
            raise NotFoundError(f"landscape {shown(name)} is not in run {shown(str(run), 300)}; {known}")
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
            if problem != self.refusal:  # a refusal ends the job, whose error tells it
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
            LandscapeError: the record lacks it, so that no job can go on; the same holds of `plan` and `job`.
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
        """The records of the run's other landscapes by name, without those that cannot be read."""
        found = runs.survey_folder(self._folder).readable.items()
        return {name: each.record for name, each in found if name != self.name}

    @property
    def refusal(self) -> str:
        """Why no job can go on with a landscape that can be read, and the remedy; empty where a job can."""
        missing = next(iter(missing_essentials(self.record)), None)
        place = self._folder.place(f"{FOLDER}/{self.path}")
        return refusal_of(self.name, self.record, missing, place) if missing else ""

    @property
    def own_problems(self) -> tuple[str, ...]:
        """What is wrong with the landscape's own document, a sentence each, without the documents of its arrays."""
        return (*self._described.problems, *filter(None, [self.refusal if not self.record.is_imported else ""]))

    def problems(self) -> list[str]:
        """What is wrong with the metadata of a landscape that can be read all the same, a sentence each."""
        of_arrays = [self.arrays.describe(name).problem for name in self.arrays.names]
        return [*self.own_problems, *filter(None, of_arrays)]

    def update_attributes(self, **changes: Any) -> None:
        """Change fields of the record, by their values or JSON values, and write its document; only the driver may."""
        self.record = self.record.changed(**changes)
        self.arrays.level = self.record.level
        if isinstance(self._store, DurableStore):
            self._store.refuse_taken_away(self.path)
        write_document(self._store, f"{self.path}/{METADATA}", self._documents.group(self.attributes))

    def consolidate(self) -> None:
        """Copy all metadata of the run into the root's document, from which xarray reads all of them at once."""
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
        """How many tiles it has: those of the grid, or of a level those that it holds."""
        return self.arrays.tile_count

    def levels(self) -> list[LandscapeStore]:
        """The levels of its refinement for reading, the coarsest first, up to one that is half made."""
        found: list[LandscapeStore] = []
        for number in [] if self.level else self._documents.levels(self.path):
            if (level := LandscapeStore.find(self._folder, self.name, level=number)) is None:
                break
            found.append(level)
        return found

    @property
    def observables(self) -> tuple[str, ...]:
        """The names of the observables, without those of their standard errors."""
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
        """Where the snapshots lie, or None where there is no path or a chunk of it is damaged."""
        return stored_path(self.arrays)

    def directions(self) -> list[dict[str, Tensor]] | None:
        """The stored directions, or None where one is kept as its seed alone or its chunk is damaged."""
        return stored_directions(self.arrays)

    def direction_digests(self) -> list[str]:
        """The digest of each axis's direction, as recorded when it was made; empty where that is lost."""
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
        """Write coordinates, directions, the places of samples and of the path anew, where one of them was damaged."""
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
        """All values as a `Surface`, those of its levels too; damaged chunks read as not computed.

        Raises:
            LandscapeError: the coordinates themselves are damaged, the values need more memory than is free, or the
                landscape was removed or replaced meanwhile.
        """
        try:
            surface = read_surface(self.arrays, self.record)
            return replace(surface, levels=tuple(level.read_surface() for level in self.levels()))
        finally:  # also where it failed, as that may be the reason
            runs.refuse_moved(self._folder, self.name, self.path, self.record, self.level)
