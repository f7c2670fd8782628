"""Permute the units of one network so that its weights are as near as possible to another's (Ainsworth et al. 2023)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from landscape.analysis.connect.permutations import Index, Table, apply, named_table, table_of
from landscape.core.errors import JobError, LandscapeError
from landscape.evaluation.model_state import private_copy
from landscape.model.parameters import State, dot

PROGRESS = 1e-12  # Ainsworth et al. 2023: by how much a layer must gain, of the inner product, to be moved again
MOST_ROUNDS = 1000
SAME_OUTPUTS = 1e-5  # of the largest output: sums in another order differ by less, another function by more


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
    """π that maximises ⟨vec A, vec π(B)⟩, found layer by layer; π(B) computes what B computes.

    For one layer with all others fixed this is a linear assignment: the gain of putting unit j of B in place i is the
    inner product of all weights that touch the two, exactly solved. Layers are visited in random order until none
    gains. Ainsworth et al. 2023, "Git Re-Basin: merging models modulo permutation symmetries", section 3.2.

    Args:
        model: whose states `first` (A) and `second` (B) are.
        table: the permutation of each axis of each tensor; default: read off a recipe or an `nn.Sequential`.
        outputs: what a model returns on some data; checked to be the same for B and π(B) where it is given.
        seed: of the order of the layers.

    Raises:
        JobError: the table does not fit, or π(B) computes something else than B.
        LandscapeError: scipy is not installed.
    """
    found = find_permutations(table_of(model) if table is None else named_table(table, second), first, second, seed)
    if outputs is not None:
        refuse_other_outputs(model, second, found.weights, outputs)
    return found


def find_permutations(table: Table, first: State, second: State, seed: int = 0) -> Matched:
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
    """Refuse permuted weights that compute something else than the network does.

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


def _gains(
    table: Table, name: str, permutations: Mapping[str, Index], first: State, second: State
) -> NDArray[np.float64]:
    """What it is worth to put unit j of the second network in the place of unit i of the first: [units, units]."""
    gains = np.zeros((table.sizes[name],) * 2)
    for tensor, axis, places in table.uses(name):
        if tensor in first:
            moved = apply(Table({tensor: table.axes[tensor]}), permutations, {tensor: second[tensor]}, (tensor, axis))
            rows = [_rows(each, axis, places) for each in (first[tensor], moved[tensor])]
            gains += rows[0] @ rows[1].T
    return gains


def _rows(tensor: Tensor, axis: int, places: Index) -> NDArray[np.float64]:
    """All weights of each unit, [units, weights]."""
    entries = np.moveaxis(tensor.numpy(), axis, 0)[places]
    return entries.reshape(len(places), -1)


def _float64(table: Table, state: State) -> dict[str, Tensor]:
    """The tensors that are compared: weights, not the statistics of batch normalisation, which are of another kind."""
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
