"""A refresh: statistics become factors, and the layers whose factors have changed get new inverses."""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from landscape.core.errors import JobError
from landscape.training.distributed import rank_and_world
from landscape.training.thor.factors import Damping, Factors, FactorStatistics, Inverse, invert
from landscape.training.thor.formulas import FactorFormula
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


def sum_counts(
    layers: Sequence[KroneckerLayer], norms: Sequence[Norm], group: Group
) -> tuple[list[tuple[float, float]], list[float]]:
    """The samples and rows of each layer, and the samples of each LayerNorm, summed over the ranks."""
    sums = [layer.pending or FactorStatistics() for layer in layers]
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
    of_layers = list(zip(values[: len(sums)], values[len(sums) : 2 * len(sums)], strict=True))
    return of_layers, values[2 * len(sums) :]


def sum_statistics(layers: Sequence[KroneckerLayer], norms: Sequence[Norm], group: Group) -> None:
    """Replace the pending statistics and their counts by sums over the ranks, whose shares may have any size."""
    of_layers, of_norms = sum_counts(layers, norms, group)
    sums: list[FactorStatistics] = []
    for layer, (samples, rows) in zip(layers, of_layers, strict=True):
        known = layer.pending or FactorStatistics()
        zeros = [split.zeros(layer.dtype, layer.weight.device) for split in (layer.inputs, layer.outputs)]
        layer.pending = FactorStatistics(known.a or zeros[0], known.g or zeros[1], samples, rows)
        sums.append(layer.pending)
    for norm, samples in zip(norms, of_norms, strict=True):
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
    message = _packed(layer, inverse if is_owner else None)
    dist.broadcast(message, group=group, group_src=owner)
    return _unpacked(layer, message)


def averaged(layer: KroneckerLayer, inverse: Inverse | None, has_samples: bool, group: Group) -> Inverse | None:
    """The mean of the inverses of a layer over the ranks that have samples of it, on every rank.

    None if such a rank could not make its own.
    """
    message = _packed(layer, inverse) if has_samples else torch.zeros_like(_packed(layer, None))
    message = torch.cat([message, message.new_full((1,), float(has_samples))])
    dist.all_reduce(message, group=group)
    return _unpacked(layer, message[:-1] / message[-1])


def _shapes(layer: KroneckerLayer) -> list[tuple[int, int, int]]:
    return [(count, width, width) for split in (layer.inputs, layer.outputs) for _, count, width in split.runs()]


def _packed(layer: KroneckerLayer, inverse: Inverse | None) -> Tensor:
    """An inverse as one vector; NaN stands for none, since computed inverses are finite."""
    if inverse is not None:
        return torch.cat([block.flatten() for block in (*inverse.a, *inverse.g)])
    size = sum(map(math.prod, _shapes(layer)))
    return torch.full((size,), torch.nan, dtype=layer.dtype, device=layer.weight.device)


def _unpacked(layer: KroneckerLayer, message: Tensor) -> Inverse | None:
    if bool(message[0].isnan()):
        return None
    shapes, count = _shapes(layer), len(list(layer.inputs.runs()))
    parts = torch.split(message, [math.prod(shape) for shape in shapes])
    blocks = tuple(part.view(shape) for part, shape in zip(parts, shapes, strict=True))
    return Inverse(blocks[:count], blocks[count:])


# A layer that gets a new inverse, its factors, or None if this rank has no samples of it, and its damping.
Due = tuple[KroneckerLayer, Factors | None, Damping]


def refresh(
    layers: Sequence[KroneckerLayer],
    dampings: Sequence[Damping],
    norms: Sequence[Norm],
    formula: FactorFormula,
    rule: TraceRule,
    average: float,
    scale: float,
    group: Group,
) -> None:
    """Make new inverses of the layers that the rule selects, from the pending statistics of all ranks of the group.

    The differentiated loss is s·(Σ over the batch)/N, so the gradient of a sample's own loss is N/s times its part.
    With averaged gradients, each rank's part is as many times as large as there are ranks.

    Args:
        dampings: λ of each layer.
        average: the share of the older factors in the new ones.
        scale: s, the factor of the loss.

    Raises:
        JobError: ranks with factors of their own must keep or compare them.
    """
    _, ranks = rank_and_world(group)
    damping_of = dict(zip([layer.name for layer in layers], dampings, strict=True))
    looked_at = [layer for layer in layers if not layer.frozen and layer.weight.requires_grad]
    uncalled = {layer.name for layer in looked_at if layer.pending is None}
    samples_of = _join_ranks(looked_at, norms, formula, rule, average, group)
    due: list[Due] = []
    unseen = []
    for layer in looked_at:
        if not samples_of[layer.name]:
            if layer.name in uncalled and layer.weight.grad is not None and not layer.is_told:
                layer.is_told = True
                unseen.append(layer.name)
            continue
        if layer.pending is None or not layer.pending.samples:
            due.append((layer, None, damping_of[layer.name]))
            continue
        own = samples_of[layer.name] / (scale * ranks)
        found = formula.factors(layer.modules[0], layer.pending, (layer.inputs, layer.outputs), own)
        factors = found.mixed(layer.factors, average)
        if average and factors.are_finite:
            layer.factors = factors
        if _is_due(layer, factors, rule, damping_of[layer.name]):
            due.append((layer, factors, damping_of[layer.name]))
    for norm in norms:
        norm.samples = norm.pending or norm.samples
    if unseen:
        log.warning("THOR trains first order what is not called in training mode: %s", list_names(unseen))
    _renew(due, formula, group)


def _join_ranks(
    layers: Sequence[KroneckerLayer],
    norms: Sequence[Norm],
    formula: FactorFormula,
    rule: TraceRule,
    average: float,
    group: Group,
) -> dict[str, float]:
    """Sum what the formula sums over the ranks, and return the number of samples of each layer on all of them."""
    _, ranks = rank_and_world(group)
    if ranks > 1 and formula.averages_inverses:
        if average or rule.update_above:
            raise JobError(
                f"factors: 'mindspore-gpu' on {ranks} ranks must have refresh 'frequency' or 'thor_nt' and average 0, "
                "since each rank has factors of its own; take 'exact'"
            )
        of_layers, of_norms = sum_counts(layers, norms, group) if layers or norms else ([], [])
        for norm, samples in zip(norms, of_norms, strict=True):
            norm.pending = samples / ranks
        return {layer.name: samples for layer, (samples, _) in zip(layers, of_layers, strict=True)}
    if ranks > 1 and (layers or norms):
        sum_statistics(layers, norms, group)
    return {layer.name: layer.pending.samples if layer.pending else 0.0 for layer in layers}


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


def _renew(due: Sequence[Due], formula: FactorFormula, group: Group) -> None:
    """Give the layers their new inverses. A layer without an inverse is first order."""
    is_own = formula.averages_inverses and rank_and_world(group)[1] > 1  # the factors are those of this rank alone
    inverses = _averaged(due, group) if is_own else _inverted(due, group)
    failed = []
    for (layer, factors, _), inverse in zip(due, inverses, strict=True):
        layer.inverse = inverse
        layer.traces = None if inverse is None or factors is None or is_own else factors.traces
        if inverse is None:
            failed.append(layer.name)
    if failed:
        log.warning("THOR trains first order up to the next refresh, as factors are not finite: %s", list_names(failed))


def _inverted(due: Sequence[Due], group: Group) -> list[Inverse | None]:
    """Invert each layer on one rank and send the inverse to the others."""
    rank, ranks = rank_and_world(group)
    owner_of = owners([layer.cost for layer, _, _ in due], ranks)
    inverses = [_invert(*one) if owner == rank else None for one, owner in zip(due, owner_of, strict=True)]
    if ranks == 1:
        return inverses
    return [
        broadcast(layer, own, owner == rank, owner, group)
        for (layer, _, _), owner, own in zip(due, owner_of, inverses, strict=True)
    ]


def _averaged(due: Sequence[Due], group: Group) -> list[Inverse | None]:
    """Invert each layer on every rank, and average the inverses."""
    return [averaged(one[0], _invert(*one), one[1] is not None, group) for one in due]


def _invert(layer: KroneckerLayer, factors: Factors | None, damping: Damping) -> Inverse | None:
    result = None if factors is None else invert(factors, damping)
    if result is None:
        return None
    inverse, used = result
    if used > damping.value:
        log.info("THOR damps %s by %g, not by %g: its factors are singular", layer.name, used, damping.value)
    return inverse
