"""Average cases: the rise under Gaussian noise on the weights, and how much noise the error bears."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from landscape.analysis.measures.lines import Base, Draw, Floats, samples_of, stderr_over
from landscape.analysis.measures.rises import Rises, rises_of
from landscape.analysis.measures.rows import Row, row_of
from landscape.core.statistics import interval_of
from landscape.evaluation.values import Values
from landscape.job.directions.random import random_direction
from landscape.model.parameters import ParameterInfo, State

DRAWS = 100  # as in Bisla et al. 2022 and Andriushchenko et al. 2023
PAIRS = DRAWS // 2  # δ and −δ: equally likely, and together free of the gradient's part, the largest of their spread
SIGMA = 0.01  # of the low-pass filter, as there
ADAPTIVE_RHO = 0.1  # of the noise relative to each weight
FIRST_SEED = 1001  # not those of the lines
ERROR_DRAWS, ERROR_RISE = 16, 0.1  # Jiang et al. 2020: the error may rise by 0.1
FIRST_NOISE, DOUBLINGS, HALVINGS = 0.1, 7, 6


def gaussian(origin: State, infos: Sequence[ParameterInfo], seed: int) -> dict[str, Tensor]:
    """δ ~ N(0, I) over the trainable parameters."""
    return random_direction(origin, infos, seed, "none", ())


def relative(origin: State, infos: Sequence[ParameterInfo], seed: int) -> dict[str, Tensor]:
    """δ ~ N(0, diag(θ²)): noise in the measure of each weight."""
    return {name: tensor * origin[name].float().abs() for name, tensor in gaussian(origin, infos, seed).items()}


def average_rows(base: Base, infos: Sequence[ParameterInfo], loss: float) -> dict[str, Row]:
    """(L ∗ N(0, σ²))(θ), and E L(θ + δ) − L(θ) for δ ~ N(0, σ²I) and N(0, ρ²θ²).

    Args:
        loss: L(θ).
    """
    rows = dict[str, Row]()
    for name, draw, size in (("average", gaussian, SIGMA), ("adaptive average", relative, ADAPTIVE_RHO)):
        draws: list[Draw] = [partial(draw, base.origin, infos, FIRST_SEED + k) for k in range(PAIRS)]
        lines = base.along(draws, [(-size, 0.0, size)] * len(draws))
        found = rises_of(lines, (size,), base.terms)
        row = rows[f"{name} {size:g}"] = _average(found)
        if draw is gaussian and row.value is not None and row.low is not None and row.high is not None:
            stderr = _stderr_with_loss(lines[0], found)
            rows[f"low-pass {size:g}"] = Row(loss + row.value, stderr, loss + row.low, loss + row.high, PAIRS)
    return rows


def _average(found: Rises) -> Row:
    """The mean rise over the draws and their opposites."""
    rises = found.means[:, 0]
    interval = interval_of(rises.tolist()) if np.isfinite(rises).all() else None
    stderr = None
    if found.samples is not None and found.weights is not None:
        stderr = stderr_over(_mean_of_draws(found.samples), found.weights)
    elif found.errors is not None:
        stderr = float(found.errors[0])
    missing = f"the loss is not finite on {int((~np.isfinite(rises)).sum())} of the {len(rises)} pairs of draws"
    return row_of(float(rises.mean()), stderr, interval, len(rises), missing=missing)


def _stderr_with_loss(line: Values, found: Rises) -> float:
    """The standard error of loss and rise together; where samples have no loss of their own, that of the loss."""
    losses = samples_of(line)
    if losses is None or found.samples is None or found.weights is None:
        return float(line.stderr["loss"][1])
    return stderr_over(losses[1] + _mean_of_draws(found.samples), found.weights)


def _mean_of_draws(samples: NDArray[np.float32]) -> Floats:
    return np.asarray(samples[:, 0].mean(0, dtype=np.float64))


def error_noise_row(base: Base, infos: Sequence[ParameterInfo]) -> Row:
    """1/σ² of the largest σ at which E err(θ + σu) ≤ err(θ) + 0.1, u ~ N(0, diag(θ²)), the same 16 draws at every σ."""
    draws: list[Draw] = [partial(relative, base.origin, infos, FIRST_SEED + k) for k in range(ERROR_DRAWS)]

    def excess(sigma: float) -> float:
        accuracies = np.array(
            [values.mean["accuracy"] for values in base.along(draws, [(0.0, sigma)] * len(draws))], np.float64
        )
        return float((accuracies[:, 0] - accuracies[:, 1]).mean()) - ERROR_RISE

    low, high = 0.0, FIRST_NOISE
    for _ in range(DOUBLINGS):
        if not excess(high) <= 0:  # as of an accuracy that is not a number
            break
        low, high = high, 2 * high
    else:
        return Row(None, note=f"the error bears noise of {low:g} times each weight", below=1 / low**2)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) <= 0 else (low, middle)
    if low == 0:
        return Row(None, note=f"the error bears no noise of {high:.3g} times each weight", above=1 / high**2)
    sigma = (low + high) / 2
    return row_of(1 / sigma**2, note=f"sigma {low:.3g} to {high:.3g}, {ERROR_DRAWS} draws")
