"""The workers of a job as Ray actors: how they start and end, how they get work, how many; and the job's metrics."""

from __future__ import annotations

import math
import os
import re
import sys
import time
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from ray.util.metrics import Gauge

from cluster.driver.rank_group import start_actors
from cluster.driver.transfer import (
    PIECE_BYTES,
    SamplePieces,
    SharedPoints,
    item_pieces,
    pack_samples,
    pack_state,
    pieces_of,
)
from cluster.driver.worker import (
    LOOK_SECONDS,
    MEASURE,
    NODE_LOST,
    START,
    Arrival,
    Asked,
    DeclaredObservables,
    ProblemSource,
    Receipt,
    WorkerHandle,
    WorkerQuery,
)
from cluster.runtime.placement import Placement, explain_placement, waiting_text, workers_that_fit
from cluster.runtime.session import (
    draining_nodes,
    has_process,
    object_store_room,
    private_ray_ended,
    refuse_dead_ray,
    supply,
)
from landscape.compute.executor import Shared, WorkItem
from landscape.compute.prepared import PreparedJob
from landscape.compute.tasks import Task, Work
from landscape.core.devices import host_limit
from landscape.core.errors import JobError, one_line, printable
from landscape.core.progress import stage
from landscape.evaluation.tuning.search import TuningRequest
from landscape.problem.batches import Samples, TensorSamples
from landscape.problem.collated import Collated, WholeBatches
from landscape.problem.supervised import ordered_names
from landscape.problem.terms import PointSets

SHOW_SECONDS = 5.0  # after which the progress says what is waited for
EXPLAIN_SECONDS = 20.0  # after which the user is told why there is no worker
MOST_ARRIVALS = 256  # that are taken in at once, as their values are in this process's memory
FETCH_SECONDS = 600.0  # 28 GB to 125 nodes take less than 3 minutes at 10 Gbit/s


@dataclass(frozen=True)
class InStore:
    """A value in Ray's store, which the workers of a node share."""

    reference: Any

    def get(self) -> Any:
        """The value; fetched to a node once."""
        return fetch(self.reference)


class RayWorkerPool:
    """As many workers as are wanted. All are requested at once; those that have no place yet wait for nodes to join.

    Where the job does not say how many are wanted, each place of the cluster gets one, and so more come as it grows.
    """

    def __init__(
        self, prepared: PreparedJob, wanted: Placement, asked: int | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._job, self._wanted, self._clock = prepared.job, replace(wanted, ranks=prepared.ranks), clock
        self._asked = asked or prepared.job.workers
        self._samples = share_samples(prepared.samples, min(host_limit(), object_store_room()))
        callback = prepared.job.problem
        try:
            portable = callback if isinstance(callback, str) else [ray.put(callback)]
        except TypeError as error:  # Ray shows the tree of all that it holds
            raise JobError(
                "problem: cannot be sent to workers, since its model, loss or data holds what cannot be pickled "
                f"({one_line(error.__cause__ or error, 120)}); make that when the function is called, or compute here"
            ) from error
        path = tuple(map(os.path.abspath, sys.path))
        self._source = ProblemSource(
            portable, prepared.job.folder, path, look_of(prepared), prepared.network, prepared.job.origin_in
        )
        self._hired = 0
        self._looked = self._alone_since = self._last_shown = clock()
        self._explained = False
        self._pending: dict[str, deque[tuple[Any, Asked]]] = {}  # worker → what it has not answered yet
        self._others: dict[Any, str] = {}  # what another rank of a group answers → its worker
        self._awaited: dict[Any, str] = {}  # the reference that a worker answers next → the worker
        self.handles: dict[str, WorkerHandle] = {}
        self.ready: dict[str, WorkerHandle] = {}

    @property
    def size(self) -> int:
        """How many workers are wanted."""
        return self._wanted.workers

    def share(self, value: Any) -> Any:
        """Make a value available to every worker; returns a reference to send in its place."""
        return ray.put(value)

    def share_value(self, value: Any) -> Shared[Any]:
        """Make a value available to the work items that hold what is returned."""
        return InStore(ray.put(value))

    # -- workers ----------------------------------------------------------------------------------------------

    def hire(self) -> None:
        """Ask for one more worker, which starts when it has been placed."""
        if not self.handles:
            # Sharing the samples may have taken long, and no worker was waited for meanwhile.
            self._alone_since = self._last_shown = self._clock()
        self._hired += 1
        name = f"worker-{self._hired}"
        use_gpu = self._wanted.num_gpus > 0 and self._job.device != "cpu"
        actors = start_actors(self._wanted, (self._source, self._samples, use_gpu, fetch, node_id))
        self.handles[name] = WorkerHandle(name, actors)
        self._ask(name, START, "start")

    def note_start(self, name: str, receipt: Receipt) -> WorkerHandle:
        """Note where a worker runs, as its receipt of START says."""
        worker, details = self.handles[name], receipt.details
        worker.ready = True
        worker.host, worker.pid, worker.node, worker.device = (details[k] for k in ("host", "pid", "node", "device"))
        self.ready[name] = worker
        return worker

    def dismiss(self, name: str) -> WorkerHandle:
        """Forget a worker, and end its process if that has not ended by itself."""
        worker = self.handles.pop(name)
        self.ready.pop(name, None)
        for reference, _ in self._pending.pop(name, ()):
            self._awaited.pop(reference, None)
        self._others = {reference: owner for reference, owner in self._others.items() if owner != name}
        worker.actor.end()
        return worker

    def missing(self) -> int:
        """How many workers to hire now; the number that is wanted grows with the cluster, unless the job gives it."""
        if self._asked is None and self._clock() - self._looked > LOOK_SECONDS:
            self._looked = self._clock()
            self._wanted = replace(
                self._wanted, workers=workers_that_fit(self._wanted, supply()) or self._wanted.workers
            )
        return self._wanted.workers - len(self.handles)

    def on_draining_nodes(self) -> list[str]:
        """The workers whose node is about to be taken away."""
        leaving = draining_nodes()
        return [worker.name for worker in self.handles.values() if worker.node in leaving]

    def explain_absence(self, tell: Callable[[str], None]) -> None:
        """Say once, where it takes long, why no worker has been placed, or that the workers still load.

        The progress says so first, and later a warning, which is also written where nobody watches.
        """
        now = self._clock()
        if self.ready:
            self._alone_since = self._last_shown = now
            self._explained = False
        elif now - self._last_shown > SHOW_SECONDS:
            self._last_shown = now
            if any(has_process(worker.actor.leader) for worker in self.handles.values()):
                self._alone_since = now
                stage("the workers have their places, and load the problem and its samples")
            elif not self._explained:
                free, self._explained = ray.available_resources(), now - self._alone_since > EXPLAIN_SECONDS
                if self._explained:
                    tell(explain_placement(self._wanted, supply(), free))
                else:
                    stage(waiting_text(self._wanted, supply(), free))

    def dismiss_busy(self) -> None:
        """End the workers that still compute what nobody waits for, such as a second copy of a task."""
        for name, queue in list(self._pending.items()):
            if any(work != START for _, work in queue):
                self.dismiss(name)

    def close(self) -> None:
        """End all workers."""
        if private_ray_ended():
            return  # the workers are gone, and Ray does not answer
        for name in list(self.handles):
            self.dismiss(name)

    # -- what they are given to do, and answer ----------------------------------------------------------------

    def measure(self, name: str, inputs: Any, request: TuningRequest) -> None:
        """Ask a worker to measure what the search for the fastest engine needs."""
        self._ask(name, MEASURE, "tune", [inputs], request)

    def send(self, name: str, task: Task, inputs: Any, work: Work) -> None:
        """Give a worker a task."""
        states = [ray.put(pack_state(state)) for state in work.states]
        self._ask(name, task, "evaluate", [inputs], replace(work, states=()), states)

    def query(self, name: str, query: WorkerQuery, inputs: Any, item: WorkItem[Any]) -> None:
        """Give a worker a work item."""
        self._ask(name, query, "answer", [inputs], item)

    def _ask(self, name: str, asked: Asked, method: str, *arguments: Any) -> None:
        reference, others = self.handles[name].actor.call(method, *arguments)
        self._others |= dict.fromkeys(others, name)
        queue = self._pending.setdefault(name, deque())
        queue.append((reference, asked))
        if len(queue) == 1:
            self._awaited[reference] = name

    def arrivals(self, seconds: float) -> list[Arrival]:
        """What has come in. Each worker answers in order, so only its first reference is waited for.

        Raises:
            RayDied: no worker will answer any more.
        """
        refuse_dead_ray()
        if not self._awaited:
            time.sleep(seconds)
            return []
        references = [*self._awaited, *self._others]
        ready, _ = ray.wait(references, num_returns=min(len(references), MOST_ARRIVALS), timeout=0)
        if not ready:
            ready, _ = ray.wait(references, num_returns=1, timeout=seconds)
        lost = [self._end_of_rank(reference) for reference in ready if reference in self._others]
        answers = [self._arrival_of(reference) for reference in ready if reference in self._awaited]
        return [*answers, *(arrival for arrival in lost if arrival is not None)]

    def _end_of_rank(self, reference: Any) -> Arrival | None:
        """The loss of a worker, if one of the other ranks of its group has ended; their answers do not count."""
        name = self._others.pop(reference)
        try:
            ray.get(reference)
        except RayError as error:
            refuse_dead_ray()
            queue = self._pending.get(name)
            return Arrival(name, queue[0][1] if queue else START, None, f"a process of its group: {_short(error)}")
        return None

    def _arrival_of(self, reference: Any) -> Arrival:
        """The answer behind a reference that is ready; the worker's next one is waited for from now on."""
        name = self._awaited.pop(reference)
        queue = self._pending[name]
        _, asked = queue.popleft()
        if queue:
            self._awaited[queue[0][0]] = name
        try:
            return Arrival(name, asked, ray.get(reference))
        except RayTaskError as error:
            return Arrival(name, asked, Receipt(cause=_short(error), traceback=str(error)))
        except RayError as error:
            refuse_dead_ray()
            return Arrival(name, asked, None, _short(error))


ANSI = re.compile(r"\x1b\[[0-9;]*m")
CAUSE = re.compile(r"[\w.]*(?:Error|Exception|Interrupt)\b:? ")


def _short(error: BaseException) -> str:
    """The line of one of Ray's long messages that names the cause, or else its first line."""
    if "node has died" in str(error):
        return NODE_LOST
    lines = [line.strip() for line in printable(ANSI.sub("", str(error))).splitlines() if line.strip()]
    causes = [line for line in lines if CAUSE.match(line)]  # the last line of a traceback
    return ((causes or lines)[-1 if causes else 0] if lines else type(error).__name__)[:200]


def look_of(prepared: PreparedJob) -> DeclaredObservables | None:
    """What workers must see `observe` return; None where that was checked already.

    It is what the problem names: a convexity map holds more, and a request for ranges or eigenvectors holds less.
    """
    if prepared.looked:
        return None
    return DeclaredObservables(ordered_names(prepared.problem.observables or ()), prepared.job.precision)


def share_samples(samples: Samples, room: int) -> Any:
    """The samples as one object that the workers of a node share, or in pieces where it would be too large.

    Args:
        room: bytes that one object may have.
    """
    if isinstance(samples, PointSets) and samples.nbytes > room:
        return SharedPoints({name: share_samples(TensorSamples(points), room) for name, points in samples.sets.items()})
    if samples.nbytes <= room:
        # Ray does not resolve references in a list on the way: the worker fetches what it needs.
        return [ray.put(pack_samples(samples, ray.cloudpickle.Pickler))]
    if isinstance(samples, (Collated, WholeBatches)):
        size = min(PIECE_BYTES, room // 4)
        *references, ends = [ray.put(piece) for piece in item_pieces(samples, size, ray.cloudpickle.Pickler)]
        return SamplePieces(uuid.uuid4().hex, [ends, *references])
    pieces = pieces_of(samples, min(PIECE_BYTES, room // 4))
    return SamplePieces(uuid.uuid4().hex, [ray.put(pack_samples(piece)) for piece in pieces])


def fetch(reference: Any) -> Any:
    """Get an object by its reference; a list of one reference is what keeps Ray from resolving it early."""
    try:
        return ray.get(reference[0] if isinstance(reference, list) else reference, timeout=FETCH_SECONDS)
    except GetTimeoutError as error:
        # A node that reaches the head, but not the driver, would wait for ever.
        raise TimeoutError(
            f"what the driver shares did not arrive within {FETCH_SECONDS:g} s; "
            "every node must reach the driver's machine, on every port"
        ) from error


def node_id() -> str:
    """The node that this process runs on, in hexadecimal."""
    return str(ray.get_runtime_context().get_node_id())


# ----------------------------------------------------------------------------------------------------
# What a running job tells Prometheus through Ray: tiles, points, failures, tile seconds, queue, workers.

BUCKETS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, math.inf)  # seconds of a tile, each "at most"
OF_JOB, OF_LANDSCAPE = ("run", "user"), ("run", "user", "landscape")


@dataclass
class Totals:
    """What this driver has done of one landscape."""

    tiles: int = 0
    points: int = 0
    failures: int = 0
    seconds: float = 0.0
    buckets: list[int] = field(default_factory=lambda: [0] * len(BUCKETS))


class Metrics:
    """The metrics of this driver; Ray exports them on the metrics port of its node, names prefixed with `ray_`.

    All are gauges that hold exact totals. A counter or a histogram of Ray stays on the port until the node ends, and
    the sum of a histogram is estimated from its buckets; a gauge is gone some 20 s after its process has left Ray.

    Args:
        run: the folder or URL that the driver writes.
        user: who runs the job.
    """

    def __init__(self, run: str, user: str) -> None:
        # Ray raises an error for a label with other letters than those of ASCII.
        own = {"run": run, "user": user}
        self._labels = {name: text.encode("ascii", "backslashreplace").decode() for name, text in own.items()}
        self._totals: dict[str, Totals] = {}
        self._tiles = Gauge("landscape_tiles_total", "Tasks committed", OF_LANDSCAPE)
        self._points = Gauge("landscape_points_total", "Points committed", OF_LANDSCAPE)
        self._failures = Gauge("landscape_failures_total", "Tasks given up", OF_LANDSCAPE)
        self._seconds = Gauge("landscape_tile_seconds_sum", "Seconds of all tasks on their workers", OF_LANDSCAPE)
        self._timed = Gauge("landscape_tile_seconds_count", "Tasks in the sum of seconds", OF_LANDSCAPE)
        self._within = Gauge("landscape_tile_seconds_bucket", "Tasks of at most `le` seconds", (*OF_LANDSCAPE, "le"))
        self._queue = Gauge("landscape_queue", "Tasks that no worker has yet", OF_JOB)
        self._workers = Gauge("landscape_workers", "Workers ready", OF_JOB)

    def committed(self, landscape: str, points: int, seconds: float) -> None:
        """Count a task that is committed."""
        totals = self._totals.setdefault(landscape, Totals())
        totals.tiles += 1
        totals.points += points
        totals.seconds += seconds
        totals.buckets = [count + (seconds <= most) for count, most in zip(totals.buckets, BUCKETS, strict=True)]

    def failed(self, landscape: str) -> None:
        """Count a task that is given up."""
        self._totals.setdefault(landscape, Totals()).failures += 1

    def publish(self, waiting: int, workers: int) -> None:
        """Set every metric, which Ray exports at its next report, or when this process leaves it."""
        self._queue.set(waiting, self._labels)
        self._workers.set(workers, self._labels)
        for landscape, totals in self._totals.items():
            labels = {**self._labels, "landscape": landscape}
            self._tiles.set(totals.tiles, labels)
            self._points.set(totals.points, labels)
            self._failures.set(totals.failures, labels)
            self._seconds.set(totals.seconds, labels)
            self._timed.set(totals.tiles, labels)
            for count, most in zip(totals.buckets, BUCKETS, strict=True):
                self._within.set(count, {**labels, "le": f"{most:g}" if math.isfinite(most) else "+Inf"})
