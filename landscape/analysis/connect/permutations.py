"""Which units of a network may change places together: a table of the tensors whose axes each permutation acts on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from landscape.core.errors import JobError, shown
from landscape.model.parameters import State

if TYPE_CHECKING:
    from landscape.recipes.resnet import Block, ResNet

Index = NDArray[np.int64]

# What acts on each unit alone, and maps equal units to equal units: it changes nothing for a permutation.
ELEMENTWISE = (
    nn.ReLU, nn.LeakyReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.ELU, nn.Softplus, nn.Identity, nn.Dropout,
    nn.Dropout2d, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d, nn.Flatten,
)  # fmt: skip


@dataclass(frozen=True)
class Piece:
    """The part of an axis on which one permutation acts.

    Attributes:
        permutation: its name.
        places: the entries of the axis that belong to each unit, [units, entries per unit].
    """

    permutation: str
    places: Index


@dataclass(frozen=True)
class Layout:
    """The pieces of an axis; entries that are in none stay where they are."""

    pieces: tuple[Piece, ...] = ()

    def spread(self, entries: int) -> Layout:
        """The layout of what each unit turns into so many entries, one after another, as `Flatten` does."""
        return Layout(
            tuple(
                Piece(
                    piece.permutation,
                    (piece.places[:, :, None] * entries + np.arange(entries)).reshape(len(piece.places), -1),
                )
                for piece in self.pieces
            )
        )

    def shifted(self, offset: int) -> Layout:
        """The same pieces so many entries further on."""
        return Layout(tuple(Piece(piece.permutation, piece.places + offset) for piece in self.pieces))


def units(name: str, count: int, offset: int = 0) -> Layout:
    """The layout of an axis with an entry per unit."""
    return Layout((Piece(name, np.arange(offset, offset + count)[:, None]),))


@dataclass
class Table:
    """The layout of every axis of the tensors that permutations act on.

    Attributes:
        axes: by the names of the tensors, a layout per axis.
    """

    axes: dict[str, tuple[Layout, ...]] = field(default_factory=dict)

    @property
    def sizes(self) -> dict[str, int]:
        """How many units each permutation has, by its name, in the order in which they were first named."""
        return {
            piece.permutation: len(piece.places)
            for layouts in self.axes.values() for layout in layouts for piece in layout.pieces
        }  # fmt: skip

    def uses(self, name: str) -> Iterator[tuple[str, int, Index]]:
        """Each tensor, axis and places on which a permutation acts."""
        for tensor, layouts in self.axes.items():
            for axis, layout in enumerate(layouts):
                for piece in layout.pieces:
                    if piece.permutation == name:
                        yield tensor, axis, piece.places

    def add(self, name: str, module: nn.Module, inputs: Layout, outputs: Layout) -> None:
        """The tensors of a linear, convolutional or normalisation layer between these layouts."""
        prefix = f"{name}." if name else ""
        own = {key: tensor for key, tensor in module.state_dict().items() if tensor.dim()}
        for key, tensor in own.items():
            self.axes[f"{prefix}{key}"] = (outputs, inputs, *[Layout()] * (tensor.dim() - 2))[: tensor.dim()]


def apply(table: Table, permutations: Mapping[str, Index], state: State, but: tuple[str, int] | None = None) -> State:
    """The weights with their units in another order: unit j of the result is unit p[j] of the network.

    Args:
        permutations: p by name.
        but: a tensor and one axis of it that stays as it is.

    >>> table = Table({"w": (units("P", 2), Layout())})
    >>> apply(table, {"P": np.array([1, 0])}, {"w": torch.tensor([[1, 2], [3, 4]])})["w"].tolist()
    [[3, 4], [1, 2]]
    """
    moved = dict(state)
    for name, layouts in table.axes.items():
        if name in moved:
            for axis, layout in enumerate(layouts):
                if (name, axis) != but:
                    moved[name] = moved_axis(moved[name], axis, layout, permutations)
    return moved


def moved_axis(tensor: Tensor, axis: int, layout: Layout, permutations: Mapping[str, Index]) -> Tensor:
    """A tensor with the entries of one axis in the order of the permutations."""
    if not layout.pieces:
        return tensor
    order = np.arange(tensor.shape[axis])
    for piece in layout.pieces:
        order[piece.places] = piece.places[permutations[piece.permutation]]
    return tensor.index_select(axis, torch.from_numpy(order))


def named_table(given: Mapping[str, Sequence[str | None]], state: State) -> Table:
    """The table of a user's own network: for each tensor the name of the permutation on each axis, or None.

    An axis that is a whole number of times as long as the shortest one of the same name has that many entries per
    unit, one after another, as the input of a linear layer behind `Flatten` has.

    Raises:
        JobError: it names tensors or axes that the network does not have, or lengths that do not fit.
    """
    lengths: dict[str, int] = {}
    for tensor, names in given.items():
        if tensor not in state or len(names) != state[tensor].dim():
            has = "has no such tensor" if tensor not in state else f"has {state[tensor].dim()} axes there"
            raise JobError(
                f"table: must name the permutation of every axis of a tensor; for {shown(tensor)} the model {has}"
            )
        for name, length in zip(names, state[tensor].shape, strict=True):
            if name is not None:
                lengths[name] = min(length, lengths.get(name, length))
    axes = {}
    for tensor, names in given.items():
        layouts = []
        for name, length in zip(names, state[tensor].shape, strict=True):
            if name is not None and length % lengths[name]:
                raise JobError(
                    f"table: {shown(tensor)} has {length} entries of {shown(name)}, which has {lengths[name]} units "
                    "elsewhere; give units that belong together one name"
                )
            layouts.append(Layout() if name is None else units(name, lengths[name]).spread(length // lengths[name]))
        axes[tensor] = tuple(layouts)
    return Table(axes)


def table_of(model: nn.Module) -> Table:
    """The table of a recipe's network, or of an `nn.Sequential` of layers one after another.

    Raises:
        JobError: it cannot be read off this model.
    """
    from landscape.recipes.lenet import LeNet5
    from landscape.recipes.resnet import ResNet

    if isinstance(model, ResNet):
        return _of_resnet(model) if _has_shortcuts(model) else _of_chain(list(_leaves(model)))
    # What a module of another kind does with its layers cannot be seen.
    plain = all(isinstance(module, nn.Sequential) for module in model.modules() if list(module.children()))
    if isinstance(model, LeNet5) or (isinstance(model, nn.Sequential) and plain):
        return _of_chain(list(_leaves(model)))
    raise JobError(
        f"table: cannot be read off {type(model).__name__}; give one: the permutation of each axis of each tensor, "
        "such as {'fc1.weight': ['P1', None], 'fc1.bias': ['P1'], 'fc2.weight': [None, 'P1']}"
    )


def _has_shortcuts(model: ResNet) -> bool:
    return any(bool(getattr(module, "shortcut", False)) for module in model.modules())


def _leaves(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    return ((name, module) for name, module in model.named_modules() if not list(module.children()))


def _of_chain(layers: Sequence[tuple[str, nn.Module]]) -> Table:
    """Layers one after another: a permutation of the outputs of each but the last that has weights."""
    table, inputs, before = Table(), Layout(), 0
    weighted = [name for name, module in layers if isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d))]
    for name, module in layers:
        if isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d)):
            taken, made, fits = _inputs_and_outputs(module, before)
            if before and not fits:
                raise JobError(
                    f"table: cannot be read off layer {shown(name)}, whose inputs are not those before it; give one"
                )
            outputs = Layout() if name == weighted[-1] else units(name, made)
            table.add(name, module, inputs.spread(taken // before) if before else inputs, outputs)
            inputs, before = outputs, made
        elif isinstance(module, _NormBase):
            if module.num_features != before:
                raise JobError(
                    f"table: cannot be read off layer {shown(name)}, which normalises other than the units before it; "
                    "give one"
                )
            table.add(name, module, Layout(), inputs)
        elif not isinstance(module, ELEMENTWISE):
            raise JobError(f"table: cannot be read off a {type(module).__name__}, layer {shown(name)}; give one")
    return table


def _inputs_and_outputs(module: nn.Linear | nn.Conv1d | nn.Conv2d, before: int) -> tuple[int, int, bool]:
    """How many inputs and outputs a layer has, and whether the inputs can be those of so many units before it."""
    if isinstance(module, nn.Linear):
        return module.in_features, module.out_features, not before or module.in_features % before == 0
    return module.in_channels, module.out_channels, module.in_channels == before and module.groups == 1


def _of_resnet(model: ResNet) -> Table:
    """A residual network with shortcuts of option A, which have no weights: a stage adds to the channels before it.

    All blocks of a stage share the order of its channels. The padded shortcut puts the channels of the stage before it
    in the middle; so only the others of a stage have a permutation of their own.
    """
    table, channels = Table(), model.conv1.out_channels
    stage = units("stage1", channels)
    table.add("conv1", model.conv1, Layout(), stage)
    table.add("bn1", model.bn1, Layout(), stage)
    for number in (1, 2, 3):
        blocks: list[Block] = list(getattr(model, f"layer{number}"))
        for k, block in enumerate(blocks):
            name, inputs = f"layer{number}.{k}", stage
            if block.added:
                margin = block.added // 2
                outer = np.r_[0:margin, margin + channels : channels + block.added][:, None]
                stage = Layout((Piece(f"stage{number}", outer), *inputs.shifted(margin).pieces))
                channels += block.added
            inner = units(f"{name}.conv1", block.conv1.out_channels)
            table.add(f"{name}.conv1", block.conv1, inputs, inner)
            table.add(f"{name}.bn1", block.bn1, Layout(), inner)
            table.add(f"{name}.conv2", block.conv2, inner, stage)
            table.add(f"{name}.bn2", block.bn2, Layout(), stage)
    table.add("linear", model.linear, stage, Layout())
    return table
