"""The routes of the page, as an ASGI application: who may ask is decided first, then errors become sentences."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from http import HTTPStatus
from urllib.parse import parse_qsl, quote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from landscape.core.errors import JobError, LandscapeError, NotFoundError, StoreError, few_lines, flat, shown
from landscape.core.http import HEADERS, Guard, header_value, raw_headers
from landscape.page.answers import Answer, pack_json
from landscape.page.api import Api
from landscape.page.assets import Assets
from landscape.page.queries import LONGEST_QUERY, Query
from landscape.store.state import cause_of
from landscape.store.status import GoneError, Place

log = logging.getLogger("landscape.page")

Endpoint = Callable[[Query], Awaitable[Answer | Response]]

NO_TOKEN = (
    "<!doctype html><html lang='en'><meta charset='utf-8'><title>Not opened</title>"
    "<body style='font: 16px/1.5 sans-serif; max-width: 40em; margin: 4em auto; padding: 0 1em'>"
    "<h1 style='font-size: 1.2em'>This page asks for a token</h1>"
    "<p>Open the whole address that <code>landscape view</code> has printed, with its token. "
    "If the server was started anew since, the token is a new one.</p></body></html>"
)


def make_app(places: Sequence[Place], guard: Guard, api: Api | None = None) -> ASGIApp:
    """The application over these places.

    Args:
        guard: decides which requests are answered.
        api: what answers; default: one with the usual bounds of memory.
    """
    answers = api or Api(places)
    assets = Assets()

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        assets.begin()
        async with answers.running():
            yield

    async def index(request: Request) -> Response:
        token = Query(pairs_of(request)).text("token")
        if not token:
            return await assets.response("index.html", request)
        response = RedirectResponse("./", HTTPStatus.SEE_OTHER)
        response.headers["set-cookie"] = guard.cookie_header()
        return response

    async def static(request: Request) -> Response:
        return await assets.response(request.path_params["name"], request)

    routes = [
        Route("/", index),
        Route("/static/{name}", static),
        *(Route(f"/api/{name}", _answering(answer)) for name, answer in answers.table().items()),
    ]
    inner = Starlette(routes=routes, lifespan=lifespan, exception_handlers={HTTPException: _plain_error})
    return Guarded(inner, guard)


class Guarded:
    """Answers only those who may ask, and puts the security headers on every answer."""

    def __init__(self, app: ASGIApp, guard: Guard) -> None:
        self._app, self._guard = app, guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Carry out one request, as ASGI has it."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = list(message.get("headers", ()))
                present = {name.lower() for name, _ in headers}
                more = {**HEADERS, "cache-control": "no-store"}
                missing = {name: value for name, value in more.items() if name.encode() not in present}
                message["headers"] = [*headers, *raw_headers(missing)]
            await send(message)

        refusal = self._refusal(scope)
        await (self._app if refusal is None else refusal)(scope, receive, send_guarded)

    def _refusal(self, scope: Scope) -> Response | None:
        """Why a request is not answered; None where it is."""
        if not self._guard.knows_host(header_value(scope["headers"], b"host")):
            return error_response(HTTPStatus.FORBIDDEN, "this server is not known by that name; see --allow-host")
        if len(scope["query_string"]) > LONGEST_QUERY:
            return error_response(HTTPStatus.BAD_REQUEST, f"the address must have at most {LONGEST_QUERY} characters")
        is_index = scope["path"].removeprefix(scope.get("root_path", "")) in ("", "/")
        given = [value for name, value in pairs_in(scope["query_string"]) if name == "token"] if is_index else []
        if given:
            allowed = len(given) == 1 and self._guard.is_token(given[0])
        else:
            allowed = self._guard.has_cookie(header_value(scope["headers"], b"cookie"))
        if allowed:
            return None
        if is_index:
            return Response(NO_TOKEN, HTTPStatus.UNAUTHORIZED, media_type="text/html")
        return error_response(HTTPStatus.UNAUTHORIZED, "open the whole address that `landscape view` has printed")


def pairs_of(request: Request) -> list[tuple[str, str]]:
    """The parameters of a request's address, in order."""
    return pairs_in(request.scope["query_string"])


def pairs_in(query: bytes) -> list[tuple[str, str]]:
    """The parameters of an address, in order; bytes that are no text are replaced."""
    try:
        return parse_qsl(query.decode("latin-1"), keep_blank_values=True, max_num_fields=1000)
    except ValueError:
        return [("", "")]  # which is no parameter anywhere


def _answering(answer: Endpoint) -> Callable[[Request], Awaitable[Response]]:
    """The endpoint that gives an answer, or the sentence why there is none."""

    async def endpoint(request: Request) -> Response:
        try:
            given = await answer(Query(pairs_of(request)))
        except (LandscapeError, OSError) as error:
            return error_response(status_of(error), sentence_of(error))
        except asyncio.CancelledError:
            raise
        except Exception as error:
            log.debug("%s failed", request.url.path, exc_info=True)
            text = f"this cannot be shown: {flat(repr(error))}; `landscape view --debug` shows where"
            return error_response(HTTPStatus.INTERNAL_SERVER_ERROR, text)
        return given if isinstance(given, Response) else sent(given, request)

    return endpoint


def status_of(error: Exception) -> HTTPStatus:
    """The HTTP status that tells the kind of an error."""
    kinds = (
        (GoneError, HTTPStatus.GONE),
        (NotFoundError, HTTPStatus.NOT_FOUND),
        (JobError, HTTPStatus.BAD_REQUEST),
        (StoreError, HTTPStatus.SERVICE_UNAVAILABLE),
    )
    return next((status for kind, status in kinds if isinstance(error, kind)), HTTPStatus.SERVICE_UNAVAILABLE)


def sentence_of(error: Exception) -> str:
    """An error as the page says it."""
    return few_lines(cause_of(error)) or shown(error)


def error_response(status: HTTPStatus, sentence: str) -> Response:
    """The answer to a request that has none."""
    return Response(pack_json({"error": sentence}).body, status, media_type="application/json")


async def _plain_error(request: Request, error: Exception) -> Response:
    status = HTTPStatus(error.status_code if isinstance(error, HTTPException) else 500)
    return error_response(status, f"there is nothing at {shown(request.url.path)}: {status.phrase}")


def sent(answer: Answer, request: Request) -> Response:
    """An answer as the browser takes it, compressed where it can unpack that."""
    headers = {"vary": "accept-encoding"}
    if answer.file:
        headers["content-disposition"] = f"attachment; filename*=UTF-8''{quote(answer.file, errors='replace')}"
    if answer.packed is not None and "gzip" in request.headers.get("accept-encoding", ""):
        return Response(answer.packed, headers={**headers, "content-encoding": "gzip"}, media_type=answer.media_type)
    return Response(answer.body, headers=headers, media_type=answer.media_type)
