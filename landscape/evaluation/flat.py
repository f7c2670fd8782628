"""The moved tensors of one type in one piece of memory, and the arithmetic of a point on them: θ = θ₀ + Σₖ cₖ·dₖ."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from landscape.model.parameters import State

ALIGNMENT = 64  # bytes: where each tensor in the buffer begins, as kernels load whole vectors
LARGEST_ROW = 1 << 28  # bytes: the most that the weights which a row of points shares may take to be kept
# Weights that are summed in float32 at a time where they are held in bfloat16: few enough for a processor's cache, and
# many enough that a GPU computes for longer than a kernel takes to start.
PIECE, PIECE_ON_GPU = 1 << 16, 1 << 22
Layouts = Mapping[int, torch.memory_format]


@dataclass(frozen=True)
class _Slot:
    """Where one tensor lies in the flat buffer: from `offset` on, with these strides, both in elements."""

    name: str
    shape: torch.Size
    offset: int
    strides: tuple[int, ...]

    def view(self, flat: Tensor) -> Tensor:
        """The tensor as a view of a buffer [length]."""
        return flat.as_strided(self.shape, self.strides, flat.storage_offset() + self.offset)


class FlatWeights:
    """The moved tensors of one type, θ₀ and the directions, each in one buffer.

    A point is ((θ₀ + c₁·d₁) + c₂·d₂) + …. In float32 and float64 the sum up to the last axis is kept for the points of
    a row, which share it, so that a point costs one pass over the tensors and allocates nothing. In bfloat16 the whole
    sum is taken in float32 and rounded once, a piece at a time; θ₀ is held in bfloat16, which is exact, and so is a
    direction whose every number bfloat16 has; other directions are held in float32.

    Args:
        targets: the model's tensors by name, all of one type; those of `names` become views of this object's buffer.
        origin: θ₀.
        directions: dₖ per axis; a tensor that an axis leaves out does not move along it.
        layouts: memory formats of tensors by their number of dimensions; others are contiguous.
        finish: is called with the name of a tensor and the tensor at a point, which it may change in place.
        finished: names of tensors that it changes.
    """

    def __init__(
        self, targets: Mapping[str, Tensor], names: Sequence[str], origin: State, directions: Sequence[State],
        layouts: Layouts, finish: Callable[[str, Tensor], None], finished: Collection[str],
    ) -> None:  # fmt: skip
        example = targets[names[0]]
        self._targets, self._rounds = {name: targets[name] for name in names}, example.dtype is torch.bfloat16
        self._slots = _slots(targets, names, example.element_size(), layouts)
        self._finish, self._finished = finish, [slot for slot in self._slots if slot.name in finished]
        self._flat = torch.zeros(_length(self._slots), dtype=example.dtype, device=example.device)
        for slot in self._slots:  # first of all, which frees the memory that the tensors had
            self._targets[slot.name].data = slot.view(self._flat)
        self._theta0 = self._pack(origin, self._flat.dtype)
        self._axes = [self._pack(each, self._type_of(each)) for each in directions]
        keeps_row = len(directions) > 1 and self._flat.nbytes <= LARGEST_ROW and not self._rounds
        self._row = torch.empty_like(self._flat) if keeps_row else None
        self._row_of: Sequence[float] | None = None
        piece = PIECE if example.device.type == "cpu" else PIECE_ON_GPU
        length = min(piece, len(self._flat)) if self._rounds else 0
        self._sum = torch.empty(length, dtype=torch.float32, device=example.device)

    def _type_of(self, direction: State) -> torch.dtype:
        """The type in which a direction is held: that of the weights, or float32 where bfloat16 would round it."""
        if not self._rounds:
            return self._flat.dtype
        tensors = (direction[slot.name] for slot in self._slots if slot.name in direction)
        exact = all(torch.equal(each.bfloat16().to(each.dtype), each) for each in tensors)
        return torch.bfloat16 if exact else torch.float32

    def _pack(self, state: State, dtype: torch.dtype) -> Tensor:
        flat = torch.zeros_like(self._flat, dtype=dtype)
        for slot in self._slots:
            if slot.name in state:
                slot.view(flat).copy_(state[slot.name])
        return flat

    @property
    def count(self) -> int:
        """How many numbers a point sets."""
        return sum(slot.shape.numel() for slot in self._slots)

    def parts(self, tensor: Tensor) -> list[Tensor | None]:
        """What one of the tensors is in θ₀ and in every direction: [1 + axes]; empty where it is none of them."""
        for slot in self._slots:
            if self._targets[slot.name] is tensor:
                return [slot.view(flat) for flat in (self._theta0, *self._axes)]
        return []

    def set_point(self, point: Sequence[float]) -> None:
        """Set the tensors to the point with these coordinates."""
        self._set(point, self._flat)

    def stacked(self, points: Sequence[Sequence[float]]) -> dict[str, Tensor]:
        """The tensors at several points, by name, the points in the first dimension."""
        rows = torch.empty(len(points), len(self._flat), dtype=self._flat.dtype, device=self._flat.device)
        for point, row in zip(points, rows, strict=True):
            self._set(point, row)
        return {slot.name: torch.stack([slot.view(row) for row in rows]) for slot in self._slots}

    def _set(self, point: Sequence[float], out: Tensor) -> None:
        self._write(point, out)
        for slot in self._finished:
            self._finish(slot.name, slot.view(out))

    def _write(self, point: Sequence[float], out: Tensor) -> None:
        if self._rounds:
            self._write_rounded(point, out)
            return
        *first, last = point
        if not first:
            torch.add(self._theta0, self._axes[0], alpha=last, out=out)
            return
        row = out if self._row is None else self._row
        if self._row is None or first != self._row_of:
            torch.add(self._theta0, self._axes[0], alpha=first[0], out=row)
            for axis, coordinate in zip(self._axes[1:-1], first[1:], strict=True):
                row.add_(axis, alpha=coordinate)
            self._row_of = first
        torch.add(row, self._axes[-1], alpha=last, out=out)

    def _write_rounded(self, point: Sequence[float], out: Tensor) -> None:
        for start in range(0, len(out), len(self._sum)):
            piece = slice(start, start + len(self._sum))
            total = self._sum[: len(out[piece])]
            # Not by one addition of two tensors in bfloat16, whose result torch would round before it is stored.
            total.copy_(self._theta0[piece])
            for axis, coordinate in zip(self._axes, point, strict=True):
                total.add_(axis[piece], alpha=coordinate)
            out[piece].copy_(total)


def _slots(targets: Mapping[str, Tensor], names: Sequence[str], size: int, layouts: Layouts) -> list[_Slot]:
    slots, offset, step = [], 0, ALIGNMENT // size
    for name in names:
        shape = targets[name].shape
        layout = layouts.get(len(shape), torch.contiguous_format)
        strides = torch.empty(shape, memory_format=layout, device="meta").stride()
        slots.append(_Slot(name, shape, offset, strides))
        offset += -(-shape.numel() // step) * step
    return slots


def _length(slots: Sequence[_Slot]) -> int:
    last = slots[-1]
    return last.offset + last.shape.numel()
