"""The device mesh that a callback gets whose model lies on several processes, and the group that it stands for."""

from __future__ import annotations

import inspect
import socket
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import distributed

from landscape.core.errors import JobError

MESH = "mesh"  # the argument of such a callback
COLLECTIVE_SECONDS = 600.0  # after which a rank that waits for others gives up


def takes_mesh(callback: Callable[..., Any]) -> bool:
    """Whether a callback has an argument `mesh`: `def problem(mesh)`."""
    try:
        return MESH in inspect.signature(callback).parameters
    except (TypeError, ValueError):
        return False


@dataclass(frozen=True)
class Rank:
    """One process of a group: its number from 0, and how many there are."""

    number: int
    ranks: int


def free_address() -> str:
    """A place of this machine at which a group can meet: `tcp://HOST:PORT`."""
    host = socket.gethostbyname(socket.gethostname())
    with closing(socket.socket()) as listening:
        listening.bind(("", 0))
        return f"tcp://{host}:{listening.getsockname()[1]}"


def join(rank: Rank, address: str, device: torch.device) -> Any:
    """Join a group, and return its one-dimensional device mesh; returns once all ranks have joined.

    Args:
        address: where rank 0 listens, from its `free_address`.
    """
    distributed.init_process_group(
        "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl", init_method=address, rank=rank.number,
        world_size=rank.ranks, timeout=timedelta(seconds=COLLECTIVE_SECONDS),
    )  # fmt: skip
    return mesh_of_group(device)


def own_mesh(device: torch.device) -> Any:
    """The mesh of this process alone, or of the group that it is in already: where a job is prepared, and serially."""
    if not distributed.is_initialized():
        alone: Any = distributed.HashStore()  # type: ignore[attr-defined]
        distributed.init_process_group("gloo", store=alone, rank=0, world_size=1)
    return mesh_of_group(device)


def mesh_of_group(device: torch.device) -> Any:
    """A mesh of one dimension over all ranks."""
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh(device.type, (distributed.get_world_size(),), mesh_dim_names=("ranks",))


def still_together(seconds: float) -> bool:
    """Whether all ranks come to this place within so many seconds: after an exception, a group may be out of step."""
    try:
        distributed.monitored_barrier(timeout=timedelta(seconds=seconds))
    except RuntimeError:
        return False
    return True


def refuse_without_file(weights: object) -> None:
    """Refuse a sharded problem that does not say where its weights are: no process has all of them.

    Raises:
        JobError: says how.
    """
    if weights is None:
        raise JobError(
            "problem: a model over several processes needs its weights in a file, which every process reads its part "
            "of: Problem(..., weights=FOLDER)"
        )
