"""One landscape as it lies on disk, read once and brought up to date by the chunks that were written since."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from landscape.digests import digest
from landscape.errors import NotFoundError, shown
from landscape.folders import Folder, open_folder
from landscape.grid import Index
from landscape.page.places import GoneError
from landscape.record import Record
from landscape.store import ChunkChanges, LandscapeStore, PickedValues, chunk_changes, read_axes, read_path
from landscape.surface import NOT_COMPUTED, RISE_STDERR, Axis, ProjectedPath, Surface
from landscape.views.prepared.figure_data import picked

# Points that are drawn whole, by the number of axes, and points that are drawn of a larger landscape: a figure of that
# sends at most a million numbers, of each point its value, its errors and its rise, and twice its height.
WHOLE = {1: 65_536, 2: 512 * 512, 3: 48**3}
REDUCED = {1: 65_536, 2: 400 * 400, 3: 48**3}

Floats = NDArray[np.float64]
Picks = tuple[NDArray[np.intp], ...]


@dataclass(frozen=True)
class View:
    """A landscape at one moment: the points to draw, and what is known of all others.

    Attributes:
        surface: the points to draw, with the observables that were asked for.
        picks: the indices of these points along each axis; None where they are all points.
        sizes: points along each axis of the whole grid.
        counts: points of the whole grid by status, 0 to 3.
        lowest: the lowest loss of the whole grid and its coordinates; empty where it is not known.
        generation: differs between two contents of the landscape.
    """

    surface: Surface
    picks: Picks | None
    sizes: Index
    counts: tuple[int, ...]
    lowest: dict[str, float]
    generation: str

    @property
    def record(self) -> Record:
        """What the landscape's document says."""
        return self.surface.record


@dataclass(frozen=True)
class Change:
    """What a look at a landscape has found.

    Attributes:
        anew: it is another landscape of the same name than at the last look, or there was none.
        tiles: the chunks of the grid that were written, replaced or removed.
        otherwise: whether its document or its path has changed.
    """

    anew: bool = False
    tiles: frozenset[Index] = frozenset()
    otherwise: bool = False

    def __bool__(self) -> bool:
        return self.anew or self.otherwise or bool(self.tiles)


class LandscapeReader:
    """Keeps one landscape in memory, and up to date; several threads may ask.

    Its methods raise GoneError where the landscape was removed, NotFoundError where there is none, StoreError where
    the object store does not answer, and LandscapeError where its documents or coordinates cannot be read.
    """

    def __init__(self, run: str, name: str) -> None:
        self.run, self.name = run, name
        self._folder = open_folder(run)
        self._lock = threading.RLock()
        self._document: tuple[int, ...] | None = None
        self._content: _Content | None = None

    @property
    def size(self) -> int:
        """Bytes of memory that the values take."""
        content = self._content
        return 0 if content is None else content.values.size

    def drop(self) -> None:
        """Forget the values, which are read again when somebody asks."""
        with self._lock:
            self._content = None

    def refresh(self) -> Change:
        """Look what has changed on disk, and read that."""
        with self._lock:
            content, anew, otherwise = self._opened()
            tiles = content.chunks.look()
            content.values.update(tiles)
            content.note("", tiles, content.chunks)
            on_path = content.path_chunks.look() if content.path_chunks is not None else set()
            if content.path_chunks is not None and on_path:
                content.path = read_path(content.store.arrays)
                content.note("path", on_path, content.path_chunks)
            return Change(anew, frozenset(tiles), otherwise or bool(on_path))

    def view(self, observables: Iterable[str] = (), alive: bool = False, most: int | None = None) -> View:
        """The landscape as it is now, with the values of these observables and what is known of their errors.

        Args:
            observables: those that the landscape does not have are left out.
            alive: whether the run's driver lives, which the words on the state of the landscape depend on.
            most: points per axis that are drawn at most.
        """
        with self._lock:
            self.refresh()
            assert self._content is not None
            names = [array for name in observables for array in self._content.arrays_of(name)]
            self._content.values.load(names)
            view = self._content.view(names, alive)
        return view if most is None else thinned_view(view, most)

    def window(self, index: Index) -> tuple[slice, ...]:
        """What of the drawn points' arrays a chunk covers, per dimension; nothing where no value is in memory."""
        with self._lock:
            return () if self._content is None else self._content.values.window(index)

    def store(self) -> LandscapeStore:
        """The landscape, opened for reading; of documents, as of the last look."""
        with self._lock:
            return self._opened()[0].store

    def _opened(self) -> tuple[_Content, bool, bool]:
        """What is in memory, after reading the landscape's own document where that has changed.

        Returns:
            The content; whether it is that of a new landscape; whether the document has changed.
        """
        stamp = file_stamp(self._folder, f"landscapes.zarr/{self.name}/zarr.json")
        if self._content is not None and stamp is not None and stamp == self._document:
            return self._content, False, False
        store = LandscapeStore.find(self._folder, self.name)
        if store is None:
            gone, self._content = self._content is not None, None
            if gone:
                raise GoneError(f"landscape {shown(self.name)} was removed meanwhile; choose another one")
            raise NotFoundError(f"landscape {shown(self.name)} is not in this run; choose one that is")
        self._document = stamp
        anew = self._content is None or not self._content.goes_on_as(store)
        if self._content is None or anew:
            self._content = _Content(self._folder, store)
            return self._content, True, True
        told = self._content.store.attributes != store.attributes
        self._content.store = store
        return self._content, False, told


class _Content:
    """What a reader holds of a landscape.

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
        self.chunks = chunk_changes(folder, store.name, "status", arrays.reader("status").counts)
        self.path_chunks: ChunkChanges | None = None
        if store.has_path:
            counts = arrays.reader("path_status").counts
            self.path_chunks = chunk_changes(folder, store.name, "path_status", counts)
        self.path: ProjectedPath | None = read_path(arrays)
        self._noted: dict[tuple[str, Index], int] = {}
        self._sum = 0  # of all that is noted, which does not depend on the order

    def goes_on_as(self, store: LandscapeStore) -> bool:
        """Whether a landscape that was opened again is the same one, with another progress."""
        old, new = self.store.record, store.record
        same = old.digest == new.digest and old.provenance.created == new.provenance.created
        return same and (self.store.shape, self.store.tile_shape) == (store.shape, store.tile_shape)

    def arrays_of(self, observable: str) -> tuple[str, ...]:
        """The arrays that a figure of an observable needs; the loss has the error of its rise with it."""
        names = (observable, f"{observable}_stderr", *([RISE_STDERR] if observable == "loss" else []))
        return tuple(name for name in names if name in self.store.arrays.value_names)

    def note(self, array: str, chunks: Iterable[Index], changes: ChunkChanges) -> None:
        """Have the generation tell these chunks as they are now."""
        for index in chunks:
            stamp = repr((array, index, changes.present.get(index))).encode()
            number = int.from_bytes(blake2b(stamp, digest_size=8).digest())
            self._sum = (self._sum + number - self._noted.get((array, index), 0)) % (1 << 64)
            self._noted[array, index] = number

    def view(self, names: Sequence[str], alive: bool) -> View:
        """What is read so far, with these arrays."""
        states, record = self.values.status.copy(), self.store.record
        drawn = self.axes
        if self.picks is not None:
            pairs = zip(self.axes, self.picks, strict=True)
            drawn = tuple(replace(axis, coordinates=axis.coordinates[pick]) for axis, pick in pairs)
        observables: dict[str, Floats] = {
            name: np.where(states == NOT_COMPUTED, np.nan, self.values.values[name]) for name in names
        }
        surface = Surface(self.store.name, drawn, observables, states, self.path, dict(record.attributes))
        counts = tuple(int(count) for count in self.values.counts)
        return View(surface, self.picks, self.sizes, counts, self._lowest(), self._generation(record, alive))

    def _lowest(self) -> dict[str, float]:
        if self.values.lowest is None:
            return {}
        value, index = self.values.lowest
        places = zip(self.axes, reversed(index), strict=True)
        return {"loss": value, **{axis.name: float(axis.coordinates[i]) for axis, i in places}}

    def _generation(self, record: Record, alive: bool) -> str:
        told = (record.digest, record.provenance.created, record.origin_loss, record.progress.state, alive, self._sum)
        return digest([str(part) for part in told])[:16]


def picks_of(sizes: Sequence[int]) -> Picks | None:
    """The points that are drawn of a grid, as indices along each axis; None where they are all of them."""
    if int(np.prod(sizes, dtype=np.int64)) <= WHOLE[len(sizes)]:
        return None
    low, high = 2, max(sizes)  # the most points per axis that keep the bound, by halving
    while low < high:
        middle = (low + high + 1) // 2
        kept = int(np.prod([min(size, middle) for size in sizes], dtype=np.int64)) <= REDUCED[len(sizes)]
        low, high = (middle, high) if kept else (low, middle - 1)
    return tuple(picked(size, low) for size in sizes)


def thinned_view(view: View, most: int) -> View:
    """The same landscape with at most `most` points drawn along each axis."""
    surface = view.surface
    inner = tuple(picked(len(axis.coordinates), most) for axis in surface.axes)
    if all(len(pick) == len(axis.coordinates) for pick, axis in zip(inner, surface.axes, strict=True)):
        return view
    index = np.ix_(*reversed(inner))
    axes: tuple[Axis, ...] = tuple(
        replace(axis, coordinates=axis.coordinates[pick]) for axis, pick in zip(surface.axes, inner, strict=True)
    )
    observables = {name: values[index] for name, values in surface.observables.items()}
    thin = replace(surface, axes=axes, observables=observables, status=surface.status[index])
    picks = inner if view.picks is None else tuple(base[pick] for base, pick in zip(view.picks, inner, strict=True))
    return replace(view, surface=thin, picks=picks)


def file_stamp(folder: Folder, path: str) -> tuple[int, ...] | None:
    """What tells two contents of a local file apart; None where it is not there, and in an object store."""
    if "://" in folder.name:
        return None
    try:
        status = os.stat(folder.place(path))
    except OSError:
        return None
    return (status.st_mtime_ns, status.st_size, status.st_ino)
