"""Requests are batched while others are computed, answered in order, and fail alone."""

from __future__ import annotations

import asyncio
from functools import wraps

import numpy as np
import pytest

from cluster.serving.batching import FEWEST_POINTS, MOST_POINTS, Batcher, run_all


class Computing:
    """Computes when it is told to: keeps what each batch was asked."""

    def __init__(self):
        self.batches, self.gate = [], asyncio.Semaphore(0)

    async def __call__(self, key, asked):
        self.batches.append((key, [points[:, 0].tolist() for points in asked]))
        await self.gate.acquire()
        return [points.sum() if points.min() >= 0 else ValueError("negative") for points in asked]


def rows(*numbers):
    return np.array(numbers, float)[:, None]


def in_loop(test):
    """The test, run by an event loop of its own."""

    @wraps(test)
    def run(*given, **named):
        asyncio.run(test(*given, **named))

    return run


async def settled():
    for _ in range(5):
        await asyncio.sleep(0)


@in_loop
async def test_what_comes_while_one_batch_is_computed_makes_up_the_next():
    compute = Computing()
    batcher = Batcher(compute)
    asked = [asyncio.create_task(batcher.add("a", rows(number))) for number in range(4)]
    await settled()
    assert compute.batches == [("a", [[0.0], [1.0], [2.0], [3.0]])]
    asked += [asyncio.create_task(batcher.add("a", rows(*numbers))) for numbers in ((4, 5), (6,))]
    await settled()
    compute.gate.release()
    await settled()
    assert compute.batches[1] == ("a", [[4.0, 5.0], [6.0]])
    compute.gate.release()
    assert await asyncio.gather(*asked) == [0, 1, 2, 3, 9, 6]
    later = asyncio.create_task(batcher.add("a", rows(7)))
    compute.gate.release()
    assert await later == 7


@in_loop
async def test_requests_that_wait_are_spread_over_the_batches_that_may_begin():
    compute = Computing()
    batcher = Batcher(compute, at_once=3)
    asked = [asyncio.create_task(batcher.add("a", rows(number))) for number in range(8)]
    await settled()
    assert [len(points) for _, points in compute.batches] == [3, 3, 2]
    asked += [asyncio.create_task(batcher.add("a", rows(number))) for number in range(8, 13)]
    await settled()
    for _ in range(2):
        compute.gate.release()
    await settled()
    assert [len(points) for _, points in compute.batches[3:]] == [5]  # by the batch that ended first
    for _ in range(9):
        compute.gate.release()
    assert await asyncio.gather(*asked) == list(range(13))


@in_loop
async def test_a_batch_is_of_one_landscape_and_the_longest_waiting_comes_first():
    compute = Computing()
    batcher = Batcher(compute)
    asked = [asyncio.create_task(batcher.add(key, rows(number))) for number, key in enumerate("abab")]
    for _ in range(3):
        compute.gate.release()
    assert await asyncio.gather(*asked) == [0, 1, 2, 3]
    assert [key for key, _ in compute.batches] == ["a", "b"]


@in_loop
async def test_one_that_fails_leaves_the_others_and_a_batch_that_fails_fails_all():
    compute = Computing()
    batcher = Batcher(compute)
    asked = [asyncio.create_task(batcher.add("a", rows(number))) for number in (1, -1, 2)]
    compute.gate.release()
    assert [str(each) for each in await asyncio.gather(*asked, return_exceptions=True)] == [
        "1.0",
        "negative",
        "2.0",
    ]

    async def broken(key, asked):
        raise RuntimeError("all")

    failing = Batcher(broken)
    found = await asyncio.gather(failing.add("a", rows(1)), failing.add("a", rows(2)), return_exceptions=True)
    assert list(map(str, found)) == ["all", "all"]


@in_loop
async def test_who_leaves_is_not_computed_for():
    compute = Computing()
    batcher = Batcher(compute)
    asked = [asyncio.create_task(batcher.add("a", rows(number))) for number in range(3)]
    await asyncio.sleep(0)
    more = [asyncio.create_task(batcher.add("a", rows(number))) for number in (3, 4)]
    await settled()
    more[0].cancel()
    compute.gate.release()
    compute.gate.release()
    await asyncio.gather(*asked)
    assert await more[1] == 4
    assert compute.batches[-1] == ("a", [[4.0]])


@in_loop
async def test_a_batch_that_nobody_waits_for_is_cancelled_and_the_next_one_begins():
    compute, ended = Computing(), []

    async def computing(key, asked):
        try:
            return await compute(key, asked)
        except asyncio.CancelledError:
            ended.append([points[:, 0].tolist() for points in asked])
            raise

    batcher = Batcher(computing)
    asked = [asyncio.create_task(batcher.add("a", rows(number))) for number in range(2)]
    await settled()
    later = asyncio.create_task(batcher.add("a", rows(7)))
    asked[0].cancel()
    await settled()
    assert ended == []  # the other one waits for the batch
    asked[1].cancel()
    await settled()
    assert (ended, compute.batches[1:]) == ([[[0.0], [1.0]]], [("a", [[7.0]])])
    compute.gate.release()
    assert await later == 7


@in_loop
async def test_nobody_waits_for_ever_where_a_batch_is_cancelled_by_others():
    async def cancelled_once(key, asked):
        if key == "a":
            raise asyncio.CancelledError
        return [points.sum() for points in asked]

    batcher = Batcher(cancelled_once)
    asked = [asyncio.create_task(batcher.add(key, rows(number))) for number, key in enumerate("aab")]
    done, _ = await asyncio.wait(asked, timeout=60)
    assert [each.cancelled() for each in asked if each in done] == [True, True, False]


@in_loop
async def test_where_one_of_several_works_fails_the_others_are_cancelled():
    ended = []

    async def work(number):
        if number == 1:
            raise ValueError("one")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append(number)
            raise

    with pytest.raises(ValueError, match="one"):
        await run_all([work(number) for number in range(3)])
    await settled()
    assert sorted(ended) == [0, 2]


def test_batches_grow_to_what_takes_a_quarter_of_a_second():
    now = [0.0]

    async def scene(seconds_per_point):
        sizes = []

        async def compute(key, asked):
            sizes.append(sum(map(len, asked)))
            now[0] += seconds_per_point * sizes[-1]
            return [None] * len(asked)

        batcher = Batcher(compute, clock=lambda: now[0])
        await asyncio.gather(*(batcher.add("a", rows(*range(16))) for _ in range(800)))
        return sizes

    slow, quick = asyncio.run(scene(1.0)), asyncio.run(scene(1e-5))
    assert set(slow) == {FEWEST_POINTS}
    assert quick[:3] == [FEWEST_POINTS, 2 * FEWEST_POINTS, 4 * FEWEST_POINTS]
    assert max(quick) == MOST_POINTS


@pytest.mark.parametrize("at_once", [1, 3])
@in_loop
async def test_so_many_batches_are_computed_at_once(at_once):
    compute = Computing()
    batcher = Batcher(compute, at_once)
    asked = [asyncio.create_task(batcher.add("abcd"[number], rows(number))) for number in range(4)]
    await settled()
    assert len(compute.batches) == at_once
    for _ in range(4):
        compute.gate.release()
    assert await asyncio.gather(*asked) == [0, 1, 2, 3]
