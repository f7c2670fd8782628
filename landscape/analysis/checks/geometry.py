"""Checks 6, 7 and 14: the grid and the axes of a landscape.

Whether the grid is fine enough, by leaving out every second point; whether other random directions would give another
picture; and what the axes are.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from landscape.analysis.checks.check import CheckContext, features_beyond_half, refuse_few_points
from landscape.analysis.checks.evaluations import ExtraEvaluations
from landscape.analysis.checks.evidence import Evidence, Judgement, NotJudged, number, percent
from landscape.core.errors import ClusterUnreachableError, Interrupted, LandscapeError
from landscape.core.grid import Floats
from landscape.job.directions.random import RandomDirection
from landscape.surface.record_parts import AccuracyRecord
from landscape.surface.refinement import spread
from landscape.surface.surface import NOT_COMPUTED, OK, Surface
from landscape.surface.topology import corner_steps, minimum_pairs, noise_threshold

# -- 6: resolution -------------------------------------------------------------------------------------------


FINE, COARSE = 0.04, 0.2  # shares of the relief; the error of the grid itself is then a quarter: 1 % and 5 %
ORDER_OF_LINEAR = 2  # the error of linear interpolation goes with h²: half the step leaves a quarter of it
LEAST_ORDER = 1.0  # with a lower order the error falls too slowly for a surface that is smooth at this scale
WORTH_AN_ORDER = 0.01  # share of the relief: the order of a smaller error is that of rounding and of kinks
LEAST_POINTS = 5  # per axis: without every second point three are left
MOST_CELLS = 256**2  # minima of larger grids are not counted, which would take seconds
PERCENTILE = 95


@dataclass(frozen=True)
class Resolution:
    """How well a part of a grid predicts its other points.

    Attributes:
        half: the 95th percentile of |interpolated − evaluated| over the relief, from every second point.
        quarter: the same from every fourth point; NaN if the grid is too small.
        minima: how many minima are deeper than the noise, in the whole grid and in every second point; None if the grid
            is too large to count them.
        size: points of every axis, the first one first.
        refined: whether `half` is the change by the levels of a refined landscape; `quarter` and `minima` are unknown
            then.
        shown: the features that a smaller range would cut off, such as 'the path'; '' for none.
    """

    half: float
    quarter: float
    minima: tuple[int, int] | None
    size: tuple[int, ...]
    refined: bool = False
    shown: str = ""


def check_resolution(context: CheckContext) -> Judgement:
    """Compare every second point of the grid with its interpolation from the others."""
    refuse_few_points(context)
    accuracy = context.evidence.record.accuracy
    if accuracy is not None:
        return judge_accuracy(accuracy, context.evidence.run, context.evidence.surface.name)
    resolution = resolution_of(context.evidence)
    if resolution is None:
        raise NotJudged("the grid is flat, or has fewer than 5 points along an axis")
    return judge_resolution(replace(resolution, shown=features_beyond_half(context)))


def judge_accuracy(reached: AccuracyRecord, run: str, name: str) -> Judgement:
    """6, of a landscape with an accuracy: what its rounds know of samples and steps together, measured once."""
    numbers = {"sampling": reached.sampling, "interpolation": reached.interpolation, "relief": reached.relief}
    text = reached.text + (f"; {reached.ending}" if reached.ending else "")
    if reached.reached is None:
        raise NotJudged("no round is complete yet")
    if reached.is_reached:
        return Judgement("holds", text, value=reached.reached, numbers=numbers)
    asked = f"{100 * reached.error:g}%" if reached.relative else f"{reached.error:g}"
    extend = shlex.join(["landscape", "extend", run, name, "--accuracy", asked])
    remedy = extend if reached.stopped == "budget" else ""
    return Judgement("reservation", text, remedy, reached.reached, numbers=numbers)


def judge_resolution(grid: Resolution) -> Judgement:
    """6: e₂ ≤ 4 % of the relief holds, above 20 % fails; the order log₂(e₄/e₂) ≥ 1; the same minima in both grids."""
    own = grid.half / 2**ORDER_OF_LINEAR
    order = math.log2(grid.quarter / grid.half) if grid.half > 0 and grid.quarter > 0 else math.nan
    finer, better = _finer(grid.size), own / 2**ORDER_OF_LINEAR
    numbers = {"quarter": grid.quarter, "order": order, "minima": grid.minima and list(grid.minima)}
    text = (
        f"every second point left out changes the picture by {percent(grid.half)} of its relief, so the grid itself "
        f"is off by about {percent(own)}"
    )
    remedy = f"size: {finer} gives {percent(better)}"
    if grid.refined:
        text = (
            f"each level of the refinement changed the picture by {percent(grid.half)} of its relief where it is the "
            f"last one, so the picture itself is off by about {percent(own)}"
        )
        remedy = "landscape refine makes it finer"
    if grid.half > COARSE:
        return Judgement("fails", text, remedy, grid.half, numbers=numbers)
    if grid.half > WORTH_AN_ORDER and order < LEAST_ORDER:
        text = f"{text}; every fourth kept instead changes it by {percent(grid.quarter)}: finer structure than the grid"
        remedy = f"size: {finer}" + ("" if grid.shown else ", or a smaller range")
        return Judgement("reservation", text, remedy, grid.half, numbers=numbers)
    if grid.half > FINE:
        return Judgement("reservation", text, remedy, grid.half, numbers=numbers)
    if grid.minima is not None and grid.minima[0] != grid.minima[1]:
        text = f"{text}; the grid shows {grid.minima[0]} minima above its noise, every second point {grid.minima[1]}"
        return Judgement("reservation", text, f"size: {finer} says which", grid.half, numbers=numbers)
    return Judgement("holds", text, value=grid.half, numbers=numbers)


def _finer(size: tuple[int, ...]) -> int | list[int]:
    """The `size` of a job with half the step; one number if it is the same for all axes."""
    sizes = [2 * points - 1 for points in size]
    return sizes[0] if len(set(sizes)) == 1 else sizes


def resolution_of(evidence: Evidence) -> Resolution | None:
    """The resolution of a grid; None if the grid is too small, flat, or has too many holes."""
    values, coordinates = evidence.values, [axis.coordinates for axis in reversed(evidence.surface.axes)]
    if min(values.shape) < LEAST_POINTS or not evidence.relief > 0:
        return None
    if evidence.surface.levels:
        return _resolution_of_levels(evidence.surface, _errors_left_out(values, coordinates, 2), evidence.relief)
    errors = [_error_left_out(values, coordinates, stride) / evidence.relief for stride in (2, 4)]
    if not math.isfinite(errors[0]):
        return None
    minima = None
    if values.size <= MOST_CELLS:
        noise = noise_threshold(evidence.surface)
        grids = (values, values[tuple(slice(None, None, 2) for _ in values.shape)])
        whole, half = (sum(pair.persistence > noise for pair in minimum_pairs(grid)) for grid in grids)
        minima = (whole, half)
    return Resolution(errors[0], errors[1], minima, values.shape[::-1])


def _error_left_out(values: Floats, coordinates: list[Floats], stride: int) -> float:
    """The 95th percentile of |interpolated − evaluated| over the points left out; NaN if there are none."""
    errors = _errors_left_out(values, coordinates, stride)
    errors = errors[np.isfinite(errors)]
    return float(np.percentile(errors, PERCENTILE)) if errors.size else math.nan


def _errors_left_out(values: Floats, coordinates: list[Floats], stride: int) -> Floats:
    """|interpolated − evaluated| at the points left out if every `stride`-th is kept; NaN at all others."""
    ends = [(size - 1) // stride * stride + 1 for size in values.shape]
    errors = np.full(values.shape, np.nan)
    if min(ends) < stride + 1:
        return errors
    part = values[tuple(slice(end) for end in ends)]
    predicted = part[tuple(slice(None, None, stride) for _ in ends)]
    for axis, end in enumerate(ends):
        predicted = _interpolate(predicted, coordinates[axis][:end], stride, axis)
    errors[tuple(slice(end) for end in ends)] = np.abs(predicted - part)
    errors[tuple(slice(None, None, stride) for _ in ends)] = np.nan
    return errors


def _resolution_of_levels(surface: Surface, base: Floats, relief: float) -> Resolution | None:
    """The resolution of a refined landscape: how much each level changed the picture where it is the finest one.

    Each point counts by the area that it stands for.

    Args:
        base: |interpolated − evaluated| at the points of level 0 that were left out.
    """
    levels = [surface.at(number) for number in range(1, len(surface.levels) + 1)]
    merged, errors = np.where(surface.status == OK, surface.loss, np.nan), base
    finest_errors, areas = list[Floats](), list[Floats]()
    for level in levels:
        computed, predicted = level.status != NOT_COMPUTED, spread(merged)
        values = np.where(level.status == OK, level.loss, np.nan)
        finest_errors.append(errors[~_is_refined(computed)])
        merged, errors = np.where(computed, values, predicted), np.where(computed, np.abs(values - predicted), np.nan)
        areas.append(np.full(finest_errors[-1].shape, 2.0 ** -(computed.ndim * len(areas))))
    finest_errors.append(errors.ravel())
    areas.append(np.full(finest_errors[-1].shape, 2.0 ** -(errors.ndim * len(areas))))
    all_errors, all_areas = np.concatenate(finest_errors), np.concatenate(areas)
    finite = np.isfinite(all_errors)
    if not finite.any():
        return None
    order = np.argsort(all_errors[finite])
    shares = np.cumsum(all_areas[finite][order]) / all_areas[finite].sum()
    error = float(all_errors[finite][order][np.searchsorted(shares, PERCENTILE / 100)])
    return Resolution(error / relief, math.nan, None, surface.status.shape[::-1], refined=True)


def _is_refined(computed: np.ndarray) -> np.ndarray:
    """Which points of a level have a computed point of the next finer level at their place or beside it.

    Args:
        computed: which points of the finer level are computed.
    """
    padded = np.pad(computed, 1)
    around = [
        padded[tuple(slice(1 + step, 1 + step + size) for step, size in zip(steps, computed.shape, strict=True))]
        for steps in [(0,) * computed.ndim, *corner_steps(computed.ndim)]
    ]
    return np.asarray(np.any(around, axis=0)[tuple(slice(None, None, 2) for _ in computed.shape)])


def _interpolate(values: Floats, coordinates: Floats, stride: int, axis: int) -> Floats:
    """Interpolate linearly along an axis, from every `stride`-th coordinate to all; NaN beside NaN."""
    last = len(range(0, len(coordinates), stride)) - 1
    places = np.arange(len(coordinates))
    left = np.minimum(places // stride, last - 1)
    start, end = coordinates[left * stride], coordinates[(left + 1) * stride]
    shape = [-1 if dimension == axis else 1 for dimension in range(values.ndim)]
    weight = ((coordinates - start) / (end - start)).reshape(shape)
    low, high = values.take(left, axis), values.take(left + 1, axis)
    # A point of weight 0 must not make the result NaN.
    return np.where(weight == 0, low, np.where(weight == 1, high, (1 - weight) * low + weight * high))


LINES = 8
# Coefficients of variation. A rise by k directions of equal curvature varies by √(2/k): 0.1 means 200 of them, and 1
# means two. Trained networks of 60,000 to 300,000 parameters have 0.2 to 0.5.
ALIKE, CHANCE = 0.1, 1.0
# The 99.5th percentile of t with 7 degrees of freedom. With the usual 95 % interval for each of two axes a tenth of all
# planes would count as unusual.
QUANTILE = 3.499
CLEARLY = 3.0  # standard errors: a smaller rise is not compared
SEEDS = range(1001, 1001 + LINES)  # the same for all networks, so that the lines of two networks are paired
POINTS_OF_LINE = (-1.0, -0.75, -0.5, -0.25, 0.25, 0.5, 0.75, 1.0)  # shares of the range, without the known origin
HALF = (2, 5)  # indices of ∓0.5 in POINTS_OF_LINE
ORTHOGONAL = 0.1  # the largest |cosine|: the angle is then within 6° of a right angle
SHOWN = 2  # how many unused tensors are named
NO_PART = (
    "does a layer compute with merged or cached weights (as LoRA's after eval()), or observe with another model? "
    "what is unused by design may stay so, and directions that leave it out say more"
)


# -- 7: other seeds ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OtherLines:
    """The rise along other random lines, and along the axes of the landscape.

    Attributes:
        rises: [lines], at `distance` from the origin, the mean of both sides.
        own: the same along each axis of the landscape that is drawn alike, by its name.
        distance: half the range.
        noise: the median standard error of `rises`.
        at: [places], coordinates along the lines, on both sides.
        losses: [lines, places].
    """

    rises: Floats
    own: Mapping[str, float]
    distance: float
    noise: float
    at: Floats
    losses: Floats

    def band(self) -> dict[str, list[float]]:
        """The mean loss of the lines at each place, and the interval that holds one more line with probability 99 %."""
        with np.errstate(invalid="ignore"):  # the band is not finite where a loss is not
            mean, spread = self.losses.mean(axis=0), self.losses.std(axis=0, ddof=1)
        reach = QUANTILE * spread * math.sqrt(1 + 1 / len(self.losses))
        columns = {"at": self.at, "mean": mean, "low": mean - reach, "high": mean + reach}
        return {name: column.tolist() for name, column in columns.items()}


def check_other_seeds(context: CheckContext) -> Judgement:
    """Compare the rise of the loss along other random lines with that along the axes."""
    extra, axes = context.evaluations, context.evidence.surface.axes
    specs = extra.prepared.job.landscapes[0].directions
    drawn = {axis.name: spec for axis, spec in zip(axes, specs, strict=True) if isinstance(spec, RandomDirection)}
    if not drawn:
        raise NotJudged("no axis is a random direction")
    if context.evidence.relief == 0:
        raise NotJudged("the relief is 0: the check of sampling says what to do")
    reach = min(float(np.abs(axis.coordinates).max()) for axis in axes if axis.name in drawn)
    spec = next(iter(drawn.values()))
    places = reach * np.array(POINTS_OF_LINE)
    losses, errors = extra.line_losses(spec, SEEDS, places.tolist())
    rises = losses[:, HALF].mean(axis=1) - context.origin_loss
    names = [axis.name for axis in axes]
    # Only axes that differ in their seed alone are compared with the lines.
    alike = [name for name, other in drawn.items() if other.model_copy(update={"seed": spec.seed}) == spec]
    points = [[sign * reach / 2 if name == axis else 0.0 for name in names] for axis in alike for sign in (-1, 1)]
    own = extra.losses(extra.own, points).reshape(len(alike), 2).mean(axis=1) - context.origin_loss
    noise = float(np.median(errors[:, HALF]))
    along = dict(zip(alike, own.tolist(), strict=True))
    return judge_lines(OtherLines(rises, along, reach / 2, noise, places, losses))


def judge_lines(lines: OtherLines) -> Judgement:
    """7: CV of the rise at half the range ≤ 0.1 holds, above 1 fails; own axes lie within mean ± t·s·√(1 + 1/K)."""
    rises = lines.rises[np.isfinite(lines.rises)]
    if len(rises) < LINES:
        raise NotJudged(f"the loss is not finite on {LINES - len(rises)} of {LINES} other lines at {lines.distance:g}")
    if math.isnan(lines.noise):
        raise NotJudged("the standard error of the rise is not known")
    mean, spread = float(rises.mean()), float(rises.std(ddof=1))
    if not mean > CLEARLY * lines.noise:
        raise NotJudged(f"nothing rises clearly at {number(lines.distance)} along {LINES} other lines; widen the range")
    variation = spread / mean
    reach = QUANTILE * spread * math.sqrt(1 + 1 / len(rises))
    unusual = [name for name, rise in lines.own.items() if not abs(rise - mean) <= reach]
    own = " and ".join(f"{name} by {number(rise)}" for name, rise in lines.own.items())
    text = (
        f"{LINES} other directions rise by {number(float(rises.min()))} to {number(float(rises.max()))} at "
        f"{number(lines.distance)}, {own}"
    )
    numbers: dict[str, object] = {"mean": mean, "low": mean - reach, "high": mean + reach, "rises": rises.tolist()}
    numbers |= {"band": lines.band(), **lines.own}
    if variation > CHANCE:
        text = f"{text}: they vary by {percent(variation)}, so one or two directions decide what is seen"
        remedy = "show several planes, or landscape measure, which averages over lines"
        return Judgement("fails", text, remedy, variation, numbers=numbers)
    if unusual:
        text = f"{text}: an unusual plane ({' and '.join(unusual)})"
        return Judgement("reservation", text, "show another seed beside it", variation, numbers=numbers)
    if variation > ALIKE:
        text = f"{text}: they vary by {percent(variation)}"
        remedy = "compare heights with other networks by landscape measure only, which averages over lines"
        return Judgement("reservation", text, remedy, variation, numbers=numbers)
    return Judgement("holds", text, value=variation, numbers=numbers)


# -- 14: the axes --------------------------------------------------------------------------------------------


def check_axes(context: CheckContext) -> Judgement:
    """Judge the angles of the axes, their scale, and the tensors that they move."""
    evidence = context.evidence
    kinds = {axis.name: axis.attributes for axis in evidence.surface.axes}
    unscaled = [
        name
        for name, attributes in kinds.items()
        if attributes.get("kind") == "random" and attributes.get("normalise") == "none"
    ]
    if not any(axis.record.kind for axis in evidence.surface.axes):
        raise NotJudged("what the axes are is not recorded")
    if len(kinds) > 1 and not evidence.cosines:
        raise NotJudged("the cosines of the axes are not recorded")
    judged = judge_axes(evidence.cosines, unscaled, _moved(context), *_unused(context))
    moving = evidence.record.moving_weights
    if not moving:
        return judged
    share = min(moving.values())
    text = f"{judged.text}, {percent(share)} of those in bfloat16 from point to point"
    return replace(judged, text=text, numbers={**judged.numbers, "moving": share})


def _moved(context: CheckContext) -> float | None:
    """The share of the model's parameters that some axis moves; None if unknown."""
    total = context.evidence.record.provenance.parameters
    if context.extra is None or not total:
        return None
    return min(1.0, sum(_moved_sizes(context.extra).values()) / total)


def _moved_sizes(extra: ExtraEvaluations) -> dict[str, int]:
    """The number of elements of each tensor that some axis moves."""
    sizes: dict[str, int] = {}
    for direction in extra.landscape.directions:
        sizes |= {name: tensor.numel() for name, tensor in direction.tensors.items() if bool((tensor != 0).any())}
    return sizes


def _unused(context: CheckContext) -> tuple[tuple[str, ...], int, int]:
    """The moved tensors on which the loss does not depend, the number of their elements, and that of all moved tensors.

    None are reported if the loss has no derivatives.
    """
    if context.extra is None:
        return (), 0, 0
    moved = _moved_sizes(context.extra)
    try:
        unused = context.extra.unused_parameters()
    except (Interrupted, ClusterUnreachableError):
        raise
    except LandscapeError:
        return (), 0, 0
    names = tuple(name for name in moved if name in unused)
    return names, sum(moved[name] for name in names), sum(moved.values())


def judge_axes(
    cosines: Mapping[str, float], unscaled: Sequence[str], moved: float | None, unused: Sequence[str] = (),
    unused_size: int = 0, moved_size: int = 0,
) -> Judgement:  # fmt: skip
    """14: |cosine| ≤ 0.1; random axes are scaled to the weights, so that networks compare; all that moves is used.

    Args:
        cosines: the cosine of every pair of axes, by its name.
        unscaled: the random axes that are not scaled to the weights.
        moved: the share of the parameters that move; None if unknown.
        unused: the moved tensors on which the loss does not depend.
        unused_size, moved_size: the number of elements of these, and of all moved tensors.
    """
    widest = max(cosines, key=lambda pair: abs(cosines[pair]), default="")
    cosine = cosines.get(widest, math.nan)
    share = "" if moved is None else f"; {percent(moved)} of the parameters move"
    numbers = {"moved": math.nan if moved is None else moved, **cosines}
    if unused:
        more = len(unused) - SHOWN
        names = f"{', '.join(unused[:SHOWN])} and {more} more" if more > 0 else " and ".join(unused)
        text = (
            f"{names} {'takes' if len(unused) == 1 else 'take'} no part in the loss of the samples: "
            f"{unused_size:,} of the {moved_size:,} numbers that move{share}"
        )
        return Judgement("reservation", text, NO_PART, cosine, numbers=numbers)
    if unscaled:
        names = " and ".join(unscaled)
        text = f"{names} not scaled to the weights: heights depend on the size of the weights{share}"
        remedy = "normalise: filter is comparable between networks"
        return Judgement("reservation", text, remedy, cosine, numbers=numbers)
    if abs(cosine) > ORTHOGONAL:
        text = f"the axes are not at right angles: cosine {number(cosine, 2)} of {widest}{share}"
        return Judgement("reservation", text, "lengths and angles of the picture are not true", cosine, numbers=numbers)
    text = f"axes at right angles (cosine {number(cosine, 1)}){share}" if widest else f"one axis{share}"
    return Judgement("holds", text, value=cosine, numbers=numbers)
