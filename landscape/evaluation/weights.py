"""Set the weights of a point, θ = θ₀ + Σₖ cₖ·dₖ, in flat buffers; the model's moved tensors are views of these."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

from landscape.evaluation.feed import checksums
from landscape.evaluation.model_rounding import NOTHING_ROUNDED, WeightRounding
from landscape.model.parameters import (
    State,
    persistent_buffers,
)

# ----------------------------------------------------------------------------------------------------
# The moved tensors of one type in one piece of memory, and the arithmetic of a point on them: θ = θ₀ + Σₖ cₖ·dₖ.

ALIGNMENT = 64  # bytes, of each tensor in the buffer, as kernels load whole vectors
LARGEST_ROW = 1 << 28  # bytes: the shared weights of a row of points are kept up to this size
# bfloat16 weights that are summed in float32 at a time: few enough for a processor's cache, many enough that a GPU
# computes for longer than a kernel takes to start.
PIECE, PIECE_ON_GPU = 1 << 16, 1 << 22
Layouts = Mapping[int, torch.memory_format]


@dataclass(frozen=True)
class _Slot:
    """The place of one tensor in the flat buffer: `offset` and strides, in elements."""

    name: str
    shape: torch.Size
    offset: int
    strides: tuple[int, ...]

    def view(self, flat: Tensor) -> Tensor:
        """The tensor as a view of a buffer [length]."""
        return flat.as_strided(self.shape, self.strides, flat.storage_offset() + self.offset)


class FlatWeights:
    """The moved tensors of one type, θ₀ and the directions, each in one buffer.

    A point is ((θ₀ + c₁·d₁) + c₂·d₂) + …. In float32 and float64 the sum up to the last axis, which the points of a row
    share, is kept: a point then costs one pass over the tensors and allocates nothing. In bfloat16 the whole sum is
    computed in float32 and rounded once, piece by piece. θ₀ is held in bfloat16, and so is a direction if bfloat16
    represents it exactly; other directions are held in float32.

    Args:
        targets: the model's tensors by name, all of one type; those of `names` become views of this object's buffer.
        origin: θ₀.
        directions: dₖ per axis; a tensor that an axis leaves out does not move along it.
        layouts: memory formats of tensors by their number of dimensions; others are contiguous.
        finish: is called with a tensor's name and the tensor at a point, and may change the tensor in place.
        finished: names of the tensors that `finish` changes.
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
        for slot in self._slots:  # first, to free the tensors' old memory
            self._targets[slot.name].data = slot.view(self._flat)
        self._theta0 = self._pack(origin, self._flat.dtype)
        self._axes = [self._pack(direction, self._type_of(direction)) for direction in directions]
        keeps_row = len(directions) > 1 and self._flat.nbytes <= LARGEST_ROW and not self._rounds
        self._row = torch.empty_like(self._flat) if keeps_row else None
        self._row_of: Sequence[float] | None = None
        piece = PIECE if example.device.type == "cpu" else PIECE_ON_GPU
        length = min(piece, len(self._flat)) if self._rounds else 0
        self._sum = torch.empty(length, dtype=torch.float32, device=example.device)

    def _type_of(self, direction: State) -> torch.dtype:
        """The type in which a direction is held: that of the weights, or float32 if bfloat16 would round it."""
        if not self._rounds:
            return self._flat.dtype
        tensors = (direction[slot.name] for slot in self._slots if slot.name in direction)
        exact = all(torch.equal(tensor.bfloat16().to(tensor.dtype), tensor) for tensor in tensors)
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
        """The parts of a tensor in θ₀ and in every direction: [1 + axes]; empty for a tensor that is not moved."""
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
            # Adding two bfloat16 tensors would round twice: torch rounds the result before it is stored.
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


# ----------------------------------------------------------------------------------------------------

_GRADIENTS = attrgetter("requires_grad", "grad")


class MovingWeights:
    """The tensors of `model` that the directions move, held in one buffer per type.

    Every point is computed from the origin, see `FlatWeights`.

    Args:
        model: its moved parameters and buffers become views of the buffers.
        origin: θ₀; tensors that the model does not have are ignored.
        directions: dₖ per axis; a tensor that an axis leaves out does not move along it.
        layouts: memory formats of moved tensors by their number of dimensions; others are contiguous.
        rounding: rounds the weights of points, of whole sets, and those that do not move.
    """

    def __init__(
        self, model: nn.Module, origin: State, directions: Sequence[State], layouts: Layouts,
        rounding: WeightRounding = NOTHING_ROUNDED,
    ) -> None:  # fmt: skip
        self._targets, self.axes = targets_of(model), len(directions)
        self._origin = {name: tensor for name, tensor in origin.items() if name in self._targets}
        self.moved = [name for name in self._targets if any(name in direction for direction in directions)]
        self._set_all(self._origin)
        self._rounding = rounding.at_origin(self._targets)
        self._rounded = [name for name in self._rounding.infos if name in self._origin]
        self._still = _unmoved_tensors(model, self._round_still(), self.moved)
        self._flats = self._make_flat(directions, layouts)
        self._written: set[str] = set()  # tensors that user code writes to without torch's version counters
        self._registered = [
            tensor for tensor in (*model.parameters(), *model.buffers()) if tensor.layout is torch.strided
        ]
        self._homes = [tensor.detach() for tensor in self._registered]
        self._places = self._places_now()
        self._sums = self._sums_now()
        self._moved_tensors = [self._targets[name] for name in self.moved]
        self._versions, self._moved_versions = self._versions_now(), self._moved_versions_now()

    def _make_flat(self, directions: Sequence[State], layouts: Layouts) -> list[FlatWeights]:
        """One buffer per type of the moved tensors: a model may mix bfloat16 and float32."""
        by_type: dict[torch.dtype, list[str]] = {}
        for name in self.moved:
            by_type.setdefault(self._targets[name].dtype, []).append(name)
        return [
            FlatWeights(
                self._targets, names, self._origin, directions, layouts, self._rounding.round_in_place, self._rounded
            )
            for names in by_type.values()
        ]  # fmt: skip

    def _round_still(self) -> dict[str, Tensor]:
        """The origin with its unmoved tensors rounded, as they are at every point."""
        still = [name for name in self._rounded if name not in self.moved]
        for name in still:
            self._rounding.round_in_place(name, self._targets[name])
        return {**self._origin, **{name: self._targets[name].clone() for name in still}}

    @property
    def moved_tensors(self) -> list[Tensor]:
        """The tensors that a point sets, in the model's order."""
        return self._moved_tensors

    @property
    def rounding(self) -> WeightRounding:
        """The rounding of the weights that are set."""
        return self._rounding

    @property
    def parameters(self) -> int:
        """How many numbers a point sets."""
        return sum(flat.count for flat in self._flats)

    def parts(self, tensor: Tensor | None) -> list[Tensor | None]:
        """The parts of a tensor of the model in θ₀ and in every direction: [1 + axes]; None means zeros.

        For None, such as the bias of a layer without one, all parts are None.
        """
        found = [] if tensor is None else [parts for flat in self._flats if (parts := flat.parts(tensor))]
        return found[0] if found else [tensor, *[None] * self.axes]

    def set_point(self, point: Sequence[float]) -> None:
        """Set the weights of the point with these coordinates, and undo what a forward pass has changed."""
        self.restore()
        for flat in self._flats:
            flat.set_point(point)

    # -- what a forward pass changes --------------------------------------------------------------------------

    @property
    def changed(self) -> bool:
        """Whether a forward pass has written to the tensors since a point was set, or replaced them."""
        written = self._versions_now() != self._versions or self._moved_versions_now() != self._moved_versions
        return written or self._displaced()

    def restore(self) -> None:
        """Set unmoved tensors back to the origin, and every tensor to its own memory."""
        if self._displaced():
            self._put_back()
        if self._written or self._versions_now() != self._versions:
            self._copy_back(name for name, _, _ in self._still)
            self._versions = self._versions_now()
        self._moved_versions = self._moved_versions_now()

    def _copy_back(self, names: Iterable[str]) -> None:
        wanted = set(names)
        for (name, tensor, original), version in zip(self._still, self._versions, strict=True):
            if name in wanted and (tensor._version != version or name in self._written):
                tensor.copy_(original)

    def unnoticed(self) -> list[str]:
        """Names of unmoved tensors that were written to without torch's counters, such as through `.data`.

        From now on these are restored at every point.
        """
        self.restore()
        now = self._sums_now()
        written = [name for name, value in now.items() if value != self._sums[name] and name not in self._written]
        self._written.update(written)
        self.restore()
        return written

    def _displaced(self) -> bool:
        return self._places_now() != self._places

    def _places_now(self) -> tuple[list[Any], ...]:
        tensors = self._registered
        getters: tuple[Callable[[Tensor], Any], ...] = (Tensor.data_ptr, Tensor.size, Tensor.stride, _GRADIENTS)
        return tuple([*map(getter, tensors)] for getter in getters)

    def _put_back(self) -> None:
        """Point every tensor to its own memory, and reset its `requires_grad`."""
        for tensor, home in zip(self._registered, self._homes, strict=True):
            tensor.data = home
            tensor.requires_grad_(False).grad = None

    def _versions_now(self) -> list[int]:
        return [tensor._version for _, tensor, _ in self._still]

    def _moved_versions_now(self) -> list[int]:
        return [tensor._version for tensor in self._moved_tensors]

    def _sums_now(self) -> dict[str, int]:
        still = [(name, tensor) for name, tensor, _ in self._still if tensor.layout is torch.strided]
        return dict(zip([name for name, _ in still], checksums([tensor for _, tensor in still]), strict=True))

    # -- points -----------------------------------------------------------------------------------------------

    def stacked(self, points: Sequence[Sequence[float]]) -> dict[str, Tensor]:
        """The moved tensors at several points, by name, the points in the first dimension."""
        return {name: tensor for flat in self._flats for name, tensor in flat.stacked(points).items()}

    def state_at(self, point: Sequence[float]) -> dict[str, Tensor]:
        """The weights of the point, and the origin's for unmoved tensors: copies of the model's tensors."""
        self.set_point(point)
        return {name: self._targets[name].detach().clone() for name in self._origin}

    def set_state(self, state: State) -> None:
        """Set a whole set of weights, such as a snapshot's."""
        self._set_unrounded(state)
        for name in self._rounded:
            self._rounding.round_in_place(name, self._targets[name])

    def set_unrounded_origin(self) -> None:
        """Set the unrounded θ₀; call `restore`, or set a point, afterwards."""
        self._set_unrounded(self._origin)

    def _set_unrounded(self, state: State) -> None:
        if self._displaced():
            self._put_back()
        self._copy_back(name for name, _, _ in self._still if name not in self._origin)
        self._set_all({name: state[name] for name in self._origin})

    def _set_all(self, state: State) -> None:
        for name, tensor in state.items():
            self._targets[name].copy_(tensor)


def set_layouts(model: nn.Module, layouts: Layouts) -> None:
    """Give parameters these memory formats, by their number of dimensions; others stay as torch makes them."""
    for parameter in model.parameters():
        layout = layouts.get(parameter.dim(), torch.contiguous_format)
        parameter.data = parameter.data.contiguous(memory_format=layout)


def targets_of(model: nn.Module) -> dict[str, Tensor]:
    """The parameters and persistent buffers by name, which directions and snapshots may set."""
    return {**dict(model.named_parameters()), **persistent_buffers(model)}


def _unmoved_tensors(model: nn.Module, origin: State, moved: Sequence[str]) -> list[tuple[str, Tensor, Tensor]]:
    """Name, tensor and value of unmoved tensors: the rest of the origin, and buffers that no snapshot holds."""
    targets = targets_of(model)
    of_origin = [(name, targets[name], tensor) for name, tensor in origin.items() if name not in moved]
    return of_origin + [(name, buffer, buffer.clone()) for name, buffer in model.named_buffers() if name not in targets]
