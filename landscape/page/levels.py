"""The levels of a refined landscape in memory, read once and brought up to date as its own values are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from landscape.core.files import Folder
from landscape.core.grid import Floats, Index
from landscape.store.changes import NotedChunks, chunk_changes, file_stamp
from landscape.store.landscape import LandscapeStore, read_axes
from landscape.store.picked import PickedValues
from landscape.surface.derived import derive
from landscape.surface.surface import NOT_COMPUTED, Axis, Surface

# Points of the finest level that is drawn, by the number of axes: of a grid of 17, 33 or 65 points a side, all four
# levels, four, or three. A level is read whole, as the merged view has no place for parts of one.
DRAWN = {1: 65_537, 2: 520 * 520, 3: 49**3}


class LevelContent:
    """One level: its points and their values; of one that has too many points to be drawn, their number alone."""

    def __init__(self, folder: Folder, store: LandscapeStore) -> None:
        self.store = store
        self.is_drawn = int(np.prod(store.shape)) <= DRAWN[len(store.shape)]
        self.axes = read_axes(store.arrays)
        self.values = PickedValues(store.arrays, [np.arange(size if self.is_drawn else 0) for size in store.shape])
        self.noted = NotedChunks()
        self._chunks = chunk_changes(folder, store.path, "status", store.arrays.reader("status").counts)
        self._unread: set[Index] = set()

    def goes_on_as(self, store: LandscapeStore) -> bool:
        """Whether a level that was opened again is the same one, with another progress, or with more blocks."""
        old, new = self.store, store
        same = old.record.digest == new.record.digest and old.record.provenance == new.record.provenance
        return same and (old.path, old.shape) == (new.path, new.shape)

    def update(self) -> bool:
        """Read what has changed on disk since the last call that succeeded; whether anything has."""
        self._unread |= self._chunks.look()
        self.values.update(self._unread)
        self.noted.note("", self._unread, self._chunks)
        changed, self._unread = bool(self._unread), set()
        return changed

    def load(self, names: Sequence[str]) -> None:
        """Read these arrays too, as far as it has them."""
        self.values.load([name for name in names if name in self.store.arrays.value_names])

    @property
    def counts(self) -> NDArray[np.int64]:
        """How many of the points that it is to hold have each status, 0 to 3."""
        counts = self.values.counts
        counts[NOT_COMPUTED] = self.store.arrays.points - int(counts[1:].sum())
        return counts

    def lowest(self) -> dict[str, float]:
        """The lowest loss and its coordinates; empty where it is not known."""
        return lowest_of(self.values, self.axes)

    @property
    def sizes(self) -> Index:
        """Points along each axis."""
        return tuple(len(axis.coordinates) for axis in self.axes)

    def surface(self, names: Sequence[str]) -> Surface:
        """What is read of it so far, of these arrays."""
        states, values = self.values.status.copy(), self.values.values
        observables: dict[str, Floats] = {
            name: np.where(states == NOT_COMPUTED, np.nan, values[name]) for name in names if name in values
        }
        observables |= derive(self.store.record.derived, observables)
        return Surface(self.store.name, self.axes, observables, states, attributes=dict(self.store.record.attributes))


class Levels:
    """The levels that a landscape has now, the coarsest first; `drawn` are those that its figures show."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._stamp: object = None
        self._names: list[str] = []  # of the arrays that were asked for
        self.every: tuple[LevelContent, ...] = ()

    @property
    def drawn(self) -> tuple[LevelContent, ...]:
        """Those whose values are in memory."""
        return tuple(level for level in self.every if level.is_drawn)

    @property
    def unfinished(self) -> LevelContent | None:
        """The first one that is still to get points."""
        return next((level for level in self.every if level.counts[NOT_COMPUTED]), None)

    @property
    def size(self) -> int:
        """Bytes of memory that the values take."""
        return sum(level.values.size for level in self.every)

    def update(self, landscape: LandscapeStore) -> bool:
        """Look which levels there are, and read what has changed; whether anything has.

        Raises:
            StoreError: the object store does not answer. What was not read is read by the next call.
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
        """What differs between two contents of the levels."""
        return [(each.noted.total, each.store.record.level, each.store.record.progress.state) for each in self.every]

    def _open(self, landscape: LandscapeStore) -> bool:
        """Look which levels there are, where that may have changed; whether it has."""
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
        """What changes where there is another level, or another document of one; None in an object store."""
        if "://" in self._folder.name:
            return None
        place = f"landscapes.zarr/{path}/levels"
        documents = [f"{place}/{number}/zarr.json" for number in range(1, len(self.every) + 2)]
        return (path, file_stamp(self._folder, place), *(file_stamp(self._folder, each) for each in documents))


def lowest_of(values: PickedValues, axes: Sequence[Axis]) -> dict[str, float]:
    """The lowest loss of a grid and its coordinates; empty where it is not known."""
    if values.lowest is None:
        return {}
    value, index = values.lowest
    places = zip(axes, reversed(index), strict=True)
    return {"loss": value, **{axis.name: float(axis.coordinates[i]) for axis, i in places}}
