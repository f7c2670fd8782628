"""The service over HTTP: its addresses, the check of tokens, and answers in JSON or as raw numbers."""

from __future__ import annotations

import asyncio
import html
import json
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import aclosing
from functools import cache, wraps
from http import HTTPStatus
from typing import Any, TypeVar

import numpy as np
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cluster.serving.batching import HEADER, server_timing
from cluster.serving.landscapes import ServedLandscape
from cluster.serving.requests import (
    BAD_REQUEST,
    BYTES_BESIDE,
    CLIENT_GONE,
    NOT_ALLOWED,
    NOT_FOUND,
    TOO_LARGE,
    TOO_SLOW,
    UNAUTHORIZED,
    Refusal,
    RequestedPatch,
    RequestedPoints,
    RequestLimits,
    parse_fields,
    parse_raw_points,
    refusal_for,
    refuse_strangers,
)
from cluster.serving.resolver import ResolvedValues
from cluster.serving.service import OTHER, QUESTIONS, LandscapeService, Row, ServiceMetrics, row_document
from landscape import __version__
from landscape.core.errors import nearest, quoted
from landscape.core.grid import Floats
from landscape.core.http import Guard

Result = TypeVar("Result")

# ----------------------------------------------------------------------------------------------------
# The body of a request: read up to the limit; if more is left unread, the connection ends with the answer.

READ_ON = 4  # times the largest body are read: most clients read an answer only after they have sent the whole body


async def read_body(request: Request, limits: RequestLimits, axes: int) -> bytes:
    """The whole body.

    Raises:
        Refusal: it is larger than the limits allow, or does not arrive in time.
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


def close_unread(app: ASGIApp) -> ASGIApp:
    """Wrap an application: if a long body was not read to its end, the connection ends with the answer.

    Otherwise the server would read for as long as the client sends, which may be for ever. The rest of a short body is
    read quickly, and the connection stays open.
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


ADDRESSES = {"/v1/models": "models", "/v1/health": "health", "/metrics": "metrics"}


def count_requests(app: ASGIApp, metrics: ServiceMetrics) -> ASGIApp:
    """Wrap an application: each request is counted once its answer has ended, a streamed one with its last row."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        begin, status = time.perf_counter(), int(HTTPStatus.INTERNAL_SERVER_ERROR)

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await app(scope, receive, sending)
        finally:
            metrics.note(_method_at(scope["path"]), status, time.perf_counter() - begin)

    return answer


def _method_at(path: str) -> str:
    """The method that an address names, for a label."""
    question = path.rpartition("/")[2]
    return ADDRESSES.get(path) or (question if question in QUESTIONS and path.startswith("/v1/models/") else OTHER)


def _is_long(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether the headers announce a long body, or one of unknown length."""
    named = dict(headers)
    length = named.get(b"content-length", b"0")
    return b"transfer-encoding" in named or not length.isdigit() or int(length) > BYTES_BESIDE


# ----------------------------------------------------------------------------------------------------
# The requests of the service, as an OpenAPI document for programs and as a page for people.

LANDSCAPE = "/v1/models/{model}/versions/{version}/landscapes/{landscape}"
ERRORS = {
    400: "the request is malformed",
    401: "the token is missing, or is not that of this service",
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


def openapi_document(limits: RequestLimits) -> dict[str, Any]:
    """The document, in OpenAPI 3.1."""
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
        "/metrics": {"get": {
            "summary": "Requests, latencies, points, queue and replicas, as Prometheus reads them.",
            "responses": {
                "200": {"description": "the metrics", "content": {"text/plain": {"schema": {"type": "string"}}}},
                "401": failed["401"],
            },
        }},
    }  # fmt: skip
    for name, question in QUESTIONS.items():
        needed = [field for field, schema in question.fields.items() if "default" not in schema]
        form = {"type": "object", "properties": question.fields, "required": needed, "additionalProperties": False}
        body: dict[str, Any] = {"application/json": {"schema": form, "example": question.example}}
        if name == "points":
            body["application/octet-stream"] = {"schema": {"type": "string", "format": "binary"}}
        answers: dict[str, Any] = {"application/json": {"schema": {"type": "object", "properties": question.answer}}}
        if name in ("points", "line", "patch"):
            answers["application/octet-stream"] = {"schema": {"type": "string", "format": "binary"}}
        if name == "patch":
            answers["application/x-ndjson"] = {"schema": {"type": "string"}}
        paths[f"{LANDSCAPE}/{name}"] = {"post": {
            "summary": question.summary, "operationId": name,
            "parameters": [
                {"name": part, "in": "path", "required": True, "schema": {"type": "string"}}
                for part in ("model", "version", "landscape")
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
    """The page, without scripts and without anything from another server."""
    document, parts = openapi_document(limits), list[str]()
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            parts.append(
                f"<h2><code>{method.upper()} {html.escape(path)}</code></h2><p>{html.escape(operation['summary'])}"
            )
            content = operation.get("requestBody", {}).get("content", {}).get("application/json")
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
# Answers as bytes: JSON, or raw numbers if the request asks for them.

RAW, JSON, LINES = "application/octet-stream", "application/json", "application/x-ndjson"


def sends_raw(request: Request) -> bool:
    """Whether the body of a request is raw numbers."""
    return _media_type(request.headers.get("content-type", JSON)) == RAW


def wants_raw(request: Request) -> bool:
    """Whether a request asks for raw numbers."""
    return RAW in (_media_type(part) for part in request.headers.get("accept", "").split(","))


def _media_type(header: str) -> str:
    return header.partition(";")[0].strip().lower()


def raw_reply(values: Mapping[str, Floats]) -> Response:
    """float64 [P, values], the least byte first; the names of the values in a header."""
    content = np.stack(list(values.values()), axis=1).astype("<f8").tobytes()
    return Response(content, media_type=RAW, headers={"x-observables": ",".join(values)})


def json_reply(document: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A document."""
    content = json.dumps(document, separators=(",", ":"), allow_nan=False).encode()
    return Response(content, status, headers, JSON)


# ----------------------------------------------------------------------------------------------------

log = logging.getLogger("landscape")


def make_rest_app(service: LandscapeService, guard: Guard) -> ASGIApp:
    """The application.

    Args:
        guard: knows the token and the host names of the service; with an empty token, requests need none.
    """
    rest = Rest(service, guard)
    routes = [
        Route("/", rest.page),
        Route("/docs", rest.page),
        Route("/openapi.json", rest.openapi),
        Route("/v1/health", rest.health),
        Route("/v1/models", rest.models),
        Route("/metrics", rest.metrics),
        Route(
            "/v1/models/{model}/versions/{version}/landscapes/{landscape}/{question}", rest.ask, methods=["POST"]
        ),
    ]  # fmt: skip
    app = Starlette(routes=routes, exception_handlers={HTTPException: rest.on_error})
    app.router.redirect_slashes = False  # the address would follow from the client's Host header
    return close_unread(count_requests(app, service.metrics))


def _answer_errors(answer: Callable[..., Awaitable[Response]]) -> Callable[..., Awaitable[Response]]:
    """Wrap a method: its errors become answers. As exceptions of the application they would end the connection."""

    @wraps(answer)
    async def call(self: Rest, request: Request) -> Response:
        try:
            return await answer(self, request)
        except Exception as error:
            return await self.on_error(request, error)

    return call


class Rest:
    """Answers requests over HTTP."""

    def __init__(self, service: LandscapeService, guard: Guard) -> None:
        self._service, self._guard = service, guard

    # -- about the service ------------------------------------------------------------------------------------

    async def page(self, request: Request) -> Response:
        """The list of requests, for people."""
        return HTMLResponse(openapi_page(self._service.limits))

    async def openapi(self, request: Request) -> Response:
        """The list of requests, for programs."""
        return json_reply(openapi_document(self._service.limits))

    async def health(self, request: Request) -> Response:
        """Whether requests are answered; needs no token."""
        found = self._service.health()
        return json_reply(found, 200 if found["status"] == "ready" else 503)

    @_answer_errors
    async def models(self, request: Request) -> Response:
        """All models that are served."""
        self._refuse_strangers(request)
        with self._service.answering():
            return json_reply(await self._service.models())

    @_answer_errors
    async def metrics(self, request: Request) -> Response:
        """What Prometheus scrapes; also while the service starts or ends."""
        self._refuse_strangers(request)
        return Response(self._service.metrics.text(), headers={"content-type": CONTENT_TYPE_LATEST})

    # -- questions about a landscape --------------------------------------------------------------------------

    @_answer_errors
    async def ask(self, request: Request) -> Response:
        """Answer one of the questions about a landscape."""
        begin = time.perf_counter()
        self._refuse_strangers(request)
        name, limits = request.path_params["question"], self._service.limits
        with self._service.answering():
            served = self._service.find(*(request.path_params[part] for part in ("model", "version", "landscape")))
            if name not in QUESTIONS:
                raise Refusal(NOT_FOUND, f"address: no {quoted(name)} of a landscape; {nearest(name, QUESTIONS)}")
            sent_raw = name == "points" and sends_raw(request)
            _refuse_parameters(request, ("rise",) if sent_raw else ())
            body = await read_body(request, limits, len(served.info.axes))
            if sent_raw:
                points = parse_raw_points(body, served.info, limits)
                asked: Any = RequestedPoints(points, request.query_params.get("rise") == "true")
            else:
                asked = QUESTIONS[name].parse(parse_fields(body, tuple(QUESTIONS[name].fields)), served.info, limits)
            if isinstance(asked, RequestedPatch) and asked.stream:
                return await _unless_disconnected(request, self._stream(served, asked))
            found = await _unless_disconnected(request, self._service.answer(name, served, asked))
            if isinstance(found, ResolvedValues) and wants_raw(request):
                response = raw_reply(served.values(found.table, asked.rise))
            else:
                response = json_reply(QUESTIONS[name].document(served, asked, found))
        response.headers[HEADER] = server_timing(found.evaluated, time.perf_counter() - begin)
        return response

    async def _stream(self, served: ServedLandscape, asked: RequestedPatch) -> Response:
        rows = self._service.rows(served, asked)
        first = await anext(rows)  # before the status is sent, so that a full queue is a 429
        return StreamingResponse(self._lines(served, asked, first, rows), media_type=LINES)

    async def _lines(
        self, served: ServedLandscape, asked: RequestedPatch, first: Row, rows: AsyncGenerator[Row]
    ) -> AsyncIterator[bytes]:
        """The rows of a patch, a line each; if a row fails, the last line says why."""
        try:
            with self._service.resolver.answering():
                async with aclosing(rows):
                    yield _line(row_document(served, asked, first))
                    async for row in rows:
                        yield _line(row_document(served, asked, row))
        except Exception as error:
            yield _line({"error": refusal_for(error).sentence})

    # -- who asks --------------------------------------------------------------------------------------------

    def _refuse_strangers(self, request: Request) -> None:
        if not self._guard.token:
            if not self._guard.knows_host(request.headers.get("host", "")):
                raise Refusal(UNAUTHORIZED, "host: this service is not known by that name; ask it by its address")
            return
        refuse_strangers(
            self._guard, request.headers.get("authorization", ""), "the header 'Authorization: Bearer TOKEN'"
        )

    async def on_error(self, request: Request, error: Exception) -> Response:
        """The answer that explains an error."""
        if isinstance(error, HTTPException):
            refusal = _refusal_for_http(request, error)
            headers = {name: _in_order(value) for name, value in (error.headers or {}).items()}  # Allow
            return json_reply({"error": refusal.sentence}, refusal.status, headers)
        if isinstance(error, ClientDisconnect):
            refusal = Refusal(CLIENT_GONE, "body: the connection was closed before the answer")
        else:
            refusal = refusal_for(error)
            if refusal.status == HTTPStatus.INTERNAL_SERVER_ERROR:
                # An error of user code has its own sentence; its traceback says nothing of the service.
                log.warning("%s", refusal, exc_info=None if refusal is error else error)
        return json_reply({"error": refusal.sentence}, refusal.status, refusal.headers)


def _line(document: Any) -> bytes:
    return json.dumps(document).encode() + b"\n"


def _refuse_parameters(request: Request, known: Sequence[str]) -> None:
    """Refuse parameters that this address does not take, that are repeated, or that are neither true nor false.

    Raises:
        Refusal: names one of them.
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


async def _unless_disconnected(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of `work`, which is cancelled if the client ends its connection.

    Raises:
        ClientDisconnect: the client ended the connection.
    """
    task, gone = asyncio.create_task(work), asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        gone.cancel()


async def _disconnected(request: Request) -> None:
    """Return when the connection has ended."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _refusal_for_http(request: Request, error: HTTPException) -> Refusal:
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        allowed = _in_order((error.headers or {}).get("Allow", "POST"))
        return Refusal(NOT_ALLOWED, f"method: must be {allowed} at this address, not {quoted(request.method)[1:-1]}")
    return Refusal(
        NOT_FOUND, f"address: {quoted(request.scope['path'])} is none of this service; /docs lists those there are"
    )


def _in_order(methods: str) -> str:
    return ", ".join(sorted(methods.split(", ")))  # Starlette keeps them in a set
