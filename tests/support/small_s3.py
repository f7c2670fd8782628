"""As much of S3 over HTTP as runs ask of it, in memory: moto's takes ten times as long for a request.

`tests/landscape/core/test_small_s3.py` compares its answers with moto's.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import socket
import socketserver
import threading
import time
from dataclasses import dataclass, field
from email.utils import formatdate
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

SMALLEST_PART = 5 << 20  # of a multipart upload, but for the last


@dataclass(frozen=True)
class Stored:
    """An object, its tag as HTTP writes it, and when it was put."""

    data: bytes
    tag: str
    at: float = field(default_factory=time.time)

    @classmethod
    def of(cls, data: bytes) -> Stored:
        return cls(data, f'"{hashlib.md5(data).hexdigest()}"')


@dataclass(frozen=True)
class Request:
    method: str
    bucket: str
    key: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


class Refused(Exception):
    """An answer in S3's own words."""

    def __init__(self, status: int, code: str) -> None:
        self.answer = Answer(status, _xml("Error", f"<Code>{code}</Code><Message>{code}</Message>"))


class SmallS3(socketserver.ThreadingTCPServer):
    """Buckets of objects; one request changes them at a time."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, *buckets: str) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.endpoint = f"http://127.0.0.1:{self.server_address[1]}"
        self.buckets: dict[str, dict[str, Stored]] = {name: {} for name in buckets}
        self._uploads: dict[str, dict[int, Stored]] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self.open: set[socket.socket] = set()  # connections, which their askers keep

    def server_close(self) -> None:
        """Hang up: no thread is left that waits for a request."""
        super().server_close()
        for connection in tuple(self.open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def answer(self, asked: Request) -> Answer:
        if "authorization" not in asked.headers:
            return Refused(403, "AccessDenied").answer
        try:
            with self._lock:
                return self._object(asked) if asked.key else self._bucket(asked)
        except Refused as refused:
            return refused.answer

    # -- buckets --------------------------------------------------------------------------------------------------

    def _bucket(self, asked: Request) -> Answer:
        if asked.method == "PUT":
            self.buckets.setdefault(asked.bucket, {})
            return Answer(200)
        objects = self._objects(asked)
        if asked.method == "GET" and asked.query.get("list-type") == "2":
            return _listing(asked, objects)
        if asked.method == "POST" and "delete" in asked.query:
            keys = [each.text or "" for each in ElementTree.fromstring(asked.body).iter() if each.tag.endswith("Key")]
            for key in keys:
                objects.pop(key, None)
            gone = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
            return Answer(200, _xml("DeleteResult", gone))
        if asked.method == "DELETE":
            if objects:
                raise Refused(409, "BucketNotEmpty")
            del self.buckets[asked.bucket]
            return Answer(204)
        raise Refused(501, "NotImplemented")

    def _objects(self, asked: Request) -> dict[str, Stored]:
        try:
            return self.buckets[asked.bucket]
        except KeyError:
            raise Refused(404, "NoSuchBucket") from None

    # -- objects --------------------------------------------------------------------------------------------------

    def _object(self, asked: Request) -> Answer:
        objects = self._objects(asked)
        if "uploads" in asked.query or "uploadId" in asked.query:
            return self._in_parts(asked, objects)
        if asked.method in ("GET", "HEAD"):
            return _part(asked, _known(objects, asked.key))
        if asked.method == "PUT":
            return self._put(asked, objects)
        if asked.method == "DELETE":
            objects.pop(asked.key, None)
            return Answer(204)
        raise Refused(501, "NotImplemented")

    def _put(self, asked: Request, objects: dict[str, Stored]) -> Answer:
        if asked.headers.get("if-none-match") == "*" and asked.key in objects:
            raise Refused(412, "PreconditionFailed")
        if "if-match" in asked.headers and _known(objects, asked.key).tag != asked.headers["if-match"]:
            raise Refused(412, "PreconditionFailed")
        source = asked.headers.get("x-amz-copy-source")
        if source is None:
            put = objects[asked.key] = Stored.of(asked.body)
            return Answer(200, headers={"ETag": put.tag})
        bucket, _, key = unquote(source).lstrip("/").partition("/")
        put = objects[asked.key] = Stored.of(_known(self.buckets[bucket], key).data)
        inside = f"<ETag>{put.tag}</ETag><LastModified>{_date(put.at)}</LastModified>"
        return Answer(200, _xml("CopyObjectResult", inside), {"ETag": put.tag})

    def _in_parts(self, asked: Request, objects: dict[str, Stored]) -> Answer:
        if asked.method == "POST" and "uploads" in asked.query:
            upload = str(next(self._numbers))
            self._uploads[upload] = {}
            inside = f"<Bucket>{asked.bucket}</Bucket><Key>{escape(asked.key)}</Key><UploadId>{upload}</UploadId>"
            return Answer(200, _xml("InitiateMultipartUploadResult", inside))
        parts = self._uploads.get(asked.query["uploadId"])
        if parts is None:
            raise Refused(404, "NoSuchUpload")
        if asked.method == "PUT":
            part = parts[int(asked.query["partNumber"])] = Stored.of(asked.body)
            return Answer(200, headers={"ETag": part.tag})
        del self._uploads[asked.query["uploadId"]]
        if asked.method == "DELETE":
            return Answer(204)
        if any(len(parts[number].data) < SMALLEST_PART for number in sorted(parts)[:-1]):
            raise Refused(400, "EntityTooSmall")
        digests = b"".join(bytes.fromhex(parts[number].tag.strip('"')) for number in sorted(parts))
        tag = f'"{hashlib.md5(digests).hexdigest()}-{len(parts)}"'
        objects[asked.key] = Stored(b"".join(parts[number].data for number in sorted(parts)), tag)
        inside = f"<Bucket>{asked.bucket}</Bucket><Key>{escape(asked.key)}</Key><ETag>{tag}</ETag>"
        return Answer(200, _xml("CompleteMultipartUploadResult", inside))


def _known(objects: dict[str, Stored], key: str) -> Stored:
    if key not in objects:
        raise Refused(404, "NoSuchKey")
    return objects[key]


def _part(asked: Request, stored: Stored) -> Answer:
    """The whole object, or the range of it that is asked for."""
    headers = {"ETag": stored.tag, "Last-Modified": formatdate(stored.at, usegmt=True)}
    given = asked.headers.get("range")
    if given is None:
        return Answer(200, stored.data, headers)
    first, last = given.removeprefix("bytes=").split("-")
    size = len(stored.data)
    start = int(first) if first else max(0, size - int(last))
    end = min(int(last), size - 1) if first and last else size - 1
    if start >= size:
        raise Refused(416, "InvalidRange")
    headers["Content-Range"] = f"bytes {start}-{end}/{size}"
    return Answer(206, stored.data[start : end + 1], headers)


def _listing(asked: Request, objects: dict[str, Stored]) -> Answer:
    """The keys below a prefix in their order, a page of them; what a delimiter follows is one common prefix."""
    prefix, delimiter = asked.query.get("prefix", ""), asked.query.get("delimiter", "")
    after = asked.query.get("continuation-token") or asked.query.get("start-after", "")
    most = int(asked.query.get("max-keys", 1000))
    rows: list[str] = []
    seen, last, more = set(), "", False
    for key in sorted(key for key in objects if key.startswith(prefix) and key > after):
        if delimiter and after.endswith(delimiter) and key.startswith(after):
            continue
        head, cut, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
        if cut and prefix + head + cut in seen:
            continue
        if len(rows) == most:
            more = True
            break
        last = prefix + head + cut if cut else key
        seen.add(last)
        if cut:
            rows.append(f"<CommonPrefixes><Prefix>{escape(last)}</Prefix></CommonPrefixes>")
        else:
            each = objects[key]
            rows.append(
                f"<Contents><Key>{escape(key)}</Key><LastModified>{_date(each.at)}</LastModified>"
                f"<ETag>{escape(each.tag)}</ETag><Size>{len(each.data)}</Size></Contents>"
            )
    token = f"<NextContinuationToken>{escape(last)}</NextContinuationToken>" if more else ""
    head = f"<KeyCount>{len(rows)}</KeyCount><IsTruncated>{str(more).lower()}</IsTruncated>{token}"
    return Answer(200, _xml("ListBucketResult", head + "".join(rows)))


def _date(at: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at)) + f".{int(at % 1 * 1000):03d}Z"


def _xml(name: str, inside: str) -> bytes:
    return f'<?xml version="1.0" encoding="UTF-8"?><{name}>{inside}</{name}>'.encode()


class _Connection(socketserver.StreamRequestHandler):
    """The requests of one connection, one after another."""

    server: SmallS3
    disable_nagle_algorithm = True
    wbufsize = -1

    def handle(self) -> None:
        self.server.open.add(self.request)
        with contextlib.suppress(ConnectionError):  # the asker was killed, or has given up
            while self._serve_one():
                pass
        self.server.open.discard(self.request)

    def _serve_one(self) -> bool:
        line = self.rfile.readline()
        if not line.endswith(b"\r\n"):
            return False
        method, target, _ = line.decode("latin-1").split()
        headers: dict[str, str] = {}
        while (line := self.rfile.readline()) not in (b"\r\n", b""):
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.lower()] = value.strip()
        assert "transfer-encoding" not in headers, "obstore says the length of what it puts"
        body = self.rfile.read(int(headers.get("content-length", 0)))
        parts = urlsplit(target)
        bucket, _, key = unquote(parts.path).lstrip("/").partition("/")
        query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        answer = self.server.answer(Request(method, bucket, key, query, headers, body))
        lines = [f"HTTP/1.1 {answer.status} -", f"Content-Length: {len(answer.body)}"]
        lines += [f"{name}: {value}" for name, value in answer.headers.items()]
        self.wfile.write("\r\n".join([*lines, "", ""]).encode("latin-1") + (b"" if method == "HEAD" else answer.body))
        self.wfile.flush()
        return True
