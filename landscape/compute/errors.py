"""How far an eigenvalue depends on the samples: its standard error, and a bracket from two halves of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from torch import Tensor

from landscape.compute.algebra import Floats
from landscape.compute.executor import Calculator, Setting
from landscape.compute.hessian import HessianOperator
from landscape.compute.lanczos import TOLERANCE, lanczos
from landscape.compute.points import AtPoints
from landscape.compute.trace import rayleigh
from landscape.core.errors import JobError
from landscape.core.plan import Engine, Precision
from landscape.evaluation.values import SampleValues
from landscape.job.directions.base import DirectionTensors
from landscape.job.directions.eigen import STEPS, half_width

# The losses of single samples are float32: at this share of the half width the rise, its square, is well above their
# rounding, and the fourth derivative is not yet seen.
STEP_SHARE = float(np.finfo(np.float32).eps) ** 0.25


@dataclass(frozen=True)
class SampledCurvature:
    """vᵀHᵢv over the samples i: their mean, its standard error, how many samples there are, and all of them [N].

    Of a loss of several terms mean and error are those of the sum, and `by_sample` is empty.
    """

    mean: float
    stderr: float
    samples: int
    by_sample: Floats = field(repr=False, compare=False)


def sampled_curvature(
    calculator: Calculator, setting: Setting, direction: Mapping[str, Tensor], value: float, loss: float,
    terms: Mapping[str, float] | None = None,
) -> SampledCurvature | None:  # fmt: skip
    """vᵀHᵢv ≈ (ℓᵢ(θ + hv) − 2ℓᵢ(θ) + ℓᵢ(θ − hv))/h² of every sample: three evaluations, in float64 where they can be.

    To first order the standard error of an eigenvalue is that of the mean of these, sd/√n, at its eigenvector v.

    Args:
        value: λ, which sets h.
        terms: what the loss is the sum of, each with its factor, see `reduction.terms_of`.

    Returns:
        None where λ is 0, or where there is one sample.
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
    if terms is None:
        return None if values.samples is None else _over_samples(values.samples, h)
    return _over_terms(values.of_terms, terms, h)


def _over_terms(found: Mapping[str, SampleValues], terms: Mapping[str, float], h: float) -> SampledCurvature | None:
    """Σλ·mean and √Σλ²·SE² over the terms, whose samples are drawn independently; one of one sample is a condition."""
    parts = [(factor, _over_samples(found[name], h)) for name, factor in terms.items() if name in found]
    known = [(factor, part) for factor, part in parts if part is not None]
    if not known:
        return None
    mean = sum(factor * part.mean for factor, part in known)
    stderr = math.hypot(*(factor * part.stderr for factor, part in known))
    return SampledCurvature(mean, stderr, sum(part.samples for _, part in known), np.empty(0))


def _over_samples(found: SampleValues, h: float) -> SampledCurvature | None:
    """Second differences of each sample's loss at −h, 0 and h."""
    if found.losses.shape[1] < 2:
        return None
    before, at, after = found.losses.astype(np.float64)
    curvatures, weights = (after - 2 * at + before) / h**2, found.weights
    mean = float((weights * curvatures).sum() / weights.sum())
    count = len(curvatures)
    if not math.isfinite(mean):  # as where the loss is infinite beside the weights
        return SampledCurvature(math.nan, math.nan, count, curvatures)
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
