"""Checks 8, 8b and 9: the curvature at the centre by two independent ways, of the grid, and of what the plane hides."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from landscape.analysis.checks.words import NotJudged, check, number, percent
from landscape.surface.record_entries import Check

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


def curvature(found: Sequence[AlongAxis], how: str, samples: int, of: int) -> Check:
    """8: second differences against dᵀHd, and first ones against g·d: 1 % of a smooth loss, 5 % of one with kinks.

    A deep network of ReLUs has so many kinks that second differences tell nothing; its slopes are compared alone.

    Args:
        how: the derivatives in words.
        samples, of: so many are asked for, and so many has the landscape: the loss of few curves otherwise than theirs.

    Raises:
        NotJudged: one of the numbers is not finite, so that nothing can be compared.
    """
    unknown = [axis.axis for axis in found if not axis.is_finite]
    if unknown:
        raise NotJudged(f"the loss or its derivatives are not finite at the centre along {' and '.join(unknown)}")
    excess = {axis.axis: max(axis.errors) / axis.allowed for axis in found}
    worst = max(found, key=lambda axis: excess[axis.axis])
    error, both = max(worst.errors), all(axis.has_curvature for axis in found)
    known = {"allowed": worst.allowed} | {f"curvature {axis.axis}": axis.curvature for axis in found}
    if excess[worst.axis] <= 1:
        what = [
            ("curvature", axis.curvature, axis.axis) if both else ("slope", axis.slope, axis.axis) for axis in found
        ]
        values = " and ".join(f"{number(value)} along {axis}" for _, value, axis in what)
        which = f"the first {samples:,} of {of:,}" if samples < of else f"all {of:,}"
        said = f"{what[0][0]} at the centre, of {which} samples: {values}"
        text = f"{said}, by differences of losses as by {how} (to {percent(error)})"
        if not both:
            text = f"{text}; the loss has too many kinks, as of ReLU, to compare its curvature"
        return check("8", "curvature", "holds", text, value=error, numbers=known)
    differences = worst.differences
    said = f"slope {number(differences.slope)}, {how} {number(worst.slope)}"
    if worst.errors[0] > worst.errors[1]:
        said = f"curvature {number(differences.extrapolated)}, {how} {number(worst.curvature)}"
    text = f"along {worst.axis} differences of losses give the {said}: losses and derivatives are not of one function"
    remedy = "does observe detach, round or clip? does the model have an autograd function of its own? check both"
    return check("8", "curvature", "fails", text, remedy, error, numbers=known)


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


def of_grid(found: Sequence[OfGrid], held: str = "") -> Check:
    """8b: the grid's second difference over dᵀHd in [½, 2]: the bowl at the centre is as wide as a cell.

    Args:
        held: what the picture shows and a smaller range would cut off, such as 'the path'; '' for nothing.
    """
    off = [axis for axis in found if not LEAST_RATIO <= axis.ratio <= LARGEST_RATIO]
    known = {axis.axis: axis.ratio for axis in found}
    if not off:
        (first, *others) = ((number(axis.ratio, 2), axis.axis) for axis in found)
        ratios = f"{first[0]} times the true one along {first[1]}"
        ratios += "".join(f", {ratio} times along {name}" for ratio, name in others)
        text = f"the grid resolves the bowl at its centre: its curvature there is {ratios}"
        return check("8b", "centre cell", "holds", text, value=found[0].ratio, numbers=known)
    worst = max(off, key=lambda axis: abs(math.log(axis.ratio)) if axis.ratio > 0 else math.inf)
    text = (
        f"along {worst.axis} the grid's curvature at the centre is {number(worst.ratio, 2)} times the true one: "
        f"the centre has structure that is narrower than a cell ({number(worst.step, 2)})"
    )
    remedy = f"zoom to ±{number(2 * worst.step, 2)}{f', in a landscape beside that of {held}' if held else ''}"
    return check("8b", "centre cell", "reservation", text, remedy, worst.ratio, numbers=known)


@dataclass(frozen=True)
class Hidden:
    """The ends of the Hessian's spectrum at the origin, beside the curvature of each axis per unit of length².

    Attributes:
        smallest: found by Lanczos, so that the smallest eigenvalue is this or less.
        bound: what no eigenvalue is below.
    """

    largest: float
    smallest: float
    bound: float
    axes: Sequence[float]
    products: int


def hidden(found: Hidden) -> Check:
    """9: information: λmax over the curvature of the axes; λmin < −0.01·λmax is a way down, which an axis may show."""
    mean = sum(found.axes) / len(found.axes)
    known = {
        "largest": found.largest,
        "smallest": found.smallest,
        "bound": found.bound,
        "axes": mean,
        "products": found.products,
    }
    times = f"{number(found.largest / mean, 2)} times that of these axes" if mean > 0 else "these axes"
    text = f"the steepest direction has curvature {number(found.largest)}, {times} ({number(mean)})"
    if max(found.axes) < STEEP * found.largest:
        text = f"{text}: a plane shows the average, not the worst"
    downhill = -DOWNHILL * abs(found.largest)
    if found.smallest < downhill:
        text = f"{text}; one of curvature {number(found.smallest)} leads down"
        if min(found.axes) < downhill:
            text = f"{text}, and so does an axis of this plane"
        else:
            text = f"{text}, which this plane does not show"
            remedy = "directions: [{kind: eigen, rank: 1}, {kind: eigen, rank: -1}] shows both"
            return check("9", "hidden", "reservation", text, remedy, found.largest, numbers=known)
    elif found.bound < downhill:
        text = f"{text}; whether one leads down is undecided: none has a curvature below {number(found.bound)}"
    return check("9", "hidden", "information", text, value=found.largest, numbers=known)
