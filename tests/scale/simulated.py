"""Workers that only exist on an event heap, for the real driver and the real schedule at sizes no machine here has.

The clock is virtual: it jumps to the next event, and what the driver itself spends on the processor is added to it,
so that a driver that is too slow shows as workers that wait. So are the costs of Ray that the simulation leaves out,
as measured on a real one.
"""

from __future__ import annotations

import heapq
import itertools
import random
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cluster.driver.driver import Driver
from cluster.driver.landscape_states import LandscapeState
from cluster.driver.schedule import Policy
from cluster.driver.worker import MEASURE, START, Arrival, Receipt, WorkerHandle
from landscape.compute.prepared import PreparedJob, PreparedLandscape
from landscape.compute.serial import RunOptions
from landscape.compute.tasks import OpenLandscape, Outcome, Work, missing_tasks
from landscape.core.grid import Grid, Index, Tile, points_per_tile, tile_at, tile_counts
from landscape.core.plan import Plan
from landscape.evaluation.reduction import Values
from landscape.evaluation.tuning.search import TuningRequest
from landscape.job.job import Job
from landscape.store.arrays import Examination
from landscape.surface.record import Record
from landscape.surface.record_parts import JobRecord

_STARTED = Receipt(
    details={"host": "simulated", "pid": 0, "node": "", "device": "cpu"},
)

# Of Ray 2.60 on one core, to be paid by the driver: a call sent, a receipt fetched, a reference waited for.
SEND_SECONDS, FETCH_SECONDS, WAIT_SECONDS = 110e-6, 60e-6, 1.1e-6
NOTICED_SECONDS = 1.3  # from the death of a worker until Ray says so
MOST_ARRIVALS = 256


class VirtualClock:
    """Seconds of the simulation. It runs with the processor while the driver works, and stands while the pool does."""

    def __init__(self, measure: Callable[[], float] = time.process_time) -> None:
        self._measure, self._base, self._since = measure, 0.0, measure()
        self.driver_seconds = 0.0  # what the driver has spent in all

    @property
    def now(self) -> float:
        return self._base

    def __call__(self) -> float:
        spent = self._measure() - self._since
        self._since += spent
        self._base += spent
        self.driver_seconds += spent
        return self._base

    def resume(self) -> None:
        self._since = self._measure()

    def charge(self, seconds: float) -> None:
        self._base += seconds

    def jump(self, to: float) -> None:
        self._base = max(self._base, to)


@dataclass
class _Worker:
    """Does what it was asked in order, until it dies."""

    asked: deque[tuple[Hashable, Work | None]] = field(default_factory=deque)
    dies: float = float("inf")


class SimulatedPool:
    """As many workers as asked, each evaluating in no time what takes `tile_seconds()` on the virtual clock."""

    def __init__(
        self, size: int, clock: VirtualClock, tile_seconds: Callable[[random.Random], float], *,
        deaths_per_hour: float = 0.0, start_seconds: float = 5.0, seed: int = 0, tasks: int = 0,
        outcome: Callable[[Work, float], Outcome] | None = None,
    ) -> None:  # fmt: skip
        self._size, self._clock, self._tile_seconds = size, clock, tile_seconds
        self._deaths_per_second, self._start_seconds = deaths_per_hour / 3600, start_seconds
        self._outcome = outcome or constant_outcome
        self._chance, self._numbers, self._order = random.Random(seed), itertools.count(1), itertools.count()
        self._events: list[tuple[float, int, str, float, bool]] = []  # when, …, who, since when, whether it dies
        self._workers: dict[str, _Worker] = {}
        self._begun, self._tasks, self._sent, self._waiting = 0, tasks, 0, 0
        self.handles: dict[str, WorkerHandle] = {}
        self.ready: dict[str, WorkerHandle] = {}
        self.steady: list[float] = []  # from when all workers have a task until all tasks are sent
        self.busy_steady = 0.0
        self.deaths = self.receipts = 0

    @property
    def busy_share(self) -> float:
        """Of the workers, over the steady time."""
        return self.busy_steady / (self._size * (self.steady[1] - self.steady[0]))

    @property
    def size(self) -> int:
        return self._size

    def missing(self) -> int:
        return self._size - len(self.handles)

    def share(self, value: Any) -> Any:
        return value

    def hire(self) -> None:
        name = f"worker-{next(self._numbers)}"
        self.handles[name] = WorkerHandle(name, None)
        worker = self._workers[name] = _Worker()
        if self._deaths_per_second:
            worker.dies = self._clock() + self._chance.expovariate(self._deaths_per_second)
        self._ask(name, START, None)

    def note_start(self, name: str, receipt: Receipt) -> WorkerHandle:
        handle = self.handles[name]
        handle.ready, handle.host, handle.device = True, "simulated", "cpu"
        self.ready[name] = handle
        return handle

    def measure(self, name: str, inputs: Any, request: TuningRequest) -> None:
        self._ask(name, MEASURE, None)

    def send(self, name: str, task: Hashable, inputs: Any, work: Work) -> None:
        now = self._clock()
        self._clock.charge(SEND_SECONDS)
        self._sent += 1
        self._begun += not self.handles[name].tasks and len(self._workers[name].asked) == 0
        if not self.steady and self._begun >= self._size:
            self.steady = [now, float("inf")]
        if self.steady and self._sent >= self._tasks and self.steady[1] > now:
            self.steady[1] = now
        self._ask(name, task, work)
        self._clock.resume()

    def _ask(self, name: str, asked: Hashable, work: Work | None) -> None:
        worker = self._workers[name]
        worker.asked.append((asked, work))
        if len(worker.asked) == 1:
            self._begin(name, worker, self._clock())

    def _begin(self, name: str, worker: _Worker, now: float) -> None:
        first = worker.asked[0][0]
        takes = self._start_seconds if first in (START, MEASURE) else self._tile_seconds(self._chance)
        dies = worker.dies < now + takes
        when = max(now, worker.dies) + NOTICED_SECONDS if dies else now + takes
        heapq.heappush(self._events, (when, next(self._order), name, now, dies))

    def arrivals(self, seconds: float) -> list[Arrival]:
        now = self._clock()
        self._clock.charge(WAIT_SECONDS * len(self._workers))
        if not self._events or self._events[0][0] > now:
            self._clock.jump(min(self._events[0][0] if self._events else now + seconds, now + seconds))
        found = list(itertools.islice(self._due(), MOST_ARRIVALS))
        self._clock.charge(FETCH_SECONDS * len(found))
        self._clock.resume()
        return found

    def _due(self) -> Iterator[Arrival]:
        while self._events and self._events[0][0] <= self._clock.now:
            when, _, name, began, dies = heapq.heappop(self._events)
            worker = self._workers.get(name)
            if worker is None:
                continue
            asked, work = worker.asked[0]
            if dies:
                self.deaths += 1
                yield Arrival(name, asked, None, "it was killed")
                continue
            worker.asked.popleft()
            if worker.asked:
                self._begin(name, worker, when)
            if work is None:
                yield Arrival(name, asked, _STARTED)
                continue
            self.receipts += 1
            if self.steady:
                self.busy_steady += max(0.0, min(when, self.steady[1]) - max(began, self.steady[0]))
            yield Arrival(name, asked, Receipt(self._outcome(work, when - began)))

    def dismiss(self, name: str) -> WorkerHandle:
        del self._workers[name]
        self.ready.pop(name, None)
        return self.handles.pop(name)

    def on_draining_nodes(self) -> list[str]:
        return []

    def explain_absence(self, tell: Callable[[str], None]) -> None:
        pass

    def close(self) -> None:
        pass


def constant_outcome(work: Work, seconds: float) -> Outcome:
    return Outcome(Values(*_values(len(work.points)), seconds))


@cache
def _values(points: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    return {"loss": np.ones(points)}, {"loss": np.ones(points)}


@dataclass(frozen=True)
class NoChunks:
    """An array of which nothing is kept."""

    shape: Index
    there: NDArray[np.bool_]

    def present(self) -> NDArray[np.bool_]:
        return self.there


class NoStore:
    """Takes commits and keeps nothing but how often each tile was committed."""

    def __init__(self, shape: Index, tile_shape: Index) -> None:
        self.name, self.shape, self.tile_shape, self.path_chunk = "plane", shape, tile_shape, 1
        self.observables, self.record, self.level = ("loss",), Record(), 0
        self.commits = np.zeros(tile_counts(shape, tile_shape), np.uint8)
        self.arrays, self.job = self, JobRecord()

    def points_in(self, tiles: NDArray[np.bool_]) -> int:
        return int(points_per_tile(self.shape, self.tile_shape)[tiles].sum())

    def points_of(self, tile: Tile) -> int:
        return tile.points

    def reader(self, name: str) -> NoChunks:
        return NoChunks(self.shape, np.zeros(self.commits.shape, np.bool_))

    @property
    def tile_count(self) -> int:
        return self.commits.size

    def tile(self, index: Index) -> Tile:
        return tile_at(index, self.shape, self.tile_shape)

    def siblings(self) -> Iterator[tuple[str, Any]]:
        return iter(())

    def computed_point(self, usable: Callable[[Index], bool]) -> None:
        return None

    def write_tiles(self, tiles: Sequence[tuple[Tile, Any]]) -> None:
        for tile, _ in tiles:
            self.commits[tile.index] += 1

    def quarantine_tile(self, tile: Tile) -> None:
        raise AssertionError(f"{tile} was given up")

    def examine(self) -> Examination:
        return Examination(self.commits == 0, (), ())

    def update_attributes(self, **changes: Any) -> None:
        self.record = self.record.changed(**changes)

    def consolidate(self) -> None:
        pass


class NoMetrics:
    def committed(self, landscape: str, points: int, seconds: float) -> None: ...

    def failed(self, landscape: str) -> None: ...

    def publish(self, waiting: int, workers: int) -> None: ...


def plane(shape: Index) -> PreparedLandscape:
    """A landscape without weights."""
    names = ("alpha", "beta", "gamma")[: len(shape)]
    grid = Grid(names, tuple(np.linspace(-1, 1, size) for size in reversed(shape)))
    plan = Plan(batch_size=1, threads=1, device="cpu")
    record = Record().changed(num_samples=1, observables=["loss"], identity={}, plan=plan.record())
    return PreparedLandscape("plane", {}, (), grid, None, plan, {}, record, ("loss",), lambda step: {})


def prepared(landscape: PreparedLandscape, run: str) -> PreparedJob:
    job = Job(run=run, problem="none:none")
    return PreparedJob(job, run, None, None, (landscape,))  # type: ignore[arg-type]


def simulate(
    store: Any, workers: int, tile_seconds: Callable[[random.Random], float], *, deaths_per_hour: float = 0.0,
    seed: int = 0, policy: Policy | None = None, measure: Callable[[], float] = time.process_time,
    start_seconds: float = 5.0, metrics: Any = None,
) -> tuple[SimulatedPool, VirtualClock]:  # fmt: skip
    """Compute what `store` lacks with the real driver; returns the pool and the clock, which tell how it went."""
    driver, pool, clock = driver_of(
        store, workers, tile_seconds, policy=policy, measure=measure, metrics=metrics,
        deaths_per_hour=deaths_per_hour, start_seconds=start_seconds, seed=seed,
    )  # fmt: skip
    clock.resume()
    driver.run()
    clock()
    return pool, clock


def driver_of(
    store: Any, workers: int, tile_seconds: Callable[[random.Random], float], kind: type[Any] = SimulatedPool, *,
    stop: Callable[[Any], bool] = lambda pool: False, accept_origin: bool = False, policy: Policy | None = None,
    measure: Callable[[], float] = time.process_time, metrics: Any = None, **of_pool: Any,
) -> tuple[Driver, Any, VirtualClock]:  # fmt: skip
    """The real driver of what `store` lacks, its pool of simulated workers, and the clock of both.

    Args:
        kind: of the pool, which gets `of_pool` beside.
        stop: is told the pool, and says whether to end early.
    """
    clock = VirtualClock(measure)
    landscape = plane(store.shape)
    tasks = missing_tasks(store, landscape.name)
    state = LandscapeState(landscape, OpenLandscape(store, tasks, tasks.points))
    pool = kind(workers, clock, tile_seconds, tasks=len(state.tasks), **of_pool)
    options = RunOptions(stop=lambda: stop(pool), accept_origin=accept_origin)
    job = prepared(landscape, "nowhere")
    return Driver(job, [state], pool, options, policy or Policy(), metrics or NoMetrics(), clock), pool, clock
