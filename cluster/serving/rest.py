"""The service over HTTP: its addresses, who may ask, and answers in JSON or as raw numbers."""

from __future__ import annotations

import asyncio
import html
import json
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import aclosing
from functools import cache
from http import HTTPStatus
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cluster.serving.gathering import HEADER, BusyTime, server_timing
from cluster.serving.landscapes import ServedLandscape
from cluster.serving.requests import (
    BAD_REQUEST,
    BYTES_BESIDE,
    NOT_ALLOWED,
    NOT_FOUND,
    TOO_LARGE,
    TOO_SLOW,
    UNAUTHORIZED,
    AskedPatch,
    AskedPoints,
    Refusal,
    RequestLimits,
    asked_line,
    asked_patch,
    asked_place,
    fields_of,
    points_of_bytes,
    points_of_json,
    refusal_of,
)
from cluster.serving.resolver import ResolvedValues
from cluster.serving.service import (
    LandscapeService,
    Row,
    ServedIdentity,
    curvature_document,
    gradient_document,
    patch_document,
    points_document,
    row_document,
)
from landscape import __version__
from landscape.core.errors import nearest, quoted
from landscape.core.http import Guard

# ----------------------------------------------------------------------------------------------------
# The body of a request: read as far as one may go; what is left of a long one ends the connection with the answer.

READ_ON = 4  # times the size that a body may have: most clients read no answer before they have sent it all


async def body_of(request: Request, limits: RequestLimits, axes: int) -> bytes:
    """The whole body.

    Raises:
        Refusal: it is larger than a request for so many points may be, or does not come.
    """
    most, parts, size = limits.body(axes), list[bytes](), 0
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for part in request.stream():
                size += len(part)
                if size > READ_ON * most:
                    break
                if size <= most:
                    parts.append(part)
    except TimeoutError:
        raise Refusal(
            TOO_SLOW, f"body: must be whole within {limits.body_seconds:g} seconds; send fewer points at once"
        ) from None
    if size > most:
        raise Refusal(TOO_LARGE, f"body: must be at most {most} bytes; ask for fewer points at once")
    return b"".join(parts)


def ending_unread(app: ASGIApp) -> ASGIApp:
    """The application, which ends a connection with its answer where a long body was not read to its end.

    The server would read on for as long as the client sends, which may be for ever. What is left of a short body is
    read in no time, and the connection goes on.
    """

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        unread = scope["type"] == "http" and _is_long(scope["headers"])

        async def receiving() -> Message:
            nonlocal unread
            message = await receive()
            if message["type"] == "http.request" and not message.get("more_body", False):
                unread = False
            return message

        async def sending(message: Message) -> None:
            if unread and message["type"] == "http.response.start":
                kept = [(name, value) for name, value in message.get("headers", ()) if name != b"connection"]
                message["headers"] = [*kept, (b"connection", b"close")]
            await send(message)

        await app(scope, receiving, sending)

    return answer


def _is_long(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether the body that the headers announce is long, or has no length."""
    named = dict(headers)
    length = named.get(b"content-length", b"0")
    return b"transfer-encoding" in named or not length.isdigit() or int(length) > BYTES_BESIDE


# ----------------------------------------------------------------------------------------------------
# What can be asked of the service, as an OpenAPI document for programs, and as a page for people.

LANDSCAPE = "/v1/models/{model}/versions/{version}/landscapes/{landscape}"
NUMBERS = {"type": "array", "items": {"type": "number"}, "minItems": 1, "maxItems": 3}
NULLABLE = {"type": "array", "items": {"type": ["number", "null"]}}
RISE = {"type": "boolean", "default": False, "description": "also loss_rise_stderr, the error of L(point) − L(origin)"}
POINT = {"point": {**NUMBERS, "description": "a coordinate for each axis"}}
ERRORS = {
    400: "the request is malformed",
    401: "the token is missing or wrong",
    404: "there is no such model, version, landscape or address",
    408: "the body does not come within a minute",
    413: "the request asks for too much",
    429: "the queue is full; Retry-After says when to ask again",
    500: "the user's code raised at a point",
    503: "the service starts or ends, or this machine computes other values; see the sentence",
}
TIMING = {
    "Server-Timing": {
        "description": "evaluate: milliseconds in which a replica evaluated the batches that this answer's points were "
        "in, 0 where nothing was computed; total: from the request's headers to the answer. Not with stream.",
        "schema": {"type": "string", "example": "evaluate;dur=94.1, total;dur=99.0"},
    }
}
POINTS = {"type": "array", "items": NUMBERS, "minItems": 1}
OF_POINTS: dict[str, Any] = {
    "points": POINTS,
    "values": {"type": "object", "additionalProperties": NULLABLE, "description": "by name; null where not finite"},
    "status": {"type": "array", "items": {"enum": [1, 2]}, "description": "1 the loss is finite, 2 it is not"},
    "source": {"type": "array", "items": {"enum": ["store", "cache", "computed"]}},
}


def _nested(item: dict[str, Any]) -> dict[str, Any]:
    """An array of as many dimensions as there are axes, one to three."""
    line = {"type": "array", "items": item}
    plane = {"type": "array", "items": line}
    return {"anyOf": [line, plane, {"type": "array", "items": plane}]}


# By question: what it does, the fields of the request, those that it needs, an example, the fields of the answer.
DESCRIBED_QUESTIONS: dict[str, tuple[str, dict[str, Any], list[str], dict[str, Any], dict[str, Any]]] = {
    "points": (
        "The values at points.",
        {"points": POINTS, "rise": RISE},
        ["points"],
        {"points": [[0.3, -0.7], [0.0, 0.0]]},
        OF_POINTS,
    ),
    "line": (
        "The values at even steps from one point to another, both among them.",
        {"from": NUMBERS, "to": NUMBERS, "count": {"type": "integer", "minimum": 2, "default": 101}, "rise": RISE},
        ["from", "to"],
        {"from": [-1.0, 0.0], "to": [1.0, 0.0], "count": 5},
        OF_POINTS,
    ),
    "patch": (
        "The values on a grid between two corners, arrays [beta, alpha]. With stream a line of JSON for each row, as "
        "soon as it is there.",
        {
            "low": NUMBERS, "high": NUMBERS, "shape": {**NUMBERS, "items": {"type": "integer", "minimum": 1}},
            "stream": {"type": "boolean", "default": False}, "rise": RISE,
        },
        ["low", "high", "shape"],
        {"low": [-0.1, -0.1], "high": [0.1, 0.1], "shape": [3, 3]},
        {
            "coordinates": {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "number"}}},
            "values": {"type": "object", "additionalProperties": _nested({"type": ["number", "null"]})},
            "status": _nested(OF_POINTS["status"]["items"]), "source": _nested(OF_POINTS["source"]["items"]),
        },
    ),
    "gradient": (
        "The slope of the loss along each axis, with its standard error over the samples.",
        POINT, ["point"], {"point": [0.3, -0.7]},
        {"loss": {"type": ["number", "null"]}, "gradient": NULLABLE, "stderr": NULLABLE},
    ),
    "curvature": (
        "The second derivatives of the loss along the axes, and their eigenvalues.",
        POINT, ["point"], {"point": [0.3, -0.7]},
        {"curvature": {"type": "array", "items": NULLABLE}, "eigenvalues": NULLABLE, "method": {"type": "string"}},
    ),
}  # fmt: skip


def openapi_document(limits: RequestLimits) -> dict[str, Any]:
    """The document, by OpenAPI 3.1."""
    failed = {
        str(code): {
            "description": text,
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
        }
        for code, text in ERRORS.items()
    }
    paths: dict[str, Any] = {
        "/v1/health": {"get": {
            "summary": "Whether requests are answered; needs no token.", "security": [],
            "responses": {"200": {"description": "ready"}, "503": {"description": "starting or draining"}},
        }},
        "/v1/models": {"get": {
            "summary": "The models, their versions and landscapes.",
            "responses": {"200": {"description": "all that is served"}, "401": failed["401"]},
        }},
    }  # fmt: skip
    for name, (summary, fields, required, example, answer) in DESCRIBED_QUESTIONS.items():
        schema = {"type": "object", "properties": fields, "required": required, "additionalProperties": False}
        body: dict[str, Any] = {"application/json": {"schema": schema, "example": example}}
        if name == "points":
            body["application/octet-stream"] = {"schema": {"type": "string", "format": "binary"}}
        answers: dict[str, Any] = {"application/json": {"schema": {"type": "object", "properties": answer}}}
        if name in ("points", "line", "patch"):
            answers["application/octet-stream"] = {"schema": {"type": "string", "format": "binary"}}
        if name == "patch":
            answers["application/x-ndjson"] = {"schema": {"type": "string"}}
        paths[f"{LANDSCAPE}/{name}"] = {"post": {
            "summary": summary, "operationId": name,
            "parameters": [
                {"name": each, "in": "path", "required": True, "schema": {"type": "string"}}
                for each in ("model", "version", "landscape")
            ],
            "requestBody": {"required": True, "content": body},
            "responses": {"200": {"description": "the values", "headers": TIMING, "content": answers}, **failed},
        }}  # fmt: skip
    return {
        "openapi": "3.1.0",
        "info": {"title": "landscape serve", "version": __version__, "description": _about(limits)},
        "paths": paths,
        "components": {
            "schemas": {"Error": {"type": "object", "properties": {"error": {"type": "string"}}}},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


@cache
def openapi_page(limits: RequestLimits) -> str:
    """The page, without a script or anything from another server."""
    document, parts = openapi_document(limits), list[str]()
    for path, methods in document["paths"].items():
        for method, what in methods.items():
            parts.append(f"<h2><code>{method.upper()} {html.escape(path)}</code></h2><p>{html.escape(what['summary'])}")
            content = what.get("requestBody", {}).get("content", {}).get("application/json")
            if content is not None:
                rows = "".join(
                    f"<tr><td><code>{html.escape(name)}</code><td>{html.escape(json.dumps(schema, ensure_ascii=False))}"
                    for name, schema in content["schema"]["properties"].items()
                )
                parts.append(f"<table>{rows}</table><pre>{html.escape(json.dumps(content['example']))}</pre>")
    codes = "".join(f"<tr><td><code>{code}</code><td>{html.escape(text)}" for code, text in ERRORS.items())
    return (
        "<!doctype html><html lang='en'><meta charset='utf-8'><title>landscape serve</title>"
        "<meta name='viewport' content='width=device-width'><style>body{font:16px/1.5 sans-serif;max-width:50em;"
        "margin:2em auto;padding:0 1em}h2{font-size:1em;margin-top:2em}td{padding:.1em 1em .1em 0;vertical-align:top}"
        "pre,td:nth-child(2){font-size:.85em}</style><h1>landscape serve</h1>"
        f"<p>{html.escape(_about(limits))} <a href='openapi.json'>openapi.json</a>{''.join(parts)}"
        f'<h2>Errors</h2><p>The body of each is <code>{{"error": "…"}}</code>.<table>{codes}</table></html>'
    )


def _about(limits: RequestLimits) -> str:
    return (
        f"Any point of the landscapes of these models. A request may ask for {limits.points} points. With Accept: "
        "application/octet-stream values come as float64 [points, values], the least byte first, named by the header "
        "X-Observables; points may be sent so too. The header Server-Timing has the milliseconds that an answer took, "
        "and those of its evaluation. Every request but health brings Authorization: Bearer TOKEN."
    )


# ----------------------------------------------------------------------------------------------------
# Answers over HTTP as bytes: JSON, or raw numbers where the request wants these.

RAW, JSON, LINES = "application/octet-stream", "application/json", "application/x-ndjson"


def sends_raw(request: Request) -> bool:
    """Whether the body of a request is raw numbers."""
    return _kind(request.headers.get("content-type", JSON)) == RAW


def wants_raw(request: Request) -> bool:
    """Whether a request asks for raw numbers."""
    return RAW in (_kind(part) for part in request.headers.get("accept", "").split(","))


def _kind(header: str) -> str:
    return header.partition(";")[0].strip().lower()


def raw_reply(named: ServedIdentity, found: ResolvedValues, rise: bool) -> Response:
    """float64 [P, values], the least byte first; the names of the values in a header."""
    values = named.values(found, rise)
    content = np.stack(list(values.values()), axis=1).astype("<f8").tobytes()
    return Response(content, media_type=RAW, headers={"x-observables": ",".join(values)})


def json_reply(document: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A document."""
    content = json.dumps(document, separators=(",", ":"), allow_nan=False).encode()
    return Response(content, status, headers, JSON)


# ----------------------------------------------------------------------------------------------------

QUESTIONS = ("points", "line", "patch", "gradient", "curvature")

# An answer, and when it was evaluated; None of one that is sent while it is.
Answer = tuple[Response, Sequence[BusyTime] | None]
Answering = Callable[[Request, bytes, ServedIdentity, ServedLandscape], Coroutine[Any, Any, Answer]]

log = logging.getLogger("landscape")


def make_app(service: LandscapeService, guard: Guard) -> ASGIApp:
    """The application.

    Args:
        guard: knows the token, and the names under which the service may be asked; an empty token is asked of nobody.
    """
    rest = Rest(service, guard)
    routes = [
        Route("/", rest.page),
        Route("/docs", rest.page),
        Route("/openapi.json", rest.openapi),
        Route("/v1/health", rest.health),
        Route("/v1/models", rest.models),
        Route(
            "/v1/models/{model}/versions/{version}/landscapes/{landscape}/{question}", rest.ask, methods=["POST"]
        ),
    ]  # fmt: skip
    app = Starlette(routes=routes, exception_handlers={HTTPException: rest.on_error})
    app.router.redirect_slashes = False  # to an address that the client's Host header decides
    return ending_unread(app)


class Rest:
    """Answers requests over HTTP."""

    def __init__(self, service: LandscapeService, guard: Guard) -> None:
        self._service, self._guard = service, guard
        self._answers: dict[str, Answering] = {
            "points": self._points, "line": self._line, "patch": self._patch, "gradient": self._gradient,
            "curvature": self._curvature,
        }  # fmt: skip

    # -- about the service ------------------------------------------------------------------------------------

    async def page(self, request: Request) -> Response:
        """What can be asked, for people."""
        return HTMLResponse(openapi_page(self._service.limits))

    async def openapi(self, request: Request) -> Response:
        """What can be asked, for programs."""
        return json_reply(openapi_document(self._service.limits))

    async def health(self, request: Request) -> Response:
        """Whether requests are answered; needs no token."""
        found = self._service.health()
        return json_reply(found, 200 if found["status"] == "ready" else 503)

    async def models(self, request: Request) -> Response:
        """All that is served."""
        return await self._answered(request, self._models)

    async def ask(self, request: Request) -> Response:
        """One of the questions about a landscape."""
        return await self._answered(request, self._ask)

    async def _answered(self, request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
        """The answer, also where that is an error: as an exception of the application it would end the connection."""
        try:
            return await answer(request)
        except Exception as error:
            return await self.on_error(request, error)

    async def _models(self, request: Request) -> Response:
        self._refuse_strangers(request)
        with self._service.answering():
            return json_reply(await self._service.models())

    # -- questions about a landscape --------------------------------------------------------------------------

    async def _ask(self, request: Request) -> Response:
        begin = time.perf_counter()
        self._refuse_strangers(request)
        question = request.path_params["question"]
        with self._service.answering():
            names = (request.path_params[name] for name in ("model", "version", "landscape"))
            named, served = self._service.find(*names)
            if question not in self._answers:
                raise Refusal(
                    NOT_FOUND, f"address: no {quoted(question)} of a landscape; {nearest(question, QUESTIONS)}"
                )
            _refuse_parameters(request, ("rise",) if question == "points" and sends_raw(request) else ())
            body = await body_of(request, self._service.limits, len(named.described.axes))
            response, evaluated = await _unless_gone(request, self._answers[question](request, body, named, served))
        if evaluated is not None:
            response.headers[HEADER] = server_timing(evaluated, time.perf_counter() - begin)
        return response

    async def _points(self, request: Request, body: bytes, named: ServedIdentity, served: ServedLandscape) -> Answer:
        if sends_raw(request):
            points = points_of_bytes(body, named.described, self._service.limits)
            asked = AskedPoints(points, request.query_params.get("rise") == "true")
        else:
            asked = points_of_json(body, named.described, self._service.limits)
        return self._of_points(request, named, asked, await self._service.points(served, asked))

    async def _line(self, request: Request, body: bytes, named: ServedIdentity, served: ServedLandscape) -> Answer:
        asked = asked_line(fields_of(body, ("from", "to", "count", "rise")), named.described, self._service.limits)
        return self._of_points(request, named, asked, await self._service.points(served, asked))

    def _of_points(self, request: Request, named: ServedIdentity, asked: AskedPoints, found: ResolvedValues) -> Answer:
        if wants_raw(request):
            return raw_reply(named, found, asked.rise), found.evaluated
        return json_reply(points_document(named, asked.points, found, asked.rise)), found.evaluated

    async def _patch(self, request: Request, body: bytes, named: ServedIdentity, served: ServedLandscape) -> Answer:
        fields = fields_of(body, ("low", "high", "shape", "stream", "rise"))
        asked = asked_patch(fields, named.described, self._service.limits)
        if asked.stream:
            rows = self._service.rows(served, asked)
            first = await anext(rows)  # before the status is sent, so that a full queue is a 429
            return StreamingResponse(self._lines(named, asked, first, rows), media_type=LINES), None
        found = await self._service.patch(served, asked)
        if wants_raw(request):
            return raw_reply(named, found, asked.rise), found.evaluated
        return json_reply(patch_document(named, asked.coordinates, found, asked.rise)), found.evaluated

    async def _lines(
        self, named: ServedIdentity, asked: AskedPatch, first: Row, rows: AsyncGenerator[Row]
    ) -> AsyncIterator[bytes]:
        """The rows of a patch, a line each; where one cannot be had the last line says why."""

        def line(row: Row) -> bytes:
            index, found = row
            place = [float(asked.coordinates[-1 - k][at]) for k, at in enumerate(index)]
            return json.dumps(row_document(named, index, place, found, asked.rise)).encode() + b"\n"

        try:
            with self._service.resolver.answering():
                async with aclosing(rows):
                    yield line(first)
                    async for row in rows:
                        yield line(row)
        except Exception as error:
            yield json.dumps({"error": refusal_of(error).sentence}).encode() + b"\n"

    async def _gradient(self, request: Request, body: bytes, named: ServedIdentity, served: ServedLandscape) -> Answer:
        point = asked_place(fields_of(body, ("point",)), named.described)
        found = await self._service.gradient(served, point)
        return json_reply(gradient_document(named, found)), found.evaluated

    async def _curvature(self, request: Request, body: bytes, named: ServedIdentity, served: ServedLandscape) -> Answer:
        point = asked_place(fields_of(body, ("point",)), named.described)
        found = await self._service.curvature(served, point)
        return json_reply(curvature_document(named, found)), found.evaluated

    # -- who asks --------------------------------------------------------------------------------------------

    def _refuse_strangers(self, request: Request) -> None:
        if not self._guard.token:
            if not self._guard.knows_host(request.headers.get("host", "")):
                raise Refusal(UNAUTHORIZED, "host: this service is not known by that name; ask it by its address")
            return
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not self._guard.is_token(token.strip()):
            raise Refusal(
                UNAUTHORIZED,
                "token: must be sent as the header 'Authorization: Bearer TOKEN'; `landscape serve` has printed it",
            )

    async def on_error(self, request: Request, error: Exception) -> Response:
        """The answer that says what is wrong."""
        if isinstance(error, HTTPException):
            refusal = _of_http(request, error)
            headers = {name: _in_order(value) for name, value in (error.headers or {}).items()}  # Allow
            return json_reply({"error": refusal.sentence}, refusal.status, headers)
        if isinstance(error, ClientDisconnect):
            refusal = Refusal(BAD_REQUEST, "body: the connection was closed before the answer")
        else:
            refusal = refusal_of(error)
            if refusal.status == HTTPStatus.INTERNAL_SERVER_ERROR:
                # What user code raised has its sentence; where it lies says nothing of the service.
                log.warning("%s", refusal, exc_info=None if refusal is error else error)
        return json_reply({"error": refusal.sentence}, refusal.status, refusal.headers)


def _refuse_parameters(request: Request, known: Sequence[str]) -> None:
    """Refuse parameters of an address that are not known there, or stand twice; each is true or false.

    Raises:
        Refusal: names one.
    """
    pairs = request.query_params.multi_items()
    for place, (name, value) in enumerate(pairs):
        if name not in known:
            rule = nearest(name, known) if known else "what is asked stands in the body"
            raise Refusal(BAD_REQUEST, f"{quoted(name)[1:-1]}: is no parameter of this address; {rule}")
        if name in [earlier for earlier, _ in pairs[:place]]:
            raise Refusal(BAD_REQUEST, f"{name}: must stand once in the address; keep one")
        if value not in ("true", "false"):
            raise Refusal(BAD_REQUEST, f"{name}: must be true or false, not {quoted(value)}")


async def _unless_gone(request: Request, work: Coroutine[Any, Any, Answer]) -> Answer:
    """What work returns, which is dropped where the client ends its connection: nobody waits for it any more.

    Raises:
        ClientDisconnect: it did.
    """
    task, gone = asyncio.create_task(work), asyncio.create_task(_gone(request))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        gone.cancel()


async def _gone(request: Request) -> None:
    """Returns when the connection has ended."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _of_http(request: Request, error: HTTPException) -> Refusal:
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        allowed = _in_order((error.headers or {}).get("Allow", "POST"))
        return Refusal(NOT_ALLOWED, f"method: must be {allowed} at this address, not {quoted(request.method)[1:-1]}")
    return Refusal(
        NOT_FOUND, f"address: {quoted(request.scope['path'])} is none of this service; /docs lists those there are"
    )


def _in_order(methods: str) -> str:
    return ", ".join(sorted(methods.split(", ")))  # Starlette has a set of them
