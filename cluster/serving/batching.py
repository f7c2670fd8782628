"""Batches of requests: what arrives while one batch is computed makes up the next.

Ray's `serve.batch` closes a batch after a time, even while the batch before is still computed. With a short time its
batches are small when the replica is busy; with a long one an idle replica waits for nothing. So what it hands over is
batched again here: a batch begins as soon as the one before has ended, with all requests that are there by then. The
process that clients ask batches its questions to replicas in the same way, since each call of Ray takes a millisecond
of both processes.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from landscape.core.grid import Floats

FEWEST_POINTS, MOST_POINTS = 16, 4096  # of a batch
BATCH_SECONDS = 0.25  # about how long one takes, so that a request which comes meanwhile does not wait long


Result = TypeVar("Result")
Compute = Callable[[str, Sequence[Floats]], Awaitable[Sequence[object]]]


@dataclass
class _Waiting:
    key: str
    points: Floats
    answer: asyncio.Future[object]


class Batcher:
    """Computes requests for points of several landscapes in batches, each of one landscape.

    Args:
        compute: is given the landscape and the points of each request, and returns an answer for each; an answer that
            is an exception is raised to its request alone. It is cancelled once nobody waits for any of them.
        at_once: how many batches may be computed at the same time.
    """

    def __init__(self, compute: Compute, at_once: int = 1, clock: Callable[[], float] = time.perf_counter) -> None:
        self._compute, self._at_once, self._clock = compute, at_once, clock
        self._waiting: deque[_Waiting] = deque()
        self._running, self._tasks = 0, set[asyncio.Task[None]]()
        self._most: dict[str, int] = {}

    async def add(self, key: str, points: Floats) -> object:
        """The answer for points [P, axes] of a landscape; raises what was raised while they were computed."""
        waiting = _Waiting(key, points, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        if self._running < self._at_once:
            self._running += 1
            task = asyncio.get_running_loop().create_task(self._run())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return await waiting.answer

    async def _run(self) -> None:
        try:
            while self._waiting:
                await self._answer(self._next())
        finally:
            self._running -= 1  # in the same step in which nothing was left, so that what comes next begins anew

    def _next(self) -> list[_Waiting]:
        """The requests of the landscape that has waited longest, in their order, as many as make a batch."""
        key, left, points, taken = self._waiting[0].key, deque[_Waiting](), 0, list[_Waiting]()
        most = self._most.get(key, FEWEST_POINTS)
        while self._waiting:
            waiting = self._waiting.popleft()
            if waiting.key != key or (taken and points + len(waiting.points) > most):
                left.append(waiting)
            elif not waiting.answer.cancelled():
                taken.append(waiting)
                points += len(waiting.points)
        self._waiting = left
        return taken

    async def _answer(self, batch: Sequence[_Waiting]) -> None:
        if not batch:
            return
        begin = self._clock()
        computing = asyncio.ensure_future(self._compute(batch[0].key, [each.points for each in batch]))

        def unless_waited_for(_: object) -> None:
            if all(each.answer.cancelled() for each in batch):
                computing.cancel()

        for waiting in batch:
            waiting.answer.add_done_callback(unless_waited_for)
        answers: Sequence[object]
        try:
            answers = await computing
        except asyncio.CancelledError:
            for each in batch:
                each.answer.cancel()  # who still waits would wait for ever
            if is_cancelled_here():
                raise  # this batcher is ended, not the batch
            return
        except Exception as error:
            answers = [error] * len(batch)
        else:
            self._note_seconds(batch[0].key, sum(len(each.points) for each in batch), self._clock() - begin)
        for waiting, answer in zip(batch, answers, strict=True):
            if waiting.answer.cancelled():
                continue
            if isinstance(answer, Exception):
                waiting.answer.set_exception(answer)
            else:
                waiting.answer.set_result(answer)

    def _note_seconds(self, key: str, points: int, seconds: float) -> None:
        """Take as many points for the next batch as would take about `BATCH_SECONDS`."""
        fitting = int(points * BATCH_SECONDS / max(seconds, 1e-6))
        before = self._most.get(key, FEWEST_POINTS)
        self._most[key] = int(np.clip(fitting, FEWEST_POINTS, min(MOST_POINTS, 2 * before)))


def is_cancelled_here() -> bool:
    """Whether the waiting task itself was cancelled: a replica that ends passes on, by gRPC, that its own task was."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def run_all(works: Sequence[Coroutine[Any, Any, Result]]) -> list[Result]:
    """The results of all works; where one fails, or nobody waits any more, the others are cancelled."""
    if len(works) == 1:  # as of most requests, which need no task of their own
        return [await works[0]]
    tasks = [asyncio.create_task(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


# ----------------------------------------------------------------------------------------------------
# When answers were evaluated: stretches of time in replicas, and what clients are told of them.

HEADER = "server-timing"


@dataclass(frozen=True)
class BusyTime:
    """A time in which an evaluator was at work.

    Attributes:
        begin: in seconds since 1970 by the clock of its machine, so that those of several processes compare.
        seconds: how long it took, by a clock that nobody sets.
    """

    begin: float
    seconds: float


def time_work(work: Callable[[], Result]) -> tuple[Result, BusyTime]:
    """What work returns, and when it was carried out."""
    begin, start = time.time(), time.perf_counter()
    result = work()
    return result, BusyTime(begin, time.perf_counter() - start)


def covered_seconds(stretches: Sequence[BusyTime]) -> float:
    """The seconds in which at least one of several stretches ran.

    >>> covered_seconds([BusyTime(0.0, 2.0), BusyTime(1.0, 2.0), BusyTime(5.0, 1.0), BusyTime(5.0, 1.0)])
    4.0
    """
    total, end = 0.0, float("-inf")
    for each in sorted(stretches, key=lambda each: each.begin):
        # The first one as a whole: the sum of its ends would be rounded to the digits of seconds since 1970.
        total += each.seconds if each.begin >= end else max(0.0, each.begin + each.seconds - end)
        end = max(end, each.begin + each.seconds)
    return total


def server_timing(stretches: Sequence[BusyTime], total: float) -> str:
    """The value of the header: milliseconds of the evaluation, and of the answer as a whole.

    >>> server_timing([BusyTime(0.0, 0.0941)], 0.099), server_timing([], 0.001)
    ('evaluate;dur=94.1, total;dur=99.0', 'evaluate;dur=0.0, total;dur=1.0')

    Args:
        stretches: of the evaluations that gave the answer; none where nothing was computed for it.
        total: seconds from the beginning of the request to its answer.
    """
    return f"evaluate;dur={1e3 * covered_seconds(stretches):.1f}, total;dur={1e3 * total:.1f}"
