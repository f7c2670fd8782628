"""Whether a grid is coarse enough for weights that are rounded to bfloat16 at every point."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import torch

from landscape.compute.prepared import PreparedLandscape
from landscape.core.errors import JobError, shown
from landscape.model.parameters import State, norm

LEAST_REACH = 0.03  # of the weights' norm: 6 % of the weights do not move at all, the cosine of the real move is 0.998
GOOD_REACH = 0.1  # 2 % do not move, the cosine is 0.9999
GOOD_STEP = 0.005
SLACK = 1e-3  # relative: by how much a filter-normalised direction may be shorter than the weights by rounding


def rounding_warnings(landscapes: Iterable[PreparedLandscape]) -> list[str]:
    """Warnings of axes along which the rounding of weights to bfloat16 may show in the surface.

    A step of bfloat16 is up to 2⁻⁸ of a weight, so what counts is how far an axis moves the weights in proportion to
    them. The move to coordinate c along a direction d is r(c) = |c|·‖d‖/‖θ₀‖ over the moved tensors that are held in
    bfloat16. With `normalise: filter`, `layer` or `model` ‖d‖ is ‖θ₀‖, and r the coordinate itself; for `towards`,
    `pca`, a file, or `normalise: none` it is the relative move that the coordinate stands for.

    Raises:
        JobError: r at the farther end of an axis is below 0.03.
    """
    rounded = [each for each in landscapes if each.plan.rounds_weights]
    return [warning for landscape in rounded for warning in _warnings_of(landscape)]


def _warnings_of(landscape: PreparedLandscape) -> Iterator[str]:
    axes = zip(landscape.grid.names, landscape.grid.coordinates, landscape.directions, strict=True)
    for name, coordinates, direction in axes:
        unit = _unit(direction.tensors, landscape.origin)
        if unit is None:
            continue
        reach, step = unit * float(np.abs(coordinates).max()), unit * float(np.diff(coordinates).min())
        moves = f"range: {name} of landscape {shown(landscape.name)} moves the weights by {reach:.2g} of their norm"
        if reach < LEAST_REACH * (1 - SLACK):
            raise JobError(
                f"{moves}, and must by {LEAST_REACH} or more where they are held in bfloat16, whose steps are too "
                "coarse for less; widen the range, or set `precision: float32`, which takes the weights to float32"
            )
        if reach < GOOD_REACH * (1 - SLACK):
            yield (
                f"{moves}: below {GOOD_REACH} the rounding of weights to bfloat16 may show in the surface; widen the "
                "range, or set `precision: float32`"
            )
        elif step < GOOD_STEP * (1 - SLACK):
            yield (
                f"size: neighbouring points on {name} of landscape {shown(landscape.name)} differ by {step:.2g} of the "
                f"weights' norm: below {GOOD_STEP} the rounding of weights to bfloat16 may show between them; take "
                "fewer points, or set `precision: float32`"
            )


def _unit(direction: State, origin: State) -> float | None:
    """‖d‖/‖θ₀‖ over the moved tensors in bfloat16; None where there are none, or all are zero."""
    names = [name for name in direction if origin[name].dtype is torch.bfloat16 and bool(direction[name].any())]
    size = norm({name: origin[name] for name in names})
    return norm({name: direction[name] for name in names}) / size if size else None
