"""How far an eigenvalue depends on the samples: its standard error, and a bracket from two halves of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
from torch import Tensor

from landscape.compute.algebra import Floats
from landscape.compute.derivatives import CurvaturesAlong
from landscape.compute.executor import Calculator, Question, Setting
from landscape.compute.hessian import HessianOperator
from landscape.compute.lanczos import TOLERANCE, lanczos
from landscape.compute.points import AtPoints
from landscape.compute.trace import rayleigh
from landscape.core.errors import JobError
from landscape.core.plan import Engine, Precision
from landscape.evaluation.values import SampleValues
from landscape.job.directions.base import DirectionTensors
from landscape.job.directions.file import STEPS

# The losses of single samples are float32: at this share of the half width the rise, its square, is well above their
# rounding, and the fourth derivative is not yet seen.
STEP_SHARE = float(np.finfo(np.float32).eps) ** 0.25
SAME_ERROR = 0.1  # of an error: what two steps of differences may be apart by

Answer = TypeVar("Answer", covariant=True)


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
    """vᵀHᵢv of every sample by derivatives of its loss, in float64 where they can be.

    To first order the standard error of an eigenvalue is that of the mean of these, sd/√n, at its eigenvector v.

    Where the model cannot be differentiated so often they are (ℓᵢ(θ + hv) − 2ℓᵢ(θ) + ℓᵢ(θ − hv))/h², and known only
    where half of h says the same: no h is right for samples whose curvatures are far from λ in size.

    Args:
        value: λ, which sets h.
        loss: L(θ), likewise.
        terms: what the loss is the sum of, each with its factor, see `reduction.terms_of`.

    Returns:
        None where λ is 0, where there is one sample, or where h and half of it disagree.
    """
    if not value or not math.isfinite(value):
        return None
    asked = [CurvaturesAlong(calculator.share(dict(direction)))]
    (answer,) = _in_float64(calculator, setting, asked)
    if answer.found is None:
        return _by_differences(calculator, setting, direction, value, loss, terms)
    return _summed(answer.found, terms)


def _in_float64(calculator: Calculator, setting: Setting, questions: Sequence[Question[Answer]]) -> list[Answer]:
    try:
        return calculator.ask(_in(setting, "float64"), questions)
    except JobError:  # the model names float32 in its own code, as many do
        return calculator.ask(_in(setting, "float32"), questions)


def _by_differences(
    calculator: Calculator, setting: Setting, direction: Mapping[str, Tensor], value: float, loss: float,
    terms: Mapping[str, float] | None,
) -> SampledCurvature | None:  # fmt: skip
    h = STEP_SHARE * math.sqrt(2 * max(abs(loss), float(np.finfo(np.float32).tiny)) / abs(value))
    line = Setting(setting.origin, (DirectionTensors(direction),), setting.plan)
    around = AtPoints(h * np.array([[-1.0], [-0.5], [0.0], [0.5], [1.0]]), keep=True)
    (values,) = _in_float64(calculator, line, [around])
    kept = {"loss": values.samples} if terms is None else values.of_terms
    found = {name: each for name, each in kept.items() if each is not None}
    far = _summed({name: _second_difference(each, (0, 2, 4), h) for name, each in found.items()}, terms)
    near = _summed({name: _second_difference(each, (1, 2, 3), h / 2) for name, each in found.items()}, terms)
    if far is None or near is None or not math.isfinite(far.stderr):
        return far
    return far if math.isclose(far.stderr, near.stderr, rel_tol=SAME_ERROR) else None


def _second_difference(found: SampleValues, places: tuple[int, int, int], h: float) -> tuple[Floats, Floats]:
    before, at, after = found.losses.astype(np.float64)[list(places)]
    return (after - 2 * at + before) / h**2, found.weights


def _summed(found: Mapping[str, tuple[Floats, Floats]], terms: Mapping[str, float] | None) -> SampledCurvature | None:
    """Σλ·mean and √Σλ²·SE² over the terms, whose samples are drawn independently; one of one sample is a condition."""
    if terms is None:
        return _over_samples(*found["loss"]) if "loss" in found else None
    parts = [(factor, _over_samples(*found[name])) for name, factor in terms.items() if name in found]
    known = [(factor, part) for factor, part in parts if part is not None]
    if not known:
        return None
    mean = sum(factor * part.mean for factor, part in known)
    stderr = math.hypot(*(factor * part.stderr for factor, part in known))
    return SampledCurvature(mean, stderr, sum(part.samples for _, part in known), np.empty(0))


def _over_samples(curvatures: Floats, weights: Floats) -> SampledCurvature | None:
    if len(curvatures) < 2:
        return None
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
