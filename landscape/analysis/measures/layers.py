"""Which layers are critical: the rise when one layer alone moves, or goes back to its initial weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from torch import Tensor

from landscape.analysis.measures.lines import Base, Draw, mean_of, samples_of, stderr_over, weights_of
from landscape.analysis.measures.rises import draws_of, rises_of
from landscape.analysis.measures.rows import Row, row_of
from landscape.model.parameters import ParameterInfo, State

LAYER_DISTANCES = (0.1, 0.25, 0.5)
LAYER_LINES = 4  # of each layer: few, as a network has many layers; their interval says how far they agree
REINITIALISED = "re-initialised"


def layers_of(infos: Sequence[ParameterInfo]) -> dict[str, tuple[ParameterInfo, ...]]:
    """The trainable parameters of each module that has weights, in the model's order, by the module's name."""
    found: dict[str, list[ParameterInfo]] = {}
    for info in infos:
        if info.trainable:
            found.setdefault(info.name.rpartition(".")[0] or info.name, []).append(info)
    return {name: tuple(each) for name, each in found.items() if any(info.role == "weight" for info in each)}


def layer_rows(base: Base, infos: Sequence[ParameterInfo], first: State | None) -> dict[str, dict[str, Row]]:
    """Per layer the rises along its own filter-normalised lines, and when it is put back to its first weights.

    Zhang, Bengio, Singer 2022, "Are all layers created equal?".

    Args:
        first: the first snapshot; None where there is none, or where it is the origin itself.
    """
    coordinates = (*(-each for each in reversed(LAYER_DISTANCES)), 0.0, *LAYER_DISTANCES)
    found = dict[str, dict[str, Row]]()
    for layer, members in layers_of(infos).items():
        names = {info.name for info in members}
        lines: list[Draw] = [partial(_only, draw, names) for draw in draws_of(base.origin, infos, LAYER_LINES)]
        values = base.along(lines, [coordinates] * LAYER_LINES)
        found[layer] = rises_of(values, LAYER_DISTANCES, base.terms).rows()
        if first is not None:
            found[layer][REINITIALISED] = _put_back(base, names, first)
    return found


def _only(draw: Draw, names: set[str]) -> Mapping[str, Tensor]:
    return {name: tensor for name, tensor in draw().items() if name in names}


def _put_back(base: Base, names: set[str], first: State) -> Row:
    difference = {name: (first[name].double() - base.origin[name].double()).float() for name in sorted(names)}
    (values,) = base.along([lambda: difference], [(0.0, 1.0)])
    losses, kept, weights = mean_of(values), samples_of(values), weights_of(values)
    stderr = None if values.rise_stderr is None else float(values.rise_stderr[1])
    if kept is not None and weights is not None:
        stderr = stderr_over(kept[1] - kept[0], weights)
    note = ""
    if "accuracy" in values.mean:
        before, after = np.asarray(values.mean["accuracy"]).tolist()
        note = f"accuracy {before:.4g} to {after:.4g}"
    return row_of(float(losses[1] - losses[0]), stderr, note=note)
