"""Derivatives of the loss along the axes of a landscape at one of its points, with errors over the samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from cluster.serving.timing import Stretch
from landscape.compute.executor import (
    Answer,
    BlockGradient,
    Calculator,
    Held,
    Question,
    Setting,
    Shared,
    Station,
    TotalsOfBlocks,
)
from landscape.compute.hessian import HessianOperator, block_count, layout_of, stretches_of
from landscape.compute.prepared import PreparedJob, PreparedLandscape
from landscape.core.errors import JobError
from landscape.evaluation.evaluator import Evaluator
from landscape.evaluation.layers import loss_factors
from landscape.evaluation.reduction import terms_of
from landscape.evaluation.values import Floats, SampleValues, Values
from landscape.model.parameters import describe_parameters

# Of an axis: at this share of its length a difference of float32 losses is far above their rounding, and still linear.
STEP_SHARE = float(np.finfo(np.float32).eps) ** (1 / 3) / 2


@dataclass(frozen=True)
class Gradient:
    """∂L/∂x of each axis x at a point.

    Attributes:
        stderr: of each, over the samples: that of the mean of ∂ℓᵢ/∂x, whose samples are those of every point. NaN
            where the losses of single samples are not to be had.
        evaluated: when it was computed.
        mark: of the landscape that it is of.
    """

    point: tuple[float, ...]
    loss: float
    gradient: tuple[float, ...]
    stderr: tuple[float, ...]
    evaluated: tuple[Stretch, ...] = ()
    mark: str = ""


@dataclass(frozen=True)
class Curvature:
    """∂²L/∂x∂y of the axes x and y at a point, [axes, axes].

    Attributes:
        eigenvalues: of this matrix, the smallest first.
        method: how the derivatives were computed: `autograd`, or `differences` of gradients in float64.
        evaluated: when it was computed.
        mark: of the landscape that it is of.
    """

    point: tuple[float, ...]
    curvature: tuple[tuple[float, ...], ...]
    eigenvalues: tuple[float, ...]
    method: str
    evaluated: tuple[Stretch, ...] = ()
    mark: str = ""


@dataclass
class _Here(Calculator):
    """Answers questions about any weights by the evaluator of a landscape, which stays set to its own origin."""

    evaluator: Evaluator
    _station: Station | None = field(default=None, init=False)

    def share(self, value: object) -> Shared[object]:
        """The value, held as it is."""
        return Held(value)

    def ask(self, setting: Setting, questions: Sequence[Question[Answer]]) -> list[Answer]:
        """The answers, in the order of the questions."""
        if self._station is None or self._station.origin is not setting.origin:
            self._station = Station(self.evaluator, setting.origin)
        station = self._station
        return [self.evaluator.within_memory(_asking(question, station)) for question in questions]

    def ask_apart(self, setting: Setting, question: Question[Answer], times: int) -> list[Answer]:
        """The answers of this process."""
        return [answer for _ in range(times) for answer in self.ask(setting, [question])]


def _asking(question: Question[Answer], station: Station) -> Callable[[], Answer]:
    return lambda: question.answer(station)


def gradient_at(
    prepared: PreparedJob, landscape: PreparedLandscape, evaluator: Evaluator, point: Sequence[float]
) -> Gradient:
    """∇L(θ)·d of each axis d at θ = θ₀ + Σ xₖ·dₖ, by one gradient over all samples.

    The errors are those of central differences of each sample's loss, two evaluations for each axis.

    Raises:
        JobError: the loss has no derivatives along the axes.
    """
    setting, vectors = _setting_at(prepared, landscape, evaluator, point)
    calculator, samples = _Here(evaluator), prepared.samples
    blocks = range(block_count(setting, samples))
    totals = calculator.ask(setting, [TotalsOfBlocks(each) for each in stretches_of(blocks)])
    factors = loss_factors([total for answer in totals for total in answer], prepared.problem.observe)
    slopes = np.zeros(len(vectors))
    for block in blocks:
        (part,) = calculator.ask(setting, [BlockGradient(block, factors)])
        slopes += vectors @ part
    around = _around(landscape, point)
    values = evaluator.within_memory(lambda: evaluator.evaluate(np.array([point, *around]), keep=True))
    weights = terms_of(prepared.problem.observe)
    errors = tuple(
        _error(values, weights, 1 + 2 * axis, around[2 * axis + 1][axis] - around[2 * axis][axis])
        for axis in range(len(vectors))
    )
    return Gradient(tuple(point), float(values.mean["loss"][0]), tuple(slopes.tolist()), errors)


def curvature_at(
    prepared: PreparedJob, landscape: PreparedLandscape, evaluator: Evaluator, point: Sequence[float]
) -> Curvature:
    """dᵀHd′ of the axes at θ = θ₀ + Σ xₖ·dₖ, by a product with the Hessian for each axis.

    Raises:
        JobError: the loss has no derivatives along the axes.
    """
    setting, vectors = _setting_at(prepared, landscape, evaluator, point)
    operator = HessianOperator(_Here(evaluator), setting, prepared.problem, prepared.samples)
    table = vectors @ operator(vectors).T
    table = (table + table.T) / 2  # which it is, but for rounding
    finite = bool(np.isfinite(table).all())
    eigenvalues = np.linalg.eigvalsh(table) if finite else np.full(len(table), np.nan)
    return Curvature(tuple(point), tuple(map(tuple, table.tolist())), tuple(eigenvalues.tolist()), operator.method)


def _setting_at(
    prepared: PreparedJob, landscape: PreparedLandscape, evaluator: Evaluator, point: Sequence[float]
) -> tuple[Setting, Floats]:
    """The weights of a point as those that questions are about, and the axes as vectors of the trainable parameters."""
    if landscape.plan.quantise is not None:
        raise JobError(
            "derivatives: the weights of this landscape are rounded, so its loss goes in steps and has no derivatives; "
            "ask for points around it"
        )
    trainable = {info.name for info in describe_parameters(prepared.problem.model) if info.trainable}
    tensors = [each.tensors for each in landscape.directions]
    if any(not set(each) <= trainable for each in tensors):
        raise JobError("derivatives: an axis moves what has no derivative, such as a buffer; ask for points around it")
    with torch.no_grad():
        weights = {name: value.clone() for name, value in evaluator.weights.state_at(point).items()}
    layout = layout_of(prepared.problem, weights)
    return Setting(weights, (), landscape.plan), np.stack([layout.vector(each) for each in tensors])


def _around(landscape: PreparedLandscape, point: Sequence[float]) -> list[list[float]]:
    """The points half a step before and behind along each axis."""
    found = list[list[float]]()
    for axis, coordinates in enumerate(landscape.grid.coordinates):
        step = STEP_SHARE * float(coordinates[-1] - coordinates[0])
        found += [[each + signed * (k == axis) for k, each in enumerate(point)] for signed in (-step, step)]
    return found


def _error(values: Values, terms: Mapping[str, float] | None, row: int, distance: float) -> float:
    """The standard error of the slope between two rows of losses; of a sum of terms √Σλ²SE²."""
    if terms is None:
        return math.nan if values.samples is None else _error_of(values.samples, row, distance)
    parts = [factor * _error_of(values.of_terms[name], row, distance) for name, factor in terms.items()
             if name in values.of_terms]  # fmt: skip
    return math.hypot(*(part for part in parts if math.isfinite(part))) if parts else math.nan


def _error_of(samples: SampleValues, row: int, distance: float) -> float:
    """√(Σw²(sᵢ − s̄)²)/Σw · √(n/(n−1)) of the slopes sᵢ of the samples; NaN of one sample."""
    slopes = (samples.losses[row + 1].astype(np.float64) - samples.losses[row]) / distance
    count, weights = len(slopes), samples.weights
    if count < 2:
        return math.nan
    mean = (weights * slopes).sum() / weights.sum()
    spread = math.sqrt(float((weights**2 * (slopes - mean) ** 2).sum())) / float(weights.sum())
    return spread * math.sqrt(count / (count - 1))
