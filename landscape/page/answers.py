"""Answers of the server: as bytes that are made once, compressed once, and kept within a bound of memory."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")

JSON = "application/json"
WORTH_COMPRESSING = 1000  # bytes
FASTEST = 1  # gzip's level: higher ones take several times as long for a few percent
THREADS = 6


@dataclass(frozen=True)
class Answer:
    """The body of an answer; `packed` is the same, compressed by gzip, None where that saves nothing.

    `file` is the name under which a browser saves it; '' for what it shows.
    """

    body: bytes
    packed: bytes | None
    media_type: str = JSON
    file: str = ""

    @property
    def size(self) -> int:
        """Bytes of memory that it takes."""
        return len(self.body) + len(self.packed or b"")


def pack(body: bytes, media_type: str = JSON, level: int = FASTEST, file: str = "") -> Answer:
    """The answer with this body, compressed where that is worth it."""
    packed = gzip.compress(body, level, mtime=0) if len(body) >= WORTH_COMPRESSING else None
    return Answer(body, packed if packed is not None and len(packed) < len(body) else None, media_type, file)


def utf8(text: str) -> bytes:
    """A text as bytes; what is no character becomes a question mark, as in a file name that is not in UTF-8."""
    return text.encode("utf-8", "replace")


def pack_json(value: Any) -> Answer:
    """The answer that holds this value as JSON; a number that is not finite is refused."""
    return pack(utf8(json.dumps(value, allow_nan=False, separators=(",", ":"), ensure_ascii=False)))


class Keeper:
    """Keeps answers by what they answer, the last used ones within a bound; each is computed once at a time.

    Used by one event loop.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._kept: OrderedDict[Hashable, Answer] = OrderedDict()
        self._coming: dict[Hashable, asyncio.Task[Answer]] = {}
        self._bytes = 0

    async def answer(self, key: Hashable, compute: Callable[[], Awaitable[Answer]]) -> Answer:
        """The kept answer of that key, or what `compute` gives, for all who ask for it meanwhile."""
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        if key not in self._coming:
            task = asyncio.create_task(self._computed(key, compute))
            self._coming[key] = task
            task.add_done_callback(partial(self._done, key))
        # One who goes away must not take the answer from the others.
        return await asyncio.shield(self._coming[key])

    async def _computed(self, key: Hashable, compute: Callable[[], Awaitable[Answer]]) -> Answer:
        answer = await compute()
        self._keep(key, answer)
        return answer

    def _done(self, key: Hashable, task: asyncio.Task[Answer]) -> None:
        del self._coming[key]
        if not task.cancelled():
            task.exception()  # whoever asked has got it; asyncio must not report it where all have gone away

    def _keep(self, key: Hashable, answer: Answer) -> None:
        if answer.size > self._most // 2:
            return
        self._kept[key] = answer
        self._bytes += answer.size
        while self._bytes > self._most:
            _, dropped = self._kept.popitem(last=False)
            self._bytes -= dropped.size


def in_thread(threads: ThreadPoolExecutor, compute: Callable[[], T]) -> Awaitable[T]:
    """What `compute` gives, run in one of the threads."""
    return asyncio.get_running_loop().run_in_executor(threads, compute)
