"""Checks 6, 7 and 14: the grid and the axes of a landscape.

Whether the grid is fine enough for what it shows, by leaving out every second point of it; whether other random
directions would give another picture; and what the axes are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from landscape.analysis.checks.check import CheckContext, cut_off, refuse_few_points
from landscape.analysis.checks.evaluations import ExtraEvaluations
from landscape.analysis.checks.evidence import Evidence, Judgement, NotJudged, number, percent
from landscape.core.errors import ClusterUnreachableError, Interrupted, LandscapeError
from landscape.core.grid import Floats
from landscape.job.directions.random import RandomDirection
from landscape.surface.refinement import spread
from landscape.surface.surface import NOT_COMPUTED, OK, Surface
from landscape.surface.topology import corner_steps, minimum_pairs, noise_threshold

# -- 6: resolution -------------------------------------------------------------------------------------------


FINE, COARSE = 0.04, 0.2  # of the relief: the grid's own error is then a quarter of it, 1 % and 5 %
ORDER_OF_LINEAR = 2  # the error of bilinear interpolation goes with h²: halving the step takes three quarters away
LEAST_ORDER = 1.0  # below it a finer grid is not approached as by a surface that is smooth at this scale
WORTH_AN_ORDER = 0.01  # of the relief: below it an order is that of rounding and of kinks
LEAST_POINTS = 5  # per axis: every second point left out leaves three
MOST_CELLS = 256**2  # of which minima are counted: more take seconds
PERCENTILE = 95


@dataclass(frozen=True)
class Resolution:
    """How well a grid with points left out predicts those.

    Attributes:
        half: the 95th percentile of |interpolated − there| over the relief, every second point left out.
        quarter: the same with every fourth kept; NaN where the grid is too small.
        minima: how many minima stand above the noise, of the whole grid and of every second point; None where the grid
            is too large to tell.
        size: points of every axis, the first one first.
        refined: whether `half` is what the levels of a refined landscape have added, and the others are not known.
    """

    half: float
    quarter: float
    minima: tuple[int, int] | None
    size: tuple[int, ...]
    refined: bool = False
    held: str = ""  # what a smaller range would cut off, such as 'the path'; '' for nothing


def check_resolution(context: CheckContext) -> Judgement:
    """How well the grid without every second point predicts those."""
    refuse_few_points(context)
    found = resolution_of(context.evidence)
    if found is None:
        raise NotJudged("the grid is flat, or has fewer than 5 points along an axis")
    return judge_resolution(replace(found, held=cut_off(context)))


def judge_resolution(grid: Resolution) -> Judgement:
    """6: e ≤ 4 % of the relief holds, beyond 20 % it does not; the order log₂(e₄/e₂) ≥ 1; the same minima on both."""
    own = grid.half / 2**ORDER_OF_LINEAR
    order = math.log2(grid.quarter / grid.half) if grid.half > 0 and grid.quarter > 0 else math.nan
    finer, better = _finer(grid.size), own / 2**ORDER_OF_LINEAR
    known = {"quarter": grid.quarter, "order": order, "minima": grid.minima and list(grid.minima)}
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
        return Judgement("fails", text, remedy, grid.half, numbers=known)
    if grid.half > WORTH_AN_ORDER and order < LEAST_ORDER:
        text = f"{text}; every fourth kept instead changes it by {percent(grid.quarter)}: finer structure than the grid"
        remedy = f"size: {finer}" + ("" if grid.held else ", or a smaller range")
        return Judgement("reservation", text, remedy, grid.half, numbers=known)
    if grid.half > FINE:
        return Judgement("reservation", text, remedy, grid.half, numbers=known)
    if grid.minima is not None and grid.minima[0] != grid.minima[1]:
        text = f"{text}; the grid shows {grid.minima[0]} minima above its noise, every second point {grid.minima[1]}"
        return Judgement("reservation", text, f"size: {finer} says which", grid.half, numbers=known)
    return Judgement("holds", text, value=grid.half, numbers=known)


def _finer(size: tuple[int, ...]) -> int | list[int]:
    """`size` in a job at half the step; one number where all axes have it."""
    sizes = [2 * points - 1 for points in size]
    return sizes[0] if len(set(sizes)) == 1 else sizes


def resolution_of(evidence: Evidence) -> Resolution | None:
    """How well the grid without every second point predicts that; None where it is too small or flat."""
    values, coordinates = evidence.values, [axis.coordinates for axis in reversed(evidence.surface.axes)]
    if min(values.shape) < LEAST_POINTS or not evidence.relief > 0:
        return None
    if evidence.surface.levels:
        return _resolution_of_levels(evidence.surface, _errors_left_out(values, coordinates, 2), evidence.relief)
    errors = [_left_out(values, coordinates, stride) / evidence.relief for stride in (2, 4)]
    if not math.isfinite(errors[0]):
        return None
    minima = None
    if values.size <= MOST_CELLS:
        least = noise_threshold(evidence.surface)
        grids = (values, values[tuple(slice(None, None, 2) for _ in values.shape)])
        whole, half = (sum(pair.persistence > least for pair in minimum_pairs(grid)) for grid in grids)
        minima = (whole, half)
    return Resolution(errors[0], errors[1], minima, values.shape[::-1])


def _left_out(values: Floats, coordinates: list[Floats], stride: int) -> float:
    """The 95th percentile of |interpolated − there| over the points left out; NaN where there are none."""
    errors = _errors_left_out(values, coordinates, stride)
    errors = errors[np.isfinite(errors)]
    return float(np.percentile(errors, PERCENTILE)) if errors.size else math.nan


def _errors_left_out(values: Floats, coordinates: list[Floats], stride: int) -> Floats:
    """|interpolated − there| of the points left out, over the grid; NaN of all others."""
    ends = [(size - 1) // stride * stride + 1 for size in values.shape]
    errors = np.full(values.shape, np.nan)
    if min(ends) < stride + 1:
        return errors
    part = values[tuple(slice(end) for end in ends)]
    predicted = part[tuple(slice(None, None, stride) for _ in ends)]
    for axis, end in enumerate(ends):
        predicted = _interpolated(predicted, coordinates[axis][:end], stride, axis)
    errors[tuple(slice(end) for end in ends)] = np.abs(predicted - part)
    errors[tuple(slice(None, None, stride) for _ in ends)] = np.nan
    return errors


def _resolution_of_levels(surface: Surface, base: Floats, relief: float) -> Resolution | None:
    """How far each level of a refined landscape was from what the ones above foretell, where no finer one is.

    Each point counts by the area that it stands for.

    Args:
        base: |interpolated − there| of the first level's points.
    """
    levels = [surface.at(number) for number in range(1, len(surface.levels) + 1)]
    merged, errors = np.where(surface.status == OK, surface.loss, np.nan), base
    found, areas = list[Floats](), list[Floats]()
    for level in levels:
        held, predicted = level.status != NOT_COMPUTED, spread(merged)
        values = np.where(level.status == OK, level.loss, np.nan)
        found.append(errors[~_beside(held)])
        merged, errors = np.where(held, values, predicted), np.where(held, np.abs(values - predicted), np.nan)
        areas.append(np.full(found[-1].shape, 2.0 ** -(held.ndim * len(areas))))
    found.append(errors.ravel())
    areas.append(np.full(found[-1].shape, 2.0 ** -(errors.ndim * len(areas))))
    whole, area = np.concatenate(found), np.concatenate(areas)
    known = np.isfinite(whole)
    if not known.any():
        return None
    order = np.argsort(whole[known])
    shares = np.cumsum(area[known][order]) / area[known].sum()
    error = float(whole[known][order][np.searchsorted(shares, PERCENTILE / 100)])
    return Resolution(error / relief, math.nan, None, surface.status.shape[::-1], refined=True)


def _beside(held: np.ndarray) -> np.ndarray:
    """Which points of a level have points of the next finer one beside them, or are at their places."""
    padded = np.pad(held, 1)
    around = [
        padded[tuple(slice(1 + step, 1 + step + size) for step, size in zip(steps, held.shape, strict=True))]
        for steps in [(0,) * held.ndim, *corner_steps(held.ndim)]
    ]
    return np.asarray(np.any(around, axis=0)[tuple(slice(None, None, 2) for _ in held.shape)])


def _interpolated(values: Floats, coordinates: Floats, stride: int, axis: int) -> Floats:
    """Values at every `stride`-th coordinate, interpolated linearly at all of them; NaN beside NaN."""
    last = len(range(0, len(coordinates), stride)) - 1
    places = np.arange(len(coordinates))
    left = np.minimum(places // stride, last - 1)
    start, end = coordinates[left * stride], coordinates[(left + 1) * stride]
    shape = [-1 if dimension == axis else 1 for dimension in range(values.ndim)]
    weight = ((coordinates - start) / (end - start)).reshape(shape)
    low, high = values.take(left, axis), values.take(left + 1, axis)
    # A weight of 0 must not meet the NaN of a point that it does not need.
    return np.where(weight == 0, low, np.where(weight == 1, high, (1 - weight) * low + weight * high))


LINES = 8
# Coefficients of variation. Where k directions of equal curvature make the rise, it varies by √(2/k): a tenth means 200
# of them, and 1 that two alone decide. Trained networks of 60,000 to 300,000 parameters have 0.2 to 0.5.
ALIKE, CHANCE = 0.1, 1.0
# Of t with 7 degrees of freedom, 99.5th percentile. Two axes in each of many landscapes: at the usual 95 % a tenth of
# all planes would count as unusual.
QUANTILE = 3.499
CLEARLY = 3.0  # standard errors: a smaller rise is not compared
SEEDS = range(1001, 1001 + LINES)  # the same for all networks, so that lines of two are paired
POINTS_OF_LINE = (-1.0, -0.75, -0.5, -0.25, 0.25, 0.5, 0.75, 1.0)  # of the range; the origin is known
HALF = (2, 5)  # the places of both sides at half the range
ORTHOGONAL = 0.1  # |cosine|: the angle is then within 6° of a right one
SHOWN = 2  # tensors by their names
NO_PART = (
    "does a layer compute with merged or cached weights (as LoRA's after eval()), or observe with another model? "
    "what is unused by design may stay so, and directions that leave it out say more"
)


# -- 7: other seeds ------------------------------------------------------------------------------------------


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


def check_other_seeds(context: CheckContext) -> Judgement:
    """How the loss rises along other random lines, and along the axes."""
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
    # Axes of another kind or scale are no draws of the same.
    alike = [name for name, each in drawn.items() if each.model_copy(update={"seed": spec.seed}) == spec]
    points = [[sign * reach / 2 if each == name else 0.0 for each in names] for name in alike for sign in (-1, 1)]
    own = extra.losses(extra.own, points).reshape(len(alike), 2).mean(axis=1) - context.origin_loss
    noise = float(np.median(errors[:, HALF]))
    along = dict(zip(alike, own.tolist(), strict=True))
    return judge_lines(OtherLines(rises, along, reach / 2, noise, places, losses))


def judge_lines(lines: OtherLines) -> Judgement:
    """7: CV of the rise at half the range ≤ 0.1 holds, beyond 1 it does not; own axes within mean ± t·s·√(1 + 1/K)."""
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
    known: dict[str, object] = {"mean": mean, "low": mean - reach, "high": mean + reach, "rises": rises.tolist()}
    known |= {"band": lines.band(), **lines.own}
    if variation > CHANCE:
        text = f"{text}: they vary by {percent(variation)}, so one or two directions decide what is seen"
        remedy = "show several planes, or landscape measure, which averages over lines"
        return Judgement("fails", text, remedy, variation, numbers=known)
    if unusual:
        text = f"{text}: an unusual plane ({' and '.join(unusual)})"
        return Judgement("reservation", text, "show another seed beside it", variation, numbers=known)
    if variation > ALIKE:
        text = f"{text}: they vary by {percent(variation)}"
        remedy = "compare heights with other networks by landscape measure only, which averages over lines"
        return Judgement("reservation", text, remedy, variation, numbers=known)
    return Judgement("holds", text, value=variation, numbers=known)


# -- 14: the axes --------------------------------------------------------------------------------------------


def check_axes(context: CheckContext) -> Judgement:
    """The angles of the axes, their scale, and what they move."""
    evidence = context.evidence
    kinds = {axis.name: axis.attributes for axis in evidence.surface.axes}
    unscaled = [
        name for name, each in kinds.items() if each.get("kind") == "random" and each.get("normalise") == "none"
    ]
    if not any(axis.record.kind for axis in evidence.surface.axes):
        raise NotJudged("what the axes are is not recorded")
    if len(kinds) > 1 and not evidence.cosines:
        raise NotJudged("the cosines of the axes are not recorded")
    return judge_axes(evidence.cosines, unscaled, _moved(context), *_unused(context))


def _moved(context: CheckContext) -> float | None:
    """The share of the model's parameters that some axis moves."""
    total = context.evidence.record.provenance.parameters
    if context.extra is None or not total:
        return None
    return min(1.0, sum(_moved_sizes(context.extra).values()) / total)


def _moved_sizes(extra: ExtraEvaluations) -> dict[str, int]:
    """How many numbers each tensor has that some axis moves."""
    sizes: dict[str, int] = {}
    for each in extra.landscape.directions:
        sizes |= {name: tensor.numel() for name, tensor in each.tensors.items() if bool((tensor != 0).any())}
    return sizes


def _unused(context: CheckContext) -> tuple[tuple[str, ...], int, int]:
    """The tensors that move and that the loss does not depend on, how many numbers they have, and all that move.

    Where the loss has no derivatives, it is not known that any takes no part.
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
    """14: |cosine| ≤ 0.1; random axes scaled to the weights, as only those are comparable.

    Args:
        cosines: of every pair of axes, by their names.
        unscaled: the random axes that are not scaled to the weights.
        moved: the share of the parameters that move; None where it is not known.
        unused: the tensors that move and take no part in the loss.
        unused_size, moved_size: how many numbers these have, and all that move.
    """
    widest = max(cosines, key=lambda pair: abs(cosines[pair]), default="")
    cosine = cosines.get(widest, math.nan)
    share = "" if moved is None else f"; {percent(moved)} of the parameters move"
    known = {"moved": math.nan if moved is None else moved, **cosines}
    if unused:
        more = len(unused) - SHOWN
        names = f"{', '.join(unused[:SHOWN])} and {more} more" if more > 0 else " and ".join(unused)
        text = (
            f"{names} {'takes' if len(unused) == 1 else 'take'} no part in the loss of the samples: "
            f"{unused_size:,} of the {moved_size:,} numbers that move{share}"
        )
        return Judgement("reservation", text, NO_PART, cosine, numbers=known)
    if unscaled:
        names = " and ".join(unscaled)
        text = f"{names} not scaled to the weights: heights depend on the size of the weights{share}"
        remedy = "normalise: filter is comparable between networks"
        return Judgement("reservation", text, remedy, cosine, numbers=known)
    if abs(cosine) > ORTHOGONAL:
        text = f"the axes are not at right angles: cosine {number(cosine, 2)} of {widest}{share}"
        return Judgement("reservation", text, "lengths and angles of the picture are not true", cosine, numbers=known)
    text = f"axes at right angles (cosine {number(cosine, 1)}){share}" if widest else f"one axis{share}"
    return Judgement("holds", text, value=cosine, numbers=known)
