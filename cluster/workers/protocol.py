"""What the driver asks of its workers and hears from them, whatever carries it: Ray, or a simulation."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Protocol

from cluster.workers.worker import Receipt
from landscape.evaluation.choice.questions import Request
from landscape.record import WorkerRecord
from landscape.tasks import Work

LOOK_SECONDS = 2.0  # between two looks at what the cluster has
NODE_LOST = "its node is lost"
START, MEASURE = "start", "measure"  # what is asked of a worker apart from its tasks


@dataclass(slots=True)
class WorkerHandle:
    """A worker as the driver sees it, and what it has done."""

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
        return f"{self.name} ({self.host}, pid {self.pid}, node {self.node[:8]})" if self.host else self.name

    def record(self) -> WorkerRecord:
        """For `status`: who it is and how much it has done."""
        return WorkerRecord(
            name=self.name, host=self.host, node=self.node, pid=self.pid, device=self.device,
            tasks=self.tasks, points=self.points, seconds=round(self.seconds, 3),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Arrival:
    """What came in from a worker: the receipt of what it was asked, or why it will never give one."""

    worker: str
    asked: Hashable  # START, MEASURE or the task
    receipt: Receipt | None
    lost: str = ""


class Crew(Protocol):
    """The workers of a job. Each does what it is asked in the order it was asked; knows no schedule."""

    handles: dict[str, WorkerHandle]
    ready: dict[str, WorkerHandle]  # those of them that have started

    @property
    def size(self) -> int:
        """How many workers are wanted."""

    def missing(self) -> int:
        """How many to hire now."""

    def share(self, value: Any) -> Any:
        """Make a value available to every worker; returns the handle to send in its stead."""

    def hire(self) -> None:
        """Ask for one more worker; that it has started arrives."""

    def started(self, name: str, receipt: Receipt) -> WorkerHandle:
        """Note where a worker runs."""

    def measure(self, name: str, inputs: Any, request: Request) -> None:
        """Have a worker do what the search for the fastest engine asks for."""

    def send(self, name: str, task: Hashable, inputs: Any, work: Work) -> None:
        """Give a worker a task."""

    def arrivals(self, seconds: float) -> list[Arrival]:
        """What has come in; waits up to `seconds` for the first."""

    def dismiss(self, name: str) -> WorkerHandle:
        """Part with a worker; nothing more arrives from it."""

    def on_draining_nodes(self) -> list[str]:
        """The workers whose node is about to be taken away."""

    def explain_absence(self, tell: Callable[[str], None]) -> None:
        """Say once, in one line, why no worker has a place, when that takes long."""

    def close(self) -> None: ...
