"""The question for the mean loss by a plain loop over the caller's model, of which `landscape check` asks some."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from landscape.batch_norm import BatchNorm
from landscape.calculation import Question, Shared, Station
from landscape.evaluation.evaluator import Evaluator
from landscape.evaluation.plain import DrawnError, loss_of, rebuilt
from landscape.evaluation.rounding import WeightRounding
from landscape.parameters import State
from landscape.plan import Precision, in_float32


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
        weights = dict(rebuilt(station.origin, self.directions.get() if self.point else (), self.point))
        round_weights(weights, station)
        if self.double:
            try:
                return self._loss(station.evaluator, weights, "float64"), "float64"
            except (RuntimeError, TypeError, ValueError, DrawnError):
                pass  # float32 says whether it is the type that does not do
        return self._loss(station.evaluator, weights, "float32"), "float32"

    def _loss(self, evaluator: Evaluator, weights: State, precision: Precision) -> float:
        plan = replace(in_float32(evaluator.plan), precision=precision)
        return loss_of(
            evaluator, weights.items, plan, self.batch_norm, fresh=bool(self.point), batches=self.batches,
            draws=precision != "float64",  # they are others in another type
        )  # fmt: skip


def round_weights(weights: dict[str, Tensor], station: Station) -> None:
    """Round weights as the plan says, in its precision: in another one some lie on the other side of a step."""
    plan, model = station.evaluator.plan, station.evaluator.model
    rounding = WeightRounding.of(model, plan.quantise).at_origin(station.origin)
    for name in rounding.infos:
        # A copy in any case, as what no direction names is the origin's own tensor.
        weights[name] = weights[name].to(torch.float64 if plan.precision == "float64" else torch.float32, copy=True)
        rounding.round_in_place(name, weights[name])
