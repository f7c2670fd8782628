"""Means over all samples at many points, of which most know the first samples only: the regression estimator.

Every point knows a prefix of the same samples in one order. The mean of a point with few samples is that of its own,
corrected by how far off the same samples are at points that know more of them: with rises rᵢ(p) of n samples there, and
m > n at the points q, μ(p) = r̄ₙ(p) + Σ βq (μ(q) − r̄ₙ(q)), β by least squares over the n samples (two-phase sampling,
Cochran 1977, chapter 12). For nested samples this is the maximum-likelihood estimate (Anderson 1957).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from landscape.core.grid import Floats

DRAWS = 128  # fields of sampling errors that are drawn
SAMPLES_AT_ONCE = 1 << 16
POINTS_AT_ONCE = 1024  # of as many samples, so that their coefficients stay small in memory
MOST_PREDICTORS = 32
SAMPLES_PER_PREDICTOR = 12  # fewer would fit the coefficients to the noise
MOST_UNSEEN = 25.0  # times as much variance as few samples show, at most
MOST_LEVERAGE = 0.99  # of a sample on its own fit
CAUTION = 3.0  # standard errors of a variance, by which it is taken to be larger
RIDGE = 1e-3  # of each predictor's variance, so that equal predictors share a coefficient


@dataclass(frozen=True)
class Known:
    """What is known of the points, of the loss or of one of its terms.

    Attributes:
        rises: float32 or float64 of each point, ℓᵢ(p) − ℓᵢ(0) of its first samples.
        population: how many samples there are in all.
        factor: the term's weight in the loss.
        weights: of the samples in their order; None if all are equal.
    """

    rises: Sequence[NDArray[np.floating]]
    population: int
    factor: float = 1.0
    weights: Floats | None = None


@dataclass(frozen=True)
class Means:
    """The estimated means of the rises, and their sampling errors.

    Attributes:
        mean: of each point.
        errors: [points, draws]: draws of the errors of all points together, with the covariance that their common
            samples give them; of the finite population, so 0 where a point knows all samples.
        own: the variance of each point's error that is independent of the points by which it is corrected.
        inflation: how many times as large it may be, as few samples with long tails underrate it; 1 or more.
    """

    mean: Floats
    errors: Floats
    own: Floats
    inflation: Floats

    @property
    def stderr(self) -> Floats:
        """The standard error of each mean."""
        return np.asarray(np.sqrt(np.square(self.errors).mean(axis=1)))


@dataclass(frozen=True)
class Coefficients:
    """By which coefficients each point is predicted from others.

    Attributes:
        points: [points, width], the others.
        weights: [points, width], their coefficients; 0 for none.
    """

    points: NDArray[np.int64]
    weights: Floats

    def among(self, kept: NDArray[np.int64]) -> Coefficients:
        """The same of the points `kept`, numbered anew; without those that a point left out would predict."""
        number = np.full(int(self.points.max(initial=0)) + 1, -1)
        inside = kept[kept < len(number)]
        number[inside] = np.arange(len(inside))  # `kept` ascends
        points, weights = number[self.points[kept]], self.weights[kept]
        lost = ((points < 0) & (weights != 0)).any(axis=1)
        return Coefficients(np.maximum(points, 0), np.where(lost[:, None], 0.0, weights))

    def known_by(self, points: NDArray[np.int64], counts: NDArray[np.int64], count: int) -> NDArray[np.bool_]:
        """Which of these points are predicted by such alone that know so many samples."""
        used = self.weights[points] != 0
        return np.asarray(used.any(axis=1) & (~used | (counts[self.points[points]] >= count)).all(axis=1))

    def dense(self, points: NDArray[np.int64], width: int) -> Floats:
        """The rows of these points as a matrix [points, width]."""
        rows = np.zeros((len(points), width))
        np.add.at(rows, (np.arange(len(points))[:, None], self.points[points]), self.weights[points])
        return rows


def estimate_means(
    terms: Sequence[Known], preference: NDArray[np.int64], between: Sequence[Coefficients] = (),
    depth: NDArray[np.int64] | None = None, draws: int = DRAWS,
) -> Means:  # fmt: skip
    """The means over the whole population of all points, and their errors; a sum over independent terms.

    Args:
        between: by which interpolation predicts a point from others. The first by which the others know its samples
            takes the place of a fit, which few samples with long tails would spoil.
        depth: the level of each point; interpolation predicts from lower ones.
        preference: [points, predictors]: for each point the points by which it is corrected, the best first; of these,
            the first that know more samples than itself are taken. Padded with −1.
    """
    points = len(preference)
    mean, errors, own, most = np.zeros(points), np.zeros((points, draws)), np.zeros(points), np.zeros(points)
    for number, term in enumerate(terms):
        one = _means_of_term(term, preference, between, depth, draws, number)
        mean += term.factor * one.mean
        errors += term.factor * one.errors
        own += term.factor**2 * one.own
        most += term.factor**2 * one.own * one.inflation
    return Means(mean, errors, own, np.where(own > 0, most / np.where(own > 0, own, 1.0), 1.0))


def _means_of_term(
    term: Known, preference: NDArray[np.int64], between: Sequence[Coefficients], depth: NDArray[np.int64] | None,
    draws: int, number: int,
) -> Means:  # fmt: skip
    counts = np.array([len(rises) for rises in term.rises])
    points = len(counts)
    mean, errors, own, inflation = np.zeros(points), np.zeros((points, draws)), np.zeros(points), np.ones(points)
    signs = random_signs(int(counts.max(initial=0)), draws, number)
    spread = np.zeros(points)  # the variance of the rises that each point knows
    depth = np.zeros(points, np.int64) if depth is None else depth
    for count, group in _groups(counts, depth):
        unknown = math.sqrt(max(0.0, 1.0 - count / term.population))
        weights = np.ones(count) if term.weights is None else np.asarray(term.weights[:count], np.float64)
        weights = weights / weights.sum()
        centred, mean[group] = _centred(term.rises, group, count, weights)
        spread[group] = np.square(centred) @ weights
        if unknown == 0.0 or count < 2:
            continue  # all is known; or nothing of the spread
        residual, beta = centred / (1.0 - weights), np.zeros((len(group), points))
        inside = np.zeros(len(group), np.bool_)
        for coefficients in between:
            suits = coefficients.known_by(group, counts, count) & ~inside
            beta[suits] = coefficients.dense(group[suits], points)
            inside |= suits
        chosen = _predictors(np.where(inside[:, None], -1, preference[group]), counts, count)
        needed = np.unique(np.concatenate([np.flatnonzero(beta.any(axis=0)), chosen[chosen >= 0]]))
        if len(needed):
            predictors, of_prefix = _centred(term.rises, needed, count, weights)
            residual[inside] -= (beta[inside][:, needed] @ predictors) / (1.0 - weights)
            fitted = np.flatnonzero((chosen >= 0).any(axis=1))
            if len(fitted):
                slots = np.where(chosen[fitted] >= 0, np.searchsorted(needed, chosen[fitted]), -1)
                fit, residual[fitted] = _regress(predictors, centred[fitted], slots, weights)
                beta[np.ix_(fitted, needed)] = fit
            mean[group] += beta[:, needed] @ (mean[needed] - of_prefix)
            errors[group] += beta[:, needed] @ errors[needed]
            unseen = _unseen_spread(beta[:, needed], np.square(predictors) @ weights, spread[needed])
        else:
            unseen = np.ones(len(group))
        scale = unknown * np.sqrt(unseen)
        weighted = residual * weights
        squares = np.square(weighted)
        errors[group] += scale[:, None] * _signed(weighted, signs)
        own[group] += scale**2 * squares.sum(axis=1)
        inflation[group] = _inflation(squares)
    return Means(mean, errors, own, inflation)


def _groups(counts: NDArray[np.int64], depth: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Points of equally many samples and one level: those of more samples first, of these those of coarser levels."""
    keys = set(zip(counts.tolist(), depth.tolist(), strict=True))
    for count, level in sorted(keys, key=lambda key: (-key[0], key[1])):
        group = np.flatnonzero((counts == count) & (depth == level))
        for start in range(0, len(group), POINTS_AT_ONCE):
            yield count, group[start : start + POINTS_AT_ONCE]


def _centred(
    rises: Sequence[NDArray[np.floating]], points: NDArray[np.int64], count: int, weights: Floats
) -> tuple[Floats, Floats]:
    """The first rises of some points less their weighted mean [points, count], and the means."""
    values = np.empty((len(points), count))
    for row, point in enumerate(points):
        values[row] = rises[point][:count]
    means = values @ weights
    values -= means[:, None]
    return values, means


def _predictors(preference: NDArray[np.int64], counts: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """For each point the first preferred ones that know more samples [points, most], padded with −1."""
    suits = (preference >= 0) & (counts[preference] > count)
    most = min(MOST_PREDICTORS, count // SAMPLES_PER_PREDICTOR, int(suits.sum(axis=1).max(initial=0)))
    order = np.argsort(~suits, axis=1, kind="stable")[:, :most]
    return np.where(np.take_along_axis(suits, order, 1), np.take_along_axis(preference, order, 1), -1)


def _unseen_spread(beta: Floats, of_prefix: Floats, of_known: Floats) -> Floats:
    """By how much few samples underrate the variance, as the predictors of each point tell, which know more.

    All points share their first samples: where these miss the rare samples of a long tail, they do so at every point.
    """
    share = np.abs(beta)
    seen, whole = share @ of_prefix, share @ of_known
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(seen > 0, whole / seen, 1.0)
    return np.clip(ratio, 1.0, MOST_UNSEEN)


def _inflation(squares: Floats) -> Floats:
    """How many times as large as that of its samples the variance of each point may be.

    A variance from n samples of kurtosis κ has the relative standard error √((κ − 1)/n).

    Args:
        squares: of the residuals [points, samples].
    """
    count = squares.shape[1]
    total = np.maximum(np.square(squares.sum(axis=1)), 1e-300)
    kurtosis = count * np.square(squares).sum(axis=1) / total
    return np.asarray(1.0 + CAUTION * np.sqrt(np.maximum(kurtosis - 1.0, 0.0) / count))


def _regress(predictors: Floats, centred: Floats, slots: NDArray[np.int64], weights: Floats) -> tuple[Floats, Floats]:
    """Weighted least squares of each point on the predictors of its own slots.

    Returns:
        β [points, predictors], and the residual of every sample [points, samples] from the fit to the others: a sample
        of a long tail, which fits itself, is not underrated so.
    """
    beta, residual = np.zeros((len(centred), len(predictors))), np.empty_like(centred)
    rooted = np.sqrt(weights)
    same, of_point = np.unique(slots, axis=0, return_inverse=True)
    for number, row in enumerate(same):
        points, own = np.flatnonzero(of_point == number), row[row >= 0]
        values = predictors[own] * rooted
        gram = values @ values.T
        gram[np.diag_indices(len(own))] *= 1.0 + RIDGE
        gram[np.diag_indices(len(own))] += np.trace(gram) * 1e-15 + 1e-300
        solved = np.linalg.solve(gram, values)
        fit = centred[points] @ (solved * rooted).T
        beta[np.ix_(points, own)] = fit
        leverage = np.minimum((values * solved).sum(axis=0) + weights, MOST_LEVERAGE)
        residual[points] = (centred[points] - fit @ predictors[own]) / (1.0 - leverage)
    return beta, residual


def random_signs(samples: int, draws: int, number: int) -> NDArray[np.int8]:
    """Random signs [samples, draws] of a fixed seed: sums of errors times these have the covariance of the errors."""
    generator = np.random.Generator(np.random.PCG64([20261127, number]))
    return generator.integers(0, 2, (samples, draws), np.int8) * np.int8(2) - np.int8(1)


def _signed(errors: Floats, signs: NDArray[np.int8]) -> Floats:
    """The sums [points, draws] of the errors [points, samples] times the signs, some samples at a time."""
    total = np.zeros((len(errors), signs.shape[1]))
    for start in range(0, errors.shape[1], SAMPLES_AT_ONCE):
        part = errors[:, start : start + SAMPLES_AT_ONCE]
        total += part @ signs[start : start + part.shape[1]].astype(np.float64)
    return total


# ----------------------------------------------------------------------------------------------------
# How many samples each point gets: shares that a pilot decides, before any later sample is seen.


@dataclass(frozen=True)
class Shares:
    """The shares of samples of points, and the sampling variance that they leave.

    Attributes:
        order: the points, the best predictors first.
        share: of each point, in units of variance^½; a point gets `scale · share` samples.
        loads: [points, points]: column j holds what an error of the j-th point of `order`, of unit variance per sample,
            adds to every point.
    """

    order: NDArray[np.int64]
    share: Floats
    loads: Floats

    def variance(self, counts: NDArray[np.int64], population: int) -> Floats:
        """The predicted variance of each point's mean if the points know these counts of samples."""
        left = 1.0 / np.maximum(counts[self.order], 1) - 1.0 / population
        return np.asarray(np.square(self.loads) @ np.maximum(left, 0.0))


def shares_of(covariance: Floats, area: Floats) -> Shares:
    """The shares that make the mean variance over the area least for the number of samples.

    Cholesky's decomposition with pivots takes the points in the order in which they predict the others best. The j-th
    then adds loadsqj² / nj to the variance of point q, and Σ nj is least if nj ∝ (Σq area_q loadsqj²)^½.

    Args:
        covariance: of the rises of single samples between points, from the pilot.
        area: the share of the area that each point stands for.
    """
    points = len(covariance)
    left, rest = np.ones(points, np.bool_), np.array(covariance, np.float64)
    order, loads = [], np.zeros((points, points))
    least = 1e-12 * max(float(np.diag(covariance).max(initial=0.0)), 1e-300)
    for column in range(points):
        own = np.diag(rest)
        usable = left & (own > least)
        if not usable.any():
            order += np.flatnonzero(left).tolist()
            break
        gain = area @ np.square(rest) / np.where(usable, own, np.inf)
        point = int(np.where(usable, gain, -1.0).argmax())
        loads[:, column] = rest[:, point] / math.sqrt(own[point])
        rest -= np.outer(loads[:, column], loads[:, column])
        left[point] = False
        order.append(point)
    share = np.empty(points)
    share[order] = np.minimum.accumulate(np.sqrt(area @ np.square(loads)))
    return Shares(np.array(order, np.int64), share, loads)


def pilot_covariance(terms: Sequence[Known], count: int) -> Floats:
    """The covariance of the rises between points over the first `count` samples, all terms together.

    A term whose samples all points know adds nothing.
    """
    points = len(terms[0].rises)
    total = np.zeros((points, points))
    for term in terms:
        used = min(count, term.population)
        if used < 2 or used == term.population:
            continue
        weights = np.ones(used) if term.weights is None else np.asarray(term.weights[:used], np.float64)
        centred, _ = _centred(term.rises, np.arange(points), used, weights / weights.sum())
        centred *= weights / weights.mean()
        total += term.factor**2 * (centred @ centred.T) / (used - 1)
    return total
