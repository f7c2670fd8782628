"""One landscape on disk: made, opened, written tile by tile, examined and read."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from zarr.abc.store import Store

from landscape.core.errors import JobError, LandscapeError, NotFoundError, nearest, quoted
from landscape.core.files import Folder, Place
from landscape.core.folders import open_folder
from landscape.core.grid import Floats, Grid, Index, Tile
from landscape.core.system import free_host_bytes
from landscape.store import commit, examination, runs
from landscape.store.arrays import Examination, LandscapeArrays, chunks_where, sample_index, stored_losses
from landscape.store.chunk_io import DurableStore, create_arrays, write_document
from landscape.store.commit import finish_move, flush, mend_arrays, write_root
from landscape.store.documents import (
    FOLDER,
    LEVELS,
    METADATA,
    Documents,
    LandscapeSummary,
    axis_attributes,
    missing_essentials,
    resume_refusal,
)
from landscape.store.examination import stored_directions, stored_path
from landscape.store.format import MOST_CHUNK_POINTS, NETWORK, SCHEMA_VERSION, NewArrays, PathPlan, lay_out
from landscape.store.rounds import Rounds, RoundShape
from landscape.store.runs import at_level, mark, open_zarr, remove_half_made
from landscape.surface.derived import derive
from landscape.surface.record import Record
from landscape.surface.record_parts import IdentityRecord, JobRecord, PlanRecord
from landscape.surface.surface import INTERPOLATED, MOMENT_PARTS, NOT_COMPUTED, Axis, ProjectedPath, Surface

if TYPE_CHECKING:
    from torch import Tensor

    from landscape.model.parameters import State


# ----------------------------------------------------------------------------------------------------
# A new landscape on disk, with nothing computed.


def create_landscape(run: Place, name: str, new: NewArrays, record: Record) -> None:
    """Make a landscape, or the level that its record names, with nothing computed.

    A half-made landscape of a killed driver is replaced.

    Raises:
        LandscapeError: its folder holds something else.
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
    write_document(store, f"{path}/{METADATA}", documents.group({}))
    create_arrays(store, lay_out(path, new, of_level=record.level is not None))
    flush(store)
    # Write the attributes last, and at once: without them, the landscape counts as half made.
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
    # Read the status first: a driver that writes meanwhile writes values before their status.
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
    observables |= derive(record.derived, observables, record.origin_loss)
    path, networks = read_path(arrays)
    between = observables.pop(INTERPOLATED, None)
    return Surface(
        arrays.name, read_axes(arrays), observables, status, path, dict(record.attributes),
        stored_losses(arrays), sample_index(arrays), networks=networks,
        interpolated=None if between is None else np.nan_to_num(between).astype(np.uint8),
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
    """The path of a landscape and the networks of a plane; None if it has none, or their places are damaged."""
    plan = stored_path(arrays)
    if plan is None:
        return None, None
    values = {name: arrays.read_checked(f"path_{name}").values for name in ("status", "loss", "projected_loss")}
    coordinates = {axis: plan.coordinates[:, k] for k, axis in enumerate(arrays.axis_names)}
    steps = np.array(plan.step, np.int64)
    run = np.array(plan.run, np.int64) if plan.runs else None
    path = ProjectedPath(
        plan.unit, steps, coordinates, values["loss"], values["projected_loss"], plan.distance, values["status"],
        run, plan.runs,
    )  # fmt: skip
    networks = next((part for part in path.parts() if part.unit == NETWORK), None)
    return path.without(NETWORK), networks


def _warn_of_damage(name: str, damaged: Sequence[tuple[str, Index]]) -> None:
    if damaged:
        array, index = damaged[0]
        more = f" and {len(damaged) - 1} more" if len(damaged) > 1 else ""
        log.warning(
            "landscape %r: %s chunk %s%s cannot be read: its points are shown as not computed; "
            "running the job again mends them", name, array, "/".join(map(str, index)), more,
        )  # fmt: skip


def _refuse_too_large(arrays: LandscapeArrays) -> None:
    """Refuse a landscape that does not fit the memory, by its metadata alone, which may declare any size."""
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
    """One landscape on disk: `create` makes it, `open` opens it for reading or continuing."""

    def __init__(
        self, folder: Folder, store: Store, name: str, documents: Documents, summary: LandscapeSummary, level: int = 0
    ) -> None:
        self.name, self.level, self._folder, self._store, self._documents = name, level, folder, store, documents
        self.record, self._summary = summary.record, summary
        self.path = runs.at_level(summary.path or name, level)
        self.arrays = LandscapeArrays(name, store, documents, summary.record, self.path)

    # -- making and opening ---------------------------------------------------------------------------------

    @classmethod
    def create(cls, run: Place, name: str, new: NewArrays, record: Record) -> LandscapeStore:
        """Make a landscape by `create_landscape`, with nothing computed, and open it for writing."""
        create_landscape(run, name, new, record)
        return cls.open(run, name, write=True, level=record.level.number if record.level else 0)

    @classmethod
    def open(cls, run: Place, name: str, *, write: bool = False, level: int = 0) -> LandscapeStore:
        """Open an existing landscape, or a level of it, also while it is being written; a reader needs no lock.

        Raises:
            NotFoundError: there is none of that name.
            LandscapeError: its metadata cannot be read.
            JobError: it was written by a newer version of this software.
        """
        store = cls.find(run, name, write=write, level=level)
        if store is None:
            remedy = nearest(name, runs.landscape_names(run))
            raise NotFoundError(f"landscape {quoted(name)} is not in run {quoted(str(run), 300)}; {remedy}")
        return store

    @classmethod
    def find(cls, run: Place, name: str, *, write: bool = False, level: int = 0) -> LandscapeStore | None:
        """Open an existing landscape; None if there is none of that name, or a half-made one.

        Args:
            write: whether to open it for continuing, under the run's lock; this repairs damaged metadata.
            level: of its refinement; 0 for the landscape itself.
        """
        runs.refuse_outside(run, name)
        folder = open_folder(run)
        if write:
            finish_move(folder)
        documents = Documents(folder)
        summary = runs.describe(folder, documents, name, level)
        if summary is None:
            return None
        store = cls(folder, runs.open_zarr(run, read_only=not write), name, documents, summary, level)
        if write:
            store._mend()
        return store

    def _mend(self) -> None:
        """Replace damaged documents by their copies in the root, and update these copies."""
        runs.unmark(self._folder, self.path)
        for problem in self.problems():
            if problem != self.refusal:  # the refusal ends the job as an error
                log.warning("landscape %r: %s", self.name, problem)
        if self._summary.mend:
            self.update_attributes()
        mend_arrays(self.arrays, self.path, self._store, self._documents)
        arrays = {name: self.arrays.describe(name).document for name in self.arrays.names}
        if not self._documents.is_copied(self.path, arrays):
            self.consolidate()
        self._documents.forget_copy()

    # -- record ---------------------------------------------------------------------------------------------

    @property
    def attributes(self) -> Mapping[str, Any]:
        """The record as the JSON values that are written."""
        return self.record.attributes

    @property
    def identity(self) -> IdentityRecord:
        """All that decides the values.

        Raises:
            LandscapeError: the record lacks it, so that no job can resume; the same holds for `plan` and `job`.
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

    def siblings(self) -> Iterator[tuple[str, Record]]:
        """The names and records of the run's other landscapes that can be read, each read when it is asked for."""
        documents, move = Documents(self._folder), runs.read_move(self._folder)
        for name in runs.names_after(self._folder.folders(FOLDER), move):
            try:
                summary = None if name == self.name else runs.describe(self._folder, documents, name)
            except LandscapeError:
                continue
            if summary is not None:
                yield name, summary.record

    @property
    def refusal(self) -> str:
        """Why no job can resume this landscape, and the remedy; empty if a job can."""
        missing = next(iter(missing_essentials(self.record)), None)
        place = self._folder.place(f"{FOLDER}/{self.path}")
        return resume_refusal(self.name, self.record, missing, place) if missing else ""

    @property
    def own_problems(self) -> tuple[str, ...]:
        """The faults of the landscape's own document, a sentence each."""
        return (*self._summary.problems, *filter(None, [self.refusal if not self.record.is_imported else ""]))

    def problems(self) -> list[str]:
        """The faults of all its metadata, a sentence each."""
        of_arrays = [self.arrays.describe(name).problem for name in self.arrays.names]
        return [*self.own_problems, *filter(None, of_arrays)]

    def update_attributes(self, **changes: Any) -> None:
        """Change fields of the record, given as values or JSON values, and write its document; for the driver only."""
        self.record = self.record.changed(**changes)
        self.arrays.level = self.record.level
        if isinstance(self._store, DurableStore):
            self._store.refuse_taken_away(self.path)
        write_document(self._store, f"{self.path}/{METADATA}", self._documents.group(self.attributes))

    def consolidate(self) -> None:
        """Copy the metadata of this landscape into the root's document, which xarray reads at once."""
        write_root(self._folder, self._documents, self.path.partition("/")[0])

    # -- parts ----------------------------------------------------------------------------------------------

    @property
    def shape(self) -> Index:
        """Points per dimension, the last axis first."""
        return self.arrays.shape

    @property
    def tile_shape(self) -> Index:
        """Points per dimension of a tile; tiles at the grid's end are cut off."""
        return self.arrays.tile_shape

    @property
    def computed_tile(self) -> Index:
        """Points per dimension of a tile when they were computed; a compacted landscape is stored in larger ones."""
        recorded = self.record.computed_tile
        return recorded if len(recorded) == len(self.shape) and all(recorded) else self.tile_shape

    @property
    def tile_count(self) -> int:
        """The number of its tiles, computed or not."""
        return self.arrays.tile_count

    def levels(self) -> list[LandscapeStore]:
        """The levels of its refinement, opened for reading, the coarsest first, up to the first half-made one."""
        levels: list[LandscapeStore] = []
        for number in [] if self.level else self._documents.levels(self.path):
            if (level := LandscapeStore.find(self._folder, self.name, level=number)) is None:
                break
            levels.append(level)
        return levels

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
        """The stored coordinates; None if a chunk of them is damaged."""
        return self.arrays.grid()

    def path_plan(self) -> PathPlan | None:
        """The places of the snapshots; None if there is no path, or a chunk of it is damaged."""
        return stored_path(self.arrays)

    def directions(self) -> list[dict[str, Tensor]] | None:
        """The stored directions; None if one is stored as its seed alone, or its chunk is damaged."""
        return stored_directions(self.arrays)

    def rounds(self) -> Rounds:
        """The rounds of a landscape with an accuracy.

        Raises:
            LandscapeError: its record does not say what they hold.
        """
        accuracy = self._needed(self.record.accuracy)
        terms = max(1, len(self.record.terms))
        rows = 2 * (len(self.record.terms) or len(self.observables))
        shape = RoundShape(rows, terms, accuracy.width, self.record.weighted)
        return Rounds(self._folder, self._store, self.path, shape)

    def direction_digests(self) -> list[str]:
        """The recorded digest of each axis's direction; empty if it is lost."""
        return self.arrays.direction_digests()

    # -- writing --------------------------------------------------------------------------------------------

    def write_tiles(self, tiles: Sequence[tuple[Tile, Mapping[str, Floats]]]) -> None:
        """Commit whole tiles with two syncs in all, see `commit.write_tiles`."""
        commit.write_tiles(self.arrays, tiles)

    def quarantine_tile(self, tile: Tile) -> None:
        """Mark a tile as given up; the next run of the job tries it again."""
        commit.quarantine_tile(self.arrays, tile)

    def write_path(self, window: slice, values: Mapping[str, Floats]) -> None:
        """Commit one chunk of the path, the snapshots in `window`, see `commit.write_path`."""
        commit.write_path(self.arrays, window, values)

    def quarantine_path(self, window: slice) -> None:
        """Mark one chunk of the path as given up."""
        commit.quarantine_path(self.arrays, window)

    def repair_constants(
        self, grid: Grid, directions: Sequence[State], path: PathPlan | None,
        sample_index: NDArray[np.int64] | None = None,
    ) -> None:  # fmt: skip
        """Write coordinates, directions, and the places of samples and path again, after one of them was damaged."""
        commit.repair_constants(self.arrays, grid, directions, path, sample_index)

    # -- examining and reading ------------------------------------------------------------------------------

    def examine(self) -> Examination:
        """Read and check every chunk of the grid and the path."""
        return examination.examine(self.arrays)

    def counts(self) -> NDArray[np.int64]:
        """Evaluations by status, 0 to 3: one per point, and two per snapshot of the path; reads the status alone."""
        return examination.counts(self.arrays)

    def minimum(self) -> tuple[dict[str, float], int]:
        """The lowest readable loss with its coordinates, and the number of unreadable points."""
        return examination.minimum(self.arrays)

    def computed_point(self, usable: Callable[[Index], bool]) -> tuple[Index, dict[str, float]] | None:
        """A computed point off the origin, see `examination.computed_point`."""
        return examination.computed_point(self.arrays, usable)

    def check_constants(self, names: Sequence[str] | None = None) -> list[str]:
        """The names of damaged arrays among `names`; default: those of the coordinates, directions and path."""
        return self.arrays.check_constants(names)

    def check_directions(self) -> list[str]:
        """A phrase for each direction whose tensors contradict the digest recorded with its axis."""
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
        finally:  # also after an error, which the change may have caused
            runs.refuse_moved(self._folder, self.name, self.path, self.record, self.level)


# ----------------------------------------------------------------------------------------------------
# The landscape that a caller names by a surface of it.


def named_landscape(run: str | Path | Surface, name: str | None) -> tuple[str | Path, str]:
    """The run and the name of a landscape that a caller names so, or by a surface of it.

    Raises:
        JobError: there is no name, or the surface was not read from a run.
    """
    if isinstance(run, Surface):
        place, own = located(run)
        return place, name or own
    if name is None:
        raise JobError("name: must be given with a run: that of a landscape; or give a surface in place of the run")
    return run, name


def located(surface: Surface) -> tuple[str, str]:
    """The run and the name of the landscape that a surface was read from.

    Raises:
        JobError: the surface was not read from a run.
    """
    if surface.run is None:
        raise JobError(
            f"surface: {quoted(surface.name)} must be of a run, and was made by hand; read it by open_run(RUN)[NAME]"
        )
    return surface.run, surface.name
