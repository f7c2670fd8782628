"""Asks an ASGI application within this process, and reads streams of events as they come."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from queue import Queue
from typing import Any

import numpy as np
from starlette.types import ASGIApp, Message


def array(encoded: Mapping[str, str]) -> np.ndarray:
    """The numbers of an array of a figure, as plotly.js reads them."""
    flat = np.frombuffer(base64.b64decode(encoded["bdata"]), np.dtype(f"<{encoded['dtype']}"))
    return flat.reshape([int(part) for part in encoded.get("shape", str(flat.size)).split(",")])


@dataclass(frozen=True)
class Reply:
    """The answer to one request."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The value that the body holds, unpacked."""
        packed = self.headers.get("content-encoding") == "gzip"
        return json.loads(gzip.decompress(self.body) if packed else self.body)

    @property
    def error(self) -> str:
        """The sentence of an answer that is an error."""
        return str(self.json["error"])


@dataclass
class Stream:
    """The events of an open stream, as they come."""

    status: int
    events: Queue[tuple[str, Any]] = field(default_factory=Queue)

    def next(self, name: str, seconds: float = 20.0) -> Any:
        """The data of the next event of that name; others before it are dropped."""
        while True:
            found, data = self.events.get(timeout=seconds)
            if found == name:
                return data


class Client:
    """Asks the application, with a cookie where there is one."""

    def __init__(self, app: ASGIApp, loop: asyncio.AbstractEventLoop, cookie: str, root_path: str) -> None:
        self._app, self._loop, self.cookie, self._root = app, loop, cookie, root_path

    def get(self, address: str, method: str = "GET", **headers: str) -> Reply:
        """The answer to one request; a header's underscores stand for hyphens."""
        return asyncio.run_coroutine_threadsafe(self._get(address, method, headers), self._loop).result(60)

    def json(self, address: str) -> Any:
        """The value that a request which succeeds is answered by."""
        reply = self.get(address)
        assert reply.status == 200, reply.body
        return reply.json

    def _scope(self, address: str, method: str, headers: Mapping[str, str]) -> dict[str, Any]:
        path, _, query = address.partition("?")
        given = {"host": "localhost", "cookie": self.cookie, **headers}
        named = {name.replace("_", "-"): value for name, value in given.items() if value}
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "root_path": self._root,
            "path": self._root + path,
            "raw_path": (self._root + path).encode(),
            "query_string": query.encode("latin-1"),
            "headers": [(name.encode(), value.encode("latin-1")) for name, value in named.items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
        }

    def leave(self, address: str, lines: int) -> list[Any]:
        """The first lines of an answer in lines of JSON, after which the client goes away."""
        return asyncio.run_coroutine_threadsafe(self._leave(address, lines), self._loop).result(60)

    async def _get(self, address: str, method: str, headers: Mapping[str, str]) -> Reply:
        messages, asked = list[Message](), iter([{"type": "http.request", "body": b"", "more_body": False}])

        async def send(message: Message) -> None:
            messages.append(message)

        async def receive() -> Message:
            message = next(asked, None)
            if message is None:
                await asyncio.Event().wait()  # the client stays until it has the answer
            return message or {}

        await self._app(self._scope(address, method, headers), receive, send)
        start = messages[0]
        found = {name.decode(): value.decode("latin-1") for name, value in start["headers"]}
        return Reply(start["status"], found, b"".join(message.get("body", b"") for message in messages[1:]))

    async def _leave(self, address: str, lines: int) -> list[Any]:
        taken, gone = list[bytes](), asyncio.Event()

        async def send(message: Message) -> None:
            if body := message.get("body", b""):
                taken.append(body)
            if len(taken) >= lines:
                gone.set()

        async def receive() -> Message:
            await gone.wait()
            return {"type": "http.disconnect"}

        await self._app(self._scope(address, "GET", {}), receive, send)
        return [json.loads(line) for line in taken[:lines]]

    @contextmanager
    def stream(self, address: str) -> Iterator[Stream]:
        """An open stream of events, which the client leaves when the block ends."""
        opened: Future[Stream] = Future()
        task = asyncio.run_coroutine_threadsafe(self._stream(address, opened), self._loop)
        try:
            yield opened.result(20)
        finally:
            task.cancel()

    async def _stream(self, address: str, opened: Future[Stream]) -> None:
        gone, text = asyncio.Event(), ""
        streams: list[Stream] = []

        async def send(message: Message) -> None:
            nonlocal text
            if message["type"] == "http.response.start":
                streams.append(Stream(message["status"]))
                opened.set_result(streams[0])
                return
            text += message.get("body", b"").decode().replace("\r\n", "\n")
            *blocks, text = text.split("\n\n")
            for block in blocks:
                lines = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
                if "data" in lines:
                    streams[0].events.put((lines.get("event", "message"), json.loads(lines["data"])))

        async def receive() -> Message:
            await gone.wait()
            return {"type": "http.disconnect"}

        try:
            await self._app(self._scope(address, "GET", {}), receive, send)
        except asyncio.CancelledError:
            gone.set()
            raise


@contextmanager
def asking(app: ASGIApp, cookie: str = "", root_path: str = "") -> Iterator[Client]:
    """A client of an application whose background work goes on while the block runs.

    Args:
        root_path: the prefix under which a proxy shows the application.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="page")
    thread.start()
    life: asyncio.Queue[Message] = asyncio.Queue()
    told: asyncio.Queue[Message] = asyncio.Queue()

    async def live() -> None:
        await app({"type": "lifespan", "asgi": {"version": "3.0"}}, life.get, told.put)

    async def say(kind: str) -> None:
        await life.put({"type": kind})
        assert (await told.get())["type"] == f"{kind}.complete"

    living = asyncio.run_coroutine_threadsafe(live(), loop)
    try:
        asyncio.run_coroutine_threadsafe(say("lifespan.startup"), loop).result(20)
        yield Client(app, loop, cookie, root_path)
        asyncio.run_coroutine_threadsafe(say("lifespan.shutdown"), loop).result(20)
        living.result(20)
    finally:
        asyncio.run_coroutine_threadsafe(_cancel_all(), loop).result(20)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _cancel_all() -> None:
    """End what the libraries leave running in a loop."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
