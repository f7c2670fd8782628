"""Work items computed by the workers of a pool: sent, tried again where a worker is lost, gathered in their order."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from cluster.driver.schedule import Policy, TaskSchedule
from cluster.driver.short_jobs import is_quicker_here
from cluster.driver.transfer import pack_axes
from cluster.driver.worker import Arrival, LandscapeInputs, WorkerHandle, WorkerQuery
from cluster.driver.worker_manager import WorkerManager
from cluster.runtime.logs import graceful_stop
from cluster.runtime.session import ray_session, refuse_without_ray
from landscape.compute.executor import EvaluationSetting, Executor, LocalExecutor, Shared, WorkItem, unanswered_error
from landscape.compute.prepared import PreparedJob, PreparedLandscape
from landscape.compute.serial import RunOptions
from landscape.core.errors import Interrupted, JobError
from landscape.core.grid import Grid
from landscape.core.progress import STARTING_WORKERS, stage
from landscape.core.system import user_name

if TYPE_CHECKING:
    from cluster.driver.pool import Metrics, RayWorkerPool

Answer = TypeVar("Answer")

POLL_SECONDS = 0.25
GATHER_SECONDS = 10.0  # how long an item for several workers waits for more of them to start
KEPT_SETTINGS = 4  # each holds the weights and the axes; measures go through dozens of lines, one after another
NO_GRID = Grid((), ())


class RayExecutor(Executor):
    """Lets the workers of a pool compute work items.

    An item whose worker is lost goes to another one. An item that raises is tried as often as a task is. An item that
    takes far longer than others is also given to a second worker, and a worker that hangs is replaced.

    Args:
        pool: it is ended by whoever opened it.
        stop: is asked several times a second; when true, `Interrupted` is raised.
    """

    def __init__(
        self,
        pool: RayWorkerPool,
        stop: Callable[[], bool],
        policy: Policy,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pool, self._stop, self._clock = pool, stop, clock
        self._schedule: TaskSchedule[WorkerQuery] = TaskSchedule(policy=policy)
        self._manager = WorkerManager[WorkerQuery](self, pool, self._schedule, metrics, clock)
        self._numbers = itertools.count()
        # By identity; the setting is kept, so that it stays unique.
        self._settings: dict[int, tuple[EvaluationSetting, Any]] = {}
        self._asked: dict[WorkerQuery, tuple[Any, WorkItem[Any]]] = {}  # inputs of the setting, and the work item
        self._answers: dict[WorkerQuery, Any] = {}
        self._raised: dict[WorkerQuery, str] = {}  # what user code raised in queries apart from the schedule
        self._device = ""

    # -- what an executor does -------------------------------------------------------------------------------

    def share(self, value: Any) -> Shared[Any]:
        """Make a value available to all workers; each node fetches it once."""
        return self._pool.share_value(value)

    def ask(self, setting: EvaluationSetting, items: Sequence[WorkItem[Answer]]) -> list[Answer]:
        """The answers, in the order of the work items."""
        queries = self._put(self._inputs(setting), setting, items)
        self._schedule.enqueue(queries)
        try:
            while not self._schedule.finished:
                self._round()
            return [self._answers[query] for query in queries]
        finally:
            self._schedule.abandon()  # those that are left, where one cannot be answered
            self._schedule.holders.clear()  # workers go on with what they have, but nobody waits for it
            self._forget(queries)

    def ask_apart(self, setting: EvaluationSetting, item: WorkItem[Answer], times: int) -> list[Answer]:
        """The answers of several workers, each of which is set anew; different ones, if enough start within a while."""
        end = self._clock() + GATHER_SECONDS
        while (len(self._pool.ready) < min(times, self._pool.size) and self._clock() < end) or not self._pool.ready:
            self._round()
        answers: list[Answer] = []
        exceptions = 0
        while len(answers) < times:
            (query,) = self._put(self._pack(setting), setting, [item])
            names = sorted(self._pool.ready)
            cause = self._ask_one(names[len(answers) % len(names)], query)
            answers += [self._answers[query]] if query in self._answers else []
            self._forget([query])
            exceptions += bool(cause)
            if cause and self._schedule.policy.retry_rule.after_exception(exceptions) == "quarantine":
                raise unanswered_error(item.label, cause)
        return answers

    def _ask_one(self, name: str, query: WorkerQuery) -> str:
        """Let one worker answer, apart from the schedule; what user code raised, '' where it answered or is lost."""
        self._send(name, query)
        while query not in self._answers and query not in self._raised and name in self._pool.handles:
            self._round()
        while not self._pool.ready:
            self._round()
        return self._raised.pop(query, "")

    # -- the loop ---------------------------------------------------------------------------------------------

    def _round(self) -> None:
        if self._stop():
            raise Interrupted("interrupted; nothing of this is kept: the same command begins it anew")
        self._manager.patrol()
        for name, query in self._schedule.assign(self._clock()):
            self._send(name, query)
        for arrival in self._pool.arrivals(POLL_SECONDS):
            self._handle(arrival)

    def _send(self, name: str, query: WorkerQuery) -> None:
        inputs, item = self._asked[query]
        self._pool.query(name, query, inputs, item)

    def _handle(self, arrival: Arrival) -> None:
        name, receipt, query = arrival.worker, self._manager.receive(arrival), arrival.asked
        if receipt is None:
            return
        assert isinstance(query, WorkerQuery)
        is_awaited = query in self._asked  # else another worker was quicker, or the call that asked it has ended
        if receipt.fatal and is_awaited:
            raise JobError(receipt.cause)
        self._manager.note_answer()
        if "answer" in receipt.details or not is_awaited:
            self._schedule.judge_result(name, query, self._clock())
            if is_awaited:
                self._answers.setdefault(query, receipt.details["answer"])
        elif query not in self._schedule.holders:
            self._raised[query] = receipt.cause
        elif self._schedule.note_failure(name, query, self._clock()) == "quarantine":
            raise unanswered_error(self._asked[query][1].label, receipt.cause)

    # -- what the manager of the workers asks -----------------------------------------------------------------

    def admit(self, worker: WorkerHandle) -> None:
        """Take note of a worker's device.

        Raises:
            JobError: it is of another kind than that of the work items.
        """
        if self._device and worker.device != self._device:
            raise JobError(
                f"device: {worker.place} has {worker.device}, this is planned for {self._device}, and the values would "
                f"differ; set device: {worker.device} in the job, or, of a landscape that is there, go on with "
                f"{self._device}"
            )

    def is_excused(self, task: WorkerQuery) -> bool:
        """Never: it may be the work item that kills its worker."""
        return False

    def give_up(self, task: WorkerQuery, worker: WorkerHandle, cause: str) -> None:
        """Raise the error of a work item of which workers died."""
        raise unanswered_error(self._asked[task][1].label, cause)

    # -- the queries ------------------------------------------------------------------------------------------

    def _put(self, inputs: Any, setting: EvaluationSetting, items: Sequence[WorkItem[Any]]) -> list[WorkerQuery]:
        self._device = setting.plan.device
        for worker in self._pool.ready.values():
            self.admit(worker)
        queries = [WorkerQuery(next(self._numbers)) for _ in items]
        self._asked |= {query: (inputs, item) for query, item in zip(queries, items, strict=True)}
        return queries

    def _forget(self, queries: Sequence[WorkerQuery]) -> None:
        for query in queries:
            self._asked.pop(query, None)
            self._answers.pop(query, None)

    def _inputs(self, setting: EvaluationSetting) -> Any:
        """A reference to what the workers are set to; the last ones are kept in Ray's store."""
        entry = self._settings.pop(id(setting), None) or (setting, self._pack(setting))
        self._settings[id(setting)] = entry
        while len(self._settings) > KEPT_SETTINGS:
            del self._settings[next(iter(self._settings))]
        return entry[1]

    def _pack(self, setting: EvaluationSetting) -> Any:
        packed = pack_axes(setting.origin, setting.directions)
        return self._pool.share(LandscapeInputs("", *packed, NO_GRID, setting.plan))


# ----------------------------------------------------------------------------------------------------
# A Ray session with its workers, and an executor for a command: those workers, or this process where it is quicker.


@dataclass(frozen=True)
class ClusterOptions(RunOptions):
    """The options of `run` beside the job; its docstring describes each."""

    workers: int | None = None
    address: str | None = None
    policy: Policy | None = None
    allow_open: bool = False


@dataclass
class LazyPool:
    """A Ray session with its workers, which start when they are first needed and end with the block.

    Starting both takes seconds, and a level of refinement often takes less. Once Ray runs, everything is computed on
    it, since this process must not compute while it holds a session.
    """

    options: ClusterOptions
    metrics: Metrics = field(init=False)  # once the workers are hired
    _stack: ExitStack = field(default_factory=ExitStack, init=False)
    _hired: tuple[RayWorkerPool, Callable[[], bool]] | None = field(default=None, init=False)

    def __enter__(self) -> LazyPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def workers_for(self, prepared: PreparedJob) -> tuple[RayWorkerPool, Callable[[], bool]]:
        """The pool, and whether a signal has come since it was hired.

        Args:
            prepared: the job; every later one has its problem and its samples.
        """
        if self._hired is None:
            refuse_without_ray()
            # Importing Ray takes seconds, in vain where everything is computed here.
            from cluster.driver.pool import Metrics, RayWorkerPool

            options = self.options
            session = ray_session(prepared.job, options.address, options.workers, options.allow_open)
            placement = self._stack.enter_context(session)
            # The signal handlers are installed after `ray.init`, which installs some of its own.
            signalled = self._stack.enter_context(graceful_stop())
            pool = RayWorkerPool(prepared, placement, options.workers)
            self._stack.callback(pool.close)
            self.metrics = Metrics(prepared.run, user_name())
            self._stack.callback(self.metrics.publish, 0, 0)  # the last tasks, which the session exports as it ends
            self._hired = pool, signalled
        else:
            self._hired[0].dismiss_busy()
        return self._hired


@contextmanager
def executor_of(
    prepared: PreparedJob,
    landscape: PreparedLandscape,
    evaluations: int,
    *,
    serial: bool = False,
    workers: int | None = None,
    address: str | None = None,
    allow_open: bool = False,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Executor]:
    """Within the block, an executor for work items about a landscape; its workers end with the block.

    Args:
        evaluations: about how many evaluations of all samples the work items cost; decides who computes.
        serial: compute in this process, whatever it costs.
        workers: how many actors; default: as the job says, else one per GPU, else one per core.
        address: `host:port` or `auto` to attach to a cluster; default: RAY_ADDRESS, else a private local Ray.
        allow_open: also attach to a cluster that answers beyond loopback and asks for no token.
        stop: is asked several times a second; when true, and after a signal, `Interrupted` is raised.

    Raises:
        JobError: the job asks for what the cluster cannot give.
        ClusterUnreachableError: no cluster answers at the address, or a private Ray does not start.
    """
    if serial or is_quicker_here(prepared, landscape, evaluations, workers, address, searches=False):
        with graceful_stop() as signalled:
            yield LocalExecutor(prepared, landscape, lambda: stop() or signalled())
        return
    with LazyPool(ClusterOptions(workers=workers, address=address, allow_open=allow_open)) as lazy_pool:
        pool, signalled = lazy_pool.workers_for(prepared)
        stage(STARTING_WORKERS)
        yield RayExecutor(pool, lambda: stop() or signalled(), Policy(), lazy_pool.metrics)
