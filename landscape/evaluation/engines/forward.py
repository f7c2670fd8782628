"""What an engine makes of `observe(model, batch)`: eager, compiled, as a CUDA graph, or for several points at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, fx, nn
from torch.func import functional_call, vmap

from landscape.errors import JobError
from landscape.evaluation.engines.rewrite import Rewrite, Target
from landscape.memory import DEVICE_BYTES
from landscape.problem.batches import Batch
from landscape.problem.observables import Observe

CAPTURE_WARM_UPS = 3


class Forward:
    """Operation by operation: the reference, and what every other engine falls back to.

    Args:
        model: its tensors are set from outside, between calls.
        rewrites: installed in the model, by name; this object tells them of points and batches, and closes them.
    """

    calls_modules: ClassVar[bool] = True  # whether Python calls the model's modules at every point

    def __init__(self, model: nn.Module, observe: Observe, rewrites: Mapping[str, Rewrite]) -> None:
        self.model, self._observe, self.rewrites = model, observe, dict(rewrites)
        self._observed = _Observed(model, observe)
        self._modes = [each.mode for each in rewrites.values() if each.mode is not None]

    @classmethod
    def check(cls, target: Target) -> None:
        """Raises JobError where the engine cannot run."""

    def refresh(self, point: Sequence[float] | None) -> None:
        """The model's tensors were set anew: to this point, or to a whole set of weights, which is no point."""
        for rewrite in self.rewrites.values():
            rewrite.refresh(point)

    def forget(self) -> None:
        """The calls that follow are for other samples or another row of points."""
        for rewrite in self.rewrites.values():
            rewrite.forget()

    def begin(self, index: int | None) -> None:
        """The call that follows is for batch number `index`; None: for weights that are no point."""
        for rewrite in self.rewrites.values():
            rewrite.begin(index)

    def observe(self, index: int | None, batch: Batch) -> Any:
        """The observables of batch number `index`; None where the weights are not a point of the plane."""
        self.begin(index)
        with self.active():
            return self._observe(self.model, batch)

    def observe_points(self, stacked: Mapping[str, Tensor], batch: Batch) -> Any:
        """The observables [points, samples] of a batch at stacked weights [points, …], one point after the other."""
        count = len(next(iter(stacked.values())))
        with self.active():
            each = [self._at({name: tensor[k] for name, tensor in stacked.items()}, batch) for k in range(count)]
        return {name: torch.stack([values[name] for values in each]) for name in each[0]}

    def _at(self, weights: Mapping[str, Tensor], batch: Batch) -> Any:
        named = {f"model.{name}": tensor for name, tensor in weights.items()}
        return functional_call(self._observed, named, (batch,))

    def active(self) -> AbstractContextManager[object]:
        """The modes of the rewrites, around one call."""
        if not self._modes:
            return nullcontext()
        modes = ExitStack()
        for mode in self._modes:
            modes.enter_context(mode)
        return modes

    def captures(self, index: int | None) -> bool:
        """Whether this call for the batch is the only one in which Python has a part; the next ones replay it."""
        return False

    def distrust_counters(self) -> None:
        """Go on without the rewrites that rely on torch's version counters, as user code writes past them."""
        for name in [name for name, each in self.rewrites.items() if each.trusts_counters]:
            self.rewrites.pop(name).close()

    def close(self) -> None:
        """Leave the model as it was."""
        while self.rewrites:
            self.rewrites.popitem()[1].close()


class _Observed(nn.Module):
    """`observe` as a module around the model, so that it is compiled or called with other weights as a whole."""

    def __init__(self, model: nn.Module, observe: Observe) -> None:
        super().__init__()
        self.model, self._observe = model, observe

    def forward(self, batch: Batch) -> Mapping[str, Tensor]:
        return self._observe(self.model, batch)


class Compiled(Forward):
    """By `torch.compile`; shapes are fixed, so that every batch size is compiled once."""

    calls_modules = False

    def __init__(self, model: nn.Module, observe: Observe, rewrites: Mapping[str, Rewrite]) -> None:
        super().__init__(model, observe, rewrites)
        passes = [change for each in rewrites.values() for change in each.compiler_passes]
        backend = partial(_inductor_after, passes) if passes else "inductor"
        self._compiled = torch.compile(self._observed.eval(), dynamic=False, backend=backend)

    def observe(self, index: int | None, batch: Batch) -> Any:
        return self._compiled(batch)


def _inductor_after(
    passes: Sequence[Callable[[fx.GraphModule], None]], graph: fx.GraphModule, inputs: list[Any]
) -> Any:
    from torch._inductor.compile_fx import compile_fx

    for change in passes:
        change(graph)
    return compile_fx(graph, inputs)


class Graphed(Forward):
    """A CUDA graph per batch: one launch instead of one per operation. Weights and samples stay where they are.

    What is returned is overwritten by the next call for the same batch.
    """

    calls_modules = False

    def __init__(self, model: nn.Module, observe: Observe, rewrites: Mapping[str, Rewrite]) -> None:
        super().__init__(model, observe, rewrites)
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, Any]] = {}
        self._pool: Any = None

    @classmethod
    def check(cls, target: Target) -> None:
        if not target.resident:
            raise JobError(
                "engine: cudagraph replays batches that stay where they are, and the samples do not fit the device; "
                f"use another engine, fewer samples, or a larger {DEVICE_BYTES}"
            )

    def captures(self, index: int | None) -> bool:
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

    calls_modules = False

    def observe_points(self, stacked: Mapping[str, Tensor], batch: Batch) -> Any:
        """The observables [points, samples] of a batch at the stacked weights [points, …], all points at once."""
        with self.active():
            return vmap(lambda weights: self._at(weights, batch), randomness="same")(dict(stacked))
