"""Check 6: whether the grid is fine enough for what it shows, by leaving out every second point of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from landscape.analysis.checks.check import CheckContext, cut_off, refuse_few_points
from landscape.analysis.checks.evidence import Evidence
from landscape.analysis.checks.judgement import Judgement, NotJudged, percent
from landscape.core.grid import Floats
from landscape.surface.refinement import spread
from landscape.surface.surface import NOT_COMPUTED, OK, Surface
from landscape.surface.topology import corner_steps, minimum_pairs, noise_threshold

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
