"""The search for the fastest engine: decide which candidate is timed next, and which one has won.

`Search.steps` yields requests and is sent their answers. It touches no model and no file, so that the same search runs
in this process with forked ones (`tuning.py`) and on the workers of a cluster.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from statistics import fmean
from typing import Any, Literal

import numpy as np

from landscape.core.grid import TILE_SECONDS
from landscape.core.plan import BASES, OPTIONS, Engine, Plan
from landscape.evaluation.tuning.protocol import (
    DEFAULT_POINT_SECONDS,
    NOBODY_LEFT,
    AgreeingCandidate,
    Asking,
    Candidate,
    CheckAgreement,
    Conclude,
    ExamineModel,
    Facts,
    FailedRequest,
    Keep,
    Limits,
    Measure,
    MeasuredCost,
    SetUp,
    Slice,
    Steps,
    Time,
    Timed,
    Trial,
    Tuned,
    TunedChoice,
    TuningRecord,
    TuningScope,
    one,
    refusal,
)

# ----------------------------------------------------------------------------------------------------
# Which engines a search tries, given what could be done to the model: from the rules of options and bases alone.

STACKED_PARAMETERS = 4_000_000  # above it one point fills a GPU
STACKED_POINTS = (8, 32)


def combined_options(facts: Facts) -> tuple[str, ...]:
    """The options whose every combination is tried first."""
    return tuple(name for name in facts.options if OPTIONS[name].combined)


def single_options(facts: Facts) -> tuple[str, ...]:
    """The options that are tried after those, each by itself on the best engine so far."""
    return tuple(name for name in facts.options if not OPTIONS[name].combined)


def with_option(best: Engine, name: str, facts: Facts) -> Engine:
    """The best engine so far with one more option, and with those that go along with it where the model allows them."""
    along: Sequence[str] = [other for other in OPTIONS[name].along if other in facts.options]
    return best.adding(name, *along)


def quick_bases(best: Engine, plan: Plan, facts: Facts) -> Iterator[Engine]:
    """The best rewrites on the other bases that are set up at once."""
    for name, base in BASES.items():
        if base.setup_seconds or not _suits(name, plan, facts):
            continue
        if not base.stacks:
            yield best.on(name)
        elif facts.moved_parameters < STACKED_PARAMETERS:
            yield from (best.on(name, points) for points in STACKED_POINTS)


def slow_bases(best: Engine, plan: Plan, facts: Facts) -> Iterator[tuple[Engine, float]]:
    """The best rewrites on the other bases, such as compiled, and about how many seconds each takes to set up."""
    for name, base in BASES.items():
        if base.setup_seconds and _suits(name, plan, facts):
            yield best.on(name), base.setup_seconds + base.setup_seconds_per_module * facts.modules


def _suits(name: str, plan: Plan, facts: Facts) -> bool:
    """Whether a search tries the base at all."""
    base = BASES[name]
    resident = facts.resident or not base.needs_resident
    return not plan.statistics.recalibrated and plan.device in base.tried_on and resident


# ----------------------------------------------------------------------------------------------------
# Decide from timings whether an engine is faster, and how long a search may take: pure functions of numbers.

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


# ----------------------------------------------------------------------------------------------------
# Time a candidate against the best so far, round by round, until it is known which of them is faster.

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


# ----------------------------------------------------------------------------------------------------
# Report to the console and the log what a search does now.

stages = logging.getLogger("landscape.stages.search")  # shown as what a job is doing now


def report_candidate(candidate: Candidate, number: int, candidates: int, seconds_left: float) -> None:
    """Log which candidate is set up and timed now.

    Args:
        number: of the candidates that were tried so far, this one included.
        candidates: about how many will be tried.
    """
    stages.info(
        "engine %d of about %d: %s, batches of %d; %.0f s left",
        number, candidates, candidate.engine, candidate.batch_size, seconds_left,
        extra={"event": "search", "fields": {
            "candidate": number, "candidates": candidates, "engine": str(candidate.engine),
            "batch_size": candidate.batch_size, "seconds_left": round(seconds_left, 1),
        }},
    )  # fmt: skip


# ----------------------------------------------------------------------------------------------------

MOST_CHECKED = 3

log = logging.getLogger("landscape")


class Search:
    """Each candidate is timed against the best so far in the same rounds; the last winner that agrees is chosen.

    Args:
        plan: as planned at first, for any engine.
        clock: the time in seconds, by which the budget is spent.
    """

    def __init__(
        self,
        plan: Plan,
        scope: TuningScope,
        limits: Limits | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._plan, self._freedom, self._limits, self._clock = plan, scope, limits or Limits(), clock
        self._trials: dict[Candidate, Trial] = {}
        self._winners: list[Candidate] = []
        self._seconds, self._warning, self._since = DEFAULT_POINT_SECONDS, "", ""
        self._end, self._processes = 0.0, 0
        self._tried = self._candidates = 0
        self._cut_short = self._broken = False

    def steps(self) -> Steps:
        """Requests to be carried out one by one, each to be sent its answers, see `follow`; ends in a `Tuned`."""
        measured = yield from one(Measure(self._freedom))
        if not isinstance(measured, MeasuredCost):
            # User code has raised, which is reported where the point's tile is computed.
            return Tuned(self._plan, raised=measured.reason if isinstance(measured, FailedRequest) else "")
        self._plan, self._seconds, self._warning = measured.plan, measured.seconds, measured.warning
        self._first = self._best = Candidate(self._plan.engine, self._plan.batch_size)
        if self._freedom.engine is not None:
            yield from self._force(Candidate(self._freedom.engine, self._plan.batch_size))
        else:
            yield from self._choose(measured)
        plan = replace(self._plan, engine=self._best.engine, batch_size=self._best.batch_size)
        error = yield from one(Conclude(plan))
        if isinstance(error, FailedRequest):
            log.info("engine: nothing is chosen: it %s", error.reason)
            plan, error = self._plan, None
        trials = tuple(self._trials.values())
        return Tuned(plan, self._seconds, trials, error, self._warning, self._since, self._processes)

    def _force(self, wanted: Candidate) -> Asking[None]:
        """Take the engine that the job asks for, unless it fails or its values are wrong."""
        if wanted == self._first:
            return
        yield from self._accept_first([wanted])
        if self._best == self._first:
            reason = self._trials[wanted].refused
            self._warning = f"engine: {wanted.engine} is not used, as it {reason}; {self._first.engine} is"

    def _choose(self, measured: MeasuredCost) -> Asking[None]:
        """Take the choice that was kept; where there is none, search, and keep what is chosen."""
        record = measured.record or TuningRecord(measured.seconds)
        budget = self._budget(record)
        if not budget:
            if measured.record is None and measured.key:
                yield from one(Keep(measured.key, record))
            return
        kept = record.choice_for(budget)
        if kept is not None and (yield from self._take(kept, measured.samples)):
            return
        log.info("engine: trying what is faster than %s, for up to %g s and the candidate then at hand (a compilation "
                 "is not cut short)", self._first.engine, budget)  # fmt: skip
        yield from self._try_all(budget)
        yield from self._accept_first(self._winners[-1:])
        for earlier in self._winners[-2 : -MOST_CHECKED - 1 : -1]:
            if self._best != self._first or self._broken:
                break
            if self._left() <= 0:
                self._cut_short = True
                break
            yield from self._accept_first([earlier])
        if self._broken:
            return
        now = datetime.now(UTC).isoformat(timespec="seconds")
        complete = not self._cut_short or budget >= Limits.longest  # no job will search for longer
        chosen = TunedChoice(self._best.engine, self._best.batch_size, self._seconds, now, complete)
        yield from self._keep(measured, record.without(kept).with_choice(budget, chosen), chosen, dropped=kept)

    def _budget(self, record: TuningRecord) -> float:
        return budget_of(record.seconds_per_point, self._freedom.points, self._limits)

    def _keep(
        self, measured: MeasuredCost, record: TuningRecord, own: TunedChoice, dropped: TunedChoice | None
    ) -> Asking[None]:
        """Keep a choice; where another process has kept one meanwhile, take that, as no value is computed yet."""
        if not measured.key:
            return
        kept = yield from one(Keep(measured.key, record, dropped))
        first = kept.choice_for(self._budget(kept)) if isinstance(kept, TuningRecord) else None
        if first is None or first == own:
            return
        best, seconds = self._best, self._seconds
        self._best = self._first
        if not (yield from self._take(first, measured.samples)):
            self._best, self._seconds = best, seconds

    def _take(self, kept: TunedChoice, samples: int) -> Asking[bool]:
        """Take what an earlier job chose if its values still agree; returns whether it was taken."""
        candidate = Candidate(kept.engine, kept.batch_size)
        given = self._freedom.may_choose_batch_size or kept.batch_size == self._first.batch_size
        if not given or kept.batch_size > samples:
            return False  # a job with other batches has kept it
        if candidate != self._first:
            yield from self._accept_first([candidate])
            if self._best != candidate:
                log.info("engine: %s, kept since %s, is dropped, as it %s", kept.engine, kept.since,
                         self._trials.pop(candidate).refused)  # fmt: skip
                return False
        self._seconds, self._since = kept.seconds_per_point, kept.since
        return True

    # -- candidates -------------------------------------------------------------------------------------------

    def _try_all(self, budget: float) -> Asking[None]:
        """Try layouts and rewrites, then other batch sizes for the best of them, then other bases."""
        facts = yield from one(ExamineModel())
        if not isinstance(facts, Facts):
            self._broken = True
            return
        self._facts = facts
        self._trials[self._first] = Trial(*_names(self._first), facts.samples / self._seconds)
        self._slices = Slices.for_cost(self._first, self._seconds, facts, self._freedom.row)
        if refusal((yield SetUp(self._slices.of(self._first), self._slices.of(self._first)))):
            self._broken = True
            return
        self._end = self._clock() + budget  # all processes have been forked, so the budget starts here
        rewrites = combined_options(facts)
        self._candidates = self._foreseen(facts, rewrites)
        for engine in self._first.engine.variants(rewrites):
            yield from self._try(engine, self._first.batch_size)
        for name in single_options(facts):
            size = self._size_for_rows() if OPTIONS[name].shares_rows else None
            yield from self._try(with_option(self._engine, name, facts), size)
        if self._may_choose_batches and self._plan.statistics.fixed:
            yield from self._other_batches()
        for engine, gain in self._bases():
            yield from self._try(engine, gain=gain)

    def _foreseen(self, facts: Facts, rewrites: Sequence[str]) -> int:
        """About how many candidates will be tried; how many batch sizes depends on which of them win."""
        variants = len(list(self._first.engine.variants(tuple(rewrites)))) - 1  # without the first itself
        batches = 2 if self._may_choose_batches and self._plan.statistics.fixed else 0
        return variants + len(single_options(facts)) + batches + len(list(self._bases()))

    def _tell(self, candidate: Candidate) -> None:
        """Report which candidate is set up and timed now."""
        self._tried += 1
        report_candidate(candidate, self._tried, max(self._tried, self._candidates), max(0.0, self._left()))

    @property
    def _engine(self) -> Engine:
        return self._best.engine

    def _size_for_rows(self) -> int:
        """Half the batch size, where it may be chosen, for an engine that keeps two outputs of a batch in memory."""
        size = self._best.batch_size
        return max(1, size // 2) if self._may_choose_batches else size

    @property
    def _may_choose_batches(self) -> bool:
        """Whether another batch size may be chosen, and gives other batches."""
        return self._freedom.may_choose_batch_size and not self._facts.whole_batches

    def _other_batches(self) -> Asking[None]:
        """Try smaller batches while that is faster; then larger ones, unless outputs are kept that grow with them."""
        for factor in (0.25,) if self._engine.shares_rows else (0.25, 4.0):
            wins = True
            while wins:
                size = int(min(max(8, self._best.batch_size * factor), self._facts.samples))
                wins = yield from self._try(self._engine, size)

    def _bases(self) -> Iterator[tuple[Engine, float]]:
        """The best rewrites on other bases, each with the gain that it must show; those set up at once come first."""
        best = self._engine
        yield from ((engine, GAIN) for engine in quick_bases(best, self._plan, self._facts))
        for engine, seconds in slow_bases(best, self._plan, self._facts):
            if self._left() > seconds:
                yield engine, GAIN * GAIN  # every worker pays again for setting it up
            else:
                self._cut_short = True

    # -- one against another ----------------------------------------------------------------------------------

    def _left(self) -> float:
        return self._end - self._clock()

    def _try(self, engine: Engine, batch_size: int | None = None, gain: float = GAIN) -> Asking[bool]:
        """Time a candidate against the best, round by round; returns whether it is the best now."""
        candidate = Candidate(engine, batch_size or self._best.batch_size)
        if candidate in self._trials or self._broken:
            return False
        if self._left() <= 0:
            self._cut_short = True
            return False
        self._tell(candidate)
        contest = yield from compete(candidate, self._best, self._slices, gain, self._left)
        self._processes = max(self._processes, contest.processes)
        if contest.speeds:
            speed = contest.speeds[self._best]
            self._trials[self._best] = replace(self._trials[self._best], samples_per_second=speed)
        if contest.refused:
            self._broken = contest.refused == NOBODY_LEFT
            self._trials[candidate] = Trial(*_names(candidate), refused=contest.refused)
            return False
        ratios = contest.ratios
        self._trials[candidate] = Trial(
            *_names(candidate), contest.speeds.get(candidate), "", float(np.median(ratios)), spread_of(ratios)
        )
        result = verdict(ratios, gain)
        self._cut_short |= result == "open"
        if result == "faster":
            self._best = candidate
            self._winners.append(candidate)
        return result == "faster"

    # -- checking ---------------------------------------------------------------------------------------------

    def _accept_first(self, candidates: Sequence[Candidate]) -> Asking[None]:
        """Make the first of these that agrees with float32 the best; where none does, what was planned at first."""
        candidates, self._best = tuple(candidates), self._first
        if not candidates:
            return
        checked = yield from one(CheckAgreement(self._first, candidates))
        if isinstance(checked, AgreeingCandidate):
            reasons: Sequence[str] = checked.refused
        else:
            self._broken = True
            reasons = [checked.reason if isinstance(checked, FailedRequest) else NOBODY_LEFT] * len(candidates)
        for candidate, reason in zip(candidates, reasons, strict=False):
            self._trials[candidate] = replace(self._trials.get(candidate, Trial(*_names(candidate))), refused=reason)
        if not isinstance(checked, AgreeingCandidate) or checked.accepted is None:
            return
        self._best, self._seconds = checked.accepted, checked.seconds
        speed = self._trials[self._best].samples_per_second if self._best in self._trials else None
        if speed and self._engine.shares_rows:
            self._seconds = self._facts.samples / speed


def _names(candidate: Candidate) -> tuple[Engine, int]:
    return candidate.engine, candidate.batch_size
