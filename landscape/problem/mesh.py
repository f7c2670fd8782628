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
LOOPBACK = "127.0.0.1"
VERDICT_SECONDS = 3600.0  # in which one rank of a node reads all weights once
COLLECTIVE_SECONDS = 600.0  # after which a rank that waits for others gives up


def takes_mesh(callback: Callable[..., Any]) -> bool:
    """Whether a callback needs an argument `mesh`: `def problem(mesh)`."""
    try:
        parameter = inspect.signature(callback).parameters.get(MESH)
    except (TypeError, ValueError):
        return False
    return parameter is not None and parameter.default is inspect.Parameter.empty


@dataclass(frozen=True)
class Rank:
    """One process of a group: its number from 0, how many there are, and over how many nodes they lie."""

    number: int
    ranks: int
    nodes: int = 1

    @property
    def leaders(self) -> range:
        """The first rank of each node."""
        return range(0, self.ranks, self.ranks // self.nodes)


def free_address(host: str = LOOPBACK) -> str:
    """A place of this machine at which a group can meet: `HOST:PORT`.

    Args:
        host: the name by which the others find this machine; default: all of them are on it.
    """
    with closing(socket.socket()) as listening:
        listening.bind((host, 0))
        return f"{host}:{listening.getsockname()[1]}"


class RankGroup:
    """This process as one rank of a group, whose ranks compute together; returns once all of them are there.

    Args:
        address: where rank 0 listens, from its `free_address`.

    Attributes:
        mesh: the device mesh, of one dimension.
    """

    def __init__(self, rank: Rank, address: str, device: torch.device) -> None:
        host, _, port = address.rpartition(":")
        patience = timedelta(seconds=COLLECTIVE_SECONDS)
        self._rank, self._met = rank, 0
        store: Any = distributed.TCPStore  # type: ignore[attr-defined]
        self._store = store(host, int(port), rank.ranks, is_master=rank.number == 0, timeout=patience)
        distributed.init_process_group(
            _backend(device), store=self._store, rank=rank.number, world_size=rank.ranks, timeout=patience
        )
        self.mesh = mesh_of_group(device)

    def agree(self, decide: Callable[[], bool]) -> bool:
        """Whether the first rank of every node decides so; the same on every rank."""
        self._met += 1
        if self._rank.number in self._rank.leaders:
            self._store.set(f"verdict-{self._met}-{self._rank.number}", "yes" if decide() else "no")
        names = [f"verdict-{self._met}-{leader}" for leader in self._rank.leaders]
        self._store.wait(names, timedelta(seconds=VERDICT_SECONDS))
        return all(self._store.get(name) == b"yes" for name in names)

    def still_together(self, seconds: float) -> bool:
        """Whether all ranks come to this place within so many seconds: after an exception, they may be out of step.

        Not by a collective: the others may wait in one, which nothing would end.
        """
        self._met += 1
        names = [f"met-{self._met}-{number}" for number in range(self._rank.ranks)]
        self._store.set(names[self._rank.number], "1")
        try:
            self._store.wait(names, timedelta(seconds=seconds))
        except RuntimeError:
            return False
        return True


def _backend(device: torch.device) -> str:
    return "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"


def own_mesh(device: torch.device) -> Any:
    """The mesh of this process alone, or of the group that it is in already: where a job is prepared, and serially."""
    if not distributed.is_initialized():
        alone: Any = distributed.HashStore()  # type: ignore[attr-defined]
        distributed.init_process_group(_backend(device), store=alone, rank=0, world_size=1)
    return mesh_of_group(device)


def mesh_of_group(device: torch.device) -> Any:
    """A mesh of one dimension over all ranks."""
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh(device.type, (distributed.get_world_size(),), mesh_dim_names=("ranks",))


def refuse_without_file(weights: object) -> None:
    """Refuse a sharded problem that does not say where its weights are: no process has all of them.

    Raises:
        JobError: says how.
    """
    if weights is None:
        raise JobError(
            "problem: a model over several processes needs its weights in a file, which every process reads its part "
            "of, also where a run has its weights: Problem(..., weights=FILE)"
        )
