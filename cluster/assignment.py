"""One landscape in the driver's hands: its store once it is made, what is missing, its plan, its tally."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from cluster.packing import pack_directions, pack_state
from cluster.worker import Payload
from landscape.pipeline import TaskList, missing_tasks, start_tally
from landscape.preparation import PreparedLandscape
from landscape.progress import Recorded, Tally
from landscape.spec import Job
from landscape.store import LandscapeStore

log = logging.getLogger("landscape")


class LandscapeWork:
    """One landscape in the driver's hands: its store once made, what is missing, its tally."""

    def __init__(self, landscape: PreparedLandscape, store: LandscapeStore | None) -> None:
        self.landscape, self.store = landscape, store
        self.tasks = TaskList(landscape.name)
        self.left = 0
        self.payload: Any = None
        self._share: Callable[[Any], Any] = lambda value: value
        self._workers: Mapping[str, Recorded] = {}
        self._tally: Tally | None = None

    def share(self, share: Callable[[Any], Any], workers: Mapping[str, Recorded]) -> None:
        """Make what the workers need of it available to them, now and whenever it changes."""
        self._share, self._workers = share, workers
        self.payload = share(self.pack())

    def examine(self) -> None:
        if self.store is not None:
            self.tasks = missing_tasks(self.store, self.landscape.name)
            self.left = len(self.tasks)

    @property
    def finished(self) -> bool:
        return self.store is not None and not self.tasks

    def begin(self) -> None:
        """The clock of the tally runs from this landscape's own first task."""
        if self._tally is None:
            self._tally = start_tally(self.created(), self.landscape, self.tasks)
            self._tally.workers = self._workers

    @property
    def tally(self) -> Tally:
        self.begin()
        assert self._tally is not None
        return self._tally

    def created(self) -> LandscapeStore:
        assert self.store is not None, "stores are made before tasks are sent"
        return self.store

    def settle(self) -> None:
        """One task fewer: committed or given up. The last one closes the landscape."""
        self.left -= 1
        if not self.left:
            self.tally.finish()

    def plan_for(self, device: str, job: Job) -> bool:
        """Plan for the workers' kind of device while nothing is kept yet; false where the record says another."""
        if self.landscape.plan.device == device:
            return True
        if self.store is not None:
            return False
        self.landscape = self.landscape.on_device(device, job)
        self.payload = self._share(self.pack())
        return True

    def adopt(self, landscape: PreparedLandscape) -> None:
        """Plan as was found best, while nothing is kept yet."""
        self.landscape = landscape
        self.payload = self._share(self.pack())

    def interrupt(self) -> None:
        if self.left and self._tally is not None:
            self._tally.finish("interrupted")

    def pack(self) -> Payload:
        """What the workers need of it."""
        return Payload(
            self.landscape.name,
            pack_state(self.landscape.origin),
            pack_directions(self.landscape.directions),
            self.landscape.grid,
            self.landscape.plan,
        )
