"""Before the first task: workers measure which engine is fastest, and from a point's cost follow the tiles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cluster.driver import journal
from cluster.driver.landscape_state import NewLandscape
from cluster.driver.landscapes import Landscapes
from cluster.driver.protocol import Crew, WorkerHandle
from cluster.driver.receipts import Receipts
from cluster.driver.worker import Receipt
from cluster.driver.workers import WorkerManager
from landscape.compute.point_extras import freedom_of, tile_shape_for
from landscape.compute.prepared import PreparedJob, kept_samples
from landscape.compute.reuse import Task
from landscape.compute.tasks import create_landscape
from landscape.core.errors import CHOOSING, stage
from landscape.evaluation.tuning.protocol import Limits, Measure, Request, follow
from landscape.evaluation.tuning.search import Search

MEASURE_SECONDS = 600.0  # a worker that takes longer to measure is taken for hung
GATHER_SECONDS = 10.0  # how long the first worker waits for others of its node to be timed together with it


class Measuring:
    """Plans the landscapes that are new, and creates their stores."""

    def __init__(
        self,
        prepared: PreparedJob,
        crew: Crew,
        manager: WorkerManager[Task],
        receipts: Receipts,
        wait: Callable[[], None],
        clock: Callable[[], float],
        *,
        tries: int,
        limits: Limits | None,
    ) -> None:
        """
        Args:
            wait: looks after the crew, then waits a moment for receipts and handles them.
            tries: how many workers may die of measuring a point until a guess is taken for its cost.
            limits: how long the search for the fastest engine may take.
        """
        self._prepared, self._crew, self._manager, self._receipts = prepared, crew, manager, receipts
        self._wait, self._clock, self._tries, self._limits = wait, clock, tries, limits
        self._timed_together: list[str] | None = None  # workers of one node

    def create_stores(self, landscapes: Landscapes) -> None:
        """Create the stores of the landscapes that are new, their tile shape from one point measured on a worker."""
        new = landscapes.new
        if not new:
            return
        seconds = self._plan(new)
        for each in new:
            kept = kept_samples(self._prepared, each.landscape)
            cost = seconds * each.landscape.evaluations_per_point
            shape = tile_shape_for(self._prepared.job, each.landscape.grid, cost, self._crew.size, kept)
            landscapes.created(each, create_landscape(self._prepared, each.landscape, shape))

    def _plan(self, new: Sequence[NewLandscape]) -> float:
        """Choose engine and batches for the new landscapes; seconds per point, a guess where it cannot be measured.

        Batches that do not fit the device are found here and made smaller for the whole job, before any value is
        stored: smaller ones later would give other bits.
        """
        stage(CHOOSING)
        freedom, chosen = freedom_of(self._prepared)
        self._first_ready()  # when it started, the landscapes were planned for its device
        if chosen is not None:
            for each in new:
                each.sent.replan(each.landscape.in_batches(chosen.batch_size))
        first = new[0]
        search = Search(first.landscape.plan, freedom, self._limits)
        tuned = follow(search.steps(), lambda request: self._answers(request, first))
        for each in new:
            each.sent.replan(each.landscape.tuned(tuned))
        if tuned.warning:
            journal.tuned(tuned.warning)
        return float(tuned.seconds_per_point)

    def _answers(self, request: Request, landscape: NewLandscape) -> list[Any]:
        """What the search asks for, done by the workers of one node at the same time, or by one of them.

        The answers of workers that die or hang are missing. Measuring a point is tried on one worker after the other.
        """
        for _ in range(self._tries if isinstance(request, Measure) else 1):
            workers = self._workers_of_one_node() if request.everyone else [self._first_ready()]
            receipts = self._ask_together(workers, request, landscape.sent.inputs)
            if receipts:
                return [receipt.details["answer"] for receipt in receipts if "answer" in receipt.details]
        return []

    def _first_ready(self) -> WorkerHandle:
        while not self._crew.ready:
            self._wait()
        return next(iter(self._crew.ready.values()))

    def _workers_of_one_node(self) -> list[WorkerHandle]:
        """The first worker and those of its node that have started; waits a little for those that have not."""
        if self._timed_together is None:
            end = self._clock() + GATHER_SECONDS
            while len(self._crew.ready) < len(self._crew.handles) and self._clock() < end:
                self._wait()
            node = self._first_ready().node
            self._timed_together = [each.name for each in self._crew.ready.values() if each.node == node]
        return [self._crew.ready[name] for name in self._timed_together if name in self._crew.ready]

    def _ask_together(self, workers: Sequence[WorkerHandle], request: Request, inputs: Any) -> list[Receipt]:
        """The receipts of the workers that give one; a worker that takes too long is taken for hung."""
        names = [worker.name for worker in workers]
        received = self._receipts.measurements
        received.clear()
        end = self._clock() + MEASURE_SECONDS
        for name in names:
            self._crew.measure(name, inputs, request)
        while waiting := [name for name in names if name in self._crew.handles and name not in received]:
            if self._clock() > end:
                for name in waiting:
                    self._manager.lose(name, f"it took more than {MEASURE_SECONDS:.0f} s to measure a few points")
                break
            self._wait()
        return [received[name] for name in names if name in received]
