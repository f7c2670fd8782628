"""A service that answers as `landscape serve` does, of a loss that is known: no network is evaluated."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from landscape.core.grid import axis_coordinates
from landscape.core.http import ServedRun, Server, Service, announce, listen

TOKEN = "the-token-of-the-service"


def loss_at(*point: float) -> float | None:
    """1 + Σ k·xₖ²; below a line of the plane there is none."""
    value = 1 + sum(k * x * x for k, x in enumerate(point, 1))
    return None if value > 60 else value


@dataclass
class FakeService:
    """What the service is to do, and what it was asked.

    Attributes:
        refusal: the answer to everything, where it is to refuse.
        rows: of streamed patches that may be sent; the others are waited for until there are more.
        breaks: what ends a streamed patch after its first row: `gone`, by a sentence; `killed`, without one.
        asked: the questions so far, their kinds and bodies.
        left: streams whose client has gone away before their end.
    """

    url: str = ""
    refusal: Response | None = None
    rows: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(10_000))
    breaks: str = ""
    asked: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    tokens: set[str] = field(default_factory=set)
    left: threading.Event = field(default_factory=threading.Event)

    async def answer(self, request: Request) -> Response:
        """The answer to one question."""
        kind, asked = request.path_params["kind"], await request.json()
        self.asked.append((kind, asked))
        self.tokens.add(request.headers.get("authorization", ""))
        if self.refusal is not None:
            return self.refusal
        match kind:
            case "points":
                return JSONResponse({"points": asked["points"], **self._values(asked["points"])})
            case "gradient":
                place = asked["point"]
                slopes = [2 * k * x for k, x in enumerate(place, 1)]
                return JSONResponse({"point": place, "gradient": slopes, "stderr": [0.5 for _ in slopes]})
            case "curvature":
                size = len(asked["point"])
                table = [[2.0 * (j + 1) if j == k else 0.0 for k in range(size)] for j in range(size)]
                values = [2.0 * (k + 1) for k in range(size)]
                return JSONResponse({"point": asked["point"], "curvature": table, "eigenvalues": values})
        return StreamingResponse(self._rows(asked), media_type="application/x-ndjson")

    async def _rows(self, asked: Mapping[str, Any]) -> AsyncIterator[bytes]:
        ends = zip(asked["shape"], asked["low"], asked["high"], strict=True)
        axes = [[low] if size == 1 else axis_coordinates(size, low, high).tolist() for size, low, high in ends]
        first, *others = axes
        whole = False
        try:
            for row in range(len(others[0]) if others else 1):
                while not self.rows.acquire(blocking=False):
                    await asyncio.sleep(0.01)
                if self.breaks == "killed" and row:
                    raise SystemError("as where the process was killed: the answer is left without its end")
                if self.breaks and row:
                    yield json.dumps({"error": "landscape: its run is gone"}).encode() + b"\n"
                    return
                place = [others[0][row], *(each[0] for each in others[1:])] if others else []
                index = [0] * (len(others) - 1) + [row] if others else []
                line = {"row": index, **self._values([[x, *place] for x in first])}
                yield json.dumps(line).encode() + b"\n"
            whole = True
        finally:
            if not whole:
                self.left.set()

    def _values(self, points: list[list[float]]) -> dict[str, Any]:
        losses = [loss_at(*point) for point in points]
        return {
            "values": {
                "loss": losses,
                "loss_stderr": [0.25 for _ in points],
                "accuracy": [0.5 for _ in points],
                "accuracy_stderr": [0.125 for _ in points],
                "loss_rise_stderr": [0.0625 for _ in points],
            },
            "status": [2 if loss is None else 1 for loss in losses],
            "source": ["store" if not any(point) else "computed" for point in points],
        }


@contextmanager
def fake_service(run: Path, *landscapes: str) -> Iterator[FakeService]:
    """A service for landscapes of a run, which listens and is announced while the block runs."""
    fake, begun = FakeService(), threading.Event()
    path = "/v1/models/net/versions/1/landscapes/{landscape}/{kind}"
    app = Starlette(routes=[Route(path, fake.answer, methods=["POST"])])
    opened = listen("127.0.0.1", 0)
    fake.url = f"http://127.0.0.1:{opened.getsockname()[1]}"
    config = uvicorn.Config(
        app, log_config=None, log_level="critical", access_log=False, lifespan="off", ws="none",
        timeout_graceful_shutdown=0,
    )  # fmt: skip
    server = Server(config, begun.set)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[opened])), name="fake-service")
    thread.start()
    try:
        assert begun.wait(20)
        served = ServedRun("net", 1, str(run.absolute()), landscapes)
        with announce(Service(fake.url, "", TOKEN, os.getpid(), (served,))):
            yield fake
    finally:
        server.should_exit = True
        thread.join()
