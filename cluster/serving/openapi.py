"""What can be asked of the service, as an OpenAPI document for programs, and as a page for people."""

from __future__ import annotations

import html
import json
from functools import cache
from typing import Any

from cluster.serving.requests import Limits
from landscape import __version__

LANDSCAPE = "/v1/models/{model}/versions/{version}/landscapes/{landscape}"
NUMBERS = {"type": "array", "items": {"type": "number"}, "minItems": 1, "maxItems": 3}
NULLABLE = {"type": "array", "items": {"type": ["number", "null"]}}
RISE = {"type": "boolean", "default": False, "description": "also loss_rise_stderr, the error of L(point) − L(origin)"}
POINT = {"point": {**NUMBERS, "description": "a coordinate for each axis"}}
ERRORS = {
    400: "the request is malformed",
    401: "the token is missing or wrong",
    404: "there is no such model, version, landscape or address",
    408: "the body does not come within a minute",
    413: "the request asks for too much",
    429: "the queue is full; Retry-After says when to ask again",
    500: "the user's code raised at a point",
    503: "the service starts or ends, or this machine computes other values; see the sentence",
}
TIMING = {
    "Server-Timing": {
        "description": "evaluate: milliseconds in which a replica evaluated the batches that this answer's points were "
        "in, 0 where nothing was computed; total: from the request's headers to the answer. Not with stream.",
        "schema": {"type": "string", "example": "evaluate;dur=94.1, total;dur=99.0"},
    }
}
POINTS = {"type": "array", "items": NUMBERS, "minItems": 1}
OF_POINTS: dict[str, Any] = {
    "points": POINTS,
    "values": {"type": "object", "additionalProperties": NULLABLE, "description": "by name; null where not finite"},
    "status": {"type": "array", "items": {"enum": [1, 2]}, "description": "1 the loss is finite, 2 it is not"},
    "source": {"type": "array", "items": {"enum": ["store", "cache", "computed"]}},
}


def _nested(item: dict[str, Any]) -> dict[str, Any]:
    """An array of as many dimensions as there are axes, one to three."""
    line = {"type": "array", "items": item}
    plane = {"type": "array", "items": line}
    return {"anyOf": [line, plane, {"type": "array", "items": plane}]}


# By question: what it does, the fields of the request, those that it needs, an example, the fields of the answer.
QUESTIONS: dict[str, tuple[str, dict[str, Any], list[str], dict[str, Any], dict[str, Any]]] = {
    "points": (
        "The values at points.",
        {"points": POINTS, "rise": RISE},
        ["points"],
        {"points": [[0.3, -0.7], [0.0, 0.0]]},
        OF_POINTS,
    ),
    "line": (
        "The values at even steps from one point to another, both among them.",
        {"from": NUMBERS, "to": NUMBERS, "count": {"type": "integer", "minimum": 2, "default": 101}, "rise": RISE},
        ["from", "to"],
        {"from": [-1.0, 0.0], "to": [1.0, 0.0], "count": 5},
        OF_POINTS,
    ),
    "patch": (
        "The values on a grid between two corners, arrays [beta, alpha]. With stream a line of JSON for each row, as "
        "soon as it is there.",
        {
            "low": NUMBERS, "high": NUMBERS, "shape": {**NUMBERS, "items": {"type": "integer", "minimum": 1}},
            "stream": {"type": "boolean", "default": False}, "rise": RISE,
        },
        ["low", "high", "shape"],
        {"low": [-0.1, -0.1], "high": [0.1, 0.1], "shape": [3, 3]},
        {
            "coordinates": {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "number"}}},
            "values": {"type": "object", "additionalProperties": _nested({"type": ["number", "null"]})},
            "status": _nested(OF_POINTS["status"]["items"]), "source": _nested(OF_POINTS["source"]["items"]),
        },
    ),
    "gradient": (
        "The slope of the loss along each axis, with its standard error over the samples.",
        POINT, ["point"], {"point": [0.3, -0.7]},
        {"loss": {"type": ["number", "null"]}, "gradient": NULLABLE, "stderr": NULLABLE},
    ),
    "curvature": (
        "The second derivatives of the loss along the axes, and their eigenvalues.",
        POINT, ["point"], {"point": [0.3, -0.7]},
        {"curvature": {"type": "array", "items": NULLABLE}, "eigenvalues": NULLABLE, "method": {"type": "string"}},
    ),
}  # fmt: skip


def openapi_document(limits: Limits) -> dict[str, Any]:
    """The document, by OpenAPI 3.1."""
    failed = {
        str(code): {
            "description": text,
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
        }
        for code, text in ERRORS.items()
    }
    paths: dict[str, Any] = {
        "/v1/health": {"get": {
            "summary": "Whether requests are answered; needs no token.", "security": [],
            "responses": {"200": {"description": "ready"}, "503": {"description": "starting or draining"}},
        }},
        "/v1/models": {"get": {
            "summary": "The models, their versions and landscapes.",
            "responses": {"200": {"description": "all that is served"}, "401": failed["401"]},
        }},
    }  # fmt: skip
    for name, (summary, fields, required, example, answer) in QUESTIONS.items():
        schema = {"type": "object", "properties": fields, "required": required, "additionalProperties": False}
        body: dict[str, Any] = {"application/json": {"schema": schema, "example": example}}
        if name == "points":
            body["application/octet-stream"] = {"schema": {"type": "string", "format": "binary"}}
        answers: dict[str, Any] = {"application/json": {"schema": {"type": "object", "properties": answer}}}
        if name in ("points", "line", "patch"):
            answers["application/octet-stream"] = {"schema": {"type": "string", "format": "binary"}}
        if name == "patch":
            answers["application/x-ndjson"] = {"schema": {"type": "string"}}
        paths[f"{LANDSCAPE}/{name}"] = {"post": {
            "summary": summary, "operationId": name,
            "parameters": [
                {"name": each, "in": "path", "required": True, "schema": {"type": "string"}}
                for each in ("model", "version", "landscape")
            ],
            "requestBody": {"required": True, "content": body},
            "responses": {"200": {"description": "the values", "headers": TIMING, "content": answers}, **failed},
        }}  # fmt: skip
    return {
        "openapi": "3.1.0",
        "info": {"title": "landscape serve", "version": __version__, "description": _about(limits)},
        "paths": paths,
        "components": {
            "schemas": {"Error": {"type": "object", "properties": {"error": {"type": "string"}}}},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


@cache
def openapi_page(limits: Limits) -> str:
    """The page, without a script or anything from another server."""
    document, parts = openapi_document(limits), list[str]()
    for path, methods in document["paths"].items():
        for method, what in methods.items():
            parts.append(f"<h2><code>{method.upper()} {html.escape(path)}</code></h2><p>{html.escape(what['summary'])}")
            content = what.get("requestBody", {}).get("content", {}).get("application/json")
            if content is not None:
                rows = "".join(
                    f"<tr><td><code>{html.escape(name)}</code><td>{html.escape(json.dumps(schema, ensure_ascii=False))}"
                    for name, schema in content["schema"]["properties"].items()
                )
                parts.append(f"<table>{rows}</table><pre>{html.escape(json.dumps(content['example']))}</pre>")
    codes = "".join(f"<tr><td><code>{code}</code><td>{html.escape(text)}" for code, text in ERRORS.items())
    return (
        "<!doctype html><html lang='en'><meta charset='utf-8'><title>landscape serve</title>"
        "<meta name='viewport' content='width=device-width'><style>body{font:16px/1.5 sans-serif;max-width:50em;"
        "margin:2em auto;padding:0 1em}h2{font-size:1em;margin-top:2em}td{padding:.1em 1em .1em 0;vertical-align:top}"
        "pre,td:nth-child(2){font-size:.85em}</style><h1>landscape serve</h1>"
        f"<p>{html.escape(_about(limits))} <a href='openapi.json'>openapi.json</a>{''.join(parts)}"
        f'<h2>Errors</h2><p>The body of each is <code>{{"error": "…"}}</code>.<table>{codes}</table></html>'
    )


def _about(limits: Limits) -> str:
    return (
        f"Any point of the landscapes of these models. A request may ask for {limits.points} points. With Accept: "
        "application/octet-stream values come as float64 [points, values], the least byte first, named by the header "
        "X-Observables; points may be sent so too. The header Server-Timing has the milliseconds that an answer took, "
        "and those of its evaluation. Every request but health brings Authorization: Bearer TOKEN."
    )
