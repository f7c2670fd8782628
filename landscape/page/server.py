"""The server of the page: its socket, its address with the token, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import uvicorn

from landscape.errors import Interrupted, JobError, shown
from landscape.page.api import Api
from landscape.page.app import make_app
from landscape.page.places import Place
from landscape.page.security import Guard, is_address, new_token, own_names

DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 8765
BACKLOG = 512
KEEP_ALIVE_SECONDS = 75
END_SECONDS = 1  # that answers under way have when a signal has come
STORE_SECONDS = "20"  # for which a store that does not answer is asked again, before the page says so


@dataclass(frozen=True)
class Address:
    """Where the server listens."""

    host: str
    port: int
    token: str

    @property
    def url(self) -> str:
        """What to open, with the token; a server on all addresses is called by the name of this machine."""
        return f"http://{self._name}:{self.port}/?token={self.token}"

    @property
    def _name(self) -> str:
        if self.host in ("0.0.0.0", "::", ""):
            return socket.gethostname()
        return f"[{self.host}]" if ":" in self.host else self.host


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there, or at a free port of that host where the wanted one is taken.

    Args:
        port: 0 for any free one.

    Raises:
        JobError: the host is no address or name of this machine, or the port needs rights that are missing.
    """
    try:
        family, _, _, _, _ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "malformed"
        raise JobError(f"host: {shown(host)} is not known: {reason}; give an address of this machine") from None
    # With the protocol named, asyncio sends each part of an answer at once; else the second one waits 40 ms for the
    # browser to acknowledge the first.
    opened = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        try:
            opened.bind((host, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            opened.bind((host, 0))
        opened.listen(BACKLOG)
    except OSError as error:
        opened.close()
        field = "port" if error.errno == errno.EACCES else "host"
        raise JobError(
            f"{field}: cannot listen at {shown(f'{host}:{port}')}: {error.strerror}; give another one"
        ) from None
    return opened


def serve(
    places: Sequence[Place],
    *,
    host: str = DEFAULT_HOST,
    port: int = DEFAULT_PORT,
    allow_hosts: Iterable[str] = (),
    token: str = "",
    ready: Callable[[Address], None] = lambda address: None,
) -> None:
    """Serve the page until a signal ends it.

    Args:
        allow_hosts: further names under which the server may be asked, such as that of a proxy.
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


class Server(uvicorn.Server):
    """A server that leaves signals to its caller, and says when it answers."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    @contextlib.contextmanager
    def capture_signals(self):  # type: ignore[no-untyped-def]
        """Take no signals."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to answer, and say so."""
        await super().startup(sockets)
        if self.started:
            self._ready()


async def _serve(places: Sequence[Place], guard: Guard, opened: socket.socket, ready: Callable[[], None]) -> None:
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
