"""The base `cudagraph`: the kernels of `observe(model, batch)` recorded once per batch, and replayed at every point."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from landscape.core.devices import DEVICE_BYTES
from landscape.core.errors import JobError
from landscape.evaluation.engines.base import Forward
from landscape.evaluation.engines.rewrite import Rewrite, Target
from landscape.problem.batches import Batch
from landscape.problem.supervised import Observe

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
    def check(cls, target: Target) -> None:
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
