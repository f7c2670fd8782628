"""An S3 of the tests' own over HTTP, one that misbehaves before it, and runs looked at past the code under test."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import random
import threading
import time
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import BaseServer
from typing import TypeVar
from urllib.parse import quote, urlsplit
from xml.etree import ElementTree

import pytest
from small_s3 import SmallS3

SECRET = "Zq8v+verysecretindeed/0123456789ABCDEF"
BUCKET = "bucket"
SIGNED = "AWS4-HMAC-SHA256 Credential=id/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
S = TypeVar("S", bound=BaseServer)


@contextlib.contextmanager
def s3_server() -> Iterator[str]:
    """The address of an S3 with one bucket, on a free port."""
    with serving(SmallS3(BUCKET)) as server:
        yield server.endpoint


@contextlib.contextmanager
def serving(server: S) -> Iterator[S]:
    """Serve from a thread while the block runs."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def request(endpoint: str, method: str, path: str, body: bytes = b"", **headers: str) -> http.client.HTTPResponse:
    """The answer to one request, read; `answer.body` is its content."""
    address = urlsplit(endpoint)
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=60)
    try:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, {"Authorization": SIGNED, **given})
        answer = connection.getresponse()
        answer.body = answer.read()
    finally:
        connection.close()
    return answer


def environment(endpoint: str, **more: str) -> dict[str, str]:
    """What a user would set for this store."""
    return {
        "AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": endpoint, "AWS_ALLOW_HTTP": "true", **more,
    }  # fmt: skip


def use(monkeypatch: pytest.MonkeyPatch, endpoint: str, **more: str) -> None:
    for name, value in environment(endpoint, **more).items():
        monkeypatch.setenv(name, value)


class Raw:
    """A run's files by their paths, without the code under test."""

    def __init__(self, place: str, endpoint: str) -> None:
        self.place, self.kind = place, place.partition("://")[0] if "://" in place else "local"
        self._endpoint, self._prefix = endpoint, urlsplit(place).path.strip("/") + "/"
        self._bucket = f"/{urlsplit(place).netloc}"

    def _ask(self, method: str, key: str, body: bytes = b"") -> bytes:
        answer = request(self._endpoint, method, f"{self._bucket}/{quote(self._prefix + key)}", body)
        assert answer.status < 300, (method, key, answer.status, answer.body)
        return answer.body

    def keys(self) -> list[str]:
        if self.kind == "local":
            return sorted(p.relative_to(self.place).as_posix() for p in Path(self.place).rglob("*") if p.is_file())
        return sorted(key for key, _ in self._listed())

    def _listed(self) -> Iterator[tuple[str, str]]:
        """Each key with its tag."""
        token: str | None = ""
        while token is not None:
            page = f"&continuation-token={quote(token, safe='')}" if token else ""
            asked = f"{self._bucket}?list-type=2&prefix={quote(self._prefix, safe='')}{page}"
            found = ElementTree.fromstring(request(self._endpoint, "GET", asked).body)
            for each in found.iterfind("{*}Contents"):
                yield each.findtext("{*}Key", "").removeprefix(self._prefix), each.findtext("{*}ETag", "").strip('"')
            token = found.findtext("{*}NextContinuationToken")

    def read(self, key: str) -> bytes:
        if self.kind == "local":
            return (Path(self.place) / key).read_bytes()
        return self._ask("GET", key)

    def write(self, key: str, data: bytes) -> None:
        if self.kind == "local":
            (Path(self.place) / key).parent.mkdir(parents=True, exist_ok=True)
            (Path(self.place) / key).write_bytes(data)
        else:
            self._ask("PUT", key, data)

    def delete(self, key: str) -> None:
        if self.kind == "local":
            (Path(self.place) / key).unlink()
        else:
            self._ask("DELETE", key)

    def delete_all(self) -> None:
        """Of an object store."""
        for key in self.keys():
            self.delete(key)

    def digests(self) -> dict[str, str]:
        """The MD5 of every file; a store tells those of its objects in one answer."""
        if self.kind == "local":
            return {key: hashlib.md5(self.read(key)).hexdigest() for key in self.keys()}
        return dict(self._listed())

    def values(self) -> dict[str, str]:
        """The digest of every chunk of every array: what must be the same to the bit."""
        return {
            key: each for key, each in self.digests().items() if key.startswith("landscapes.zarr/") and "/c/" in key
        }


def new_url(bucket: str = BUCKET) -> str:
    return f"s3://{bucket}/{uuid.uuid4().hex[:12]}/run"


class Trouble(ThreadingHTTPServer):
    """Hands requests on to a store, and spoils some: 500, 503, a cut answer, or silence; which, the seed says."""

    daemon_threads = True

    def __init__(self, endpoint: str, seed: int = 0, share: float = 0.0, silence: float = 0.0) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.behind, self.share, self.silence = urlsplit(endpoint), share, silence
        self.random, self.lock = random.Random(seed), threading.Lock()
        self.down = False
        self.script: list[str] = []  # fates of the next requests, before chance decides
        self.spoilt: dict[str, int] = {}
        self.log: list[tuple[float, str, str]] = []
        self.refused: list[tuple[str, str]] = []  # while the store is down
        self.endpoint = f"http://127.0.0.1:{self.server_address[1]}"

    def fate(self) -> str:
        with self.lock:
            if self.down:
                return "503"
            if self.script:
                return self.script.pop(0)
            if self.random.random() >= self.share:
                return "well"
            kind = self.random.choice(["500", "503", "cut", "late", *(["silence"] if self.silence else [])])
            self.spoilt[kind] = self.spoilt.get(kind, 0) + 1
            return kind

    def running(self) -> contextlib.AbstractContextManager[Trouble]:
        return serving(self)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Trouble

    def log_message(self, *words: object) -> None:
        pass

    def _any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.server.down:
            self.server.refused.append((self.command, self.path))
        fate = self.server.fate()
        if fate in ("500", "503"):
            name = {"500": "InternalError", "503": "SlowDown"}[fate]
            return self._answer(int(fate), {}, f"<Error><Code>{name}</Code><Message>no</Message></Error>".encode())
        if fate == "silence":
            time.sleep(self.server.silence)
            self.close_connection = True
            return None
        self.server.log.append((time.monotonic(), self.command, self.path))
        behind = http.client.HTTPConnection(self.server.behind.hostname, self.server.behind.port, timeout=60)
        try:
            behind.request(self.command, self.path, body, dict(self.headers))
            answer = behind.getresponse()
            data = answer.read()
            headers = {k: v for k, v in answer.getheaders() if k.lower() not in ("connection", "transfer-encoding")}
        finally:
            behind.close()
        if fate == "late":  # done, and the answer lost
            return self._answer(500, {}, b"<Error><Code>InternalError</Code></Error>")
        return self._answer(answer.status, headers, data, cut=fate == "cut" and len(data) > 1)

    def _answer(self, status: int, headers: dict[str, str], data: bytes, *, cut: bool = False) -> None:
        with contextlib.suppress(OSError):  # the asker has given up
            self.send_response_only(status)
            given = {k.lower() for k in headers}
            for name, value in headers.items():
                self.send_header(name, value)
            if "content-length" not in given:
                self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data[: len(data) // 2] if cut else data)
            self.close_connection = cut

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _any
