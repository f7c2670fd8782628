"""Answers over HTTP as bytes: JSON, or raw numbers where the request wants these."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from cluster.serving.answers import Named
from cluster.serving.resolver import Found

RAW, JSON, LINES = "application/octet-stream", "application/json", "application/x-ndjson"


def sends_raw(request: Request) -> bool:
    """Whether the body of a request is raw numbers."""
    return _kind(request.headers.get("content-type", JSON)) == RAW


def wants_raw(request: Request) -> bool:
    """Whether a request asks for raw numbers."""
    return RAW in (_kind(part) for part in request.headers.get("accept", "").split(","))


def _kind(header: str) -> str:
    return header.partition(";")[0].strip().lower()


def raw_reply(named: Named, found: Found, rise: bool) -> Response:
    """float64 [P, values], the least byte first; the names of the values in a header."""
    values = named.values(found, rise)
    content = np.stack(list(values.values()), axis=1).astype("<f8").tobytes()
    return Response(content, media_type=RAW, headers={"x-observables": ",".join(values)})


def json_reply(document: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A document."""
    content = json.dumps(document, separators=(",", ":"), allow_nan=False).encode()
    return Response(content, status, headers, JSON)
