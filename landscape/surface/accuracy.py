"""How true a picture is, and which points and samples would make it truer for the least evaluations.

The picture is that of the rise over the origin, interpolated between evaluated points, of which most know few samples
only. Its error has two parts: that of the samples, drawn with the covariance that common samples give to all points,
and that of interpolation, judged by what finer points have added so far. Both, and so the order of the rounds, follow
from the known values alone: not from the accuracy that is asked for, which only says after which round to stop.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from landscape.core.grid import Floats, Index
from landscape.surface.adaptive_grid import (
    Interpolation,
    Levels,
    Places,
    from_base,
    from_coarser,
    interpolate,
    points_in_cells,
)
from landscape.surface.nested_samples import (
    Coefficients,
    Known,
    Means,
    Shares,
    estimate_means,
    pilot_covariance,
    shares_of,
)
from landscape.surface.refinement import Mask

BASE = {1: 11, 2: 5, 3: 5}  # points per axis of level 0, by the number of axes
FINEST = {1: 6, 2: 5, 3: 3}  # the last level
# The level that is evaluated everywhere once the picture is fine: in a plane, canyons of a sixteenth of the range are
# seen wherever they lie. On a line and in a volume it is that of the first pass.
SCANNED = {1: 1, 2: 2, 3: 1}
# Samples of level 0 in the first pass, of a finer point at first, in that pass too, and of further blocks, at least.
PILOT, FIRST, STEP_OF_SAMPLES = 256, 32, 64
# The share of the area in cells at the edge of what is not finite, which have no picture: above, they are refined.
EDGES = 0.02
SCAN_AT = 0.04  # of the relief: the error below which that level is evaluated
INSIDE = 95  # per cent of the area on which the error is at most the stated one
SURE = 95  # per cent of the draws of errors in which it is
TYPICAL = 0.6  # of the largest error in a cell: that of most of its area
SEEN = 1.2  # the same times two standard deviations: what 95 per cent of errors of interpolation do not exceed
STEP = 2**-0.2  # by which a round lowers the error
# The part of interpolation in the error of a round's picture, as tried.
SPLITS = (0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
NEAREST = 12  # points of level 0 by which a finer one is corrected


def levels_of(axes: int) -> Levels:
    """The levels of a landscape with so many axes."""
    return Levels((BASE[axes],) * axes, FINEST[axes])


FINEST_POINTS = {axes: levels_of(axes).shape(FINEST[axes])[0] for axes in BASE}  # per axis, of the last level


@dataclass(frozen=True)
class KnownValues:
    """All values that are known.

    Attributes:
        levels: of the grid.
        places: [points, dimensions], indices of the finest grid; those of level 0 come first, in C order.
        terms: the known rises at these points, of the loss or of each of its terms.
        ends: the samples up to the end of each block.
        log_of: the loss at the origin if errors are those of log10 of the loss; else None.
    """

    levels: Levels
    places: Places
    terms: Sequence[Known]
    ends: NDArray[np.int64]
    log_of: float | None = None

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """How many samples each point knows; 0 where a rise is not finite, or first samples were given up."""
        finite = np.ones(len(self.places), np.bool_)
        for term in self.terms:
            finite &= [bool(np.isfinite(rises).all()) for rises in term.rises]
        longest = max(self.terms, key=lambda term: term.population)
        counts = np.array([len(rises) for rises in longest.rises])
        least = np.where(np.arange(len(counts)) < self.base, self.pilot, self.first_samples)
        return np.where(finite & (counts >= least), counts, 0)

    @cached_property
    def between(self) -> tuple[Coefficients, Coefficients]:
        """The coefficients of interpolation, from all coarser points and from those of level 0 alone."""
        return from_coarser(self.levels, self.places), from_base(self.levels, self.places)

    @cached_property
    def base_shares(self) -> Shares:
        """The shares of the points of level 0, from the first pass alone; points that are not finite, or no longer,
        come last.
        """
        return _base_shares(self)

    @property
    def population(self) -> int:
        """How many samples there are."""
        return int(self.ends[-1])

    @property
    def base(self) -> int:
        """How many points level 0 has."""
        return int(np.prod(self.levels.base))

    @property
    def pilot(self) -> int:
        """Samples of level 0 in the first pass, from which shares follow."""
        return int(self.ends[blocks_with(PILOT, self.ends) - 1])

    @property
    def first_samples(self) -> int:
        """Samples that a finer point is evaluated on first, in the first pass too."""
        return int(self.ends[blocks_with(FIRST, self.ends) - 1])

    def first(self, counts: NDArray[np.int64]) -> list[Known]:
        """The first of the known samples of every point, as many as `counts` says at most."""
        return [
            replace(term, rises=[rises[:count] for rises, count in zip(term.rises, counts.tolist(), strict=True)])
            for term in self.terms
        ]


@dataclass(frozen=True)
class Picture:
    """The picture of the known values, and its errors.

    Attributes:
        known: the values that it is made from.
        rise, stderr, interpolation: over the finest grid: the rise, its standard error from the samples, and the
            expected largest error of interpolation; NaN where a point beside is not finite.
        relief: P95 − P5 of the rise after the first pass, or of log10 of the loss, where the loss is still finite.
        error: the error that 95 per cent of the area do not exceed, at 95 per cent confidence, in units of `relief`'s.
        sampling, between: its two parts, each alone.
        means: of the rise at every known point.
        found: their interpolation.
        cells: of each level, the error of interpolation in its cells that are not refined, in units of `error`.
        preference: by which points each known point is corrected.
    """

    known: KnownValues
    rise: Floats
    stderr: Floats
    interpolation: Floats
    relief: float
    error: float
    sampling: float
    between: float
    means: Means
    found: Interpolation
    cells: Sequence[Floats]
    preference: NDArray[np.int64]

    @cached_property
    def wide_edges(self) -> Sequence[Mask]:
        """Of each level the cells at the edge of what is not finite, if they are to be refined; else none."""
        edges, levels = self.found.edges, self.known.levels
        wide = sum(float(edge.mean()) for edge in edges) > EDGES
        return edges[: levels.finest] if wide and any(edge.any() for edge in edges[: levels.finest]) else ()


@dataclass(frozen=True)
class NextRound:
    """What a round evaluates: for every item a place, and the block of samples."""

    places: Places
    blocks: NDArray[np.int64]


def blocks_with(samples: int, ends: NDArray[np.int64]) -> int:
    """How many of the first blocks have so many samples together; all, if there are fewer.

    >>> blocks_with(256, np.array([64, 256, 512])), blocks_with(64, np.array([20, 40, 50]))
    (2, 3)
    """
    return min(int(np.searchsorted(ends, samples)) + 1, len(ends))


def first_round(levels: Levels, ends: NDArray[np.int64]) -> NextRound:
    """The first pass: all points of level 0 on as many blocks as a pilot needs, and those of level 1 on the first."""
    places, finer, blocks = levels.places(0), levels.places(1), blocks_with(PILOT, ends)
    finer, first = finer[levels.level_of(finer) == 1], blocks_with(FIRST, ends)
    return NextRound(
        np.concatenate([np.repeat(places, blocks, axis=0), np.repeat(finer, first, axis=0)]),
        np.concatenate([np.tile(np.arange(blocks), len(places)), np.tile(np.arange(first), len(finer))]),
    )


def first_pass(axes: int, ends: NDArray[np.int64]) -> int:
    """The evaluations of the first pass over blocks that end so."""
    return evaluations_of(first_round(levels_of(axes), ends), ends)


def judge(known: KnownValues) -> Picture:
    """The picture of the known values, and how true it is."""
    levels = known.levels
    preference = _preference(known)
    means = _estimate(known, known.counts, preference)
    found = interpolate(levels, known.places, means.mean, means.errors, means.inflation)
    slope = _slope_of_log(known, found.values)
    # In units of the error: of cells by the slope at their first corner.
    cells = [level * _slope_of_log(known, _in_cells(found.values, level.shape)) for level in found.open]
    shown = np.isfinite(found.values)
    parts = means.own * found.weight * _areas(known)
    inflation = math.sqrt(float(parts @ means.inflation) / float(parts.sum())) if parts.any() else 1.0
    sampled = inflation * found.errors * slope[..., None]
    between = TYPICAL * (found.error * slope)[..., None] * _signs_of_cells(levels, sampled.shape[-1])
    relief = _relief(known, preference)

    def stated(fields: Floats) -> float:
        if np.count_nonzero(known.counts) < 2:
            return math.inf
        off = np.ascontiguousarray(np.abs(fields[shown], dtype=np.float32).T)  # rows of one draw, half as wide: quicker
        rank = math.ceil(INSIDE / 100 * (off.shape[1] - 1))
        inside = np.partition(off, rank, axis=1)[:, rank]
        return float(np.percentile(inside, SURE))

    return Picture(
        known, found.values, np.where(shown, np.sqrt(np.square(found.errors).mean(axis=-1)), np.nan),
        np.where(shown, found.error, np.nan), relief, stated(sampled + between), stated(sampled), stated(between),
        means, found, cells, preference,
    )  # fmt: skip


def _areas(known: KnownValues) -> Floats:
    """The share of the area that each point stands for, as if all of its level were known."""
    return np.asarray(2.0 ** (-known.places.shape[1] * known.levels.level_of(known.places)) / known.base)


def _in_cells(values: Floats, cells: Index) -> Floats:
    """The value at the first corner of every cell of a level."""
    strides = [(size - 1) // count for size, count in zip(values.shape, cells, strict=True)]
    return values[tuple(slice(0, count * stride, stride) for count, stride in zip(cells, strides, strict=True))]


def _signs_of_cells(levels: Levels, draws: int) -> Floats:
    """Random signs and sizes of the errors of interpolation over the finest grid, each step of level 0 by itself."""
    normal = np.random.Generator(np.random.PCG64(20261128)).standard_normal((*(levels.base), draws))
    for dimension, size in enumerate(levels.shape(levels.finest)):
        nearest = np.rint(np.arange(size) / levels.stride(0)).astype(np.int64)
        normal = np.take(normal, nearest, axis=dimension)
    return normal


def next_round(picture: Picture) -> NextRound:
    """The items that lower the error by a step for the fewest evaluations; empty if all is known as finely as can be.

    The step is shared between samples and interpolation in the way that costs least.
    """
    known, counts = picture.known, picture.known.counts
    if not math.isfinite(picture.error):  # less than two values are finite
        return NextRound(known.places[:0], np.empty(0, np.int64))
    shares = _shares(picture)
    wanted = STEP * picture.error
    while wanted > 1e-12 * max(picture.relief, 1e-300):
        best = min((_plan(picture, shares, wanted, split) for split in SPLITS), key=lambda plan: plan.cost)
        new = best.places
        if wanted < SCAN_AT * picture.relief:
            scanned = known.levels.places(SCANNED[known.places.shape[1]])
            new = _united(known.levels, new, scanned, known.places)
        if len(new) or (best.counts > counts).any():
            return _items(known, best.counts, new)
        wanted *= STEP
    # Without an error, only edges of what is not finite may be left.
    return _items(known, counts, points_in_cells(known.levels, picture.wide_edges, known.places))


@dataclass(frozen=True)
class _Plan:
    cost: int
    counts: NDArray[np.int64]
    places: Places


def _plan(picture: Picture, shares: _AllShares, wanted: float, split: float) -> _Plan:
    """What brings interpolation to `split` of the wanted error, and sampling to what that leaves of its square."""
    known, before = picture.known, picture.known.counts
    cells = [SEEN * level > split * wanted for level in picture.cells]
    for level, edge in enumerate(picture.wide_edges):
        cells[level] = cells[level] | edge
    places = points_in_cells(known.levels, cells, known.places)
    counts = (
        shares.counts_for(math.sqrt(1.0 - split**2) * wanted / picture.sampling) if picture.sampling > 0 else before
    )
    return _Plan(int((counts - before).sum()) + shares.of_new_point(counts) * len(places), counts, places)


def _items(known: KnownValues, counts: NDArray[np.int64], places: Places) -> NextRound:
    """The blocks that known points lack, point by point, then the first block of new ones."""
    have = np.searchsorted(known.ends, known.counts, side="right")
    want = np.searchsorted(known.ends, counts, side="right")
    numbers = [np.arange(first, end) for first, end in zip(have, want, strict=True)]
    repeated, first = np.repeat(known.places, [len(part) for part in numbers], axis=0), blocks_with(FIRST, known.ends)
    blocks = np.concatenate([*numbers, np.tile(np.arange(first), len(places))]).astype(np.int64)
    return NextRound(np.concatenate([repeated, np.repeat(places, first, axis=0)]), blocks)


def _united(levels: Levels, new: Places, more: Places, known: Places) -> Places:
    """The places of both that are not known, in C order."""
    wanted = np.zeros(levels.shape(levels.finest), np.bool_)
    for places in (new, more):
        wanted[tuple(places.T)] = True
    wanted[tuple(known.T)] = False
    return np.argwhere(wanted).astype(np.int64)


# ----------------------------------------------------------------------------------------------------
# Estimates over the points that are finite.


def _estimate(known: KnownValues, counts: NDArray[np.int64], preference: NDArray[np.int64]) -> Means:
    """The means over the first `counts` samples of every point; NaN, without an error, where a point has none."""
    usable = np.flatnonzero(counts > 0)
    place = np.full(len(counts) + 1, -1)  # −1 stays −1
    place[usable] = np.arange(len(usable))
    terms = [replace(term, rises=[term.rises[k] for k in usable.tolist()]) for term in known.first(counts)]
    depth = known.levels.level_of(known.places)[usable]
    # Where a point of the stencil is not finite, the others do not predict.
    between = [coefficients.among(usable) for coefficients in known.between]
    found = estimate_means(terms, place[preference[usable]], between, depth)
    mean, own, inflation = np.full(len(counts), np.nan), np.zeros(len(counts)), np.ones(len(counts))
    errors = np.zeros((len(counts), found.errors.shape[1]))
    mean[usable], errors[usable], own[usable], inflation[usable] = found.mean, found.errors, found.own, found.inflation
    return Means(mean, errors, own, inflation)


def _preference(known: KnownValues) -> NDArray[np.int64]:
    """By which points each point is corrected: one of level 0 by the earlier ones in the order of their shares, a finer
    one by the nearest of level 0.
    """
    base, points = known.base, len(known.places)
    order = known.base_shares.order
    preference = np.full((points, max(base - 1, 1)), -1)
    for rank, point in enumerate(order):
        preference[point, :rank] = order[:rank]
    if points > base:
        apart = known.places[base:, None, :] - known.places[None, :base, :]
        nearest = np.argsort(np.square(apart).sum(axis=-1), axis=1, kind="stable")[:, : min(NEAREST, base)]
        width = min(nearest.shape[1], preference.shape[1])
        preference[base:, :width] = nearest[:, :width]
    return preference


def _pilot_counts(known: KnownValues) -> NDArray[np.int64]:
    """The samples from which shares follow: those of the first pass at level 0, of the first block at finer points."""
    most = np.where(np.arange(len(known.places)) < known.base, known.pilot, known.first_samples)
    return np.where(known.counts > 0, np.minimum(known.counts, most), 0)


def _base_shares(known: KnownValues) -> Shares:
    """The shares of the points of level 0, from the first pass alone; points that are not finite come last."""
    base = known.base
    usable = np.flatnonzero(known.counts[:base] > 0)
    first = [replace(term, rises=[term.rises[k] for k in usable.tolist()]) for term in known.terms]
    covariance = pilot_covariance(first, known.pilot)
    slope = _pilot_slope(known)[usable]
    found = shares_of(covariance * np.outer(slope, slope), np.full(len(usable), 1.0 / base))
    left = np.setdiff1d(np.arange(base), usable)
    share = np.zeros(base)
    share[usable] = found.share
    loads = np.zeros((base, base))
    loads[np.ix_(usable, np.arange(len(usable)))] = found.loads
    return Shares(np.concatenate([usable[found.order], left]).astype(np.int64), share, loads)


def _pilot_means(known: KnownValues) -> Floats:
    """The means over the first pass at the points of level 0; NaN where they are not finite."""
    means = np.zeros(known.base)
    for term in known.terms:
        used = min(known.pilot, term.population)
        weights = np.ones(used) if term.weights is None else term.weights[:used]
        for point in range(known.base):
            rises = term.rises[point][:used].astype(np.float64)
            means[point] += term.factor * float(rises @ weights[: len(rises)]) / float(weights[: len(rises)].sum() or 1)
    return np.where(known.counts[: known.base] > 0, means, np.nan)


def _relief(known: KnownValues, preference: NDArray[np.int64]) -> float:
    """P95 − P5 of the rise over the area, or of log10 of the loss, after the first pass."""
    first = known.levels.level_of(known.places) <= 1
    means = _estimate(known, np.where(first, _pilot_counts(known), 0), preference)
    own = (field[first] for field in (means.mean, means.errors, means.inflation))
    values = interpolate(known.levels, known.places[first], *own).values
    if known.log_of is not None:
        values = _log_of(known.log_of + values)
    shown = values[np.isfinite(values)]
    return float(np.subtract(*np.percentile(shown, [95, 5]))) if shown.size else math.nan


def _log_of(losses: Floats) -> Floats:
    """log10 of the losses; what interpolation has taken to 0 or below counts as the least positive one."""
    positive = losses[np.isfinite(losses) & (losses > 0)]
    least = float(positive.min()) if positive.size else 1.0
    with np.errstate(invalid="ignore"):
        return np.log10(np.where(losses > least, losses, np.where(np.isnan(losses), np.nan, least)))


def _slope_of_log(known: KnownValues, rise: Floats) -> Floats:
    """d log10(L)/dL at every point, if errors are those of logarithms; else 1."""
    if known.log_of is None:
        return np.ones(rise.shape)
    losses = 10.0 ** _log_of(known.log_of + rise)
    return np.nan_to_num(1.0 / (math.log(10.0) * losses), nan=0.0)


def _pilot_slope(known: KnownValues) -> Floats:
    """The same at the points of level 0, from the first pass alone."""
    return _slope_of_log(known, _pilot_means(known))


# ----------------------------------------------------------------------------------------------------
# The samples that the points get at one scale of their shares.


@dataclass(frozen=True)
class _AllShares:
    """The shares of all points, and the variance that a sample of a finer point adds to the picture."""

    known: KnownValues
    base: Shares
    share: Floats
    finer: Floats

    def counts_for(self, ratio: float) -> NDArray[np.int64]:
        """The fewest samples, in proportion to the shares, that bring the sampling error to `ratio` of what it is."""
        before, wanted = self.known.counts, self.share > 0
        now = self._spread(before)
        if not (now > 0 and wanted.any()):
            return before
        first, population = self.known.first_samples / float(self.share.max()), self.known.population
        steps = math.ceil(8 * math.log2(population / (first * float(self.share[wanted].min())))) + 1

        def counts_after(step: int) -> NDArray[np.int64]:
            return self._counts(first * 2.0 ** (step / 8))

        def is_enough(step: int) -> bool:
            counts = counts_after(step)
            return self._spread(counts) <= ratio * now or not (counts < population)[wanted].any()

        return counts_after(bisect_left(range(max(steps, 0)), True, key=is_enough))

    def of_new_point(self, counts: NDArray[np.int64]) -> int:
        """About how many samples a new point will need: as many as those of the finest level so far."""
        finer = counts[self.known.base :]
        return max(self.known.first_samples, int(finer.mean()) if len(finer) else 0)

    def _counts(self, scale: float) -> NDArray[np.int64]:
        known = self.known
        wanted = np.minimum(scale * self.share, known.population)
        whole = known.ends[np.minimum(np.searchsorted(known.ends, wanted), len(known.ends) - 1)]
        return np.where(known.counts > 0, np.maximum(known.counts, np.where(self.share > 0, whole, 0)), 0)

    def _spread(self, counts: NDArray[np.int64]) -> float:
        """The predicted standard error that 95 per cent of the points do not exceed: of level 0, and of finer ones."""
        base, usable = self.known.base, self.known.counts[: self.known.base] > 0
        if not usable.any():
            return 0.0
        variance = float(np.percentile(self.base.variance(counts[:base], self.known.population)[usable], INSIDE))
        if len(self.finer):
            left = 1.0 / np.maximum(counts[base:], 1) - 1.0 / self.known.population
            variance += float(np.percentile(self.finer * np.maximum(left, 0.0), INSIDE))
        return math.sqrt(variance)


def _shares(picture: Picture) -> _AllShares:
    """The shares of all points, from the first pass of level 0 and the first block of finer points.

    A finer point gets samples for what its error adds to those of the points that it is corrected by, on the area that
    it stands for; the variance is smoothed over the nearest finer points.
    """
    known, base = picture.known, picture.known.base
    of_base = known.base_shares
    share, of_finer = np.concatenate([of_base.share, np.zeros(len(known.places) - base)]), np.empty(0)
    if len(known.places) > base:
        counts = _pilot_counts(known)
        means = _estimate(known, counts, picture.preference)
        first = np.maximum(counts, 1)
        per_sample = means.own / np.maximum(1.0 / first - 1.0 / known.population, 1e-300)
        slope = _slope_of_log(known, picture.rise)[tuple(known.places.T)]
        finer = np.arange(base, len(known.places))
        variance = _smoothed(known.places[finer], (per_sample * slope**2)[finer])
        area = _areas(known)[finer]
        of_finer = np.where(known.counts[finer] > 0, variance * picture.found.weight[finer], 0.0)
        share[finer] = np.sqrt(area * of_finer)
    return _AllShares(known, of_base, share, of_finer)


def _smoothed(places: Places, variance: Floats, neighbours: int = 4, most: int = 4096) -> Floats:
    """The mean of each variance and those of the nearest points; as it is if there are too many points to compare."""
    if not 1 < len(places) <= most:
        return variance
    apart = np.square(places[:, None, :] - places[None, :, :]).sum(axis=-1)
    nearest = np.argsort(apart, axis=1, kind="stable")[:, : neighbours + 1]
    return np.asarray(variance[nearest].mean(axis=1))


def evaluations_of(items: NextRound, ends: NDArray[np.int64]) -> int:
    """The cost of a round: samples times points."""
    sizes = np.diff(np.concatenate([[0], ends]))
    return int(sizes[items.blocks].sum())
