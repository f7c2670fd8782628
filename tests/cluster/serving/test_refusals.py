"""What the service refuses over HTTP, and how: `LANDSCAPE_GOLDEN=write pytest` writes the replies anew, to be read."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cluster.serving.requests import RequestLimits
from cluster.serving.rest import READ_ON

GOLDEN = Path(__file__).parent / "refusals.json"
LANDSCAPE = "/v1/models/lenet/versions/latest/landscapes/plane"
RAW = {"content-type": "application/octet-stream"}
LIMITS = RequestLimits(points=1000)
ZERO = np.zeros(2).tobytes()

# (method, address, body, headers), by what is wrong. An address without a slash is a question about the landscape.
Request = tuple[str, str, Any, dict[str, str]]


def post(question: str, body: Any, **headers: str) -> Request:
    return "POST", question, body, {name.replace("_", "-"): value for name, value in headers.items()}


def raw(content: bytes, query: str = "") -> Request:
    return "POST", f"points?{query}", content, RAW


REQUESTS: dict[str, Request] = {
    # who asks
    "no token": post("points", {"points": [[0, 0]]}, authorization=""),
    "wrong token": post("points", {"points": [[0, 0]]}, authorization="Bearer wrong"),
    "another scheme": post("points", {"points": [[0, 0]]}, authorization="Basic the-token-of-these-tests"),
    "a token without a scheme": post("points", {"points": [[0, 0]]}, authorization="the-token-of-these-tests"),
    "no token for a bad body": post("points", b"{", authorization=""),
    "no token for an unknown landscape": post(LANDSCAPE[:-1] + "/points", {}, authorization=""),
    "no token for the list": ("GET", "/v1/models", b"", {"authorization": ""}),
    # addresses and methods
    "unknown address": ("GET", "/v2/models", b"", {}),
    "a slash too many": ("GET", "/v1/models/", b"", {}),
    "below the page": ("GET", "/docs/more", b"", {}),
    "a long address": ("GET", "/" + "a" * 500, b"", {}),
    "an address with a line break": ("GET", "/a\nb", b"", {}),
    "unknown model": post("/v1/models/lennet/versions/1/landscapes/plane/points", {"points": [[0, 0]]}),
    "unknown version": post("/v1/models/lenet/versions/3/landscapes/plane/points", {"points": [[0, 0]]}),
    "version 01": post("/v1/models/lenet/versions/01/landscapes/plane/points", {"points": [[0, 0]]}),
    "unknown landscape": post("/v1/models/lenet/versions/1/landscapes/plan/points", {"points": [[0, 0]]}),
    "unknown question": post("poinst", {}),
    "question in capitals": post("POINTS", {"points": [[0, 0]]}),
    "GET of a question": ("GET", "points", b"", {}),
    "HEAD of a question": ("HEAD", "points", b"", {}),
    "OPTIONS of a question": ("OPTIONS", "points", b"", {}),
    "PUT of a question": ("PUT", "points", b"", {}),
    "DELETE of a question": ("DELETE", "points", b"", {}),
    "POST to the list": ("POST", "/v1/models", b"{}", {}),
    "POST to health": ("POST", "/v1/health", b"{}", {}),
    "POST to the page": ("POST", "/docs", b"{}", {}),
    "OPTIONS of the list": ("OPTIONS", "/v1/models", b"", {}),
    "an unknown method": ("BREW", "points", b"", {}),
    # parameters of the address
    "rise in the address of a JSON body": post("points?rise=true", {"points": [[0, 0]]}),
    "a parameter of a line": post("line?count=3", {"from": [0, 0], "to": [1, 1]}),
    "an empty parameter": post("points?=", {"points": [[0, 0]]}),
    "rise twice": raw(ZERO, "rise=true&rise=false"),
    "rise=yes": raw(ZERO, "rise=yes"),
    "rise without a value": raw(ZERO, "rise="),
    "risen": raw(ZERO, "risen=true"),
    # bodies
    "no body": post("points", b""),
    "half an object": post("points", b"{"),
    "a list": post("points", [1]),
    "a string": post("points", "points"),
    "null": post("points", None),
    "two documents": post("points", b'{"points": [[0, 0]]} {}'),
    "no UTF-8": post("points", b'{"points": "\xff"}'),
    "UTF-16": post("points", '{"points": [[0]]}'.encode("utf-16")),
    "a trailing comma": post("points", b'{"points": [[0, 0]],}'),
    "nested too deeply": post("points", b'{"points": ' + b"[" * 5000 + b"]" * 5000 + b"}"),
    "a form": post("points", b"points=1", content_type="application/x-www-form-urlencoded"),
    "JSON as text": post("points", b"points", content_type="text/plain"),
    "a long body": post("points", b"[" * 300_000, content_length="300000"),
    "a body that is never read to its end": post("points", b"[" * (READ_ON + 1) * LIMITS.body(2)),
    "a key twice": post("points", b'{"points": [[0, 0]], "points": [[1, 1]]}'),
    "a key twice further in": post("points", b'{"points": [{"a": 1, "a": 2}]}'),
    "an unknown key": post("points", {"points": [[0, 0]], "alpha": 1}),
    "a key that is nearly right": post("points", {"point": [[0, 0]]}),
    "an empty key": post("points", {"": 1}),
    "a key in capitals": post("points", {"Points": [[0, 0]]}),
    "an empty object": post("points", {}),
    # points
    "no points": post("points", {"points": []}),
    "points that are null": post("points", {"points": None}),
    "points that are a text": post("points", {"points": "0,0"}),
    "points that are an object": post("points", {"points": {"alpha": 0}}),
    "one point for a list of them": post("points", {"points": [0, 0]}),
    "three coordinates": post("points", {"points": [[0.1, 0.2, 0.3]]}),
    "one coordinate": post("points", {"points": [[0.1, 0.2], [1]]}),
    "a text for a number": post("points", {"points": [["3", 0]]}),
    "a long text for a number": post("points", {"points": [["a" * 20_000, 0], [0, 0]]}),
    "true for a number": post("points", {"points": [[True, 0]]}),
    "null for a number": post("points", {"points": [[None, 0]]}),
    "NaN": post("points", b'{"points": [[0.1, 0.2], [NaN, 0]]}'),
    "infinity": post("points", b'{"points": [[-Infinity, 0]]}'),
    "1e999": post("points", b'{"points": [[1e999, 0]]}'),
    "an integer beyond float64": post("points", {"points": [[10**400, 0]]}),
    "an integer of too many digits": post("points", b'{"points": [[' + b"1" * 5000 + b", 0]]}"),
    "beyond float32": post("points", {"points": [[0, 0], [-1e300, 0]]}),
    "too many points": post("points", {"points": [[0, 0]] * 1001}),
    "rise is 1": post("points", {"points": [[0, 0]], "rise": 1}),
    "rise is a text": post("points", {"points": [[0, 0]], "rise": "true"}),
    "rise is null": post("points", {"points": [[0, 0]], "rise": None}),
    "rise is wrong, and so are the points": post("points", {"points": [], "rise": 1}),
    # raw points
    "raw points, none": raw(b""),
    "raw points of another length": raw(b"\0" * 20),
    "raw points that are NaN": raw(np.array([np.nan, 0]).tobytes()),
    "raw points beyond float32": raw(np.array([0, 1e300]).tobytes()),
    "too many raw points": raw(ZERO * 1001),
    # a line
    "a line to nowhere": post("line", {"from": [0, 0]}),
    "a line from a number": post("line", {"from": 0, "to": [1, 1]}),
    "a line of one point": post("line", {"from": [0, 0], "to": [1, 1], "count": 1}),
    "a count that is a text": post("line", {"from": [0, 0], "to": [1, 1], "count": "3"}),
    "a count that is 3.0": post("line", {"from": [0, 0], "to": [1, 1], "count": 3.0}),
    "a count that is true": post("line", {"from": [0, 0], "to": [1, 1], "count": True}),
    "a count that is null": post("line", {"from": [0, 0], "to": [1, 1], "count": None}),
    "a line of too many points": post("line", {"from": [0, 0], "to": [1, 1], "count": 10**9}),
    "a line from NaN": post("line", b'{"from": [NaN, 0], "to": [1, 1]}'),
    "a line too far": post("line", {"from": [0, 0], "to": [1, 1e300]}),
    "a line with start": post("line", {"start": [0, 0], "to": [1, 1]}),
    "a line's key twice": post("line", b'{"from": [0, 0], "to": [1, 1], "from": [1, 1]}'),
    # a patch
    "a patch without a shape": post("patch", {"low": [0, 0], "high": [1, 1]}),
    "a patch of too many points": post("patch", {"low": [0, 0], "high": [1, 1], "shape": [10**6, 10**6]}),
    "a shape of one axis": post("patch", {"low": [0, 0], "high": [1, 1], "shape": [3]}),
    "a shape that is a number": post("patch", {"low": [0, 0], "high": [1, 1], "shape": 3}),
    "a shape with 0": post("patch", {"low": [0, 0], "high": [1, 1], "shape": [0, 3]}),
    "a shape of texts": post("patch", {"low": [0, 0], "high": [1, 1], "shape": ["3", "3"]}),
    "one point between two ends": post("patch", {"low": [0, 0], "high": [1, 1], "shape": [1, 2]}),
    "a patch too far": post("patch", {"low": [0, 0], "high": [1e300, 1], "shape": [2, 2]}),
    "a patch with stream 1": post("patch", {"low": [0, 0], "high": [1, 1], "shape": [2, 2], "stream": 1}),
    "a patch with nothing": post("patch", {}),
    "a patch's key twice": post("patch", b'{"low": [0, 0], "high": [1, 1], "shape": [2, 2], "low": [0, 0]}'),
    # slopes
    "a gradient nowhere": post("gradient", {}),
    "a gradient of one coordinate": post("gradient", {"point": [0]}),
    "a gradient too far": post("gradient", {"point": [0, 1e39]}),
    "a gradient with rise": post("gradient", {"point": [0, 0], "rise": True}),
    "a gradient's key twice": post("gradient", b'{"point": [0, 0], "point": [1, 1]}'),
    "curvature at NaN": post("curvature", b'{"point": [NaN, 0]}'),
    "curvature of points": post("curvature", {"points": [[0, 0]]}),
    "curvature's key twice": post("curvature", b'{"point": [0, 0], "point": [1, 1]}'),
}
STATES = ("starting", "draining")


@pytest.fixture(scope="module")
def replies(shared_asker: Any) -> dict[str, Any]:
    """The status, the headers and the sentence of each reply."""
    found = {name: reply_to(shared_asker, request) for name, request in REQUESTS.items()}
    service = shared_asker.service
    for service.state in STATES:
        found[service.state] = reply_to(shared_asker, post("points", {"points": [[0, 0]]}))
        found[f"{service.state}, health"] = reply_to(shared_asker, ("GET", "/v1/health", b"", {}))
    service.state = "ready"
    if os.environ.get("LANDSCAPE_GOLDEN") == "write":
        rows = [f"{json.dumps(name)}: {json.dumps(reply, ensure_ascii=False)}" for name, reply in found.items()]
        GOLDEN.write_text("{\n" + ",\n".join(rows) + "\n}\n")
    return found


def reply_to(asker: Any, request: Request) -> dict[str, Any]:
    method, address, body, given = request
    path = address if address.startswith("/") else f"{LANDSCAPE}/{address}"
    reply = asker.run(asker.send(method, path, body, given))
    headers = {name: value for name, value in reply.headers.items() if name not in ("content-length", "content-type")}
    told = reply.json.get("error", reply.json)
    if isinstance(told, str):
        told = re.sub(
            "(must be JSON, and is not:).*", r"\1 …", told
        )  # what follows is Python's, and its versions differ
    return {"status": reply.status, "headers": headers, "told": told}


NAMES = [*REQUESTS, *(f"{state}{what}" for state in STATES for what in ("", ", health"))]


@pytest.mark.parametrize("name", NAMES)
def test_a_request_is_refused_as_it_always_was(replies, name):
    assert replies[name] == json.loads(GOLDEN.read_text())[name]


def test_each_refusal_is_recorded_and_is_one_line(replies):
    assert list(json.loads(GOLDEN.read_text())) == NAMES
    sentences = [reply["told"] for reply in replies.values() if isinstance(reply["told"], str)]
    assert [sentence for sentence in sentences if "\n" in sentence or len(sentence) > 400] == []
