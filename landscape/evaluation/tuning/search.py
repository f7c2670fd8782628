"""The search for the fastest engine: which candidate is timed next, which one has won, and when the search ends.

It touches no model and no file: it sends a `TuningRequest` for everything. So the same search runs in this process
with others beside it (`tune` in `local_search.py`), and on the workers of a cluster.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from statistics import fmean
from typing import Any, Literal

import numpy as np

from landscape.core.grid import TILE_SECONDS
from landscape.core.plan import BASES, OPTIONS, Engine, Plan
from landscape.evaluation.tuning.choices import (
    DEFAULT_POINT_SECONDS,
    Candidate,
    Limits,
    Trial,
    Tuned,
    TunedChoice,
    TuningRecord,
    TuningScope,
)

# ----------------------------------------------------------------------------------------------------
# The requests of a search, and their answers.


@dataclass(frozen=True)
class TuningRequest:
    """A method of `trials.Trials` to call: in one process, or with `everyone` in all at once."""

    method: Literal["measure", "adopt", "examine", "set_up", "time", "check", "keep", "conclude"]
    arguments: tuple[Any, ...] = ()
    everyone: bool = False


@dataclass(frozen=True)
class Failed:
    """The answer to a request that raised an error."""

    reason: str


Ask = Callable[[TuningRequest], Sequence[Any]]  # one answer of each process that is still alive


@dataclass(frozen=True)
class MeasuredCost:
    """The plan with the first engine and batches that fit, the seconds of a point, and the record of earlier searches.

    Args:
        refused: the engine of the job or of the rules, if it cannot be used, and plain `eager` is.
        key: a digest of everything that a choice depends on; empty if no choice is to be kept.
    """

    plan: Plan
    seconds: float
    samples: int
    key: str = ""
    record: TuningRecord | None = None
    warning: str = ""
    refused: Trial | None = None


@dataclass(frozen=True)
class Facts:
    """The facts that decide which candidates there are.

    Args:
        options: engine options that would change how the model is computed.
        axes: the number of the landscape's axes.
        resident: whether the samples stay on the device.
        whole_batches: whether the data itself cuts the batches, whatever the batch size.
    """

    options: tuple[str, ...]
    samples: int
    batches: int
    axes: int
    modules: int
    moved_parameters: int
    resident: bool
    whole_batches: bool = False


@dataclass(frozen=True)
class Slice:
    """A candidate, how many of its batches are timed, and the assumed number of points that share a row's cost."""

    candidate: Candidate
    count: int
    row: int


# ----------------------------------------------------------------------------------------------------
# Decide from timings whether an engine is faster, and how long a search may take: pure functions of numbers.

FEWEST_ROUNDS, ENOUGH_ROUNDS, MANY_ROUNDS, MOST_ROUNDS = 3, 5, 7, 9
GAIN = 1.05  # a smaller speed-up is noise
LONGEST_ROW = 16  # the shared cost of a row is divided among at most so many points


def budget_of(seconds_per_point: float, points: int, limits: Limits) -> float:
    """Seconds that a job's search may take: `shortest` doubled as often as the share allows, 0 if it allows none.

    There are few possible budgets, so jobs of about the same length find each other's choices.
    """
    allowed, budget = limits.share * seconds_per_point * points, limits.shortest
    if allowed < budget:
        return 0.0
    while 2 * budget <= min(allowed, limits.longest):
        budget *= 2
    return limits.longest if allowed >= limits.longest else budget


def verdict(ratios: Sequence[float], gain: float = GAIN) -> Literal["faster", "slower", "open"]:
    """Whether a candidate is faster, from its speed relative to the best one's in each round so far.

    It is faster if, after enough rounds, three quarters of them show a gain worth having and the median gain exceeds
    the spread. Of equally fast candidates, in rounds that differ by up to 60 %, fewer than one in a hundred passes. A
    candidate that shows no gain in any round is dropped sooner; one that is undecided at the end is not faster.
    """
    if len(ratios) < FEWEST_ROUNDS:
        return "open"
    low, middle = np.quantile(ratios, (0.25, 0.5))
    if len(ratios) >= ENOUGH_ROUNDS and low > gain and middle - 1 > spread_of(ratios):
        return "faster"
    return "slower" if max(ratios) < gain or len(ratios) >= MOST_ROUNDS else "open"


def spread_of(ratios: Sequence[float]) -> float:
    """The difference of the highest and the lowest ratio; of many ratios, without the two at the ends."""
    ascending = sorted(ratios)
    kept = ascending[1:-1] if len(ascending) >= MANY_ROUNDS else ascending
    return kept[-1] - kept[0]


def row_points(seconds: float, axes: int) -> int:
    """About how many points a row of a tile will hold, given what a point costs."""
    return max(1, min(LONGEST_ROW, int((TILE_SECONDS / seconds) ** (1 / max(1, axes)))))


# ----------------------------------------------------------------------------------------------------
# The search itself.

STACKED_PARAMETERS = 4_000_000  # above this, one point fills a GPU
STACKED_POINTS = (8, 32)
SLICE_SECONDS = 0.05  # about how long the batches of one timing take
MOST_CHECKED = 3  # winners that are compared with float32, the last one first
ENDED = "ends the process that tries it"

log = logging.getLogger("landscape")
stages = logging.getLogger("landscape.stages.search")  # shown as the current activity of a job


def other_bases(best: Engine, plan: Plan, facts: Facts) -> list[tuple[Engine, float]]:
    """The best rewrites on the other suitable bases, each with about how many seconds its set-up takes.

    The quickest to set up come first.
    """
    found = list[tuple[Engine, float]]()
    for name, base in BASES.items():
        resident = facts.resident or not base.needs_resident
        if plan.statistics.recalibrated or plan.device not in base.tried_on or not resident:
            continue
        at_once = STACKED_POINTS if base.stacks else (1,)
        if base.stacks and facts.moved_parameters >= STACKED_PARAMETERS:
            continue
        seconds = base.setup_seconds + base.setup_seconds_per_module * facts.modules
        found += [(best.on(name, points), seconds) for points in at_once]
    return sorted(found, key=lambda base: base[1] > 0)


def report_candidate(candidate: Candidate, number: int, candidates: int, seconds_left: float) -> None:
    """Log the candidate that is now set up and timed.

    Args:
        number: how many candidates were tried so far, including this one.
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


class RequestError(Exception):
    """A request raised in a process, or ended the process; holds the reason in words."""


class Search:
    """Times each candidate against the best so far in the same rounds; the last winner that agrees is chosen.

    Args:
        plan: the first plan, before an engine is chosen.
        ask: carries out a request in one process, or in all of them.
        clock: the time in seconds, for the budget.
    """

    def __init__(
        self, plan: Plan, scope: TuningScope, ask: Ask, limits: Limits | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:  # fmt: skip
        self._plan, self._scope, self._ask = plan, scope, ask
        self._limits, self._clock = limits or Limits(), clock
        self._trials: dict[Candidate, Trial] = {}
        self._winners: list[Candidate] = []
        self._seconds, self._warning, self._since = DEFAULT_POINT_SECONDS, "", ""
        self._end, self._processes = 0.0, 0
        self._tried = self._expected = 0
        self._cut_short = self._broken = False

    def run(self) -> Tuned:
        """Search within the budget, and return the plan to use; no failure of a candidate ends the job."""
        try:
            cost: MeasuredCost = self._ask_one("measure", self._scope)
        except RequestError as error:
            # User code has raised; computing the point's tile will report that.
            return Tuned(self._plan, raised="" if str(error) == ENDED else str(error), by=self._by)
        self._plan, self._seconds, self._warning = cost.plan, cost.seconds, cost.warning
        self._first = self._best = Candidate(self._plan.engine, self._plan.batch_size)
        if cost.refused is not None:
            self._trials[Candidate(cost.refused.engine, cost.refused.batch_size)] = cost.refused
        if self._scope.engine is None:
            self._choose(cost)
        elif cost.refused is not None:
            of_job = "" if self._scope.by == "given" else ", which other landscapes of the job have,"
            self._warning = (
                f"engine: {cost.refused.engine}{of_job} is not used, as it {cost.refused.refused}; "
                f"{self._first.engine} is"
            )
        plan = replace(self._plan, engine=self._best.engine, batch_size=self._best.batch_size)
        precision_error = None
        try:
            precision_error = self._ask_one("conclude", plan)
        except RequestError as error:
            if str(error) != ENDED:
                log.info("engine: nothing is chosen: it %s", error)
                plan = self._plan
        trials = tuple(self._trials.values())
        return Tuned(
            plan, self._seconds, trials, precision_error, self._warning, self._since, self._processes, by=self._by
        )

    @property
    def _by(self) -> str:
        if self._scope.engine is not None:
            return self._scope.by
        return "kept" if self._since else "search" if self._processes else "rule"

    def _ask_one(self, method: Any, *arguments: Any) -> Any:
        """The answer of one process.

        Raises:
            RequestError: the process raised, or has ended.
        """
        return self._answers(TuningRequest(method, arguments))[0]

    def _ask_all(self, method: Any, *arguments: Any) -> Sequence[Any]:
        """The answers of all processes that have not ended.

        Raises:
            RequestError: one of them raised, or all have ended.
        """
        return self._answers(TuningRequest(method, arguments, everyone=True))

    def _answers(self, request: TuningRequest) -> Sequence[Any]:
        answers = self._ask(request)
        for answer in answers or [Failed(ENDED)]:
            if isinstance(answer, Failed):
                raise RequestError(answer.reason)
        return answers

    def _choose(self, cost: MeasuredCost) -> None:
        """Use a kept choice; if there is none, search, and keep the result."""
        record = cost.record or TuningRecord(cost.seconds)
        budget = self._budget(record)
        kept = record.choice_for(budget)
        if kept is not None and (self._take(kept, cost.samples) or self._broken):
            return
        if not budget:
            if cost.record is None and cost.key:
                self._ask(TuningRequest("keep", (cost.key, cost.seconds)))
            return
        log.info("engine: trying what is faster than %s, for up to %g s and the candidate then at hand (a compilation "
                 "is not cut short)", self._first.engine, budget)  # fmt: skip
        try:
            self._try_all(budget)
        except RequestError:
            self._broken = True
        self._accept_first(self._winners[-1:])
        for earlier in self._winners[-2 : -MOST_CHECKED - 1 : -1]:
            if self._best != self._first or self._broken:
                break
            if self._left() <= 0:
                self._cut_short = True
                break
            self._accept_first([earlier])
        if not self._broken and cost.key:
            self._keep(cost, record, budget, dropped=kept)

    def _budget(self, record: TuningRecord) -> float:
        return budget_of(record.seconds_per_point, self._scope.points, self._limits)

    def _keep(self, cost: MeasuredCost, record: TuningRecord, budget: float, dropped: TunedChoice | None) -> None:
        """Keep the choice; if another process has kept one meanwhile, use that, as no value is stored yet."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        complete = not self._cut_short or budget >= Limits.longest  # no job will search for longer
        own = TunedChoice(self._best.engine, self._best.batch_size, self._seconds, now, complete)
        try:
            kept: TuningRecord = self._ask_one("keep", cost.key, record.seconds_per_point, budget, own, dropped)
        except RequestError:
            return
        first = kept.choice_for(self._budget(kept))
        if first is None or first == own:
            return
        best, seconds = self._best, self._seconds
        self._best = self._first
        if not self._take(first, cost.samples):
            self._best, self._seconds = best, seconds

    def _take(self, kept: TunedChoice, samples: int) -> bool:
        """Use an earlier job's choice if its values still agree; returns whether it is used."""
        candidate = Candidate(kept.engine, kept.batch_size)
        suits = self._scope.may_choose_batch_size or kept.batch_size == self._first.batch_size
        if not suits or kept.batch_size > samples:
            return False  # kept by a job with other batches
        if candidate != self._first:
            try:
                reason = self._ask_one("adopt", candidate)
            except RequestError as error:
                reason = str(error)
                self._broken = reason == ENDED
            if reason:
                log.info("engine: %s, kept since %s, is not used, as it %s", kept.engine, kept.since, reason)
                return False
            self._best = candidate
        self._seconds, self._since = kept.seconds_per_point, kept.since
        return True

    # -- candidates -------------------------------------------------------------------------------------------

    def _try_all(self, budget: float) -> None:
        """Try layouts and rewrites, then other batch sizes for the best of them, then other bases.

        Raises:
            RequestError: no process is left, or the model cannot be examined.
        """
        facts: Facts = self._ask_one("examine")
        self._facts = facts
        self._trials[self._first] = Trial(**vars(self._first), samples_per_second=facts.samples / self._seconds)
        self._count = max(1, round(SLICE_SECONDS / (self._seconds / facts.batches)))
        self._row = self._scope.row or row_points(self._seconds, facts.axes)
        self._ask_all("set_up", self._slice(self._first), self._slice(self._first))
        self._end = self._clock() + budget  # all processes have been forked: the budget starts here
        combined = tuple(name for name in facts.options if OPTIONS[name].combined)
        single = [name for name in facts.options if not OPTIONS[name].combined]
        tries_batches = self._may_choose_batches and self._plan.statistics.fixed
        engines = list(self._first.engine.variants(combined))
        if self._engine.stacks:
            engines.insert(0, Engine())  # one by one, where the kernels take longer than was thought
        # How many batch sizes are tried depends on which win; the first engine itself is not tried.
        bases = [seconds for _, seconds in other_bases(self._engine, self._plan, facts) if seconds < budget]
        self._expected = len(engines) - 1 + len(single) + 2 * tries_batches + len(bases)
        for engine in engines:
            self._try(engine, self._first.batch_size)
        for name in single:
            if self._engine.base not in OPTIONS[name].bases:
                continue
            if OPTIONS[name].shares_rows and not self._scope.same_moved:
                continue
            if name in self._engine.options:
                self._try(self._engine.without(name))
                continue
            along = [other for other in OPTIONS[name].along if other in facts.options]
            size = self._size_for_rows() if OPTIONS[name].shares_rows else None
            self._try(self._engine.adding(name, *along), size)
        if tries_batches:
            self._try_other_batches()
        for engine, seconds in other_bases(self._engine, self._plan, facts):
            if not seconds:
                self._try(engine)
            elif self._left() > seconds:
                self._try(engine, gain=GAIN * GAIN)  # every worker pays for the set-up again
            else:
                self._cut_short = True

    @property
    def _engine(self) -> Engine:
        return self._best.engine

    def _size_for_rows(self) -> int:
        """Half the batch size, if it may be chosen, for an engine that keeps two outputs of a batch in memory."""
        size = self._best.batch_size
        return max(1, size // 2) if self._may_choose_batches else size

    @property
    def _may_choose_batches(self) -> bool:
        """Whether the batch size may be chosen and changes the batches."""
        return self._scope.may_choose_batch_size and not self._facts.whole_batches

    def _try_other_batches(self) -> None:
        """Try smaller batches while they are faster; then larger ones, unless kept outputs would grow with them."""
        for factor in (0.25,) if self._engine.shares_rows else (0.25, 4.0):
            wins = True
            while wins:
                size = int(min(max(8, self._best.batch_size * factor), self._facts.samples))
                wins = self._try(self._engine, size)

    # -- one against another ----------------------------------------------------------------------------------

    def _left(self) -> float:
        return self._end - self._clock()

    def _try(self, engine: Engine, batch_size: int | None = None, gain: float = GAIN) -> bool:
        """Time a candidate against the best until one is known to be faster; returns whether the candidate is.

        Raises:
            RequestError: no process is left.
        """
        candidate = Candidate(engine, batch_size or self._best.batch_size)
        if candidate in self._trials:
            return False
        if self._left() <= 0:
            self._cut_short = True
            return False
        self._tried += 1
        report_candidate(candidate, self._tried, max(self._tried, self._expected), max(0.0, self._left()))
        ratios, speeds = list[float](), dict[Candidate, float]()
        try:
            self._ask_all("set_up", self._slice(candidate), self._slice(self._best))
            while verdict(ratios, gain) == "open" and not (ratios and self._left() <= 0):
                speeds = self._time_both(candidate, len(ratios))
                ratios.append(speeds[candidate] / speeds[self._best])
        except RequestError as error:
            self._trials[candidate] = Trial(**vars(candidate), refused=str(error))
            if str(error) == ENDED:
                raise
            return False
        finally:
            if speeds:
                best = self._trials[self._best]
                self._trials[self._best] = replace(best, samples_per_second=speeds[self._best])
        middle = float(np.median(ratios))
        self._trials[candidate] = Trial(**vars(candidate), samples_per_second=speeds[candidate],
                                        over_best=middle, spread=spread_of(ratios))  # fmt: skip
        result = verdict(ratios, gain)
        self._cut_short |= result == "open"
        if result != "faster":
            return False
        self._best = candidate
        self._winners.append(candidate)
        return True

    def _time_both(self, candidate: Candidate, number: int) -> dict[Candidate, float]:
        """Samples per second of the candidate and of the best, in one round; each the mean over the processes."""
        speeds: dict[Candidate, float] = {}
        # They take turns in going first, so periodic load does not always slow the same one.
        for timed in (candidate, self._best)[:: 1 if number % 2 else -1]:
            seconds = self._ask_all("time", self._slice(timed), number)
            self._processes = max(self._processes, len(seconds))
            samples = self._samples_of(self._slice(timed))
            speeds[timed] = fmean(samples / max(taken, 1e-9) for taken in seconds)
        return speeds

    def _slice(self, candidate: Candidate) -> Slice:
        """The batches of a candidate with about as many samples as those of the first candidate; at least one."""
        count = max(1, round(self._count * self._first.batch_size / candidate.batch_size))
        return Slice(candidate, count, self._row)

    def _samples_of(self, part: Slice) -> float:
        facts: Facts = self._facts
        batch = facts.samples / facts.batches if facts.whole_batches else part.candidate.batch_size
        return min(part.count * batch, facts.samples)

    def _accept_first(self, candidates: Sequence[Candidate]) -> None:
        """Make the first of these that agrees with float32 the best; if none does, the first plan."""
        self._best = self._first
        if not candidates:
            return
        try:
            refused, seconds = self._ask_one("check", self._first, tuple(candidates))
        except RequestError as error:
            self._broken = True
            refused, seconds = [str(error)] * len(candidates), 0.0
        for candidate, reason in zip(candidates, refused, strict=False):
            self._trials[candidate] = replace(self._trials.get(candidate, Trial(**vars(candidate))), refused=reason)
        if len(refused) == len(candidates):
            return
        self._best, self._seconds = candidates[len(refused)], seconds
        trial = self._trials.get(self._best)
        if trial is not None and trial.samples_per_second and self._engine.shares_rows:
            self._seconds = self._facts.samples / trial.samples_per_second
