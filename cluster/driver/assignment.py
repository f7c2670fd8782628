"""One landscape in the driver's hands: its store once it is made, what is missing, its plan, its tally."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from cluster.workers.packing import pack_directions, pack_state
from cluster.workers.worker import Payload
from landscape.preparation import PreparedLandscape
from landscape.reproduction import (
    NotReproduced,
    Witness,
    check_point,
    keep_witness,
    other_network,
    recorded,
    refusal,
)
from landscape.spec import Job
from landscape.store import LandscapeStore
from landscape.tally import Accountable, Tally
from landscape.tasks import TaskList, missing_tasks, start_tally

log = logging.getLogger("landscape")


class LandscapeWork:
    """One landscape in the driver's hands: its store once made, what is missing, its tally."""

    def __init__(self, landscape: PreparedLandscape, store: LandscapeStore | None) -> None:
        self.landscape, self.store = landscape, store
        self.tasks = TaskList(landscape.name)
        self.left = 0
        self.payload: Any = None
        self._share: Callable[[Any], Any] = lambda value: value
        self._workers: Mapping[str, Accountable] = {}
        self._tally: Tally | None = None
        self._expected: Witness | None = None  # what every worker must reproduce; the first one's word, if none is kept
        self.agreeing: set[str] = set()  # workers that have reproduced it
        self._checked = True  # whether they are asked to
        self._deaths = 0  # before any had done so

    def share(self, share: Callable[[Any], Any], workers: Mapping[str, Accountable]) -> None:
        """Make what the workers need of it available to them, now and whenever it changes."""
        self._share, self._workers = share, workers
        self.payload = share(self.pack())

    def examine(self) -> None:
        if self.store is not None:
            self._expected = recorded(self.store, self.landscape.grid)
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

    def refuses(self, witness: Witness) -> str:
        """Why a worker's values do not belong to this landscape; empty where they do.

        The first worker's word is kept as what the others must reproduce.
        """
        difference = witness.differs_from(self._expected) if self._expected else other_network(self.created(), witness)
        if not difference and not self.created().record.has_check:
            keep_witness(self.created(), witness)
            self._expected = self._expected or witness
        return difference

    @property
    def processor(self) -> str:
        """On which the values were computed that every worker must reproduce."""
        return self._expected.processor if self._expected else ""

    def refusal(self, witness: Witness, difference: str) -> NotReproduced:
        """The end of a job whose workers all compute something else."""
        return refusal(self.landscape.name, self._expected, witness, difference)

    def died_unproven(self, most: int) -> bool:
        """Whether a worker's death is charged to the point that it was to reproduce, as none has done so yet.

        After `most` of them no worker is asked to: the tile that holds the point will tell whether it was of it.
        """
        if not self._checked or self.store is None or self.store.record.has_check:
            return False
        self._deaths += 1
        if self._deaths == most:
            self._checked = False
            self.payload = self._share(self.pack())
        return True

    def interrupt(self, *, unless_idle: bool = False) -> None:
        """Record that the job stopped here; `unless_idle`: where it has added something."""
        if self.left and self._tally is not None and not (unless_idle and self._tally.idle):
            self._tally.finish("interrupted")

    def pack(self) -> Payload:
        """What the workers need of it."""
        return Payload(
            self.landscape.name,
            pack_state(self.landscape.origin),
            pack_directions(self.landscape.directions),
            self.landscape.grid,
            self.landscape.plan,
            self._point() if self._checked else None,
        )

    def _point(self) -> tuple[float, ...]:
        return self._expected.point if self._expected else check_point(self.landscape.grid)
