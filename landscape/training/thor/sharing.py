"""Statistics summed over the ranks of data-parallel training, and inversions shared out among them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
import torch.distributed as dist

from landscape.training.thor.layers import Layer, Norm
from landscape.training.thor.optim_inverses import Inverse
from landscape.training.thor.statistics import Statistics

Group = dist.ProcessGroup | None


def ranks_of(group: Group) -> tuple[int, int]:
    """This process's rank in the group and the group's size; (0, 1) where no processes work together."""
    if not (dist.is_available() and dist.is_initialized()):
        return 0, 1
    return dist.get_rank(group), dist.get_world_size(group)


def sum_over_ranks(layers: Sequence[Layer], norms: Sequence[Norm], group: Group) -> None:
    """Replace what is pending by its sums over the ranks, counts included: ranks may have shares of any sizes."""
    sums: list[Statistics] = []
    for layer in layers:
        if layer.pending is None:
            layer.pending = Statistics.empty(layer.inputs, layer.outputs, layer.dtype, layer.weight.device)
        sums.append(layer.pending)
    counts = [each.samples for each in sums] + [each.rows for each in sums] + [norm.pending for norm in norms]
    # In float32 more than 2^24 pixels would be rounded.
    device = next(each.device for each in (*[layer.weight for layer in layers], *[norm.weight for norm in norms]))
    totals = torch.tensor(counts, dtype=torch.float64, device=device)
    dist.all_reduce(totals, group=group)
    values = totals.tolist()
    for number, each in enumerate(sums):
        each.samples, each.rows = values[number], values[len(sums) + number]
    for norm, samples in zip(norms, values[2 * len(sums) :], strict=True):
        norm.pending = samples
    together = defaultdict(list)
    for block in (block for each in sums for block in (*each.a, *each.g)):
        together[block.dtype, block.device].append(block)
    for blocks in together.values():
        joined = torch.cat([block.flatten() for block in blocks])
        dist.all_reduce(joined, group=group)
        for block, total in zip(blocks, torch.split(joined, [block.numel() for block in blocks]), strict=True):
            block.copy_(total.view_as(block))


def owners(costs: Sequence[int], ranks: int) -> list[int]:
    """The rank that inverts each layer: the costliest go first, each to the rank with the least to do.

    >>> owners([8, 1, 5, 4], 2)
    [0, 0, 1, 1]
    """
    loads, chosen = [0] * ranks, [0] * len(costs)
    for number in sorted(range(len(costs)), key=lambda each: (-costs[each], each)):
        chosen[number] = loads.index(min(loads))
        loads[chosen[number]] += costs[number]
    return chosen


def broadcast(layer: Layer, inverse: Inverse | None, is_owner: bool, owner: int, group: Group) -> Inverse | None:
    """What the owner's inverse of a layer is, None where it could not be made, on every rank to the same bits."""
    runs = [*layer.inputs.runs(), *layer.outputs.runs()]
    shapes = [(count, width, width) for _, count, width in runs]
    sizes = [count * width * width for count, width, _ in shapes]
    if is_owner and inverse is not None:
        message = torch.cat([block.flatten() for block in (*inverse.a, *inverse.g)])
    else:  # not a number where there is no inverse: those that are made are finite
        message = torch.full((sum(sizes),), torch.nan, dtype=layer.dtype, device=layer.weight.device)
    dist.broadcast(message, group=group, group_src=owner)
    if bool(message[0].isnan()):
        return None
    parts = [part.view(shape) for part, shape in zip(torch.split(message, sizes), shapes, strict=True)]
    count = len(list(layer.inputs.runs()))
    return Inverse(tuple(parts[:count]), tuple(parts[count:]))
