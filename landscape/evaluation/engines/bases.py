"""The base `compile`: `observe(model, batch)` by `torch.compile`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import fx, nn

from landscape.evaluation.engines.base import Forward, ObservedModel
from landscape.evaluation.engines.rewrite import Rewrite, Target
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
    def check(cls, target: Target) -> None:
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
