"""Interpolation over a grid of which few points are known, its error by place, and the cells to refine next.

The points lie on dyadic levels: level 0 is known everywhere, and each level halves the steps where that was worth it.
Between known points, values are interpolated by polynomials of degree 5 along each axis; a point's *surplus* is what
its value adds to the interpolation from the coarser levels, and tells how far the interpolation is off beside it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from landscape.core.grid import Floats, Index
from landscape.surface.nested_samples import Coefficients
from landscape.surface.refinement import Mask, finer_shape, interpolated_from

STENCIL = 6  # points of the interpolating polynomial along an axis, fewer where the axis has fewer
# How the surplus of the next level compares with those of this level around it: 1/16 or less for a smooth loss, 1/4 to
# 1/2 for one with kinks. As long as it is not measured, it is assumed to be the first, or that of the level above.
FIRST_DECAY, LEAST_DECAY, MOST_DECAY = 0.2, 1 / 64, 0.5
SURPRISE = 3.0  # standard errors by which a surplus must exceed its noise to count for more than was expected
CLEARLY = 4.0  # standard deviations by which the mean square of several surpluses must exceed that of their noise
LEAST_WEIGHT = 1e-12  # of a coefficient; below, it is rounding
MEASURED_POINTS = 16  # from which a level's decay is measured

Places = NDArray[np.int64]


@dataclass(frozen=True)
class Levels:
    """The grids of all levels.

    Attributes:
        base: points of level 0 per dimension.
        finest: the number of the last level.
    """

    base: Index
    finest: int

    def shape(self, level: int) -> Index:
        """Points of a level per dimension."""
        return finer_shape(self.base, 2**level)

    def stride(self, level: int) -> int:
        """Steps of the finest level in one step of this one."""
        return int(2 ** (self.finest - level))

    def places(self, level: int) -> Places:
        """All points of a level, as indices [points, dimensions] of the finest level, in C order."""
        shape = self.shape(level)
        return np.indices(shape).reshape(len(shape), -1).T.astype(np.int64) * self.stride(level)

    def level_of(self, places: Places) -> NDArray[np.int64]:
        """The coarsest level that has each of these points.

        >>> Levels((3, 3), 2).level_of(np.array([[0, 8], [2, 4], [1, 0]])).tolist()
        [0, 1, 2]
        """
        levels = np.full(len(places), self.finest)
        for level in reversed(range(self.finest)):
            levels[(places % self.stride(level) == 0).all(axis=1)] = level
        return levels


@lru_cache(maxsize=32)
def halving_matrix(points: int, stencil: int = STENCIL) -> Floats:
    """The matrix [2n − 1, n] that interpolates n equidistant values at these points and midway between them.

    Midway it evaluates the polynomial through the `stencil` nearest values.

    >>> halving_matrix(3, 2).tolist()
    [[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.0, 1.0, 0.0], [0.0, 0.5, 0.5], [0.0, 0.0, 1.0]]
    """
    matrix, width = np.zeros((2 * points - 1, points)), min(stencil, points)
    matrix[::2] = np.eye(points)
    for left in range(points - 1):
        first = min(max(left - width // 2 + 1, 0), points - width)
        nodes = np.arange(first, first + width)
        for node in nodes:
            others = nodes[nodes != node]
            matrix[2 * left + 1, node] = np.prod((left + 0.5 - others) / (node - others))
    matrix.setflags(write=False)
    return matrix


def halve_steps(values: Floats, dimensions: int) -> Floats:
    """Values on the grid of half the steps, interpolated along the first `dimensions` dimensions one after another.

    Where a value of the stencil is not finite, the two neighbours alone decide; a point beside such a value is NaN.
    """
    for dimension in range(dimensions):
        values = np.moveaxis(_halve_along_first(np.moveaxis(values, dimension, 0)), 0, dimension)
    return values


def _halve_along_first(values: Floats) -> Floats:
    smooth, flat = halving_matrix(len(values)), values.reshape(len(values), -1)
    known = np.isfinite(flat)
    if known.all():
        return np.asarray((smooth @ flat).reshape(len(smooth), *values.shape[1:]))
    linear, filled, unknown = halving_matrix(len(values), 2), np.where(known, flat, 0.0), (~known).astype(float)
    finer = np.where((smooth != 0) @ unknown > 0, linear @ filled, smooth @ filled)
    finer[(linear != 0) @ unknown > 0] = np.nan
    finer[::2] = flat
    return finer.reshape(len(smooth), *values.shape[1:])


@dataclass(frozen=True)
class Interpolation:
    """A field on the finest grid, interpolated between known points, and its errors.

    Attributes:
        values: over the finest grid.
        errors: draws of the errors of the known points, interpolated likewise; in a last dimension.
        error: over the finest grid, the root mean square of what interpolation itself is off in the cell around each
            point; 0 at known points.
        open: of each level the same for its cells; 0 for cells that are refined, or lie in an unrefined one.
        edges: of each level the cells that are not refined, of which some corners are finite and some are not.
        weight: of every known point, the share of its surplus that counts.
    """

    values: Floats
    errors: Floats
    error: Floats
    open: Sequence[Floats]
    edges: Sequence[Mask]
    weight: Floats


def interpolate(
    levels: Levels, places: Places, values: Floats, errors: Floats | None = None, inflation: Floats | None = None
) -> Interpolation:
    """Interpolate between known points; those of level 0 must be among them.

    Before a point is evaluated, its surplus is expected to be about e, as the surpluses around it one level above and
    the decay from level to level say. Evaluated as s with the standard error σ, it counts by the share w = τ²/(τ² + σ²)
    with τ² = max(e², s² − 9σ²), and its error is √w σ: what is but noise of few samples does not show.

    Args:
        places: the known points, as indices [points, dimensions] of the finest grid.
        values: of these points; NaN where it is not finite.
        errors: [points, draws]; default: none.
        inflation: of each point, how many times as large as that of its errors its variance σ² may be; default: once.
    """
    dimensions = places.shape[1]
    errors = np.zeros((len(values), 1)) if errors is None else errors
    inflation = np.ones(len(values)) if inflation is None else inflation
    of_level, known = levels.level_of(places), known_mask(levels, places)
    weight = np.ones(len(values))
    base = tuple(places[of_level == 0].T // levels.stride(0))
    filled, drawn = np.full(levels.shape(0), np.nan), np.zeros((*levels.shape(0), errors.shape[1]))
    filled[base], drawn[base] = values[of_level == 0], errors[of_level == 0]
    at_base = filled - _from_every_second(filled, dimensions)
    noise = np.square(drawn - _from_every_second(drawn, dimensions)).mean(axis=-1)
    noise[base] *= inflation[of_level == 0]
    around = _typical_around(at_base, noise, np.isfinite(at_base), None)
    decay, opened, edges, is_open = FIRST_DECAY, list[Floats](), list[Mask](), np.ones(around.shape, np.bool_)
    for level in range(1, levels.finest + 1):
        shape, window = levels.shape(level), (slice(None, None, levels.stride(level)),) * dimensions
        edge = _at_edges(filled)
        filled, drawn = halve_steps(filled, dimensions), halve_steps(drawn, dimensions)
        own = np.flatnonzero(of_level == level)
        here = tuple(places[own].T // levels.stride(level))
        added, off = values[own] - filled[here], errors[own] - drawn[here]
        variance = np.square(off).mean(axis=-1) * inflation[own]
        scale = _at_points(_to_children(np.where(is_open, around, 0.0)))[here]
        decay = _measured_decay(added, variance, scale, decay)
        expected = decay * around
        refined = _refined(known[window]) & is_open
        opened.append(np.where(is_open & ~refined, expected, 0.0))
        edges.append(edge & is_open & ~refined)
        prior = np.maximum(np.square(decay * scale), np.nan_to_num(np.square(added)) - SURPRISE**2 * variance)
        share = np.where(variance > 0, prior / np.maximum(prior + variance, 1e-300), 1.0)
        # Where the interpolation has no value, the point's own is all there is.
        share = np.where(np.isfinite(filled[here]), share, 1.0)
        weight[own] = share
        filled[here] = np.where(share == 1.0, values[own], filled[here] + share * added)
        drawn[here] += np.sqrt(share)[:, None] * off
        surplus, noise, has = np.zeros(shape), np.zeros(shape), np.zeros(shape, np.bool_)
        surplus[here], noise[here], has[here] = added, variance, np.isfinite(added)
        above = _to_children(np.where(is_open, expected, around))  # cells that are closed keep theirs
        is_open = _to_children(refined)
        around = np.where(is_open, _typical_around(surplus, noise, has, above), above)
    opened.append(np.where(is_open, decay * around, 0.0))
    edges.append(_at_edges(filled) & is_open)
    error = _over_points(np.where(is_open, decay * around, around))
    return Interpolation(filled, drawn, np.where(known, 0.0, error), opened, edges, weight)


def _typical_around(surplus: Floats, variance: Floats, has: Mask, expected: Floats | None) -> Floats:
    """For every cell the root mean square of the surpluses of the points on it and its neighbours, without their noise.

    Where that is hidden in the noise, it is what was expected, if the noise can hide so much.

    Args:
        has: which points have a surplus of this level.
        expected: for the cells; None for none.
    """
    squares = np.where(has, np.square(np.nan_to_num(surplus, posinf=0.0, neginf=0.0)), 0.0)
    noise = np.where(has, np.nan_to_num(variance), 0.0)
    total, quiet, uncertain, count = (
        _sums_around(part) for part in (squares, noise, 2.0 * np.square(noise), has.astype(np.float64))
    )
    count = np.maximum(count, 1e-300)
    # The sums weigh points by the cells that they are part of; their uncertainty is about that of as many equal ones.
    hidden = CLEARLY * np.sqrt(uncertain * float(4**surplus.ndim)) / count
    signal = np.maximum(0.0, total - quiet) / count
    found = np.sqrt(np.where(signal > hidden, signal, 0.0))
    return found if expected is None else np.maximum(found, np.minimum(expected, np.sqrt(signal + hidden)))


def _sums_around(points: Floats) -> Floats:
    """For every cell the sum over its corners and those of the cells around it, a corner once for each of its cells."""
    cells = _over_cells(points, np.add)
    for dimension in range(cells.ndim):
        along = np.moveaxis(cells, dimension, 0)
        added = along.copy()
        added[1:] += along[:-1]
        added[:-1] += along[1:]
        cells = np.moveaxis(added, 0, dimension)
    return np.asarray(cells)


def _at_points(cells: Floats) -> Floats:
    """The largest value of the cells around every point."""
    for dimension in range(cells.ndim):
        along = np.moveaxis(cells, dimension, 0)
        inner = np.maximum(along[:-1], along[1:])
        cells = np.moveaxis(np.concatenate([along[:1], inner, along[-1:]]), 0, dimension)
    return cells


def _measured_decay(added: Floats, variance: Floats, scale: Floats, above: float) -> float:
    """The decay of a level from its surpluses, their noise taken off; that of the level above if they are few."""
    usable = np.isfinite(added) & (scale > 0)
    if usable.sum() < MEASURED_POINTS:
        return above
    added, variance, scale = added[usable], variance[usable], scale[usable]
    # What the noise hides may be as large as its own uncertainty; as much as that, the level above knows better.
    hidden = CLEARLY * math.sqrt(2.0 * float(np.square(variance).sum()))
    signal = max(0.0, float((np.square(added) - variance).sum()))
    decay = math.sqrt((signal + hidden) / float(np.square(scale).sum()))
    return float(np.clip(decay if signal > hidden else min(decay, above), LEAST_DECAY, MOST_DECAY))


def from_base(levels: Levels, places: Places) -> Coefficients:
    """The coefficients by which the interpolation predicts points from level 0 alone, whose points come first."""
    weights = np.ones((len(places), 1))
    for dimension, size in enumerate(levels.base):
        along = np.eye(size)
        for level in range(levels.finest):
            along = halving_matrix(levels.shape(level)[dimension]) @ along
        rows = along[places[:, dimension]]
        weights = (weights[:, :, None] * rows[:, None, :]).reshape(len(places), -1)
    weights[np.abs(weights) < LEAST_WEIGHT] = 0.0
    weights[levels.level_of(places) == 0] = 0.0
    return Coefficients(np.broadcast_to(np.arange(weights.shape[1]), weights.shape), weights)


def from_coarser(levels: Levels, places: Places) -> Coefficients:
    """The coefficients by which each point is predicted from the known points of coarser levels."""
    of_level = levels.level_of(places).tolist()
    number = {tuple(place): point for point, place in enumerate(places.tolist())}
    rows: dict[tuple[int, tuple[int, ...]], dict[int, float]] = {}

    def row(level: int, place: tuple[int, ...]) -> dict[int, float]:
        """The coefficients of a place of a level: of itself if it is known by then, else of its stencil."""
        known = number.get(place)
        if known is not None and of_level[known] <= level:
            return {known: 1.0}
        if (level, place) not in rows:
            rows[level, place] = predicted(level, place)
        return rows[level, place]

    def predicted(level: int, place: tuple[int, ...]) -> dict[int, float]:
        stride, total = levels.stride(level), dict[int, float]()
        along = [_stencil(size, at // stride) for size, at in zip(levels.shape(level - 1), place, strict=True)]
        for nodes in itertools.product(*along):
            weight = math.prod(coefficient for _, coefficient in nodes)
            for point, part in row(level - 1, tuple(2 * stride * node for node, _ in nodes)).items():
                total[point] = total.get(point, 0.0) + weight * part
        return total

    found = [predicted(level, place) if level else {} for level, place in zip(of_level, number, strict=True)]
    kept = [[(point, part) for point, part in row.items() if abs(part) >= LEAST_WEIGHT] for row in found]
    shape = (len(places), max((len(row) for row in kept), default=0))
    points, weights = np.zeros(shape, np.int64), np.zeros(shape)
    for place, row_ in enumerate(kept):
        if row_:
            points[place, : len(row_)], weights[place, : len(row_)] = zip(*row_, strict=True)
    return Coefficients(points, weights)


@lru_cache(maxsize=4096)
def _stencil(points: int, finer: int) -> tuple[tuple[int, float], ...]:
    """The nodes of a row of `halving_matrix`, each with its coefficient."""
    row = halving_matrix(points)[finer]
    return tuple((node, float(row[node])) for node in np.flatnonzero(row).tolist())


def known_mask(levels: Levels, places: Places) -> Mask:
    """The mask of these points over the finest grid."""
    mask = np.zeros(levels.shape(levels.finest), np.bool_)
    mask[tuple(places.T)] = True
    return mask


def levels_above(levels: Levels, places: Places) -> NDArray[np.uint8]:
    """How many levels above the finest one the cell is in which a point is interpolated; 0 at known points."""
    known, held = known_mask(levels, places), []
    for level in range(levels.finest + 1):
        window = (slice(None, None, levels.stride(level)),) * places.shape[1]
        mask = np.array(known[window])
        if level:
            mask[(slice(None, None, 2),) * mask.ndim] = False
        held.append(mask)
    return interpolated_from(held)


def _from_every_second(values: Floats, dimensions: int) -> Floats:
    """Every point interpolated from every second one along each axis; NaN at these, and beyond the last of them."""
    odd = tuple(slice(0, size - (size + 1) % 2) for size in values.shape[:dimensions])
    coarse = values[odd][(slice(None, None, 2),) * dimensions]
    predicted = np.full(values.shape, np.nan)
    if min(coarse.shape[:dimensions]) > 1:
        predicted[odd] = halve_steps(coarse, dimensions)
        predicted[(slice(None, None, 2),) * dimensions] = np.nan
    return predicted


# ----------------------------------------------------------------------------------------------------
# Cells and points.


def points_in_cells(levels: Levels, cells: Sequence[Mask], places: Places) -> Places:
    """The points of the next levels in these cells and on their sides that are not among `places`, in C order.

    Args:
        cells: of each level, those to refine.
    """
    wanted = np.zeros(levels.shape(levels.finest), np.bool_)
    dimensions = wanted.ndim
    for level, mask in enumerate(cells[: levels.finest]):
        if mask.any():
            finer = np.zeros(levels.shape(level + 1), np.bool_)
            for corner in np.indices((3,) * dimensions).reshape(dimensions, -1).T:
                window = tuple(
                    slice(start, start + 2 * size - 1, 2) for start, size in zip(corner, mask.shape, strict=True)
                )
                finer[window] |= mask
            wanted[(slice(None, None, levels.stride(level + 1)),) * dimensions] |= finer
    wanted[tuple(places.T)] = False
    return np.argwhere(wanted).astype(np.int64)


def _at_edges(points: Floats) -> Mask:
    """Which cells have corners that are finite and corners that are not."""
    finite = np.isfinite(points)
    return np.asarray(_over_cells(finite, np.logical_or) & ~_over_cells(finite, np.logical_and), np.bool_)


def _over_cells(points: Any, join: np.ufunc) -> Any:
    """The join of the values at the corners of every cell."""
    values = points
    for dimension in range(points.ndim):
        along = np.moveaxis(values, dimension, 0)
        values = np.moveaxis(join(along[:-1], along[1:]), 0, dimension)
    return values


def _over_points(cells: Floats) -> Floats:
    """The mean of the values of the cells around every point."""
    for dimension in range(cells.ndim):
        along = np.moveaxis(cells, dimension, 0)
        inner = 0.5 * (along[:-1] + along[1:])
        cells = np.moveaxis(np.concatenate([along[:1], inner, along[-1:]]), 0, dimension)
    return cells


def _refined(known: Mask) -> Mask:
    """Which cells of the level above have all points of this level in them and on their sides."""
    whole = _over_cells(known, np.logical_and)
    for dimension in range(known.ndim):
        along = np.moveaxis(whole, dimension, 0)
        whole = np.moveaxis(along[::2] & along[1::2], 0, dimension)
    return np.asarray(whole, np.bool_)


def _to_children(cells: Any) -> Any:
    """The values of cells, at the cells of half the steps in them."""
    for dimension in range(cells.ndim):
        cells = np.repeat(cells, 2, axis=dimension)
    return cells
