"""The service over HTTP: its addresses, who may ask, and answers in JSON or as raw numbers."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing
from http import HTTPStatus
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from cluster.serving.answers import (
    Named,
    curvature_document,
    gradient_document,
    patch_document,
    points_document,
    row_document,
)
from cluster.serving.bodies import body_of, ending_unread
from cluster.serving.openapi import openapi_document, openapi_page
from cluster.serving.refusals import (
    BAD_REQUEST,
    NOT_ALLOWED,
    NOT_FOUND,
    UNAUTHORIZED,
    Refusal,
    refusal_of,
)
from cluster.serving.replies import LINES, json_reply, raw_reply, sends_raw, wants_raw
from cluster.serving.requests import (
    AskedPatch,
    AskedPoints,
    asked_line,
    asked_patch,
    asked_place,
    fields_of,
    points_of_bytes,
    points_of_json,
)
from cluster.serving.resolver import Found
from cluster.serving.served import ServedLandscape
from cluster.serving.service import LandscapeService, Row
from cluster.serving.timing import HEADER, Stretch, server_timing
from landscape.core.errors import nearest, shown
from landscape.core.http import Guard

QUESTIONS = ("points", "line", "patch", "gradient", "curvature")

# An answer, and when it was evaluated; None of one that is sent while it is.
Answer = tuple[Response, Sequence[Stretch] | None]
Answering = Callable[[Request, bytes, Named, ServedLandscape], Coroutine[Any, Any, Answer]]

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
                    NOT_FOUND, f"address: no {shown(question)} of a landscape; {nearest(question, QUESTIONS)}"
                )
            _refuse_parameters(request, ("rise",) if question == "points" and sends_raw(request) else ())
            body = await body_of(request, self._service.limits, len(named.described.axes))
            response, evaluated = await _unless_gone(request, self._answers[question](request, body, named, served))
        if evaluated is not None:
            response.headers[HEADER] = server_timing(evaluated, time.perf_counter() - begin)
        return response

    async def _points(self, request: Request, body: bytes, named: Named, served: ServedLandscape) -> Answer:
        if sends_raw(request):
            points = points_of_bytes(body, named.described, self._service.limits)
            asked = AskedPoints(points, request.query_params.get("rise") == "true")
        else:
            asked = points_of_json(body, named.described, self._service.limits)
        return self._of_points(request, named, asked, await self._service.points(served, asked))

    async def _line(self, request: Request, body: bytes, named: Named, served: ServedLandscape) -> Answer:
        asked = asked_line(fields_of(body, ("from", "to", "count", "rise")), named.described, self._service.limits)
        return self._of_points(request, named, asked, await self._service.points(served, asked))

    def _of_points(self, request: Request, named: Named, asked: AskedPoints, found: Found) -> Answer:
        if wants_raw(request):
            return raw_reply(named, found, asked.rise), found.evaluated
        return json_reply(points_document(named, asked.points, found, asked.rise)), found.evaluated

    async def _patch(self, request: Request, body: bytes, named: Named, served: ServedLandscape) -> Answer:
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
        self, named: Named, asked: AskedPatch, first: Row, rows: AsyncGenerator[Row]
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

    async def _gradient(self, request: Request, body: bytes, named: Named, served: ServedLandscape) -> Answer:
        point = asked_place(fields_of(body, ("point",)), named.described)
        found = await self._service.gradient(served, point)
        return json_reply(gradient_document(named, found)), found.evaluated

    async def _curvature(self, request: Request, body: bytes, named: Named, served: ServedLandscape) -> Answer:
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
            return json_reply({"error": refusal.sentence}, refusal.status, error.headers)  # Allow, of another method
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
            raise Refusal(BAD_REQUEST, f"{shown(name)[1:-1]}: is no parameter of this address; {rule}")
        if name in [earlier for earlier, _ in pairs[:place]]:
            raise Refusal(BAD_REQUEST, f"{name}: must stand once in the address; keep one")
        if value not in ("true", "false"):
            raise Refusal(BAD_REQUEST, f"{name}: must be true or false, not {shown(value)}")


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
        allowed = (error.headers or {}).get("Allow", "POST")
        return Refusal(NOT_ALLOWED, f"method: must be {allowed} at this address, not {shown(request.method)[1:-1]}")
    return Refusal(
        NOT_FOUND, f"address: {shown(request.scope['path'])} is none of this service; /docs lists those there are"
    )
