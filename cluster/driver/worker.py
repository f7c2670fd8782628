"""One worker, which has a device of its own: it loads the problem, evaluates tasks and returns plain data."""

from __future__ import annotations

import os
import socket
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from pathlib import Path
from typing import Any, Final, Literal, Protocol, TypeAlias

from cluster.driver.transfer import (
    PackedDirection,
    PackedItems,
    PackedWeights,
    SamplePieces,
    SharedPoints,
    Unpacker,
    gather,
    samples_of,
    unpack,
    unpack_samples,
    unpack_state,
)
from cluster.runtime.logs import Listener, Said
from landscape.compute.executor import EvaluationContext, WorkItem
from landscape.compute.landscape_context import own_state
from landscape.compute.reproducibility import (
    NotReproduced,
    ReferencePoint,
    compute_reference_point,
    losses_of_own_model,
)
from landscape.compute.tasks import Outcome, Task, Work, evaluate
from landscape.core.devices import keep_freed_memory, pick_device
from landscape.core.errors import JobError, NotRetried
from landscape.core.grid import Grid
from landscape.core.plan import OriginIn, Plan, Precision
from landscape.evaluation.dry_run import first_look
from landscape.evaluation.evaluator import Evaluator
from landscape.evaluation.reduction import Before
from landscape.evaluation.tuning.choices import KeptChoices
from landscape.evaluation.tuning.search import TuningRequest
from landscape.evaluation.tuning.trials import Trials
from landscape.model.parameters import State
from landscape.problem.batches import Samples, TensorSamples
from landscape.problem.callback import load_problem
from landscape.problem.collated import PickledItems
from landscape.problem.mesh import Rank, RankGroup, free_address, own_mesh
from landscape.problem.terms import PointSets, Problem
from landscape.problem.user_code import cause_of_failure
from landscape.surface.record_parts import WorkerRecord

STEP_SECONDS = 20.0  # within which all ranks of a group meet after an exception of user code
Fetch = Callable[[Any], Any]  # gets an object from the cluster by its reference


@dataclass(frozen=True)
class LandscapeInputs:
    """What a worker needs of one landscape, apart from the tasks.

    Attributes:
        check: the point that the worker reproduces before its first task; None where workers died of it.
        before: what the landscape that is extended holds of that point.
    """

    name: str
    origin: PackedWeights
    directions: Sequence[PackedDirection]
    grid: Grid
    plan: Plan
    check: tuple[float, ...] | None = None
    before: Before | None = None


@dataclass(frozen=True)
class DeclaredObservables:
    """What `observe` is declared to return; the workers check it where the driver could not."""

    observables: tuple[str, ...]
    precision: Precision


@dataclass(frozen=True)
class ProblemSource:
    """How a worker gets the problem: the callback, and where to import it from.

    A callback that is a function comes as a list of one reference, which Ray does not follow. So the worker can take
    over the driver's module path before it unpickles the function, which may need modules from there.
    """

    callback: str | list[Any] | Callable[[], Any]
    folder: Path
    path: tuple[str, ...] = ()
    look: DeclaredObservables | None = None
    network: Mapping[str, Any] = field(default_factory=dict)
    origin_in: OriginIn | None = None


@dataclass(frozen=True)
class Receipt:
    """What a worker returns, as plain data: the outcome, or the cause and traceback of what user code raised.

    Attributes:
        fatal: whether every other worker would fail in the same way.
        said: what was logged meanwhile.
    """

    outcome: Outcome | None = None
    cause: str = ""
    traceback: str = ""
    fatal: bool = False
    details: Mapping[str, Any] = field(default_factory=dict)
    said: tuple[Said, ...] = ()


def _reporting(work: Callable[..., Receipt]) -> Callable[..., Receipt]:
    """The method, whose receipt then also holds what was logged meanwhile, for the driver to log."""

    @wraps(work)
    def call(self: Worker, *arguments: Any) -> Receipt:
        with self._listener.listening():
            receipt = work(self, *arguments)
        if receipt.cause and self._group is not None and not self._group.still_together(STEP_SECONDS):
            os._exit(1)  # the ranks are out of step, and would wait for each other for ever
        return replace(receipt, said=self._listener.take())

    return call


class Worker:
    """Evaluates tasks of any landscape of a job. The pool makes it a Ray actor; the class itself knows no Ray.

    Exceptions never leave it as exceptions, since those that cannot be pickled would arrive as something else.
    """

    def __init__(
        self, source: ProblemSource, samples: Any, use_gpu: bool, fetch: Fetch, node: Callable[[], str] = lambda: "",
        rank: Rank | None = None,
    ) -> None:  # fmt: skip
        self._rank = rank
        self._group: RankGroup | None = None  # once this process has joined the others
        self._source, self._samples_reference, self._fetch, self._node = source, samples, fetch, node
        keep_freed_memory()
        self._device = pick_device("auto" if use_gpu else "cpu")
        self._loaded = ""
        self._evaluator: Evaluator | None = None
        self._own: State | None = None  # the weights of the problem, once they are needed
        self._reference_point: ReferencePoint | None = None  # of the landscape that is loaded
        self._trials: Trials | None = None
        self._context: EvaluationContext | None = None
        self._listener = Listener()

    def meeting_place(self, host_of: Callable[[], str] | None) -> str:
        """Where the processes of the group meet; asked of rank 0.

        Args:
            host_of: the name by which other nodes find this one; None if all processes are on this node.
        """
        return free_address() if host_of is None else free_address(host_of())

    def join(self, address: Sequence[Any]) -> None:
        """Join the group of processes that are one worker.

        Args:
            address: a list of one reference to the `meeting_place`.
        """
        assert self._rank is not None
        self._group = RankGroup(self._rank, self._fetch(list(address)), self._device)

    @_reporting
    def start(self) -> Receipt:
        """Load the problem; the receipt says where this worker runs."""
        try:
            sys.path[:0] = [entry for entry in self._source.path if entry not in sys.path]
            callback = self._source.callback
            callback = self._fetch(callback) if isinstance(callback, list) else callback
            if self._source.folder.is_dir():  # on another machine it is the working directory that was shipped
                os.chdir(self._source.folder)
            group = self._group
            if self._rank is not None and group is None:
                raise JobError("resources: the processes of a worker did not meet; every rank must reach the others")
            mesh = (lambda: own_mesh(self._device)) if group is None else (lambda: group.mesh)
            problem = load_problem(callback, self._source.folder, self._source.network, mesh)
            self._problem = problem
            self._model, self._observe = problem.model, problem.observe
            self._samples: Samples = receive_samples(self._samples_reference, problem, self._fetch)
            self._look()
        except Exception as error:
            return Receipt(cause=cause_of_failure(error), traceback=traceback.format_exc())
        return Receipt(details=self.describe())

    def _look(self) -> None:
        """Try `observe` on two samples, where the driver leaves that to the workers."""
        look = self._source.look
        if look is None:
            return
        of_problem = self._model, self._observe, self._samples
        names = first_look(*of_problem, look.precision, self._device, self._own_state()).names
        if names != look.observables:
            raise JobError(f"observe: returns {', '.join(names)}, the problem names {', '.join(look.observables)}")

    def describe(self) -> dict[str, Any]:
        """Where this worker runs: host, node, process, device."""
        return {
            "host": socket.gethostname(), "node": self._node(), "pid": os.getpid(), "device": self._device.type,
        }  # fmt: skip

    @_reporting
    def tune(self, inputs: Sequence[Any], request: TuningRequest) -> Receipt:
        """Measure what the search for the fastest engine asks for, on this device.

        Args:
            inputs: a list of one reference to the `LandscapeInputs`.
        """
        try:
            landscape, evaluator = self._load(inputs)
            if self._trials is None:
                self._trials = Trials(evaluator, landscape.grid, KeptChoices.of_user())
            answer = self._trials.answer(request)
        except Exception as error:
            return _failed(error)
        return Receipt(details={"answer": answer})

    @_reporting
    def evaluate(self, inputs: Sequence[Any], work: Work, states: Sequence[Any]) -> Receipt:
        """Evaluate a task.

        Args:
            inputs: a list of one reference to the `LandscapeInputs`; each node fetches them once.
            work: the task, without its whole weights.
            states: references to whole weights.
        """
        details: dict[str, Any] = {}
        try:
            landscape, evaluator = self._load(inputs)
            if self._reference_point is None and landscape.check is not None:
                self._reference_point = compute_reference_point(evaluator, landscape.check, landscape.before)
            if work.own_model and self._reference_point is not None:
                details["own_model"] = losses_of_own_model(evaluator, self._reference_point)
            whole = replace(work, states=tuple(unpack_state(self._fetch(state)) for state in states))
            outcome = evaluator.within_memory(lambda: evaluate(evaluator, whole))
        except Exception as error:
            return replace(_failed(error), details=details)
        return Receipt(outcome, details={"reference": self._reference_point, **details, **_reduced(evaluator)})

    @_reporting
    def answer(self, inputs: Sequence[Any], item: WorkItem[Any]) -> Receipt:
        """Compute a work item about the problem.

        Args:
            inputs: a list of one reference to the `LandscapeInputs` of its setting.
        """
        try:
            _, evaluator = self._load(inputs)
            if self._context is None:
                self._context = EvaluationContext(evaluator, evaluator.weights_at_origin)
            context = self._context
            answer = evaluator.within_memory(lambda: item.answer_from_unchanged(context))
        except Exception as error:
            return _failed(error)
        return Receipt(details={"answer": answer})

    def _own_state(self) -> State:
        """The weights of the problem, read once."""
        if self._own is None:
            self._own = own_state(self._problem)
        return self._own

    def _load(self, inputs: Sequence[Any]) -> tuple[LandscapeInputs, Evaluator]:
        """The landscape and an evaluator set to it; both are kept until a task of another landscape comes."""
        key = repr(inputs[0])
        if self._evaluator is None or key != self._loaded:
            self._inputs: LandscapeInputs = self._fetch(inputs[0])
            self._loaded, self._trials, self._context = "", None, None
            if self._evaluator is not None and self._evaluator.plan != self._inputs.plan:
                self._evaluator = None  # before the new one, as the device may hold model and samples only once
            unpacker = Unpacker(self._model, self._own_state, self._group)
            origin = unpacker.weights(self._inputs.origin)
            directions = [unpacker.direction(direction) for direction in self._inputs.directions]
            if self._evaluator is None:
                self._evaluator = Evaluator(
                    self._model, self._samples, self._observe, self._inputs.plan, self._device, origin, directions,
                    origin_in=self._source.origin_in, shared_over=self._problem.shared_over,
                )  # fmt: skip
            else:
                self._evaluator.load(origin, directions)
            self._loaded, self._reference_point = key, None
        return self._inputs, self._evaluator


def receive_samples(shared: Any, problem: Problem, fetch: Fetch) -> Samples:
    """The samples that the pool has shared: as one object, in pieces for files of the node, or apart for every set."""
    if isinstance(shared, SharedPoints):
        sets = {name: receive_samples(points, problem, fetch).rows for name, points in shared.sets.items()}
        return PointSets(sets)
    if not isinstance(shared, SamplePieces):
        return unpack_samples(fetch(shared), problem)
    first = fetch(shared.references[0])
    if isinstance(first, PackedItems):
        data = gather(shared, lambda reference: TensorSamples(unpack(fetch(reference).data)))
        return samples_of(PickledItems(data.tensors, first.ends), first, problem)
    return gather(shared, lambda reference: unpack_samples(fetch(reference), problem))


def _failed(error: Exception) -> Receipt:
    return Receipt(
        cause=cause_of_failure(error),
        traceback=traceback.format_exc(),
        fatal=isinstance(error, (NotRetried, NotReproduced)),
    )


def _reduced(evaluator: Evaluator) -> dict[str, int]:
    """The batch size of the last task, where it had to be smaller than planned."""
    used, planned = evaluator.batch_size, evaluator.plan.batch_size
    return {"batch_size": used} if used < planned else {}


# ----------------------------------------------------------------------------------------------------
# The protocol between the driver and its workers, whether Ray carries it or a simulation.

LOOK_SECONDS = 2.0  # between two looks at what the cluster has
NODE_LOST = "its node is lost"
START: Final = "start"  # START and MEASURE are asked of a worker apart from its tasks
MEASURE: Final = "measure"


@dataclass(frozen=True, slots=True)
class WorkerQuery:
    """The number of a work item that a worker is given."""

    number: int


Asked: TypeAlias = Task | WorkerQuery | Literal["start", "measure"]


@dataclass(slots=True)
class WorkerHandle:
    """A worker as the driver knows it.

    Attributes:
        actor: what carries the calls, to one process or to a group; None in a simulation.
        ready: whether it has loaded the problem; the fields up to `device` are known from then on.
        tasks, points, seconds: what it has done so far.
    """

    name: str
    actor: Any
    ready: bool = False
    host: str = ""
    node: str = ""
    pid: int = 0
    device: str = ""
    tasks: int = 0
    points: int = 0
    seconds: float = 0.0

    @property
    def place(self) -> str:
        """The worker's name, and where it runs, for messages."""
        return f"{self.name} ({self.host}, pid {self.pid}, node {self.node[:8]})" if self.host else self.name

    def record(self) -> WorkerRecord:
        """What the run records of it, for `status`."""
        return WorkerRecord(
            name=self.name, host=self.host, node=self.node, pid=self.pid, device=self.device,
            tasks=self.tasks, points=self.points, seconds=round(self.seconds, 3),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Arrival:
    """What came in from a worker.

    Attributes:
        asked: START, MEASURE, the task or the query.
        receipt: the answer; None where the worker will never give one.
        lost: why it never will.
    """

    worker: str
    asked: Asked
    receipt: Receipt | None
    lost: str = ""


class WorkerPool(Protocol):
    """The workers of a job. Each does what it is asked, in the order in which it is asked. A pool knows no schedule."""

    handles: dict[str, WorkerHandle]
    ready: dict[str, WorkerHandle]  # those of them that have started

    @property
    def size(self) -> int:
        """How many workers are wanted."""

    def missing(self) -> int:
        """How many to hire now."""

    def share(self, value: Any) -> Any:
        """Make a value available to every worker; returns a reference to send in its place."""

    def hire(self) -> None:
        """Ask for one more worker; its receipt of START arrives once it has loaded the problem."""

    def note_start(self, name: str, receipt: Receipt) -> WorkerHandle:
        """Note where a worker runs, as its receipt of START says."""

    def measure(self, name: str, inputs: Any, request: TuningRequest) -> None:
        """Ask a worker to measure what the search for the fastest engine needs.

        Args:
            inputs: a reference to the `LandscapeInputs`.
        """

    def send(self, name: str, task: Task, inputs: Any, work: Work) -> None:
        """Give a worker a task.

        Args:
            inputs: a reference to the `LandscapeInputs`.
            work: the task as arrays.
        """

    def arrivals(self, seconds: float) -> list[Arrival]:
        """What has come in; waits up to `seconds` for the first answer."""

    def dismiss(self, name: str) -> WorkerHandle:
        """End a worker; nothing more arrives from it."""

    def on_draining_nodes(self) -> list[str]:
        """The workers whose node is about to be taken away."""

    def explain_absence(self, tell: Callable[[str], None]) -> None:
        """Say once, in one line, why no worker has been placed, where that takes long."""

    def close(self) -> None:
        """End all workers."""
