"""Intervals around the mean of a few draws, by Student's t."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

LEVEL = 0.95
ITERATIONS = 200  # of the continued fraction, which takes about √max(a, b), and of the bisection


@dataclass(frozen=True)
class ConfidenceInterval:
    """A mean, and the ends of the interval that holds the truth in 95 % of repetitions, where draws are normal.

    Attributes:
        stderr: the standard error of the mean; NaN of a single draw, as are the ends.
    """

    mean: float
    low: float
    high: float
    stderr: float


def interval_of(draws: Sequence[float], level: float = LEVEL) -> ConfidenceInterval:
    """m ± t_{K−1}·s/√K of K draws.

    >>> found = interval_of([1.0, 2.0, 3.0])
    >>> round(found.low, 3), found.mean, round(found.high, 3)
    (-0.484, 2.0, 4.484)
    """
    count = len(draws)
    mean = math.fsum(draws) / count
    if count < 2:
        return ConfidenceInterval(mean, math.nan, math.nan, math.nan)
    stderr = math.sqrt(math.fsum((draw - mean) ** 2 for draw in draws) / (count - 1) / count)
    margin = t_quantile((1 + level) / 2, count - 1) * stderr
    return ConfidenceInterval(mean, mean - margin, mean + margin, stderr)


@cache
def t_quantile(probability: float, scope: float) -> float:
    """The value below which Student's t of so many degrees of freedom lies with a probability above ½.

    >>> round(t_quantile(0.975, 15), 4), round(t_quantile(0.975, 2.5), 4)
    (2.1314, 3.5747)
    """
    assert 0.5 < probability < 1
    low, high = 0.0, 1.0
    while _above(high, scope) > 1 - probability:
        high *= 2
    for _ in range(ITERATIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if _above(middle, scope) > 1 - probability else (low, middle)
    return (low + high) / 2


def _above(value: float, scope: float) -> float:
    """P(T > value) = ½·I_x(ν/2, ½), x = ν/(ν + value²)."""
    return 0.5 * _incomplete_beta(scope / (scope + value * value), scope / 2, 0.5)


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """I_x(a, b) by its continued fraction (Lentz's method; Numerical Recipes, 3rd edition, 6.4)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(1 - x, b, a)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )  # fmt: skip
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, ITERATIONS):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            c, d = 1 + term / c, 1 / (1 + term * d)
            value *= c * d
    return front * value / a
