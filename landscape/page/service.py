"""Questions that the page forwards to a service of `landscape serve`, over HTTP, with limits of time and size.

A browser never talks to the service: it would need the service's token, and the page's security policy forbids it.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import shlex
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import numpy as np
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from landscape.core.errors import JobError, LandscapeError, few_lines
from landscape.core.grid import Floats, axis_coordinates
from landscape.core.http import Service, services_of
from landscape.page.answers import to_json
from landscape.page.queries import PatchQuery, PointQuery
from landscape.page.runs import RunReader
from landscape.store.landscape import LandscapeStore, read_axes
from landscape.store.state import cause_of, finite
from landscape.surface.derived import RISE, derive
from landscape.surface.surface import RISE_STDERR
from landscape.views.prepare.words import observable_title

CONNECT_SECONDS = 2.0
ANSWER_SECONDS = 60.0  # for an answer, or for the next row of a patch
LARGEST_ANSWER, LONGEST_LINE = 1 << 20, 4 << 20  # bytes
LONGEST_SENTENCE = 500  # characters


class ServiceError(LandscapeError):
    """No service answers the question; the message says why, and the remedy."""


class NoServiceError(ServiceError):
    """Nothing listens at the service's address."""


@dataclass(frozen=True)
class Served:
    """A landscape at a service that answers for it.

    Attributes:
        path: the part of the service's addresses before the kind of the question.
    """

    service: Service
    path: str


def serve_command(run: str) -> str:
    """The command that starts a service for a run."""
    return f"landscape serve {shlex.quote(run)}"


def list_served(run: str) -> list[str]:
    """The landscapes of a run that a service answers for."""
    served = [version for service in services_of(run) for version in service.versions(run)]
    return sorted({name for version in served for name in version.landscapes})


def find_services(run: str, landscape: str) -> list[Served]:
    """The services that answer for a landscape, the latest first, each by the last version of the run."""
    found = list[Served]()
    for service in services_of(run):
        versions = [version for version in service.versions(run) if landscape in version.landscapes]
        if versions:
            found.append(Served(service, quote(versions[-1].address(landscape))))
    return found


def answer_of(run: str, landscape: str, kind: str, asked: Mapping[str, Any]) -> Mapping[str, Any]:
    """The answer of a service.

    Args:
        kind: `points`, `gradient` or `curvature`.

    Raises:
        ServiceError: no service answers, or the service refuses.
    """
    with contextlib.closing(_first(run, landscape, lambda served: SentRequest(served, kind, asked))) as request:
        return request.whole()


def rows_of(run: str, landscape: str, asked: Mapping[str, Any]) -> SentRequest:
    """The rows of a patch; the caller closes the request.

    Raises:
        ServiceError: no service answers, or the service refuses.
    """
    return _first(run, landscape, lambda served: SentRequest(served, "patch", {**asked, "stream": True}))


def _first(run: str, landscape: str, ask: Callable[[Served], SentRequest]) -> SentRequest:
    """The request to the first service that listens."""
    services = find_services(run, landscape)
    for served in services:
        with contextlib.suppress(NoServiceError):
            return ask(served)
    if services:
        raise NoServiceError(f"the service does not answer any more; start it again: {serve_command(run)}")
    raise NoServiceError(f"no service answers for this landscape; start one: {serve_command(run)}")


class SentRequest:
    """A request that was sent, and whose answer has begun.

    Raises:
        NoServiceError: nothing listens there.
        ServiceError: the service refuses the request, or does not answer in time.
    """

    def __init__(self, served: Served, kind: str, asked: Mapping[str, Any]) -> None:
        place = urlsplit(served.service.url)
        token = served.service.token
        headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {token}"} if token else {})
        self._connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=CONNECT_SECONDS)
        self._socket: socket.socket | None = None
        try:
            with _connection_errors():
                try:
                    self._connection.connect()
                except OSError as error:
                    raise NoServiceError(f"the service does not answer: {error}") from None
                self._socket = self._connection.sock
                self._socket.settimeout(ANSWER_SECONDS)
                self._connection.request("POST", f"{served.path}/{kind}", json.dumps(asked), headers)
                self._answer = self._connection.getresponse()
                if self._answer.status != HTTPStatus.OK:
                    raise ServiceError(self._refusal())
        except BaseException:
            self.close()
            raise

    def whole(self) -> Mapping[str, Any]:
        """The answer as one document.

        Raises:
            ServiceError: it does not arrive, or is no JSON object.
        """
        with _connection_errors():
            return _document(self._answer.read(LARGEST_ANSWER + 1), LARGEST_ANSWER)

    def next(self) -> Mapping[str, Any]:
        """The next row of an answer that comes in rows.

        Raises:
            ServiceError: it does not arrive, or the service reports why there are no more.
        """
        with _connection_errors():
            line = self._answer.readline(LONGEST_LINE + 1)
            if not line:  # also after a broken connection, which Python treats as the end of the answer
                raise EOFError
            row = _document(line, LONGEST_LINE)
        if "error" in row:
            raise ServiceError(_sentence(row))
        return row

    def close(self) -> None:
        """Close the connection: the service stops computing, and another thread that reads gets nothing more."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _refusal(self) -> str:
        """The service's refusal in one sentence."""
        answer = self._answer
        if answer.status == HTTPStatus.UNAUTHORIZED:
            return "the service does not take the token that it has noted; start it again"
        if answer.status == HTTPStatus.TOO_MANY_REQUESTS:
            pause = answer.headers.get("retry-after", "")
            return f"the service has too much to do; ask again in {pause if pause.isdecimal() else 'some'} s"
        try:
            return _sentence(_document(answer.read(LARGEST_ANSWER + 1), LARGEST_ANSWER))
        except ServiceError:
            return f"the service answers with {answer.status}; its terminal says why"


@contextlib.contextmanager
def _connection_errors() -> Iterator[None]:
    """Within the block errors of the connection become a `ServiceError` with a sentence."""
    try:
        yield
    except TimeoutError:
        raise ServiceError(f"the service has not answered for {ANSWER_SECONDS:.0f} s; ask again, or for less") from None
    except (OSError, EOFError, http.client.HTTPException, ValueError):
        raise ServiceError("the service broke off its answer; it may have ended, its terminal says why") from None


def _document(content: bytes, most: int) -> Mapping[str, Any]:
    """The JSON object of an answer.

    Raises:
        ServiceError: the answer is no JSON object.
    """
    try:
        found = json.loads(content) if len(content) <= most else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ServiceError("the service answers what this version does not understand; start it again by this version")
    return found


def _sentence(document: Mapping[str, Any]) -> str:
    return few_lines(str(document.get("error", "the service gives no reason"))[:LONGEST_SENTENCE])


# ----------------------------------------------------------------------------------------------------
# The exact values of a point, and the slopes of the loss there, computed by a service.

ROUNDING = 1e-6  # of a step: a coordinate this close to the grid's is the grid's own


def exact_answer(run: RunReader, asked: PointQuery) -> dict[str, Any]:
    """The answer of `api/exact`: every value of a point with its error, and whether it was stored or computed.

    Raises:
        JobError: the point does not fit the axes.
        ServiceError: no service answers.
    """
    store = run.reader(asked.landscape).store()
    point = snap_to_grid(store, asked.at)
    found = answer_of(run.found.path, asked.landscape, "points", {"points": [point], "rise": True})
    with reading_answer():
        values = {name: column[0] for name, column in _columns(found).items()}
        source, status = str(found["source"][0]), int(found["status"][0])
    origin, rise_error = store.record.origin_loss, values.pop(RISE_STDERR, math.nan)
    names = [name for name in store.record.surfaces if name in values]
    named = [
        {"name": name, "title": observable_title(name), "value": values[name], "stderr": values.get(f"{name}_stderr")}
        for name in names
    ]
    rise = None if origin is None else {"value": values["loss"] - origin, "stderr": rise_error}
    return dict(finite({"at": point, "source": source, "status": status, "values": named, "rise": rise}))


def slopes_answer(run: RunReader, asked: PointQuery) -> dict[str, Any]:
    """The answer of `api/slopes`: the gradient of the loss along the axes with its errors, and the curvature there.

    Raises:
        JobError: the point does not fit the axes.
        ServiceError: no service answers, or the loss has no derivatives.
    """
    point = snap_to_grid(run.reader(asked.landscape).store(), asked.at)
    gradient, curvature = (
        answer_of(run.found.path, asked.landscape, kind, {"point": point}) for kind in ("gradient", "curvature")
    )
    with reading_answer():
        return dict(finite({
            "at": point,
            "gradient": [_number(value) for value in gradient["gradient"]],
            "stderr": [_number(value) for value in gradient["stderr"]],
            "curvature": [[_number(value) for value in row] for row in curvature["curvature"]],
            "eigenvalues": [_number(value) for value in curvature["eigenvalues"]],
        }))  # fmt: skip


def snap_to_grid(store: LandscapeStore, at: Sequence[float]) -> list[float]:
    """The point, with coordinates that differ from the grid's by rounding replaced by the grid's.

    Raises:
        JobError: the landscape has more or fewer axes.
    """
    axes = read_axes(store.arrays)
    if len(axes) != len(at):
        raise JobError(
            f"at: must be a coordinate for each axis, {', '.join(axis.name for axis in axes)}, not {len(at)}"
        )
    point = []
    for axis, value in zip(axes, at, strict=True):
        nearest = float(axis.coordinates[np.abs(axis.coordinates - value).argmin()])
        step = float(axis.coordinates[-1] - axis.coordinates[0]) / (len(axis.coordinates) - 1)
        point.append(nearest if abs(nearest - value) <= ROUNDING * abs(step) else value)
    return point


def _columns(found: Mapping[str, Any]) -> dict[str, list[float]]:
    """The values in a service's answer, [P] each, including derived ones; NaN if missing."""
    return {str(name): [_number(value) for value in column] for name, column in found["values"].items()}


def _number(value: Any) -> float:
    """A number of an answer; NaN for null."""
    return math.nan if value is None else float(value)


@contextmanager
def reading_answer() -> Iterator[None]:
    """Within the block an answer in another version's form becomes a `ServiceError`."""
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError):
        raise ServiceError("the service answers what this version does not understand; start it again") from None


# ----------------------------------------------------------------------------------------------------
# A patch of a landscape at a fine resolution: a service computes it row by row while the page draws it.

T = TypeVar("T")
InThread = Callable[[Callable[[], T]], Awaitable[T]]

WIDEST_PASS = 8  # distance of two rows of the first pass


def passes(count: int) -> Iterator[range]:
    """The rows of a patch in the order of the requests: evenly spread ones first, then those between.

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


class PatchStream:
    """A patch that is computed row by row while it is sent; for one axis, rows are parts of the line.

    Args:
        in_thread: runs a function that waits for the service in a thread.
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
        self._across = min(1, len(asked.shape) - 1)  # the axis across the rows
        self._passes = list(passes(asked.shape[self._across]))
        along = self.coordinates[self._across]
        for rows in self._passes:
            if len(rows) > 1:  # the service computes the even steps of each pass, including their last bits
                along[rows] = axis_coordinates(len(rows), along[rows[0]], along[rows[-1]]) + 0.0
        self._request: SentRequest | None = None
        self._closed = False

    async def begin(self) -> None:
        """Request the first rows.

        Raises:
            ServiceError: no service answers.
        """
        await self._in_thread(partial(self._ask, self._passes[0]))

    async def lines(self) -> AsyncIterator[bytes]:
        """The lines of the answer: the coordinates, then the rows as they arrive; after an error the last says why.

        A row has its `index` (for one axis the indices of its points), its `values` by name, the `status` of each
        point, and how many points were `computed` for it.
        """
        yield _line({"coordinates": [values.tolist() for values in self.coordinates]})
        try:
            for number, rows in enumerate(self._passes):
                if number:
                    await self._in_thread(partial(self._ask, rows))
                for _ in rows if len(self.coordinates) > 1 else rows[:1]:
                    yield _line(await self._in_thread(partial(self._next, rows)))
        except (LandscapeError, OSError) as error:
            yield _line({"error": cause_of(error)})

    def close(self) -> None:
        """Stop requesting rows."""
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
        if self._closed:  # meanwhile, by the client
            self._request.close()

    def _next(self, rows: range) -> dict[str, Any]:
        assert self._request is not None
        found = self._request.next()
        with reading_answer():
            index = rows[found["row"][-1]] if found["row"] else list(rows)
            source = list(found["source"])
            values, status = _columns(found), [int(code) for code in found["status"]]
            if RISE in self._store.record.surfaces:
                rise = derive({}, {"loss": np.array(values["loss"])}, self._store.record.origin_loss)
                values |= {name: column.tolist() for name, column in rise.items()}
        return {"index": index, "values": values, "status": status, "computed": source.count("computed")}


class PatchResponse(StreamingResponse):
    """A streaming response of rows. When it ends for any reason, the computation stops."""

    def __init__(self, patch: PatchStream) -> None:
        super().__init__(patch.lines(), media_type="application/x-ndjson", headers={"x-accel-buffering": "no"})
        self._patch = patch

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the rows by ASGI."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._patch.close()


def _line(value: Any) -> bytes:
    return to_json(finite(value)) + b"\n"
