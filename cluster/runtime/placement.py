"""How many workers a job gets, what each needs on its node, and why none starts; the cluster's nodes are arguments."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from cluster.runtime.options import check_limit
from landscape.core.errors import JobError, quoted


class Shipped(Protocol):
    """A job or a training with the user's callback, which is sent to a cluster.

    Attributes:
        folder: the folder with its module, from which it travels.
        run_path: the run, which does not travel.
        problem: the callback, 'module:function' or itself.
    """

    @property
    def folder(self) -> Path: ...
    @property
    def run_path(self) -> str: ...
    @property
    def problem(self) -> Any: ...


class ResourceRequest(Shipped, Protocol):
    """A job or a training that runs on a Ray session.

    Attributes:
        device: auto, cpu or cuda.
        device_ids: which GPUs of this machine a private Ray may use.
        num_gpus, threads: how many one worker needs.
        workers: how many workers; None for as many as find a place.
        max_workers: at most so many; None for what LANDSCAPE_MAX_WORKERS says.
        worker_resources: a cluster's custom resources that each worker needs, and how much of each.
    """

    @property
    def device(self) -> str: ...
    @property
    def device_ids(self) -> tuple[int, ...] | None: ...
    @property
    def num_gpus(self) -> float | None: ...
    @property
    def threads(self) -> int | None: ...
    @property
    def workers(self) -> int | None: ...
    @property
    def max_workers(self) -> int | None: ...
    @property
    def worker_resources(self) -> Mapping[str, float] | None: ...


Resources = Mapping[str, float]


@dataclass(frozen=True)
class Placement:
    """How many workers, and what each needs.

    Attributes:
        custom: custom resources of the cluster.
        most: at most so many workers; None for any number.
        ranks: of how many processes a worker is a group; each gets its share of the worker's cores and GPUs.
        nodes: over how many nodes these processes lie.
    """

    workers: int
    num_cpus: int
    num_gpus: float
    custom: Resources = field(default_factory=dict)
    most: int | None = None
    ranks: int = 1
    nodes: int = 1

    @property
    def asks(self) -> tuple[tuple[str, float], ...]:
        """The resources that one worker needs, by Ray's names, and how much of each."""
        own = {"CPU": self.num_cpus, "GPU": self.num_gpus}
        return tuple((name, amount) for name, amount in (own | dict(self.custom)).items() if amount)

    @property
    def asks_of_node(self) -> tuple[tuple[str, float], ...]:
        """What a worker needs on each of its nodes."""
        return tuple((name, amount / self.nodes) for name, amount in self.asks)

    def fitting(self, node: Resources) -> int:
        """How many such workers have room on one node, for their part on it."""
        return min(int(node.get(name, 0.0) / amount) for name, amount in self.asks_of_node)


@dataclass(frozen=True)
class Supply:
    """What a cluster has, node by node; `grows` where an autoscaler may add nodes of any size."""

    nodes: tuple[Resources, ...]
    grows: bool = False

    def total(self, name: str) -> float:
        """The amount of a resource on all nodes together."""
        return sum(node.get(name, 0.0) for node in self.nodes)

    def largest(self, name: str) -> float:
        """The largest amount of a resource on one node."""
        return max((node.get(name, 0.0) for node in self.nodes), default=0.0)


def placement(job: ResourceRequest, workers: int | None, has: Supply) -> Placement:
    """One worker per GPU where there are GPUs, else one per CPU core and thread; or as the job says.

    Raises:
        JobError: no node holds what one worker asks for, and none can be added.
    """
    per_worker = job.num_gpus
    if per_worker is None:
        gpus = job.device == "cuda" or (job.device == "auto" and has.total("GPU") >= 1)
        per_worker = 1.0 if gpus else 0.0
    # A worker with a GPU needs little of a CPU, and nodes with fewer cores than GPUs must still be filled.
    cores = 0 if per_worker else (job.threads or 1) * _processes(job)
    custom, limit = job.worker_resources or {}, most_workers(job)
    wanted = Placement(1, cores, per_worker, custom, limit, nodes=_nodes(job))
    if not has.grows:
        _refuse_impossible(wanted, has, grouped=_processes(job) > 1)
    number = workers or job.workers
    check_limit(number, wanted.most, "max_workers" if job.max_workers else MAX_WORKERS)
    return replace(wanted, workers=number or max(1, workers_that_fit(wanted, has)))


def _processes(job: ResourceRequest) -> int:
    """Of how many processes without a GPU a worker is a group."""
    resources = getattr(job, "resources", None)  # a training has none
    return int((resources and resources.cpus) or 1)


def _nodes(job: ResourceRequest) -> int:
    """Over how many nodes the processes of a worker lie."""
    resources = getattr(job, "resources", None)
    return int((resources and resources.nodes) or 1)


MAX_WORKERS = "LANDSCAPE_MAX_WORKERS"  # a site sets it where drivers run, so that one job does not take the cluster


def most_workers(job: ResourceRequest) -> int | None:
    """How many workers a job may have: as it says, else as the environment does; None for any number.

    Raises:
        JobError: the variable holds no number of workers.
    """
    text = os.environ.get(MAX_WORKERS, "")
    if job.max_workers is not None or not text:
        return job.max_workers
    if not re.fullmatch(r"0*[1-9][0-9]{0,8}", text):
        raise JobError(f"{MAX_WORKERS}: must be a whole number from 1, not {quoted(text)}; set it so, or unset it")
    return int(text)


def workers_that_fit(wanted: Placement, has: Supply) -> int:
    """How many workers a job gets that does not say how many: one for each place, within its limit."""
    room = places(wanted, has)
    return room if wanted.most is None else min(room, wanted.most)


def _refuse_impossible(wanted: Placement, has: Supply, *, grouped: bool) -> None:
    """Refuse a worker that needs more than any single node has.

    Args:
        grouped: whether it is a group of processes without GPUs.
    """
    options = {"GPU": "num_gpus", "CPU": "resources" if grouped else "threads"}
    # One core is not asked for: the head may have no cores of its own, and others may join it.
    asks = [(name, amount) for name, amount in wanted.asks_of_node if (name, amount) != ("CPU", 1)]
    each = f" on each of its {wanted.nodes} nodes" if wanted.nodes > 1 else ""
    for name, amount in asks:
        if has.largest(name) >= amount:
            continue
        option = options.get(name, "worker_resources")
        raise JobError(
            f"{option}: a worker asks for {amount:g} {name}s{each}, the cluster has {has.total(name):g}, on one node "
            f"{has.largest(name):g} at most; ask for less or add nodes"
        )
    if asks and not any(all(node.get(name, 0.0) >= amount for name, amount in asks) for node in has.nodes):
        request = " and ".join(f"{amount:g} {name}" for name, amount in asks)
        raise JobError(
            f"worker_resources: a worker asks for {request}, and no node has them all; ask for less or add nodes"
        )
    fitting = sum(all(node.get(name, 0.0) >= amount for name, amount in asks) for node in has.nodes)
    if wanted.nodes > max(1, fitting):
        raise JobError(
            f"resources: nodes must be at most those of the cluster with room, {fitting}, not {wanted.nodes}; ask for "
            "fewer or add nodes"
        )


def refuse_too_few_places(wanted: Placement, has: Supply) -> None:
    """Refuse workers that must all run at once where the cluster has no room for all, and no node can be added.

    Raises:
        JobError: says what they need, and what the cluster has.
    """
    room = places(wanted, has)
    if has.grows or room >= wanted.workers:
        return
    request = ", ".join(f"{amount:g} {name}" for name, amount in wanted.asks)
    totals = ", ".join(f"{has.total(name):g} {name}" for name, _ in wanted.asks)
    raise JobError(
        f"workers: {wanted.workers} must run at once and each asks for {request}; the cluster has {totals}, room for "
        f"{room}; ask for fewer, for less of each, or add nodes"
    )


def places(wanted: Placement, has: Supply) -> int:
    """How many such workers the cluster has room for; 0 while it has no nodes."""
    fitting = [wanted.fitting(node) for node in has.nodes]
    room = sum(fitting) // wanted.nodes
    # A worker has at most one part on a node.
    while room and sum(min(parts, room) for parts in fitting) < room * wanted.nodes:
        room -= 1
    return room


def explain_placement(wanted: Placement, has: Supply, available: Resources, who: str = "worker") -> str:
    """Why no worker starts: what each needs, what the cluster has, how much is free, and what could change it.

    Args:
        who: finds no place.
    """
    parts = [
        f"{name} {amount:g} of {has.total(name):g} ({available.get(name, 0):g} free, {has.largest(name):g} on one node)"
        for name, amount in wanted.asks
    ]
    too_small = not any(wanted.fitting(node) for node in has.nodes)
    waiting = "a larger node" if too_small else "the cluster"
    note = ", of which its autoscaler is told" if has.grows else ""
    return f"no {who} has found a place yet: each asks for {', '.join(parts)}; waiting for {waiting}{note}"


def waiting_text(wanted: Placement, has: Supply, available: Resources) -> str:
    """What is waited for while no worker has a place, as a stage of the progress: what was asked, what there is."""
    asked = ", ".join(f"{amount:g} {name}" for name, amount in wanted.asks)
    there = ", ".join(f"{has.total(name):g} {name} ({available.get(name, 0):g} free)" for name, _ in wanted.asks)
    return f"waiting for a place: a worker asks for {asked}; the cluster has {there}"
