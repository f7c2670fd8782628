"""Finds the values of points: in the store, among values served before, or by a replica that computes them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cluster.serving.batching import Batcher, BusyTime, run_all
from cluster.serving.landscapes import Replicas, ServedLandscape, rows_as_bytes
from cluster.serving.replica import ComputedValues, Curvature, DerivativeKind, Gradient, join_values
from cluster.serving.requests import BUSY, FAILED, Refusal
from landscape.core.grid import Floats
from landscape.surface.surface import NOT_FINITE, OK

# ----------------------------------------------------------------------------------------------------
# Values of points in memory: the latest ones, up to a number of bytes.

OVERHEAD = 250  # about the bytes that Python needs for an entry


class PointCache:
    """Rows of values by landscape and point; the least recently used are dropped first.

    Args:
        most: bytes in total; 0 keeps nothing.
    """

    def __init__(self, most: int) -> None:
        self._most, self._rows = most, OrderedDict[tuple[str, bytes], bytes]()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, identity: str, point: bytes) -> bytes | None:
        """The row of a point; None if the cache does not hold it.

        Args:
            identity: the digest of what decides the landscape's values.
        """
        row = self._rows.get((identity, point))
        if row is not None:
            self._rows.move_to_end((identity, point))
        return row

    def put(self, identity: str, point: bytes, row: bytes) -> None:
        """Hold a row, and drop the oldest ones if there is no room."""
        size = OVERHEAD + len(point) + len(row)
        if size > self._most or (identity, point) in self._rows:
            return
        self._rows[identity, point] = row
        self.bytes += size
        while self.bytes > self._most:
            (_, oldest), values = self._rows.popitem(last=False)
            self.bytes -= OVERHEAD + len(oldest) + len(values)


# ----------------------------------------------------------------------------------------------------

CHUNK = 64  # points in one call to a replica: rows of a patch stay together, and other requests get their turn
CHUNKS_AT_ONCE = 2  # calls of each replica at the same time: one that it computes, and one that waits for it
# Above this average of calls another replica is started. One client that asks for one point after another has one call
# under way, which a second replica would not answer sooner. Since calls carry the requests of many clients, there are
# never more than CHUNKS_AT_ONCE for each replica that there may be.
CALLS_PER_REPLICA = 1.5
SOURCES = ("store", "cache", "computed")
STORE, CACHE, COMPUTED = range(3)
FASTEST, SLOWEST = 1.0, 60.0  # seconds after which a request that found the queue full may be tried again

log = logging.getLogger("landscape")


@dataclass(frozen=True)
class ResolvedValues:
    """The values of points.

    Attributes:
        table: float64 [P, columns].
        status: uint8 [P], as in the store: 1 where the loss is finite, else 2.
        source: uint8 [P], indices into `SOURCES`.
        evaluated: when replicas evaluated the points that were computed.
    """

    table: Floats
    status: NDArray[np.uint8]
    source: NDArray[np.uint8]
    evaluated: Sequence[BusyTime] = ()


@dataclass
class Queue:
    """Counts the requests for which replicas are computing.

    Args:
        most: how many there may be.
    """

    most: int
    clock: Callable[[], float] = time.monotonic
    waiting: int = field(default=0, init=False)
    seconds: float = field(default=FASTEST, init=False)  # that a request took lately, on average

    @contextlib.contextmanager
    def place(self) -> Iterator[None]:
        """Hold a place within the block.

        Raises:
            Refusal: no place is free; says when to ask again.
        """
        if self.waiting >= self.most:
            after = min(max(self.seconds, FASTEST), SLOWEST)
            raise Refusal(
                BUSY, f"busy: {self.waiting} requests are being computed, which is the most; ask again later", after
            )
        self.waiting += 1
        begin = self.clock()
        try:
            yield
        finally:
            self.waiting -= 1
            self.seconds += 0.1 * (self.clock() - begin - self.seconds)


class Resolver:
    """Finds the values at points of landscapes, each in the first source that has it.

    Args:
        replicas: compute values that no other source has.
        queue: of requests for which replicas compute.
        count: how many replicas there may be.
    """

    def __init__(self, replicas: Replicas, cache: PointCache, queue: Queue, count: int = 1) -> None:
        self._replicas, self._cache, self.queue = replicas, cache, queue
        self.most_replicas, self._at_once = count, CHUNKS_AT_ONCE * count
        self._batcher = Batcher(self._ask_replica, self._at_once)
        self._writer = ThreadPoolExecutor(1, "keeping")
        self.under_way = 0
        self.points_by_source = np.zeros(len(SOURCES), np.int64)  # that were answered
        self._warned = set[Path]()  # files that could not be written, each warned of once

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        """Within the block a request counts as under way: the service does not end before it is answered."""
        self.under_way += 1
        try:
            yield
        finally:
            self.under_way -= 1

    def end(self) -> None:
        """End after all values to be kept are written, so that their files may be closed."""
        self._writer.shutdown()

    async def points(self, served: ServedLandscape, points: Floats, *, placed: bool = False) -> ResolvedValues:
        """The values at points [P, axes], in their order.

        Args:
            placed: the request already has a place in the queue.

        Raises:
            Refusal, LandscapeError: the values are not available.
        """
        await served.refresh()
        table = np.full((len(points), len(served.info.columns)), np.nan)
        source = np.full(len(points), COMPUTED, np.uint8)
        missing = np.ones(len(points), bool)
        if served.stored is not None:
            held, values = served.stored.find(points)
            table[held], source[held], missing[held] = values, STORE, False
        for row in np.flatnonzero(missing).tolist():
            (point,) = rows_as_bytes(points[row : row + 1])
            known = self._find_held(served, point)
            if known is not None:
                table[row], source[row], missing[row] = np.frombuffer(known), CACHE, False
        evaluated: Sequence[BusyTime] = ()
        if missing.any():
            with contextlib.nullcontext() if placed else self.queue.place():
                table[missing], evaluated = await self._compute(served, points[missing])
            await served.refresh()  # computing takes long; the run may have been deleted meanwhile
        self.points_by_source += np.bincount(source, minlength=len(SOURCES))
        status = np.where(np.isfinite(table[:, 0]), OK, NOT_FINITE).astype(np.uint8)
        return ResolvedValues(table, status, source, evaluated)

    async def derivative(
        self, served: ServedLandscape, kind: DerivativeKind, point: Sequence[float]
    ) -> Gradient | Curvature:
        """The first or the second derivatives of the loss along the axes at a point."""
        await served.refresh()
        with self.queue.place():
            found = await self._replicas.derivative(served.source.key, kind, point)
        served.refuse_other_revision(found.revision)
        await served.refresh()
        return found

    def _find_held(self, served: ServedLandscape, point: bytes) -> bytes | None:
        row = self._cache.get(served.info.identity, point)
        if row is None and served.point_file is not None:
            row = served.point_file.get(point)
        return row

    async def _compute(self, served: ServedLandscape, points: Floats) -> tuple[Floats, Sequence[BusyTime]]:
        """Compute and hold the values of points, each point once; returns the values and when they were computed."""
        places, back = np.unique(points, axis=0, return_inverse=True)
        gate = asyncio.Semaphore(self._at_once)

        async def part(chunk: Floats) -> ComputedValues:
            async with gate:
                computed = await self._batcher.add(served.source.key, chunk)
            assert isinstance(computed, ComputedValues)
            served.refuse_other_revision(computed.revision)
            if computed.whole:
                await self._hold(served, chunk, computed)
            return computed

        chunks = [places[start : start + CHUNK] for start in range(0, len(places), CHUNK)]
        computed = join_values(await run_all([part(chunk) for chunk in chunks]))
        return computed.table[back.reshape(-1)], computed.evaluated

    async def _ask_replica(self, key: str, asked: Sequence[Floats]) -> Sequence[object]:
        """The values of several requests, by one call of a replica; if user code raises, by a call for each.

        Any other refusal holds for all requests: asking for each would load a landscape, or wait, as many times.
        """
        points, back = np.unique(np.concatenate(asked), axis=0, return_inverse=True)
        try:
            computed = await self._replicas.points(key, points)
        except Refusal as refusal:
            if len(asked) == 1 or refusal.status != FAILED:
                return [refusal] * len(asked)
            return [(await self._ask_replica(key, [part]))[0] for part in asked]
        whole = replace(computed, table=computed.table[back.reshape(-1)])
        return whole.split([len(part) for part in asked])

    async def _hold(self, served: ServedLandscape, points: Floats, computed: ComputedValues) -> None:
        rows = list(zip(rows_as_bytes(points), rows_as_bytes(computed.table), strict=True))
        if served.point_file is not None:
            try:
                await asyncio.get_running_loop().run_in_executor(self._writer, served.point_file.commit, rows)
            except OSError as error:
                if served.point_file.path not in self._warned:
                    self._warned.add(served.point_file.path)
                    log.warning(
                        "keep: %s is not written: %s; values are answered nevertheless", served.point_file.path, error
                    )
        for point, row in rows:
            self._cache.put(served.info.identity, point, row)
