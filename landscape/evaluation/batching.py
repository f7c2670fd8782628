"""How the samples of a landscape are cut into batches, and the batches gathered into blocks, by its plan alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

from landscape.core.plan import Plan
from landscape.problem.batches import batch_edges

Edge = tuple[int, int]  # a batch's first sample, and the one after its last


@dataclass(frozen=True)
class Batching:
    """The batches of a landscape and the blocks that they make.

    Attributes:
        edges: where every batch begins and ends.
        blocks: how many batches each block has; more than one where planned batches were cut to fit the memory.
        complete: how many blocks, from the first, stay what they are when samples are added.
    """

    edges: tuple[Edge, ...]
    blocks: tuple[int, ...]
    complete: int

    @cached_property
    def begins(self) -> dict[int, int]:
        """The number of the block that begins with a batch, by the number of the batch."""
        return {batch: block for block, batch in enumerate(accumulate(self.blocks[:-1], initial=0))}

    def of_block(self, block: int) -> int:
        """The number of the first batch of a block."""
        return sum(self.blocks[:block])

    def split(self, batches: int) -> Iterator[Edge]:
        """Where the batches of each block begin and end, among the last so many batches.

        Args:
            batches: those from the beginning of some block to the end.
        """
        ends = [end - len(self.edges) + batches for end in accumulate(self.blocks, initial=0)]
        return pairwise(end for end in ends if end >= 0)


def batching_of(samples: int, plan: Plan, batch_size: int, cuts: Sequence[Edge] | None = None) -> Batching:
    """The batches of so many samples.

    A planned batch is a block: samples [k·B, (k+1)·B), and what is left at the end. Where layers use the statistics of
    a batch no batch must be much smaller than the others, and the sizes differ by at most one; so they do in landscapes
    of earlier versions, which are one block.

    Args:
        batch_size: samples of a batch at most; smaller than planned where planned batches do not fit the memory. They
            are then cut one by one, so that blocks stay what they are.
        cuts: where the batches begin and end that cannot be cut otherwise; each of them is a block.

    Example:
        >>> plan = Plan(batch_size=4, threads=1, device="cpu")
        >>> batching_of(10, plan, 4).edges, batching_of(10, plan, 2).blocks
        (((0, 4), (4, 8), (8, 10)), (2, 2, 1))
    """
    if cuts is not None:
        return Batching(tuple(cuts), (1,) * len(cuts), len(cuts))
    if plan.reduction == "whole":
        edges = batch_edges(samples, batch_size)
        return Batching(tuple(edges), (len(edges),), 0)
    size = plan.batch_size
    extends = plan.statistics.fixed
    planned = _consecutive(samples, size) if extends else batch_edges(samples, size)
    parts = [[(start + a, start + b) for a, b in batch_edges(stop - start, batch_size)] for start, stop in planned]
    edges = [edge for part in parts for edge in part]
    return Batching(tuple(edges), tuple(map(len, parts)), samples // size if extends else 0)


def _consecutive(samples: int, size: int) -> list[Edge]:
    return [(start, min(start + size, samples)) for start in range(0, samples, size)]
