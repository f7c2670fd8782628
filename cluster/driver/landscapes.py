"""The landscapes of a job while the driver computes them: those that are new, and those that are on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from cluster.driver.landscape_state import DrivenLandscape, LandscapeState, NewLandscape
from cluster.driver.protocol import WorkerHandle
from landscape.compute.reuse import Task
from landscape.compute.tasks import OpenLandscape, ReportingWorker
from landscape.core.errors import JobError, shown
from landscape.job.job import Job


class Landscapes:
    """All landscapes of a job. Only those that are on disk have tasks, so every task has a store.

    Args:
        landscapes: in the order in which their tasks are done.
        job: whose landscapes they are.
    """

    def __init__(self, landscapes: Iterable[DrivenLandscape], job: Job) -> None:
        self._job = job
        self._in_order = list(landscapes)
        self._workers: Mapping[str, ReportingWorker] = {}
        self._by_name = {each.landscape.name: each for each in self.on_disk}

    @property
    def new(self) -> list[NewLandscape]:
        """Those that are not on disk yet, in their order."""
        return [each for each in self._in_order if isinstance(each, NewLandscape)]

    @property
    def on_disk(self) -> list[LandscapeState]:
        """Those that are on disk, in their order."""
        return [each for each in self._in_order if isinstance(each, LandscapeState)]

    def of(self, task: Task) -> LandscapeState:
        """The landscape that a task is of."""
        return self._by_name[task.landscape]

    def share(self, share: Callable[[Any], Any], workers: Mapping[str, ReportingWorker]) -> None:
        """Make what the workers need of each available to them, now and whenever it changes.

        Args:
            share: gives a reference that every worker can follow to a value.
            workers: by name, those whose work `status` shows.
        """
        self._workers = workers
        for each in self._in_order:
            each.sent.share(share)
        for state in self.on_disk:
            state.workers = workers

    def admit(self, worker: WorkerHandle) -> None:
        """Plan those that are new for the kind of device of a worker.

        Raises:
            JobError: one that is on disk was computed on another kind.
        """
        for new in self.new:
            new.plan_for(worker.device, self._job)
        for state in self.on_disk:
            if not state.finished and state.landscape.plan.device != worker.device:
                planned = state.landscape.plan.device
                raise JobError(
                    f"device: landscape {shown(state.landscape.name)} is computed on {planned}, {worker.place} has "
                    f"{worker.device}, and the bits would differ; go on where it was begun, "
                    "or give it another name or run"
                )

    def created(self, new: NewLandscape, opened: OpenLandscape) -> None:
        """Go on with a landscape that was new, and is on disk now."""
        state = LandscapeState(new.landscape, opened, new.sent)
        state.workers = self._workers
        self._in_order[self._in_order.index(new)] = state
        self._by_name[state.landscape.name] = state
