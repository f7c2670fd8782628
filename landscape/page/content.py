"""The content of one landscape in memory: the points to draw, counts of all points, and its generation."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from landscape.core.files import Folder
from landscape.core.grid import Floats, Index
from landscape.core.text import digest
from landscape.store.changes import ChunkChanges, NotedChunks, chunk_changes, file_stamp
from landscape.store.landscape import LandscapeStore, read_axes, read_path
from landscape.store.picked import PickedValues
from landscape.store.state import RUNNING, WAITING, counts_of_rounds, state_of_counts
from landscape.surface.derived import bases_of, derive
from landscape.surface.record import Record
from landscape.surface.surface import (
    NOT_COMPUTED,
    RISE_STDERR,
    SAMPLES_KNOWN,
    Axis,
    ProjectedPath,
    Surface,
    check_observable,
)
from landscape.views.draw.layout import pointer_columns
from landscape.views.draw.style import typed
from landscape.views.prepare.figure import levels_picked, picked, picked_of
from landscape.views.prepare.scale import count_statuses, drawn_values, point_states

# ----------------------------------------------------------------------------------------------------
# The levels of a refined landscape in memory, read once and then updated like its own values.

# Points of the finest level that is drawn, by the number of axes: for grids of 17, 33 or 65 points per side that means
# all four levels, four, or three. A level is read whole: the merged view cannot hold parts of one.
DRAWN = {1: 65_537, 2: 520 * 520, 3: 49**3}


class LevelContent:
    """One level: its points and their values; of a level with too many points to be drawn, only their number."""

    def __init__(self, folder: Folder, store: LandscapeStore) -> None:
        self.store = store
        self.is_drawn = int(np.prod(store.shape)) <= DRAWN[len(store.shape)]
        self.axes = read_axes(store.arrays)
        self.values = PickedValues(store.arrays, [np.arange(size if self.is_drawn else 0) for size in store.shape])
        self.noted = NotedChunks()
        self._chunks = chunk_changes(folder, store.path, "status", store.arrays.reader("status").counts)
        self._unread: set[Index] = set()

    def goes_on_as(self, store: LandscapeStore) -> bool:
        """Whether the reopened level is the same one, perhaps with other progress or more blocks."""
        old, new = self.store, store
        same = old.record.digest == new.record.digest and old.record.provenance == new.record.provenance
        return same and (old.path, old.shape) == (new.path, new.shape)

    def update(self) -> bool:
        """Read the changes on disk since the last successful call; returns whether there were any."""
        self._unread |= self._chunks.look()
        self.values.update(self._unread)
        self.noted.note("", self._unread, self._chunks)
        changed, self._unread = bool(self._unread), set()
        return changed

    def load(self, names: Sequence[str]) -> None:
        """Also read these arrays, if the level has them."""
        self.values.load([name for name in names if name in self.store.arrays.value_names])

    @property
    def counts(self) -> NDArray[np.int64]:
        """How many of its points, computed or not, have each status, 0 to 3."""
        counts = self.values.counts
        counts[NOT_COMPUTED] = self.store.arrays.points - int(counts[1:].sum())
        return counts

    def lowest(self) -> dict[str, float]:
        """The lowest loss and its coordinates; empty if it is not known."""
        return lowest_of(self.values, self.axes)

    @property
    def sizes(self) -> Index:
        """Points along each axis."""
        return tuple(len(axis.coordinates) for axis in self.axes)

    def surface(self, names: Sequence[str]) -> Surface:
        """The surface of the values read so far, with these arrays."""
        states, values = self.values.status.copy(), self.values.values
        observables: dict[str, Floats] = {
            name: np.where(states == NOT_COMPUTED, np.nan, values[name]) for name in names if name in values
        }
        observables |= derive(self.store.record.derived, observables, self.store.record.origin_loss)
        return Surface(self.store.name, self.axes, observables, states, attributes=dict(self.store.record.attributes))


class GridLevels:
    """The present levels of a landscape, the coarsest first; figures show those in `drawn`."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._stamp: object = None
        self._names: list[str] = []  # of the requested arrays
        self.every: tuple[LevelContent, ...] = ()

    @property
    def drawn(self) -> tuple[LevelContent, ...]:
        """The levels whose values are in memory."""
        return tuple(level for level in self.every if level.is_drawn)

    @property
    def unfinished(self) -> LevelContent | None:
        """The first level with missing points."""
        return next((level for level in self.every if level.counts[NOT_COMPUTED]), None)

    @property
    def size(self) -> int:
        """Bytes of memory that the values take."""
        return sum(level.values.size for level in self.every)

    def update(self, landscape: LandscapeStore) -> bool:
        """List the levels, and read their changes; returns whether there were any.

        Raises:
            StoreError: the object store does not answer. The next call reads what is missing.
            LandscapeError: a level's documents cannot be read.
        """
        changed = [self._open(landscape), *[level.update() for level in self.every]]
        return any(changed)

    def load(self, names: Sequence[str]) -> None:
        """Read these arrays of all levels too."""
        for level in self.every:
            level.load(names)
        self._names = list(dict.fromkeys([*self._names, *names]))

    def forget(self) -> None:
        """Free the memory of the values."""
        self._names = []
        for level in self.every:
            level.values.forget()

    def told(self) -> list[object]:
        """A value that differs between two contents of the levels."""
        return [(view.noted.total, view.store.record.level, view.store.record.progress.state) for view in self.every]

    def _open(self, landscape: LandscapeStore) -> bool:
        """List the levels, if they may have changed; returns whether they have."""
        stamp = self._stamp_now(landscape.path)
        if stamp is not None and stamp == self._stamp:
            return False
        before, levels, changed = self.every, list[LevelContent](), False
        for number, store in enumerate(landscape.levels()):
            known = before[number] if number < len(before) else None
            if known is not None and known.goes_on_as(store):
                changed = changed or known.store.attributes != store.attributes
                known.store = store
                levels.append(known)
            else:
                levels.append(LevelContent(self._folder, store))
                levels[-1].load(self._names)
                changed = True
        self.every, self._stamp = tuple(levels), stamp
        return changed or len(levels) != len(before)

    def _stamp_now(self, path: str) -> object:
        """A stamp that changes with a new level, or a new document of one; None in an object store."""
        if "://" in self._folder.name:
            return None
        place = f"landscapes.zarr/{path}/levels"
        documents = [f"{place}/{number}/zarr.json" for number in range(1, len(self.every) + 2)]
        return (path, file_stamp(self._folder, place), *(file_stamp(self._folder, document) for document in documents))


def lowest_of(values: PickedValues, axes: Sequence[Axis]) -> dict[str, float]:
    """The lowest loss of a grid and its coordinates; empty if it is not known."""
    if values.lowest is None:
        return {}
    value, index = values.lowest
    places = zip(axes, reversed(index), strict=True)
    return {"loss": value, **{axis.name: float(axis.coordinates[i]) for axis, i in places}}


# ----------------------------------------------------------------------------------------------------

# The largest landscapes that are drawn whole, by the number of axes, and the points that are drawn of larger ones: a
# figure sends at most a million numbers: per point its value, errors and rise, twice its height, and its uncertainty.
WHOLE = {1: 65_536, 2: 512 * 512, 3: 48**3}
REDUCED = {1: 65_536, 2: 376 * 376, 3: 48**3}

Picks = tuple[NDArray[np.intp], ...]


@dataclass(frozen=True)
class View:
    """A landscape at one moment: the points to draw, and facts about all points.

    Attributes:
        surface: the points to draw, with the requested observables.
        picks: the indices of these points along each axis; None for all points.
        sizes: points along each axis of the whole grid.
        counts: points of the whole grid by status, 0 to 3.
        lowest: the lowest loss of the whole grid and its coordinates; empty if it is not known.
        generation: differs between two contents of the landscape.
        hidden_levels: how many levels of its refinement are not drawn, as they have too many points.
        unreadable: how many stored points cannot be read; they count as not computed.
    """

    surface: Surface
    picks: Picks | None
    sizes: Index
    counts: tuple[int, ...]
    lowest: dict[str, float]
    generation: str
    hidden_levels: int = 0
    unreadable: int = 0

    @property
    def record(self) -> Record:
        """The landscape's record, with the state that `state` says."""
        return self.surface.record

    @property
    def evaluations(self) -> list[int]:
        """Evaluations by status, as `LandscapeStore.counts`: of the grid, and two per snapshot or network."""
        return _evaluations(self.record, self.counts, (self.surface.path, self.surface.networks))

    @property
    def state(self) -> str:
        """The state of the landscape, as the status of its run says it."""
        driven = self.record.progress.state in (RUNNING, WAITING)
        return state_of_counts(self.record, self.evaluations, driven, self.unreadable)

    def in_turn(self) -> View:
        """The same landscape, which its driver computes now although nothing of it is recorded yet."""
        progress = replace(self.record.progress, state=RUNNING)
        attributes = self.record.changed(progress=progress).attributes
        return replace(self, surface=replace(self.surface, attributes=attributes))


def _evaluations(record: Record, counts: Sequence[int], beside: Sequence[ProjectedPath | None]) -> list[int]:
    if record.accuracy is not None:
        return [int(count) for count in counts_of_rounds(record)]
    paths = [count_statuses(points.status) for points in beside if points is not None]
    return [int(points) + 2 * sum(snapshots) for points, *snapshots in zip(counts, *paths, strict=True)]


@dataclass(frozen=True)
class TileBlock:
    """The drawn points of one tile: their places among all drawn points, per dimension, and their values.

    `error`, `rise` and `rise_error` are those of `FigureData`; None if they are not known.
    """

    start: Index
    values: Floats
    states: NDArray[np.uint8]
    error: Floats | None
    rise: Floats | None
    rise_error: Floats | None


class Content:
    """The content of a landscape that a reader holds; for one thread at a time.

    Raises:
        LandscapeError: the coordinates are damaged, or an array's document cannot be read.
    """

    def __init__(self, folder: Folder, store: LandscapeStore) -> None:
        arrays = store.arrays
        self.store, self.axes = store, read_axes(arrays)
        self.sizes = tuple(len(axis.coordinates) for axis in self.axes)
        self.picks = picks_of(self.sizes)
        every = self.picks or tuple(np.arange(size) for size in self.sizes)
        self.values = PickedValues(arrays, tuple(reversed(every)))
        self.chunks = chunk_changes(folder, store.path, "status", arrays.reader("status").counts)
        self.path_chunks: ChunkChanges | None = None
        if store.has_path:
            counts = arrays.reader("path_status").counts
            self.path_chunks = chunk_changes(folder, store.path, "path_status", counts)
        self.path: ProjectedPath | None
        self.networks: ProjectedPath | None
        self.path, self.networks = read_path(arrays)
        self._unread: set[Index] = set()  # changed chunks that could not be read
        self._path_unread = False
        self.noted = NotedChunks()
        self.levels = GridLevels(folder)

    def goes_on_as(self, store: LandscapeStore) -> bool:
        """Whether the reopened landscape is the same one, perhaps with other progress."""
        old, new = self.store.record, store.record
        same = old.digest == new.digest and old.provenance.created == new.provenance.created
        place, now = ((opened.path, opened.shape, opened.tile_shape) for opened in (self.store, store))
        return same and place == now

    def arrays_of(self, observable: str) -> tuple[str, ...]:
        """The arrays that a figure of an observable needs; for the loss also the error of its rise, and its samples."""
        bases = bases_of(self.store.record.derived, observable)
        names = [name for base in bases for name in (base, f"{base}_stderr")]
        names += [RISE_STDERR, SAMPLES_KNOWN] * ("loss" in bases)
        return tuple(name for name in names if name in self.store.arrays.value_names)

    def update(self) -> tuple[set[Index], bool]:
        """Read the changes on disk since the last successful call.

        Returns:
            The chunks of the grid that were written, replaced or removed; whether the path or a level was.

        Raises:
            StoreError: the object store does not answer. The next call reads what is missing.
        """
        self._unread |= self.chunks.look()
        if self.path_chunks is not None and (on_path := self.path_chunks.look()):
            self._path_unread = True
            self.noted.note("path", on_path, self.path_chunks)
        self.values.update(self._unread)
        self.noted.note("", self._unread, self.chunks)
        finer = self.levels.update(self.store)
        tiles, self._unread = self._unread, set()
        path_changed = self._path_unread
        if path_changed:
            self.path, self.networks = read_path(self.store.arrays)
            self._path_unread = False
        return tiles, path_changed or finer

    def view(self, names: Sequence[str], alive: bool) -> View:
        """The view of the values read so far, with these arrays."""
        states, record = self.values.status.copy(), self._record(alive)
        drawn = self.axes
        if self.picks is not None:
            pairs = zip(self.axes, self.picks, strict=True)
            drawn = tuple(replace(axis, coordinates=axis.coordinates[pick]) for axis, pick in pairs)
        observables: dict[str, Floats] = {
            name: np.where(states == NOT_COMPUTED, np.nan, self.values.values[name]) for name in names
        }
        observables |= derive(record.derived, observables, record.origin_loss)
        merged = replace(
            Surface(self.store.name, drawn, observables, states, self.path, dict(record.attributes)),
            networks=self.networks, levels=tuple(level.surface(names) for level in self.drawn_levels),
        ).merged()  # fmt: skip
        sizes = self.drawn_levels[-1].sizes if self.drawn_levels else self.sizes
        surface = replace(merged, attributes=dict(record.attributes))
        hidden = len(self.levels.every) - len(self.drawn_levels)
        counts = tuple(int(count) for count in self.counts)
        lowest = self._lowest()
        return View(surface, self.picks, sizes, counts, lowest, self.generation(alive), hidden, self.unreadable)

    @property
    def drawn_levels(self) -> tuple[LevelContent, ...]:
        """The levels to show; none if not even all points of the landscape itself are shown."""
        return self.levels.drawn if self.picks is None else ()

    @property
    def counts(self) -> NDArray[np.int64]:
        """How many points of the landscape and of its levels have each status, 0 to 3."""
        own = self.values.counts
        for level in self.levels.every:
            own = own + level.counts
        return own

    @property
    def unreadable(self) -> int:
        """How many stored points of the landscape and of its levels cannot be read."""
        return self.values.unreadable + sum(level.values.unreadable for level in self.levels.every)

    @property
    def size(self) -> int:
        """Bytes of memory that the values take."""
        return self.values.size + self.levels.size

    def load(self, names: Sequence[str]) -> None:
        """Read the values of these arrays that are not in memory yet."""
        self.values.load(names)
        self.levels.load(names)

    def forget(self) -> None:
        """Free the memory of the values, which are read again on demand."""
        self.values.forget()
        self.levels.forget()

    def block(self, observable: str, tile: Index, most: int | None) -> TileBlock:
        """The drawn points of a tile; NaN if they are not computed."""
        windows = self.values.window(tile)
        inner: list[slice | NDArray[np.intp]] = list(windows)
        start = [window.start for window in windows]
        for d, size in enumerate(self.values.status.shape):
            if most is not None and size > most:
                picks = picked(size, most)
                first, last = np.searchsorted(picks, (windows[d].start, windows[d].stop)).tolist()
                inner[d], start[d] = picks[first:last], first
        index = np.ix_(*(np.arange(size)[part] for part, size in zip(inner, self.values.status.shape, strict=True)))
        states = self.values.status[index]

        def of(name: str) -> Floats | None:
            array = self.values.values.get(name)
            return None if array is None else np.where(states == NOT_COMPUTED, np.nan, array[index])

        read = {name: array for name in self.arrays_of(observable) if (array := of(name)) is not None}
        read |= derive(self.store.record.derived, read, self.store.record.origin_loss)
        check_observable(self.store.name, observable, read)  # this version cannot derive a later version's formula
        values, origin = read[observable], self.store.record.origin_loss
        rise_error = of(RISE_STDERR) if observable == "loss" and origin is not None and np.isfinite(origin) else None
        rise = None if rise_error is None or origin is None else values - origin
        return TileBlock(tuple(start), values, states, read.get(f"{observable}_stderr"), rise, rise_error)

    def _record(self, alive: bool) -> Record:
        """The record, with its state corrected if a driver was killed, or has resumed and not written yet."""
        record, levels, last = self.store.record, self.levels.every, self.levels.unfinished
        progress = record.progress if last is None else last.store.record.progress
        counts = _evaluations(record, self.counts.tolist(), (self.path, self.networks))
        if counts[NOT_COMPUTED]:
            part = record.changed(progress=progress)
            progress = replace(progress, state=state_of_counts(part, counts, alive, self.unreadable))
        if levels:
            seconds = [item.progress.seconds or 0.0 for item in (record, *(level.store.record for level in levels))]
            progress = replace(progress, seconds=sum(seconds) or None)
        return record if progress == record.progress else record.changed(progress=progress)

    def _lowest(self) -> dict[str, float]:
        lowest = [lowest_of(self.values, self.axes), *(level.lowest() for level in self.levels.every)]
        return min((item for item in lowest if item), key=lambda item: item["loss"], default={})

    def generation(self, alive: bool) -> str:
        """A value that differs between two contents of the landscape."""
        record = self.store.record
        facts = (record.digest, record.provenance.created, record.origin_loss, record.progress.state, alive)
        return digest([str(part) for part in (*facts, self.noted.total, *self.levels.told())])[:16]


def picks_of(sizes: Sequence[int]) -> Picks | None:
    """The points to draw of a grid, as indices along each axis; None for all."""
    if int(np.prod(sizes, dtype=np.int64)) <= WHOLE[len(sizes)]:
        return None
    low, high = 2, max(sizes)  # bisect the most points per axis within the bound
    while low < high:
        middle = (low + high + 1) // 2
        kept = int(np.prod([min(size, middle) for size in sizes], dtype=np.int64)) <= REDUCED[len(sizes)]
        low, high = (middle, high) if kept else (low, middle - 1)
    return tuple(picked(size, low) for size in sizes)


def thin_view(view: View, most: int) -> View:
    """The same landscape with at most `most` points drawn along each axis."""
    surface = view.surface
    refined = surface.interpolated is not None
    inner = tuple(picked_of([len(axis.coordinates) for axis in surface.axes], most, refined=refined))
    if all(len(pick) == len(axis.coordinates) for pick, axis in zip(inner, surface.axes, strict=True)):
        return view
    index = np.ix_(*reversed(inner))
    axes: tuple[Axis, ...] = tuple(
        replace(axis, coordinates=axis.coordinates[pick]) for axis, pick in zip(surface.axes, inner, strict=True)
    )
    observables = {name: values[index] for name, values in surface.observables.items()}
    levels = None if surface.interpolated is None else levels_picked(surface.interpolated, inner)
    thin = replace(
        surface, axes=axes, observables=observables, status=surface.status[index], loss_samples=None,
        interpolated=levels,
    )  # fmt: skip
    picks = inner if view.picks is None else tuple(base[pick] for base, pick in zip(view.picks, inner, strict=True))
    return replace(view, surface=thin, picks=picks)


# ----------------------------------------------------------------------------------------------------
# New tiles for events: arrays in plotly's typed form, which the page's script puts into its figure.


def tile_facts(block: TileBlock, log: bool) -> dict[str, Any]:
    """One tile: its place among the drawn points, its drawn values, and the pointer's numbers.

    Args:
        log: draw log10 of the values.
    """
    states = point_states(block.values, block.states, log)
    columns = pointer_columns(block.values, block.error, block.rise, block.rise_error)
    return {
        "start": list(block.start),
        "shape": list(states.shape),
        "drawn": encode_array(typed(drawn_values(block.values, states, log))),
        "customdata": encode_array(typed(columns)),
        "states": encode_array(states),
    }


def encode_array(array: NDArray[Any]) -> dict[str, str]:
    """An array in plotly's JSON form: its type, its bytes in base64, and its shape if it has several dimensions.

    >>> encode_array(np.zeros((1, 2), np.uint8))
    {'dtype': 'u1', 'bdata': 'AAA=', 'shape': '1, 2'}
    """
    plain = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    text = {"dtype": plain.dtype.str[1:], "bdata": base64.b64encode(plain.tobytes()).decode()}
    return text if plain.ndim == 1 else text | {"shape": ", ".join(map(str, plain.shape))}
