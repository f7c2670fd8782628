"""A Ray session: local and private, or attached to a cluster; what it has, and how many workers that makes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import torch

from cluster.attach import check_address, unreachable, wrong_token
from cluster.placement import Placement, Supply, placement
from cluster.shipping import upload
from landscape.arithmetic import cores
from landscape.errors import ClusterUnreachableError, JobError
from landscape.spec import Job

NODE_GROUP = "ray.io/node-group"
QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": "error", "configure_logging": True}


@contextlib.contextmanager
def ray_session(job: Job, address: str | None, workers: int | None, allow_open: bool = False) -> Iterator[Placement]:
    """Start a private local Ray, or attach to the cluster at `address` (default: RAY_ADDRESS); leaves it after.

    Raises:
        ClusterUnreachableError: nothing answers at the address.
        JobError: the job asks for devices or workers that cannot be had, or the cluster takes code from anybody.
    """
    import ray

    place = address or os.environ.get("RAY_ADDRESS") or "local"
    attached = place != "local"
    guarded = attached and check_address(place, allow_open) == "token"
    if attached and job.device_ids is not None:
        raise JobError(
            "device_ids: restricts a local Ray only; "
            "on a cluster set CUDA_VISIBLE_DEVICES where each node's `ray start` runs"
        )
    started_here = not ray.is_initialized()
    if started_here and attached:
        _attach(job, place, guarded)
    elif started_here:
        _start(job, workers)
    try:
        yield placement(job, workers, supply())
    finally:
        if started_here:
            ray.shutdown()


def _attach(job: Job, address: str, guarded: bool) -> None:
    import ray

    with upload(job) as shipped:
        try:
            ray.init(address=address, runtime_env=shipped, **QUIET)
        except (ConnectionError, OSError, RuntimeError, ValueError) as error:
            if guarded and isinstance(error, (ConnectionError, RuntimeError)):
                raise wrong_token(address, "refuses the token") from error
            raise ClusterUnreachableError(unreachable(address, str(error))) from error


def _start(job: Job, workers: int | None) -> None:
    """A private Ray of this process's own."""
    import ray

    gpus = _local_gpus(job)
    with _visible(job.device_ids):
        ray.init(
            address="local",
            num_cpus=max(cores(), (workers or job.workers or 1) * (job.threads or 1)),
            num_gpus=gpus,
            include_dashboard=False,
            **QUIET,
        )


def _local_gpus(job: Job) -> int:
    """GPUs of this machine that the job may use."""
    there = torch.cuda.device_count() if job.device != "cpu" else 0
    if job.device_ids is None:
        return there
    beyond = [each for each in job.device_ids if each >= there]
    if beyond:
        raise JobError(f"device_ids: this machine has {there} GPUs, numbered from 0; {beyond[0]} is not one of them")
    return len(job.device_ids)


@contextlib.contextmanager
def _visible(device_ids: tuple[int, ...] | None) -> Iterator[None]:
    """Show Ray only these GPUs: it hands out what CUDA_VISIBLE_DEVICES lists when it starts."""
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    if device_ids is not None:
        # Ids count among the devices that this process sees, which may be a choice already.
        names = before.split(",") if before else []
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(names[i] if i < len(names) else str(i) for i in device_ids)
    try:
        yield
    finally:
        if device_ids is not None:
            if before is None:
                del os.environ["CUDA_VISIBLE_DEVICES"]
            else:
                os.environ["CUDA_VISIBLE_DEVICES"] = before


def supply() -> Supply:
    """What the cluster has at this moment; takes a session."""
    import ray

    nodes = [each for each in ray.nodes() if each["Alive"]]
    # What `ray up` and KubeRay start is labelled with its kind; an autoscaler takes waiting actors for demand.
    managed = any(NODE_GROUP in each.get("Labels", {}) for each in nodes)
    return Supply(tuple(each["Resources"] for each in nodes), grows=managed)


def object_store_room() -> int:
    """Bytes that one shared object may have: half of the smallest node's object store."""
    import ray

    stores = [node["Resources"].get("object_store_memory", 0.0) for node in ray.nodes() if node["Alive"]]
    return int(min((each for each in stores if each), default=0.0) / 2)


def draining_nodes() -> set[str]:
    """The nodes that are about to be taken away, by their id.

    Ray has no public call for it; Ray Train uses this one. Where a version lacks it no node is known to drain, and
    their workers are replaced when they are gone.
    """
    try:
        from ray._private.state import state

        return {str(node) for node in state.get_draining_nodes()}
    except (ImportError, AttributeError):
        return set()
