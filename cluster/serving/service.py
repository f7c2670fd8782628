"""The service itself, whoever asks it: REST and gRPC come here with parsed requests, and get values or a Refusal."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from cluster.serving.answers import Named, models_document
from cluster.serving.derivatives import Curvature, Gradient
from cluster.serving.refusals import UNAVAILABLE, Refusal
from cluster.serving.requests import AskedPatch, AskedPoints, Limits
from cluster.serving.resolver import Found, Resolver
from cluster.serving.served import ServedLandscape
from cluster.serving.sources import Catalog
from landscape.core.errors import NotFoundError

ROWS_AT_ONCE = 4  # of a streamed patch, so that the next ones are computed while one is sent
STARTING_SECONDS = 2.0
LIST_SECONDS = 2.0  # that the list of models waits for the disk, at most

Row = tuple[tuple[int, ...], Found]  # of a patch: its index along all axes but the first, its values
State = Literal["starting", "ready", "draining"]


@dataclass
class LandscapeService:
    """Answers for the landscapes of a catalog.

    Attributes:
        state: requests are answered while it is ready.
    """

    catalog: Catalog
    limits: Limits
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

    def find(self, model: str, version: str, landscape: str) -> tuple[Named, ServedLandscape]:
        """The landscape that an address names."""
        source = self.catalog.find(model, version, landscape)
        served = self.served[source.key]
        number = int(source.key.split("/")[1])
        return Named(model, number, landscape, served.described), served

    async def points(self, served: ServedLandscape, asked: AskedPoints) -> Found:
        """The values at points."""
        return await self.resolver.points(served, asked.points)

    async def patch(self, served: ServedLandscape, asked: AskedPatch) -> Found:
        """The values of a whole patch."""
        return await self.resolver.points(served, asked.points())

    async def rows(self, served: ServedLandscape, asked: AskedPatch) -> AsyncGenerator[Row]:
        """The rows of a patch in their order, each as soon as it is there: its index along the other axes, its values.

        A row runs along the first axis.
        """
        coordinates = asked.coordinates
        indices = list(np.ndindex(asked.shape[:-1]))
        waiting: dict[int, asyncio.Task[Found]] = {}

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
