"""The viewers of a stream of events: each has a queue with a bound, so that a slow one holds up nobody."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from sse_starlette import EventSourceResponse
from starlette.types import Receive, Scope, Send

from landscape.page.answers import utf8

PING_SECONDS = 15  # between two lines that keep a silent connection open through proxies
MOST_WAITING = 64  # events of one viewer; further ones are dropped, and it is told the whole state instead


def event(name: str, data: Any) -> bytes:
    """An event as the stream carries it."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    return utf8(f"event: {name}\r\ndata: {text}\r\n\r\n")


class Viewer:
    """One open stream: the events that it has not taken yet.

    Where it takes them too slowly, all that wait are dropped, and `behind` says so until the state is told anew.
    """

    def __init__(self) -> None:
        self._waiting: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.behind = False

    def put(self, *events: bytes) -> None:
        """Have the viewer told these events, unless it is behind."""
        if self.behind:
            return
        if self._waiting.qsize() + len(events) > MOST_WAITING:
            while not self._waiting.empty():
                self._waiting.get_nowait()
            self.behind = True
            return
        for one in events:
            self._waiting.put_nowait(one)

    def catch_up(self, *events: bytes) -> None:
        """Have it told these events, from which it can go on, where it was behind and has taken all that waited."""
        if self.behind and self._waiting.empty():
            self.behind = False
            self.put(*events)

    def end(self) -> None:
        """End the stream after what waits."""
        self._waiting.put_nowait(None)

    async def events(self) -> AsyncIterator[bytes]:
        """The events as they come, until the stream is to end."""
        while (one := await self._waiting.get()) is not None:
            yield one


class Stream(EventSourceResponse):
    """The answer that is a stream of one viewer's events; `leave` is called when it ends, whoever ends it."""

    def __init__(self, viewer: Viewer, leave: Callable[[Viewer], None]) -> None:
        super().__init__(viewer.events(), ping=PING_SECONDS)
        self._viewer, self._leave = viewer, leave

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events, as ASGI has it."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._leave(self._viewer)
