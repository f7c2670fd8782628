"""The values of a landscape at picked points, read and brought up to date chunk by chunk.

A landscape may be larger than memory: its chunks are read as a stream, and of each only the picked points are kept.
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

AT_ONCE = 64  # chunks of one array between two of another: so many are in memory


class PickedValues:
    """The statuses and values at the picked points, and counts over all points.

    Attributes:
        status: uint8 over the picked points.
        values: float64 over the picked points, by the names of the arrays that were asked for so far. What belongs to
            no committed tile is NaN.
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
        self._unreadable: dict[Index, int] = {}  # of the chunks that are there and cannot be read, the points
        self.status = np.zeros(self._shape, np.uint8)
        self.values: dict[str, Floats] = {}

    @property
    def size(self) -> int:
        """Bytes of memory that the arrays take."""
        return int(self.status.nbytes + sum(array.nbytes for array in self.values.values()))

    @property
    def counts(self) -> NDArray[np.int64]:
        """How many points of the whole grid have each status, 0 to 3."""
        total = self._total.copy()
        total[NOT_COMPUTED] += int(np.prod(self._arrays.shape)) - int(total.sum())
        return total

    @property
    def lowest(self) -> tuple[float, Index] | None:
        """The lowest finite loss of all points and its index; None where there is none, or the loss was not read."""
        return min(self._lowest.values(), default=None)

    @property
    def unreadable(self) -> int:
        """How many points are there and cannot be read, as a chunk of what was read of them is damaged or absent."""
        return sum(self._unreadable.values())

    def load(self, names: Iterable[str]) -> None:
        """Read these arrays too, as far as they are not there yet."""
        new = [name for name in names if name not in self.values]
        if new:
            before = self.values
            # Another dict, as another thread may be adding up the sizes of those in this one.
            self.values = before | {name: np.full(self._shape, np.nan) for name in new}
            try:
                self._read(sorted(self._counts), new)
            except BaseException:
                self.values = before  # half read, they would pass for values that are missing
                raise

    def forget(self) -> None:
        """Free the memory of the values, which are read again when they are asked for; statuses and counts stay."""
        self.values = {}

    def update(self, chunks: Collection[Index]) -> None:
        """Read chunks anew that were written, replaced or removed."""
        self._read(sorted(chunks), list(self.values))

    def window(self, index: Index) -> tuple[slice, ...]:
        """What of the arrays over the picked points a chunk covers; a slice may be empty."""
        return self._place(index).window

    def _place(self, index: Index) -> _Place:
        """Where the picked points of a chunk lie."""
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
        # The status is read first: values are written before their status, also by a driver that writes meanwhile.
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
        """Keep the lowest finite loss of a chunk."""
        usable = np.where((states != NOT_COMPUTED) & np.isfinite(values), values, np.inf)
        best = np.unravel_index(int(usable.argmin()), usable.shape)
        self._lowest.pop(index, None)
        if np.isfinite(usable[best]):
            whole = tuple(int(a + b) for a, b in zip(place.start, best, strict=True))
            self._lowest[index] = (float(usable[best]), whole)

    def _count(self, index: Index, place: _Place, states: NDArray[np.uint8] | None, names: Sequence[str]) -> None:
        """Take over the statuses of a chunk; None where it is absent or damaged, and counts as not computed."""
        self._total -= self._counts.pop(index, 0)
        if states is None:
            self._lowest.pop(index, None)
            self.status[place.window] = NOT_COMPUTED
        else:
            self._counts[index] = np.bincount(states.ravel(), minlength=STATUSES)[:STATUSES]
            self._total += self._counts[index]
            self.status[place.window] = states[place.local]
        if states is None or not states.all():
            nothing = self.status[place.window] == NOT_COMPUTED
            for name in names:
                self.values[name][place.window][nothing] = np.nan


@dataclass(frozen=True)
class _Place:
    """Where the picked points of a chunk lie: in the arrays over all picked points, and among its own points."""

    window: tuple[slice, ...]
    local: Any
    start: Index
