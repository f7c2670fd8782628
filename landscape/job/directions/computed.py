"""Tensors of directions that take no memory: any part of them is computed when it is needed.

A random direction is drawn from its seed, see `random`. A direction between weights that lie in files is computed from
these, which are read where they are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from landscape.model.parameters import FilterScales, State

Formula = Callable[[Sequence["Tensor"]], "Tensor"]
"""Elementwise, of a tensor from each source in float64, in float64; picklable."""


FLOAT32 = 4  # bytes
HELD_BYTES = 1 << 30  # if all directions together are larger, they are drawn or computed whenever they are needed


def are_held(numbers: int) -> bool:
    """Whether directions of so many numbers in all are tensors in memory."""
    return FLOAT32 * numbers <= HELD_BYTES


def hold_if_small(directions: Sequence[State]) -> list[State]:
    """The directions, as tensors in memory where all of them together are small."""
    numbers = sum(
        direction.count if isinstance(direction, PartTensors) else sum(tensor.numel() for tensor in direction.values())
        for direction in directions
    )
    return [dict(direction) for direction in directions] if are_held(numbers) else list(directions)


class PartTensors(Mapping[str, "Tensor"], ABC):
    """The tensors of a direction, float32 each, which are made when one is asked for, and never kept.

    Attributes:
        shapes: of the tensors that move, in the model's order.
        scales: the factors of their filters; None for no factors.
    """

    shapes: Mapping[str, tuple[int, ...]]
    scales: Mapping[str, FilterScales] | None

    def leading(self, name: str) -> int:
        """How many dimensions of a tensor are the rows of the matrix that its parts are made in."""
        return min(len(self.shapes[name]), 1) if self.scales is None else self.scales[name].leading

    @abstractmethod
    def rectangle(
        self, name: str, rows: range, columns: range, device: torch.device | str = "cpu", leading: int = 1
    ) -> Tensor:
        """A part of a tensor, float32 [rows, columns], with the bits of the whole.

        Args:
            leading: how many dimensions of the tensor are the rows of the matrix.
        """

    def __contains__(self, name: object) -> bool:
        return name in self.shapes  # the inherited method would make the tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)

    @property
    def count(self) -> int:
        """How many numbers there are."""
        return sum(map(prod, self.shapes.values()))


@dataclass(frozen=True)
class ComputedTensors(PartTensors):
    """f(θ₁, θ₂, …) of several sets of weights, element by element in float64, rounded once to float32.

    Attributes:
        sources: the sets of weights.
        formula: f.
        scales: factors of the filters, with which the rounded numbers are multiplied.
    """

    sources: tuple[State, ...]
    formula: Formula
    shapes: Mapping[str, tuple[int, ...]]
    scales: Mapping[str, FilterScales] | None = None

    @classmethod
    def over(cls, names: Iterable[str], formula: Formula, *sources: State) -> ComputedTensors:
        """Of the tensors with these names."""
        return cls(sources, formula, {name: tuple(sources[0][name].shape) for name in names})

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.shapes:
            raise KeyError(name)
        found = self.exact(name).float()
        return found if self.scales is None else self.scales[name].times(found)

    def exact(self, name: str) -> Tensor:
        """A tensor before it is rounded and scaled, float64."""
        return self.formula([source[name].double() for source in self.sources])

    def rectangle(
        self, name: str, rows: range, columns: range, device: torch.device | str = "cpu", leading: int = 1
    ) -> Tensor:
        """A part of a tensor, see `PartTensors`."""
        height, width = prod(self.shapes[name][:leading]), prod(self.shapes[name][leading:])
        matrices = (source[name].reshape(height, width) for source in self.sources)
        cut = slice(rows.start, rows.stop), slice(columns.start, columns.stop)
        parts = [matrix[cut].to(device).double() for matrix in matrices]
        found = self.formula(parts).float()
        return found if self.scales is None else found.mul_(self.scales[name].rectangle(rows, columns, device))

    def moving(self) -> ComputedTensors:
        """Without the tensors that are all zero, which do not move."""
        return replace(self, shapes={name: shape for name, shape in self.shapes.items() if bool(self[name].any())})


def itself(parts: Sequence[Tensor]) -> Tensor:
    """θ₁."""
    (only,) = parts
    return only


def step(parts: Sequence[Tensor]) -> Tensor:
    """θ₂ − θ₁; zero where both are equal: infinities of a mask that both have do not move."""
    first, second = parts
    return (second - first).masked_fill(second == first, 0.0)


def scaled_step(length: float, parts: Sequence[Tensor]) -> Tensor:
    """(θ₂ − θ₁) over a length."""
    return _over(step(parts), length)


def rejection(share: float, length: float, parts: Sequence[Tensor]) -> Tensor:
    """What is left of θ₃ − θ₁ without a share of θ₂ − θ₁, over a length."""
    first, second, third = parts
    return _over(step((first, third)) - share * step((first, second)), length)


def _over(tensor: Tensor, length: float) -> Tensor:
    """A tensor over a length: by a tensor, as a GPU multiplies with the reciprocal of a number."""
    return tensor / tensor.new_tensor(length)
