"""When answers were evaluated: stretches of time in replicas, and what clients are told of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

Result = TypeVar("Result")
HEADER = "server-timing"


@dataclass(frozen=True)
class Stretch:
    """A time in which an evaluator was at work.

    Attributes:
        begin: in seconds since 1970 by the clock of its machine, so that those of several processes compare.
        seconds: how long it took, by a clock that nobody sets.
    """

    begin: float
    seconds: float


def timed(work: Callable[[], Result]) -> tuple[Result, Stretch]:
    """What work returns, and when it was carried out."""
    begin, start = time.time(), time.perf_counter()
    result = work()
    return result, Stretch(begin, time.perf_counter() - start)


def covered(stretches: Sequence[Stretch]) -> float:
    """The seconds in which at least one of several stretches ran.

    >>> covered([Stretch(0.0, 2.0), Stretch(1.0, 2.0), Stretch(5.0, 1.0), Stretch(5.0, 1.0)])
    4.0
    """
    total, end = 0.0, float("-inf")
    for each in sorted(stretches, key=lambda each: each.begin):
        # The first one as a whole: the sum of its ends would be rounded to the digits of seconds since 1970.
        total += each.seconds if each.begin >= end else max(0.0, each.begin + each.seconds - end)
        end = max(end, each.begin + each.seconds)
    return total


def server_timing(stretches: Sequence[Stretch], total: float) -> str:
    """The value of the header: milliseconds of the evaluation, and of the answer as a whole.

    >>> server_timing([Stretch(0.0, 0.0941)], 0.099), server_timing([], 0.001)
    ('evaluate;dur=94.1, total;dur=99.0', 'evaluate;dur=0.0, total;dur=1.0')

    Args:
        stretches: of the evaluations that gave the answer; none where nothing was computed for it.
        total: seconds from the beginning of the request to its answer.
    """
    return f"evaluate;dur={1e3 * covered(stretches):.1f}, total;dur={1e3 * total:.1f}"
