"""One landscape of the job while the driver computes it: its store, what is left to do, its plan, its progress."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cluster.workers.packing import pack_directions, pack_state
from cluster.workers.worker import LandscapeInputs
from landscape.preparation import PreparedLandscape
from landscape.reproduction import NotReproduced, Witness, check_point, keep_witness, other_network, recorded, refusal
from landscape.spec import Job
from landscape.store import LandscapeStore
from landscape.tally import ReportingWorker, Tally
from landscape.tasks import OpenLandscape, TaskList, start_tally


class LandscapeState:
    """One landscape of the job: its store once it exists, its tasks, what the workers are sent of it, its progress.

    Attributes:
        landscape: as prepared, with the plan by which it is computed.
        store: None until a landscape that is new has been planned.
        inputs: a reference to what the workers need of it.
        agreeing: names of the workers that have reproduced its recorded values.
    """

    def __init__(self, landscape: PreparedLandscape, opened: OpenLandscape | None) -> None:
        """
        Args:
            opened: the landscape on disk; None where it is new.
        """
        self.landscape = landscape
        self.store: LandscapeStore | None = None
        self.tasks = TaskList(landscape.name)
        self.inputs: Any = None
        self.agreeing: set[str] = set()
        self._unsettled = 0  # tasks that are neither committed nor given up
        self._share: Callable[[Any], Any] = lambda value: value
        self._workers: Mapping[str, ReportingWorker] = {}
        self._tally: Tally | None = None
        # What every worker must reproduce: the recorded values, or else those of the first worker.
        self._expected: Witness | None = None
        self._check_workers = True
        self._deaths_before_agreement = 0
        if opened is not None:
            self.open(opened)

    def open(self, opened: OpenLandscape) -> None:
        """Take the landscape on disk, and what is left to do of it."""
        self.store, self.tasks = opened.store, opened.tasks
        self._expected = recorded(opened.store, self.landscape.grid)
        self._unsettled = len(opened.tasks)

    def share(self, share: Callable[[Any], Any], workers: Mapping[str, ReportingWorker]) -> None:
        """Make what the workers need of it available to them, now and whenever it changes.

        Args:
            share: gives a reference that every worker can follow to a value.
            workers: by name, those whose work `status` shows.
        """
        self._share, self._workers = share, workers
        self._share_inputs()

    def _share_inputs(self) -> None:
        self.inputs = self._share(self.pack())

    def pack(self) -> LandscapeInputs:
        """What the workers need of it."""
        return LandscapeInputs(
            self.landscape.name,
            pack_state(self.landscape.origin),
            pack_directions(self.landscape.directions),
            self.landscape.grid,
            self.landscape.plan,
            self._point_to_reproduce() if self._check_workers else None,
        )

    def _point_to_reproduce(self) -> tuple[float, ...]:
        return self._expected.point if self._expected else check_point(self.landscape.grid)

    # -- the plan, until the store exists ---------------------------------------------------------------------

    def plan_for(self, device: str, job: Job) -> bool:
        """Plan for the workers' kind of device while nothing is stored; false where the stored plan has another one."""
        if self.landscape.plan.device == device:
            return True
        if self.store is not None:
            return False
        self.replan(self.landscape.on_device(device, job))
        return True

    def replan(self, landscape: PreparedLandscape) -> None:
        """Take the same landscape with another plan, while nothing is stored."""
        self.landscape = landscape
        self._share_inputs()

    # -- the tasks --------------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """Whether nothing was left to do when it was opened."""
        return self.store is not None and not self.tasks

    def existing_store(self) -> LandscapeStore:
        """The store, which exists before the first task is sent."""
        assert self.store is not None
        return self.store

    def begin(self) -> None:
        """Start the clock of its progress, at its own first task."""
        if self._tally is None:
            self._tally = start_tally(self.existing_store(), self.landscape, self.tasks)
            self._tally.workers = self._workers

    @property
    def tally(self) -> Tally:
        """Its progress; the clock runs from the first use on."""
        self.begin()
        assert self._tally is not None
        return self._tally

    def settle(self) -> None:
        """Count a task that is committed or given up; the last one completes the landscape."""
        self._unsettled -= 1
        if not self._unsettled:
            self.tally.finish()

    def interrupt(self, *, unless_idle: bool = False) -> None:
        """Record that the job stopped here.

        Args:
            unless_idle: record it only where this job has added something.
        """
        if self._unsettled and self._tally is not None and not (unless_idle and self._tally.idle):
            self._tally.finish("interrupted")

    # -- the values that every worker must reproduce ----------------------------------------------------------

    def difference_of(self, witness: Witness) -> str:
        """Why a worker's values do not belong to this landscape; '' where they do.

        The values of the first worker are recorded, for the others to reproduce.
        """
        store = self.existing_store()
        difference = witness.differs_from(self._expected) if self._expected else other_network(store, witness)
        if not difference and not store.record.has_check:
            keep_witness(store, witness)
            self._expected = self._expected or witness
        return difference

    @property
    def processor(self) -> str:
        """The processor that computed the values which every worker must reproduce; '' where it is not recorded."""
        return self._expected.processor if self._expected else ""

    def refusal(self, witness: Witness, difference: str) -> NotReproduced:
        """The error of a job whose workers all compute other values."""
        return refusal(self.landscape.name, self._expected, witness, difference)

    def died_before_agreement(self, most: int) -> bool:
        """Whether a worker's death is charged to the point that it was to reproduce, as no worker has done so yet.

        After `most` such deaths no worker is asked to reproduce it any more: then the tile that holds the point shows
        whether the point is to blame.
        """
        if not self._check_workers or self.store is None or self.store.record.has_check:
            return False
        self._deaths_before_agreement += 1
        if self._deaths_before_agreement == most:
            self._check_workers = False
            self._share_inputs()
        return True
