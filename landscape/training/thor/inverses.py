"""A refresh: statistics become factors, and the layers whose factors have changed get new inverses."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from torch import nn

from landscape.training.thor.layers import Layer, Norm, listed
from landscape.training.thor.optim_inverses import Damping, Inverse, invert
from landscape.training.thor.rules import TraceRule
from landscape.training.thor.sharing import Group, broadcast, owners, ranks_of, sum_over_ranks
from landscape.training.thor.statistics import Factors

log = logging.getLogger("landscape")


def refresh(
    layers: Sequence[Layer],
    dampings: Sequence[Damping],
    norms: Sequence[Norm],
    rule: TraceRule,
    average: float,
    scale: float,
    group: Group,
) -> None:
    """Make new inverses of the layers that the rule names, from what is pending on all ranks of the group.

    Args:
        dampings: λ of each layer.
        average: the share of the older factors in the new ones.
        scale: by which the loss was multiplied.
    """
    _, ranks = ranks_of(group)
    damping_of = dict(zip([layer.name for layer in layers], dampings, strict=True))
    looked_at = [layer for layer in layers if not layer.frozen and layer.weight.requires_grad]
    uncalled = {layer.name for layer in looked_at if layer.pending is None}
    if ranks > 1 and (looked_at or norms):
        sum_over_ranks(looked_at, norms, group)
    due: list[tuple[Layer, Factors, Damping]] = []
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
        log.warning("THOR trains first order what is not called in training mode: %s", listed(unseen))
    _renew(due, group)


def tell_replaced(layers: Sequence[Layer], model: nn.Module) -> None:
    """Name, once, the layers whose weights the model has no more: an optimiser trains those that it was given."""
    present = {id(parameter) for parameter in model.parameters()}
    gone = [layer for layer in layers if id(layer.weight) not in present and not layer.is_told]
    for layer in gone:
        layer.is_told = True
    if gone:
        names = listed([layer.name for layer in gone])
        log.warning("THOR does not train weights that replaced those it was made for: %s; make THOR anew", names)


def _is_due(layer: Layer, factors: Factors, rule: TraceRule, damping: Damping) -> bool:
    """Whether a layer gets a new inverse by the trace rule, which may also freeze it."""
    if not factors.are_finite:
        return True
    sizes = layer.inputs.size, layer.outputs.size
    now = damping.damped_trace(factors.traces, sizes)
    before = None if layer.traces is None else damping.damped_trace(layer.traces, sizes)
    decision = rule.decide(now, before)
    layer.frozen = decision == "freeze"
    return decision == "update"


def _renew(due: Sequence[tuple[Layer, Factors, Damping]], group: Group) -> None:
    """Invert each layer on one rank and tell the others. A layer without an inverse is first order."""
    rank, ranks = ranks_of(group)
    owner_of = owners([layer.cost for layer, _, _ in due], ranks)
    made: list[Inverse | None] = []
    for (layer, factors, damping), owner in zip(due, owner_of, strict=True):
        made.append(_inverted(layer, factors, damping) if owner == rank else None)
    failed = []
    for (layer, factors, _), owner, own in zip(due, owner_of, made, strict=True):
        inverse = own if ranks == 1 else broadcast(layer, own, owner == rank, owner, group)
        layer.inverse, layer.traces = inverse, None if inverse is None else factors.traces
        if inverse is None:
            failed.append(layer.name)
    if failed:
        log.warning("THOR trains first order up to the next refresh, as factors are not finite: %s", listed(failed))


def _inverted(layer: Layer, factors: Factors, damping: Damping) -> Inverse | None:
    made = invert(factors, damping)
    if made is None:
        return None
    inverse, used = made
    if used > damping.value:
        log.info("THOR damps %s by %g, not by %g: its factors are singular", layer.name, used, damping.value)
    return inverse
