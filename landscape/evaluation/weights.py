"""Set the weights of a point, θ = θ₀ + Σₖ cₖ·dₖ, in flat buffers; the model's moved tensors are views of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

from landscape.evaluation.checksum import checksums
from landscape.evaluation.flat import FlatWeights, Layouts
from landscape.evaluation.rounding import NOTHING_ROUNDED, WeightRounding
from landscape.model.parameters import State, persistent_buffers

_GRADIENTS = attrgetter("requires_grad", "grad")


class MovingWeights:
    """The tensors of `model` that the directions move, held in a buffer per type instead of in memory of their own.

    Every point is computed from the origin, see `FlatWeights`.

    Args:
        model: its moved parameters and buffers become views of the buffers.
        origin: θ₀; tensors of it that the model does not have are left out.
        directions: dₖ per axis; a tensor that an axis leaves out does not move along it.
        layouts: memory formats of moved tensors by their number of dimensions; others are contiguous.
        rounding: what is rounded of the weights that were set: of a point, of a whole set, and of what does not move.
    """

    def __init__(
        self, model: nn.Module, origin: State, directions: Sequence[State], layouts: Layouts,
        rounding: WeightRounding = NOTHING_ROUNDED,
    ) -> None:  # fmt: skip
        self._targets, self.axes = targets_of(model), len(directions)
        self._origin = {name: tensor for name, tensor in origin.items() if name in self._targets}
        self.moved = [name for name in self._targets if any(name in each for each in directions)]
        self._set_all(self._origin)
        self._rounding = rounding.at_origin(self._targets)
        self._rounded = [name for name in self._rounding.infos if name in self._origin]
        self._still = _still(model, self._round_still(), self.moved)
        self._flats = self._make_flat(directions, layouts)
        self._written: set[str] = set()  # names of tensors that are written to past torch's version counters
        self._registered = [each for each in (*model.parameters(), *model.buffers()) if each.layout is torch.strided]
        self._homes = [tensor.detach() for tensor in self._registered]
        self._places = self._places_now()
        self._sums = self._sums_now()
        self._moved_tensors = [self._targets[name] for name in self.moved]
        self._versions, self._moved_versions = self._versions_now(), self._moved_versions_now()

    def _make_flat(self, directions: Sequence[State], layouts: Layouts) -> list[FlatWeights]:
        """One buffer per type of the moved tensors, as a model may hold some in bfloat16 and others in float32."""
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
        """The origin, of which what does not move is rounded: as it is at every point."""
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
        """What is rounded of the weights that are set."""
        return self._rounding

    @property
    def parameters(self) -> int:
        """How many numbers a point sets."""
        return sum(flat.count for flat in self._flats)

    def parts(self, tensor: Tensor | None) -> list[Tensor | None]:
        """What a tensor of the model is in θ₀ and in every direction: [1 + axes]; None stands for zeros.

        A tensor of None, such as the bias of a layer without one, is None in all of them.
        """
        found = [] if tensor is None else [parts for flat in self._flats if (parts := flat.parts(tensor))]
        return found[0] if found else [tensor, *[None] * self.axes]

    def set_point(self, point: Sequence[float]) -> None:
        """Set the weights of the point with these coordinates, and put back what a forward pass has changed."""
        self.restore()
        for flat in self._flats:
            flat.set_point(point)

    # -- what a forward pass changes --------------------------------------------------------------------------

    @property
    def changed(self) -> bool:
        """Whether a forward pass has written to the tensors since a point was set, or put others in their place."""
        written = self._versions_now() != self._versions or self._moved_versions_now() != self._moved_versions
        return written or self._displaced()

    def restore(self) -> None:
        """Set what does not move back to the origin, and put every tensor where it was."""
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
        """Names of tensors that do not move and were written to past torch's counters, as through `.data`.

        From now on these are put back at every point.
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
        ask: tuple[Callable[[Tensor], Any], ...] = (Tensor.data_ptr, Tensor.size, Tensor.stride, _GRADIENTS)
        return tuple([*map(each, tensors)] for each in ask)

    def _put_back(self) -> None:
        """Point every tensor to the memory that it had, and let it want no gradient."""
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
        """The weights of the point, and of the origin what does not move: copies of the model's tensors."""
        self.set_point(point)
        return {name: self._targets[name].detach().clone() for name in self._origin}

    def set_state(self, state: State) -> None:
        """Set a whole set of weights, such as a snapshot's."""
        self._set_unrounded(state)
        for name in self._rounded:
            self._rounding.round_in_place(name, self._targets[name])

    def set_unrounded_origin(self) -> None:
        """Set θ₀ as it is before anything is rounded; `restore`, or a point, comes after it."""
        self._set_unrounded(self._origin)

    def _set_unrounded(self, state: State) -> None:
        if self._displaced():
            self._put_back()
        self._copy_back(name for name, _, _ in self._still if name not in self._origin)
        self._set_all({name: state[name] for name in self._origin})

    def _set_all(self, state: State) -> None:
        for name, tensor in state.items():
            self._targets[name].copy_(tensor)


def lay_out(model: nn.Module, layouts: Layouts) -> None:
    """Give parameters these memory formats, by their number of dimensions; the others are as torch makes them."""
    for parameter in model.parameters():
        layout = layouts.get(parameter.dim(), torch.contiguous_format)
        parameter.data = parameter.data.contiguous(memory_format=layout)


def targets_of(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers by name, those that directions and snapshots may set."""
    return {**dict(model.named_parameters()), **persistent_buffers(model)}


def _still(model: nn.Module, origin: State, moved: Sequence[str]) -> list[tuple[str, Tensor, Tensor]]:
    """Name, tensor and value of what does not move: the rest of the origin, and buffers that no snapshot holds."""
    targets = targets_of(model)
    of_origin = [(name, targets[name], tensor) for name, tensor in origin.items() if name not in moved]
    return of_origin + [(name, each, each.clone()) for name, each in model.named_buffers() if name not in targets]
