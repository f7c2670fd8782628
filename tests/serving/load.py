"""Many clients at once in one process, each with a connection of its own, each answer checked to the bit."""

from __future__ import annotations

import asyncio
import json
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

Point = tuple[float, ...]
BROKEN = (ConnectionError, asyncio.IncompleteReadError, OSError)


@dataclass
class Tally:
    """What became of the requests.

    Attributes:
        answered: how many had their values.
        busy: how many were answered by 429, and asked again.
        wrong: points whose values were not those expected, with what came.
        failed: other answers.
        seconds: of each request, from its first byte to the last one of its answer.
        evaluated: seconds of each request's own evaluation, as its answer says; NaN where it does not.
    """

    answered: int = 0
    busy: int = 0
    wrong: list[Any] = field(default_factory=list)
    failed: list[Any] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    evaluated: list[float] = field(default_factory=list)


class Connection:
    """A client: one request after another over one connection."""

    def __init__(self, url: str, token: str) -> None:
        host, _, port = urlsplit(url).netloc.rpartition(":")
        self._host, self._port, self._token = host, int(port), token
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, path: str, body: Mapping[str, Any]) -> tuple[int, Mapping[str, str], Any]:
        """Status, headers and JSON of an answer."""
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._host, self._port)
        reader, writer = self._streams
        content = json.dumps(body).encode()
        writer.write(
            f"POST {path} HTTP/1.1\r\nhost: {self._host}\r\nauthorization: Bearer {self._token}\r\n"
            f"content-length: {len(content)}\r\n\r\n".encode()
            + content
        )
        await writer.drain()
        status, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        return int(status.split()[1]), headers, json.loads(await reader.readexactly(int(headers["content-length"])))

    async def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()


async def load(
    url: str, token: str, path: str, clients: int, points: Iterator[Point], check: Callable[[Point, Any], bool],
    seconds: float,
) -> Tally:  # fmt: skip
    """Have clients ask for a point each, again and again, for so many seconds; all answers are waited for.

    Args:
        points: shared by the clients; the load ends where they end.
        check: whether the values of a point are right.
    """
    tally, end = Tally(), time.monotonic() + seconds

    async def client() -> None:
        connection = Connection(url, token)
        for point in points:
            begin = time.perf_counter()
            evaluated = await ask(connection, point)
            tally.seconds.append(time.perf_counter() - begin)
            tally.evaluated.append(evaluated)
            if time.monotonic() > end:
                break
        await connection.close()

    async def ask(connection: Connection, point: Point) -> float:
        while True:
            try:
                status, headers, answer = await connection.post(path, {"points": [point]})
            except BROKEN as error:
                tally.failed.append((point, repr(error)))
                return math.nan
            if status != 429:
                break
            tally.busy += 1
            await asyncio.sleep(float(headers["retry-after"]))
        if status != 200 or answer["points"] != [list(point)]:
            tally.failed.append((point, status, answer))
        elif not check(point, answer["values"]):
            tally.wrong.append((point, answer["values"]))
        else:
            tally.answered += 1
        return evaluated_of(headers)

    await asyncio.gather(*(client() for _ in range(clients)))
    return tally


def evaluated_of(headers: Mapping[str, str]) -> float:
    """The seconds of the evaluation that an answer's header tells; NaN where it has none."""
    match = re.match(r"evaluate;dur=([0-9.]+)", headers.get("server-timing", ""))
    return math.nan if match is None else 1e-3 * float(match[1])


def right(expected: Mapping[Point, Mapping[str, float]]) -> Callable[[Point, Any], bool]:
    """Whether values are the expected ones to the bit."""
    return lambda point, values: all(values[name] == [value] for name, value in expected[point].items())


def table_of(points: Sequence[Point], arrays: Mapping[str, Any]) -> dict[Point, dict[str, float]]:
    """The values of points by point and by name."""
    flat = {name: values for name, values in arrays.items() if values.ndim == 1}
    return {point: {name: float(values[row]) for name, values in flat.items()} for row, point in enumerate(points)}
