"""Checks 8, 8b and 9: the curvature at the centre, in two independent ways; on the grid; and off the plane."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from landscape.analysis.checks.check import CheckContext, once
from landscape.analysis.checks.evaluations import GRADIENT, PRODUCT
from landscape.analysis.checks.evidence import Evidence, Judgement, NotJudged, number, percent, shown_features
from landscape.compute.executor import BlockGradient, TotalsOfBlocks
from landscape.core.errors import JobError
from landscape.core.grid import Floats
from landscape.evaluation.layers import loss_factors
from landscape.model.parameters import norm
from landscape.surface.surface import OK

# Step lengths as shares of the norm of the weights. At 1e-4 a smooth loss is a parabola, and the rounding of float64
# changes a curvature as high as the loss by 1e-7. The others are shorter than the distance between the kinks of a
# LeNet (1e-6), and of a ResNet-20 (1e-7).
STEPS = (1e-4, 1e-6, 1e-7)
# Relative errors allowed of a smooth loss, and of one with kinks: those of ReLU and max-pooling change differences, but
# not derivatives.
SMOOTH, KINKED = 0.01, 0.05
# Relative. Second differences at a step and at half of it differ by more than this if there are kinks within the step;
# those of a smooth loss differ by about the fourth derivative times h².
SAME_AT_HALF = 1e-3
ROUGH = 0.02  # Beyond it the kinks are so many that two steps may agree by chance.
# Rounding of a mean of losses in float64, relative to the loss. A loss below 0.1 rounds as one of 0.1, since it is made
# from larger numbers.
ROUNDING, LEAST_LOSS = 4 * 2.2e-16, 0.1
# Share of the curvature: a smaller slope moves the lowest point by less than a hundredth of a unit.
LEAST_SLOPE = 0.01
LEAST_RATIO, LARGEST_RATIO = 0.5, 2.0  # between these the grid shows the parabola at the centre
STEEP = 0.9  # share of λmax: an axis of at least this curvature shows the steepest direction
# Relative rounding of a mean of losses in the arithmetic of the grid: float32 has 24 bits, bfloat16 has 8, and the mean
# over samples averages the rounding.
SINGLE_PRECISION, LOW_PRECISION = 1e-7, 1e-3
# A smooth loss has steps where its model, or the graph of a packed one, casts to float32.
WITHOUT_CURVATURE = "the loss has too many kinks, as of ReLU, or steps, as of a cast to float32"
DOWNHILL = 0.01  # share of λmax: about the accuracy of the eigenvalues from Lanczos


@dataclass(frozen=True)
class Differences:
    """Differences of the loss around the origin along an axis.

    Attributes:
        coarse, fine: second differences at a step and at half of it.
        slope: the first difference at half of the step.
        rounding: about how much the rounding of losses changes `extrapolated`.
        uneven: by how much slopes at the step and at half of it differ, over an eighth of the step: about twice what a
            kink at a third of the step adds to `extrapolated`.
    """

    coarse: float
    fine: float
    slope: float
    rounding: float
    uneven: float = 0.0

    @classmethod
    def around(cls, losses: Sequence[float], centre: float, step: float) -> Differences:
        """The differences of the losses at step, −step, step/2 and −step/2."""
        up, down, half_up, half_down = losses
        half = step / 2
        coarse, fine = (up - 2 * centre + down) / step**2, (half_up - 2 * centre + half_down) / half**2
        rounding = ROUNDING * max(LEAST_LOSS, abs(centre)) / half**2
        uneven = abs((up - down) - 2 * (half_up - half_down)) / half**2
        return cls(coarse, fine, (half_up - half_down) / step, rounding, uneven)

    @classmethod
    def best(cls, at_steps: Sequence[Differences]) -> Differences:
        """Those to compare with derivatives: of the steps that are certain, else of all, those with the least `doubt`.

        Second differences alone may look sound by chance: those at a step and at half of it are equal where a kink lies
        at a third of the step, and sometimes where a step is so short that they are rounding alone.
        """
        certain = [differences for differences in at_steps if differences.is_certain]
        return min(certain or at_steps, key=lambda differences: differences.doubt)

    @property
    def is_certain(self) -> bool:
        """Whether second and first differences together bound its error by what a smooth loss is allowed."""
        return self.doubt + self.uneven <= SMOOTH * abs(self.extrapolated)

    @property
    def extrapolated(self) -> float:
        """(4·fine − coarse)/3, without the error of order h² (Richardson)."""
        return (4 * self.fine - self.coarse) / 3

    @property
    def doubt(self) -> float:
        """A bound of the error of the curvature."""
        return abs(self.coarse - self.fine) + self.rounding if math.isfinite(self.fine) else math.inf


@dataclass(frozen=True)
class AlongAxis:
    """Slope and curvature of the loss at the origin along one axis.

    Attributes:
        axis: the name of the axis.
        differences: the differences of losses at the best step.
        curvature, slope: dᵀHd and g·d by derivatives.
        at_steps: the differences at every step.
    """

    axis: str
    differences: Differences
    curvature: float
    slope: float
    at_steps: Sequence[Differences] = ()

    @property
    def roughness(self) -> float:
        """|coarse − fine| beyond rounding, relative to the curvature."""
        differences = self.differences
        scale = max(abs(self.curvature), abs(differences.extrapolated))
        beyond_rounding = max(0.0, abs(differences.coarse - differences.fine) - differences.rounding)
        return beyond_rounding / scale if scale > 0 else 0.0

    @property
    def allowed(self) -> float:
        """The largest relative error with which check 8 holds."""
        return SMOOTH if self.roughness <= SAME_AT_HALF else KINKED

    @property
    def has_curvature(self) -> bool:
        """Whether differences measure the curvature; among dense kinks they do not, at any step."""
        return self.roughness <= ROUGH

    @property
    def is_finite(self) -> bool:
        """Whether differences and derivatives are finite."""
        differences = self.differences
        numbers = (differences.coarse, differences.fine, differences.slope, self.curvature, self.slope)
        return all(map(math.isfinite, numbers))

    @property
    def errors(self) -> tuple[float, float]:
        """The relative errors of the curvature, beyond rounding, and of the slope: differences against derivatives."""
        differences = self.differences
        difference = max(0.0, abs(differences.extrapolated - self.curvature) - differences.rounding)
        scale = abs(self.curvature)
        if self.has_curvature:
            scale = max(scale, abs(differences.extrapolated))
        slope_scale = max(abs(self.slope), abs(differences.slope), LEAST_SLOPE * scale)
        slope_error = abs(differences.slope - self.slope) / slope_scale if slope_scale > 0 else 0.0
        return difference / scale if self.has_curvature and scale > 0 else 0.0, slope_error

    @property
    def why_no_measure(self) -> str:
        """Why dᵀHd does not measure how the loss curves over a cell; '' if it does.

        A ReLU that switches within a step adds to the second difference, but nothing to the second derivative.
        """
        if self.has_curvature and self.errors[0] > self.allowed:
            return "losses and derivatives are not of one function"
        curvatures = [
            value
            for differences in self.at_steps if differences.rounding < KINKED * abs(self.curvature)
            for value in (differences.coarse, differences.fine)
        ]  # fmt: skip
        low, high = sorted((LEAST_RATIO * self.curvature, LARGEST_RATIO * self.curvature))
        if not self.has_curvature or not all(low <= value <= high for value in curvatures):
            return WITHOUT_CURVATURE + ", between which derivatives do not tell how it curves"
        return ""


@once
def along_axes(context: CheckContext) -> tuple[list[AlongAxis], str]:
    """Slope and curvature at the origin along each axis, and how the derivatives were computed.

    They are computed on the first few samples in float64. These suffice to see whether losses and derivatives are of
    one function, and convolutions in float64 take twenty times as long on a CPU. Of all steps the best one counts.

    Raises:
        JobError: the model has no derivatives, or does not compute in float64; or a direction is zero.
    """
    extra = context.derivatives
    directions, origin = extra.landscape.directions, extra.landscape.origin
    names = extra.trainable_names()
    zero = [
        name
        for name, direction in zip(extra.landscape.grid.names, directions, strict=True)
        if not norm(direction.tensors)
    ]
    if zero:
        raise JobError(f"the direction of {' and of '.join(zero)} is zero, so that nothing moves")
    length = norm({name: origin[name] for name in names if name in origin}) or 1.0
    steps = [[share * length / norm(direction.tensors) for share in STEPS] for direction in directions]
    points = [
        [factor * step if k == axis else 0.0 for k in range(len(directions))]
        for axis, axis_steps in enumerate(steps)
        for step in axis_steps
        for factor in (1.0, -1.0, 0.5, -0.5)
    ]
    *losses, centre = extra.losses_of_few([*points, [0.0] * len(directions)])
    operator = extra.hessian(extra.few).on((0,))
    vectors = np.stack([operator.layout.vector(direction.tensors) for direction in directions])
    products = np.einsum("kp,kp->k", vectors, operator(vectors))
    (totals,) = extra.executor.ask(extra.few, [TotalsOfBlocks([0])])
    factors = loss_factors(totals, extra.prepared.problem.observe)
    (gradient,) = extra.executor.ask(extra.few, [BlockGradient(0, factors)])
    extra.all_have_a_slope = all(tensor.any() for tensor in operator.layout.tensors(gradient).values())
    slopes = vectors @ gradient
    extra.count += math.ceil((len(points) + 3 + GRADIENT + PRODUCT * len(vectors)) * extra.share_of_few)
    how = "derivatives" if operator.method == "autograd" else "differences of gradients"
    along = []
    for axis, axis_steps in enumerate(steps):
        at_steps = []
        for step in axis_steps:
            around, losses = losses[:4], losses[4:]
            at_steps.append(Differences.around(around, centre, step))
        name, curvature, slope = extra.landscape.grid.names[axis], float(products[axis]), float(slopes[axis])
        along.append(AlongAxis(name, Differences.best(at_steps), curvature, slope, at_steps))
    return along, how


@once
def hessian_of_axes(context: CheckContext) -> Floats:
    """dᵢᵀHdⱼ at the origin over all samples [axes, axes]."""
    return context.derivatives.hessian_of_axes()


def axis_curvatures(context: CheckContext) -> dict[str, float]:
    """dᵀHd at the origin over all samples, by the name of the axis."""
    names = [axis.name for axis in context.evidence.surface.axes]
    return dict(zip(names, np.diag(hessian_of_axes(context)).tolist(), strict=True))


# -- 8: losses and derivatives -------------------------------------------------------------------------------


def check_derivatives(context: CheckContext) -> Judgement:
    """Compare slope and curvature along the axes, by differences of losses and by derivatives."""
    return judge_derivatives(*along_axes(context), *context.derivatives.samples_of_few)


def judge_derivatives(axes: Sequence[AlongAxis], how: str, samples: int, all_samples: int) -> Judgement:
    """8: second differences equal dᵀHd, and first ones g·d, within 1 % if the loss is smooth, 5 % if it has kinks.

    A deep network of ReLUs has so many kinks that second differences mean nothing; only its slopes are compared.

    Args:
        how: how derivatives were computed, in words.
        samples, all_samples: how many samples were evaluated, and how many the landscape has; the curvature over a few
            samples is not that over all.

    Raises:
        NotJudged: a difference or a derivative is not finite.
    """
    unknown = [axis.axis for axis in axes if not axis.is_finite]
    if unknown:
        raise NotJudged(f"the loss or its derivatives are not finite at the centre along {' and '.join(unknown)}")
    excess = {axis.axis: max(axis.errors) / axis.allowed for axis in axes}
    worst = max(axes, key=lambda axis: excess[axis.axis])
    error, has_curvature = max(worst.errors), all(axis.has_curvature for axis in axes)
    numbers = {"allowed": worst.allowed} | {f"curvature {axis.axis}": axis.curvature for axis in axes}
    if excess[worst.axis] <= 1:
        quantity = "curvature" if has_curvature else "slope"
        values = " and ".join(
            f"{number(axis.curvature if has_curvature else axis.slope)} along {axis.axis}" for axis in axes
        )
        which = f"the first {samples:,} of {all_samples:,}" if samples < all_samples else f"all {all_samples:,}"
        text = (
            f"{quantity} at the centre, of {which} samples: {values}, by differences of losses as by {how} "
            f"(to {percent(error)})"
        )
        if not has_curvature:
            text = f"{text}; {WITHOUT_CURVATURE}, to compare its curvature"
        return Judgement("holds", text, value=error, numbers=numbers)
    differences = worst.differences
    values = f"slope {number(differences.slope)}, {how} {number(worst.slope)}"
    if worst.errors[0] > worst.errors[1]:
        values = f"curvature {number(differences.extrapolated)}, {how} {number(worst.curvature)}"
    text = f"along {worst.axis} differences of losses give the {values}: losses and derivatives are not of one function"
    remedy = "does observe detach, round or clip? does the model have an autograd function of its own? check both"
    return Judgement("fails", text, remedy, error, numbers=numbers)


# -- 8b: the centre cell -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CentreCurvature:
    """The curvature at the centre along an axis.

    Attributes:
        axis: the name of the axis.
        difference: the second difference of the grid's losses.
        curvature: dᵀHd.
        step: the step of the grid.
    """

    axis: str
    difference: float
    curvature: float
    step: float

    def stands_out(self, loss: float, low_precision: bool) -> bool:
        """Whether dᵀHd·h², the rise of both neighbours together, is more than the rounding of a loss of this size."""
        rounding = LOW_PRECISION if low_precision else SINGLE_PRECISION
        return abs(self.curvature) * self.step**2 > rounding * max(1.0, abs(loss))

    @property
    def ratio(self) -> float:
        """The grid's curvature over dᵀHd; NaN if dᵀHd is zero."""
        return self.difference / self.curvature if self.curvature else math.nan


def check_centre_cell(context: CheckContext) -> Judgement:
    """Compare the curvature of the grid at its centre with that of the loss."""
    reason = _why_no_measure(context)
    if reason:
        raise NotJudged(reason)
    axes = [
        centre
        for name, curvature in axis_curvatures(context).items()
        if (centre := centre_curvature(context.evidence, name, curvature)) is not None and curvature > 0
    ]
    if not axes:
        raise NotJudged("the grid has no point at the origin with neighbours, or the loss is not convex there")
    axes = [axis for axis in axes if axis.stands_out(context.origin_loss, context.low_precision)]
    if not axes:
        raise NotJudged("the cells beside the centre rise by less than the rounding of their losses")
    return judge_centre_cell(axes, shown_features(context.evidence.surface).name)


def _why_no_measure(context: CheckContext) -> str:
    """Why dᵀHd does not measure how the loss curves along some axis; '' if it does, or if that is unknown."""
    try:
        along, _ = along_axes(context)
    except JobError:  # check 8 says why
        return ""
    return next((axis.why_no_measure for axis in along if axis.is_finite and axis.why_no_measure), "")


def centre_curvature(evidence: Evidence, axis: str, curvature: float) -> CentreCurvature | None:
    """The curvature at the origin along an axis; None if the grid has no point there, or a neighbour is missing.

    In a refined landscape the neighbours are the nearest ones that were evaluated.

    Args:
        curvature: dᵀHd.
    """
    if evidence.origin_index is None:
        return None
    surface, finest = evidence.surface.merged(), 2 ** len(evidence.surface.levels)
    dimension = [dimension.name for dimension in reversed(surface.axes)].index(axis)
    evaluated = surface.status == OK
    if surface.interpolated is not None:
        evaluated &= surface.interpolated == 0
    values = np.where(evaluated, surface.loss, np.nan)
    origin = tuple(finest * place for place in evidence.origin_index)
    line = values[(*origin[:dimension], slice(None), *origin[dimension + 1 :])]
    coordinates, place = surface.axis(axis).coordinates, origin[dimension]
    for stride in (2**level for level in range(len(evidence.surface.levels) + 1)):
        if not stride <= place < len(line) - stride:
            return None
        low, centre, high = line[place - stride], line[place], line[place + stride]
        step = coordinates[place + stride] - coordinates[place]
        step_down = coordinates[place] - coordinates[place - stride]
        difference = float(high - 2 * centre + low) / float(step) ** 2
        if math.isfinite(difference) and math.isclose(step, step_down, rel_tol=1e-6):
            return CentreCurvature(axis, difference, curvature, float(step))
    return None


def judge_centre_cell(axes: Sequence[CentreCurvature], shown: str = "") -> Judgement:
    """8b: the grid's second difference over dᵀHd lies in [½, 2]: the bowl at the centre is no narrower than a cell.

    Args:
        shown: the features that a smaller range would cut off, such as 'the path'; '' for none.
    """
    off = [axis for axis in axes if not LEAST_RATIO <= axis.ratio <= LARGEST_RATIO]
    numbers = {axis.axis: axis.ratio for axis in axes}
    if not off:
        (first, *others) = ((number(axis.ratio, 2), axis.axis) for axis in axes)
        ratios = f"{first[0]} times the true one along {first[1]}"
        ratios += "".join(f", {ratio} times along {name}" for ratio, name in others)
        text = f"the grid resolves the bowl at its centre: its curvature there is {ratios}"
        return Judgement("holds", text, value=axes[0].ratio, numbers=numbers)
    worst = max(off, key=lambda axis: abs(math.log(axis.ratio)) if axis.ratio > 0 else math.inf)
    text = (
        f"along {worst.axis} the grid's curvature at the centre is {number(worst.ratio, 2)} times the true one: "
        f"the centre has structure that is narrower than a cell ({number(worst.step, 2)})"
    )
    remedy = f"zoom to ±{number(2 * worst.step, 2)}{f', in a landscape beside that of {shown}' if shown else ''}"
    return Judgement("reservation", text, remedy, worst.ratio, numbers=numbers)


# -- 9: what the plane hides ---------------------------------------------------------------------------------


def check_hidden(context: CheckContext) -> Judgement:
    """Compare the ends of the Hessian's spectrum with the curvature of the axes."""
    if not context.deep and context.quantise is None:
        raise NotJudged("the steepest direction is not looked for; --deep does, at about 60 Hessian products")
    norms = {axis.name: axis.record.norm or math.nan for axis in context.evidence.surface.axes}
    axes = [value / norms[name] ** 2 for name, value in axis_curvatures(context).items()]
    largest, smallest, bound, products = context.derivatives.spectrum_ends()
    return judge_hidden(largest, smallest, bound, axes, products)


def judge_hidden(largest: float, smallest: float, bound: float, axes: Sequence[float], products: int) -> Judgement:
    """9: information: λmax beside the curvature of the axes.

    A λmin < −0.01·λmax is a direction that leads down; it is a reservation unless an axis leads down too.

    Args:
        largest, smallest: the ends of the Hessian's spectrum at the origin, found by Lanczos; λmin is `smallest` or
            less.
        bound: a lower bound of all eigenvalues.
        axes: the curvature of each axis, per unit of length².
        products: how many Hessian products the ends took.
    """
    mean = sum(axes) / len(axes)
    numbers = {
        "largest": largest,
        "smallest": smallest,
        "bound": bound,
        "axes": mean,
        "products": products,
    }
    times = f"{number(largest / mean, 2)} times that of these axes" if mean > 0 else "these axes"
    text = f"the steepest direction has curvature {number(largest)}, {times} ({number(mean)})"
    if max(axes) < STEEP * largest:
        text = f"{text}: a plane shows the average, not the worst"
    downhill = -DOWNHILL * abs(largest)
    if smallest < downhill:
        text = f"{text}; one of curvature {number(smallest)} leads down"
        if min(axes) < downhill:
            text = f"{text}, and so does an axis of this plane"
        else:
            text = f"{text}, which this plane does not show"
            remedy = "directions: [{kind: eigen, rank: 1}, {kind: eigen, rank: -1}] shows both"
            return Judgement("reservation", text, remedy, largest, numbers=numbers)
    elif bound < downhill:
        text = f"{text}; whether one leads down is undecided: none has a curvature below {number(bound)}"
    return Judgement("information", text, value=largest, numbers=numbers)
