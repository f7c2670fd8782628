"""Batches of any structure for the model: all of them kept on the device where they fit, else made for each point."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from landscape.core.devices import host_limit
from landscape.evaluation.counts import Counts
from landscape.problem.batches import Batch, dense_tensors_in, moved, tensor_bytes
from landscape.problem.samples import Samples

MOST_SHAPES = 4  # of batches; where there are more, an engine that prepares each shape would prepare too many

Key = tuple[int, torch.device, torch.dtype, tuple[tuple[int, int], ...]]

log = logging.getLogger("landscape")


class _Kept:
    """Batches on a device, shared by the evaluators that cut the same samples alike: the search compares two."""

    def __init__(self, samples: Samples, batches: list[Batch]) -> None:
        self.samples, self.batches = samples, batches  # the samples live as long, so that their number is theirs alone
        self.size = tensor_bytes(batches)


_KEPT: WeakValueDictionary[Key, _Kept] = WeakValueDictionary()


class AnyShape:
    """The batches are what `Samples.batch` makes, moved to the device whole and with their floating-point type.

    Args:
        limit: bytes of batches on the device above which none is kept there. They are then kept on the host, where
            that is another memory and has room, and otherwise made anew each time.
    """

    def __init__(self, samples: Samples, device: torch.device, dtype: torch.dtype, limit: int) -> None:
        self.samples, self._device, self._dtype, self._limit = samples, device, dtype, limit
        self.counts = Counts(samples)
        self.resident = True
        self.generation = 0  # how often batches were made for other edges, and so in other memory
        self._edges: list[tuple[int, int]] = []
        self._kept = _Kept(samples, [])  # on the device, all of them or none
        self._on_host: dict[int, Batch] = {}
        self._room = 0

    def split(self, edges: Sequence[tuple[int, int]]) -> None:
        """Go on in these batches, each given by its first sample and the one after its last."""
        if self._edges == list(edges):
            return
        key = (id(self.samples), self._device, self._dtype, tuple(edges))
        self._edges, self._kept, self._on_host = list(edges), _Kept(self.samples, []), {}
        self.generation += 1
        self._room = host_limit() if self._device.type == "cuda" else 0
        kept = _KEPT.get(key)
        if kept is None or kept.size > self._limit:
            kept = _Kept(self.samples, self._fitting())
        self.resident = len(kept.batches) == len(self._edges)
        if self.resident:
            self._kept = _KEPT[key] = kept

    def _fitting(self) -> list[Batch]:
        """All batches on the device; fewer where they do not fit."""
        batches: list[Batch] = []
        size = 0
        for index in range(len(self._edges)):
            batch = self._made(index)
            size += tensor_bytes(batch)
            if size > self._limit:
                log.info("data: the batches take more than %.3g MB and are made anew at every point", self._limit / 1e6)
                break
            batches.append(batch)
        return batches

    def __len__(self) -> int:
        return len(self._edges)

    def batches(self, count: int | None = None, first: int = 0) -> Iterator[tuple[int, Batch]]:
        """The batches from number `first` on, or the first `count` of these, numbered."""
        for index in range(len(self._edges))[first:][:count]:
            batch = self._kept.batches[index] if self.resident else self._made(index)
            self.counts.begin(self._edges[index])
            yield index, batch

    def _made(self, index: int) -> Batch:
        if index in self._on_host:
            return moved(self._on_host[index], self._device, self._dtype)
        batch = self.samples.batch(*self._edges[index])
        size = tensor_bytes(batch) if self._room else 0
        if 0 < size < self._room:
            self._room -= size
            self._on_host[index] = batch
        return moved(batch, self._device, self._dtype)

    @property
    def tensors(self) -> list[Tensor]:
        """What stays on the device from point to point."""
        return [tensor for tensor in dense_tensors_in(self._kept.batches) if tensor.numel()]

    @property
    def same_shapes(self) -> bool:
        """Whether the batches have so few shapes that something can be prepared for each."""
        shapes = {tuple(tensor.shape for tensor in dense_tensors_in(batch)) for batch in self._kept.batches}
        return self.resident and len(shapes) <= MOST_SHAPES
