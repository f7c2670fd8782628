"""One landscape in the driver's hands: its store once it is made, what is missing, its plan, its tally."""

from __future__ import annotations

import logging
from typing import Any

import ray

from cluster.worker import Payload, pack_state
from landscape.pipeline import Task, missing_tasks, start_tally
from landscape.preparation import PreparedLandscape
from landscape.progress import Tally
from landscape.spec import Job
from landscape.store import LandscapeStore
from landscape.tuning import Tuned

log = logging.getLogger("landscape")


class LandscapeWork:
    """One landscape in the driver's hands: its store once made, what is missing, its tally."""

    def __init__(self, landscape: PreparedLandscape, store: LandscapeStore | None) -> None:
        self.landscape, self.store = landscape, store
        self.tasks: list[Task] = []
        self.left = 0
        self.payload: Any = None
        self._tally: Tally | None = None

    def examine(self) -> None:
        if self.store is not None:
            self.tasks = list(missing_tasks(self.store, self.landscape.name))
            self.left = len(self.tasks)

    @property
    def finished(self) -> bool:
        return self.store is not None and not self.tasks

    def begin(self) -> None:
        """The clock of the tally runs from this landscape's own first task."""
        if self._tally is None:
            self._tally = start_tally(self.created(), self.landscape, self.tasks)

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
        self.payload = ray.put(self.pack())
        return True

    def adopt(self, tuned: Tuned) -> None:
        """Plan as a worker found best; recorded with the landscape."""
        self.landscape = self.landscape.tuned(tuned)
        self.payload = ray.put(self.pack())

    def interrupt(self) -> None:
        if self.left and self._tally is not None:
            self._tally.finish("interrupted")

    def pack(self) -> Payload:
        """What the workers need of it."""
        return Payload(
            self.landscape.name,
            pack_state(self.landscape.origin),
            [pack_state(each.tensors) for each in self.landscape.directions],
            self.landscape.grid,
            self.landscape.plan,
        )
