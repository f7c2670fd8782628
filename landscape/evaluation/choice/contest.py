"""One candidate timed against the best so far, round by round, until it is known which is faster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from landscape.evaluation.choice.questions import Asking, Candidate, Facts, SetUp, Slice, Time, Timed, refusal
from landscape.evaluation.choice.statistics import row_points, verdict

SLICE_SECONDS = 0.05  # one timing runs as many batches as take about this long


@dataclass(frozen=True)
class Slices:
    """How many batches of each candidate are timed, so that all candidates see about as many samples.

    Args:
        first: the candidate that was planned at first, of which `count` batches are timed.
        row: assumed number of points per row when the cost of what they share is divided.
        samples: how many there are.
    """

    first: Candidate
    count: int
    row: int
    samples: int

    @classmethod
    def for_cost(cls, first: Candidate, seconds_per_point: float, facts: Facts, row: int | None) -> Slices:
        """The slices where a point costs so much; `row` points stand in a row, if the job says so."""
        count = max(1, round(SLICE_SECONDS / (seconds_per_point / facts.batches)))
        return cls(first, count, row or row_points(seconds_per_point, facts.axes), facts.samples)

    def of(self, candidate: Candidate) -> Slice:
        count = max(1, round(self.count * self.first.batch_size / candidate.batch_size))
        return Slice(candidate, count, self.row)

    def speed(self, candidate: Candidate, answers: Sequence[Any]) -> float:
        """Samples per second of one process, as the mean over all: together they are what the job computes with."""
        samples = min(self.of(candidate).count * candidate.batch_size, self.samples)
        seconds = [each.seconds for each in answers if isinstance(each, Timed)]
        return fmean(samples / max(each, 1e-9) for each in seconds) if seconds else 0.0


@dataclass(frozen=True)
class Contest:
    """What came of timing a candidate against the best.

    Args:
        ratios: the candidate's speed over that of the best, in each round.
        speeds: of the two in the last round that was timed to its end, in samples per second.
        processes: that were timed at once, at the most.
        refused: why the candidate is out; empty where it is not.
    """

    ratios: tuple[float, ...]
    speeds: dict[Candidate, float]
    processes: int
    refused: str


def compete(
    candidate: Candidate, best: Candidate, slices: Slices, gain: float, seconds_left: Callable[[], float]
) -> Asking[Contest]:
    """Set up the candidate beside the best and time both in the same rounds, as long as it is open which is faster."""
    refused = refusal((yield SetUp(slices.of(candidate), slices.of(best))))
    ratios: list[float] = []
    last: dict[Candidate, float] = {}
    processes = 0
    while not refused and verdict(ratios, gain) == "open" and not (ratios and seconds_left() <= 0):
        speeds: dict[Candidate, float] = {}
        # In turn the first of the two: what a machine does at intervals must not always fall on the same one.
        for each in (candidate, best)[:: 1 if len(ratios) % 2 else -1]:
            answers = yield Time(slices.of(each), len(ratios))
            refused = refused or refusal(answers)
            speeds[each] = slices.speed(each, answers)
            processes = max(processes, sum(isinstance(answer, Timed) for answer in answers))
        if not refused:
            ratios.append(speeds[candidate] / speeds[best])
            last = speeds
    return Contest(tuple(ratios), last, processes, refused)
