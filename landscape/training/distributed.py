"""Data-parallel training: the order of an epoch, each rank's share of a batch, and communication between ranks."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from landscape.core.errors import LandscapeError, one_line


@dataclass(frozen=True)
class Share:
    """One rank's share of one batch.

    Args:
        number: the batch's number in its epoch, from 0.
        index: the numbers of this rank's samples in the data, int64 on the CPU.
        weight: the factor of the mean loss of these samples; the average of these products over the ranks is the mean
            over the whole batch.
        samples: how many samples the whole batch has.
    """

    number: int
    index: Tensor
    weight: float
    samples: int


def epoch_order(count: int, seed: int, epoch: int) -> Tensor:
    """A permutation of 0 … count−1 that depends on the seed and the epoch alone."""
    return torch.randperm(count, generator=torch.Generator().manual_seed((seed * 1_000_003 + epoch) % 2**64))


def share_of(count: int, rank: int, world: int) -> tuple[int, int, float]:
    """The start and the stop of a rank's share in a batch of `count` samples, and its weight.

    Shares are contiguous, and their sizes nᵣ differ by one at most. With the weight nᵣ·world/count, the average over
    the ranks of weight times mean is the mean over the batch, also for gradients. Every rank computes the whole of a
    batch with fewer samples than ranks, with weight 1, which gives the same average.

    Example:
        >>> [share_of(5, rank, 2) for rank in range(2)]
        [(0, 3, 1.2), (3, 5, 0.8)]
        >>> share_of(1, 1, 2)
        (0, 1, 1.0)
    """
    if count < world:
        return 0, count, 1.0
    small, larger = divmod(count, world)
    start = rank * small + min(rank, larger)
    stop = start + small + (rank < larger)
    return start, stop, (stop - start) * world / count


def steps_in(count: int, batch_size: int) -> int:
    """The number of batches of `count` samples; the last one may be smaller."""
    return -(-count // batch_size)


def smallest_share(count: int, batch_size: int, world: int) -> int:
    """How many samples the smallest share of an epoch has.

    Example:
        >>> smallest_share(9, 4, 1), smallest_share(9, 9, 2), smallest_share(9, 3, 4)
        (1, 4, 3)
    """
    whole = min(count, batch_size)
    sizes = (whole, count % batch_size or whole)
    return min(size if size < world else size // world for size in sizes)


def shares(order: Tensor, batch_size: int, rank: int, world: int, start: int = 0) -> Iterator[Share]:
    """The shares of one rank in the batches of an epoch, from batch number `start` on."""
    for number in range(start, steps_in(len(order), batch_size)):
        batch = order[number * batch_size : (number + 1) * batch_size]
        first, last, weight = share_of(len(batch), rank, world)
        yield Share(number, batch[first:last], weight, len(batch))


# ----------------------------------------------------------------------------------------------------
# Communication between ranks; without a process group, there is one rank.

T = TypeVar("T")
ALONE_SECONDS = 30.0  # after which rank 0 says that it waits

log = logging.getLogger("landscape")


def rank_and_world(group: Any = None) -> tuple[int, int]:
    """This process's rank in a group of processes, by default all of them, and the number of ranks; else 0 of 1."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return 0, 1
    return distributed.get_rank(group), distributed.get_world_size(group)


def on_first(compute: Callable[[], T]) -> T:
    """The result of rank 0, on every rank, which all wait for it.

    An error on rank 0 is raised on every rank; otherwise the others would wait for ever.
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
    with _told_if_alone(rank):
        torch.distributed.broadcast_object_list(outcome, src=0)
    value, failure = outcome
    if failure is not None:
        raise failure
    return value  # type: ignore[no-any-return]


@contextlib.contextmanager
def _told_if_alone(rank: int) -> Iterator[None]:
    """Within the block, rank 0 tells its user if the other ranks do not come."""
    text = (
        "rank 0 has waited for the other ranks for %g s: all of them must make and call what rank 0 does, such as the "
        "collector of a model under fully_shard"
    )
    timer = threading.Timer(ALONE_SECONDS, lambda: log.warning(text, ALONE_SECONDS))
    timer.daemon = True
    if rank == 0:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def gather(value: T) -> list[T]:
    """The value of each rank, on every rank. The values must be picklable."""
    _, world = rank_and_world()
    if world == 1:
        return [value]
    values: list[Any] = [None] * world
    torch.distributed.all_gather_object(values, value)
    return values


def sum_over_ranks(value: Tensor | float) -> Tensor:
    """The sum over the ranks, added in their order in float64, so that it is equal to the bit on each of them.

    The sum of whole numbers is int64; otherwise it has the type of `value`.
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
    """Give every rank the buffers of rank 0, which are those in checkpoints."""
    if rank_and_world()[1] > 1:
        for buffer in model.buffers():
            torch.distributed.broadcast(buffer, src=0)
