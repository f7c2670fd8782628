"""A refresh: statistics become factors, and the layers whose factors have changed get new inverses."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.distributed as dist
from torch import nn

from landscape.training.distributed import rank_and_world
from landscape.training.thor.factors import Damping, Factors, FactorStatistics, Inverse, invert
from landscape.training.thor.layers import KroneckerLayer, Norm, list_names

log = logging.getLogger("landscape")

# ----------------------------------------------------------------------------------------------------
# When factors are refreshed, and which layers then get a new inverse.

Decision = Literal["update", "keep", "freeze"]


@dataclass(frozen=True)
class TraceRule:
    """THOR's rule for one layer (Chen et al. 2021, section 4.1), by the relative change Δ of tr(F + λI).

    Δ > ω₁ makes a new inverse, ω₂ ≤ Δ ≤ ω₁ keeps the old one until the next refresh, Δ < ω₂ keeps it for good. The
    first inverse is always made. ω₁ = 0 makes one at every refresh.

    >>> rule = TraceRule(0.01, 0.001)
    >>> [rule.decide(now, before) for now, before in ((1.0, None), (1.02, 1.0), (1.005, 1.0), (1.0005, 1.0))]
    ['update', 'update', 'keep', 'freeze']

    Attributes:
        update_above: ω₁.
        freeze_below: ω₂.
    """

    update_above: float
    freeze_below: float

    def decide(self, now: float, before: float | None) -> Decision:
        """The decision for a layer whose present inverse was made at the trace `before`."""
        if before is None or self.update_above == 0:
            return "update"
        change = abs(now - before) / abs(before)
        if change < self.freeze_below:
            return "freeze"
        return "update" if change > self.update_above else "keep"


# `frequency` is MindSpore's: a new inverse for every layer at each refresh.
RULES = {
    "frequency": TraceRule(0.0, 0.0),
    "thor": TraceRule(0.01, 0.0),
    "thor_stop": TraceRule(0.01, 0.001),
    "thor_nt": TraceRule(0.0, 0.0),
}


@dataclass
class Calendar:
    """The steps at whose end factors are refreshed: 0, then after growing intervals.

    >>> calendar, looks = Calendar(interval=2, growth=2, longest=5), []
    >>> for step in range(20):
    ...     if calendar.is_due(step):
    ...         looks.append(step)
    ...         calendar.move_on()
    >>> looks
    [0, 2, 6, 11, 16]

    Attributes:
        interval: steps from the next refresh to the one after it.
        growth: multiplies the interval after each refresh.
        longest: no interval is longer.
        due: the step of the next refresh.
    """

    interval: float
    growth: float = 1.0
    longest: float = float("inf")
    due: int = 0

    def is_due(self, step: int) -> bool:
        return step >= self.due

    def move_on(self) -> None:
        self.due += round(self.interval)
        self.interval = min(self.interval * self.growth, self.longest)


# ----------------------------------------------------------------------------------------------------
# Sums over ranks, and inversions distributed among them.

Group = dist.ProcessGroup | None


def sum_statistics(layers: Sequence[KroneckerLayer], norms: Sequence[Norm], group: Group) -> None:
    """Replace the pending statistics and their counts by sums over the ranks, whose shares may have any size."""
    sums: list[FactorStatistics] = []
    for layer in layers:
        if layer.pending is None:
            layer.pending = FactorStatistics.empty(layer.inputs, layer.outputs, layer.dtype, layer.weight.device)
        sums.append(layer.pending)
    counts = (
        [statistics.samples for statistics in sums]
        + [statistics.rows for statistics in sums]
        + [norm.pending for norm in norms]
    )
    # In float32, more than 2^24 pixels would be rounded.
    device = next(
        statistics.device for statistics in (*[layer.weight for layer in layers], *[norm.weight for norm in norms])
    )
    totals = torch.tensor(counts, dtype=torch.float64, device=device)
    dist.all_reduce(totals, group=group)
    values = totals.tolist()
    for number, statistics in enumerate(sums):
        statistics.samples, statistics.rows = values[number], values[len(sums) + number]
    for norm, samples in zip(norms, values[2 * len(sums) :], strict=True):
        norm.pending = samples
    by_type = defaultdict(list)
    for block in (block for statistics in sums for block in (*statistics.a, *statistics.g)):
        by_type[block.dtype, block.device].append(block)
    for blocks in by_type.values():
        joined = torch.cat([block.flatten() for block in blocks])
        dist.all_reduce(joined, group=group)
        for block, total in zip(blocks, torch.split(joined, [block.numel() for block in blocks]), strict=True):
            block.copy_(total.view_as(block))


def owners(costs: Sequence[int], ranks: int) -> list[int]:
    """The rank that inverts each layer: the costliest first, each on the rank with the least load.

    >>> owners([8, 1, 5, 4], 2)
    [0, 0, 1, 1]
    """
    loads, ranks_of = [0] * ranks, [0] * len(costs)
    for number in sorted(range(len(costs)), key=lambda layer: (-costs[layer], layer)):
        ranks_of[number] = loads.index(min(loads))
        loads[ranks_of[number]] += costs[number]
    return ranks_of


def broadcast(
    layer: KroneckerLayer, inverse: Inverse | None, is_owner: bool, owner: int, group: Group
) -> Inverse | None:
    """The owner's inverse of a layer on every rank, to the same bits; None if it could not be made."""
    runs = [*layer.inputs.runs(), *layer.outputs.runs()]
    shapes = [(count, width, width) for _, count, width in runs]
    sizes = [count * width * width for count, width, _ in shapes]
    if is_owner and inverse is not None:
        message = torch.cat([block.flatten() for block in (*inverse.a, *inverse.g)])
    else:  # NaN stands for no inverse: computed inverses are finite
        message = torch.full((sum(sizes),), torch.nan, dtype=layer.dtype, device=layer.weight.device)
    dist.broadcast(message, group=group, group_src=owner)
    if bool(message[0].isnan()):
        return None
    parts = [part.view(shape) for part, shape in zip(torch.split(message, sizes), shapes, strict=True)]
    count = len(list(layer.inputs.runs()))
    return Inverse(tuple(parts[:count]), tuple(parts[count:]))


def refresh(
    layers: Sequence[KroneckerLayer],
    dampings: Sequence[Damping],
    norms: Sequence[Norm],
    rule: TraceRule,
    average: float,
    scale: float,
    group: Group,
) -> None:
    """Make new inverses of the layers that the rule selects, from the pending statistics of all ranks of the group.

    Args:
        dampings: λ of each layer.
        average: the share of the older factors in the new ones.
        scale: the factor of the loss.
    """
    _, ranks = rank_and_world(group)
    damping_of = dict(zip([layer.name for layer in layers], dampings, strict=True))
    looked_at = [layer for layer in layers if not layer.frozen and layer.weight.requires_grad]
    uncalled = {layer.name for layer in looked_at if layer.pending is None}
    if ranks > 1 and (looked_at or norms):
        sum_statistics(looked_at, norms, group)
    due: list[tuple[KroneckerLayer, Factors, Damping]] = []
    unseen = []
    for layer in looked_at:
        if layer.pending is None or not layer.pending.samples:
            if layer.name in uncalled and layer.weight.grad is not None and not layer.is_told:
                layer.is_told = True
                unseen.append(layer.name)
            continue
        factors = Factors.of(layer.pending, scale, ranks).mixed(layer.factors, average)
        if average and factors.are_finite:
            layer.factors = factors
        if _is_due(layer, factors, rule, damping_of[layer.name]):
            due.append((layer, factors, damping_of[layer.name]))
    for norm in norms:
        norm.samples = norm.pending or norm.samples
    if unseen:
        log.warning("THOR trains first order what is not called in training mode: %s", list_names(unseen))
    _renew(due, group)


def tell_replaced(layers: Sequence[KroneckerLayer], model: nn.Module) -> None:
    """Warn once about layers whose weights were replaced in the model: the optimiser trains the old ones."""
    present = {id(parameter) for parameter in model.parameters()}
    replaced = [layer for layer in layers if id(layer.weight) not in present and not layer.is_told]
    for layer in replaced:
        layer.is_told = True
    if replaced:
        names = list_names([layer.name for layer in replaced])
        log.warning("THOR does not train weights that replaced those it was made for: %s; make THOR anew", names)


def _is_due(layer: KroneckerLayer, factors: Factors, rule: TraceRule, damping: Damping) -> bool:
    """Whether a layer gets a new inverse by the trace rule, which may also freeze it."""
    if not factors.are_finite:
        return True
    sizes = layer.inputs.size, layer.outputs.size
    now = damping.damped_trace(factors.traces, sizes)
    before = None if layer.traces is None else damping.damped_trace(layer.traces, sizes)
    decision = rule.decide(now, before)
    layer.frozen = decision == "freeze"
    return decision == "update"


def _renew(due: Sequence[tuple[KroneckerLayer, Factors, Damping]], group: Group) -> None:
    """Invert each layer on one rank and send the inverse to the others. A layer without an inverse is first order."""
    rank, ranks = rank_and_world(group)
    owner_of = owners([layer.cost for layer, _, _ in due], ranks)
    inverses: list[Inverse | None] = []
    for (layer, factors, damping), owner in zip(due, owner_of, strict=True):
        inverses.append(_invert(layer, factors, damping) if owner == rank else None)
    failed = []
    for (layer, factors, _), owner, own in zip(due, owner_of, inverses, strict=True):
        inverse = own if ranks == 1 else broadcast(layer, own, owner == rank, owner, group)
        layer.inverse, layer.traces = inverse, None if inverse is None else factors.traces
        if inverse is None:
            failed.append(layer.name)
    if failed:
        log.warning("THOR trains first order up to the next refresh, as factors are not finite: %s", list_names(failed))


def _invert(layer: KroneckerLayer, factors: Factors, damping: Damping) -> Inverse | None:
    result = invert(factors, damping)
    if result is None:
        return None
    inverse, used = result
    if used > damping.value:
        log.info("THOR damps %s by %g, not by %g: its factors are singular", layer.name, used, damping.value)
    return inverse
