"""Time a candidate against the best so far, round by round, until it is known which of them is faster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from landscape.evaluation.tuning.questions import Asking, Candidate, Facts, SetUp, Slice, Time, Timed, refusal
from landscape.evaluation.tuning.statistics import row_points, verdict

SLICE_SECONDS = 0.05  # one timing runs as many batches as take about this long


@dataclass(frozen=True)
class Slices:
    """How many batches of each candidate are timed, so that all candidates compute about as many samples.

    Args:
        first: the candidate that was planned at first.
        count: batches of `first` that are timed at once.
        row: assumed number of points per row when the cost of what they share is divided.
        samples: how many samples a point takes.
        mean_batch: samples of a batch on average, where the data itself cuts the batches.
    """

    first: Candidate
    count: int
    row: int
    samples: int
    mean_batch: float | None = None

    @classmethod
    def for_cost(cls, first: Candidate, seconds_per_point: float, facts: Facts, row: int | None) -> Slices:
        """The slices for a point of this cost.

        Args:
            row: points in a row of the job's tiles; None where the tiles suit the cost of a point.
        """
        count = max(1, round(SLICE_SECONDS / (seconds_per_point / facts.batches)))
        mean_batch = facts.samples / facts.batches if facts.whole_batches else None
        return cls(first, count, row or row_points(seconds_per_point, facts.axes), facts.samples, mean_batch)

    def of(self, candidate: Candidate) -> Slice:
        """The batches of a candidate that hold about as many samples as those of `first` do; at least one."""
        count = max(1, round(self.count * self.first.batch_size / candidate.batch_size))
        return Slice(candidate, count, self.row)

    def speed(self, candidate: Candidate, answers: Sequence[Any]) -> float:
        """Samples per second of one process while all compute, as the mean over the processes that answered."""
        samples = min(self.of(candidate).count * (self.mean_batch or candidate.batch_size), self.samples)
        seconds = [answer.seconds for answer in answers if isinstance(answer, Timed)]
        return fmean(samples / max(taken, 1e-9) for taken in seconds) if seconds else 0.0


@dataclass(frozen=True)
class Contest:
    """The result of timing a candidate against the best.

    Args:
        ratios: the candidate's speed over that of the best, in each round.
        speeds: samples per second of both in the last round that was complete.
        processes: the most processes that were timed at once.
        refused: why the candidate cannot be used; empty where it can.
    """

    ratios: tuple[float, ...]
    speeds: dict[Candidate, float]
    processes: int
    refused: str


def compete(
    candidate: Candidate, best: Candidate, slices: Slices, gain: float, seconds_left: Callable[[], float]
) -> Asking[Contest]:
    """Set up the candidate beside the best, and time both in the same rounds until it is known which is faster."""
    refused = refusal((yield SetUp(slices.of(candidate), slices.of(best))))
    ratios: list[float] = []
    last: dict[Candidate, float] = {}
    processes = 0
    while not refused and verdict(ratios, gain) == "open" and not (ratios and seconds_left() <= 0):
        speeds: dict[Candidate, float] = {}
        # They take turns to be first, so that load which comes at intervals does not always slow the same one.
        for timed in (candidate, best)[:: 1 if len(ratios) % 2 else -1]:
            answers = yield Time(slices.of(timed), len(ratios))
            refused = refused or refusal(answers)
            speeds[timed] = slices.speed(timed, answers)
            processes = max(processes, sum(isinstance(answer, Timed) for answer in answers))
        if not refused:
            ratios.append(speeds[candidate] / speeds[best])
            last = speeds
    return Contest(tuple(ratios), last, processes, refused)
