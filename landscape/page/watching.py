"""Watches a run as long as somebody looks at it: one watcher for all its viewers tells them what is new."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from landscape.core.errors import LandscapeError
from landscape.page.description import state_facts
from landscape.page.logs import LogTails
from landscape.page.runs import RunChange, RunReader
from landscape.page.service import landscapes_served, serve_command
from landscape.page.tiles import tile_facts
from landscape.page.viewers import Viewer, event
from landscape.store.state import cause_of
from landscape.store.status import GoneError
from landscape.surface.surface import check_observable

T = TypeVar("T")
InThread = Callable[[Callable[[], T]], Awaitable[T]]

log = logging.getLogger("landscape.page")

QUICK_SECONDS, SLOW_SECONDS = 0.1, 1.0  # between two looks while tiles arrive, and when nothing has changed for long
REMOTE_SECONDS = 2.0
RESTING_SECONDS = 20.0  # without a change, after which looks become slower
LOOK_SHARE = 0.03  # of a processor's time that looks take which find nothing, at most
STATE_SECONDS = 0.5  # between two events of the state
LOG_SECONDS = 1.0
SERVICE_SECONDS = 1.0  # between two looks for a service


@dataclass(frozen=True)
class Interest:
    """The tiles that a viewer wants to be told: of which landscape, and how its figure shows them."""

    landscape: str
    observable: str
    log: bool
    most: int | None


@dataclass(frozen=True)
class News:
    """What a look has found, as events: `tiles` for those who want them; `state` and `serving`, empty where not due."""

    change: RunChange
    tiles: Mapping[Interest | None, bytes]
    state: bytes
    logs: tuple[bytes, ...]
    serving: bytes


@dataclass(eq=False)
class RunWatch:
    """The watcher of one run; its task runs as long as it has viewers."""

    reader: RunReader
    in_thread: InThread[Any]
    ended: Callable[[], None]
    viewers: dict[Viewer, Interest | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._task: asyncio.Task[None] | None = None
        self._logs = LogTails(self.reader.found.path)
        self._state = self._serving = b""
        self._state_due = True
        self._idle_cost = 0.0  # seconds of a processor that a look takes which finds nothing
        self._changed = self._state_told = self._logs_read = self._services_read = 0.0

    def join(self, interest: Interest | None) -> Viewer:
        """A new viewer, who is told the state at once."""
        viewer = Viewer()
        self.viewers[viewer] = interest
        viewer.put(*(told for told in (self._state, self._serving) if told))
        self._changed = time.monotonic()
        if self._task is None:
            self.reader.rest()
            self._task = asyncio.create_task(self._watch())
        return viewer

    def leave(self, viewer: Viewer) -> None:
        """Take a viewer out; without one the watching ends."""
        self.viewers.pop(viewer, None)
        if not self.viewers and self._task is not None:
            self._task.cancel()
            self._task = None
            self.ended()

    async def _watch(self) -> None:
        try:
            await self._look_on()
        except GoneError as error:
            self._end(cause_of(error))

    async def _look_on(self) -> None:
        while self.viewers:
            wanted = {interest for interest in self.viewers.values() if interest is not None}
            try:
                self._tell(await self.in_thread(partial(self._look, wanted)))
            except (GoneError, asyncio.CancelledError):
                raise
            except Exception as error:  # a store that does not answer, or a run that is being replaced, may do better
                log.debug("a look at %s failed", self.reader.found.path, exc_info=True)
                self._put_all(event("problem", {"error": cause_of(error)}))
                self._state_due = True  # by which the page knows that the problem is over
                await asyncio.sleep(SLOW_SECONDS)
            await asyncio.sleep(self._pause())

    def _pause(self) -> float:
        """Seconds until the next look."""
        if self.reader.is_remote:
            return REMOTE_SECONDS
        resting = time.monotonic() - self._changed > RESTING_SECONDS
        return SLOW_SECONDS if resting else min(SLOW_SECONDS, max(QUICK_SECONDS, self._idle_cost / LOOK_SHARE))

    def _look(self, wanted: Iterable[Interest]) -> News:
        """What has changed, in a thread."""
        begun = time.thread_time()
        change = self.reader.look()
        if not change:
            self._idle_cost = time.thread_time() - begun
        told: dict[Interest | None, bytes] = {}
        for interest in wanted:
            found = change.changed.get(interest.landscape)
            if found is not None and found.tiles and not found.anew:
                with contextlib.suppress(LandscapeError):  # removed meanwhile, or begun anew without this observable
                    told[interest] = self._tiles(interest, found.tiles, change.alive)
        now = time.monotonic()
        self._state_due = self._state_due or bool(change)
        due = self._state_due and now - self._state_told >= STATE_SECONDS
        state = event("state", state_facts(self.reader, change.alive)) if due else b""
        logs: list[bytes] = []
        if now - self._logs_read >= LOG_SECONDS:
            self._logs_read = now
            logs = [event("log", tail) for tail in self._logs.news()]
        return News(change, told, state, tuple(logs), self._served(now))

    def _served(self, now: float) -> bytes:
        """The event that says which landscapes a service answers for, where that has changed."""
        if now - self._services_read < SERVICE_SECONDS:
            return b""
        self._services_read, path = now, self.reader.found.path
        told = event("serving", {"landscapes": landscapes_served(path), "command": serve_command(path)})
        return b"" if told == self._serving else told

    def _tiles(self, interest: Interest, tiles: Iterable[Any], alive: bool) -> bytes:
        reader = self.reader.reader(interest.landscape)
        check_observable(interest.landscape, interest.observable, reader.store().record.surfaces)
        blocks, generation = reader.blocks(interest.observable, tiles, alive, interest.most)
        facts = [tile_facts(block, interest.log) for block in blocks]
        return event("tiles", {"landscape": interest.landscape, "generation": generation, "tiles": facts})

    def _tell(self, news: News) -> None:
        now, change = time.monotonic(), news.change
        if change:
            self._changed = now
        names = dict.fromkeys((*change.new, *change.gone))
        self._put_all(*(event("landscape", {"name": name}) for name in names))
        for viewer, interest in self.viewers.items():
            if interest in news.tiles:
                viewer.put(news.tiles[interest])
        if news.state:
            self._state, self._state_told, self._state_due = news.state, now, False
            self._put_all(news.state)
        self._put_all(*news.logs)
        if news.serving:
            self._serving = news.serving
            self._put_all(news.serving)
        for viewer in self.viewers:
            viewer.catch_up(*(told for told in (self._state, self._serving) if told))

    def _put_all(self, *events: bytes) -> None:
        for viewer in self.viewers:
            viewer.put(*events)

    def end(self) -> None:
        """End the streams of all viewers."""
        for viewer in self.viewers:
            viewer.end()

    def _end(self, sentence: str) -> None:
        """Tell all viewers that there is nothing to watch any more, and end their streams."""
        for viewer in tuple(self.viewers):
            viewer.put(event("gone", {"error": sentence}))
            viewer.end()
        self._task = None
        self.ended()
