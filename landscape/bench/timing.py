"""Times that can be compared on a machine that others use too: all are timed in every round, and ratios are per round.

Load that comes and goes with the minutes then slows all of them in the same round, and leaves their ratios alone.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

WARM_UPS = 2  # in the second pass an evaluator learns which outputs stay the same
MOST_PASSES = 2000

Seconds = Mapping[str, float]


@dataclass(frozen=True)
class Contestant:
    """What is timed: `run(count)` does its work for `count` points and returns when the device is done."""

    key: str
    run: Callable[[int], None]
    step: int = 1  # the counts that suit it are multiples of this


def race(
    contestants: Sequence[Contestant], rounds: int, slice_seconds: float,
    report: Callable[[str], None] = lambda text: None,
) -> list[Seconds]:  # fmt: skip
    """Seconds per point of every contestant, once per round, each timed over about `slice_seconds`.

    The order is reversed in every second round, so that none is always timed after the same one.
    """
    counts = {each.key: _count(each, slice_seconds) for each in contestants}
    timed: list[Seconds] = []
    for k in range(rounds):
        order = contestants if k % 2 == 0 else list(reversed(contestants))
        timed.append({contestant.key: _seconds(contestant, counts[contestant.key]) for contestant in order})
        report(f"round {k + 1} of {rounds}")
    return timed


def _count(contestant: Contestant, slice_seconds: float) -> int:
    for _ in range(WARM_UPS):
        contestant.run(contestant.step)
    alone = _seconds(contestant, contestant.step)
    wanted = math.ceil(slice_seconds / max(alone, 1e-9) / contestant.step)
    return contestant.step * max(1, min(MOST_PASSES, wanted))


def _seconds(contestant: Contestant, count: int) -> float:
    start = time.perf_counter()
    contestant.run(count)
    return (time.perf_counter() - start) / count


def typical(rounds: Sequence[Seconds], key: str) -> float:
    """The median over the rounds of a contestant's seconds per point."""
    return statistics.median(each[key] for each in rounds)


def quotient(rounds: Sequence[Seconds], above: str, below: str) -> dict[str, float]:
    """The ratio of two contestants' seconds: taken within each round, then the median, lowest and highest."""
    ratios = [each[above] / each[below] for each in rounds]
    return {"median": statistics.median(ratios), "low": min(ratios), "high": max(ratios)}
