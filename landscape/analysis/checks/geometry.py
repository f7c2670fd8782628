"""Checks 11 and 14: how well the plane holds the path, and what its axes are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from landscape.analysis.checks.values import NotJudged, check, number, percent
from landscape.core.grid import Floats
from landscape.core.plan import RECALIBRATE
from landscape.surface.record import Along
from landscape.surface.record_entries import Check, CheckState

NEAR = 0.3  # of the reach of a path, off the plane
# Of the height of the path: a tenth is the way between two contour lines of ten; by half of it what was the middle of
# the training can be drawn higher than its start, or lower than its end.
SMALL_GAP, LARGE_GAP = 0.1, 0.5
DRIFT = 0.05  # of the variance: a walk of as many steps explains so much more or less by chance
ORDER: tuple[CheckState, ...] = ("holds", "reservation", "fails")
ORTHOGONAL = 0.1  # |cosine|: the angle is then within 6° of a right one
SHOWN = 2  # tensors by their names
NO_PART = (
    "does a layer compute with merged or cached weights (as LoRA's after eval()), or observe with another model? "
    "what is unused by design may stay so, and directions that leave it out say more"
)
MORE_AXES = {1: "a second axis or fewer snapshots fit", 2: "a third axis or fewer snapshots fit"}


@dataclass(frozen=True)
class OnPlane:
    """The path and its projection.

    Attributes:
        off: ‖θᵢ − projection‖ / maxⱼ ‖θⱼ − θ₀‖ of every snapshot off the origin: over how far the path reaches.
        explained, of_walk: the share of the variance that the axes explain, and what they would of a random walk; NaN
            where they are no principal components.
        axes: how many there are.
        renewed: L(projection) with the statistics of batch norm taken anew there, by the place of the snapshot in the
            path, where it was evaluated.
    """

    along: Along
    off: Floats
    explained: float
    of_walk: float
    axes: int = 2
    renewed: Mapping[int, float] = field(default_factory=dict)


def paths(found: Mapping[str, OnPlane]) -> Check:
    """11 of every path by the name of its run: the state is the worst one, and the text names all.

    Raises:
        NotJudged: no path has a snapshot off the origin.
    """
    judged = {run: path(each, run) for run, each in found.items() if len(each.off)}
    if not judged:
        raise NotJudged("the path has no snapshot off the origin")
    worst = max(judged.values(), key=lambda each: ORDER.index(each.state))
    if len(judged) == 1:
        return worst
    text = "; ".join(each.text for each in judged.values())
    remedies = dict.fromkeys(each.remedy for each in [worst, *judged.values()] if each.remedy)
    numbers = {f"{run}, {name}": value for run, each in judged.items() for name, value in each.numbers.items()}
    return replace(worst, text=text, remedy="; ".join(remedies), numbers=numbers)


def path(found: OnPlane, run: str = "") -> Check:
    """11: the largest gap |L(θᵢ) − L(projection)|, and the largest distance off the plane.

    A gap counts beyond 3 standard errors of the rise: ≤ 10 % of the height of the path holds, beyond 50 % it does not.
    The largest one is judged, since a picture is read at its start and its end, and many snapshots close to the end
    make a median small. A distance off the plane of more than 30 % of the reach of the path is a reservation, whatever
    the gaps are: its shape is then not that of the picture. Over a snapshot's own way to the origin the last ones would
    be far off any plane.
    """
    if not len(found.off):
        raise NotJudged("the path has no snapshot off the origin")
    along, off, worst = found.along, float(found.off.max()), found.along.furthest
    gap = float(along.clear[worst]) / along.height
    state = _worse("reservation" if off > NEAR else "holds", _graded(gap, SMALL_GAP, LARGE_GAP))
    whose, far = f" of {run}" if run else "", f"up to {percent(off)} of its reach off the plane"
    text = f"the path{whose} lies {far}"
    known: dict[str, object] = {"off": off, "gap": gap, "explained": found.explained, "of walk": found.of_walk}
    own, plane = float(along.losses[worst]), float(along.plane[worst])
    if not (math.isnan(gap) or math.isnan(own) or math.isnan(plane)):
        known |= {"snapshot": along.names[worst], "loss": own, "plane": plane}
        text = f"path{whose}: {beside(along.names[worst], own, plane)}{_apart(along, gap)}; it lies {far}"
    drifts = found.explained <= found.of_walk + DRIFT  # never of NaN
    remedies = []
    if gap > SMALL_GAP and _is_stale(found, worst):
        remedies.append(f"most of it is stale statistics: {RECALIBRATE}")
    elif state != "holds" and not drifts:
        others = MORE_AXES.get(found.axes, "fewer snapshots fit")
        remedies.append(f"read the path's own losses, not the contour lines below it; {others} better")
    if drifts:
        text += f"; the axes explain {percent(found.explained)} of it, and {percent(found.of_walk)} of a random walk"
        state, who = _worse(state, "reservation"), f"the path{whose} looks " if run else ""
        remedies.append(f"{who}as pure drift would: its shape says nothing of the training")
    return check("11", "path", state, text, "; ".join(remedies), off, numbers=known)


def beside(name: str, own: float, plane: float) -> str:
    """A snapshot's own loss and the plane's: 'at epoch 0 the loss is 4.39, the plane has 3.19 there'."""
    there = f"the plane has {number(plane)} there" if math.isfinite(plane) else "the plane's is not finite there"
    return f"at {name} the loss is {number(own) if math.isfinite(own) else 'not finite'}, {there}"


def _apart(along: Along, gap: float) -> str:
    """How large the largest gap is, as a share of the height."""
    if not gap:
        return ", no more apart than by the noise of sampling"
    if not math.isfinite(gap):
        return ""
    of = "the range of the path's losses" if along.span else "the relief"
    return f", apart by {percent(gap)} of {of}" if gap < 2 else f", apart by {number(gap, 2)} times {of}"


def _is_stale(found: OnPlane, k: int) -> bool:
    """Whether most of a gap is gone where the statistics of batch norm are taken anew."""
    left = abs(float(found.along.losses[k]) - found.renewed.get(k, math.nan))
    return left <= float(found.along.gaps[k]) / 2  # never of NaN


def _graded(value: float, good: float, bad: float) -> CheckState:
    """What is not known does not count."""
    return "fails" if value > bad else "reservation" if value > good else "holds"


def _worse(*states: CheckState) -> CheckState:
    return max(states, key=ORDER.index)


@dataclass(frozen=True)
class Axes:
    """The axes.

    Attributes:
        cosines: of every pair, by their names.
        unscaled: the random axes that are not scaled to the weights.
        moved: the share of the parameters that move; None where it is not known.
        unused: the tensors that move and take no part in the loss.
        unused_size, moved_size: how many numbers these have, and all that move.
    """

    cosines: Mapping[str, float]
    unscaled: tuple[str, ...]
    moved: float | None
    unused: tuple[str, ...] = ()
    unused_size: int = 0
    moved_size: int = 0


def axes(found: Axes) -> Check:
    """14: |cosine| ≤ 0.1; random axes scaled to the weights, as only those are comparable."""
    widest = max(found.cosines, key=lambda pair: abs(found.cosines[pair]), default="")
    cosine = found.cosines.get(widest, math.nan)
    moved = "" if found.moved is None else f"; {percent(found.moved)} of the parameters move"
    known = {"moved": math.nan if found.moved is None else found.moved, **found.cosines}
    if found.unused:
        more = len(found.unused) - SHOWN
        names = f"{', '.join(found.unused[:SHOWN])} and {more} more" if more > 0 else " and ".join(found.unused)
        text = (
            f"{names} {'takes' if len(found.unused) == 1 else 'take'} no part in the loss of the samples: "
            f"{found.unused_size:,} of the {found.moved_size:,} numbers that move{moved}"
        )
        return check("14", "axes", "reservation", text, NO_PART, cosine, numbers=known)
    if found.unscaled:
        names = " and ".join(found.unscaled)
        text = f"{names} not scaled to the weights: heights depend on the size of the weights{moved}"
        remedy = "normalise: filter is comparable between networks"
        return check("14", "axes", "reservation", text, remedy, cosine, numbers=known)
    if abs(cosine) > ORTHOGONAL:
        text = f"the axes are not at right angles: cosine {number(cosine, 2)} of {widest}{moved}"
        return check(
            "14", "axes", "reservation", text, "lengths and angles of the picture are not true", cosine, numbers=known
        )
    text = f"axes at right angles (cosine {number(cosine, 1)}){moved}" if widest else f"one axis{moved}"
    return check("14", "axes", "holds", text, value=cosine, numbers=known)


# ----------------------------------------------------------------------------------------------------
# Checks 8, 8b and 9: the curvature at the centre by two independent ways, of the grid, and of what the plane hides.

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


# ----------------------------------------------------------------------------------------------------
# Check 7: whether other random directions would give another picture.

LINES = 8
# Coefficients of variation. Where k directions of equal curvature make the rise, it varies by √(2/k): a tenth means 200
# of them, and 1 that two alone decide. Trained networks of 60,000 to 300,000 parameters have 0.2 to 0.5.
ALIKE, CHANCE = 0.1, 1.0
# Of t with 7 degrees of freedom, 99.5th percentile. Two axes in each of many landscapes: at the usual 95 % a tenth of
# all planes would count as unusual.
QUANTILE = 3.499
CLEARLY = 3.0  # standard errors: a smaller rise is not compared


@dataclass(frozen=True)
class OtherLines:
    """The rise along other random lines, and along the axes of the landscape.

    Attributes:
        rises: [lines], the mean of both sides, at `distance` from the origin.
        own: the same along each axis that is of the same kind, by its name.
        distance: half the range.
        noise: the median standard error of `rises`.
        at: places along the lines, on both sides.
        losses: [lines, places] there.
    """

    rises: Floats
    own: Mapping[str, float]
    distance: float
    noise: float
    at: Floats
    losses: Floats

    def band(self) -> dict[str, list[float]]:
        """At each place the mean loss of the lines, and the interval which one more would lie in: 99 % of them do."""
        with np.errstate(invalid="ignore"):  # where a loss is not finite there is no band
            mean, spread = self.losses.mean(axis=0), self.losses.std(axis=0, ddof=1)
        reach = QUANTILE * spread * math.sqrt(1 + 1 / len(self.losses))
        columns = {"at": self.at, "mean": mean, "low": mean - reach, "high": mean + reach}
        return {name: column.tolist() for name, column in columns.items()}


def other_lines(found: OtherLines) -> Check:
    """7: CV of the rise at half the range ≤ 0.1 holds, beyond 1 it does not; own axes within mean ± t·s·√(1 + 1/K)."""
    rises = found.rises[np.isfinite(found.rises)]
    if len(rises) < LINES:
        raise NotJudged(f"the loss is not finite on {LINES - len(rises)} of {LINES} other lines at {found.distance:g}")
    if math.isnan(found.noise):
        raise NotJudged("the standard error of the rise is not known")
    mean, spread = float(rises.mean()), float(rises.std(ddof=1))
    if not mean > CLEARLY * found.noise:
        raise NotJudged(f"nothing rises clearly at {number(found.distance)} along {LINES} other lines; widen the range")
    variation = spread / mean
    reach = QUANTILE * spread * math.sqrt(1 + 1 / len(rises))
    unusual = [name for name, rise in found.own.items() if not abs(rise - mean) <= reach]
    own = " and ".join(f"{name} by {number(rise)}" for name, rise in found.own.items())
    text = (
        f"{LINES} other directions rise by {number(float(rises.min()))} to {number(float(rises.max()))} at "
        f"{number(found.distance)}, {own}"
    )
    known: dict[str, object] = {"mean": mean, "low": mean - reach, "high": mean + reach, "rises": rises.tolist()}
    known |= {"band": found.band(), **found.own}
    if variation > CHANCE:
        text = f"{text}: they vary by {percent(variation)}, so one or two directions decide what is seen"
        remedy = "show several planes, or landscape measure, which averages over lines"
        return check("7", "other seeds", "fails", text, remedy, variation, numbers=known)
    if unusual:
        text = f"{text}: an unusual plane ({' and '.join(unusual)})"
        return check("7", "other seeds", "reservation", text, "show another seed beside it", variation, numbers=known)
    if variation > ALIKE:
        text = f"{text}: they vary by {percent(variation)}"
        remedy = "compare heights with other networks by landscape measure only, which averages over lines"
        return check("7", "other seeds", "reservation", text, remedy, variation, numbers=known)
    return check("7", "other seeds", "holds", text, value=variation, numbers=known)
