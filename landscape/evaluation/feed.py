"""Give the model its samples batch by batch: all of them stay on the device, or each batch is copied to it in turn.

Both give the same bits. Kernels choose their instructions by the alignment of their inputs, so a streamed batch is
aligned as it would be among all samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import torch
from torch import Tensor

from landscape.core.devices import device_limit
from landscape.evaluation.any_shape import AnyShape
from landscape.problem.batches import Batch, map_tensors, tensors_of
from landscape.problem.samples import Rows, Samples, as_samples

ALIGNMENT = 512  # bytes: CUDA aligns allocations to this many, and the CPU to a divisor of it


class Resident:
    """All samples on the device in the type to compute in, once; the batches are views of them."""

    resident = same_shapes = True
    generation = 0  # the samples are the same memory in all batches
    counts = None  # a value for each row

    def __init__(self, samples: Rows, device: torch.device, dtype: torch.dtype) -> None:
        self.samples = Rows(map_tensors(lambda tensor: tensor.to(device, computed_type(tensor, dtype)), samples.rows))

    @property
    def tensors(self) -> list[Tensor]:
        """What stays on the device from point to point."""
        return tensors_of(self.samples.rows)

    def split(self, edges: Sequence[tuple[int, int]]) -> None:
        """Go on in these batches, each given by its first sample and the one after its last."""
        self._batches = [self.samples.batch(*edge) for edge in edges]

    def __len__(self) -> int:
        return len(self._batches)

    def batches(self, count: int | None = None, first: int = 0) -> Iterator[tuple[int, Batch]]:
        """The batches from number `first` on, or the first `count` of these, numbered."""
        yield from islice(enumerate(self._batches[first:], first), count)


class Streamed:
    """The samples stay in host memory or on disk, in their own type, and each batch is copied to the device in turn.

    On a CUDA device the next batch is copied on a stream of its own, through a buffer in pinned memory, while the
    current one is computed. It is converted on the device, so that images of one byte a pixel are copied as bytes.
    """

    resident, same_shapes = False, True
    generation = 0
    counts = None
    tensors: Sequence[Tensor] = ()  # streamed batches are copies

    def __init__(self, samples: Rows, device: torch.device, dtype: torch.dtype) -> None:
        self.samples, self._device, self._dtype = samples, device, dtype
        self._side = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def split(self, edges: Sequence[tuple[int, int]]) -> None:
        """Go on in these batches, each given by its first sample and the one after its last."""
        self._edges = list(edges)
        self._pinned: list[list[Tensor]] = []

    def __len__(self) -> int:
        return len(self._edges)

    def batches(self, count: int | None = None, first: int = 0) -> Iterator[tuple[int, Batch]]:
        """The batches from number `first` on, or the first `count` of these, numbered.

        At most two are on a CUDA device at a time.
        """
        edges = self._edges[first:][:count]
        if self._side is None:
            for index, edge in enumerate(edges, first):
                yield index, map_tensors(lambda tensor, edge=edge: self._placed(tensor, edge), self.samples.rows)  # type: ignore[misc]
        else:
            yield from enumerate(self._overlapped(edges, self._side), first)

    def _overlapped(self, edges: Sequence[tuple[int, int]], side: torch.cuda.Stream) -> Iterator[Batch]:
        side.synchronize()  # an earlier iteration that was not finished may still be copying from the buffers
        self._pinned = self._pinned or self._buffers()
        compute = torch.cuda.current_stream(self._device)
        computed: list[torch.cuda.Event] = []
        following = self._send(edges[0], 0, side)
        for index in range(len(edges)):
            batch, arrived = following
            compute.wait_event(arrived)
            for tensor in tensors_of(batch):
                tensor.record_stream(compute)  # or the other stream, which allocated it, may reuse it too soon
            yield batch
            computed.append(compute.record_event())
            if index + 1 < len(edges):
                if index > 0:
                    # Wait for the batch before this one: its buffer is the next to be written to, and at most two
                    # batches take memory on the device.
                    computed[index - 1].synchronize()
                following = self._send(edges[index + 1], (index + 1) % 2, side)

    def _send(self, edge: tuple[int, int], turn: int, side: torch.cuda.Stream) -> tuple[Batch, torch.cuda.Event]:
        buffers = iter(self._pinned[turn])
        with torch.cuda.stream(side):
            batch = map_tensors(lambda tensor: self._placed(tensor, edge, next(buffers)), self.samples.rows)
            return batch, side.record_event()

    def _buffers(self) -> list[list[Tensor]]:
        """Two buffers for every tensor of a batch, each with room for the largest batch."""
        rows = max(b - a for a, b in self._edges)
        return [
            [torch.empty((rows, *each.shape[1:]), dtype=each.dtype, pin_memory=True) for each in self._tensors()]
            for _ in range(2)
        ]

    def _tensors(self) -> list[Tensor]:
        return tensors_of(self.samples.rows)

    def _placed(self, tensor: Tensor, edge: tuple[int, int], pinned: Tensor | None = None) -> Tensor:
        """The rows of a batch on the device, converted, with the alignment that they would have among all samples."""
        start, end = edge
        rows, dtype = tensor[start:end], computed_type(tensor, self._dtype)
        if not _is_copied(tensor, self._device, dtype):
            return rows
        if pinned is not None:
            pinned = pinned[: end - start].copy_(rows)
            rows = pinned if pinned.dtype == dtype else pinned.to(self._device, non_blocking=True)
        beyond = start * tensor[0].numel() % (ALIGNMENT // dtype.itemsize)
        flat = torch.empty(beyond + rows.numel(), dtype=dtype, device=self._device)
        return flat[beyond:].view(rows.shape).copy_(rows, non_blocking=True)


Feed = Resident | Streamed | AnyShape


def make_feed(samples: Samples | Batch, device: torch.device, dtype: torch.dtype, limit: int | None = None) -> Feed:
    """The samples as they suit the device.

    Args:
        dtype: what floating-point samples are computed in; integers stay what they are.
        limit: bytes to be copied to the device above which they stream; default: a share of its free memory. Samples
            that are there already in the type to compute in need no copy.
    """
    samples = as_samples(samples)
    limit = device_limit(device) if limit is None else limit
    if not isinstance(samples, Rows):
        return AnyShape(samples, device, dtype, limit)
    needed = _needed(samples.rows, device, dtype)
    streams = needed > 0 and needed > limit
    return Streamed(samples, device, dtype) if streams else Resident(samples, device, dtype)


def computed_type(tensor: Tensor, dtype: torch.dtype) -> torch.dtype:
    """Floating-point tensors are computed in the plan's type; integers stay what they are."""
    return dtype if tensor.is_floating_point() else tensor.dtype


def _needed(samples: Batch, device: torch.device, dtype: torch.dtype) -> int:
    types = [(tensor, computed_type(tensor, dtype)) for tensor in tensors_of(samples)]
    return sum(tensor.numel() * own.itemsize for tensor, own in types if _is_copied(tensor, device, own))


def _is_copied(tensor: Tensor, device: torch.device, dtype: torch.dtype) -> bool:
    return tensor.device != device or tensor.dtype != dtype
