"""Whether a job is worth starting workers for, and what their start adds to its time."""

from __future__ import annotations

from typing import Any

from cluster.runtime.console import seconds_text

# From the end of the preparation to the first tile committed by a worker, without the tile itself: 7.1 to 9.4 s on 2
# idle cores (import 1.6, ray.init 3.0 to 4.5, worker processes with torch and the problem 2.5 to 3.3). Ending Ray takes
# 0.6 s more. On 2 cores that five other people used, Ray cost 18 to 25 s. The value is still that of an idle machine: a
# busy one also makes the measured point slower, so that the comparison stays about right.
RAY_SECONDS = 8.0
LONGEST_HERE = 30.0  # longer jobs get workers even where there is only one: the job outlives a worker that is killed


def is_done_sooner_here(work: float, search: float, workers: int) -> bool:
    """Whether workers would save less time than their start costs; the search for an engine counts as work.

    Args:
        work: seconds that one process computes.
        search: seconds that the search for an engine takes before.
    """
    return work + search < LONGEST_HERE and work * (1 - 1 / workers) < RAY_SECONDS


def times_of(work: float, search: float, workers: int, *, alone: bool) -> dict[str, Any]:
    """How long a plan takes: `seconds` of computing on the workers, `start_seconds` of Ray, and `here` without it.

    Args:
        alone: whether this process may compute alone, as nobody asks for workers.
    """
    here = alone and is_done_sooner_here(work, search, workers)
    return {"seconds": work / workers, "here": here, "start_seconds": 0.0 if here else RAY_SECONDS}


def time_in_words(work: float, workers: int, here: bool) -> str:
    """How long a job takes, and what of that is the start of Ray.

    >>> time_in_words(12.0, 2, True)
    'about 12 s in this process: Ray, of 2 workers, would take about 8 s to start'
    >>> time_in_words(90.0, 2, False)
    'about 45 s on 2 workers, and about 8 s until Ray has started them'
    >>> time_in_words(6.0, 2, False)
    'about 3 s on 2 workers, and about 8 s until Ray has started them; about 6 s with --serial'
    """
    if not work:
        return "nothing is left to compute"
    several = f"{workers} worker{'s' * (workers != 1)}"
    start = seconds_text(RAY_SECONDS)
    if here:
        return f"about {seconds_text(work)} in this process: Ray, of {several}, would take about {start} to start"
    serial = f"; about {seconds_text(work)} with --serial" if work < work / workers + RAY_SECONDS else ""
    return f"about {seconds_text(work / workers)} on {several}, and about {start} until Ray has started them{serial}"
