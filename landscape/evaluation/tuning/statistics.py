"""Decide from timings whether an engine is faster, and how long a search may take: pure functions of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from landscape.core.grid import TILE_SECONDS
from landscape.evaluation.tuning.questions import Limits

FEWEST_ROUNDS, ENOUGH_ROUNDS, MANY_ROUNDS, MOST_ROUNDS = 3, 5, 7, 9
GAIN = 1.05  # what is not faster by this much is noise
LONGEST_ROW = 16  # the largest number of points of a row among which the cost of what they share is divided


def budget_of(seconds_per_point: float, points: int, limits: Limits) -> float:
    """Seconds that a job's search may take: `shortest` doubled as often as the share allows, 0 where it allows none.

    Few steps, so that jobs of about the same length find each other's choices.
    """
    allowed, budget = limits.share * seconds_per_point * points, limits.shortest
    if allowed < budget:
        return 0.0
    while 2 * budget <= min(allowed, limits.longest):
        budget *= 2
    return limits.longest if allowed >= limits.longest else budget


def verdict(ratios: Sequence[float], gain: float = GAIN) -> Literal["faster", "slower", "open"]:
    """Whether a candidate is faster, from its speed over the best one's in each round so far.

    It is faster where, after enough rounds, three quarters of them show a gain worth having and the median gain
    exceeds the spread. Of two that are equally fast, in rounds that differ by up to 60 %, fewer than one in a hundred
    passes. What no round shows a gain for is dropped sooner; what is undecided at the end is not faster.
    """
    if len(ratios) < FEWEST_ROUNDS:
        return "open"
    low, middle = np.quantile(ratios, (0.25, 0.5))
    if len(ratios) >= ENOUGH_ROUNDS and low > gain and middle - 1 > spread_of(ratios):
        return "faster"
    return "slower" if max(ratios) < gain or len(ratios) >= MOST_ROUNDS else "open"


def spread_of(ratios: Sequence[float]) -> float:
    """The difference of the highest and the lowest ratio; where there are many, without the two at the ends."""
    ascending = sorted(ratios)
    kept = ascending[1:-1] if len(ascending) >= MANY_ROUNDS else ascending
    return kept[-1] - kept[0]


def row_points(seconds: float, axes: int) -> int:
    """About how many points a row of a tile will hold, given what a point costs."""
    return max(1, min(LONGEST_ROW, int((TILE_SECONDS / seconds) ** (1 / max(1, axes)))))
