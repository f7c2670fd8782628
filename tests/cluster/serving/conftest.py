"""A small run that is served in this process: a replica without Ray, asked over the application itself."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
from page_client import Reply
from starlette.types import ASGIApp, Message

from cluster.serving.landscapes import ServedLandscape
from cluster.serving.replica import Replica
from cluster.serving.requests import Refusal, RequestLimits
from cluster.serving.resolver import PointCache, Queue, Resolver
from cluster.serving.rest import make_rest_app
from cluster.serving.service import LandscapeService
from cluster.serving.sources import Catalog, catalog_of
from landscape.compute.serial import run as run_serially
from landscape.core.http import Guard
from landscape.job.reading import read_job

PROBLEM = """
from dataclasses import replace

import torch

from landscape import Problem


def problem():
    generator = torch.Generator().manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 6), torch.nn.Tanh(), torch.nn.Linear(6, 4))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator))
    data = torch.randn(40, 3, generator=generator), torch.randint(0, 4, (40,), generator=generator)
    made = Problem.supervised(model, data, metrics={"accuracy": right})
    return replace(made, derived={"perplexity": "exp(loss)"})


def right(outputs, targets):
    return (outputs.argmax(1) == targets).float()
"""
JOB = """
run: lenet
problem: small_problem:problem
num_samples: 40
engine: eager
landscapes:
  - {name: plane, size: [5, 4], range: [[-1, 1], [0, 1.5]]}
  - {name: line, directions: [{kind: random, seed: 3}], size: 9}
"""
POINTS = "/v1/models/lenet/versions/latest/landscapes/plane/points"
TOKEN = "the-token-of-these-tests"

Result = TypeVar("Result")


@pytest.fixture(scope="session")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a computed run `lenet` of two landscapes, and its job file."""
    folder = tmp_path_factory.mktemp("served")
    (folder / "small_problem.py").write_text(PROBLEM)
    (folder / "job.yaml").write_text(JOB)
    run_serially(read_job(folder / "job.yaml"))
    return folder


@dataclass
class InProcess:
    """A replica as those who ask see it; `raising` is what its next calls raise first."""

    replica: Replica
    raising: list[Exception] = field(default_factory=list)
    asked: list[Any] = field(default_factory=list)

    async def _ask(self, answer: Awaitable[Any]) -> Any:
        found = await answer
        if isinstance(found, Refusal):
            raise found
        return found

    async def points(self, key: str, points: Any) -> Any:
        self.asked.append(points)
        return await self._ask(self.replica.points(key, points))

    async def derivative(self, key: str, kind: Any, point: Any) -> Any:
        return await self._ask(self.replica.derivative(key, kind, point))

    async def describe(self, key: str) -> Any:
        return await self._ask(self.replica.describe(key))


class Asker:
    """A service in this process, with an event loop of its own."""

    def __init__(
        self, catalog: Catalog, limits: RequestLimits, queue: int, token: str = TOKEN, cache: int = 1 << 20
    ) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        self.replicas = InProcess(self.run(self._replica(catalog)))
        resolver = Resolver(self.replicas, PointCache(cache), Queue(queue))
        self.service = LandscapeService(catalog, limits, resolver)
        for source in catalog.sources():
            info = self.run(self.replicas.describe(source.key))
            self.service.served[source.key] = ServedLandscape(source, info)
        self.service.state = "ready"
        self.app: ASGIApp = make_rest_app(self.service, Guard(token))

    async def _replica(self, catalog: Catalog) -> Replica:
        return Replica(catalog.sources())

    def run(self, work: Awaitable[Result]) -> Result:
        async def carry_out() -> Result:
            return await work

        return asyncio.run_coroutine_threadsafe(carry_out(), self.loop).result(60)

    def get(self, path: str, **headers: str) -> Reply:
        return self.run(self.send("GET", path, b"", headers))

    def post(self, path: str, body: Any, **headers: str) -> Reply:
        return self.run(self.send("POST", path, body, headers))

    async def send(
        self, method: str, path: str, body: Any, headers: Mapping[str, str] | None = None,
        gone: asyncio.Event | None = None, *, unfinished: bool = False,
    ) -> Reply:  # fmt: skip
        """The answer to a request whose client goes once `gone` is set; an `unfinished` one stops before its end."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        given = {"host": "localhost", "authorization": f"Bearer {TOKEN}", **(headers or {})}
        address, _, query = path.partition("?")
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
            "path": address, "raw_path": address.encode(), "query_string": query.encode(), "root_path": "",
            "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in given.items()],
            "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
        }  # fmt: skip
        parts = [content[start : start + 1000] for start in range(0, len(content), 1000)] or [b""]
        sent: list[Message] = []

        async def receive() -> Message:
            if not parts:
                await (gone or asyncio.Event()).wait()
                return {"type": "http.disconnect"}
            return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts) or unfinished}

        async def send(message: Message) -> None:
            sent.append(message)

        await self.app(scope, receive, send)
        found = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return Reply(sent[0]["status"], found, b"".join(message.get("body", b"") for message in sent[1:]))

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


@pytest.fixture
def make_asker(scene: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Asker]]:
    """Makes services over places of the scene."""
    made: list[Asker] = []
    monkeypatch.chdir(scene)

    def make(*places: str, points: int = 1000, queue: int = 100, **given: Any) -> Asker:
        made.append(Asker(catalog_of(places or ("lenet",)), RequestLimits(points), queue, **given))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture(scope="module")
def shared_asker(scene: Path) -> Iterator[Asker]:
    """A service over the run that all tests of a file ask, so that its caches hold what earlier ones have asked for."""
    asker = Asker(catalog_of((str(scene / "lenet"),)), RequestLimits(1000), queue=100)
    yield asker
    asker.close()


@pytest.fixture
def asker(make_asker: Callable[..., Asker]) -> Asker:
    """A service over the run."""
    return make_asker()
