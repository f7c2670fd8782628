"""What an engine makes of `observe(model, batch)`: eager, compiled, as a CUDA graph, or for several points at once."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from landscape.evaluation.engines.pooling import PoolingByMaxima, use_maxima
from landscape.evaluation.engines.reuse import Reuse
from landscape.evaluation.engines.superposition import Superposition
from landscape.evaluation.engines.traced import Traced
from landscape.plan import Engine
from landscape.problem.batches import Batch
from landscape.problem.observables import Observe

CAPTURE_WARM_UPS = 3


class Forward:
    """Operation by operation: the reference, and what every other engine falls back to.

    Args:
        model: its tensors are set from outside, between calls.
        engine: which rewrites apply.
        reuse: what is remembered from point to point.
        superposed: layers that are computed as sums.
    """

    def __init__(
        self, model: nn.Module, observe: Observe, engine: Engine, reuse: Reuse | None = None,
        superposed: Superposition | None = None,
    ) -> None:  # fmt: skip
        leave = frozenset() if superposed is None else superposed.layers
        self._traced: Traced | None = None
        if engine.rewritten:
            rewrites = {"folded": engine.folded, "fused": engine.fused, "maxima": engine.maxima}
            self._traced = Traced(model, **rewrites, leave=leave)
        self.model = model if self._traced is None else self._traced.model
        # A mode is asked at every call of a function; a graph has been rewritten once.
        self.pooling = PoolingByMaxima() if engine.maxima and self._traced is None else None
        self._observe, self.reuse, self.superposed = observe, reuse, superposed

    def refresh(self) -> None:
        """The model's tensors were set anew."""
        if self._traced is not None:
            self._traced.refresh()

    def observe(self, index: int | None, batch: Batch) -> Any:
        """The observables of batch number `index`; None where the weights are not a point of the plane."""
        if self.reuse is not None:
            self.reuse.begin(index)
        with self.pooling or contextlib.nullcontext():
            return self._observe(self.model, batch)


class _Observed(nn.Module):
    """`observe` as a module around the model, so that it is compiled or called with other weights as a whole."""

    def __init__(self, model: nn.Module, observe: Observe) -> None:
        super().__init__()
        self.model, self._observe = model, observe

    def forward(self, batch: Batch) -> Mapping[str, Tensor]:
        return self._observe(self.model, batch)


class Compiled(Forward):
    """By `torch.compile`; shapes are fixed, so that every batch size is compiled once."""

    def __init__(self, model: nn.Module, observe: Observe, engine: Engine) -> None:
        super().__init__(model, observe, engine)
        backend = _inductor_with_maxima if engine.maxima else "inductor"
        self.pooling = None
        self._compiled = torch.compile(_Observed(self.model, observe).eval(), dynamic=False, backend=backend)

    def observe(self, index: int | None, batch: Batch) -> Any:
        return self._compiled(batch)


def _inductor_with_maxima(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
    from torch._inductor.compile_fx import compile_fx

    use_maxima(graph)
    return compile_fx(graph, inputs)


class Graphed(Forward):
    """A CUDA graph per batch: one launch instead of one per operation. Weights and samples stay where they are.

    What is returned is overwritten by the next call for the same batch.
    """

    def __init__(self, model: nn.Module, observe: Observe, engine: Engine) -> None:
        super().__init__(model, observe, engine)
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, Any]] = {}
        self._pool: Any = None

    def captures(self, index: int | None) -> bool:
        """Whether the call for this batch makes its graph."""
        return index is not None and index not in self._graphs

    def observe(self, index: int | None, batch: Batch) -> Any:
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


class Stacked(Forward):
    """Several points at once by `vmap`, the moved weights stacked. Whole sets of weights are computed one by one."""

    def __init__(self, model: nn.Module, observe: Observe, engine: Engine) -> None:
        super().__init__(model, observe, engine)
        self._observed = _Observed(self.model, observe)

    def observe_points(self, stacked: Mapping[str, Tensor], batch: Batch) -> Any:
        """The observables [points, samples] of a batch at the stacked weights [points, …]."""
        weights = {f"model.{name}": tensor for name, tensor in stacked.items()}

        def at_one(one: dict[str, Tensor]) -> Any:
            return functional_call(self._observed, one, (batch,))

        with self.pooling or contextlib.nullcontext():
            return vmap(at_one, randomness="same")(weights)


def make_forward(
    engine: Engine, model: nn.Module, observe: Observe, reuse: Reuse | None = None,
    superposed: Superposition | None = None,
) -> Forward:  # fmt: skip
    """The engine's forward of a model."""
    if engine.base == "compile":
        return Compiled(model, observe, engine)
    if engine.base == "cudagraph":
        return Graphed(model, observe, engine)
    if engine.base == "vmap":
        return Stacked(model, observe, engine)
    return Forward(model, observe, engine, reuse, superposed)
