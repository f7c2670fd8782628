"""The worst case near a set of weights by gradient ascent; the rows of curvature; critical layers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from landscape.analysis.measures.document import MeasureRow, row_of
from landscape.analysis.measures.lines import (
    Draw,
    LineOrigin,
    draws_of,
    mean_of,
    rises_of,
    samples_of,
    stderr_over,
    weights_of,
)
from landscape.compute.eigenpairs import KeptSteps, kept_lanczos, most_steps, refuse_large_bases
from landscape.compute.executor import EvaluationContext, EvaluationSetting, Executor, Shared, TotalsOfBlocks, WorkItem
from landscape.compute.hessian import (
    PROBES,
    HessianOperator,
    NoProducts,
    ParameterLayout,
    block_count,
    layout_of,
    length,
    stretches_of,
    trace,
)
from landscape.compute.lanczos import Krylov, lanczos, sampled_curvature
from landscape.core.errors import JobError
from landscape.core.grid import Floats
from landscape.evaluation.derivatives import refuse_underivable
from landscape.evaluation.layers import loss_factors
from landscape.evaluation.reduction import Values, terms_of
from landscape.job.directions.file import STEPS
from landscape.model.parameters import ParameterInfo, State
from landscape.problem.batches import Samples
from landscape.problem.terms import Problem
from landscape.surface.record_entries import UNDECIDED, YES, ZERO

# ----------------------------------------------------------------------------------------------------
# The mean loss and its gradient beside the origin, their blocks computed by an executor.

NO_DERIVATIVES = "left out: batch_norm: recalibrate has no derivatives, eval has"


@dataclass(frozen=True, eq=False)
class SlopeOfBlocks(WorkItem[tuple[float, Floats]]):
    """The part of several blocks in L and ∇L at θ₀ + ε, added in the order of the blocks.

    Attributes:
        offset: ε, float64 [P].
    """

    blocks: Sequence[int]
    factors: Mapping[str, float]
    offset: Shared[Floats]

    @property
    def label(self) -> str:
        """The name of the work item in messages."""
        return f"gradient over the samples of blocks {self.blocks[0]} to {self.blocks[-1]}"

    def answer(self, station: EvaluationContext) -> tuple[float, Floats]:
        """Differentiate once, block by block."""
        derivatives = station.derivatives()
        value, total = 0.0, np.zeros(derivatives.size)
        with derivatives.moved(torch.from_numpy(np.array(self.offset.get()))):
            for block in self.blocks:
                part, gradient = derivatives.value_and_gradient(block, self.factors)
                value, total = value + part, total + gradient.numpy()
        return value, total


@dataclass
class Slope:
    """L and ∇L over the trainable parameters, as vectors of P numbers.

    Attributes:
        setting: θ₀ and the plan.
        gradients: how many gradients were computed.
    """

    executor: Executor
    setting: EvaluationSetting
    problem: Problem
    samples: Samples
    gradients: int = 0

    @property
    def refusal(self) -> str:
        """Why the loss has no derivatives here, so that what needs them is left out; empty if it has."""
        if self.setting.plan.statistics.recalibrated:
            return NO_DERIVATIVES
        try:
            refuse_underivable(self.problem.model, self.setting.plan)
        except JobError as error:
            return str(error)
        return ""

    def left_out(self, *names: str) -> dict[str, MeasureRow]:
        """The rows of measures that need derivatives, without values."""
        return dict.fromkeys(names, MeasureRow(None, note=self.refusal))

    @cached_property
    def layout(self) -> ParameterLayout:
        """The places of the parameters in a vector.

        Raises:
            JobError: no parameter is trainable.
        """
        found = layout_of(self.problem, self.setting.origin)
        if not found.infos:
            raise JobError("model: no parameter requires gradients, so the loss has no derivatives; train some")
        return found

    @cached_property
    def _stretches(self) -> list[Sequence[int]]:
        return stretches_of(range(block_count(self.setting, self.samples)))

    @cached_property
    def _factors(self) -> Mapping[str, float]:
        answers = self.executor.ask(self.setting, [TotalsOfBlocks(stretch) for stretch in self._stretches])
        return loss_factors([total for answer in answers for total in answer], self.problem.observe)

    def __call__(self, offset: Floats) -> tuple[float, Floats]:
        """L and ∇L at θ₀ + ε; the same bits for any number of workers.

        Raises:
            JobError: the loss has no gradient; says why.
        """
        shared, factors = self.executor.share(offset), self._factors
        questions = [SlopeOfBlocks(stretch, factors, shared) for stretch in self._stretches]
        value, total = 0.0, np.zeros(self.layout.size)
        for part, gradient in self.executor.ask(self.setting, questions):
            value, total = value + part, total + gradient
        self.gradients += 1
        return value, total


# ----------------------------------------------------------------------------------------------------

# The radii of SAM (Foret et al. 2021) and ASAM (Kwon et al. 2021) in their trainings on CIFAR.
SAM_RHO, ASAM_RHO = 0.05, 0.5
WORST_STEPS = 20
KESKAR_EPSILON, KESKAR_STEPS = 1e-3, 10  # Keskar et al. 2017, who use as many iterations of L-BFGS-B
MOMENTUM = 0.75  # this, the first step and the halving rule: Croce and Hein 2020, as in Andriushchenko et al. 2023
NO_GRADIENT = MeasureRow(None, note="the gradient of the loss is not finite there")
STEPS_OF = {name: (f"{name} 1 step", f"{name} {WORST_STEPS} steps") for name in ("sam", "asam")}  # names of rows
KESKAR = f"keskar {KESKAR_EPSILON:g}"
FIRST_STEP = 2.0  # of the radius
FIRST_CHECK, LEAST_CHECK, CHECK_SHORTER, ENOUGH_RISES = 0.22, 0.06, 0.03, 0.75

Norm = Literal["l2", "linf"]
Ascended = tuple[Floats, Floats, int]


@dataclass(frozen=True)
class Region:
    """The region of ε: ‖ε / scale‖ ≤ 1.

    Attributes:
        scale: float64 [P]; parameters with scale 0 do not move.
    """

    scale: Floats
    norm: Norm = "l2"

    def uphill(self, gradient: Floats) -> Floats:
        """The steepest step of length 1, in units of the scale; zeros for a zero or non-finite gradient."""
        scaled = self.scale * gradient
        if not np.isfinite(scaled).all():
            return np.zeros_like(scaled)
        if self.norm == "linf":
            return np.asarray(np.sign(scaled), np.float64)
        size = length(scaled)
        return scaled / size if size > 0 else np.zeros_like(scaled)

    def inside(self, step: Floats) -> Floats:
        """The nearest step within the region."""
        if self.norm == "linf":
            return np.clip(step, -1.0, 1.0)
        return step / max(1.0, length(step))


class NotFiniteGradient(ArithmeticError):
    """The gradient of the loss is not finite, so there is no steepest direction."""


def ascend(slope: Callable[[Floats], tuple[float, Floats]], region: Region, steps: int, seed: int = 0) -> Ascended:
    """ε after one step, scale·uphill(∇L(θ)), and the best ε of `steps` steps, by APGD (Croce and Hein 2020).

    x' = P(x + s·uphill(∇L(θ + ε))), x ← P(x + ¾(x' − x) + ¼(x − x₋₁)), ε = scale·x. If too few of the last steps rose,
    the step s is halved, and x reset to the best one.

    Returns:
        Both, and at how many steps the loss was not finite: then the best rise is only a lower bound.

    Raises:
        NotFiniteGradient: ∇L(θ) holds NaN or infinity, such as that of a square root at zero.
    """
    _, gradient = slope(np.zeros_like(region.scale))
    if not np.isfinite(gradient).all():
        raise NotFiniteGradient
    first = region.uphill(gradient)
    if not first.any():  # a flat origin: any direction is as good
        first = region.uphill(np.random.default_rng(seed).standard_normal(len(region.scale)))
    x = before = best = first
    uphill = first
    size, highest, value_before, rises, check = FIRST_STEP, -np.inf, -np.inf, 0, FIRST_CHECK
    interval, last_check, unchanged = FIRST_CHECK, 0, (np.inf, -np.inf)
    broken = 0
    for number in range(1, steps + 1):
        value, gradient = slope(region.scale * x)
        broken += not math.isfinite(value)
        rises += value > value_before
        value_before = value
        if math.isfinite(value) and value > highest:
            highest, best, uphill = value, x, region.uphill(gradient)
        if number == steps:
            break
        if number >= check * steps:
            if rises < ENOUGH_RISES * (number - last_check) or unchanged == (size, highest):
                size, x, before = size / 2, best, best
            unchanged = (size, highest)
            interval = max(interval - CHECK_SHORTER, LEAST_CHECK)
            check, last_check, rises = check + interval, number, 0
        onward = uphill if x is best else region.uphill(gradient)
        if not math.isfinite(value):  # go back, and take a shorter step
            size, onward = size / 2, uphill
            x = before = best if highest > -np.inf else np.zeros_like(best)
        ahead = region.inside(x + size * onward)
        x, before = region.inside(x + MOMENTUM * (ahead - x) + (1 - MOMENTUM) * (x - before)), x
    return region.scale * first, region.scale * best, broken


@dataclass(frozen=True)
class Worst:
    """The rises at some fixed ε: their rows, and the rise of every sample, if samples have losses.

    Attributes:
        samples: float32 [N] by the name of the row.
    """

    rows: dict[str, MeasureRow]
    samples: dict[str, Floats]


def sharpness(base: LineOrigin, slope: Slope) -> Worst:
    """SAM's and ASAM's rises, after one step and after 20, ε found on all samples at once.

    SAM: ‖ε‖ ≤ 0.05. ASAM: ‖ε/|θ|‖ ≤ 0.5, elementwise, which is invariant to rescaling layers of the same network.
    """
    if slope.refusal:
        return Worst(slope.left_out(*STEPS_OF["sam"], *STEPS_OF["asam"]), {})
    theta = np.abs(slope.layout.vector(slope.setting.origin))
    offsets, without, broken = dict[str, Floats](), dict[str, MeasureRow](), dict[str, int]()
    for name, region in (("sam", Region(np.full(len(theta), SAM_RHO))), ("asam", Region(ASAM_RHO * theta))):
        names = STEPS_OF[name]
        try:
            *found, broken[names[1]] = ascend(slope, region, WORST_STEPS)
            offsets |= dict(zip(names, found, strict=True))
        except NotFiniteGradient:
            without |= dict.fromkeys(names, NO_GRADIENT)
    at = rises_at(base, slope.layout, offsets)
    bounds = {name: _bound(at.rows[name], count, WORST_STEPS) for name, count in broken.items() if count}
    samples = {name: losses for name, losses in at.samples.items() if name not in bounds}
    return Worst(at.rows | bounds | without, samples)


def _bound(row: MeasureRow, broken: int, steps: int) -> MeasureRow:
    """The row of a worst case with non-finite losses on the way: the largest finite rise is a lower bound."""
    note = f"the loss is not finite at {broken} of the {steps} steps"
    return replace(row, value=None, stderr=None, note=note, above=row.value)


def keskar(base: LineOrigin, slope: Slope) -> Worst:
    """100·(max L(θ + ε) − L(θ))/(1 + L(θ)) over |εᵢ| ≤ 10⁻³·(|θᵢ| + 1) (Keskar et al. 2017, A = I)."""
    if slope.refusal:
        return Worst(slope.left_out(KESKAR), {})
    theta = np.abs(slope.layout.vector(slope.setting.origin))
    try:
        _, best, broken = ascend(slope, Region(KESKAR_EPSILON * (theta + 1), "linf"), KESKAR_STEPS)
    except NotFiniteGradient:
        return Worst({KESKAR: NO_GRADIENT}, {})
    (values,) = base.along([partial(slope.layout.tensors, best)], [(0.0, 1.0)])
    loss, high = mean_of(values).tolist()
    factor = 100 / (1 + loss)
    row = rises_at(base, slope.layout, {KESKAR: best}).rows[KESKAR]
    stderr = None if row.stderr is None else factor * row.stderr
    found = row_of(factor * (high - loss), stderr)
    return Worst({KESKAR: _bound(found, broken, KESKAR_STEPS) if broken else found}, {})


def rises_at(base: LineOrigin, layout: ParameterLayout, offsets: dict[str, Floats]) -> Worst:
    """The rises at θ + ε of some ε, with their standard errors over the samples."""
    draws: list[Draw] = [partial(layout.tensors, offset) for offset in offsets.values()]
    rows, samples = dict[str, MeasureRow](), dict[str, Floats]()
    for name, values in zip(offsets, base.along(draws, [(0.0, 1.0)] * len(draws)), strict=True):
        rows[name], by_sample = _rise(values)
        if by_sample is not None:
            samples[name] = by_sample
    return Worst(rows, samples)


def _rise(values: Values, note: str = "") -> tuple[MeasureRow, Floats | None]:
    """The rise from the first of two points to the second, and that of every sample, if samples have losses."""
    loss, high = mean_of(values).tolist()
    losses, weights = samples_of(values), weights_of(values)
    if losses is None or weights is None:  # such as for a loss of several terms
        return row_of(
            high - loss, None if values.rise_stderr is None else float(values.rise_stderr[1]), note=note
        ), None
    rises = losses[1] - losses[0]
    return row_of(high - loss, stderr_over(rises, weights), note=note), rises


# ----------------------------------------------------------------------------------------------------
# The rows of curvature: both ends of the spectrum, and the trace.

CURVATURE_NAMES = ("lambda max", "lambda min", "trace")
NOT_FINITE = "the Hessian is not finite there"
PROBED = "trace probes"  # the estimates of the trace, by probe, beside the losses of single samples


@dataclass(frozen=True)
class Curved:
    """The rows, and the samples for comparisons.

    Attributes:
        samples: vᵀHᵢv [N] of λmax and λmin, by the names of the rows, shifted so that their mean is the eigenvalue, and
            the trace of each probe under `PROBED`; float64.
    """

    rows: dict[str, MeasureRow]
    samples: dict[str, Floats]


def curvature_rows(slope: Slope, loss: float, kept: KeptSteps | None = None) -> Curved:
    """λmax and λmin with their errors over the samples, and the trace with its interval over the probes.

    Args:
        loss: L(θ), which determines the step of second differences.
        kept: the kept Lanczos steps; default: none.
    """
    if slope.refusal:
        return Curved(slope.left_out(*CURVATURE_NAMES), {})
    try:
        refuse_large_bases(slope.layout.size, STEPS)
    except JobError as refusal:
        return _without_curvature(refusal)
    try:
        return _curvature_by_products(slope, loss, kept)
    except NoProducts as refusal:
        return _without_curvature(refusal)


def _without_curvature(refusal: JobError) -> Curved:
    """The rows without values: the other rows do not depend on these."""
    return Curved(dict.fromkeys(CURVATURE_NAMES, MeasureRow(None, note=str(refusal))), {})


def _curvature_by_products(slope: Slope, loss: float, kept: KeptSteps | None) -> Curved:
    size, setting = slope.layout.size, slope.setting
    operator = HessianOperator(slope.executor, setting, slope.problem, slope.samples)
    most, ends = most_steps(size, STEPS), (1, -1)

    def is_open(krylov: Krylov) -> bool:
        return krylov.has_open_sign(operator.in_float32)

    if kept is None:
        krylov = lanczos(operator, size, ends, noise=lambda: operator.noise, is_open=is_open, most=most)
    else:
        krylov = kept_lanczos(operator, replace(kept, size=size), ends, loss, is_open=is_open, most=most)
    how = f"by differences of gradients: {operator.refusal}" if operator.refusal else ""
    largest = max(abs(krylov.pair(rank).value) for rank in (1, -1))
    rounding = operator.noise * largest  # of the products; the bound on the residual does not include it
    rows, samples = dict[str, MeasureRow](), dict[str, Floats]()
    for name, rank in zip(CURVATURE_NAMES, (1, -1), strict=False):
        pair = krylov.pair(rank)
        vector, terms = slope.layout.tensors(pair.vector), terms_of(slope.problem.observe)
        sampled = sampled_curvature(slope.executor, setting, vector, pair.value, loss, terms)
        if sampled is not None and terms is None and np.isfinite(sampled.by_sample).all():
            samples[name] = sampled.by_sample + (pair.value - sampled.mean)
        doubt, known = _doubt(krylov, rank, rounding, operator.in_float32)
        lacks_error = sampled is None and math.isfinite(pair.value)
        unknown = "no error over the samples without third derivatives" if lacks_error else ""
        note, error = "; ".join(filter(None, (doubt, how, unknown))), None if sampled is None else sampled.stderr
        rows[name] = row_of(pair.value, error, note=note, missing=NOT_FINITE) if known else MeasureRow(None, note=note)
    found = trace(operator, size, krylov.basis, float(krylov.alphas.sum()))
    rows[CURVATURE_NAMES[2]] = row_of(found.value.mean, None, found.value, PROBES, how, missing=NOT_FINITE)
    if rows[CURVATURE_NAMES[1]].value is None:
        samples.pop(CURVATURE_NAMES[1], None)  # nothing to compare
    return Curved(rows, samples | {PROBED: np.array(found.probes)})


def _doubt(krylov: Krylov, rank: int, rounding: float, in_float32: bool) -> tuple[str, bool]:
    """The accuracy of a rank's value in words, and whether it counts as a value: one with unknown sign does not."""
    pair = krylov.pair(rank)
    if not math.isfinite(pair.value):
        return "", True
    residual = f"residual {max(pair.residual, rounding):.2g}"
    if rank > 0 or max(pair.residual, rounding) < abs(pair.value):
        return residual, True
    negative = krylov.negative(in_float32)
    if negative == UNDECIDED:
        between = f"between {krylov.lower_bound():.2g} and {pair.value:.2g}"
        return f"sign undecided: {between} after {krylov.steps} products ({residual})", False
    if negative == YES:
        return f"negative, and no better known than at most this: {residual}", True
    return f"{residual}; no eigenvalue is below -{ZERO:.0e} of the largest", True


# ----------------------------------------------------------------------------------------------------
# Critical layers: the rise when only one layer moves, or is reset to its initial weights.

LAYER_DISTANCES = (0.1, 0.25, 0.5)
LAYER_LINES = 4  # per layer: few, as a network has many layers; their interval shows their spread
REINITIALISED = "re-initialised"


def layers_of(infos: Sequence[ParameterInfo]) -> dict[str, tuple[ParameterInfo, ...]]:
    """The trainable parameters of each module that has weights, in the model's order, by the module's name."""
    by_module: dict[str, list[ParameterInfo]] = {}
    for info in infos:
        if info.trainable:
            by_module.setdefault(info.name.rpartition(".")[0] or info.name, []).append(info)
    return {name: tuple(own) for name, own in by_module.items() if any(info.role == "weight" for info in own)}


def layer_rows(
    base: LineOrigin, infos: Sequence[ParameterInfo], first: State | None
) -> dict[str, dict[str, MeasureRow]]:
    """Per layer the rises along its own filter-normalised lines, and after resetting it to its first weights.

    Zhang, Bengio, Singer 2022, "Are all layers created equal?".

    Args:
        first: the first snapshot; None if there is none, or it is the origin itself.
    """
    coordinates = (*(-distance for distance in reversed(LAYER_DISTANCES)), 0.0, *LAYER_DISTANCES)
    found = dict[str, dict[str, MeasureRow]]()
    for layer, members in layers_of(infos).items():
        names = {info.name for info in members}
        lines: list[Draw] = [partial(_only, draw, names) for draw in draws_of(base.origin, infos, LAYER_LINES)]
        values = base.along(lines, [coordinates] * LAYER_LINES)
        found[layer] = rises_of(values, LAYER_DISTANCES, base.terms).rows()
        if first is not None:
            found[layer][REINITIALISED] = _put_back(base, names, first)
    return found


def _only(draw: Draw, names: set[str]) -> Mapping[str, Tensor]:
    return {name: tensor for name, tensor in draw().items() if name in names}


def _put_back(base: LineOrigin, names: set[str], first: State) -> MeasureRow:
    difference = {name: (first[name].double() - base.origin[name].double()).float() for name in sorted(names)}
    (values,) = base.along([lambda: difference], [(0.0, 1.0)])
    note = ""
    if "accuracy" in values.mean:
        before, after = np.asarray(values.mean["accuracy"]).tolist()
        note = f"accuracy {before:.4g} to {after:.4g}"
    return _rise(values, note)[0]
