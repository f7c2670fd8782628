"""The tasks that no worker has had yet, in their order; each is made when it is taken."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Generic, TypeVar

T = TypeVar("T")


class TaskQueue(Generic[T]):
    """A queue over several sequences, which may make their items on demand: a million tasks need not exist at once."""

    def __init__(self, *sequences: Sequence[T]) -> None:
        self._sequences = sequences
        self._ends = list(accumulate(len(one) for one in sequences))
        self._taken = 0
        self._end = self._ends[-1] if sequences else 0

    @classmethod
    def of(cls, tasks: Sequence[T] | TaskQueue[T]) -> TaskQueue[T]:
        """A queue of these tasks; one that is given stays as it is."""
        return tasks if isinstance(tasks, TaskQueue) else cls(tasks)

    def __len__(self) -> int:
        return self._end - self._taken

    def __iter__(self) -> Iterator[T]:
        return (self._at(position) for position in range(self._taken, self._end))

    def popleft(self) -> T:
        """Take the next task."""
        task = self._at(self._taken)
        self._taken += 1
        return task

    def clear(self) -> None:
        """Drop all tasks."""
        self._end = self._taken

    def _at(self, position: int) -> T:
        number = bisect_right(self._ends, position)
        return self._sequences[number][position - (self._ends[number - 1] if number else 0)]
