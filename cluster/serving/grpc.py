"""The service over gRPC: the same questions, values and sentences as over HTTP."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from functools import wraps
from typing import Any

import grpc
from google.protobuf.json_format import ParseDict
from google.protobuf.message_factory import GetMessageClass

from cluster.serving import landscape_pb2 as messages
from cluster.serving.batching import HEADER, BusyTime, server_timing
from cluster.serving.landscape_pb2 import DESCRIPTOR
from cluster.serving.landscapes import ServedLandscape
from cluster.serving.requests import (
    BAD_REQUEST,
    BUSY,
    LARGEST_MESSAGE,
    NOT_FOUND,
    TOO_LARGE,
    UNAUTHORIZED,
    UNAVAILABLE,
    Fields,
    RequestedPatch,
    RequestedPoints,
    refusal_for,
    refuse_strangers,
)
from cluster.serving.resolver import ResolvedValues
from cluster.serving.service import QUESTIONS, LandscapeService, Row
from cluster.serving.sources import LATEST
from landscape.core.errors import JobError, quoted
from landscape.core.http import Guard

# ----------------------------------------------------------------------------------------------------
# The methods of `landscape.proto` for servers and clients, made from its descriptor: only the messages are generated.

SERVICE = DESCRIPTOR.services_by_name["Landscape"]


def _methods() -> Iterator[tuple[str, Any, Any, bool]]:
    """For each method: its name, its request and answer, and whether it streams answers."""
    for method in SERVICE.methods:
        request, answer = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
        yield method.name, request, answer, method.server_streaming


def handler_of(servicer: Any) -> Any:
    """The handler by which a gRPC server calls the methods of `servicer`."""
    handlers = {}
    for name, request, answer, streams in _methods():
        make = grpc.unary_stream_rpc_method_handler if streams else grpc.unary_unary_rpc_method_handler
        handlers[name] = make(
            getattr(servicer, name), request_deserializer=request.FromString,
            response_serializer=answer.SerializeToString,
        )  # fmt: skip
    return grpc.method_handlers_generic_handler(SERVICE.full_name, handlers)


class LandscapeStub:
    """The methods as a client calls them: `LandscapeStub(channel).Points(request, metadata=…)`."""

    def __init__(self, channel: Any) -> None:
        for name, request, answer, streams in _methods():
            make = channel.unary_stream if streams else channel.unary_unary
            call = make(
                f"/{SERVICE.full_name}/{name}", request_serializer=request.SerializeToString,
                response_deserializer=answer.FromString,
            )  # fmt: skip
            setattr(self, name, call)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"no method {name!r}; known: {', '.join(method.name for method in SERVICE.methods)}")


# ----------------------------------------------------------------------------------------------------

CODES = {
    BAD_REQUEST: grpc.StatusCode.INVALID_ARGUMENT,
    TOO_LARGE: grpc.StatusCode.INVALID_ARGUMENT,
    UNAUTHORIZED: grpc.StatusCode.UNAUTHENTICATED,
    NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    BUSY: grpc.StatusCode.RESOURCE_EXHAUSTED,
    UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
}

Answer = tuple[Any, Sequence[BusyTime] | None]  # a message, and the times of its evaluation if the client is told them

log = logging.getLogger("landscape")


def _send_errors(answer: Callable[..., Awaitable[Answer]]) -> Callable[..., Awaitable[Any]]:
    """Wrap a method: it is counted, its errors become a gRPC status, its times are sent as trailing metadata."""

    method = answer.__name__.lower()

    @wraps(answer)
    async def call(self: Rpc, request: Any, context: Any) -> Any:
        begin = time.perf_counter()
        try:
            with self.measuring(method, context), self.service.answering():
                message, evaluated = await answer(self, request, context)
                if evaluated is not None:
                    _send_timing(context, evaluated, begin)
                return message
        except Exception as error:
            await _abort(context, error)

    return call


def _send_timing(context: Any, evaluated: Sequence[BusyTime], begin: float) -> None:
    context.set_trailing_metadata(((HEADER, server_timing(evaluated, time.perf_counter() - begin)),))


async def _abort(context: Any, error: Exception) -> None:
    if isinstance(error, grpc.aio.AbortError):
        raise error
    refusal = refusal_for(error)
    code = CODES.get(refusal.status, grpc.StatusCode.INTERNAL)
    if code == grpc.StatusCode.INTERNAL:
        log.warning("%s", refusal, exc_info=None if refusal is error else error)
    after = tuple((name, value) for name, value in refusal.headers.items() if name == "retry-after")
    await context.abort(code, refusal.sentence, after)


class Rpc:
    """Answers requests over gRPC."""

    def __init__(self, service: LandscapeService, guard: Guard) -> None:
        self.service, self._guard = service, guard

    @contextmanager
    def measuring(self, method: str, context: Any) -> Iterator[None]:
        """Within the block a request is answered and measured; a client that does not send the token is refused."""
        with self.service.metrics.measuring(method):
            if self._guard.token:
                sent = dict(context.invocation_metadata() or ()).get("authorization", "")
                refuse_strangers(self._guard, str(sent), "the metadata 'authorization: Bearer TOKEN'")
            yield

    async def _ask(self, question: str, request: Any, fields: Fields) -> tuple[ServedLandscape, Any, Any]:
        """The landscape that a request names, the parsed question, and the values that answer it."""
        served, asked = self._parse(question, request, fields)
        return served, asked, await self.service.answer(question, served, asked)

    def _parse(self, question: str, request: Any, fields: Fields) -> tuple[ServedLandscape, Any]:
        target = request.target
        served = self.service.find(target.model, target.version or LATEST, target.landscape)
        return served, QUESTIONS[question].parse(fields, served.info, self.service.limits)

    @_send_errors
    async def Points(self, request: Any, context: Any) -> Answer:
        """The values at points."""
        fields = {"points": [tuple(point.coordinates) for point in request.points], "rise": request.rise}
        return _points_answer(*await self._ask("points", request, fields))

    @_send_errors
    async def Line(self, request: Any, context: Any) -> Answer:
        """The values at even steps between two points."""
        fields = {
            "from": tuple(getattr(request, "from").coordinates), "to": tuple(request.to.coordinates),
            "count": request.count or 101, "rise": request.rise,
        }  # fmt: skip
        return _points_answer(*await self._ask("line", request, fields))

    async def Patch(self, request: Any, context: Any) -> AsyncIterator[Any]:
        """The rows of a grid between two corners."""
        begin, evaluated = time.perf_counter(), list[BusyTime]()
        try:
            with self.measuring("patch", context), self.service.answering():
                fields = {
                    "low": tuple(request.low.coordinates), "high": tuple(request.high.coordinates),
                    "shape": tuple(request.shape), "rise": request.rise,
                }  # fmt: skip
                served, asked = self._parse("patch", request, fields)
                async with aclosing(self.service.rows(served, asked)) as rows:
                    async for row in rows:
                        evaluated += row[1].evaluated
                        yield _patch_row(served, asked, row)
            _send_timing(context, evaluated, begin)
        except Exception as error:
            await _abort(context, error)

    @_send_errors
    async def Gradient(self, request: Any, context: Any) -> Answer:
        """The gradient at a point."""
        served, _, found = await self._ask("gradient", request, {"point": tuple(request.point.coordinates)})
        message = messages.GradientAnswer(
            **_head(served), point=_point(found.point), loss=found.loss, gradient=found.gradient, stderr=found.stderr
        )
        return message, found.evaluated

    @_send_errors
    async def Curvature(self, request: Any, context: Any) -> Answer:
        """The second derivatives at a point."""
        served, _, found = await self._ask("curvature", request, {"point": tuple(request.point.coordinates)})
        table = [number for row in found.curvature for number in row]
        message = messages.CurvatureAnswer(
            **_head(served), point=_point(found.point), curvature=table, eigenvalues=found.eigenvalues,
            method=found.method,
        )  # fmt: skip
        return message, found.evaluated

    @_send_errors
    async def Models(self, request: Any, context: Any) -> Answer:
        """All models that are served."""
        return ParseDict(await self.service.models(), messages.ModelsAnswer()), None

    async def Health(self, request: Any, context: Any) -> Any:
        """Whether requests are answered."""
        with self.service.metrics.measuring("health"):
            return messages.HealthAnswer(**self.service.health())


async def start_rpc(service: LandscapeService, guard: Guard, host: str, port: int) -> tuple[Any, int]:
    """Start a server; returns it and its port.

    Args:
        port: 0 for any free one.

    Raises:
        JobError: it cannot listen there.
    """
    most = min(service.limits.body(), LARGEST_MESSAGE)
    server = grpc.aio.server(
        options=[
            ("grpc.max_receive_message_length", most),
            ("grpc.max_send_message_length", LARGEST_MESSAGE),
            ("grpc.so_reuseport", 0),
        ]
    )
    server.add_generic_rpc_handlers((handler_of(Rpc(service, guard)),))
    name = f"[{host}]" if ":" in host else host
    try:
        bound = server.add_insecure_port(f"{name}:{port}")
    except RuntimeError:
        bound = 0
    if not bound:
        raise JobError(f"grpc-port: cannot listen at {quoted(f'{host}:{port}')}; give another one, or 0 for no gRPC")
    await server.start()
    return server, bound


def _head(served: ServedLandscape) -> dict[str, Any]:
    """The fields at the beginning of every answer."""
    source = served.source
    target = messages.Target(model=source.model, version=str(source.version), landscape=source.landscape)
    return {"target": target, "axes": [axis.name for axis in served.info.axes]}


def _point(coordinates: Any) -> Any:
    return messages.Point(coordinates=coordinates)


def _values(served: ServedLandscape, found: ResolvedValues, rise: bool) -> dict[str, Any]:
    """The values of points by name, and the status and source of each point."""
    columns = served.values(found.table, rise)
    values = [messages.Observable(name=name, values=column) for name, column in columns.items()]
    return {"values": values, "status": found.status.tolist(), "source": found.source.tolist()}


def _patch_row(served: ServedLandscape, asked: RequestedPatch, row: Row) -> Any:
    index, found = row
    return messages.PatchRow(row=index, place=asked.place(index), **_values(served, found, asked.rise))


def _points_answer(served: ServedLandscape, asked: RequestedPoints, found: ResolvedValues) -> Answer:
    points = [_point(point) for point in asked.points.tolist()]
    return messages.PointsAnswer(**_head(served), points=points, **_values(served, found, asked.rise)), found.evaluated
