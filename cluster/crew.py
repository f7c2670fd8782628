"""The workers of a job as Ray actors: hired, described, dismissed, and how many there should be. Knows no tasks."""

from __future__ import annotations

import logging
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import ray

from cluster.parcels import PIECE_BYTES, Parcels, pieces_of
from cluster.session import Placement, draining_nodes, explain_placement, object_store_room, places
from cluster.worker import ProblemSource, Receipt, Worker, pack_samples
from landscape.memory import host_limit
from landscape.preparation import PreparedJob
from landscape.samples import Batch, batch_bytes

log = logging.getLogger("landscape")

EXPLAIN_SECONDS = 20.0  # without any worker, until it is said why
LOOK_SECONDS = 2.0  # between two looks at what the cluster has


@dataclass
class Hand:
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

    def record(self) -> dict[str, Any]:
        """For `status`: who it is and how much it has done."""
        return {
            "name": self.name, "host": self.host, "node": self.node, "pid": self.pid, "device": self.device,
            "tasks": self.tasks, "points": self.points, "seconds": round(self.seconds, 3),
        }  # fmt: skip


class Crew:
    """As many workers as wanted: all are asked for at once, those that find no place yet wait for nodes to join.

    Where the job does not say how many, there is one for each place that the cluster has, and more as it grows.
    """

    def __init__(self, prepared: PreparedJob, wanted: Placement, asked: int | None) -> None:
        self._job, self._wanted = prepared.job, wanted
        self._asked = asked or prepared.job.workers
        self._samples = _send(prepared.samples, min(host_limit(), object_store_room()))
        self._source = ProblemSource(prepared.job.problem, prepared.job.folder, tuple(sys.path))
        self._born = 0
        self._looked = self._alone_since = time.monotonic()
        self._explained = False
        self.hands: dict[str, Hand] = {}

    @property
    def size(self) -> int:
        return self._wanted.workers

    def ready(self) -> list[Hand]:
        return [hand for hand in self.hands.values() if hand.ready]

    def hire(self) -> tuple[str, Any]:
        """Ask for one more worker; returns its name and the reference of its start."""
        self._born += 1
        name = f"worker-{self._born}"
        # Ray would restart an actor in silence, and for ever: the driver decides, within a budget.
        options = {"max_restarts": 0, "max_task_retries": 0, "max_concurrency": 1}
        actor = ray.remote(Worker).options(num_cpus=self._wanted.num_cpus, num_gpus=self._wanted.num_gpus, **options)
        use_gpu = self._wanted.num_gpus > 0 and self._job.device != "cpu"
        hand = Hand(name, actor.remote(self._source, self._samples, use_gpu, fetch, node_id))
        self.hands[name] = hand
        return name, hand.actor.start.remote()

    def started(self, name: str, receipt: Receipt) -> Hand:
        hand, details = self.hands[name], receipt.details
        hand.ready = True
        hand.host, hand.pid, hand.node, hand.device = (details[k] for k in ("host", "pid", "node", "device"))
        return hand

    def dismiss(self, name: str) -> Hand:
        """Take a worker off the list and end its process, if it has not ended by itself."""
        hand = self.hands.pop(name)
        ray.kill(hand.actor)
        return hand

    def missing(self) -> int:
        """How many workers to hire now: up to what is wanted, which grows with the cluster unless it was given."""
        if self._asked is None and time.monotonic() - self._looked > LOOK_SECONDS:
            self._looked = time.monotonic()
            resources = ray.cluster_resources()
            self._wanted = replace(self._wanted, workers=places(self._wanted, resources) or self._wanted.workers)
        return self._wanted.workers - len(self.hands)

    def on_draining_nodes(self) -> list[str]:
        """The workers whose node is about to be taken away."""
        leaving = draining_nodes()
        return [hand.name for hand in self.hands.values() if hand.node in leaving]

    def explain_absence(self, tell: Callable[[str], None]) -> None:
        """Say once, in one line, why no worker has started, when that takes long."""
        if self.ready():
            self._alone_since, self._explained = time.monotonic(), False
        elif not self._explained and time.monotonic() - self._alone_since > EXPLAIN_SECONDS:
            tell(explain_placement(self._wanted, ray.cluster_resources(), ray.available_resources()))
            self._explained = True

    def close(self) -> None:
        for name in list(self.hands):
            self.dismiss(name)


def _send(samples: Batch, room: int) -> Any:
    """The samples as one object, which the workers of a node share, or in pieces where that would be too large."""
    if batch_bytes(samples) <= room:
        # References in a list are not resolved on the way: the worker fetches what it needs.
        return [ray.put(pack_samples(samples))]
    pieces = pieces_of(samples, min(PIECE_BYTES, room // 4))
    return Parcels(uuid.uuid4().hex, [ray.put(pack_samples(piece)) for piece in pieces])


def fetch(reference: Any) -> Any:
    """Get an object by its reference; a list of one reference is what keeps Ray from resolving it early."""
    return ray.get(reference[0] if isinstance(reference, list) else reference)


def node_id() -> str:
    """The node that this process runs on, in hexadecimal."""
    return str(ray.get_runtime_context().get_node_id())
