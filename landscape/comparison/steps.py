"""Where the steps of rounded weights can be seen: a short line through the origin on which a few weights change level.

Along a direction d, weight j goes to another level whenever t·dⱼ passes a whole step sⱼ of its rounding. On a line
of length ℓ there are about ℓ·Σⱼ abs(dⱼ)/sⱼ such changes, so that ℓ = K / Σⱼ abs(dⱼ)/sⱼ shows about K of them. With
scales that are taken at each point, all weights of a row also stretch with the largest one between the changes.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from landscape.calculation import Setting
from landscape.errors import JobError
from landscape.evaluation.rounding import WeightRounding
from landscape.parameters import State
from landscape.plan import Engine
from landscape.problem.problem import Problem
from landscape.quantisation import Quantisation

CHANGES = 24  # of single weights on the line


def length_with_changes(
    problem: Problem, origin: State, direction: State, quantise: Quantisation, changes: int = CHANGES
) -> float:
    """How long a line along a direction is on which about so many weights change their level.

    Raises:
        JobError: the direction moves nothing that is rounded.
    """
    rounding = WeightRounding.of(problem.model, quantise)
    per_length = sum(
        rounding.changes_per_length(name, origin[name], direction[name]) for name in rounding.infos if name in direction
    )
    if not per_length:
        raise JobError("steps: the first axis must move weights that are rounded, to show their steps; leave steps out")
    return changes / per_length


def points_of_line(length: float, count: int, axes: int) -> NDArray[np.float64]:
    """Points [count, axes] along the first axis, as far on either side of the origin, which is one of an odd count."""
    points = np.zeros((count, axes))
    points[:, 0] = np.linspace(-length / 2, length / 2, count)
    return points


def in_double(setting: Setting) -> Setting:
    """The setting in float64 and eagerly, in which single changes of level are not lost among rounding errors."""
    plan = replace(setting.plan, precision="float64", bfloat16_weights=False, engine=Engine())
    return replace(setting, plan=plan)
