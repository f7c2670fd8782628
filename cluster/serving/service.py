"""The questions that the service answers, and its answers, for REST and gRPC alike: values or a Refusal."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cluster.serving.landscapes import ServedLandscape
from cluster.serving.replica import Curvature, DerivativeKind, Gradient
from cluster.serving.requests import (
    CLIENT_GONE,
    UNAVAILABLE,
    Fields,
    LandscapeInfo,
    Refusal,
    RequestedPatch,
    RequestedPoints,
    RequestLimits,
    parse_line,
    parse_patch,
    parse_point,
    parse_points,
    refusal_for,
)
from cluster.serving.resolver import SOURCES, ResolvedValues, Resolver
from cluster.serving.sources import Catalog, ReplicaStates
from landscape.core.errors import NotFoundError
from landscape.core.text import finite_or_none

# ----------------------------------------------------------------------------------------------------
# Answers as JSON.

Schema = dict[str, Any]  # by JSON Schema
Row = tuple[tuple[int, ...], ResolvedValues]  # of a patch: its index along all axes but the first, its values


def _head(served: ServedLandscape) -> dict[str, Any]:
    """The fields at the beginning of every answer: its model, version and landscape."""
    source = served.source
    axes = [axis.name for axis in served.info.axes]
    return {"model": source.model, "version": source.version, "landscape": source.landscape, "axes": axes}


def points_document(served: ServedLandscape, asked: RequestedPoints, found: ResolvedValues) -> dict[str, Any]:
    """The answer for points, and for a line."""
    return {**_head(served), "points": asked.points.tolist(), **_values(served, found, asked.rise, found.status.shape)}


def patch_document(served: ServedLandscape, asked: RequestedPatch, found: ResolvedValues) -> dict[str, Any]:
    """The answer for a patch, its arrays [beta, alpha]."""
    axes = zip(served.info.axes, asked.coordinates, strict=True)
    coordinates = {axis.name: steps.tolist() for axis, steps in axes}
    return {**_head(served), "coordinates": coordinates, **_values(served, found, asked.rise, asked.shape)}


def row_document(served: ServedLandscape, asked: RequestedPatch, row: Row) -> dict[str, Any]:
    """One row of a streamed patch: its coordinates along the other axes, and its values."""
    index, found = row
    names = [axis.name for axis in reversed(served.info.axes[1:])]
    place = dict(zip(names, asked.place(index), strict=True))
    return {"row": list(index), **place, **_values(served, found, asked.rise, found.status.shape)}


def _values(served: ServedLandscape, found: ResolvedValues, rise: bool, shape: tuple[int, ...]) -> dict[str, Any]:
    """The values of points by name, and the status and source of each point, as arrays of this shape."""
    values = served.values(found.table, rise)
    return {
        "values": {name: json_numbers(column.reshape(shape)) for name, column in values.items()},
        "status": found.status.reshape(shape).tolist(),
        "source": np.array(SOURCES)[found.source].reshape(shape).tolist(),
    }


def gradient_document(served: ServedLandscape, asked: list[float], found: Gradient) -> dict[str, Any]:
    """The answer for a gradient."""
    return {
        **_head(served), "point": asked, "loss": finite_or_none(found.loss),
        "gradient": json_numbers(found.gradient), "stderr": json_numbers(found.stderr),
    }  # fmt: skip


def curvature_document(served: ServedLandscape, asked: list[float], found: Curvature) -> dict[str, Any]:
    """The answer for curvature."""
    return {
        **_head(served), "point": asked, "curvature": json_numbers(found.curvature),
        "eigenvalues": json_numbers(found.eigenvalues), "method": found.method,
    }  # fmt: skip


def json_numbers(values: Any) -> Any:
    """Numbers as JSON has them: null where one is not finite."""
    array = np.asarray(values, np.float64)
    if np.isfinite(array).all():
        return array.tolist()
    return _with_nulls(array.tolist())


def _with_nulls(values: Any) -> Any:
    return [_with_nulls(item) for item in values] if isinstance(values, list) else finite_or_none(values)


# ----------------------------------------------------------------------------------------------------
# The questions about a landscape.

NUMBERS = {"type": "array", "items": {"type": "number"}, "minItems": 1, "maxItems": 3}
NULLABLE = {"type": "array", "items": {"type": ["number", "null"]}}
FLAG = {"type": "boolean", "default": False}
RISE = {**FLAG, "description": "also loss_rise_stderr, the error of L(point) − L(origin)"}
POINT = {"point": {**NUMBERS, "description": "a coordinate for each axis"}}
POINTS = {"type": "array", "items": NUMBERS, "minItems": 1}
VALUES: Schema = {
    "points": POINTS,
    "values": {"type": "object", "additionalProperties": NULLABLE, "description": "by name; null where not finite"},
    "status": {"type": "array", "items": {"enum": [1, 2]}, "description": "1 the loss is finite, 2 it is not"},
    "source": {"type": "array", "items": {"enum": list(SOURCES)}},
}


def _nested(item: Schema) -> Schema:
    """The schema of an array with as many dimensions as the landscape has axes, one to three."""
    line = {"type": "array", "items": item}
    plane = {"type": "array", "items": line}
    return {"anyOf": [line, plane, {"type": "array", "items": plane}]}


@dataclass(frozen=True)
class Question:
    """A question about a landscape, over REST and over gRPC.

    Attributes:
        summary: describes its answer.
        fields: the schema of each field of its request; one without a default must be given.
        example: a request.
        answer: the schema of each field of its answer, except those of every answer.
        parse: reads the fields of a request; raises a Refusal.
        document: makes the answer as JSON from the landscape, the result of `parse`, and the values.
    """

    summary: str
    fields: Schema
    example: Schema
    answer: Schema
    parse: Callable[[Fields, LandscapeInfo, RequestLimits], Any]
    document: Callable[[ServedLandscape, Any, Any], dict[str, Any]]


QUESTIONS = {
    "points": Question(
        "The values at points.",
        {"points": POINTS, "rise": RISE},
        {"points": [[0.3, -0.7], [0.0, 0.0]]},
        VALUES, parse_points, points_document,
    ),
    "line": Question(
        "The values at even steps from one point to another, both among them.",
        {"from": NUMBERS, "to": NUMBERS, "count": {"type": "integer", "minimum": 2, "default": 101}, "rise": RISE},
        {"from": [-1.0, 0.0], "to": [1.0, 0.0], "count": 5},
        VALUES, parse_line, points_document,
    ),
    "patch": Question(
        "The values on a grid between two corners, arrays [beta, alpha]. With stream a line of JSON for each row, as "
        "soon as it is there.",
        {
            "low": NUMBERS, "high": NUMBERS, "shape": {**NUMBERS, "items": {"type": "integer", "minimum": 1}},
            "stream": FLAG, "rise": RISE,
        },
        {"low": [-0.1, -0.1], "high": [0.1, 0.1], "shape": [3, 3]},
        {
            "coordinates": {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "number"}}},
            "values": {"type": "object", "additionalProperties": _nested({"type": ["number", "null"]})},
            "status": _nested(VALUES["status"]["items"]), "source": _nested(VALUES["source"]["items"]),
        },
        parse_patch, patch_document,
    ),
    "gradient": Question(
        "The slope of the loss along each axis, with its standard error over the samples.",
        POINT,
        {"point": [0.3, -0.7]},
        {"loss": {"type": ["number", "null"]}, "gradient": NULLABLE, "stderr": NULLABLE},
        parse_point, gradient_document,
    ),
    "curvature": Question(
        "The second derivatives of the loss along the axes, and their eigenvalues.",
        POINT,
        {"point": [0.3, -0.7]},
        {"curvature": {"type": "array", "items": NULLABLE}, "eigenvalues": NULLABLE, "method": {"type": "string"}},
        parse_point, curvature_document,
    ),
}  # fmt: skip

# ----------------------------------------------------------------------------------------------------
# Metrics for Prometheus: requests and their seconds are counted, the rest is read from the service when it is scraped.

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)  # up to the longest patches
OK, REFUSED = 200, 400  # statuses from REFUSED on are refusals
OTHER = "other"  # an address that the service does not have: a label for each would grow without bound


class ServiceMetrics(Collector):
    """The metrics of a service. They name no landscape, so that a long list of models does not multiply them."""

    def __init__(self, service: LandscapeService) -> None:
        self._service, self._registry = service, CollectorRegistry()
        self._requests = Counter(
            "landscape_serve_requests", "Requests, by method and by the status of HTTP, over gRPC too",
            ["method", "status"], registry=self._registry,
        )  # fmt: skip
        self._seconds = Histogram(
            "landscape_serve_request_seconds", "Seconds from a request to the end of its answer, without refused ones",
            ["method"], registry=self._registry, buckets=SECONDS,
        )  # fmt: skip
        self._registry.register(self)

    def note(self, method: str, status: int, seconds: float) -> None:
        """Count a request that has its answer."""
        self._requests.labels(method, str(status)).inc()
        if status < REFUSED:
            self._seconds.labels(method).observe(seconds)

    @contextmanager
    def measuring(self, method: str) -> Iterator[None]:
        """Within the block a request is answered; an error that leaves it is the request's refusal."""
        begin, status = time.perf_counter(), OK
        try:
            yield
        except Exception as error:
            status = refusal_for(error).status
            raise
        except BaseException:  # its task was cancelled, as the client has gone
            status = CLIENT_GONE
            raise
        finally:
            self.note(method, status, time.perf_counter() - begin)

    def collect(self) -> Iterable[Metric]:
        """What is read from the service now."""
        resolver, replicas = self._service.resolver, self._service.replicas
        points = CounterMetricFamily("landscape_serve_points", "Points answered, by their source", labels=["source"])
        for source, count in zip(SOURCES, resolver.points_by_source.tolist(), strict=True):
            points.add_metric([source], count)
        states = GaugeMetricFamily("landscape_serve_replicas", "Replicas, by their state", labels=["state"])
        for state, count in vars(replicas).items():
            states.add_metric([state], count)
        yield from (points, states)
        for name, text, value in (
            ("replicas_limit", "The most replicas that may be started", resolver.most_replicas),
            ("queue_requests", "Requests for which replicas compute, or that wait for them", resolver.queue.waiting),
            ("queue_limit", "The most of these requests; further ones are answered by 429", resolver.queue.most),
        ):
            yield GaugeMetricFamily(f"landscape_serve_{name}", text, value)

    def text(self) -> bytes:
        """All metrics as Prometheus reads them."""
        return generate_latest(self._registry)


# ----------------------------------------------------------------------------------------------------

ROWS_AT_ONCE = 4  # of a streamed patch: the next ones are computed while one is sent
STARTING_SECONDS = 2.0
LIST_SECONDS = 2.0  # at most, that the list of models waits for the disk

State = Literal["starting", "ready", "draining"]


@dataclass
class LandscapeService:
    """Answers questions about the landscapes of a catalog.

    Attributes:
        state: only in the state "ready" requests are answered.
        replicas: as Ray Serve has told last.
    """

    catalog: Catalog
    limits: RequestLimits
    resolver: Resolver
    served: dict[str, ServedLandscape] = field(default_factory=dict)
    state: State = "starting"
    replicas: ReplicaStates = field(default_factory=ReplicaStates)

    def __post_init__(self) -> None:
        self.metrics = ServiceMetrics(self)

    def health(self) -> dict[str, Any]:
        """The state of the service, for a load balancer."""
        return {
            "status": self.state,
            "models": len(self.catalog.models),
            "requests": self.resolver.under_way,
            "computing": self.resolver.queue.waiting,
        }

    async def models(self) -> dict[str, Any]:
        """All models that are served, without landscapes that are gone or were computed anew.

        A landscape that cannot be checked on the disk in time stays in the list.
        """
        keys = list(self.served)
        gone = await asyncio.gather(*(self._is_gone(self.served[key]) for key in keys))
        answered = {key for key, is_gone in zip(keys, gone, strict=True) if not is_gone}
        return {"models": [self._model(name, answered) for name in self.catalog.models]}

    def _model(self, name: str, answered: Collection[str]) -> dict[str, Any]:
        versions = self.catalog.models[name]
        documents = [
            {
                "version": version.number,
                "place": version.place,
                "landscapes": [
                    {"name": landscape, **self.served[source.key].info.document()}
                    for landscape, source in version.landscapes.items() if source.key in answered
                ],
            }
            for version in versions
        ]  # fmt: skip
        return {"name": name, "latest": versions[-1].number, "versions": documents}

    async def _is_gone(self, served: ServedLandscape) -> bool:
        """Whether a landscape is gone, or another one has its name; False if its disk does not answer in time."""
        try:
            await asyncio.wait_for(served.refresh(), LIST_SECONDS)
        except (NotFoundError, Refusal):
            return True
        except Exception:  # perhaps a passing fault of the disk; a request for its points raises it
            return False
        return False

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Within the block a request counts as under way: the service does not end before it is answered.

        Raises:
            Refusal: the service is starting or ending.
        """
        if self.state != "ready":
            why = "is starting" if self.state == "starting" else "is ending, and takes no more requests"
            raise Refusal(UNAVAILABLE, f"service: it {why}; ask again later", STARTING_SECONDS)
        with self.resolver.answering():
            yield

    def find(self, model: str, version: str, landscape: str) -> ServedLandscape:
        """The landscape that an address names.

        Raises:
            Refusal: there is none.
        """
        return self.served[self.catalog.find(model, version, landscape).key]

    async def answer(self, question: str, served: ServedLandscape, asked: Any) -> Any:
        """The values that a question asks for; `asked` is the result of its `parse`."""
        if isinstance(asked, (RequestedPoints, RequestedPatch)):
            return await self.resolver.points(served, asked.points)
        return await self.resolver.derivative(served, cast(DerivativeKind, question), asked)

    async def rows(self, served: ServedLandscape, asked: RequestedPatch) -> AsyncGenerator[Row]:
        """The rows of a patch in order, each as soon as it is ready. A row runs along the first axis."""
        indices = list(np.ndindex(asked.shape[:-1]))
        tasks: dict[int, asyncio.Task[ResolvedValues]] = {}
        begun = 0
        with self.resolver.queue.place():
            try:
                for number, index in enumerate(indices):
                    for further in range(begun, min(number + ROWS_AT_ONCE, len(indices))):
                        points = asked.row(indices[further])
                        tasks[further] = asyncio.create_task(self.resolver.points(served, points, placed=True))
                        begun = further + 1
                    yield index, await tasks.pop(number)
            finally:
                for task in tasks.values():
                    task.cancel()
