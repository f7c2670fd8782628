"""The protocol between the driver and its workers, whether Ray carries it or a simulation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, TypeAlias

from cluster.driver.worker import Receipt
from landscape.compute.tasks import Task, Work
from landscape.evaluation.tuning.search import TuningRequest
from landscape.surface.record_parts import WorkerRecord

LOOK_SECONDS = 2.0  # between two questions for what the cluster has
NODE_LOST = "its node is lost"
START: Final = "start"  # START and MEASURE are asked of a worker apart from its tasks
MEASURE: Final = "measure"


@dataclass(frozen=True, slots=True)
class WorkerQuery:
    """A work item that a worker is given, by its number."""

    number: int


Asked: TypeAlias = Task | WorkerQuery | Literal["start", "measure"]


@dataclass(slots=True)
class WorkerHandle:
    """A worker as the driver knows it.

    Attributes:
        actor: what carries the calls; None in a simulation.
        ready: it has loaded the problem; the fields up to `device` are known from then on.
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
        lost: why not.
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
