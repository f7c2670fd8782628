"""The workers that may get more tasks, by how many they have."""

from __future__ import annotations


class OpenWorkers:
    """The workers that have fewer tasks than a worker may have; of two with as many tasks the one that has had that
    many for longer comes first.

    Args:
        most: how many tasks a worker may have; one that has so many is not open.
    """

    def __init__(self, most: int) -> None:
        self._by_load: list[dict[str, None]] = [{} for _ in range(most)]  # as dicts, which keep their order

    def with_load(self, load: int) -> tuple[str, ...]:
        """The open workers that have this many tasks."""
        return tuple(self._by_load[load])

    def move(self, worker: str, before: int, now: int) -> None:
        """Note that a worker's number of tasks has changed."""
        if before < len(self._by_load):
            self._by_load[before].pop(worker, None)
        self.add(worker, now)

    def add(self, worker: str, load: int = 0) -> None:
        """Let a worker get more tasks, unless it has the most already."""
        if load < len(self._by_load):
            self._by_load[load][worker] = None

    def remove(self, worker: str) -> None:
        """Let a worker get no more tasks."""
        for workers in self._by_load:
            workers.pop(worker, None)
