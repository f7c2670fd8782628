"""Feed the model its samples batch by batch: all samples stay on the device, or each batch is copied to it in turn.

Both give the same bits. Kernels choose their instructions by the alignment of their inputs, so a streamed batch gets
the alignment that it would have among all samples.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, islice, pairwise
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from landscape.core.devices import device_limit, host_limit
from landscape.core.errors import JobError, NotRetried
from landscape.core.plan import Plan
from landscape.problem.batches import (
    Batch,
    Samples,
    TensorSamples,
    as_samples,
    batch_edges,
    dense_tensors_in,
    map_tensors,
    moved,
    tensor_bytes,
    tensors_of,
)
from landscape.surface.accuracy import FIRST, STEP_OF_SAMPLES

# ----------------------------------------------------------------------------------------------------
# Batches of any structure: all are kept on the device if they fit, otherwise made for each point.

MOST_SHAPES = 4  # of batches, for an engine that prepares code for each shape

Edge = tuple[int, int]  # a batch's first sample, and the one after its last
Key = tuple[int, torch.device, torch.dtype, tuple[Edge, ...]]

log = logging.getLogger("landscape")


class Counts:
    """How many values `observe` returns for each batch: one per sample, or as many as at the first point.

    Args:
        samples: gives the number of values of a batch, if known.
    """

    def __init__(self, samples: Samples) -> None:
        self._samples = samples
        self._edge: Edge = (0, 0)
        self._seen: dict[Edge, int] = {}

    def begin(self, edge: Edge) -> None:
        """Call this before `observe` gets the batch of this edge."""
        self._edge = edge

    def expected(self, batch: Batch, values: Any) -> int | None:
        """How many values each observable of the batch must have; None if `values` holds no losses.

        Args:
            values: the return value of `observe` for the batch.

        Raises:
            JobError: the number of losses differs from an earlier point's, or from the problem's `length`.
        """
        given = self._samples.count(*self._edge, batch)
        returned = _losses(values)
        seen = self._seen.get(self._edge)
        if given is not None and returned is not None and returned != given:
            raise JobError(
                f"length: gives {given} samples for a batch of which observe returns {returned} losses; they must agree"
            )
        if seen is not None and returned is not None and returned != seen:
            raise JobError(
                f"observe: must return as many values for a batch at every point, not {seen} losses and then {returned}"
            )
        if returned == 0:
            raise JobError("observe: must return a value for each sample of a batch, not none")
        return given if given is not None else returned

    def note(self, count: int) -> None:
        """Remember how many values the batch had."""
        self._seen[self._edge] = count

    @property
    def other_than_samples(self) -> str:
        """A batch that has not one value per sample, in words; empty if there is none."""
        for (start, stop), count in self._seen.items():
            if count != stop - start:
                return f"{count} values for the first {stop - start} samples" if start == 0 else f"{count} values"
        return ""


def _losses(values: Any) -> int | None:
    """The number of losses; None for a return value that is refused later."""
    loss = values.get("loss") if isinstance(values, Mapping) else None
    return len(loss) if isinstance(loss, Tensor) and loss.dim() == 1 else None


class _Kept:
    """Batches on a device, shared by evaluators that cut the same samples alike, such as the two of a search."""

    def __init__(self, samples: Samples, batches: list[Batch]) -> None:
        self.samples, self.batches = samples, batches  # holding the samples keeps their id() unique
        self.size = tensor_bytes(batches)


_KEPT: WeakValueDictionary[Key, _Kept] = WeakValueDictionary()


class AnyShape:
    """Batches made by `Samples.batch`, moved to the device whole, floating-point tensors in the type to compute in.

    Args:
        limit: bytes of batches above which none is kept on the device. They are then kept on the host, if the host has
            separate memory with room, and otherwise made anew each time.
    """

    def __init__(self, samples: Samples, device: torch.device, dtype: torch.dtype, limit: int) -> None:
        self.samples, self._device, self._dtype, self._limit = samples, device, dtype, limit
        self.counts = Counts(samples)
        self.resident = True
        self.generation = 0  # how often batches were made for other edges, hence in other memory
        self._edges: list[Edge] = []
        self._kept = _Kept(samples, [])  # on the device, all of them or none
        self._on_host: dict[int, Batch] = {}
        self._room = 0

    def split(self, edges: Sequence[Edge]) -> None:
        """Go on in these batches, each given by its first sample and the one after its last."""
        if self._edges == list(edges):
            return
        key = (id(self.samples), self._device, self._dtype, tuple(edges))
        self._edges, self._kept, self._on_host = list(edges), _Kept(self.samples, []), {}
        self.generation += 1
        self._room = host_limit() if self._device.type == "cuda" else 0
        kept = _KEPT.get(key)
        if kept is None or kept.size > self._limit:
            kept = _Kept(self.samples, self._make_fitting())
        self.resident = len(kept.batches) == len(self._edges)
        if self.resident:
            self._kept = _KEPT[key] = kept

    def _make_fitting(self) -> list[Batch]:
        """All batches on the device; only the first ones if not all fit."""
        batches: list[Batch] = []
        size = 0
        for index in range(len(self._edges)):
            batch = self._make(index)
            size += tensor_bytes(batch)
            if size > self._limit:
                log.info(
                    "data: the batches take more than %.3g MB and are made again at every point", self._limit / 1e6
                )
                break
            batches.append(batch)
        return batches

    def __len__(self) -> int:
        return len(self._edges)

    def batches(self, count: int | None = None, first: int = 0) -> Iterator[tuple[int, Batch]]:
        """The batches from number `first` on, or the first `count` of these, numbered."""
        for index in range(len(self._edges))[first:][:count]:
            batch = self._kept.batches[index] if self.resident else self._make(index)
            self.counts.begin(self._edges[index])
            yield index, batch

    def _make(self, index: int) -> Batch:
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
        """Whether the batches have few enough shapes to prepare code for each."""
        shapes = {tuple(tensor.shape for tensor in dense_tensors_in(batch)) for batch in self._kept.batches}
        return self.resident and len(shapes) <= MOST_SHAPES


# ----------------------------------------------------------------------------------------------------

ALIGNMENT = 512  # bytes: CUDA aligns allocations to this many, and the CPU to a divisor of it


class Resident:
    """All samples on the device in the type to compute in; batches are views of them."""

    resident = same_shapes = True
    generation = 0  # the samples are the same memory in all batches
    counts = None  # a value for each row

    def __init__(self, samples: TensorSamples, device: torch.device, dtype: torch.dtype) -> None:
        self.samples = TensorSamples(
            map_tensors(lambda tensor: tensor.to(device, computed_type(tensor, dtype)), samples.rows)
        )

    @property
    def tensors(self) -> list[Tensor]:
        """What stays on the device from point to point."""
        return tensors_of(self.samples.rows)

    def split(self, edges: Sequence[Edge]) -> None:
        """Go on in these batches, each given by its first sample and the one after its last."""
        self._batches = [self.samples.batch(*edge) for edge in edges]

    def __len__(self) -> int:
        return len(self._batches)

    def batches(self, count: int | None = None, first: int = 0) -> Iterator[tuple[int, Batch]]:
        """The batches from number `first` on, or the first `count` of these, numbered."""
        yield from islice(enumerate(self._batches[first:], first), count)


class Streamed:
    """The samples stay in host memory or on disk in their own type, and each batch is copied to the device in turn.

    On a CUDA device the next batch is copied on a separate stream, through a pinned buffer, while the current batch is
    computed. It is converted on the device, so images of one byte per pixel are copied as bytes.
    """

    resident, same_shapes = False, True
    generation = 0
    counts = None
    tensors: Sequence[Tensor] = ()  # streamed batches are copies

    def __init__(self, samples: TensorSamples, device: torch.device, dtype: torch.dtype) -> None:
        self.samples, self._device, self._dtype = samples, device, dtype
        self._side = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def split(self, edges: Sequence[Edge]) -> None:
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
                yield index, map_tensors(lambda tensor, edge=edge: self._place(tensor, edge), self.samples.rows)  # type: ignore[misc]
        else:
            yield from enumerate(self._copy_ahead(edges, self._side), first)

    def _copy_ahead(self, edges: Sequence[Edge], side: torch.cuda.Stream) -> Iterator[Batch]:
        side.synchronize()  # an abandoned earlier iteration may still be copying from the buffers
        self._pinned = self._pinned or self._buffers()
        compute = torch.cuda.current_stream(self._device)
        computed: list[torch.cuda.Event] = []
        following = self._send(edges[0], 0, side)
        for index in range(len(edges)):
            batch, arrived = following
            compute.wait_event(arrived)
            for tensor in tensors_of(batch):
                tensor.record_stream(compute)  # otherwise the stream that allocated it may reuse it too soon
            yield batch
            computed.append(compute.record_event())
            if index + 1 < len(edges):
                if index > 0:
                    # Wait for the previous batch: its buffer is written to next, and at most two batches take memory
                    # on the device.
                    computed[index - 1].synchronize()
                following = self._send(edges[index + 1], (index + 1) % 2, side)

    def _send(self, edge: tuple[int, int], turn: int, side: torch.cuda.Stream) -> tuple[Batch, torch.cuda.Event]:
        buffers = iter(self._pinned[turn])
        with torch.cuda.stream(side):
            batch = map_tensors(lambda tensor: self._place(tensor, edge, next(buffers)), self.samples.rows)
            return batch, side.record_event()

    def _buffers(self) -> list[list[Tensor]]:
        """Two buffers for every tensor of a batch, each with room for the largest batch."""
        rows = max(b - a for a, b in self._edges)
        return [
            [torch.empty((rows, *tensor.shape[1:]), dtype=tensor.dtype, pin_memory=True) for tensor in self._tensors()]
            for _ in range(2)
        ]

    def _tensors(self) -> list[Tensor]:
        return tensors_of(self.samples.rows)

    def _place(self, tensor: Tensor, edge: tuple[int, int], pinned: Tensor | None = None) -> Tensor:
        """The rows of a batch on the device, converted, aligned as they would be among all samples."""
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
    """A feed of the samples that suits the device.

    Args:
        dtype: the type to compute floating-point samples in; integers stay as they are.
        limit: bytes to copy above which samples stream to the device; default: a share of its free memory. Samples
            that are on the device already, in the type to compute in, need no copy.
    """
    samples = as_samples(samples)
    limit = device_limit(device) if limit is None else limit
    if not isinstance(samples, TensorSamples):
        return AnyShape(samples, device, dtype, limit)
    needed = _bytes_to_copy(samples.rows, device, dtype)
    streams = needed > 0 and needed > limit
    return Streamed(samples, device, dtype) if streams else Resident(samples, device, dtype)


def computed_type(tensor: Tensor, dtype: torch.dtype) -> torch.dtype:
    """The type that a tensor is computed in: the plan's `dtype` for floating point; integers keep theirs."""
    return dtype if tensor.is_floating_point() else tensor.dtype


def _bytes_to_copy(samples: Batch, device: torch.device, dtype: torch.dtype) -> int:
    types = [(tensor, computed_type(tensor, dtype)) for tensor in tensors_of(samples)]
    return sum(tensor.numel() * own.itemsize for tensor, own in types if _is_copied(tensor, device, own))


def _is_copied(tensor: Tensor, device: torch.device, dtype: torch.dtype) -> bool:
    return tensor.device != device or tensor.dtype != dtype


# ----------------------------------------------------------------------------------------------------
# How the plan alone cuts the samples of a landscape into batches, and gathers the batches into blocks.


@dataclass(frozen=True)
class Batching:
    """The batches of a landscape and the blocks that they make.

    Attributes:
        edges: where every batch begins and ends.
        blocks: how many batches each block has; more than one if planned batches were cut to fit the memory.
        complete: how many blocks, from the first, stay the same when samples are added.
    """

    edges: tuple[Edge, ...]
    blocks: tuple[int, ...]
    complete: int

    @cached_property
    def begins(self) -> dict[int, int]:
        """The number of the block that begins with a batch, by the number of the batch."""
        return {batch: block for block, batch in enumerate(accumulate(self.blocks[:-1], initial=0))}

    def of_block(self, block: int) -> int:
        """The number of the first batch of a block."""
        return sum(self.blocks[:block])

    def part(self, blocks: range) -> Batching:
        """The batches of some consecutive blocks alone."""
        first, end = self.of_block(blocks.start), self.of_block(blocks.stop)
        return Batching(self.edges[first:end], self.blocks[blocks.start : blocks.stop], len(blocks))

    @property
    def ends(self) -> tuple[int, ...]:
        """The samples before the end of each block."""
        return tuple(self.edges[batch - 1][1] for batch in accumulate(self.blocks))

    def split(self, batches: int) -> Iterator[Edge]:
        """Where the batches of each block begin and end, among the last so many batches.

        Args:
            batches: those from the beginning of some block to the end.
        """
        ends = [end - len(self.edges) + batches for end in accumulate(self.blocks, initial=0)]
        return pairwise(end for end in ends if end >= 0)


def batching_of(samples: int, plan: Plan, batch_size: int, cuts: Sequence[Edge] | None = None) -> Batching:
    """The batches of so many samples.

    A planned batch is a block: samples [k·B, (k+1)·B), and the rest at the end. If layers use the statistics of a
    batch, no batch may be much smaller than the others: then the sizes differ by at most one. Growing blocks, see
    `growing_blocks`, have batches of the planned size at most.

    Args:
        batch_size: samples of a batch at most; smaller than planned if planned batches do not fit the memory. Planned
            batches are then cut one by one, so blocks stay the same.
        cuts: where batches begin and end, if the data itself cuts them; each of these batches is a block.

    Example:
        >>> plan = Plan(batch_size=4, threads=1, device="cpu")
        >>> batching_of(10, plan, 4).edges, batching_of(10, plan, 2).blocks
        (((0, 4), (4, 8), (8, 10)), (2, 2, 1))
    """
    if cuts is not None:
        return Batching(tuple(cuts), (1,) * len(cuts), len(cuts))
    size = plan.batch_size
    if plan.reduction == "growing":
        pieces = [
            [(start + a, start + b) for a, b in _cut(end - start, min(size, batch_size))]
            for start, end in growing_blocks(samples)
        ]
        return Batching(tuple(edge for piece in pieces for edge in piece), tuple(map(len, pieces)), len(pieces))
    extends = plan.statistics.fixed
    planned = _cut(samples, size) if extends else batch_edges(samples, size)
    parts = [[(start + a, start + b) for a, b in batch_edges(stop - start, batch_size)] for start, stop in planned]
    edges = [edge for part in parts for edge in part]
    return Batching(tuple(edges), tuple(map(len, parts)), samples // size if extends else 0)


FINENESS = 8  # growing blocks in which the number of samples doubles
LARGEST_BLOCK = 4096


def growing_blocks(samples: int) -> list[Edge]:
    """Blocks for points that know different numbers of samples: 32, then 64 or more, about an eighth of all before.

    None has more than 4,096: the rises of a round are stored in the width of the largest.

    >>> [end for _, end in growing_blocks(700)], len(growing_blocks(1_000_000))
    ([32, 64, 128, 192, 256, 320, 384, 448, 512, 576, 640, 700], 294)
    """
    ends = [FIRST, STEP_OF_SAMPLES]
    while ends[-1] < samples:
        eighth = (1 << (ends[-1].bit_length() - 1)) // FINENESS
        ends.append(ends[-1] + min(max(STEP_OF_SAMPLES, eighth), LARGEST_BLOCK))
    ends = [end for end in ends if end < samples] + [samples]
    return list(pairwise([0, *ends]))


def _cut(samples: int, size: int) -> list[Edge]:
    return [(start, min(start + size, samples)) for start in range(0, samples, size)]


# ----------------------------------------------------------------------------------------------------
# Checksums of tensors, computed on their device: they also show writes that bypass torch's version counters.

COLUMNS = 61  # a prime: two exchanged words change the sum, unless their distance is a multiple of it
WORD = 8  # bytes


def checksums(tensors: Sequence[Tensor]) -> list[int]:
    """One number per tensor, from all of its bytes, in one pass over memory; one transfer from each device."""
    values = [0] * len(tensors)
    for device in {tensor.device for tensor in tensors}:
        here = [k for k, tensor in enumerate(tensors) if tensor.device == device]
        sums = torch.stack([_checksum(tensors[k].detach()) for k in here]).tolist()
        for k, value in zip(here, sums, strict=True):
            values[k] = value
    return values


def _checksum(tensor: Tensor) -> Tensor:
    """Σⱼ (2j+1)·Σᵢ wᵢⱼ modulo 2⁶⁴, the tensor's words w in rows of `COLUMNS`."""
    data = tensor.contiguous().reshape(-1).view(torch.uint8)
    aligned = data.data_ptr() % WORD == 0 and data.storage_offset() % WORD == 0
    cut = len(data) - len(data) % (WORD * COLUMNS if aligned else COLUMNS)
    head, tail = data[:cut], data[cut:]
    words = head.view(torch.int64) if aligned else head
    factors = torch.arange(COLUMNS, device=data.device) * 2 + 1
    rest = (tail.to(torch.int64) * torch.arange(1, len(tail) + 1, device=data.device)).sum()
    return (words.view(-1, COLUMNS).sum(0, dtype=torch.int64) * factors).sum() + rest


# ----------------------------------------------------------------------------------------------------
# Check that user code has not written to the samples; otherwise the job ends.


class SamplesChanged(NotRetried):
    """User code has written to the samples: every later value of this process would be wrong."""

    def __init__(self) -> None:
        super().__init__(
            "observe: must not change its batch in place, as every point sees the same samples; clone it first"
        )


class UnseenWriteError(Exception):
    """User code has bypassed torch's counters and written to the model: compute the values so far again."""


class UnchangedSamples:
    """Compares the samples of a feed with what they were before the first value was computed."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._sums: list[int] = []
        self._generation: int | None = None

    def remember(self) -> None:
        """Keep checksums of the samples, unless those of the same memory are kept already."""
        if self._generation != self._feed.generation:
            self._sums, self._generation = self._sums_now(), self._feed.generation

    def check(self) -> None:
        """Raises SamplesChanged if the samples have changed since `remember`."""
        if self._generation == self._feed.generation and self._sums_now() != self._sums:
            raise SamplesChanged

    def _sums_now(self) -> list[int]:
        return checksums(self._feed.tensors)


def marks(tensors: Sequence[Tensor]) -> list[tuple[Any, ...]]:
    """Per tensor the properties that change with a write or other memory: counter, address, shape, strides."""
    return [(tensor._version, tensor.data_ptr(), tensor.shape, tensor.stride()) for tensor in tensors]
