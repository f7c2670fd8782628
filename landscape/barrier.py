"""The loss barrier of a line between two networks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
ROUNDING = 8 * float(np.finfo(np.float64).eps)  # of the losses: by this much a straight line may rise above itself


@dataclass(frozen=True)
class Barrier:
    """How far the loss on a line rises above the straight line between the losses of its ends, and where.

    `stderr` is an upper bound of the standard error of `height`; NaN where the errors of the rise are not known. All
    three are 0 where no loss lies above that straight line by more than rounding.
    """

    height: float
    alpha: float
    stderr: float


def loss_barrier(alpha: Floats, loss: Floats, rise_stderr: Floats | None, origin_loss: float) -> Barrier | None:
    """B = max over α in [0, 1] of L(α) − ((1−α)·L(0) + α·L(1)), with L linear between grid points.

    Entezari et al. 2022, "The role of permutation invariance in linear mode connectivity of neural networks",
    definition 1. Where the grid has no point at 0, L(0) is `origin_loss`, the loss that was evaluated there. Where that
    is not known, L(0) is interpolated as well, and the standard error is not known.

    With the rise R(α) = L(α) − L(0), B = R(α*) − α*·R(1). The standard errors s of both rises are known but not their
    covariance, so that of B is at most s(α*) + α*·s(1).

    Args:
        alpha: the coordinates [n], ascending.
        loss: L [n].
        rise_stderr: s [n]; None where it is not known.
        origin_loss: L(0); NaN where it is not known.

    Returns:
        None where the grid does not cover [0, 1], or where not all losses on it are finite.

    >>> alpha = np.linspace(0, 1, 5)
    >>> loss_barrier(alpha, np.array([0.5, 1.0, 2.5, 2.0, 1.5]), np.full(5, 0.25), origin_loss=0.5)
    Barrier(height=1.5, alpha=0.5, stderr=0.375)
    """
    if alpha[0] > 0 or alpha[-1] < 1:
        return None
    errors = np.full(len(alpha), np.nan) if rise_stderr is None else rise_stderr
    alpha, loss, errors = _with_origin(alpha, loss, errors, origin_loss)
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


def _with_origin(alpha: Floats, loss: Floats, errors: Floats, origin_loss: float) -> tuple[Floats, Floats, Floats]:
    """The coordinates, losses and errors with the origin among them, where the loss there is known.

    Where the grid has no point at 0 and the loss there is not known either, the errors of the rise are NaN.
    """
    if 0.0 in alpha:
        return alpha, loss, errors
    if not np.isfinite(origin_loss):
        return alpha, loss, np.full(len(alpha), np.nan)
    place = int(np.searchsorted(alpha, 0.0))
    return np.insert(alpha, place, 0.0), np.insert(loss, place, origin_loss), np.insert(errors, place, 0.0)
