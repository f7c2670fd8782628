"""The search as questions and answers: its statistics, order, budget, and what it keeps, on a made-up machine."""

from __future__ import annotations

import logging
import random
from dataclasses import replace

import pytest

from landscape.core.plan import Engine, Plan
from landscape.evaluation.tuning.choices import Candidate, Limits, Trial, TunedChoice, TuningRecord, TuningScope
from landscape.evaluation.tuning.search import (
    ENDED,
    GAIN,
    Facts,
    Failed,
    MeasuredCost,
    Search,
    budget_of,
    verdict,
)

PLAN = Plan(batch_size=256, threads=1, device="cpu")
FACTS = Facts(("channels_last", "maxima"), 4096, 16, 2, 10_000, 1000, True)
MANY = TuningScope(points=10**9)


@pytest.mark.parametrize(
    "ratios, found",
    [
        ([], "open"),
        ([9.0, 9.0], "open"),
        ([9.0, 9.0, 9.0, 9.0], "open"),  # few rounds may agree by chance
        ([1.3, 1.31, 1.29, 1.3, 1.3], "faster"),
        ([1.04, 1.04, 1.04], "slower"),  # surely faster, and not worth it
        ([0.5, 0.6, 0.4], "slower"),
        ([1.3, 0.9, 1.7], "open"),  # may be either
        ([1.1, 1.5, 1.1, 1.5, 1.1], "open"),  # all gain, and the gain is below the spread
        ([1.1, 1.5, 1.1, 1.5, 1.1, 1.5, 1.1, 1.5, 1.1], "slower"),  # and stays so
        ([2.0, 4.0, 2.0, 3.0, 2.0], "open"),  # twice as fast at least, but by how much lies further apart than that
        ([2.0, 2.4, 2.0, 2.0, 2.0], "faster"),
        ([1.2, 1.2, 1.2, 0.1, 1.2], "open"),  # one round that something else disturbed
        ([1.2, 1.2, 1.2, 0.1, 1.2, 1.2, 1.2], "faster"),
        ([1.2, 1.2, 0.1, 0.1, 1.2, 1.2, 1.2, 1.2, 1.2], "slower"),  # two of them
    ],
)
def test_a_candidate_wins_by_more_than_the_spread_it_shows(ratios, found):
    assert verdict(ratios) == found


def test_what_costs_more_to_set_up_must_gain_more():
    assert verdict([1.08, 1.09, 1.08, 1.08, 1.09]) == "faster"
    assert verdict([1.08, 1.09, 1.08, 1.08, 1.09], GAIN * GAIN) == "slower"


@pytest.mark.parametrize(
    "seconds, budget", [(19.9, 0), (20.1, 1), (39, 1), (41, 2), (79, 2), (161, 8), (700, 32), (1199, 32), (1201, 60)]
)
def test_budgets_come_in_few_sizes(seconds, budget):
    assert budget_of(0.01, round(seconds * 100), Limits()) == budget


class Machine:
    """Answers what a search asks, as processes whose speed depends on the candidate and on what else goes on.

    Args:
        alone: samples per second of a candidate on an otherwise idle machine.
        loaded: the same while as many processes compute as there are cores; default: as alone.
        processes: that answer where everyone is asked.
    """

    def __init__(self, alone, loaded=None, processes=2, noise=0.0, kept=None, refused=(), dies=(), facts=FACTS):
        self.alone, self.loaded, self.processes, self.facts = alone, loaded or alone, processes, facts
        self.kept, self.refused, self.dies = kept, set(refused), set(dies)
        self.noise, self.chance, self.now = noise, random.Random(0), 0.0
        self.asked, self.checked, self.adopted, self.forced_off = [], [], [], False

    def __call__(self, request):
        self.asked.append(request)
        answers = getattr(self, request.method)(*request.arguments)
        return answers if request.everyone else [answers]

    def asked_for(self, *methods):
        return [request for request in self.asked if request.method in methods]

    def timed(self):
        """The candidates that were timed, in order."""
        return [request.arguments[0].candidate for request in self.asked_for("time")]

    def measure(self, scope):
        plan = PLAN if scope.engine is None or self.forced_off else replace(PLAN, engine=scope.engine)
        refused = Trial(scope.engine, PLAN.batch_size, refused="is off by 1 in loss") if self.forced_off else None
        return MeasuredCost(plan, 1.0, FACTS.samples, "key", self.kept, refused=refused)

    def adopt(self, candidate):
        self.adopted.append(candidate)
        return "is off by 1 in loss" if candidate in self.refused else ""

    def examine(self):
        return self.facts

    def set_up(self, part, beside):
        self.now += 0.01
        return [] if part.candidate in self.dies else [None] * self.processes

    def time(self, part, turn):
        return [self.seconds_of(part) for _ in range(self.processes)]

    def seconds_of(self, part):
        speed = (self.loaded if self.processes > 1 else self.alone)(part.candidate)
        if speed is None:
            return Failed("fails: RuntimeError: no")
        seconds = part.count * part.candidate.batch_size / speed * (1 + self.noise * self.chance.random())
        self.now += seconds / self.processes
        return seconds

    def check(self, first, candidates):
        self.checked += candidates
        agreeing = next((k for k, each in enumerate(candidates) if each not in self.refused), len(candidates))
        return ["is off by 1 in loss"] * agreeing, 0.5

    def keep(self, key, seconds, budget=0.0, choice=None, dropped=None):
        self.kept = self.kept or TuningRecord(seconds)
        if choice is not None:
            self.kept = self.kept.with_choice(budget, choice, dropped)
        return self.kept

    def conclude(self, plan):
        return None

    def search(self, scope=MANY, **limits):
        return Search(PLAN, scope, self, Limits(**limits), lambda: self.now).run()


def flat(candidate):
    return 4096.0


def by_batch(best):
    """Fastest in one batch size, half as fast per factor of four away from it."""

    def speed(candidate):
        ratio = max(candidate.batch_size / best, best / candidate.batch_size)
        return 4096.0 / ratio**0.5

    return speed


def test_a_batch_that_spoils_the_shared_cache_does_not_win():
    alone = Machine(by_batch(4096), loaded=by_batch(64), processes=1).search()
    assert alone.plan.batch_size == 4096
    together = Machine(by_batch(4096), loaded=by_batch(64), processes=2).search()
    assert together.plan.batch_size == 64
    assert together.processes == 2


@pytest.mark.parametrize("options", [(), ("superposed",)])
def test_other_batch_sizes_are_not_tried_where_the_data_itself_cuts_the_batches(options):
    def speed(candidate):
        return by_batch(64)(candidate) * (1.5 if "superposed" in candidate.engine.options else 1.0)

    machine = Machine(speed, facts=replace(FACTS, options=options, whole_batches=True))
    assert {each.batch_size for each in machine.search().trials} == {256}
    assert {each.batch_size for each in machine.timed()} <= {256}


def test_samples_per_second_count_the_samples_of_batches_that_the_data_itself_cuts():
    """A batch holds three of 300 samples, whatever the batch size, and takes a sixteenth of a second."""
    machine = Machine(flat, facts=replace(FACTS, samples=300, batches=100, whole_batches=True))
    assert machine.search().trials[0].samples_per_second == pytest.approx(3 * 16)


def test_the_best_of_all_combinations_wins():
    def speed(candidate):
        return (
            4096.0
            * (1.2 if "maxima" in candidate.engine.options else 1.0)
            * (1.3 if "channels_last" in candidate.engine.options else 1)
        )

    found = Machine(speed).search()
    assert found.plan.engine == Engine.parse("eager+channels_last+maxima")
    assert found.seconds_per_point == 0.5
    assert {str(each.engine) for each in found.trials} >= {"eager", "eager+maxima", "eager+channels_last"}


def test_noise_does_not_choose():
    for seed in range(20):
        machine = Machine(flat, noise=0.3)
        machine.chance.seed(seed)
        assert machine.search().plan == PLAN


def test_every_round_times_both_and_neither_is_always_first():
    machine = Machine(flat, noise=0.3)
    machine.search()
    timed = [(request.arguments[1], request.arguments[0].candidate) for request in machine.asked_for("time")]
    firsts = {
        each == Candidate(Engine.parse("eager"), 256) for (turn, each), _ in zip(timed[::2], timed[1::2], strict=True)
    }
    assert firsts == {True, False}
    assert all(a[0] == b[0] and a[1] != b[1] for a, b in zip(timed[::2], timed[1::2], strict=True))


def test_the_search_ends_with_its_budget():
    machine = Machine(flat, noise=0.3)
    machine.search(TuningScope(points=10), shortest=0.5)
    assert machine.now < 0.5 + 2 * 0.1  # the round at hand is ended
    assert not machine.kept.choices[0.5].complete
    long = Machine(flat, noise=0.3)
    long.search(longest=60.0)
    assert long.now < 60


@pytest.mark.parametrize("longest, complete", [(2.0, False), (60.0, True)])
def test_what_a_search_of_full_length_found_serves_all_and_no_other_that_was_cut_short(longest, complete):
    machine = Machine(lambda candidate: 40.0, noise=0.3)
    machine.search(longest=longest)
    assert machine.kept.choices[longest].complete is complete


def test_a_winner_that_is_off_gives_way_to_the_one_before():
    def speed(candidate):
        return 4096.0 * {"eager": 1.0, "eager+channels_last": 1.5, "eager+maxima": 2.0}.get(str(candidate.engine), 0.1)

    off = Candidate(Engine.parse("eager+maxima"), 256)
    found = Machine(speed, refused=[off]).search(longest=32.0)
    assert found.plan.engine == Engine.parse("eager+channels_last")
    assert next(each for each in found.trials if each.engine == off.engine).refused == "is off by 1 in loss"


def test_what_fails_anywhere_is_out():
    def speed(candidate):
        return None if candidate.batch_size == 1024 else by_batch(4096)(candidate)

    found = Machine(speed).search()
    assert found.plan.batch_size == 256
    assert next(each for each in found.trials if each.batch_size == 1024).refused == "fails: RuntimeError: no"


def test_where_nobody_is_left_the_best_so_far_is_taken_and_nothing_is_kept():
    def speed(candidate):
        return 4096.0 * (2.0 if candidate.engine == Engine.parse("eager+channels_last") else 1.0)

    killer = Candidate(Engine.parse("eager+maxima"), 256)
    machine = Machine(speed, dies=[killer])
    found = machine.search()
    assert found.plan.engine == Engine.parse("eager+channels_last")
    assert next(each for each in found.trials if each.engine == killer.engine).refused == ENDED
    assert machine.kept is None
    assert killer not in machine.timed()


def test_who_dies_at_the_first_point_leaves_the_plan_as_it_is():
    assert Search(PLAN, MANY, lambda request: []).run().plan == PLAN


def test_a_job_finds_its_own_choice_and_one_that_left_nothing_untried_serves_all():
    machine = Machine(by_batch(64))
    first = machine.search()
    assert first.plan.batch_size == 64
    assert not first.since
    assert machine.kept.choices[60.0].complete
    machine.asked.clear()
    for points in (10**9, 30):
        again = machine.search(replace(MANY, points=points))
        assert again.plan == first.plan
        assert again.since == machine.kept.choices[60.0].since
        assert again.record().cached is True
    assert not machine.asked_for("time", "set_up")
    assert machine.adopted[-1] == Candidate(Engine.parse("eager"), 64)  # checked before it is used


def test_a_job_that_is_over_sooner_takes_a_choice_but_never_searches():
    machine = Machine(by_batch(64))
    alone = machine.search(replace(MANY, points=19))
    assert alone.plan == PLAN
    assert not alone.since
    machine.search()
    machine.asked.clear()
    short = machine.search(replace(MANY, points=19))
    assert short.plan.batch_size == 64
    assert short.since == machine.kept.choices[60.0].since
    assert not short.trials
    assert not machine.asked_for("time", "set_up", "check")


def test_a_job_that_does_not_search_takes_the_choice_of_the_longest_search():
    dates = {1.0: "2026-11-21T10:00:00+00:00", 8.0: "2026-11-22T10:00:00+00:00"}
    choices = {budget: TunedChoice(Engine(), int(budget), 0.3, date) for budget, date in dates.items()}
    record = TuningRecord(0.5, choices)
    assert record.choice_for(0.0) == choices[8.0]
    assert record.choice_for(1.0) == choices[1.0]
    assert record.choice_for(2.0) is None, "another search may find more"
    assert TuningRecord(0.5).choice_for(0.0) is None


def test_how_long_a_job_is_follows_from_the_first_time_it_was_measured():
    """At 1.0 s a point this job of 25 points is long enough to search, at 0.5 s it would not be."""
    record = TuningRecord(0.5)
    short = Machine(by_batch(64), kept=record).search(replace(MANY, points=25))
    assert short.plan == PLAN
    choice = TunedChoice(Engine.parse("eager"), 64, 0.3, "2026-11-21T10:00:00+00:00")
    kept = TuningRecord(2.0, {1.0: choice})
    assert Machine(flat, kept=kept).search(replace(MANY, points=10)).plan.batch_size == 64


def test_a_kept_choice_that_is_off_is_dropped_and_searched_anew():
    choice = TunedChoice(Engine.parse("eager+maxima"), 64, 0.3, "2026-11-21T10:00:00+00:00", True)
    machine = Machine(
        by_batch(64), kept=TuningRecord(1.0, {60.0: choice}), refused=[Candidate(Engine.parse("eager+maxima"), 64)]
    )
    found = machine.search()
    assert found.plan.batch_size == 64
    assert found.plan.engine == Engine.parse("eager")
    assert not found.since
    assert machine.kept.choices[60.0].engine == Engine.parse("eager")


@pytest.mark.parametrize("size, scope", [(5000, MANY), (64, replace(MANY, may_choose_batch_size=False))])
def test_a_kept_choice_that_no_search_of_this_job_can_have_made_is_not_taken(size, scope):
    choice = TunedChoice(Engine.parse("eager+maxima"), size, 0.3, "2026-11-21T10:00:00+00:00", True)
    machine = Machine(flat, kept=TuningRecord(1.0, {60.0: choice}))
    assert machine.search(scope).plan == PLAN
    assert Candidate(Engine.parse("eager+maxima"), size) not in [*machine.checked, *machine.adopted]


class Racing(Machine):
    """Another process has kept its choice while this one searched."""

    def __init__(self, *arguments, other, **options):
        super().__init__(*arguments, **options)
        self.other = other

    def keep(self, *record):
        self.kept = self.other
        return super().keep(*record)


def test_of_two_that_search_at_once_both_take_what_was_kept_first():
    first = TunedChoice(Engine.parse("eager"), 1024, 0.3, "2026-11-21T10:00:00+00:00", True)
    machine = Racing(by_batch(64), other=TuningRecord(1.1, {60.0: first}))
    found = machine.search()
    assert (found.plan.batch_size, found.since, found.seconds_per_point) == (1024, first.since, 0.3)
    assert machine.kept == TuningRecord(1.1, {60.0: first})
    off = Racing(by_batch(64), other=TuningRecord(1.1, {60.0: first}), refused=[Candidate(Engine.parse("eager"), 1024)])
    assert off.search().plan.batch_size == 64, "what is wrong here is not taken"


def test_a_choice_that_was_dropped_gives_way_to_the_new_one():
    old = TunedChoice(Engine.parse("eager+maxima"), 64, 0.3, "2026-11-21T10:00:00+00:00", True)
    record = TuningRecord(1.0, {60.0: old})
    machine = Racing(by_batch(64), other=record, kept=record, refused=[Candidate(Engine.parse("eager+maxima"), 64)])
    machine.search()
    assert machine.kept.choices[60.0].engine == Engine.parse("eager")


def test_every_candidate_is_told_with_how_many_there_are_and_the_seconds_left(caplog):
    caplog.set_level(logging.INFO, "landscape.stages.search")
    found = Machine(flat, noise=0.3).search()
    fields = [each.fields for each in caplog.records if each.name == "landscape.stages.search"]
    tried = [(str(each.engine), each.batch_size) for each in found.trials if each.over_best is not None]
    assert [(each["engine"], each["batch_size"]) for each in fields] == tried
    assert [each["candidate"] for each in fields] == list(range(1, len(tried) + 1))
    assert fields[-1]["candidates"] == fields[0]["candidates"] >= len(tried)
    left = [each["seconds_left"] for each in fields]
    assert left == sorted(left, reverse=True)
    assert left[0] == 60.0


def test_once_the_time_is_over_no_further_candidate_is_checked():
    """The last winner is, as part of its own time; here it is off, and its check takes all the time there is."""

    def speed(candidate):
        return 4096.0 * {"eager": 1.0, "eager+channels_last": 1.5, "eager+maxima": 2.0}.get(str(candidate.engine), 0.1)

    class Slow(Machine):
        def check(self, first, candidates):
            self.now += 100.0
            return super().check(first, candidates)

    off = Candidate(Engine.parse("eager+maxima"), 256)
    machine = Slow(speed, refused=[off])
    assert machine.search(longest=32.0).plan == PLAN
    assert machine.checked == [off]
    assert not machine.kept.choices[32.0].complete


def test_an_engine_that_is_asked_for_is_checked_and_nothing_is_searched_or_kept():
    machine = Machine(by_batch(64))
    found = machine.search(TuningScope(Engine.parse("eager+maxima"), points=10**9))
    assert found.plan == replace(PLAN, engine=Engine.parse("eager+maxima"))
    assert machine.kept is None
    assert not machine.asked_for("examine", "set_up", "time")
    machine.forced_off = True
    found = machine.search(TuningScope(Engine.parse("eager+maxima"), points=10**9))
    assert found.plan == PLAN
    assert found.warning == "engine: eager+maxima is not used, as it is off by 1 in loss; eager is"
