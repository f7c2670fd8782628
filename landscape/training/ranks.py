"""What the ranks of a training tell one another; without a process group there is one rank, which says nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from landscape.core.errors import LandscapeError, one_line

T = TypeVar("T")


def rank_and_world() -> tuple[int, int]:
    """This process's rank and the number of ranks: those of torch.distributed where it is initialised, else 0 of 1."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return 0, 1
    return distributed.get_rank(), distributed.get_world_size()


def on_first(compute: Callable[[], T]) -> T:
    """What rank 0 computes, on every rank; none goes on before rank 0 is done.

    An error on rank 0 is raised on every rank, because the others would wait for it without end.
    """
    rank, world = rank_and_world()
    if world == 1:
        return compute()
    outcome: list[Any] = [None, None]
    if rank == 0:
        try:
            outcome = [compute(), None]
        except LandscapeError as error:
            outcome = [None, error]
        except Exception as error:
            torch.distributed.broadcast_object_list([None, LandscapeError(f"rank 0: {one_line(error)}")], src=0)
            raise
    torch.distributed.broadcast_object_list(outcome, src=0)
    value, failure = outcome
    if failure is not None:
        raise failure
    return value  # type: ignore[no-any-return]


def of_all(value: T) -> list[T]:
    """The value of each rank, on every rank. The values must be picklable."""
    _, world = rank_and_world()
    if world == 1:
        return [value]
    values: list[Any] = [None] * world
    torch.distributed.all_gather_object(values, value)
    return values


def summed(value: Tensor | float) -> Tensor:
    """The sum over the ranks, added in their order in float64, so that it is the same to the bit on each of them.

    A whole number stays whole; another type is the given one's.
    """
    tensor = torch.as_tensor(value).detach()
    _, world = rank_and_world()
    if world == 1:
        return tensor
    is_whole = not (tensor.is_floating_point() or tensor.is_complex())
    on_gpu = torch.distributed.get_backend() == "nccl"
    home = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    sent = tensor.to(home, torch.int64 if is_whole else torch.float64).contiguous()
    parts = [torch.empty_like(sent) for _ in range(world)]
    torch.distributed.all_gather(parts, sent)
    total = torch.stack(parts).sum(0)
    return total.to(tensor.device, total.dtype if is_whole else tensor.dtype)


def share_buffers(model: nn.Module) -> None:
    """Give every rank the buffers of rank 0, as its checkpoint holds them."""
    if rank_and_world()[1] > 1:
        for buffer in model.buffers():
            torch.distributed.broadcast(buffer, src=0)
