"""The server of the page: its socket, its address with the token, and how it ends."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import uvicorn

from landscape.core.errors import Interrupted
from landscape.core.http import BACKLOG, Guard, Server, is_address, listen, new_token, own_names
from landscape.page.api import Api
from landscape.page.app import make_app
from landscape.store.status import Place

DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 8765
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
