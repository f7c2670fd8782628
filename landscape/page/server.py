"""The server of the page: its files, its routes, its socket and address with the token, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from importlib.resources import files
from importlib.resources.abc import Traversable
from threading import Lock
from urllib.parse import parse_qsl, quote

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from landscape.core.errors import (
    Interrupted,
    JobError,
    LandscapeError,
    NotFoundError,
    StoreError,
    few_lines,
    flat,
    quoted,
)
from landscape.core.http import (
    BACKLOG,
    HEADERS,
    Guard,
    Server,
    header_value,
    is_address,
    listen,
    new_token,
    own_names,
    raw_headers,
)
from landscape.page.answers import Answer, in_thread, pack_body, pack_json
from landscape.page.api import Api
from landscape.page.queries import LONGEST_QUERY, AddressQuery
from landscape.store.state import cause_of
from landscape.store.status import GoneError, RunPlace

# ----------------------------------------------------------------------------------------------------
# The files that a browser loads: those of this package, by a table of their names, and plotly from its package.

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".json": "application/json",
}
PLOTLY = "plotly.js"
SMALL = 6  # gzip's level for these files, which are compressed once


@dataclass(frozen=True)
class Asset:
    """A file as sent; `tag` is its strong ETag."""

    answer: Answer
    tag: str


class Assets:
    """The files by name. Files of this package are read again after a change; plotly is read once."""

    def __init__(self) -> None:
        self._table = asset_table()
        self._loaded: dict[str, Asset] = {}
        self._threads = ThreadPoolExecutor(2, "landscape-assets")
        self._once = Lock()

    def begin(self) -> None:
        """Compress plotly, which takes a moment, before the first request."""
        self._threads.submit(self.load, PLOTLY)

    async def response(self, name: str, request: Request) -> Response:
        """The answer to a request for a file.

        Raises:
            HTTPException: there is no such file.
        """
        if name not in self._table:
            raise HTTPException(HTTPStatus.NOT_FOUND)
        asset = await in_thread(self._threads, partial(self.load, name))
        headers = {"cache-control": "no-cache", "etag": asset.tag, "vary": "accept-encoding"}
        if asset.tag in request.headers.get("if-none-match", ""):
            return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
        answer = asset.answer
        packed = answer.packed if "gzip" in request.headers.get("accept-encoding", "") else None
        headers |= {"content-encoding": "gzip"} if packed is not None else {}
        return Response(answer.body if packed is None else packed, headers=headers, media_type=answer.media_type)

    def load(self, name: str) -> Asset:
        """The file of a name in the table."""
        if name != PLOTLY:
            return self._load(name)
        with self._once:
            return self._loaded.get(name) or self._load(name)

    def _load(self, name: str) -> Asset:
        known = self._loaded.get(name)
        data = self._table[name].read_bytes()
        tag = f'"{hashlib.sha256(data).hexdigest()[:32]}"'
        if known is None or known.tag != tag:
            known = self._loaded[name] = Asset(pack_body(data, TYPES[_suffix(name)], SMALL), tag)
        return known


def asset_table() -> Mapping[str, Traversable]:
    """The files that may be requested, by name; no other file is ever opened for a request."""
    folder = files("landscape.page").joinpath("static")
    table = {file.name: file for file in folder.iterdir() if file.is_file() and _suffix(file.name) in TYPES}
    table[PLOTLY] = files("plotly").joinpath("package_data").joinpath("plotly.min.js")
    table["fit.js"] = files("landscape.views").joinpath("static").joinpath("fit.js")
    return table


def _suffix(name: str) -> str:
    return "." + name.rpartition(".")[2]


# ----------------------------------------------------------------------------------------------------
# The routes of the page, as an ASGI application: it checks the right to ask first; errors become sentences.

log = logging.getLogger("landscape.page")

Endpoint = Callable[[AddressQuery], Awaitable[Answer | Response]]

NO_TOKEN = (
    "<!doctype html><html lang='en'><meta charset='utf-8'><title>Not opened</title>"
    "<body style='font: 16px/1.5 sans-serif; max-width: 40em; margin: 4em auto; padding: 0 1em'>"
    "<h1 style='font-size: 1.2em'>This page asks for a token</h1>"
    "<p>Open the whole address that <code>landscape view</code> has printed, with its token. "
    "After a restart of the server the token is a new one.</p></body></html>"
)


def make_app(places: Sequence[RunPlace], guard: Guard, api: Api | None = None) -> ASGIApp:
    """The application over these places.

    Args:
        guard: decides which requests are answered.
        api: gives the answers; default: one with the usual bounds of memory.
    """
    answers = api or Api(places)
    assets = Assets()

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        assets.begin()
        async with answers.running():
            yield

    async def index(request: Request) -> Response:
        token = AddressQuery(pairs_of(request)).text("token")
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
    """Answers only authorised requests, and adds the security headers to every answer."""

    def __init__(self, app: ASGIApp, guard: Guard) -> None:
        self._app, self._guard = app, guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI request."""
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
        """The refusal of a request; None if it is allowed."""
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
    """The parameters of an address, in order; bytes that are not UTF-8 are replaced."""
    try:
        return parse_qsl(query.decode("latin-1"), keep_blank_values=True, max_num_fields=1000)
    except ValueError:
        return [("", "")]  # no query has a parameter of this name


def _answering(answer: Endpoint) -> Callable[[Request], Awaitable[Response]]:
    """The endpoint that gives an answer, or a sentence why there is none."""

    async def endpoint(request: Request) -> Response:
        try:
            given = await answer(AddressQuery(pairs_of(request)))
        except (LandscapeError, OSError) as error:
            return error_response(http_status(error), sentence_of(error))
        except asyncio.CancelledError:
            raise
        except Exception as error:
            log.debug("%s failed", request.url.path, exc_info=True)
            text = f"this cannot be shown: {flat(repr(error))}; `landscape view --debug` shows where"
            return error_response(HTTPStatus.INTERNAL_SERVER_ERROR, text)
        return given if isinstance(given, Response) else to_response(given, request)

    return endpoint


def http_status(error: Exception) -> HTTPStatus:
    """The HTTP status for an error."""
    kinds = (
        (GoneError, HTTPStatus.GONE),
        (NotFoundError, HTTPStatus.NOT_FOUND),
        (JobError, HTTPStatus.BAD_REQUEST),
        (StoreError, HTTPStatus.SERVICE_UNAVAILABLE),
    )
    return next((status for kind, status in kinds if isinstance(error, kind)), HTTPStatus.SERVICE_UNAVAILABLE)


def sentence_of(error: Exception) -> str:
    """An error in the words of the page."""
    return few_lines(cause_of(error)) or quoted(error)


def error_response(status: HTTPStatus, sentence: str) -> Response:
    """A response that reports an error."""
    return Response(pack_json({"error": sentence}).body, status, media_type="application/json")


async def _plain_error(request: Request, error: Exception) -> Response:
    status = HTTPStatus(error.status_code if isinstance(error, HTTPException) else 500)
    return error_response(status, f"there is nothing at {quoted(request.url.path)}: {status.phrase}")


def to_response(answer: Answer, request: Request) -> Response:
    """An answer as a response, compressed if the browser accepts that."""
    headers = {"vary": "accept-encoding"}
    if answer.file:
        headers["content-disposition"] = f"attachment; filename*=UTF-8''{quote(answer.file, errors='replace')}"
    if answer.packed is not None and "gzip" in request.headers.get("accept-encoding", ""):
        return Response(answer.packed, headers={**headers, "content-encoding": "gzip"}, media_type=answer.media_type)
    return Response(answer.body, headers=headers, media_type=answer.media_type)


# ----------------------------------------------------------------------------------------------------

DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 8765
KEEP_ALIVE_SECONDS = 75
END_SECONDS = 1  # for pending answers after a signal
STORE_SECONDS = "20"  # for retries of an object store, before the page reports an error


@dataclass(frozen=True)
class Address:
    """Where the server listens."""

    host: str
    port: int
    token: str

    @property
    def url(self) -> str:
        """The URL to open, with the token; a server on all addresses has the name of this machine."""
        return f"http://{self._name}:{self.port}/?token={self.token}"

    @property
    def _name(self) -> str:
        if self.host in ("0.0.0.0", "::", ""):
            return socket.gethostname()
        return f"[{self.host}]" if ":" in self.host else self.host


def serve_page(
    places: Sequence[RunPlace],
    *,
    host: str = DEFAULT_HOST,
    port: int = DEFAULT_PORT,
    allow_hosts: Iterable[str] = (),
    token: str = "",
    ready: Callable[[Address], None] = lambda address: None,
) -> None:
    """Serve the page until a signal ends it.

    Args:
        allow_hosts: further names of the server, such as that of a proxy.
        token: default: a random one.
        ready: called when the server answers.

    Raises:
        JobError: it cannot listen there.
        Interrupted: SIGINT or SIGTERM arrived.
    """
    os.environ.setdefault("LANDSCAPE_STORE_RETRY", STORE_SECONDS)
    opened = listen(host, port)
    with opened:
        address = Address(host, opened.getsockname()[1], token or new_token())
        given = () if is_address(host) else (host,)
        guard = Guard(address.token, own_names((*allow_hosts, *given)))
        asyncio.run(_serve(places, guard, opened, lambda: ready(address)))
    raise Interrupted("the page is closed; the same command opens it again")


async def _serve(places: Sequence[RunPlace], guard: Guard, opened: socket.socket, ready: Callable[[], None]) -> None:
    api = Api(places)
    app = make_app(places, guard, api)
    config = uvicorn.Config(
        app, log_config=None, log_level="critical", access_log=False, lifespan="on", ws="none", server_header=False,
        date_header=False, timeout_keep_alive=KEEP_ALIVE_SECONDS, timeout_graceful_shutdown=END_SECONDS,
        backlog=BACKLOG,
    )  # fmt: skip
    server = Server(config, ready)

    def end() -> None:
        api.end()
        server.should_exit = True

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, end)
    try:
        await server.serve(sockets=[opened])
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
