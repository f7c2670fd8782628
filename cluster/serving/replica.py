"""What one replica does: it loads landscapes, and computes what is asked of them, one batch after another.

Ray Serve is around it in `deployment`; the class itself knows no Ray, so that a test can ask it in its own process.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar
from weakref import WeakValueDictionary

import numpy as np

from cluster.serving.derivatives import Curvature, Gradient
from cluster.serving.described import Described
from cluster.serving.gathering import FEWEST_POINTS, Gathering, all_of
from cluster.serving.loaded import Computed, LoadedLandscape, joined, load
from cluster.serving.refusals import Refusal, refusal_of
from cluster.serving.sources import Source
from landscape.core.devices import keep_freed_memory
from landscape.evaluation.values import Floats

Result = TypeVar("Result")
Load = Callable[[str], Awaitable[LoadedLandscape]]

log = logging.getLogger("landscape")


class Replica:
    """Answers questions about landscapes, by their keys. What it refuses it returns, as a `Refusal`.

    One thread computes, so that all of torch's settings hold for one evaluation at a time; the event loop meanwhile
    takes in what comes.

    Args:
        sources: all landscapes that may be asked for.
        path: the module path of the process that serves, where callbacks are found.
    """

    def __init__(self, sources: Sequence[Source], path: Sequence[str] = ()) -> None:
        sys.path[:0] = [each for each in path if each not in sys.path]
        keep_freed_memory()
        self._sources = {source.key: source for source in sources}
        self._thread = ThreadPoolExecutor(1, "computing")
        self._gathering = Gathering(self._compute)
        self._loaded: dict[str, LoadedLandscape] = {}
        self._alive: WeakValueDictionary[str, LoadedLandscape] = WeakValueDictionary()
        self.loading: Load = self.load  # a deployment bounds how many are held at once

    async def load(self, key: str) -> LoadedLandscape:
        """A landscape that is ready to be evaluated; raises why it cannot be."""
        found = self._loaded.get(key)
        if found is None:
            found = self._loaded[key] = await self.in_thread(self.make, key)
        return found

    def make(self, key: str) -> LoadedLandscape:
        """Prepare a landscape; takes seconds. Who asks for it holds it."""
        found = self._alive[key] = load(self._sources[key], list(self._alive.values()))
        return found

    async def in_thread(self, work: Callable[..., Result], *arguments: object) -> Result:
        """What a call returns that computes, or loads."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)

    # -- what is asked ----------------------------------------------------------------------------------------

    async def points(self, key: str, points: Floats) -> Computed | Refusal:
        """The values at points [P, axes], computed with those of other requests.

        A few are computed at a time, so that those that are not begun are dropped where nobody waits any more.
        """
        parts = [points[start : start + FEWEST_POINTS] for start in range(0, len(points), FEWEST_POINTS)]
        try:
            return joined(await all_of([self._part(key, each) for each in parts]))
        except Exception as error:
            return _refused(error)

    async def _part(self, key: str, points: Floats) -> Computed:
        answer = await self._gathering.add(key, points)
        assert isinstance(answer, Computed)
        return answer

    async def gradient(self, key: str, point: Sequence[float]) -> Gradient | Refusal:
        """The slopes at a point."""
        try:
            return await self.in_thread((await self._landscape(key)).gradient, point)
        except Exception as error:
            return _refused(error)

    async def curvature(self, key: str, point: Sequence[float]) -> Curvature | Refusal:
        """The second derivatives at a point."""
        try:
            return await self.in_thread((await self._landscape(key)).curvature, point)
        except Exception as error:
            return _refused(error)

    async def describe(self, key: str) -> Described | Refusal:
        """What is known of a landscape once it is loaded."""
        try:
            return (await self._landscape(key)).described
        except Exception as error:
            return _refused(error)

    async def _landscape(self, key: str) -> LoadedLandscape:
        """A landscape that is ready; it is loaded to the end where nobody waits any more, too, as it takes seconds."""
        return await asyncio.shield(self.loading(key))

    async def _compute(self, key: str, asked: Sequence[Floats]) -> Sequence[object]:
        """The values of each request of a batch; where user code raises, each request is computed by itself."""
        loaded = await self._landscape(key)
        try:
            whole = await self.in_thread(loaded.points, np.concatenate(asked))
        except Exception as error:
            if len(asked) == 1:
                return [error]
            return [(await self._compute(key, [points]))[0] for points in asked]
        return whole.split([len(points) for points in asked])


def _refused(error: Exception) -> Refusal:
    refusal = refusal_of(error)
    if refusal.status >= 500:
        log.warning("%s", refusal, exc_info=error)
    return refusal
