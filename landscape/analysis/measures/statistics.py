"""Intervals of a difference: by resampling lines and samples, from two standard errors, over several runs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from landscape.analysis.measures.lines import Floats
from landscape.core.statistics import Interval, t_quantile

REPEATS = 2000  # the ends of a 95 % interval are then the 50th values from below and above
AT_ONCE = 1 << 22  # numbers of a stretch of repeats in memory
SEED = 0
TAIL = 0.975


def resampled(table: Floats, weights: Floats, seed: int = SEED, repeats: int = REPEATS) -> Interval:
    """The weighted mean of a table [lines, samples] over both, its percentiles when both are drawn anew.

    m = Σₖᵢ wᵢxₖᵢ/(KΣwᵢ). Lines and samples are drawn independently, with replacement (Owen 2007, "The pigeonhole
    bootstrap"); of a single line the samples alone are.
    """
    lines, samples = table.shape
    generator = np.random.default_rng(seed)
    weighted, found = table * weights, []
    together = max(1, AT_ONCE // samples)
    for start in range(0, repeats, together):
        count = min(together, repeats - start)
        of_lines = generator.multinomial(lines, np.full(lines, 1 / lines), count)
        of_samples = generator.multinomial(samples, np.full(samples, 1 / samples), count)
        sums = ((of_lines @ weighted) * of_samples).sum(1)
        found.append(sums / (lines * (of_samples * weights).sum(1)))
    means = np.concatenate(found)
    low, high = np.quantile(means, [1 - TAIL, TAIL]).tolist()
    mean = float(weighted.sum() / (lines * weights.sum()))
    return Interval(mean, low, high, float(means.std(ddof=1)))


def resampled_apart(first: Floats, other: Floats, weights: Floats, seed: int = SEED) -> Interval:
    """The difference of the means of two tables over the same samples, the lines of each drawn by themselves."""
    samples = first.shape[1]
    generator = np.random.default_rng(seed)
    found = []
    together = max(1, AT_ONCE // samples)
    for start in range(0, REPEATS, together):
        count = min(together, REPEATS - start)
        of_samples = generator.multinomial(samples, np.full(samples, 1 / samples), count)
        means = []
        for table in (first, other):
            of_lines = generator.multinomial(len(table), np.full(len(table), 1 / len(table)), count)
            sums = ((of_lines @ (table * weights)) * of_samples).sum(1)
            means.append(sums / (len(table) * (of_samples * weights).sum(1)))
        found.append(means[1] - means[0])
    differences = np.concatenate(found)
    low, high = np.quantile(differences, [1 - TAIL, TAIL]).tolist()
    mean = float(((other.mean(0) - first.mean(0)) * weights).sum() / weights.sum())
    return Interval(mean, low, high, float(differences.std(ddof=1)))


def of_errors(difference: float, first: float, other: float, freedom: tuple[int, int]) -> Interval:
    """d ± t·√(SE₁² + SE₂²) of two estimates with these standard errors, taken to be independent.

    Args:
        freedom: degrees of freedom of each; the whole has those of Welch and Satterthwaite, rounded down.
    """
    stderr = math.hypot(first, other)
    if stderr == 0:
        return Interval(difference, difference, difference, 0.0)
    shares = [(error / stderr) ** 4 / count for error, count in zip((first, other), freedom, strict=True)]
    quantile = t_quantile(TAIL, max(1, math.floor(1 / sum(shares) + 1e-9)))
    return Interval(difference, difference - quantile * stderr, difference + quantile * stderr, stderr)


def welch(first: Sequence[float], other: Sequence[float]) -> Interval:
    """mean(other) − mean(first) by Welch's t, for draws of different spread (Welch 1947).

    >>> found = welch([1.0, 2.0, 3.0], [4.0, 5.0, 6.0])
    >>> found.mean, round(found.low, 3), round(found.high, 3)
    (3.0, 0.733, 5.267)
    """
    means = [math.fsum(draws) / len(draws) for draws in (first, other)]
    errors = [
        math.sqrt(math.fsum((draw - mean) ** 2 for draw in draws) / (len(draws) - 1) / len(draws))
        for draws, mean in zip((first, other), means, strict=True)
    ]
    return of_errors(means[1] - means[0], errors[0], errors[1], (len(first) - 1, len(other) - 1))
