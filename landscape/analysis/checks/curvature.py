"""Checks 8, 8b and 9: the curvature at the centre by two independent ways, of the grid, and of what the plane hides."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from landscape.analysis.checks.check import CheckContext, once
from landscape.analysis.checks.evaluations import GRADIENT, PRODUCT
from landscape.analysis.checks.evidence import Evidence, Judgement, NotJudged, held_by, number, percent
from landscape.compute.executor import BlockGradient, TotalsOfBlocks
from landscape.core.errors import JobError
from landscape.core.grid import Floats
from landscape.evaluation.layers import loss_factors
from landscape.model.parameters import norm
from landscape.surface.surface import OK

# Shares of the norm of the weights. At the first the rounding of float64 makes 1e-7 of a curvature as high as the loss,
# and a smooth loss is a parabola. The others are shorter than the way between kinks: of a LeNet, and of a ResNet-20.
STEPS = (1e-4, 1e-6, 1e-7)
SMOOTH, KINKED = 0.01, 0.05  # relative: kinks of ReLU and max-pooling are in differences, and not in derivatives
# Second differences at a step and at half of it differ by more than this where there are kinks within the step: those
# of a smooth loss differ by the fourth derivative times h².
SAME_AT_HALF = 1e-3
ROUGH = 0.02  # beyond it there are so many that two steps may agree by chance
ROUNDING, LEAST_LOSS = 4 * 2.2e-16, 0.1  # of a mean of losses in float64; near 0 it is that of what they are made from
# Of the curvature: a slope below a hundredth of it moves the lowest point by less than a hundredth of a unit.
LEAST_SLOPE = 0.01
LEAST_RATIO, LARGEST_RATIO = 0.5, 2.0  # the grid's parabola at the centre is then recognisable
STEEP = 0.9  # of λmax: such an axis shows the worst
# Relative, of a mean of losses in the arithmetic of the grid: float32 has 24 bits, bfloat16 8, and samples average it.
SINGLE_PRECISION, LOW_PRECISION = 1e-7, 1e-3
DOWNHILL = 0.01  # of λmax: Lanczos finds eigenvalues to about this share


@dataclass(frozen=True)
class Differences:
    """Differences of the loss around the origin along an axis.

    Attributes:
        coarse, fine: second differences at a step and at half of it.
        slope: the first difference at half of it.
        rounding: about by how much the rounding of losses moves `extrapolated`.
    """

    coarse: float
    fine: float
    slope: float
    rounding: float

    @classmethod
    def around(cls, losses: Sequence[float], centre: float, step: float) -> Differences:
        """Of the losses at step, −step, step/2 and −step/2."""
        up, down, half_up, half_down = losses
        half = step / 2
        coarse, fine = (up - 2 * centre + down) / step**2, (half_up - 2 * centre + half_down) / half**2
        return cls(coarse, fine, (half_up - half_down) / step, ROUNDING * max(LEAST_LOSS, abs(centre)) / half**2)

    @property
    def extrapolated(self) -> float:
        """(4·fine − coarse)/3: the error of order h² is gone (Richardson)."""
        return (4 * self.fine - self.coarse) / 3

    @property
    def doubt(self) -> float:
        """How far the curvature may be off."""
        return abs(self.coarse - self.fine) + self.rounding if math.isfinite(self.fine) else math.inf


@dataclass(frozen=True)
class AlongAxis:
    """Slope and curvature of the loss at the origin along one axis.

    Attributes:
        axis: its name.
        differences: of losses, at the step where they are least in doubt.
        curvature, slope: dᵀHd and g·d by derivatives.
        at_steps: the differences at every step that was tried.
    """

    axis: str
    differences: Differences
    curvature: float
    slope: float
    at_steps: Sequence[Differences] = ()

    @property
    def roughness(self) -> float:
        """By how much a step and half of it disagree on the curvature, relative to it, beyond rounding."""
        found = self.differences
        scale = max(abs(self.curvature), abs(found.extrapolated))
        return max(0.0, abs(found.coarse - found.fine) - found.rounding) / scale if scale > 0 else 0.0

    @property
    def allowed(self) -> float:
        """The relative error that is allowed."""
        return SMOOTH if self.roughness <= SAME_AT_HALF else KINKED

    @property
    def has_curvature(self) -> bool:
        """Whether differences tell the curvature at all: among dense kinks they do not, at any step."""
        return self.roughness <= ROUGH

    @property
    def is_finite(self) -> bool:
        """Whether differences and derivatives are."""
        found = self.differences
        return all(map(math.isfinite, (found.coarse, found.fine, found.slope, self.curvature, self.slope)))

    @property
    def errors(self) -> tuple[float, float]:
        """The relative differences of the curvatures, beyond rounding, and of the slopes."""
        found = self.differences
        difference = max(0.0, abs(found.extrapolated - self.curvature) - found.rounding)
        scale = max(abs(self.curvature), abs(found.extrapolated)) if self.has_curvature else abs(self.curvature)
        of_slope = max(abs(self.slope), abs(found.slope), LEAST_SLOPE * scale)
        slopes = abs(found.slope - self.slope) / of_slope if of_slope > 0 else 0.0
        return difference / scale if self.has_curvature and scale > 0 else 0.0, slopes

    @property
    def unlike_differences(self) -> str:
        """Why dᵀHd is no measure of how the loss curves over a cell; '' where it is one.

        A ReLU that switches within a step curves the loss as a mean over steps, and has no second derivative.
        """
        if self.has_curvature and self.errors[0] > self.allowed:
            return "losses and derivatives are not of one function"
        told = [
            value for each in self.at_steps if each.rounding < KINKED * abs(self.curvature)
            for value in (each.coarse, each.fine)
        ]  # fmt: skip
        low, high = sorted((LEAST_RATIO * self.curvature, LARGEST_RATIO * self.curvature))
        if not self.has_curvature or not all(low <= value <= high for value in told):
            return "the loss has too many kinks, as of ReLU, between which derivatives do not tell how it curves"
        return ""


@once
def along_axes(context: CheckContext) -> tuple[list[AlongAxis], str]:
    """Slope and curvature at the origin along each axis, and how the derivatives were computed.

    Of the first few samples in float64: convolutions in it take twenty times as long on a CPU, and whether losses
    and derivatives are of one function a few samples tell as well. Of the steps the one counts that agrees best with
    half of it.

    Raises:
        JobError: the model has no derivatives, or does not compute in float64; or an axis moves nothing.
    """
    extra = context.derivatives
    directions, origin = extra.landscape.directions, extra.landscape.origin
    names = extra.moved_with_derivatives()
    still = [name for name, each in zip(extra.landscape.grid.names, directions, strict=True) if not norm(each.tensors)]
    if still:
        raise JobError(f"the direction of {' and of '.join(still)} is zero, so that nothing moves")
    length = norm({name: origin[name] for name in names if name in origin}) or 1.0
    steps = [[share * length / norm(each.tensors) for share in STEPS] for each in directions]
    points = [
        [signed * step if k == axis else 0.0 for k in range(len(directions))]
        for axis, of_axis in enumerate(steps)
        for step in of_axis
        for signed in (1.0, -1.0, 0.5, -0.5)
    ]
    *losses, centre = extra.losses_of_few([*points, [0.0] * len(directions)])
    operator = extra.hessian(extra.few).on((0,))
    vectors = np.stack([operator.layout.vector(each.tensors) for each in directions])
    products = np.einsum("kp,kp->k", vectors, operator(vectors))
    (totals,) = extra.executor.ask(extra.few, [TotalsOfBlocks([0])])
    factors = loss_factors(totals, extra.prepared.problem.observe)
    (gradient,) = extra.executor.ask(extra.few, [BlockGradient(0, factors)])
    extra.all_have_a_slope = all(each.any() for each in operator.layout.tensors(gradient).values())
    slopes = vectors @ gradient
    extra.count += math.ceil((len(points) + 3 + GRADIENT + PRODUCT * len(vectors)) * extra.share_of_few)
    how = "derivatives" if operator.method == "autograd" else "differences of gradients"
    found = []
    for axis, of_axis in enumerate(steps):
        differences = []
        for step in of_axis:
            around, losses = losses[:4], losses[4:]
            differences.append(Differences.around(around, centre, step))
        best = min(differences, key=lambda each: each.doubt)
        name, product, slope = extra.landscape.grid.names[axis], float(products[axis]), float(slopes[axis])
        found.append(AlongAxis(name, best, product, slope, differences))
    return found, how


@once
def hessian_of_axes(context: CheckContext) -> Floats:
    """dᵢᵀHdⱼ over all samples [axes, axes]."""
    return context.derivatives.hessian_of_axes()


def axis_curvatures(context: CheckContext) -> dict[str, float]:
    """dᵀHd over all samples, by the name of the axis."""
    names = [axis.name for axis in context.evidence.surface.axes]
    return dict(zip(names, np.diag(hessian_of_axes(context)).tolist(), strict=True))


# -- 8: losses and derivatives -------------------------------------------------------------------------------


def check_derivatives(context: CheckContext) -> Judgement:
    """Slope and curvature along the axes, by differences of losses and by derivatives."""
    return judge_derivatives(*along_axes(context), *context.derivatives.samples_of_few)


def judge_derivatives(axes: Sequence[AlongAxis], how: str, samples: int, of: int) -> Judgement:
    """8: second differences against dᵀHd, and first ones against g·d: 1 % of a smooth loss, 5 % of one with kinks.

    A deep network of ReLUs has so many kinks that second differences tell nothing; its slopes are compared alone.

    Args:
        how: the derivatives in words.
        samples, of: how many samples were evaluated, of how many of the landscape: few have another curvature than all.

    Raises:
        NotJudged: one of the numbers is not finite, so that nothing can be compared.
    """
    unknown = [axis.axis for axis in axes if not axis.is_finite]
    if unknown:
        raise NotJudged(f"the loss or its derivatives are not finite at the centre along {' and '.join(unknown)}")
    excess = {axis.axis: max(axis.errors) / axis.allowed for axis in axes}
    worst = max(axes, key=lambda axis: excess[axis.axis])
    error, both = max(worst.errors), all(axis.has_curvature for axis in axes)
    known = {"allowed": worst.allowed} | {f"curvature {axis.axis}": axis.curvature for axis in axes}
    if excess[worst.axis] <= 1:
        what = [("curvature", axis.curvature, axis.axis) if both else ("slope", axis.slope, axis.axis) for axis in axes]
        values = " and ".join(f"{number(value)} along {axis}" for _, value, axis in what)
        which = f"the first {samples:,} of {of:,}" if samples < of else f"all {of:,}"
        said = f"{what[0][0]} at the centre, of {which} samples: {values}"
        text = f"{said}, by differences of losses as by {how} (to {percent(error)})"
        if not both:
            text = f"{text}; the loss has too many kinks, as of ReLU, to compare its curvature"
        return Judgement("holds", text, value=error, numbers=known)
    differences = worst.differences
    said = f"slope {number(differences.slope)}, {how} {number(worst.slope)}"
    if worst.errors[0] > worst.errors[1]:
        said = f"curvature {number(differences.extrapolated)}, {how} {number(worst.curvature)}"
    text = f"along {worst.axis} differences of losses give the {said}: losses and derivatives are not of one function"
    remedy = "does observe detach, round or clip? does the model have an autograd function of its own? check both"
    return Judgement("fails", text, remedy, error, numbers=known)


# -- 8b: the centre cell -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OfGrid:
    """The second difference of the grid at the centre along an axis, beside dᵀHd.

    Attributes:
        step: of the grid.
    """

    axis: str
    difference: float
    curvature: float
    step: float

    def stands_out(self, loss: float, low_precision: bool) -> bool:
        """Whether the rise dᵀHd·h² of both neighbours is more than the rounding of a loss of this size."""
        rounding = LOW_PRECISION if low_precision else SINGLE_PRECISION
        return abs(self.curvature) * self.step**2 > rounding * max(1.0, abs(loss))

    @property
    def ratio(self) -> float:
        """NaN where the curvature is zero."""
        return self.difference / self.curvature if self.curvature else math.nan


def check_centre_cell(context: CheckContext) -> Judgement:
    """The curvature of the grid at its centre beside that of the loss."""
    reason = _unlike_differences(context)
    if reason:
        raise NotJudged(reason)
    found = [at_centre(context.evidence, *each) for each in axis_curvatures(context).items()]
    known = [each for each in found if each is not None and each.curvature > 0]
    if not known:
        raise NotJudged("the grid has no point at the origin with neighbours, or the loss is not convex there")
    known = [each for each in known if each.stands_out(context.origin_loss, context.low_precision)]
    if not known:
        raise NotJudged("the cells beside the centre rise by less than the rounding of their losses")
    return judge_centre_cell(known, held_by(context.evidence.surface).name)


def _unlike_differences(context: CheckContext) -> str:
    """Why derivatives do not tell how the loss curves along some axis; '' where they do, or where it is not known."""
    try:
        along, _ = along_axes(context)
    except JobError:  # check 8 says why
        return ""
    return next((each.unlike_differences for each in along if each.is_finite and each.unlike_differences), "")


def at_centre(evidence: Evidence, axis: str, curvature: float) -> OfGrid | None:
    """The second difference of the grid at the origin along an axis; None where a neighbour is missing.

    Of a refined landscape, by the nearest neighbours that were evaluated.

    Args:
        curvature: dᵀHd.
    """
    if evidence.origin_index is None:
        return None
    surface, finest = evidence.surface.merged(), 2 ** len(evidence.surface.levels)
    dimension = [each.name for each in reversed(surface.axes)].index(axis)
    known = surface.status == OK
    if surface.interpolated is not None:
        known &= surface.interpolated == 0
    values = np.where(known, surface.loss, np.nan)
    origin = tuple(finest * place for place in evidence.origin_index)
    line = values[(*origin[:dimension], slice(None), *origin[dimension + 1 :])]
    coordinates, place = surface.axis(axis).coordinates, origin[dimension]
    for stride in (2**level for level in range(len(evidence.surface.levels) + 1)):
        if not stride <= place < len(line) - stride:
            return None
        low, centre, high = line[place - stride], line[place], line[place + stride]
        step, other = coordinates[place + stride] - coordinates[place], coordinates[place] - coordinates[place - stride]
        difference = float(high - 2 * centre + low) / float(step) ** 2
        if math.isfinite(difference) and math.isclose(step, other, rel_tol=1e-6):
            return OfGrid(axis, difference, curvature, float(step))
    return None


def judge_centre_cell(axes: Sequence[OfGrid], held: str = "") -> Judgement:
    """8b: the grid's second difference over dᵀHd in [½, 2]: the bowl at the centre is as wide as a cell.

    Args:
        held: what the picture shows and a smaller range would cut off, such as 'the path'; '' for nothing.
    """
    off = [axis for axis in axes if not LEAST_RATIO <= axis.ratio <= LARGEST_RATIO]
    known = {axis.axis: axis.ratio for axis in axes}
    if not off:
        (first, *others) = ((number(axis.ratio, 2), axis.axis) for axis in axes)
        ratios = f"{first[0]} times the true one along {first[1]}"
        ratios += "".join(f", {ratio} times along {name}" for ratio, name in others)
        text = f"the grid resolves the bowl at its centre: its curvature there is {ratios}"
        return Judgement("holds", text, value=axes[0].ratio, numbers=known)
    worst = max(off, key=lambda axis: abs(math.log(axis.ratio)) if axis.ratio > 0 else math.inf)
    text = (
        f"along {worst.axis} the grid's curvature at the centre is {number(worst.ratio, 2)} times the true one: "
        f"the centre has structure that is narrower than a cell ({number(worst.step, 2)})"
    )
    remedy = f"zoom to ±{number(2 * worst.step, 2)}{f', in a landscape beside that of {held}' if held else ''}"
    return Judgement("reservation", text, remedy, worst.ratio, numbers=known)


# -- 9: what the plane hides ---------------------------------------------------------------------------------


def check_hidden(context: CheckContext) -> Judgement:
    """The ends of the Hessian's spectrum beside the curvature of the axes."""
    if not context.deep and context.quantise is None:
        raise NotJudged("the steepest direction is not looked for; --deep does, at about 60 Hessian products")
    norms = {axis.name: axis.record.norm or math.nan for axis in context.evidence.surface.axes}
    axes = [value / norms[name] ** 2 for name, value in axis_curvatures(context).items()]
    largest, smallest, bound, products = context.derivatives.spectrum_ends()
    return judge_hidden(largest, smallest, bound, axes, products)


def judge_hidden(largest: float, smallest: float, bound: float, axes: Sequence[float], products: int) -> Judgement:
    """9: information: λmax over the curvature of the axes; λmin < −0.01·λmax is a way down, which an axis may show.

    Args:
        largest, smallest: ends of the Hessian's spectrum at the origin, found by Lanczos: the smallest eigenvalue is
            this or less.
        bound: what no eigenvalue is below.
        axes: the curvature of each axis, per unit of length².
    """
    mean = sum(axes) / len(axes)
    known = {
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
            return Judgement("reservation", text, remedy, largest, numbers=known)
    elif bound < downhill:
        text = f"{text}; whether one leads down is undecided: none has a curvature below {number(bound)}"
    return Judgement("information", text, value=largest, numbers=known)
