"""How far an eigenvalue depends on the samples: its standard error, and a bracket from two halves of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from torch import Tensor

from landscape.calculation import AtPoints, Calculator, Setting
from landscape.curvature.algebra import Floats
from landscape.curvature.lanczos import TOLERANCE, lanczos
from landscape.curvature.operator import HessianOperator
from landscape.curvature.trace import rayleigh
from landscape.directions.base import DirectionTensors
from landscape.directions.eigen import STEPS, half_width
from landscape.errors import JobError
from landscape.plan import Engine, Precision

# The losses of single samples are float32: at this share of the half width the rise, its square, is well above their
# rounding, and the fourth derivative is not yet seen.
STEP_SHARE = float(np.finfo(np.float32).eps) ** 0.25


@dataclass(frozen=True)
class SampledCurvature:
    """vᵀHᵢv over the samples i: their mean, its standard error, how many samples there are, and those of `each` [N]."""

    mean: float
    stderr: float
    samples: int
    each: Floats = field(repr=False, compare=False)


def sampled_curvature(
    calculator: Calculator, setting: Setting, direction: Mapping[str, Tensor], value: float, loss: float
) -> SampledCurvature | None:
    """vᵀHᵢv ≈ (ℓᵢ(θ + hv) − 2ℓᵢ(θ) + ℓᵢ(θ − hv))/h² of every sample: three evaluations, in float64 where they can be.

    To first order the standard error of an eigenvalue is that of the mean of these, sd/√n, at its eigenvector v.

    Args:
        value: λ, which sets h.

    Returns:
        None where λ is 0, where no sample has a loss of its own, or where there is one sample.
    """
    width = half_width(value, loss)
    if not math.isfinite(width):
        return None
    h = STEP_SHARE * width
    line = Setting(setting.origin, (DirectionTensors(direction),), setting.plan)
    around = AtPoints(np.array([[-h], [0.0], [h]]), keep=True)
    try:
        (values,) = calculator.ask(_in(line, "float64"), [around])
    except JobError:  # the model names float32 in its own code, as many do
        (values,) = calculator.ask(_in(line, "float32"), [around])
    found = values.samples
    if found is None or found.losses.shape[1] < 2:
        return None
    before, at, after = found.losses.astype(np.float64)
    curvatures, weights = (after - 2 * at + before) / h**2, found.weights
    mean = float((weights * curvatures).sum() / weights.sum())
    count = len(curvatures)
    spread = math.sqrt(float((weights**2 * (curvatures - mean) ** 2).sum())) / float(weights.sum())
    return SampledCurvature(mean, spread * math.sqrt(count / (count - 1)), count, curvatures)


def _in(setting: Setting, precision: Precision) -> Setting:
    return replace(setting, plan=replace(setting.plan, precision=precision, engine=Engine(), bfloat16_weights=False))


@dataclass(frozen=True)
class Bracket:
    """Ends between which λmax of all data lies in the mean over draws of samples.

    Attributes:
        low: vᵀHv over the samples that v was not computed from: no vector does better than the true one.
        high: λmax of the samples that v was computed from, which v fits, noise included.
    """

    low: float
    high: float


def half_sample_bracket(
    operator: HessianOperator, steps: int = STEPS, tolerance: float = TOLERANCE, seed: int = 0
) -> Bracket | None:
    """λmax of every other block, and the Rayleigh quotient of its eigenvector on the rest; None of one block."""
    if len(operator.blocks) < 2:
        return None
    one, other = operator.on(operator.blocks[::2]), operator.on(operator.blocks[1::2])
    found = lanczos(one, one.size, [1], seed=seed, steps=steps, tolerance=tolerance, noise=lambda: one.noise).pair(1)
    return Bracket(rayleigh(other, found.vector), found.value)
