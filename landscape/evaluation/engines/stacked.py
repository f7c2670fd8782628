"""The base `vmap`: `observe(model, batch)` at several points at once, their weights stacked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call, vmap

from landscape.evaluation.engines.base import Forward, ObservedModel
from landscape.evaluation.engines.rewrite import Rewrite, Target
from landscape.problem.batches import Batch
from landscape.problem.supervised import Observe


class Stacked(Forward):
    """Several points at once by `vmap`, the moved weights stacked. Whole sets of weights are computed one by one."""

    def __init__(self, model: nn.Module, observe: Observe, rewrites: Mapping[str, Rewrite]) -> None:
        super().__init__(model, observe, rewrites)
        self._observed = ObservedModel(model, observe)

    @classmethod
    def check(cls, target: Target) -> None:
        """Raises ValueError where statistics are computed anew at every point, as stacked points would share them."""
        tracked = any(getattr(module, "running_mean", None) is not None for module in target.model.modules())
        if target.plan.statistics.recalibrated and tracked:
            raise ValueError(
                f"batch_norm: must not be {target.plan.batch_norm} under vmap, as the points computed at once would "
                "share their statistics"
            )

    def observe_points(self, stacked: Mapping[str, Tensor], batch: Batch) -> Any:
        """The observables [points, samples] of a batch at the stacked weights [points, …], all points at once."""
        with self.active():
            return vmap(lambda weights: self._at(weights, batch), randomness="same")(dict(stacked))

    def _at(self, weights: Mapping[str, Tensor], batch: Batch) -> Any:
        named = {f"model.{name}": tensor for name, tensor in weights.items()}
        return functional_call(self._observed, named, (batch,))
