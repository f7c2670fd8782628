"""The values of a landscape at picked points, read and updated chunk by chunk.

A landscape may be larger than memory: its chunks are read as a stream, and only the picked points of each are kept.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from landscape.core.grid import Floats, Index
from landscape.store.arrays import LandscapeArrays
from landscape.store.examination import STATUSES
from landscape.surface.surface import NOT_COMPUTED

AT_ONCE = 64  # chunks of each array that are read before those of the next array, and so are in memory together


class PickedValues:
    """The statuses and values at the picked points, and counts over all points.

    Attributes:
        status: uint8 over the picked points.
        values: float64 over the picked points, by the names of the arrays loaded so far; NaN outside committed tiles.
    """

    def __init__(self, arrays: LandscapeArrays, picks: Sequence[NDArray[np.intp]]) -> None:
        """
        Args:
            picks: the indices of the points along each dimension, ascending.
        """
        self._arrays, self._picks = arrays, tuple(picks)
        self._shape = tuple(len(pick) for pick in picks)
        self._counts: dict[Index, NDArray[np.int64]] = {}  # of the committed chunks, points by their status
        self._total = np.zeros(STATUSES, np.int64)
        self._lowest: dict[Index, tuple[float, Index]] = {}
        self._unreadable: dict[Index, int] = {}  # by damaged chunk, its points
        self.status = np.zeros(self._shape, np.uint8)
        self.values: dict[str, Floats] = {}

    @property
    def size(self) -> int:
        """The bytes of the arrays in memory."""
        return int(self.status.nbytes + sum(array.nbytes for array in self.values.values()))

    @property
    def counts(self) -> NDArray[np.int64]:
        """How many points of the whole grid have each status, 0 to 3."""
        total = self._total.copy()
        total[NOT_COMPUTED] += int(np.prod(self._arrays.shape)) - int(total.sum())
        return total

    @property
    def lowest(self) -> tuple[float, Index] | None:
        """The lowest finite loss of all points and its index; None if there is none, or the loss was not loaded."""
        return min(self._lowest.values(), default=None)

    @property
    def unreadable(self) -> int:
        """How many points are unreadable, because a loaded chunk of theirs is damaged or absent."""
        return sum(self._unreadable.values())

    def load(self, names: Iterable[str]) -> None:
        """Read those of these arrays that are not loaded yet."""
        new = [name for name in names if name not in self.values]
        if new:
            before = self.values
            # A new dict, as another thread may be adding up the sizes of the arrays in this one.
            self.values = before | {name: np.full(self._shape, np.nan) for name in new}
            try:
                self._read(sorted(self._counts), new)
            except BaseException:
                self.values = before  # values that were not read would look like missing ones
                raise

    def forget(self) -> None:
        """Free the memory of the values, which `load` reads again; statuses and counts stay."""
        self.values = {}

    def update(self, chunks: Collection[Index]) -> None:
        """Read chunks again that were written, replaced or removed."""
        self._read(sorted(chunks), list(self.values))

    def window(self, index: Index) -> tuple[slice, ...]:
        """The slices of the arrays over the picked points that a chunk covers; a slice may be empty."""
        return self._place(index).window

    def _place(self, index: Index) -> _Place:
        """The place of the picked points of a chunk."""
        tile = self._arrays.tile(index)
        window = tuple(
            slice(*np.searchsorted(pick, (start, stop)).tolist())
            for pick, start, stop in zip(self._picks, tile.start, tile.stop, strict=True)
        )
        picks = [pick[part] - start for pick, part, start in zip(self._picks, window, tile.start, strict=True)]
        whole = all(len(pick) == size for pick, size in zip(picks, tile.shape, strict=True))
        return _Place(window, ... if whole else np.ix_(*picks), tile.start)

    def _read(self, chunks: Sequence[Index], names: Sequence[str]) -> None:
        for start in range(0, len(chunks), AT_ONCE):
            self._read_some(chunks[start : start + AT_ONCE], names)

    def _read_some(self, chunks: Sequence[Index], names: Sequence[str]) -> None:
        # Read the status first: a driver that writes meanwhile writes values before their status.
        states: dict[Index, NDArray[np.uint8] | None] = {}
        for index, values, damaged in self._arrays.reader("status").read(chunks):
            states[index] = values
            self._unreadable.pop(index, None)
            if damaged:
                self._unreadable[index] = self._arrays.points_of(self._arrays.tile(index))
        committed = {index: values for index, values in states.items() if values is not None and values.any()}
        places = {index: self._place(index) for index in chunks}
        unsound: set[Index] = set()
        for name in names:
            for index, values, _ in self._arrays.reader(name).read(tuple(committed)):
                if values is None:
                    unsound.add(index)
                    self._unreadable[index] = int((committed[index] != NOT_COMPUTED).sum())
                    continue
                self.values[name][places[index].window] = values[places[index].local]
                if name == "loss":
                    self._find_lowest(index, places[index], values, committed[index])
        for index in chunks:
            self._count(index, places[index], None if index in unsound else states[index], names)

    def _find_lowest(self, index: Index, place: _Place, values: NDArray[Any], states: NDArray[np.uint8]) -> None:
        """Note the lowest finite loss of a chunk."""
        usable = np.where((states != NOT_COMPUTED) & np.isfinite(values), values, np.inf)
        best = np.unravel_index(int(usable.argmin()), usable.shape)
        self._lowest.pop(index, None)
        if np.isfinite(usable[best]):
            whole = tuple(int(a + b) for a, b in zip(place.start, best, strict=True))
            self._lowest[index] = (float(usable[best]), whole)

    def _count(self, index: Index, place: _Place, states: NDArray[np.uint8] | None, names: Sequence[str]) -> None:
        """Update statuses and counts by those of a chunk; None if it is absent or damaged: then it is not computed."""
        self._total -= self._counts.pop(index, 0)
        if states is None:
            self._lowest.pop(index, None)
            self.status[place.window] = NOT_COMPUTED
        else:
            self._counts[index] = np.bincount(states.ravel(), minlength=STATUSES)[:STATUSES]
            self._total += self._counts[index]
            self.status[place.window] = states[place.local]
        if states is None or not states.all():
            not_computed = self.status[place.window] == NOT_COMPUTED
            for name in names:
                self.values[name][place.window][not_computed] = np.nan


@dataclass(frozen=True)
class _Place:
    """The picked points of a chunk: their window in the arrays over all picked points, their places in the chunk."""

    window: tuple[slice, ...]
    local: Any
    start: Index
