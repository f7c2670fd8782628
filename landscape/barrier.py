"""The loss barrier of a line between two networks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
ROUNDING = 8 * float(np.finfo(np.float64).eps)  # of the losses: what a straight line may seem to rise above itself


@dataclass(frozen=True)
class Barrier:
    """How far a line rises above the straight line between the losses of its ends, where, and how sure that is.

    `stderr` is an upper bound of the standard error of `height`; NaN where the errors of the rise are not known. Where
    no point between the ends rises above them by more than rounding, all three are 0.
    """

    height: float
    alpha: float
    stderr: float


def loss_barrier(alpha: Floats, loss: Floats, rise_stderr: Floats | None, origin_loss: float) -> Barrier | None:
    """B = max over α in [0, 1] of L(α) − ((1−α)·L(0) + α·L(1)), with L linear between grid points.

    Entezari et al. 2022, "The role of permutation invariance in linear mode connectivity of neural networks",
    definition 1. Where the grid has no point at 0, L(0) is `origin_loss`, the loss that was evaluated there; where that
    is not known, it is interpolated too, and the standard error is not known.

    With R(α) = L(α) − L(0), B = R(α*) − α*·R(1). The errors of both rises are known and how they vary together is
    not, so the standard error is at most s(α*) + α*·s(1).

    Args:
        alpha, loss, rise_stderr: the coordinates, ascending; L and s there, s None where it is not known.
        origin_loss: L(0); NaN where it is not known.

    Returns:
        None where the grid does not cover [0, 1], or not all losses there are finite.
    """
    if alpha[0] > 0 or alpha[-1] < 1:
        return None
    errors = np.full(len(alpha), np.nan) if rise_stderr is None else rise_stderr
    if 0.0 not in alpha and not np.isfinite(origin_loss):
        errors = np.full(len(alpha), np.nan)
    elif 0.0 not in alpha:
        place = int(np.searchsorted(alpha, 0.0))
        alpha, loss, errors = (
            np.insert(each, place, new) for each, new in ((alpha, 0.0), (loss, origin_loss), (errors, 0.0))
        )
    where = np.concatenate([[0.0], alpha[(alpha > 0) & (alpha < 1)], [1.0]])
    values, spread = np.interp(where, alpha, loss), np.interp(where, alpha, errors)
    if not np.isfinite(values).all():
        return None
    above = values - ((1 - where) * values[0] + where * values[-1])
    highest = int(np.argmax(above))
    if above[highest] <= ROUNDING * np.abs(values).max():
        return Barrier(0.0, 0.0, 0.0)
    at = float(where[highest])
    return Barrier(float(above[highest]), at, float(spread[highest] + at * spread[-1]))
