"""The real driver and schedule with workers that a simulation stands in for: all is done, once, and fast."""

from __future__ import annotations

import logging
import math
import random
import sys
from collections.abc import Callable, Hashable
from dataclasses import replace
from types import FrameType
from typing import Any

import numpy as np
import pytest
from simulated import NoStore, SimulatedPool, driver_of, simulate

from cluster.driver.driver import MOST_HELD
from cluster.driver.schedule import Policy
from cluster.driver.worker import MEASURE, Arrival, Receipt
from landscape.compute.reproducibility import OtherModel, ReferencePoint
from landscape.compute.tasks import Outcome
from landscape.core.errors import Interrupted, JobError
from landscape.evaluation.reduction import Values
from landscape.evaluation.reference_loss import OwnLosses, Pair

BUSY = 0.95


def ten_seconds(chance: random.Random) -> float:
    return chance.lognormvariate(math.log(10), 0.2)


@pytest.mark.long
@pytest.mark.parametrize("workers", [1, 7, pytest.param(100, marks=pytest.mark.faults)])
def test_every_tile_is_committed_once_and_the_workers_are_busy(workers):
    store = NoStore((20 * workers, 20), (3, 4))
    pool, _ = simulate(store, workers, ten_seconds)
    assert (store.commits == 1).all()
    assert pool.busy_share > BUSY
    assert pool.receipts >= store.tile_count
    assert store.record.progress.state == "complete"


class WithReferencePoints(SimulatedPool):
    """The first worker to answer computes on another processor than all others."""

    first = ""

    def arrivals(self, seconds: float) -> list[Arrival]:
        return [self._with_reference(each) for each in super().arrivals(seconds)]

    def _with_reference(self, arrival: Arrival) -> Arrival:
        if arrival.receipt is None or arrival.receipt.outcome is None:
            return arrival
        self.first = self.first or arrival.worker
        odd = arrival.worker == self.first
        reference = ReferencePoint((1.0, 1.0), {"loss": 2.0 if odd else 1.0}, {"loss": 1.0}, "Odd" if odd else "Usual")
        return replace(arrival, receipt=replace(arrival.receipt, details={"reference": reference}))


def test_a_first_worker_that_is_the_odd_one_is_told(caplog):
    """Its values stay, as values are never mixed; who reads the line can begin again without it."""
    store = NoStore((40, 20), (3, 4))
    driver, *_ = driver_of(store, 5, ten_seconds, WithReferencePoints)
    with caplog.at_level(logging.WARNING, logger="landscape"):
        driver.run()
    assert (store.commits == 1).all()
    left_out = [each for each in caplog.messages if "is left out" in each]
    assert len(left_out) == 4
    assert all("its processor, Usual," in each and "which 1 worker agrees with so far" in each for each in left_out)
    (told,) = [each for each in caplog.messages if "agree; " in each]
    assert told == (
        "landscape 'plane' holds the values of the first worker, on Odd, with which 1 of 3 workers agree; where that "
        "one is the odd one, stop, leave out its node, and give the landscape another name"
    )


class AskedForTheModel(SimulatedPool):
    """The worker that is asked for what the user's own model gives takes ten times as long; the first ones may die."""

    TAKES, DIES_AFTER = 100.0, 50.0

    def __init__(self, *given: Any, answer: OwnLosses, die: int = 0, **named: Any) -> None:
        super().__init__(*given, **named)
        self.answer, self.die, self.asked = answer, die, list[tuple[str, Hashable]]()

    def _begin(self, name: str, worker: Any, now: float) -> None:
        task, work = worker.asked[0]
        before = self._tile_seconds
        if work is not None and work.own_model:
            self.asked.append((name, task))
            self._tile_seconds = lambda chance: self.TAKES
            worker.dies = now + self.DIES_AFTER if len(self.asked) <= self.die else worker.dies
        super()._begin(name, worker, now)
        self._tile_seconds = before

    def arrivals(self, seconds: float) -> list[Arrival]:
        return [self._answered(each) for each in super().arrivals(seconds)]

    def _answered(self, arrival: Arrival) -> Arrival:
        if arrival.receipt is None or (arrival.worker, arrival.asked) not in self.asked:
            return arrival
        return replace(arrival, receipt=replace(arrival.receipt, details={"own_model": self.answer}))


def computed_with(
    answer: OwnLosses, die: int = 0, kind: type[AskedForTheModel] | None = None, shape: tuple[int, int] = (40, 20),
    stop_after: int | None = None, *, accept_origin: bool = False,
) -> tuple[NoStore, AskedForTheModel]:  # fmt: skip
    store = NoStore(shape, (2, 2))
    driver, pool, _ = driver_of(
        store, 5, ten_seconds, kind or AskedForTheModel, answer=answer, die=die, accept_origin=accept_origin,
        stop=lambda pool: stop_after is not None and pool.receipts >= stop_after,
    )  # fmt: skip
    if accept_origin or answer.origin.agrees():
        driver.run()
    else:
        with pytest.raises(OtherModel, match="loss 1, and 2 by your model's own forward pass"):
            driver.run()
    return store, pool


SAME = OwnLosses((1.0, 1.0), Pair(1.0, 1.0), Pair(1.0, 1.0))
OTHER = OwnLosses((1.0, 1.0), Pair(1.0, 2.0))


def test_nothing_is_stored_before_one_worker_has_asked_the_users_own_model():
    store, pool = computed_with(OTHER)
    assert len(pool.asked) == 1
    assert 5 < pool.receipts <= (MOST_HELD + 2) * 5, "others have computed meanwhile, and not without end"
    assert store.commits.sum() == 0
    assert store.record.own_model is None
    store, pool = computed_with(OTHER, accept_origin=True)
    assert (store.commits == 1).all()
    assert store.record.own_model.state == "accepted"
    store, pool = computed_with(SAME)
    assert (store.commits == 1).all()
    assert len(pool.asked) == 1
    assert store.record.own_model.state == "agrees"


def test_where_the_worker_that_asks_the_users_own_model_dies_another_one_asks_and_after_two_nobody():
    store, pool = computed_with(SAME, die=1)
    assert len({name for name, _ in pool.asked}) == 2
    assert (store.commits == 1).all()
    assert store.record.own_model.state == "agrees"
    store, pool = computed_with(SAME, die=2)
    assert len(pool.asked) == 2
    assert (store.commits == 1).all()
    assert store.record.own_model.state == "not compared"


def test_nothing_is_stored_where_the_first_worker_that_asks_dies_and_the_second_finds_another_model():
    store, pool = computed_with(OTHER, die=1)
    assert len({name for name, _ in pool.asked}) == 2
    assert store.commits.sum() == 0
    assert store.record.own_model is None


class Silent(AskedForTheModel):
    """Its workers have no losses to compare."""

    def _answered(self, arrival: Arrival) -> Arrival:
        return arrival


class DiesLate(AskedForTheModel):
    """It dies when another worker has done its task, so that nobody is sent another one."""

    DIES_AFTER = 99.0


class Hangs(AskedForTheModel):
    """It answers later than the driver waits."""

    TAKES = 1e6


@pytest.mark.parametrize(
    ("kind", "die", "shape"), [(Silent, 0, (40, 20)), (DiesLate, 1, (8, 6)), (Hangs, 0, (8, 6)), (Hangs, 0, (4, 4))]
)
def test_a_landscape_that_is_stored_without_an_answer_is_recorded_as_not_compared(kind, die, shape, caplog):
    store, pool = computed_with(SAME, die, kind, shape)
    assert len(pool.asked) == (2 if shape == (4, 4) else 1), "of so few tasks none is computed by two workers at once"
    assert (store.commits == 1).all()
    assert store.record.own_model.state == "not compared"
    assert "landscape 'plane' was not compared with your model: " in caplog.text


def test_a_stop_when_only_the_users_own_model_is_waited_for_completes_the_landscape():
    """Computed are twelve tasks, one of them by a second worker; the first would answer hours later."""
    store, _ = computed_with(SAME, 0, Hangs, (8, 6), stop_after=12)
    assert (store.commits == 1).all()
    assert store.record.progress.state == "complete"
    assert "had not ended" in store.record.own_model.text


@pytest.mark.long
def test_deaths_by_the_dozen_lose_nothing():
    store = NoStore((50, 50), (1, 2))
    pool, _ = simulate(store, 50, ten_seconds, deaths_per_hour=12)
    assert pool.deaths > 20
    assert (store.commits == 1).all()
    assert store.record.progress.retries >= pool.deaths / 2
    assert store.record.failures == ()


@pytest.mark.long
def test_stragglers_are_overtaken():
    """One tile in a hundred takes a hundred times as long: backups end the job long before the last of them."""

    def odd(chance: random.Random) -> float:
        return 10.0 if chance.random() < 0.99 else 1000.0

    def seconds(policy: Policy) -> float:
        store = NoStore((40, 40), (1, 1))
        _, clock = simulate(store, 50, odd, seed=1, policy=policy)
        assert (store.commits == 1).all()
        return clock.now

    assert seconds(Policy(hang_seconds=1e9)) < 0.8 * seconds(Policy(hang_seconds=1e9, straggler_factor=1e9))


@pytest.mark.long
def test_what_a_receipt_costs_does_not_grow_with_the_crew():
    """Counted in lines of Python, which no other process makes more of; `curve.py` measures the seconds."""

    def cost(workers: int) -> float:
        lines = 0

        def trace(frame: FrameType, event: str, argument: object) -> Callable[..., object]:
            nonlocal lines
            lines += event == "line"
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            pool, clock = simulate(NoStore((25, 25), (1, 1)), workers, ten_seconds, measure=lambda: 1e-7 * lines)
        finally:
            sys.settrace(before)
        return clock.driver_seconds / pool.receipts

    assert cost(200) < 1.5 * cost(20)


def test_a_worker_that_lies_is_outvoted(caplog):
    """Its losses are NaN where two others agree on a number: it goes, and its tiles are right."""

    class Checking(NoStore):
        def write_tiles(self, tiles):
            super().write_tiles(tiles)
            assert all(np.isfinite(values["loss"]).all() for _, values in tiles)

    class Liar(SimulatedPool):
        def arrivals(self, seconds):
            return [self.twisted(each) for each in super().arrivals(seconds)]

        def twisted(self, arrival):
            outcome = arrival.receipt.outcome
            if arrival.worker != "worker-3" or outcome is None:
                return arrival
            bad = Outcome(Values({"loss": outcome.points.mean["loss"] * np.nan}, outcome.points.stderr, 1.0))
            return type(arrival)(arrival.worker, arrival.asked, type(arrival.receipt)(bad))

    store = Checking((30, 30), (2, 2))
    driver, *_ = driver_of(store, 5, ten_seconds, Liar)
    driver.run()
    assert (store.commits == 1).all()
    assert "worker-3" in caplog.text
    assert "two others agree" in caplog.text


def test_what_came_in_before_an_error_of_the_same_round_is_committed():
    class Breaking(SimulatedPool):
        def arrivals(self, seconds):
            found = super().arrivals(seconds)
            if self.receipts < 40:
                return found
            return [*found, Arrival(next(iter(self.ready)), MEASURE, Receipt(cause="it broke", fatal=True)), *found]

    store = NoStore((20, 20), (1, 1))
    driver, pool, _ = driver_of(store, 10, ten_seconds, Breaking)
    with pytest.raises(JobError, match="it broke"):
        driver.run()
    assert store.commits.sum() == pool.receipts >= 40
    assert store.record.progress.state == "interrupted"
    assert store.record.progress.points_done == pool.receipts


def test_a_stop_keeps_what_ends_within_two_seconds_and_drops_the_rest():
    store = NoStore((30, 30), (1, 1))
    driver, pool, _ = driver_of(store, 50, ten_seconds, stop=lambda pool: pool.receipts >= 100)
    with pytest.raises(Interrupted, match="the same command goes on"):
        driver.run()
    assert 100 <= store.commits.sum() == pool.receipts < 160
    assert store.commits.max() == 1
