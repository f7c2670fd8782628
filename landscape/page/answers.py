"""Answers of the server as bytes, which are made once, compressed once, and cached within a limit of memory."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from sse_starlette import EventSourceResponse
from starlette.types import Receive, Scope, Send

T = TypeVar("T")

JSON = "application/json"
WORTH_COMPRESSING = 1000  # bytes
FASTEST = 1  # gzip's level: higher ones take several times as long for a few percent
THREADS = 6


@dataclass(frozen=True)
class Answer:
    """The body of an answer; `packed` is the same, compressed by gzip, or None if that saves nothing.

    `file` is the name under which a browser saves it; '' if it shows it.
    """

    body: bytes
    packed: bytes | None
    media_type: str = JSON
    file: str = ""

    @property
    def size(self) -> int:
        """Its bytes of memory."""
        return len(self.body) + len(self.packed or b"")


def pack_body(body: bytes, media_type: str = JSON, level: int = FASTEST, file: str = "") -> Answer:
    """The answer with this body, compressed if that is worthwhile."""
    packed = gzip.compress(body, level, mtime=0) if len(body) >= WORTH_COMPRESSING else None
    return Answer(body, packed if packed is not None and len(packed) < len(body) else None, media_type, file)


def utf8(text: str) -> bytes:
    """A text as bytes; invalid characters, such as those of a file name that is not UTF-8, become question marks."""
    return text.encode("utf-8", "replace")


def to_json(value: Any) -> bytes:
    """A value as JSON; a number that is not finite is refused."""
    return utf8(json.dumps(value, allow_nan=False, separators=(",", ":"), ensure_ascii=False))


def pack_json(value: Any) -> Answer:
    """The answer that holds this value as JSON."""
    return pack_body(to_json(value))


class AnswerCache:
    """A cache of the most recently used answers, within a limit of memory, for one event loop.

    Each answer is computed once, even if several viewers ask for it meanwhile.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._kept: OrderedDict[Hashable, Answer] = OrderedDict()
        self._coming: dict[Hashable, asyncio.Task[Answer]] = {}
        self._bytes = 0

    async def answer(self, key: Hashable, compute: Callable[[], Awaitable[Answer]]) -> Answer:
        """The cached answer of that key, or else the result of `compute`."""
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        if key not in self._coming:
            task = asyncio.create_task(self._computed(key, compute))
            self._coming[key] = task
            task.add_done_callback(partial(self._done, key))
        # A browser that disconnects must not cancel the answer for the others.
        return await asyncio.shield(self._coming[key])

    async def _computed(self, key: Hashable, compute: Callable[[], Awaitable[Answer]]) -> Answer:
        answer = await compute()
        self._keep(key, answer)
        return answer

    def _done(self, key: Hashable, task: asyncio.Task[Answer]) -> None:
        del self._coming[key]
        if not task.cancelled():
            task.exception()  # the viewers have got it; if all have disconnected, asyncio must not report it

    def _keep(self, key: Hashable, answer: Answer) -> None:
        if answer.size > self._most // 2:
            return
        self._kept[key] = answer
        self._bytes += answer.size
        while self._bytes > self._most:
            _, dropped = self._kept.popitem(last=False)
            self._bytes -= dropped.size


def in_thread(threads: ThreadPoolExecutor, compute: Callable[[], T]) -> Awaitable[T]:
    """The result of `compute`, run in one of the threads."""
    return asyncio.get_running_loop().run_in_executor(threads, compute)


# ----------------------------------------------------------------------------------------------------
# The viewers of a stream of events. Each has a bounded queue, so that a slow viewer does not delay the others.

PING_SECONDS = 15  # between two lines that keep a silent connection open through proxies
MOST_WAITING = 64  # events for one viewer; if there are more, they are dropped, and it gets the whole state instead


def event(name: str, data: Any) -> bytes:
    """An event in the format of the stream."""
    return b"event: " + name.encode() + b"\r\ndata: " + to_json(data) + b"\r\n\r\n"


class Viewer:
    """One open stream, with the events that are not sent yet.

    If the viewer takes them too slowly, all waiting events are dropped; `behind` is then True until the whole state is
    sent again.
    """

    def __init__(self) -> None:
        self._waiting: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.behind = False

    def put(self, *events: bytes) -> None:
        """Queue these events, unless the viewer is behind."""
        if self.behind:
            return
        if self._waiting.qsize() + len(events) > MOST_WAITING:
            while not self._waiting.empty():
                self._waiting.get_nowait()
            self.behind = True
            return
        for event in events:
            self._waiting.put_nowait(event)

    def catch_up(self, *events: bytes) -> None:
        """If the viewer is behind and its queue is empty now, queue these events, which give the whole state."""
        if self.behind and self._waiting.empty():
            self.behind = False
            self.put(*events)

    def end(self) -> None:
        """End the stream after the waiting events."""
        self._waiting.put_nowait(None)

    async def events(self) -> AsyncIterator[bytes]:
        """The events as they arrive, until the stream ends."""
        while (waiting := await self._waiting.get()) is not None:
            yield waiting


class EventStream(EventSourceResponse):
    """An answer that is a stream of one viewer's events; `leave` is called when it ends, by either side."""

    def __init__(self, viewer: Viewer, leave: Callable[[Viewer], None]) -> None:
        super().__init__(viewer.events(), ping=PING_SECONDS)
        self._viewer, self._leave = viewer, leave

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events, by ASGI."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._leave(self._viewer)
