"""A server of HTTP that leaves signals to its caller, and the socket that it listens at."""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Callable

import uvicorn

from landscape.core.errors import JobError, shown

BACKLOG = 512


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
