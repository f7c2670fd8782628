"""The tasks that no worker has had yet, in their order; each is made when it is taken."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class TaskQueue(Generic[T]):
    """A queue over several sequences, which may make their items on demand: a million tasks need not exist at once."""

    def __init__(self, *sequences: Sequence[T]) -> None:
        self._sequences: list[Sequence[T]] = []
        self._ends: list[int] = []  # of each sequence, the position after its last item
        self._taken = 0
        for sequence in sequences:
            self.extend(sequence)

    def __len__(self) -> int:
        return self._end - self._taken

    def __iter__(self) -> Iterator[T]:
        return (self._at(position) for position in range(self._taken, self._end))

    @property
    def _end(self) -> int:
        return self._ends[-1] if self._ends else 0

    def extend(self, tasks: Sequence[T]) -> None:
        """Add tasks behind those that are in the queue."""
        self._sequences.append(tasks)
        self._ends.append(self._end + len(tasks))

    def popleft(self) -> T:
        """Take the next task."""
        task = self._at(self._taken)
        self._taken += 1
        return task

    def clear(self) -> None:
        """Drop all tasks."""
        self._sequences, self._ends, self._taken = [], [], 0

    def _at(self, position: int) -> T:
        number = bisect_right(self._ends, position)
        return self._sequences[number][position - (self._ends[number - 1] if number else 0)]
