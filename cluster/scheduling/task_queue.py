"""Tasks that no worker has had yet, in their order: each comes into being when it is taken."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Generic, TypeVar

T = TypeVar("T")


class TaskQueue(Generic[T]):
    """A queue over sequences that may make their items on demand; a million tasks need not exist at once."""

    def __init__(self, *parts: Sequence[T]) -> None:
        self._parts = parts
        self._ends = list(accumulate(len(part) for part in parts))
        self._taken = 0
        self._end = self._ends[-1] if parts else 0

    def __len__(self) -> int:
        return self._end - self._taken

    def __iter__(self) -> Iterator[T]:
        return (self._at(position) for position in range(self._taken, self._end))

    def popleft(self) -> T:
        task = self._at(self._taken)
        self._taken += 1
        return task

    def clear(self) -> None:
        self._end = self._taken

    def _at(self, position: int) -> T:
        part = bisect_right(self._ends, position)
        return self._parts[part][position - (self._ends[part - 1] if part else 0)]
