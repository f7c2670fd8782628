"""Where the steps of rounded weights can be seen: near the origin, on a line or a patch where few weights change level.

Along a direction d, weight j goes to another level whenever t·dⱼ passes a whole step sⱼ of its rounding. On a line
of length ℓ there are about ℓ·Σⱼ abs(dⱼ)/sⱼ such changes, so that ℓ = K / Σⱼ abs(dⱼ)/sⱼ shows about K of them. With
scales that are taken at each point, all weights of a row also stretch with the largest one between the changes.

On a patch each side is such a line of its own axis. A change of level is a straight cut through the patch, across which
weight j passes from one level to the next; between the cuts lie the treads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from landscape.compute.executor import EvaluationSetting
from landscape.core.errors import JobError
from landscape.core.plan import Engine
from landscape.core.quantisation import Quantisation
from landscape.evaluation.weights import WeightRounding
from landscape.model.parameters import State
from landscape.problem.terms import Problem

Floats = NDArray[np.float64]

CHANGES = 24  # of single weights on the line
FLOAT32_ERROR = 2.0**-24  # of a weight, relative
RESOLVED = 8  # times that error, so that cuts which are off by it stay between their points
PATCH_CHANGES = 10  # on each side of the patch: the cuts of both sides cross, and more would leave no tread to be seen


@dataclass(frozen=True)
class Steps:
    """Both losses along a short line through the origin; the first one is the network before it is rounded."""

    axis: str
    at: Floats
    plain: Floats
    rounded: Floats


@dataclass(frozen=True)
class LossPatch:
    """Both losses on a small patch of the plane around the origin; the first is the network before it is rounded.

    Attributes:
        axes: names of the first and the second axis.
        at: coordinates along each.
        plain, rounded: [second axis, first axis].
        origin: both losses at the origin itself.
        precision: in which they were computed.
    """

    axes: tuple[str, str]
    at: tuple[Floats, Floats]
    plain: Floats
    rounded: Floats
    origin: tuple[float, float]
    precision: str


def length_with_changes(
    problem: Problem, origin: State, direction: State, quantise: Quantisation, changes: int = CHANGES,
    *, option: str = "steps", which: str = "first",
) -> float:  # fmt: skip
    """How long a line along a direction is on which about so many weights change their level.

    Args:
        option, which: what a refusal calls what is asked for, and the axis.

    Raises:
        JobError: the direction moves nothing that is rounded.
    """
    rounding = WeightRounding.of(problem.model, quantise)
    per_length = sum(
        rounding.changes_per_length(name, origin[name], direction[name]) for name in rounding.infos if name in direction
    )
    if not per_length:
        raise JobError(
            f"{option}: the {which} axis must move weights that are rounded, to show their steps; leave {option} out"
        )
    return changes / per_length


def places_on(length: float, count: int) -> Floats:
    """Coordinates as far on either side of the origin, which is one of an odd count."""
    return np.linspace(-length / 2, length / 2, count)


def points_of_line(length: float, count: int, axes: int) -> Floats:
    """Points [count, axes] along the first axis."""
    points = np.zeros((count, axes))
    points[:, 0] = places_on(length, count)
    return points


def rows_of_patch(at: tuple[Floats, Floats], axes: int) -> list[Floats]:
    """The points of the patch, a row of one coordinate of the second axis each: [count, axes]."""
    rows = []
    for second in at[1]:
        points = np.zeros((len(at[0]), axes))
        points[:, 0], points[:, 1] = at[0], second
        rows.append(points)
    return rows


def fine_enough(
    problem: Problem, setting: EvaluationSetting, quantise: Quantisation, at: Sequence[Floats]
) -> EvaluationSetting:
    """The setting itself where its arithmetic tells neighbouring points of a patch apart, else that in float64.

    In float32 every weight is off by up to 2⁻²⁴ of itself, by which a cut moves; a step between two points has to move
    weights by much more. float64 takes several times as long, of convolutions ten times.
    """
    names = list(WeightRounding.of(problem.model, quantise).infos)
    error = FLOAT32_ERROR * _total(setting.origin, names)
    moved = (
        float(places[1] - places[0]) * _total(direction.tensors, names)
        for places, direction in zip(at, setting.directions, strict=False)
    )
    if setting.plan.precision == "float32" and all(step >= RESOLVED * error for step in moved):
        return setting
    return in_double(setting)


def _total(state: Mapping[str, Tensor], names: Sequence[str]) -> float:
    """Σ abs(w) over tensors, those of them that there are."""
    return sum(float(state[name].abs().sum(dtype=torch.float64)) for name in names if name in state)


def in_double(setting: EvaluationSetting) -> EvaluationSetting:
    """The setting in float64 and eagerly, in which single changes of level are not lost among rounding errors."""
    plan = replace(setting.plan, precision="float64", bfloat16_weights=False, engine=Engine())
    return replace(setting, plan=plan)
