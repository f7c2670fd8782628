"""Batches of requests: the requests that arrive while one batch is computed form the next.

Ray's `serve.batch` closes a batch after a fixed time, even while the previous batch is still computed. If this time is
short, batches are small when the replica is busy; if it is long, an idle replica waits in vain. So Ray's batches are
batched again here: a batch begins as soon as the previous one has ended, with all requests that have arrived by then.
The process that clients ask batches its calls of replicas in the same way, since each call of Ray takes a millisecond
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
BATCH_SECONDS = 0.25  # about, for one batch, so that a request that arrives meanwhile does not wait long


Result = TypeVar("Result")
Compute = Callable[[str, Sequence[Floats]], Awaitable[Sequence[object]]]


@dataclass
class _Waiting:
    key: str
    points: Floats
    answer: asyncio.Future[object]


class Batcher:
    """Computes requests for points of several landscapes in batches, each of one landscape.

    Requests that wait are spread evenly over the batches that may begin now: so replicas share them, and under load as
    many batches are computed as may be, from which Ray Serve sees that there is more to do than one replica can.

    Args:
        compute: takes the landscape and the points of each request, and returns an answer for each; an answer that is
            an exception is raised for its request alone. It is cancelled when no client waits for any of them.
        at_once: the number of batches that may be computed at the same time.
    """

    def __init__(self, compute: Compute, at_once: int = 1, clock: Callable[[], float] = time.perf_counter) -> None:
        self._compute, self._at_once, self._clock = compute, at_once, clock
        self._waiting: deque[_Waiting] = deque()
        self._running, self._computing, self._tasks = 0, 0, set[asyncio.Task[None]]()
        self._most: dict[str, int] = {}

    async def add(self, key: str, points: Floats) -> object:
        """The answer for points [P, axes] of a landscape; raises an error of their computation."""
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
            self._running -= 1  # without an `await` after the last look, so that the next request starts a new task

    def _next(self) -> list[_Waiting]:
        """A batch of requests, in order, for the landscape that has waited longest."""
        key, left, points, taken = self._waiting[0].key, deque[_Waiting](), 0, list[_Waiting]()
        most, share = self._most.get(key, FEWEST_POINTS), -(-len(self._waiting) // (self._at_once - self._computing))
        while self._waiting:
            waiting = self._waiting.popleft()
            if waiting.key != key or len(taken) == share or (taken and points + len(waiting.points) > most):
                left.append(waiting)
            elif not waiting.answer.cancelled():
                taken.append(waiting)
                points += len(waiting.points)
        self._waiting = left
        return taken

    async def _answer(self, batch: Sequence[_Waiting]) -> None:
        if not batch:
            return
        self._computing += 1
        try:
            await self._compute_batch(batch)
        finally:
            self._computing -= 1

    async def _compute_batch(self, batch: Sequence[_Waiting]) -> None:
        begin = self._clock()
        computing = asyncio.ensure_future(self._compute(batch[0].key, [waiting.points for waiting in batch]))

        def unless_waited_for(_: object) -> None:
            if all(waiting.answer.cancelled() for waiting in batch):
                computing.cancel()

        for waiting in batch:
            waiting.answer.add_done_callback(unless_waited_for)
        answers: Sequence[object]
        try:
            answers = await computing
        except asyncio.CancelledError:
            for waiting in batch:
                waiting.answer.cancel()  # else a client that still waits would wait for ever
            if is_cancelled_here():
                raise  # the batcher was cancelled, not the batch
            return
        except Exception as error:
            answers = [error] * len(batch)
        else:
            self._note_seconds(batch[0].key, sum(len(waiting.points) for waiting in batch), self._clock() - begin)
        for waiting, answer in zip(batch, answers, strict=True):
            if waiting.answer.cancelled():
                continue
            if isinstance(answer, Exception):
                waiting.answer.set_exception(answer)
            else:
                waiting.answer.set_result(answer)

    def _note_seconds(self, key: str, points: int, seconds: float) -> None:
        """Choose the size of the next batch so that it takes about `BATCH_SECONDS`."""
        fitting = int(points * BATCH_SECONDS / max(seconds, 1e-6))
        before = self._most.get(key, FEWEST_POINTS)
        self._most[key] = int(np.clip(fitting, FEWEST_POINTS, min(MOST_POINTS, 2 * before)))


def is_cancelled_here() -> bool:
    """Whether the waiting task itself was cancelled; a replica that ends reports the end of its own task by gRPC."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def run_all(works: Sequence[Coroutine[Any, Any, Result]]) -> list[Result]:
    """The results of all works; if one fails, or the client no longer waits, the others are cancelled."""
    if len(works) == 1:  # like most requests; it needs no task of its own
        return [await works[0]]
    tasks = [asyncio.create_task(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


# ----------------------------------------------------------------------------------------------------
# Times of evaluation in replicas, and the header that tells clients of them.

HEADER = "server-timing"


@dataclass(frozen=True)
class BusyTime:
    """A time in which an evaluator was at work.

    Attributes:
        begin: in seconds since 1970, by the machine's clock, so that times of several processes can be compared.
        seconds: its duration, by a monotonic clock.
    """

    begin: float
    seconds: float


def time_work(work: Callable[[], Result]) -> tuple[Result, BusyTime]:
    """The result of `work`, and when it was carried out."""
    begin, start = time.time(), time.perf_counter()
    result = work()
    return result, BusyTime(begin, time.perf_counter() - start)


def covered_seconds(stretches: Sequence[BusyTime]) -> float:
    """The seconds in which at least one of several stretches ran.

    >>> covered_seconds([BusyTime(0.0, 2.0), BusyTime(1.0, 2.0), BusyTime(5.0, 1.0), BusyTime(5.0, 1.0)])
    4.0
    """
    total, end = 0.0, float("-inf")
    for stretch in sorted(stretches, key=lambda stretch: stretch.begin):
        # The first one as a whole: the sum of its ends would be rounded to the digits of seconds since 1970.
        total += stretch.seconds if stretch.begin >= end else max(0.0, stretch.begin + stretch.seconds - end)
        end = max(end, stretch.begin + stretch.seconds)
    return total


def server_timing(stretches: Sequence[BusyTime], total: float) -> str:
    """The value of the header Server-Timing: milliseconds of the evaluation, and of the whole answer.

    >>> server_timing([BusyTime(0.0, 0.0941)], 0.099), server_timing([], 0.001)
    ('evaluate;dur=94.1, total;dur=99.0', 'evaluate;dur=0.0, total;dur=1.0')

    Args:
        stretches: the times of the evaluations for the answer; none if nothing was computed for it.
        total: seconds from the beginning of the request to its answer.
    """
    return f"evaluate;dur={1e3 * covered_seconds(stretches):.1f}, total;dur={1e3 * total:.1f}"
