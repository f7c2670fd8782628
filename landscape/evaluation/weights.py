"""Set the weights of a point, θ = θ₀ + Σₖ cₖ·dₖ: of small models in flat buffers, of large ones where they are.

Both give the same bits: the sum is computed in the order of the axes, in float32 or float64, and rounded once to the
type of the weight.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

from landscape.core.plan import OriginIn
from landscape.evaluation.feed import checksums
from landscape.evaluation.model_rounding import NOTHING_ROUNDED, WeightRounding
from landscape.job.directions.computed import PartTensors
from landscape.model.parameters import LARGE, State, targets_of
from landscape.model.shards import (
    MatrixBlock,
    blocks_of,
    box_of,
    gathering_modules,
    is_sharded,
    local_part,
    reshard,
    whole_tensor,
)

# ----------------------------------------------------------------------------------------------------
# The moved tensors of one type in one piece of memory, and the arithmetic of a point on them: θ = θ₀ + Σₖ cₖ·dₖ.

ALIGNMENT = 64  # bytes, of each tensor in the buffer, as kernels load whole vectors
Layouts = Mapping[int, torch.memory_format]
Finish = Callable[[str, Tensor], None]


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

    A point is ((θ₀ + c₁·d₁) + c₂·d₂) + …. The sum up to the last axis, which the points of a row share, is kept, so
    that a point costs one pass over the tensors and allocates nothing.

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
        layouts: Layouts, finish: Finish, finished: Collection[str],
    ) -> None:  # fmt: skip
        example = targets[names[0]]
        self._targets = {name: targets[name] for name in names}
        self._slots = _slots(targets, names, example.element_size(), layouts)
        self._finish, self._finished = finish, [slot for slot in self._slots if slot.name in finished]
        self._flat = torch.zeros(_length(self._slots), dtype=example.dtype, device=example.device)
        for slot in self._slots:  # first, to free the tensors' old memory
            self._targets[slot.name].data = slot.view(self._flat)
        self._theta0 = self._pack(origin)
        self._axes = [self._pack(direction) for direction in directions]
        self._row = torch.empty_like(self._flat) if len(directions) > 1 else None
        self._row_of: Sequence[float] | None = None

    def _pack(self, state: State) -> Tensor:
        flat = torch.zeros_like(self._flat)
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
        *first, last = point
        if not first:
            torch.add(self._theta0, self._axes[0], alpha=last, out=out)
            return
        assert self._row is not None
        if first != self._row_of:
            torch.add(self._theta0, self._axes[0], alpha=first[0], out=self._row)
            for axis, coordinate in zip(self._axes[1:-1], first[1:], strict=True):
                self._row.add_(axis, alpha=coordinate)
            self._row_of = first
        torch.add(self._row, self._axes[-1], alpha=last, out=out)


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
# The moved tensors of one type where they are, set piece by piece.

# Numbers that are summed at a time: few enough for a processor's cache, many enough that a GPU computes for longer than
# a kernel takes to start.
PIECE, PIECE_ON_GPU = 1 << 16, 1 << 22
ROOM = 0.5  # of the free memory of a GPU, for θ₀ and directions; the rest is for activations
# A block's number, and rows and columns of the whole tensor as a matrix → its numbers there, on the device.
Part = Callable[[int, range, range], Tensor]


class StagedWeights:
    """The moved tensors of one type where they are: for bfloat16, and for models of which few copies fit.

    Every tensor is set piece by piece, the sum in a buffer of a piece's size. θ₀ and directions that are held are read
    from where they are; others are drawn or computed again, and take no memory. Of a tensor that is cut over several
    processes, each sets its own part.

    Args:
        targets: the model's tensors by name, all of one type; those of `names` are set in place.
        origin: θ₀, whole tensors.
        directions: dₖ per axis, whole tensors; a tensor that an axis leaves out does not move along it.
        finish: is called with a tensor's name and the tensor at a point, and may change the tensor in place.
        finished: names of the tensors that `finish` changes.
        origin_in: where θ₀ and the directions that are held are kept; default: on a GPU that has room for them, else
            where they are given.
    """

    def __init__(
        self, targets: Mapping[str, Tensor], names: Sequence[str], origin: State, directions: Sequence[State],
        finish: Finish, finished: Collection[str], origin_in: OriginIn | None = None,
    ) -> None:  # fmt: skip
        self._targets = {name: local_part(targets[name]) for name in names}
        self._finish, self._finished = finish, [name for name in names if name in finished]
        example = self._targets[names[0]]
        self._device = example.device
        held = [state for state in (origin, *directions) if not isinstance(state, PartTensors)]
        there = [(self._targets[name], state[name]) for state in held for name in names if name in state]
        needed = sum(target.numel() * tensor.itemsize for target, tensor in there)
        self._origin_in = origin_in or _chosen_place(needed, example.device)
        self._piece = PIECE if example.device.type == "cpu" else PIECE_ON_GPU
        summed_in = torch.float64 if example.dtype is torch.float64 else torch.float32
        self._sum = torch.empty(self._piece, dtype=summed_in, device=example.device)
        self._boxes = {name: box_of(targets[name]) for name in names}
        self._leading = {name: _leading(name, targets[name], directions) for name in names}
        self._blocks = {
            name: tuple(blocks_of(targets[name].shape, self._leading[name], self._boxes[name], name)) for name in names
        }
        self._parts: dict[str, list[Part | None]] = {
            name: [self._part_of(state, name) if name in state else None for state in (origin, *directions)]
            for name in names
        }

    def _part_of(self, state: State, name: str) -> Part:
        if isinstance(state, PartTensors):
            leading = self._leading[name]
            return lambda block, rows, columns: state.rectangle(name, rows, columns, self._device, leading)
        held = state[name] if (box := self._boxes[name]) is None else box.cut(state[name])
        if self._origin_in == "device":
            held = held.to(self._device, copy=True)
        elif self._origin_in == "host":
            held = held.clone() if self._device.type == "cpu" else held.pin_memory()
        blocks = self._blocks[name]
        matrices = [_matrix(held, block) for block in blocks]

        def part(number: int, rows: range, columns: range) -> Tensor:
            return _cut(matrices[number], blocks[number], rows, columns).to(self._device, non_blocking=True)

        return part

    @property
    def count(self) -> int:
        """How many numbers a point sets."""
        return sum(target.numel() for target in self._targets.values())

    def parts(self, tensor: Tensor) -> list[Tensor | None]:
        """The parts of a tensor in θ₀ and in every direction: [1 + axes]; empty for a tensor that is not moved."""
        for name, target in self._targets.items():
            if target is tensor and len(self._blocks[name]) == 1:
                (block,) = self._blocks[name]
                found = [None if part is None else part(0, block.rows, block.columns) for part in self._parts[name]]
                return [None if part is None else part.reshape(target.shape).to(target.dtype) for part in found]
        return []

    def set_point(self, point: Sequence[float]) -> None:
        """Set the tensors to the point with these coordinates."""
        for name, target in self._targets.items():
            self._write(name, point, target.data)  # has a version counter of its own: only user code counts as a writer
        for name in self._finished:
            self._finish(name, self._targets[name].data)

    def stacked(self, points: Sequence[Sequence[float]]) -> dict[str, Tensor]:
        """The tensors at several points, by name, the points in the first dimension."""
        rows = {name: target.new_empty(len(points), *target.shape) for name, target in self._targets.items()}
        for name, stack in rows.items():
            for point, out in zip(points, stack, strict=True):
                self._write(name, point, out)
                if name in self._finished:
                    self._finish(name, out)
        return rows

    def _write(self, name: str, point: Sequence[float], out: Tensor) -> None:
        origin, *axes = self._parts[name]
        assert origin is not None
        moves = [(axis, c) for axis, c in zip(axes, point, strict=True) if axis is not None and c]
        whole = out if out.is_contiguous() else torch.empty(out.shape, dtype=out.dtype, device=out.device)
        for number, block in enumerate(self._blocks[name]):
            matrix = _matrix(whole, block)
            for rows, columns in _pieces(block, self._piece):
                piece = _cut(matrix, block, rows, columns)
                # Adding two bfloat16 tensors would round twice: torch rounds the result before it is stored.
                total = piece if piece.dtype == self._sum.dtype else self._sum[: piece.numel()].view(piece.shape)
                total.copy_(origin(number, rows, columns))
                for axis, coordinate in moves:
                    total.add_(axis(number, rows, columns), alpha=coordinate)
                if total is not piece:
                    piece.copy_(total)
        if whole is not out:
            out.copy_(whole)


def _chosen_place(needed: int, device: torch.device) -> OriginIn:
    """The device, if it is a GPU on which so many bytes are at most ROOM of the free memory; else where they are."""
    if device.type == "cpu":
        return "file"
    free, _ = torch.cuda.mem_get_info(device)
    return "device" if needed <= ROOM * free else "file"


def _leading(name: str, target: Tensor, directions: Sequence[State]) -> int:
    """How many dimensions of a tensor are the rows of the matrix that its directions are made in."""
    for direction in directions:
        if isinstance(direction, PartTensors) and name in direction and direction.scales is not None:
            return direction.leading(name)
    return min(target.dim(), 1)


def _matrix(part: Tensor, block: MatrixBlock) -> Tensor:
    """A block of what this process holds of a tensor, as a matrix."""
    return part[block.local].reshape(len(block.rows), len(block.columns))


def _cut(matrix: Tensor, block: MatrixBlock, rows: range, columns: range) -> Tensor:
    """Rows and columns of the whole tensor, in the matrix of a block."""
    top, left = rows.start - block.rows.start, columns.start - block.columns.start
    return matrix[top : top + len(rows), left : left + len(columns)]


def _pieces(block: MatrixBlock, most: int) -> Iterator[tuple[range, range]]:
    """Rectangles of at most `most` numbers that cover a block: whole rows, or parts of one row."""
    height = max(1, most // max(1, len(block.columns)))
    for top in range(block.rows.start, block.rows.stop, height):
        for left in range(block.columns.start, block.columns.stop, most):
            yield range(top, min(top + height, block.rows.stop)), range(left, min(left + most, block.columns.stop))


# ----------------------------------------------------------------------------------------------------

_GRADIENTS = attrgetter("requires_grad", "grad")


class MovingWeights:
    """The tensors of `model` that the directions move, by type: see `FlatWeights` and `StagedWeights`.

    Every point is computed from the origin.

    Args:
        model: its moved parameters and buffers are set.
        origin: θ₀; tensors that the model does not have are ignored.
        directions: dₖ per axis; a tensor that an axis leaves out does not move along it.
        layouts: memory formats of moved tensors by their number of dimensions; others are contiguous.
        rounding: rounds the weights of points, of whole sets, and those that do not move.
        origin_in: where θ₀ and the directions that are held are kept, if the model is large; default: on a GPU that
            has room for them, else where they are given.

    Attributes:
        last_set: another object whenever weights are set.
    """

    def __init__(
        self, model: nn.Module, origin: State, directions: Sequence[State], layouts: Layouts,
        rounding: WeightRounding = NOTHING_ROUNDED, origin_in: OriginIn | None = None,
    ) -> None:  # fmt: skip
        self._model, self._is_sharded, self.last_set = model, is_sharded(model), object()
        self._gathering = gathering_modules(model)
        reshard(self._gathering)  # before the model is asked for its parameters
        whole, self.axes = targets_of(model), len(directions)
        self._whole = whole
        # A sharded model is the user's own, whose parameters may require gradients.
        self._targets = {
            name: local_part(tensor).detach() if self._is_sharded else tensor for name, tensor in whole.items()
        }
        self._boxes = {name: box_of(tensor) for name, tensor in whole.items()}
        self._origin = {name: tensor for name, tensor in origin.items() if name in self._targets}
        self.moved = [name for name in self._targets if any(name in direction for direction in directions)]
        self._set_all(self._origin)
        self._rounding = rounding.at_origin(self._targets)
        self._rounded = [name for name in self._rounding.infos if name in self._origin]
        self._still = self._unmoved_tensors()
        self._flats = self._hold(directions, layouts, origin_in)
        self._written: set[str] = set()  # tensors that user code writes to without torch's version counters
        # A sharded model exchanges its tensors itself, before and after every forward pass.
        registered = () if self._is_sharded else (*model.parameters(), *model.buffers())
        self._registered = [tensor for tensor in registered if tensor.layout is torch.strided]
        self._homes = [tensor.detach() for tensor in self._registered]
        self._places = self._places_now()
        self._sums = self._sums_now()
        self._moved_tensors = [self._targets[name] for name in self.moved]
        self._versions, self._moved_versions = self._versions_now(), self._moved_versions_now()

    def _hold(
        self, directions: Sequence[State], layouts: Layouts, origin_in: OriginIn | None
    ) -> list[FlatWeights | StagedWeights]:
        """The moved tensors of each type: a model may mix bfloat16 and float32."""
        by_type: dict[torch.dtype, list[str]] = {}
        for name in self.moved:
            by_type.setdefault(self._targets[name].dtype, []).append(name)
        held: list[FlatWeights | StagedWeights] = []
        for dtype, names in by_type.items():
            of_type = self._whole, names, self._origin, directions
            rounds = self._rounding.round_in_place, self._rounded
            in_parts = any(isinstance(direction, PartTensors) for direction in directions)
            is_large = sum(self._targets[name].nbytes for name in names) > LARGE
            if is_large or in_parts or self._is_sharded or dtype is torch.bfloat16:
                held.append(StagedWeights(*of_type, *rounds, origin_in))
            else:
                held.append(FlatWeights(*of_type, layouts, *rounds))
        return held

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
        self.last_set = object()
        self.restore()
        reshard(self._gathering)
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
        """The weights of the point, and the origin's for unmoved tensors: copies of the model's tensors, whole."""
        self.set_point(point)
        return {name: whole_tensor(self._whole[name].detach()).clone() for name in self._origin}

    def set_state(self, state: State) -> None:
        """Set a whole set of weights, such as a snapshot's."""
        self._set_unrounded(state)
        for name in self._rounded:
            self._rounding.round_in_place(name, self._targets[name])

    def set_unrounded_origin(self) -> None:
        """Set the unrounded θ₀; call `restore`, or set a point, afterwards."""
        self._set_unrounded(self._origin)

    def _set_unrounded(self, state: State) -> None:
        self.last_set = object()
        if self._displaced():
            self._put_back()
        reshard(self._gathering)
        self._copy_back(name for name, _, _ in self._still if name not in self._origin)
        self._set_all({name: state[name] for name in self._origin})

    def _set_all(self, state: State) -> None:
        for name, tensor in state.items():
            self._targets[name].copy_(self._cut(name, tensor))

    def _cut(self, name: str, tensor: Tensor) -> Tensor:
        """What this process holds of a whole tensor."""
        box = self._boxes[name]
        return tensor if box is None else box.cut(tensor)

    def _unmoved_tensors(self) -> list[tuple[str, Tensor, Tensor]]:
        """Name, tensor and value of unmoved tensors: the rest of the origin, and buffers that no snapshot holds."""
        origin = self._round_still()
        of_origin = [
            (name, self._targets[name], self._cut(name, tensor))
            for name, tensor in origin.items()
            if name not in self.moved
        ]
        buffers = self._model.named_buffers()
        return of_origin + [(name, buffer, buffer.clone()) for name, buffer in buffers if name not in self._targets]


def set_layouts(model: nn.Module, layouts: Layouts) -> None:
    """Give parameters these memory formats, by their number of dimensions; others stay as torch makes them."""
    for parameter in model.parameters():
        layout = layouts.get(parameter.dim(), torch.contiguous_format)
        parameter.data = parameter.data.contiguous(memory_format=layout)
