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
from cluster.serving.kept import KeptPoints
from cluster.serving.loaded import Computed, refuse_gone
from cluster.serving.refusals import NOT_FOUND, Refusal
from cluster.serving.sources import Source
from cluster.serving.stored import StoredPoints, read_stored, state_of
from landscape.errors import JobError, shown
from landscape.store import LandscapeStore
from landscape.tasks import Floats

LOOK_SECONDS = 2.0  # between two looks at the disk, for which a request does not wait
STALE_SECONDS = 10.0  # after which it does


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
        stored: the values on disk, as of the last look.
        kept: its served values on disk; None where they are not kept.
    """

    source: Source
    described: Described
    stored: StoredPoints | None = None
    kept: KeptPoints | None = None
    clock: Callable[[], float] = time.monotonic
    _looked: float = field(default=-1e9, init=False)
    _state: Sequence[object] = field(default=(), init=False)
    _looking: asyncio.Task[None] | None = field(default=None, init=False)
    _failure: Exception | None = field(default=None, init=False)

    async def look(self) -> None:
        """Have the disk looked at where the last look was some seconds ago; wait for it where that was long ago.

        Raises:
            NotFoundError: the run is gone.
            Refusal: the landscape is gone, or another one has its name.
        """
        age = self.clock() - self._looked
        if age >= LOOK_SECONDS or self._failure is not None:
            if self._looking is None or self._looking.done():
                self._looking = asyncio.create_task(asyncio.to_thread(self._try_to_look))
            if age >= STALE_SECONDS or self._failure is not None:
                await asyncio.shield(self._looking)
        if self._failure is not None:
            raise self._failure.with_traceback(None)

    def _try_to_look(self) -> None:
        try:
            self.look_now()
            self._failure = None
        except Exception as error:  # which the next request gets
            self._failure = error

    def look_now(self) -> None:
        """Take in what the disk has by now."""
        refuse_gone(self.source)
        store = LandscapeStore.find(self.source.run, self.source.landscape)
        if store is None:
            if self.source.job is None:
                raise Refusal(NOT_FOUND, f"landscape: {shown(self.source.landscape)} is gone from its run; put it back")
        elif (state := state_of(store)) != self._state:
            self.stored = None if self._is_another(store) else read_stored(store, self.described.columns)
            self._state = state
        self._looked = self.clock()

    def _is_another(self, store: LandscapeStore) -> bool:
        """Whether the landscape on disk is of something else, or by another plan: a job's values are not taken from it.

        Raises:
            Refusal: it is what is served.
        """
        now = describe_stored(store)
        if now is None or now.identity == self.described.identity:
            return False
        if self.source.job is None:
            raise Refusal(
                NOT_FOUND,
                f"landscape: {shown(self.source.landscape)} was computed anew since this service began; start it again",
            )
        return True


async def refuse_other_kept(kept: KeptPoints, key: str, replicas: Replicas) -> None:
    """Refuse kept values of a landscape without a grid on disk, where a replica computes others.

    Its identity has weights and samples, and not the code that computes with them; a record on disk has a witness.

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
