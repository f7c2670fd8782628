"""Learning rates as functions of how many epochs are done, which may be a fraction.

rate = warmed_up(cosine(scaled(0.1, batch_size=256, base_batch=64), epochs=40), epochs=5, start=0.1)
rate(0.0), rate(2.5), rate(40.0)
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence

RateSchedule = Callable[[float], float]


def constant(rate: float) -> RateSchedule:
    """The same rate from the first step to the last."""
    return lambda epochs_done: rate


def cosine(rate: float, epochs: float, final: float = 0.0) -> RateSchedule:
    """From `rate` to `final` of it along half a cosine (Loshchilov and Hutter 2017, no restarts), then constant."""

    def at(epochs_done: float) -> float:
        falling = 0.5 * (1 + math.cos(math.pi * min(1.0, epochs_done / epochs)))
        return rate * (final + (1 - final) * falling)

    return at


def steps(rate: float, milestones: Sequence[float], factor: float = 0.1) -> RateSchedule:
    """`rate`, times `factor` from each of the milestones on, which are epochs in ascending order."""
    return lambda epochs_done: rate * factor ** bisect_right(milestones, epochs_done)


def polynomial(rate: float, epochs: float, power: float, final: float = 0.0) -> RateSchedule:
    """final + (rate − final) · (1 − e/epochs)^power."""
    return lambda epochs_done: final + (rate - final) * max(0.0, 1 - epochs_done / epochs) ** power


def warmed_up(schedule: RateSchedule, epochs: float, start: float = 0.0) -> RateSchedule:
    """From `start` to the schedule along a line in the first `epochs`, then the schedule (Goyal et al. 2017)."""

    def at(epochs_done: float) -> float:
        rate = schedule(epochs_done)
        return rate if epochs_done >= epochs else start + (rate - start) * epochs_done / epochs

    return at


def scaled(rate: float, batch_size: int, base_batch: int | None) -> float:
    """`rate`, which is for batches of `base_batch`, for another size: rate · batch_size/base_batch (Goyal et al. 2017).

    Args:
        base_batch: None leaves the rate as it is.
    """
    return rate if base_batch is None else rate * batch_size / base_batch
