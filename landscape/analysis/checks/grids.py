"""Numbers of the grid that the checks judge: how well it predicts its own points, its centre, and what it holds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from landscape.analysis.checks.curvature import OfGrid
from landscape.analysis.checks.evidence import Evidence
from landscape.analysis.checks.resolution import Resolution
from landscape.core.grid import Floats
from landscape.surface.refinement import spread
from landscape.surface.surface import NOT_COMPUTED, OK, Surface
from landscape.surface.topology import corner_steps, minimum_pairs, noise_threshold

LEAST_POINTS = 5  # per axis: every second point left out leaves three
MOST_CELLS = 256**2  # of which minima are counted: more take seconds
PERCENTILE = 95


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


@dataclass(frozen=True, eq=False)
class Way:
    """The straight way between two networks that the axes of a landscape run through.

    Attributes:
        start, end: places on the axes.
    """

    name: str
    start: Floats
    end: Floats

    def at(self, share: float) -> Floats:
        """The place at that share of the way."""
        return (1 - share) * self.start + share * self.end


def ways_between(surface: Surface) -> list[Way]:
    """The ways between the networks of a landscape: from the origin along `towards` axes, the sides of a plane."""
    origin, sides = np.zeros(len(surface.axes)), list[tuple[str, Floats, Floats]]()
    for k, axis in enumerate(surface.axes):
        if axis.record.kind == "towards":
            far = axis.record.label.removeprefix("towards ").removesuffix(" (at 1)")
            sides.append((f"the origin and {far}", origin, np.eye(len(surface.axes))[k]))
    known = [axis.record.networks for axis in surface.axes]
    if known and all(known):
        names = [network.name for network in known[0] or ()]
        corners = np.array([[network.at for network in of_axis or ()] for of_axis in known]).T
        sides += [(f"{names[i]} and {names[j]}", corners[i], corners[j]) for i, j in combinations(range(len(names)), 2)]
    return [Way(name, start, end) for name, start, end in sides]


def highest_share(surface: Surface, way: Way, losses: tuple[float, float]) -> float | None:
    """Where on the way of a line its highest known point lies, above the straight line between the losses of the ends.

    None of a plane, whose points need not lie on the way, and of a line without a finite point between.

    Args:
        losses: of both ends, which need not be points of the grid.
    """
    if len(surface.axes) != 1:
        return None
    shares = (surface.alpha - way.start[0]) / (way.end[0] - way.start[0])
    known = (shares > 0) & (shares < 1) & (surface.status == OK) & np.isfinite(surface.loss)
    above = np.where(known, surface.loss - (1 - shares) * losses[0] - shares * losses[1], -np.inf)
    return float(shares[np.argmax(above)]) if known.any() else None


@dataclass(frozen=True)
class Held:
    """What a landscape is drawn to show, and a smaller range would cut off.

    Attributes:
        name: such as 'the path'; '' where there is nothing but the surroundings of the origin.
        reach: how far from the origin it lies, along an axis.
    """

    name: str = ""
    reach: float = 0.0


def held_by(surface: Surface) -> Held:
    """The paths of a landscape and the networks that its axes run through, whichever reaches further."""
    ends = [end for way in ways_between(surface) for end in (way.start, way.end)]
    paths = [places for path in surface.paths for places in path.coordinates.values() if len(places)]
    found = [Held("the other network" if len(ends) == 2 else "the networks", float(np.abs(ends).max()))] if ends else []
    if paths:
        reach = max(float(np.nanmax(np.abs(places), initial=0.0)) for places in paths)
        found.append(Held("the path" if len(surface.paths) == 1 else "the paths", reach))
    return max(found, key=lambda each: each.reach, default=Held())
