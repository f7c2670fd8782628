"""The values of a landscape at picked points, read and brought up to date chunk by chunk.

A landscape may be larger than memory: its chunks are read as a stream, and of each only the picked points are kept.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from landscape.grid import Index
from landscape.store.arrays import LandscapeArrays
from landscape.store.inspection import STATUSES
from landscape.surface import NOT_COMPUTED

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
        self._lowest: dict[Index, tuple[float, Index]] = {}
        self.status = np.zeros(self._shape, np.uint8)
        self.values: dict[str, NDArray[np.float64]] = {}

    @property
    def size(self) -> int:
        """Bytes of memory that the arrays take."""
        return int(self.status.nbytes + sum(array.nbytes for array in self.values.values()))

    @property
    def counts(self) -> NDArray[np.int64]:
        """How many points of the whole grid have each status, 0 to 3."""
        total: NDArray[np.int64] = sum(self._counts.values(), np.zeros(STATUSES, np.int64))
        total[NOT_COMPUTED] += int(np.prod(self._arrays.shape)) - int(total.sum())
        return total

    @property
    def lowest(self) -> tuple[float, Index] | None:
        """The lowest finite loss of all points and its index; None where there is none, or the loss was not read."""
        return min(self._lowest.values(), default=None)

    def load(self, names: Iterable[str]) -> None:
        """Read these arrays too, as far as they are not there yet."""
        new = [name for name in names if name not in self.values]
        if new:
            self.values |= {name: np.full(self._shape, np.nan) for name in new}
            self._read(sorted(self._counts), new)

    def forget(self) -> None:
        """Free the memory of the values, which are read again when they are asked for; statuses and counts stay."""
        self.values = {}

    def update(self, chunks: Collection[Index]) -> None:
        """Read chunks anew that were written, replaced or removed."""
        self._read(sorted(chunks), list(self.values))

    def window(self, index: Index) -> tuple[slice, ...]:
        """What of the arrays over the picked points a chunk covers; a slice may be empty."""
        tile = self._arrays.tile(index)
        return tuple(
            slice(*np.searchsorted(pick, (start, stop)).tolist())
            for pick, start, stop in zip(self._picks, tile.start, tile.stop, strict=True)
        )

    def _read(self, chunks: Sequence[Index], names: Sequence[str]) -> None:
        for start in range(0, len(chunks), AT_ONCE):
            self._read_some(chunks[start : start + AT_ONCE], names)

    def _read_some(self, chunks: Sequence[Index], names: Sequence[str]) -> None:
        # The status is read first: values are written before their status, also by a driver that writes meanwhile.
        states = {index: values for index, values, _ in self._arrays.reader("status").read(chunks)}
        committed = {index: values for index, values in states.items() if values is not None and values.any()}
        unsound: set[Index] = set()
        for name in names:
            for index, values, _ in self._arrays.reader(name).read(tuple(committed)):
                if values is None:
                    unsound.add(index)
                else:
                    self._take(name, index, values, committed[index])
        for index in chunks:
            self._count(index, None if index in unsound else states[index], names)

    def _take(self, name: str, index: Index, values: NDArray[Any], states: NDArray[np.uint8]) -> None:
        self.values[name][self.window(index)] = values[self._local(index)]
        if name == "loss":
            usable = np.where((states != NOT_COMPUTED) & np.isfinite(values), values, np.inf)
            place = np.unravel_index(int(usable.argmin()), usable.shape)
            self._lowest.pop(index, None)
            if np.isfinite(usable[place]):
                start = self._arrays.tile(index).start
                whole = tuple(int(a + b) for a, b in zip(start, place, strict=True))
                self._lowest[index] = (float(usable[place]), whole)

    def _count(self, index: Index, states: NDArray[np.uint8] | None, names: Sequence[str]) -> None:
        """Take over the statuses of a chunk; None where it is absent or damaged, and counts as not computed."""
        window = self.window(index)
        if states is None:
            self._counts.pop(index, None)
            self._lowest.pop(index, None)
            self.status[window] = NOT_COMPUTED
        else:
            self._counts[index] = np.bincount(states.ravel(), minlength=STATUSES)[:STATUSES]
            self.status[window] = states[self._local(index)]
        nothing = self.status[window] == NOT_COMPUTED
        for name in names:
            self.values[name][window][nothing] = np.nan

    def _local(self, index: Index) -> Any:
        """The picked points within a chunk, as an index into its values."""
        parts = zip(self._picks, self.window(index), self._arrays.tile(index).start, strict=True)
        return np.ix_(*(pick[window] - start for pick, window, start in parts))
