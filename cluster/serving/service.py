"""The service itself, whoever asks it: REST and gRPC come here with parsed requests, and get values or a Refusal."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from cluster.serving.landscapes import ServedLandscape
from cluster.serving.replica import Curvature, Gradient
from cluster.serving.requests import UNAVAILABLE, AskedPatch, AskedPoints, LandscapeInfo, Refusal, RequestLimits
from cluster.serving.resolver import SOURCES, ResolvedValues, Resolver
from cluster.serving.sources import Catalog, Version
from landscape.core.errors import NotFoundError
from landscape.core.grid import Floats
from landscape.surface.derived import derive
from landscape.surface.surface import RISE_STDERR

# ----------------------------------------------------------------------------------------------------
# What clients are answered, as JSON values and as raw numbers; the same fields for REST and gRPC.


@dataclass(frozen=True)
class ServedIdentity:
    """Which landscape of which version of which model an answer is of."""

    model: str
    version: int
    landscape: str
    described: LandscapeInfo

    def document(self) -> dict[str, Any]:
        """The fields that every answer begins with."""
        return {
            "model": self.model, "version": self.version, "landscape": self.landscape,
            "axes": [axis.name for axis in self.described.axes],
        }  # fmt: skip

    def values(self, found: ResolvedValues, rise: bool) -> dict[str, Floats]:
        """The values of points by name, [P] each: what is computed, and what is derived from it as in every view."""
        columns = np.ascontiguousarray(found.table.T)
        named: dict[str, Floats] = dict(zip(self.described.columns, columns, strict=True))
        error = named.pop(RISE_STDERR)
        named |= derive(dict(self.described.derived), named)
        return {**named, RISE_STDERR: error} if rise else named


def points_document(named: ServedIdentity, points: Floats, found: ResolvedValues, rise: bool) -> dict[str, Any]:
    """The answer for points, and for a line."""
    return {
        **named.document(),
        "points": points.tolist(),
        "values": {name: numbers(column) for name, column in named.values(found, rise).items()},
        "status": found.status.tolist(),
        "source": [SOURCES[each] for each in found.source.tolist()],
    }


def patch_document(
    named: ServedIdentity, coordinates: Sequence[Floats], found: ResolvedValues, rise: bool
) -> dict[str, Any]:
    """The answer for a patch, its arrays [beta, alpha]."""
    shape = tuple(len(each) for each in reversed(coordinates))
    source = np.array(SOURCES)[found.source].reshape(shape).tolist()
    values = {name: numbers(column.reshape(shape)) for name, column in named.values(found, rise).items()}
    return {
        **named.document(),
        "coordinates": {axis.name: each.tolist() for axis, each in zip(named.described.axes, coordinates, strict=True)},
        "values": values,
        "status": found.status.reshape(shape).tolist(),
        "source": source,
    }


def row_document(
    named: ServedIdentity, index: Sequence[int], place: Sequence[float], found: ResolvedValues, rise: bool
) -> dict[str, Any]:
    """One row of a patch that is streamed: the place of the row along the other axes, and its values."""
    axes = [axis.name for axis in reversed(named.described.axes[1:])]
    return {
        "row": list(index),
        **dict(zip(axes, place, strict=True)),
        "values": {name: numbers(column) for name, column in named.values(found, rise).items()},
        "status": found.status.tolist(),
        "source": [SOURCES[each] for each in found.source.tolist()],
    }


def gradient_document(named: ServedIdentity, found: Gradient) -> dict[str, Any]:
    """The answer for a gradient."""
    return {
        **named.document(), "point": list(found.point), "loss": number(found.loss),
        "gradient": numbers(found.gradient), "stderr": numbers(found.stderr),
    }  # fmt: skip


def curvature_document(named: ServedIdentity, found: Curvature) -> dict[str, Any]:
    """The answer for curvature."""
    return {
        **named.document(), "point": list(found.point), "curvature": numbers(found.curvature),
        "eigenvalues": numbers(found.eigenvalues), "method": found.method,
    }  # fmt: skip


def models_document(models: Mapping[str, Sequence[tuple[Version, Mapping[str, LandscapeInfo]]]]) -> dict[str, Any]:
    """The list of all that is served."""
    return {
        "models": [
            {
                "name": name,
                "latest": versions[-1][0].number,
                "versions": [
                    {
                        "version": version.number,
                        "place": version.place,
                        "landscapes": [{"name": each, **known.document()} for each, known in landscapes.items()],
                    }
                    for version, landscapes in versions
                ],
            }
            for name, versions in models.items()
        ]
    }


def numbers(values: Any) -> Any:
    """Numbers as JSON has them: null where one is not finite."""
    array = np.asarray(values, np.float64)
    if np.isfinite(array).all():
        return array.tolist()
    return _with_nulls(array.tolist())


def number(value: float) -> float | None:
    """A number as JSON has it: null where it is not finite."""
    return value if math.isfinite(value) else None


def _with_nulls(values: Any) -> Any:
    return [_with_nulls(each) for each in values] if isinstance(values, list) else number(values)


# ----------------------------------------------------------------------------------------------------

ROWS_AT_ONCE = 4  # of a streamed patch, so that the next ones are computed while one is sent
STARTING_SECONDS = 2.0
LIST_SECONDS = 2.0  # that the list of models waits for the disk, at most

Row = tuple[tuple[int, ...], ResolvedValues]  # of a patch: its index along all axes but the first, its values
State = Literal["starting", "ready", "draining"]


@dataclass
class LandscapeService:
    """Answers for the landscapes of a catalog.

    Attributes:
        state: requests are answered while it is ready.
    """

    catalog: Catalog
    limits: RequestLimits
    resolver: Resolver
    served: dict[str, ServedLandscape] = field(default_factory=dict)
    state: State = "starting"

    def health(self) -> dict[str, Any]:
        """What a load balancer asks for."""
        return {
            "status": self.state,
            "models": len(self.catalog.models),
            "requests": self.resolver.under_way,
            "computing": self.resolver.queue.waiting,
        }

    async def models(self) -> dict[str, Any]:
        """All that is answered for; what is gone, or was computed anew, is left out.

        What the disk does not tell, or not in time, stays in the list as it was.
        """
        keys = list(self.served)
        gone = await asyncio.gather(*(self._is_gone(self.served[key]) for key in keys))
        answered = {key for key, is_gone in zip(keys, gone, strict=True) if not is_gone}
        known: Mapping[str, Any] = {
            name: [
                (
                    version,
                    {
                        each: self.served[source.key].described
                        for each, source in version.landscapes.items()
                        if source.key in answered
                    },
                )
                for version in versions
            ]
            for name, versions in self.catalog.models.items()
        }
        return models_document(known)

    async def _is_gone(self, served: ServedLandscape) -> bool:
        """Whether a landscape is gone, or another one has its name, as far as its disk says so in time."""
        try:
            await asyncio.wait_for(served.look(), LIST_SECONDS)
        except (NotFoundError, Refusal):
            return True
        except Exception:  # a fault of the disk that may pass; who asks for its points is told of it
            return False
        return False

    @contextmanager
    def answering(self) -> Iterator[None]:
        """A request within the block is answered before the service ends.

        Raises:
            Refusal: the service is not ready yet, or not any more.
        """
        if self.state != "ready":
            why = "is starting" if self.state == "starting" else "is ending, and takes no more requests"
            raise Refusal(UNAVAILABLE, f"service: it {why}; ask again later", STARTING_SECONDS)
        with self.resolver.answering():
            yield

    def find(self, model: str, version: str, landscape: str) -> tuple[ServedIdentity, ServedLandscape]:
        """The landscape that an address names."""
        source = self.catalog.find(model, version, landscape)
        served = self.served[source.key]
        number = int(source.key.split("/")[1])
        return ServedIdentity(model, number, landscape, served.described), served

    async def points(self, served: ServedLandscape, asked: AskedPoints) -> ResolvedValues:
        """The values at points."""
        return await self.resolver.points(served, asked.points)

    async def patch(self, served: ServedLandscape, asked: AskedPatch) -> ResolvedValues:
        """The values of a whole patch."""
        return await self.resolver.points(served, asked.points())

    async def rows(self, served: ServedLandscape, asked: AskedPatch) -> AsyncGenerator[Row]:
        """The rows of a patch in their order, each as soon as it is there: its index along the other axes, its values.

        A row runs along the first axis.
        """
        coordinates = asked.coordinates
        indices = list(np.ndindex(asked.shape[:-1]))
        waiting: dict[int, asyncio.Task[ResolvedValues]] = {}

        def begin(place: int) -> None:
            fixed = [coordinates[-1 - k][index] for k, index in enumerate(indices[place])]
            row = np.stack([coordinates[0], *(np.full(len(coordinates[0]), each) for each in reversed(fixed))], axis=1)
            waiting[place] = asyncio.create_task(self.resolver.points(served, row, placed=True))

        begun = 0
        with self.resolver.queue.place():
            try:
                for place, index in enumerate(indices):
                    while begun < min(place + ROWS_AT_ONCE, len(indices)):
                        begin(begun)
                        begun += 1
                    yield index, await waiting.pop(place)
            finally:
                for task in waiting.values():
                    task.cancel()

    async def gradient(self, served: ServedLandscape, point: list[float]) -> Gradient:
        """The slopes at a point."""
        return await self.resolver.gradient(served, point)

    async def curvature(self, served: ServedLandscape, point: list[float]) -> Curvature:
        """The second derivatives at a point."""
        return await self.resolver.curvature(served, point)
