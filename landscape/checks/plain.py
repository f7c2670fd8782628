"""The mean loss by a plain loop over the caller's model, without an engine, without the code that moves weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from landscape.batch_norm import BatchNorm
from landscape.calculation import Question, Shared, Station
from landscape.draws import kept_draws, noticed_draws, seed_draws
from landscape.evaluation.arithmetic import arithmetic
from landscape.evaluation.batching import batching_of
from landscape.evaluation.evaluator import Evaluator
from landscape.evaluation.feed import make_feed
from landscape.evaluation.private import private_copy
from landscape.evaluation.rounding import WeightRounding
from landscape.parameters import State
from landscape.plan import in_float32
from landscape.problem.names import WEIGHT
from landscape.problem.observables import Combination, Observe
from landscape.problem.reading import seed_of

Batches = Callable[[], Iterator[Any]]


class _DrawnError(Exception):
    """`observe` draws random numbers, which are others in another type."""


@dataclass(frozen=True, eq=False)
class PlainLoss(Question[tuple[float, str]]):
    """The mean loss at θ₀ + Σ cₖ·dₖ by plain torch, and the type that it was computed in.

    Attributes:
        point: c, one number for each direction; empty for θ₀.
        directions: the tensors of each direction.
        double: compute in float64 where the model and `observe` can, else in float32.
        batch_norm: which statistics the layers use.
        batches: how many of the plan's batches, from the first; None for all.
    """

    point: tuple[float, ...]
    directions: Shared[Sequence[State]]
    double: bool
    batch_norm: BatchNorm
    batches: int | None = None

    @property
    def label(self) -> str:
        """What messages call it."""
        return f"plain evaluation at ({', '.join(f'{each:.4g}' for each in self.point)})"

    def answer(self, station: Station) -> tuple[float, str]:
        """Evaluate once; twice where float64 is found not to do."""
        weights = rebuilt(station.origin, self.directions.get() if self.point else (), self.point)
        round_weights(weights, station)
        if self.double:
            try:
                return self._loss(station.evaluator, weights, torch.float64), "float64"
            except (RuntimeError, TypeError, ValueError, _DrawnError):
                pass  # float32 says whether it is the type that does not do
        return self._loss(station.evaluator, weights, torch.float32), "float32"

    def _loss(self, evaluator: Evaluator, weights: State, dtype: torch.dtype) -> float:
        plan, device = in_float32(evaluator.plan), evaluator.device
        batching = batching_of(evaluator.samples, plan, evaluator.batch_size, evaluator.held_samples.cuts)
        feed = make_feed(evaluator.held_samples, device, dtype)
        feed.split(batching.edges)

        def batches() -> Iterator[Any]:
            for index, batch in feed.batches(self.batches):
                if index in batching.begins:  # common random numbers, as everywhere
                    block = batching.begins[index]
                    seed_draws(seed_of(plan.seed, "block", block) if block else plan.seed)
                yield batch

        with arithmetic(plan, device), torch.no_grad(), kept_draws():
            model = private_copy(evaluator.model)[0].to(device)
            model = nn.Module.double(model) if dtype == torch.float64 else nn.Module.float(model)
            return plain_loss(model, weights, evaluator.observe, batches, self.batch_norm)


def rebuilt(origin: State, directions: Sequence[State], point: Sequence[float]) -> dict[str, Tensor]:
    """θ₀ + Σ cₖ·dₖ in float64; what no direction names stays as it is."""
    weights = {name: each.double() if each.is_floating_point() else each for name, each in origin.items()}
    for coordinate, direction in zip(point, directions, strict=True):
        for name, tensor in direction.items():
            weights[name] = weights[name] + coordinate * tensor.double()
    return weights


def round_weights(weights: dict[str, Tensor], station: Station) -> None:
    """Round weights as the plan says, in its precision: in another one some lie on the other side of a step."""
    plan, model = station.evaluator.plan, station.evaluator.model
    rounding = WeightRounding.of(model, plan.quantise).at_origin(station.origin)
    for name in rounding.infos:
        # A copy in any case, as what no direction names is the origin's own tensor.
        weights[name] = weights[name].to(torch.float64 if plan.precision == "float64" else torch.float32, copy=True)
        rounding.round_in_place(name, weights[name])


def plain_loss(model: nn.Module, weights: State, observe: Observe, batches: Batches, batch_norm: BatchNorm) -> float:
    """The mean loss of a model with these weights over the batches, in eval mode; the model is changed."""
    own = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for name, tensor in weights.items():
        own[name].copy_(tensor)
    model.eval()
    norms = [module for module in model.modules() if isinstance(module, _NormBase)]
    if batch_norm == "recalibrate":
        for index, batch in enumerate(batches()):
            for norm in norms:
                norm.train()
                norm.momentum = 1 / (index + 1)  # a mean over the batches; the first one forgets what was there
            observe(model, batch)
    for norm in norms:
        norm.train(batch_norm == "batch")
    sums: dict[str, list[float]] = {}
    for batch in batches():
        with noticed_draws() as draws:
            values = observe(model, batch)
        if draws.happened and next(model.parameters()).dtype == torch.float64:
            raise _DrawnError
        for name, total, count in _totals(values, observe):
            sums.setdefault(name, [0.0, 0.0])
            sums[name][0] += total
            sums[name][1] += count
    factors = observe.factors if isinstance(observe, Combination) else {"loss": 1.0}
    return sum(factors[name] * total / count for name, (total, count) in sums.items())


def _totals(values: Mapping[str, Tensor], observe: Observe) -> Iterator[tuple[str, float, float]]:
    """Σ wᵢℓᵢ and Σ wᵢ of a batch, of the loss or of each of its terms."""
    for name in values if isinstance(observe, Combination) else ("loss",):
        losses = values[name].double()
        weights = values[WEIGHT].double() if WEIGHT in values else torch.ones_like(losses)
        yield name, float((weights * losses).sum()), float(weights.sum())
