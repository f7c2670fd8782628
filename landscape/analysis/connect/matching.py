"""Permute the units of one network to bring its weights as near as possible to another's (Ainsworth et al. 2023)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from landscape.core.errors import JobError, LandscapeError, quoted
from landscape.core.grid import Floats
from landscape.evaluation.model_state import private_copy
from landscape.model.parameters import State, dot

if TYPE_CHECKING:
    from landscape.recipes.resnet import Block, ResNet


# ----------------------------------------------------------------------------------------------------
# Which units of a network may be permuted together: a table of the tensors and axes of each permutation.

Index = NDArray[np.int64]

# Layers that act on each unit separately and equally: permutations pass through them.
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
class AxisLayout:
    """The pieces of an axis; entries in no piece keep their places."""

    pieces: tuple[Piece, ...] = ()

    def spread(self, entries: int) -> AxisLayout:
        """The layout after each unit has become so many consecutive entries, as by `Flatten`."""
        return AxisLayout(
            tuple(
                Piece(
                    piece.permutation,
                    (piece.places[:, :, None] * entries + np.arange(entries)).reshape(len(piece.places), -1),
                )
                for piece in self.pieces
            )
        )

    def shifted(self, offset: int) -> AxisLayout:
        """The same pieces, moved by so many entries."""
        return AxisLayout(tuple(Piece(piece.permutation, piece.places + offset) for piece in self.pieces))


def units(name: str, count: int, offset: int = 0) -> AxisLayout:
    """The layout of an axis with an entry per unit."""
    return AxisLayout((Piece(name, np.arange(offset, offset + count)[:, None]),))


@dataclass
class AxisTable:
    """The layout of every axis of the tensors that permutations act on.

    Attributes:
        axes: by the names of the tensors, a layout per axis.
    """

    axes: dict[str, tuple[AxisLayout, ...]] = field(default_factory=dict)

    @property
    def sizes(self) -> dict[str, int]:
        """The number of units of each permutation, by name, in the order of first use."""
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

    def add(self, name: str, module: nn.Module, inputs: AxisLayout, outputs: AxisLayout) -> None:
        """Add the tensors of a linear, convolutional or normalisation layer with these layouts."""
        prefix = f"{name}." if name else ""
        own = {key: tensor for key, tensor in module.state_dict().items() if tensor.dim()}
        for key, tensor in own.items():
            self.axes[f"{prefix}{key}"] = (outputs, inputs, *[AxisLayout()] * (tensor.dim() - 2))[: tensor.dim()]


def apply(
    table: AxisTable, permutations: Mapping[str, Index], state: State, but: tuple[str, int] | None = None
) -> State:
    """The weights with their units in another order: unit j of the result is unit p[j] of the network.

    Args:
        permutations: p by name.
        but: a tensor and its axis that is not permuted.

    >>> table = AxisTable({"w": (units("P", 2), AxisLayout())})
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


def moved_axis(tensor: Tensor, axis: int, layout: AxisLayout, permutations: Mapping[str, Index]) -> Tensor:
    """A tensor with the entries of one axis in the order of the permutations."""
    if not layout.pieces:
        return tensor
    order = np.arange(tensor.shape[axis])
    for piece in layout.pieces:
        order[piece.places] = piece.places[permutations[piece.permutation]]
    return tensor.index_select(axis, torch.from_numpy(order))


def named_table(given: Mapping[str, Sequence[str | None]], state: State) -> AxisTable:
    """The table of a user's own network: for each tensor the name of the permutation on each axis, or None.

    If an axis is n times as long as the shortest one of the same name, it has n consecutive entries per unit, like the
    input of a linear layer behind `Flatten`.

    Raises:
        JobError: the table names tensors or axes that the network does not have, or lengths do not fit.
    """
    lengths: dict[str, int] = {}
    for tensor, names in given.items():
        if tensor not in state or len(names) != state[tensor].dim():
            has = "has no such tensor" if tensor not in state else f"has {state[tensor].dim()} axes there"
            raise JobError(
                f"table: must name the permutation of every axis of a tensor; for {quoted(tensor)} the model {has}"
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
                    f"table: {quoted(tensor)} has {length} entries of {quoted(name)}, which has {lengths[name]} units "
                    "elsewhere; give units that belong together one name"
                )
            layouts.append(AxisLayout() if name is None else units(name, lengths[name]).spread(length // lengths[name]))
        axes[tensor] = tuple(layouts)
    return AxisTable(axes)


def table_of(model: nn.Module) -> AxisTable:
    """The table of a recipe's network, or of an `nn.Sequential` of layers one after another.

    Raises:
        JobError: this model's table cannot be derived.
    """
    from landscape.recipes.lenet import LeNet5
    from landscape.recipes.resnet import ResNet

    if isinstance(model, ResNet):
        return _of_resnet(model) if _has_shortcuts(model) else _of_chain(list(_leaves(model)))
    # The data flow within other kinds of modules is unknown.
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


def _of_chain(layers: Sequence[tuple[str, nn.Module]]) -> AxisTable:
    """The table of consecutive layers: a permutation of the outputs of each layer with weights except the last."""
    table, inputs, before = AxisTable(), AxisLayout(), 0
    weighted = [name for name, module in layers if isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d))]
    for name, module in layers:
        if isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d)):
            taken, made, fits = _inputs_and_outputs(module, before)
            if before and not fits:
                raise JobError(
                    f"table: cannot be read off layer {quoted(name)}, whose inputs are not those before it; give one"
                )
            outputs = AxisLayout() if name == weighted[-1] else units(name, made)
            table.add(name, module, inputs.spread(taken // before) if before else inputs, outputs)
            inputs, before = outputs, made
        elif isinstance(module, _NormBase):
            if module.num_features != before:
                raise JobError(
                    f"table: cannot be read off layer {quoted(name)}, which normalises other than the units before it; "
                    "give one"
                )
            table.add(name, module, AxisLayout(), inputs)
        elif not isinstance(module, ELEMENTWISE):
            raise JobError(f"table: cannot be read off a {type(module).__name__}, layer {quoted(name)}; give one")
    return table


def _inputs_and_outputs(module: nn.Linear | nn.Conv1d | nn.Conv2d, before: int) -> tuple[int, int, bool]:
    """A layer's numbers of inputs and outputs, and whether the inputs fit the `before` units of the layer before."""
    if isinstance(module, nn.Linear):
        return module.in_features, module.out_features, not before or module.in_features % before == 0
    return module.in_channels, module.out_channels, module.in_channels == before and module.groups == 1


def _of_resnet(model: ResNet) -> AxisTable:
    """The table of a residual network with shortcuts of option A, which have no weights.

    All blocks of a stage share the order of its channels. The padded shortcut puts the previous stage's channels in the
    middle; so only a stage's other channels have a permutation of their own.
    """
    table, channels = AxisTable(), model.conv1.out_channels
    stage = units("stage1", channels)
    table.add("conv1", model.conv1, AxisLayout(), stage)
    table.add("bn1", model.bn1, AxisLayout(), stage)
    for number in (1, 2, 3):
        blocks: list[Block] = list(getattr(model, f"layer{number}"))
        for k, block in enumerate(blocks):
            name, inputs = f"layer{number}.{k}", stage
            if block.added:
                margin = block.added // 2
                outer = np.r_[0:margin, margin + channels : channels + block.added][:, None]
                stage = AxisLayout((Piece(f"stage{number}", outer), *inputs.shifted(margin).pieces))
                channels += block.added
            inner = units(f"{name}.conv1", block.conv1.out_channels)
            table.add(f"{name}.conv1", block.conv1, inputs, inner)
            table.add(f"{name}.bn1", block.bn1, AxisLayout(), inner)
            table.add(f"{name}.conv2", block.conv2, inner, stage)
            table.add(f"{name}.bn2", block.bn2, AxisLayout(), stage)
    table.add("linear", model.linear, stage, AxisLayout())
    return table


# ----------------------------------------------------------------------------------------------------

PROGRESS = 1e-12  # Ainsworth et al. 2023: the least gain for permuting a layer again, relative to the inner product
MOST_ROUNDS = 1000
SAME_OUTPUTS = 1e-5  # of the largest output: reordered sums differ by less, another function by more


@dataclass(frozen=True)
class Matched:
    """A network with its units in the order that matches another one's.

    Attributes:
        weights: of π(B), the same function as B.
        permutations: by name; unit j of π(B) is unit p[j] of B.
        before, after: ⟨A, B⟩ and ⟨A, π(B)⟩ over the tensors of the table.
        rounds: how often all layers were visited.
    """

    weights: dict[str, Tensor]
    permutations: dict[str, Index]
    before: float
    after: float
    rounds: int


def match_weights(
    model: nn.Module, first: State, second: State, table: Mapping[str, Sequence[str | None]] | None = None, *,
    outputs: Callable[[nn.Module], Tensor] | None = None, seed: int = 0,
) -> Matched:  # fmt: skip
    """π that maximises ⟨vec A, vec π(B)⟩, found layer by layer; π(B) computes the same function as B.

    For one layer with all others fixed this is a linear assignment, solved exactly: the gain of putting unit j of B in
    place i is the inner product of all weights that touch both. Layers are visited in random order until none gains.
    Ainsworth et al. 2023, "Git Re-Basin: merging models modulo permutation symmetries", section 3.2.

    Args:
        model: `first` (A) and `second` (B) are states of it.
        table: the permutation of each axis of each tensor; default: derived from a recipe's network or `nn.Sequential`.
        outputs: returns a model's outputs on some data; if given, they are checked to be the same for B and π(B).
        seed: of the order of the layers.

    Raises:
        JobError: the table does not fit, or π(B) computes another function than B.
        LandscapeError: scipy is not installed.
    """
    found = find_permutations(table_of(model) if table is None else named_table(table, second), first, second, seed)
    if outputs is not None:
        refuse_other_outputs(model, second, found.weights, outputs)
    return found


def find_permutations(table: AxisTable, first: State, second: State, seed: int = 0) -> Matched:
    """The permutations of a table that bring `second` nearest to `first`, layer by layer; see `match_weights`."""
    assign = _assignment()
    one, other = (_float64(table, state) for state in (first, second))
    permutations = {name: np.arange(count) for name, count in table.sizes.items()}
    before, names = dot(one, other), list(permutations)
    generator, rounds, gained = np.random.default_rng(seed), 0, True
    while gained and rounds < MOST_ROUNDS:
        gained, rounds = False, rounds + 1
        for k in generator.permutation(len(names)):
            name, gains = names[k], _gains(table, names[k], permutations, one, other)
            order = np.asarray(assign(gains, maximize=True)[1], np.int64)
            places = np.arange(len(order))
            more = gains[places, order].sum() - gains[places, permutations[name]].sum()
            if more > PROGRESS * max(1.0, float(np.abs(gains).max())):
                permutations[name], gained = order, True
    weights = dict(apply(table, permutations, second))
    return Matched(weights, permutations, before, dot(one, apply(table, permutations, other)), rounds)


def refuse_other_outputs(
    model: nn.Module, second: State, matched: State, outputs: Callable[[nn.Module], Tensor]
) -> None:
    """Refuse permuted weights that compute another function than the network.

    Raises:
        JobError: outputs differ by more than `SAME_OUTPUTS` of the largest.
    """
    results = []
    for weights in (second, matched):
        copied = private_copy(model)[0].eval()
        copied.load_state_dict(dict(weights), strict=False)
        with torch.no_grad():
            results.append(outputs(copied).double())
    apart, largest = float((results[0] - results[1]).abs().max()), float(results[0].abs().max())
    if not apart <= SAME_OUTPUTS * max(largest, 1.0):
        raise JobError(
            f"table: the permuted network must compute what it did, but outputs differ by {apart:.2g}; name all "
            "tensors that a permutation acts on"
        )


def _gains(table: AxisTable, name: str, permutations: Mapping[str, Index], first: State, second: State) -> Floats:
    """The gain of putting unit j of the second network in the place of unit i of the first: [units, units]."""
    gains = np.zeros((table.sizes[name],) * 2)
    for tensor, axis, places in table.uses(name):
        if tensor in first:
            moved = apply(
                AxisTable({tensor: table.axes[tensor]}), permutations, {tensor: second[tensor]}, (tensor, axis)
            )
            rows = [_rows(weights, axis, places) for weights in (first[tensor], moved[tensor])]
            gains += rows[0] @ rows[1].T
    return gains


def _rows(tensor: Tensor, axis: int, places: Index) -> Floats:
    """All weights of each unit, [units, weights]."""
    entries = np.moveaxis(tensor.numpy(), axis, 0)[places]
    return entries.reshape(len(places), -1)


def _float64(table: AxisTable, state: State) -> dict[str, Tensor]:
    """The compared tensors in float64: weights, but not the statistics of batch normalisation."""
    statistics = ("running_mean", "running_var")
    return {name: state[name].double() for name in table.axes if name in state and not name.endswith(statistics)}


def _assignment() -> Any:
    try:
        from scipy.optimize import linear_sum_assignment
    except ImportError:
        raise LandscapeError(
            "match: the assignment of units is scipy's, which is not installed: "
            "pip install 'loss-landscape-cluster[match]'"
        ) from None
    return linear_sum_assignment
