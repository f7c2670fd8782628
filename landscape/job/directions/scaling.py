"""Directions scaled to the weights: per filter, per tensor or as a whole (Li et al. 2018)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from torch import Tensor

from landscape.core.errors import JobError
from landscape.job.directions.options import Normalise
from landscape.model.parameters import EPSILON, ParameterInfo, State, norm, scale_to_filters


def refuse_immobile(moved: Sequence[ParameterInfo], infos: Sequence[ParameterInfo], ignore: Sequence[str]) -> None:
    """Refuse a direction along which no parameter would move.

    Raises:
        JobError: `moved` is empty; says why.
    """
    if moved:
        return
    frozen = sum(not info.trainable for info in infos)
    raise JobError(
        f"directions: no parameter moves: of {len(infos)} {frozen} are frozen and the rest falls under "
        f"ignore: [{', '.join(ignore)}]; unfreeze some (requires_grad) or ignore less"
    )


def normalise_direction(
    direction: State, origin: State, infos: Sequence[ParameterInfo], normalise: Normalise
) -> dict[str, Tensor]:
    """Scale a direction to the weights w of the origin (Li et al. 2018), in float64, rounded to float32 once.

    filter: d_f · ‖w_f‖/(‖d_f‖+ε) per output filter · layer: the same per tensor · model: the same over all
    moved tensors · none: as it is. ε = 1e-10, so zero weights give a zero direction and never NaN.

    Args:
        direction: the tensors to scale.
        infos: what each parameter is; it says which elements make a filter.

    Returns:
        A float32 tensor per name of `direction`.

    >>> import torch
    >>> info = ParameterInfo("w", (2, 2), "weight", True)
    >>> direction, origin = {"w": torch.tensor([[3.0, 4.0], [0.0, 1.0]])}, {"w": torch.eye(2)}
    >>> normalise_direction(direction, origin, [info], "filter")["w"].tolist()[1]
    [0.0, 1.0]
    >>> normalise_direction(direction, origin, [info], "filter")["w"].norm(dim=1).tolist()
    [1.0, 1.0]
    """
    if normalise == "none":
        return {name: tensor.float() for name, tensor in direction.items()}
    moved = {info.name: info for info in infos if info.name in direction}
    weights = {name: origin[name] for name in moved}
    if normalise == "filter":
        scaled = {name: scale_to_filters(direction[name], weights[name], info) for name, info in moved.items()}
    elif normalise == "layer":
        scaled = {
            name: tensor.double() * _ratio({name: weights[name]}, {name: tensor}) for name, tensor in direction.items()
        }
    elif normalise == "model":
        ratio = _ratio(weights, direction)
        scaled = {name: tensor.double() * ratio for name, tensor in direction.items()}
    else:
        assert_never(normalise)
    return {name: tensor.float() for name, tensor in scaled.items()}


def _ratio(weights: State, direction: State) -> float:
    return norm(weights) / (norm(direction) + EPSILON)
