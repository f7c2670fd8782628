"""The base `compile`: `observe(model, batch)` by `torch.compile`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.func import functional_call, vmap

from landscape.core.devices import DEVICE_BYTES
from landscape.core.errors import JobError
from landscape.evaluation.engines.base import Forward, ObservedModel, Rewrite, RewriteTarget
from landscape.problem.batches import Batch
from landscape.problem.supervised import Observe


class Compiled(Forward):
    """By `torch.compile`; shapes are fixed, so that every batch size is compiled once."""

    def __init__(self, model: nn.Module, observe: Observe, rewrites: Mapping[str, Rewrite]) -> None:
        super().__init__(model, observe, rewrites)
        passes = [change for each in rewrites.values() for change in each.compiler_passes]
        backend = partial(_inductor_after, passes) if passes else "inductor"
        self._compiled = torch.compile(ObservedModel(model, observe).eval(), dynamic=False, backend=backend)

    @classmethod
    def check(cls, target: RewriteTarget) -> None:
        """Raises ValueError where batches have shapes of their own, as each would be compiled anew."""
        if not target.same_shapes:
            raise ValueError("engine: compile prepares code for each shape, and the batches have shapes of their own")

    def observe(self, index: int | None, batch: Batch) -> Any:
        """The observables of a batch, by the compiled code. No rewrite's `begin` is called."""
        return self._compiled(batch)


def _inductor_after(
    passes: Sequence[Callable[[fx.GraphModule], None]], graph: fx.GraphModule, inputs: list[Any]
) -> Any:
    from torch._inductor.compile_fx import compile_fx

    for change in passes:
        change(graph)
    return compile_fx(graph, inputs)


# ----------------------------------------------------------------------------------------------------
# The base `cudagraph`: the kernels of `observe(model, batch)` recorded once per batch, and replayed at every point.

CAPTURE_WARM_UPS = 3


class Graphed(Forward):
    """A CUDA graph per batch: one launch instead of one per operation. Weights and samples stay where they are.

    What is returned is overwritten by the next call for the same batch.
    """

    def __init__(self, model: nn.Module, observe: Observe, rewrites: Mapping[str, Rewrite]) -> None:
        super().__init__(model, observe, rewrites)
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, Any]] = {}
        self._pool: Any = None

    @classmethod
    def check(cls, target: RewriteTarget) -> None:
        """Raises JobError where samples stream to the device, as a graph reads them from where they were."""
        if not target.resident:
            raise JobError(
                "engine: cudagraph replays batches that stay where they are, and the samples do not fit the device; "
                f"use another engine, fewer samples, or a larger {DEVICE_BYTES}"
            )

    def captures(self, index: int | None) -> bool:
        """Whether the batch is a point's and has no graph yet."""
        return index is not None and index not in self._graphs

    def observe(self, index: int | None, batch: Batch) -> Any:
        """The observables of a batch by its graph, captured at its first call; without one where `index` is None."""
        if index is None:
            return super().observe(index, batch)
        if index not in self._graphs:
            self._graphs[index] = self._capture(batch)
        graph, values = self._graphs[index]
        graph.replay()
        return values

    def _capture(self, batch: Batch) -> tuple[torch.cuda.CUDAGraph, Any]:
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(CAPTURE_WARM_UPS):
                super().observe(None, batch)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            values = super().observe(None, batch)
        self._pool = graph.pool()
        return graph, values


# ----------------------------------------------------------------------------------------------------
# The base `vmap`: `observe(model, batch)` at several points at once, their weights stacked.


class Stacked(Forward):
    """Several points at once by `vmap`, the moved weights stacked. Whole sets of weights are computed one by one."""

    def __init__(self, model: nn.Module, observe: Observe, rewrites: Mapping[str, Rewrite]) -> None:
        super().__init__(model, observe, rewrites)
        self._observed = ObservedModel(model, observe)

    @classmethod
    def check(cls, target: RewriteTarget) -> None:
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
