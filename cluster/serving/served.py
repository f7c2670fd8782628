"""A landscape as the service knows it: what is on disk of it by now, and where its served values are kept."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from cluster.serving.derivatives import Curvature, Gradient
from cluster.serving.described import Described, describe_stored
from cluster.serving.landscapes import KeptPoints
from cluster.serving.loaded import Computed, mark_of, refuse_gone
from cluster.serving.refusals import NOT_FOUND, Refusal
from cluster.serving.sources import Source
from cluster.serving.stored import StoredPoints, read_stored, state_of
from landscape.core.errors import JobError, shown
from landscape.evaluation.values import Floats
from landscape.store.landscape import LandscapeStore

PROMISED_SECONDS = 2.0  # an answer is of the disk as it was at most so long ago: docs/howto/serve.md promises it
EARLY_SECONDS = 1.0  # after which the disk is looked at beside the answers, so that under load no request waits for it


class Replicas(Protocol):
    """Those who compute; each call may be answered by another one."""

    async def points(self, key: str, points: Floats) -> Computed:
        """The values at points [P, axes]; raises a Refusal."""

    async def gradient(self, key: str, point: Sequence[float]) -> Gradient:
        """The slopes at a point; raises a Refusal."""

    async def curvature(self, key: str, point: Sequence[float]) -> Curvature:
        """The second derivatives at a point; raises a Refusal."""

    async def describe(self, key: str) -> Described:
        """What is known of a landscape; raises a Refusal."""


@dataclass
class ServedLandscape:
    """One landscape that is served.

    Attributes:
        described: what it was when the service began; another one is not answered for.
        mark: tells what is answered for from another landscape of that name; empty until the first look.
        stored: the values on disk, as of the last look.
        kept: its served values on disk; None where they are not kept.
    """

    source: Source
    described: Described
    stored: StoredPoints | None = None
    kept: KeptPoints | None = None
    clock: Callable[[], float] = time.monotonic
    mark: str = field(default="", init=False)
    _looked: float = field(default=-1e9, init=False)  # when the last look that has ended began
    _state: Sequence[object] = field(default=(), init=False)
    _looking: asyncio.Task[None] | None = field(default=None, init=False)
    _failure: Exception | None = field(default=None, init=False)

    async def look(self) -> None:
        """See to it that what is known of the disk is at most two seconds old.

        Raises:
            NotFoundError: the run is gone.
            Refusal: the landscape is gone, or another one has its name.
        """
        asked = self.clock()
        if self._failure is not None or self._looked < asked - PROMISED_SECONDS:
            await asyncio.shield(self._looks())
        if self._looked < asked - PROMISED_SECONDS:  # that look was under way already, and takes long
            await asyncio.shield(self._looks())
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        if asked - self._looked >= EARLY_SECONDS:
            self._looks()

    def _looks(self) -> asyncio.Task[None]:
        """The look that is under way; where there is none, one begins."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(asyncio.to_thread(self._try_to_look))
        return self._looking

    def refuse_another(self, mark: str) -> None:
        """Refuse what a replica has computed of another landscape, which has this one's name by now.

        Raises:
            Refusal: it has.
        """
        if mark != self.mark:
            raise self._anew()

    def _anew(self) -> Refusal:
        name = shown(self.source.landscape)
        return Refusal(NOT_FOUND, f"landscape: {name} was computed anew since this service began; start it again")

    def _try_to_look(self) -> None:
        try:
            self.look_now()
            self._failure = None
        except Exception as error:  # which the next request gets
            self._failure = error

    def look_now(self) -> None:
        """Take in what the disk has by now."""
        began = self.clock()
        try:
            refuse_gone(self.source)
            store = LandscapeStore.find(self.source.run, self.source.landscape)
            if store is None and self.source.job is None:
                raise Refusal(NOT_FOUND, f"landscape: {shown(self.source.landscape)} is gone from its run; put it back")
            self.mark = self.mark or mark_of(self.source, self.described, store)
            state = () if store is None else state_of(store)
            if state != self._state:
                self.stored, self._state = self._read(store), state
        finally:
            self._looked = began

    def _read(self, store: LandscapeStore | None) -> StoredPoints | None:
        """The values on disk; None where there are none of what is served."""
        if store is None or self._is_another(store):
            return None
        values = read_stored(store, self.described.columns)
        after = LandscapeStore.find(self.source.run, self.source.landscape)
        # Another landscape that has taken the place meanwhile may have given some of the values.
        return None if after is None or self._is_another(after) else values

    def _is_another(self, store: LandscapeStore) -> bool:
        """Whether the landscape on disk is of something else, or by another plan: a job's values are not taken from it.

        Raises:
            Refusal: it is what is served.
        """
        now = describe_stored(store)
        if now is None or mark_of(self.source, now, store) == self.mark:
            return False
        if self.source.job is None:
            raise self._anew()
        return True


async def refuse_other_kept(kept: KeptPoints, key: str, replicas: Replicas) -> None:
    """Refuse kept values where a replica computes others.

    The identity by which they are kept has weights and samples, and not the code that computes with them.

    Raises:
        JobError: they are of other code, or of another machine.
        Refusal: no replica computes.
    """
    known = kept.latest()
    if known is None:
        return
    point, row = known
    computed = await replicas.points(key, np.frombuffer(point)[None])
    if computed.whole and not np.array_equal(computed.table[0], np.frombuffer(row), equal_nan=True):
        raise JobError(
            f"keep: {shown(str(kept.path), 300)} holds other values than are computed now, as of other code or another "
            "machine; move it away, and values are kept anew"
        )


def plain_bytes(points: Floats) -> list[bytes]:
    """The coordinates of each point [P, axes] as bytes, by which it is known."""
    content, length = np.ascontiguousarray(points).tobytes(), 8 * points.shape[1]
    return [content[start : start + length] for start in range(0, len(content), length)]
