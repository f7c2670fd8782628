"""A patch of a landscape at a fine resolution, which a service computes row by row while the page draws it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from landscape.core.errors import JobError, LandscapeError, shown
from landscape.core.grid import Floats, axis_coordinates
from landscape.page.answers import utf8
from landscape.page.exact import landscape_of, numbers_of, understood, values_of
from landscape.page.queries import Query
from landscape.page.runs import RunReader
from landscape.page.service import Request, rows_of
from landscape.store.state import cause_of, finite

T = TypeVar("T")
InThread = Callable[[Callable[[], T]], Awaitable[T]]

MOST_ACROSS, MOST_ALONG = 128, 2048  # points of a patch along each axis: of several, and of one
WIDEST_PASS = 8  # rows between two of the first pass


@dataclass(frozen=True)
class PatchQuery:
    """A patch of a landscape: where it begins and ends along each axis, and how many points it has there."""

    run: str
    landscape: str
    low: tuple[float, ...]
    high: tuple[float, ...]
    shape: tuple[int, ...]


def patch_query(query: Query) -> PatchQuery:
    """The parameters of `api/patch`.

    Raises:
        JobError: one of them is wrong; the message names it.
    """
    run, landscape = landscape_of(query)
    low, high = numbers_of(query, "low"), numbers_of(query, "high")
    texts = query.needed("shape", "points along each axis").split(",")
    query.refuse_others()
    sizes = [int(text) if text.isdecimal() and len(text) < 6 else 0 for text in texts]
    most = MOST_ALONG if sum(size > 1 for size in sizes) < 2 else MOST_ACROSS
    if not all(1 <= size <= most for size in sizes):
        raise JobError(f"shape: must be whole numbers from 1 to {most}, not {shown(','.join(texts))}")
    if not len(low) == len(high) == len(sizes):
        raise JobError(f"shape: must be as many as low and high have, {len(low)}, not {len(sizes)}")
    for size, first, last in zip(sizes, low, high, strict=True):
        if (size == 1) != (first == last) or first > last:
            raise JobError("high: must be above low where there are several points, and equal to it where there is one")
    return PatchQuery(run, landscape, low, high, tuple(sizes))


def passes(count: int) -> Iterator[range]:
    """The rows of a patch in the order in which they are asked for: evenly spread ones first, then those between.

    >>> [list(rows) for rows in passes(9)]
    [[0, 4, 8], [2, 6], [1, 3, 5, 7]]
    """
    stride = 1
    while stride < WIDEST_PASS and stride * 4 < count:
        stride *= 2
    yield range(0, count, stride)
    while stride > 1:
        yield range(stride // 2, count, stride)
        stride //= 2


class Patch:
    """A patch that is computed row by row while it is sent; of one axis the rows are parts of the line.

    Args:
        in_thread: where the service is waited for.
    """

    def __init__(self, run: RunReader, asked: PatchQuery, in_thread: InThread[Any]) -> None:
        self._run, self._asked, self._in_thread = run, asked, in_thread
        self._store = run.reader(asked.landscape).store()
        if len(asked.shape) != len(self._store.shape):
            raise JobError(f"shape: must be points along each of the {len(self._store.shape)} axes")
        ends = zip(asked.shape, asked.low, asked.high, strict=True)
        self.coordinates = [
            np.array([low]) if size == 1 else axis_coordinates(size, low, high) + 0.0 for size, low, high in ends
        ]
        self._across = min(1, len(asked.shape) - 1)  # the axis along which rows follow one another
        self._passes = list(passes(asked.shape[self._across]))
        along = self.coordinates[self._across]
        for rows in self._passes:
            if len(rows) > 1:  # the service divides each pass evenly: the last bits are its own
                along[rows] = axis_coordinates(len(rows), along[rows[0]], along[rows[-1]]) + 0.0
        self._request: Request | None = None
        self._closed = False

    async def begin(self) -> None:
        """Ask for the first rows.

        Raises:
            ServiceError: no service answers.
        """
        await self._in_thread(partial(self._ask, self._passes[0]))

    async def lines(self) -> AsyncIterator[bytes]:
        """The lines of the answer: the coordinates, then the rows as they come; where it breaks off the last says why.

        A row has its `index` along the rows, for one axis those of its points; its `values` by name; the `status` of
        each point; and how many of them were `computed` for it.
        """
        yield _line({"coordinates": [each.tolist() for each in self.coordinates]})
        try:
            for number, rows in enumerate(self._passes):
                if number:
                    await self._in_thread(partial(self._ask, rows))
                for _ in rows if len(self.coordinates) > 1 else rows[:1]:
                    yield _line(await self._in_thread(partial(self._next, rows)))
        except (LandscapeError, OSError) as error:
            yield _line({"error": cause_of(error)})

    def close(self) -> None:
        """Ask for no more."""
        self._closed = True
        if self._request is not None:
            self._request.close()

    def _ask(self, rows: range) -> None:
        if self._request is not None:
            self._request.close()
        low, high, shape = list(self._asked.low), list(self._asked.high), list(self._asked.shape)
        along: Floats = self.coordinates[self._across]
        low[self._across], high[self._across] = float(along[rows[0]]), float(along[rows[-1]])
        shape[self._across] = len(rows)
        self._request = rows_of(
            self._run.found.path, self._asked.landscape, {"low": low, "high": high, "shape": shape, "rise": True}
        )
        if self._closed:  # meanwhile, by whom the patch was for
            self._request.close()

    def _next(self, rows: range) -> dict[str, Any]:
        assert self._request is not None
        found = self._request.next()
        with understood():
            index = rows[found["row"][-1]] if found["row"] else list(rows)
            source = list(found["source"])
            values, status = values_of(self._store, found), [int(each) for each in found["status"]]
        return {"index": index, "values": values, "status": status, "computed": source.count("computed")}


class PatchResponse(StreamingResponse):
    """The answer that is a stream of rows. When it ends, whoever ends it, no more are computed."""

    def __init__(self, patch: Patch) -> None:
        super().__init__(patch.lines(), media_type="application/x-ndjson", headers={"x-accel-buffering": "no"})
        self._patch = patch

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the rows, as ASGI has it."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._patch.close()


def _line(value: Any) -> bytes:
    return utf8(json.dumps(finite(value), allow_nan=False, separators=(",", ":"), ensure_ascii=False)) + b"\n"
