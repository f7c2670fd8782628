"""A `landscape serve` of its own process, those who compute for it, and a client that asks it over HTTP."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Running:
    """A service that runs.

    Attributes:
        process: the command.
    """

    process: subprocess.Popen[str]
    url: str
    grpc: str
    token: str
    errors: Path

    def replicas(self) -> list[psutil.Process]:
        """The processes that compute."""
        found = []
        for child in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if any("ServeReplica" in word for word in child.cmdline()):
                    found.append(child)
        return found

    def asker(self) -> Asker:
        """A client with a connection of its own."""
        return Asker(self.url, self.token)

    def ask(self, path: str, body: Any = None) -> tuple[int, Mapping[str, str], Any]:
        """Status, headers and JSON of an answer."""
        asker = self.asker()
        try:
            return asker.ask(path, body)
        finally:
            asker.close()

    def stop(self, number: int = signal.SIGTERM) -> int:
        """End it by a signal; its exit code."""
        self.process.send_signal(number)
        return self.process.wait(60)


class Asker:
    """Asks over one connection that is kept open."""

    def __init__(self, url: str, token: str) -> None:
        self._address, self._token = urlsplit(url).netloc, token
        self._connection = http.client.HTTPConnection(self._address, timeout=120)

    def ask(self, path: str, body: Any = None) -> tuple[int, Mapping[str, str], Any]:
        """Status, headers and JSON of an answer; a POST where there is a body."""
        self.send(path, body)
        reply = self._connection.getresponse()
        read = reply.read()
        return reply.status, {name.lower(): value for name, value in reply.getheaders()}, json.loads(read)

    def send(self, path: str, body: Any = None) -> None:
        """Send a request, whose answer is not waited for; a POST where there is a body."""
        content = None if body is None else json.dumps(body)
        self._connection.request(
            "GET" if body is None else "POST", path, content, {"authorization": f"Bearer {self._token}"}
        )

    def close(self) -> None:
        self._connection.close()


@contextlib.contextmanager
def serving(places: Sequence[str], folder: Path, *options: str, seconds: float = 120.0) -> Iterator[Running]:
    """A service over these places within the block.

    Args:
        folder: its working directory.
        seconds: for which it may start.
    """
    errors = folder / "serve-errors.txt"
    command = [sys.executable, "-m", "cluster", "serve", *places, "--port", "0", "--json", *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with errors.open("w") as stream:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=stream, text=True
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, errors.read_text()
        known = json.loads(line)
        yield Running(process, known["url"], known.get("grpc", ""), known.get("token", ""), errors)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(60)
        process.kill()
        process.wait()
        process.stdout.close()


def percentile(numbers: Sequence[float], share: float) -> float:
    """The number below which that share of them lies."""
    ordered = sorted(numbers)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def until(seconds: float) -> Iterator[float]:
    """The time that has passed, until so many seconds have."""
    begin = time.monotonic()
    while (passed := time.monotonic() - begin) < seconds:
        yield passed
