"""Watching runs, and the list of runs: one watcher sends news to all viewers, as long as there are viewers."""

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
from landscape.page.answers import Viewer, event
from landscape.page.content import tile_facts
from landscape.page.description import LogTails, state_facts
from landscape.page.queries import EventsQuery
from landscape.page.runs import RunChange, RunReader
from landscape.page.service import list_served, serve_command
from landscape.store.state import cause_of
from landscape.store.status import Directory, FoundRun, GoneError, Row, Summaries, changed, pending_row
from landscape.surface.surface import check_observable

T = TypeVar("T")
InThread = Callable[[Callable[[], T]], Awaitable[T]]

log = logging.getLogger("landscape.page")

QUICK_SECONDS, SLOW_SECONDS = 0.1, 1.0  # between two checks while tiles arrive, and after a long time without a change
REMOTE_SECONDS = 2.0
RESTING_SECONDS = 20.0  # without a change, after which checks become slower
LOOK_SHARE = 0.03  # of a processor's time, at most, for checks that find no change
STATE_SECONDS = 0.5  # between two events of the state
LOG_SECONDS = 1.0
SERVICE_SECONDS = 1.0  # between two checks for a service


@dataclass(frozen=True)
class News:
    """The news of a check, as events: `tiles` for viewers that want them; `state` and `serving`, empty if not due."""

    change: RunChange
    tiles: Mapping[EventsQuery | None, bytes]
    state: bytes
    logs: tuple[bytes, ...]
    serving: bytes


@dataclass(eq=False)
class RunWatch:
    """The watcher of one run; its task runs as long as it has viewers."""

    reader: RunReader
    in_thread: InThread[Any]
    ended: Callable[[], None]
    viewers: dict[Viewer, EventsQuery | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._task: asyncio.Task[None] | None = None
        self._logs = LogTails(self.reader.found.path)
        self._state = self._serving = b""
        self._state_due = True
        self._idle_cost = 0.0  # seconds of processor time for a check that finds no change
        self._changed = self._state_told = self._logs_read = self._services_read = 0.0

    def join(self, interest: EventsQuery | None) -> Viewer:
        """A new viewer, which gets the state at once."""
        viewer = Viewer()
        self.viewers[viewer] = interest
        viewer.put(*(event for event in (self._state, self._serving) if event))
        self._changed = time.monotonic()
        if self._task is None:
            self.reader.rest()
            self._task = asyncio.create_task(self._watch())
        return viewer

    def leave(self, viewer: Viewer) -> None:
        """Remove a viewer; without viewers the watching ends."""
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
            except Exception as error:  # a store that does not answer, or a run that is being replaced: try again
                log.debug("a look at %s failed", self.reader.found.path, exc_info=True)
                self._put_all(event("problem", {"error": cause_of(error)}))
                self._state_due = True  # tells the page that the problem is over
                await asyncio.sleep(SLOW_SECONDS)
            await asyncio.sleep(self._pause())

    def _pause(self) -> float:
        """Seconds until the next check."""
        if self.reader.is_remote:
            return REMOTE_SECONDS
        resting = time.monotonic() - self._changed > RESTING_SECONDS
        return SLOW_SECONDS if resting else min(SLOW_SECONDS, max(QUICK_SECONDS, self._idle_cost / LOOK_SHARE))

    def _look(self, wanted: Iterable[EventsQuery]) -> News:
        """The changes since the last check; runs in a thread."""
        begun = time.thread_time()
        change = self.reader.look()
        if not change:
            self._idle_cost = time.thread_time() - begun
        tiles: dict[EventsQuery | None, bytes] = {}
        for interest in wanted:
            landscape_change = change.changed.get(interest.followed_landscape)
            if landscape_change is not None and landscape_change.tiles and not landscape_change.anew:
                with contextlib.suppress(LandscapeError):  # removed meanwhile, or restarted without this observable
                    tiles[interest] = self._tiles(interest, landscape_change.tiles, change.alive)
        now = time.monotonic()
        self._state_due = self._state_due or bool(change)
        due = self._state_due and now - self._state_told >= STATE_SECONDS
        state = event("state", state_facts(self.reader, change.alive)) if due else b""
        logs: list[bytes] = []
        if now - self._logs_read >= LOG_SECONDS:
            self._logs_read = now
            logs = [event("log", tail) for tail in self._logs.news()]
        return News(change, tiles, state, tuple(logs), self._served(now))

    def _served(self, now: float) -> bytes:
        """The event with the landscapes that a service serves; empty if they have not changed."""
        if now - self._services_read < SERVICE_SECONDS:
            return b""
        self._services_read, path = now, self.reader.found.path
        told = event("serving", {"landscapes": list_served(path), "command": serve_command(path)})
        return b"" if told == self._serving else told

    def _tiles(self, interest: EventsQuery, tiles: Iterable[Any], alive: bool) -> bytes:
        reader = self.reader.reader(interest.followed_landscape)
        check_observable(interest.followed_landscape, interest.observable, reader.store().record.surfaces)
        blocks, generation = reader.blocks(interest.observable, tiles, alive, interest.most)
        facts = [tile_facts(block, bool(interest.log)) for block in blocks]
        return event("tiles", {"landscape": interest.followed_landscape, "generation": generation, "tiles": facts})

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
            viewer.catch_up(*(event for event in (self._state, self._serving) if event))

    def _put_all(self, *events: bytes) -> None:
        for viewer in self.viewers:
            viewer.put(*events)

    def end(self) -> None:
        """End the streams of all viewers."""
        for viewer in self.viewers:
            viewer.end()

    def _end(self, sentence: str) -> None:
        """Tell all viewers why the watching ends, and end their streams."""
        for viewer in tuple(self.viewers):
            viewer.put(event("gone", {"error": sentence}))
            viewer.end()
        self._task = None
        self.ended()


# ----------------------------------------------------------------------------------------------------
# The list of runs: searches for runs and reads their rows in the background, as long as there are viewers.

FIRST_SECONDS = 0.5  # at most, that the first list waits for the first search, also after a pause
SEARCH_SECONDS = 2.0  # between two searches, at least
SEARCH_SHARE = 0.03  # of a processor's time for searches, at most
WANTED_SECONDS = 30.0  # that searches continue without viewers after the last request
TOLD_SECONDS = 0.5  # between two events of rows, at least
ROWS_AT_ONCE = 8


class RunListing:
    """The runs of the places with their rows, kept up to date by one task."""

    def __init__(
        self,
        directory: Directory,
        in_thread: Callable[[Callable[[], Any]], Awaitable[Any]],
        search_seconds: float = SEARCH_SECONDS,
    ) -> None:
        self.directory, self._in_thread, self._search_seconds = directory, in_thread, search_seconds
        self._summaries = Summaries()
        self._viewers: set[Viewer] = set()
        self._searched, self._wanted = asyncio.Event(), asyncio.Event()
        self._current = asyncio.Event()  # whether a search has ended since the last pause
        self._asked = 0.0
        self.gone: Callable[[str], None] = lambda run: None  # called for each run that no longer exists

    @property
    def scanning(self) -> bool:
        """Whether the first search, or the first one after a pause, is running."""
        return not self._current.is_set()

    async def searched(self) -> None:
        """Wait for the end of the first search."""
        self._want()
        await self._searched.wait()

    async def rows(self) -> dict[str, Any]:
        """The answer of `api/runs`."""
        self._want()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._current.wait(), FIRST_SECONDS)
        places = [{"name": place.name, "path": place.path, "problem": place.problem} for place in self.directory.places]
        # During the first search the known rows are those of before the pause.
        row = pending_row if self.scanning else self._summaries.row
        rows = [row(run) for run in self.directory.runs]
        return {"scanning": self.scanning, "places": places, "runs": rows}

    def join(self) -> Viewer:
        """Add a viewer of the list."""
        viewer = Viewer()
        self._viewers.add(viewer)
        self._want()
        return viewer

    def leave(self, viewer: Viewer) -> None:
        """Remove a viewer."""
        self._viewers.discard(viewer)

    def end(self) -> None:
        """End the streams of all viewers."""
        for viewer in self._viewers:
            viewer.end()

    def _want(self) -> None:
        self._asked = time.monotonic()
        self._wanted.set()

    async def run(self) -> None:
        """Search and read rows until cancelled."""
        while True:
            if not self._viewers and time.monotonic() - self._asked > WANTED_SECONDS:
                self._wanted.clear()
                self._current.clear()
                await self._wanted.wait()
            begun, took = time.monotonic(), 0.0
            try:
                due = await self._search()
                took = time.monotonic() - begun
                await self._read_rows(due)
            except Exception:  # one strange run must not end the search for all others
                log.warning("the search for runs failed, and is tried again", exc_info=True)
            await asyncio.sleep(max(self._search_seconds, took / SEARCH_SHARE))

    async def _search(self) -> list[FoundRun]:
        """Search for runs, and tell viewers which are new or gone; returns those whose rows are to be read."""
        known, first = {run.id for run in self.directory.runs}, self.scanning
        gone = await self._in_thread(self.directory.search)
        self._summaries.forget(gone)
        due: list[FoundRun] = await self._in_thread(self._due)
        if first:  # rows that changed during the pause are pending; their old content is not shown
            self._summaries.forget([run.id for run in due])
        self._searched.set()
        self._current.set()
        for run in gone:
            self.gone(run)
        new = [run for run in self.directory.runs if run.id not in known]
        if new or gone or first:
            self._tell([self._summaries.row(run) for run in new], sorted(gone))
        return due

    async def _read_rows(self, due: list[FoundRun]) -> None:
        """Read the due rows, and send them as they arrive."""
        rows: list[Row] = []
        told = -TOLD_SECONDS  # the first ones are sent at once
        for start in range(0, len(due), ROWS_AT_ONCE):
            batch = due[start : start + ROWS_AT_ONCE]
            read = await self._in_thread(lambda: [self._summaries.read(run) for run in batch])  # noqa: B023
            rows += [row for row in read if row is not None]
            if rows and time.monotonic() - told >= TOLD_SECONDS:
                self._tell(rows, [])
                rows, told = [], time.monotonic()
        if rows:
            self._tell(rows, [])

    def _due(self) -> list[FoundRun]:
        """The runs whose rows are to be read, the most recently changed first, as the page shows them."""
        return sorted(filter(self._summaries.is_due, self.directory.runs), key=changed, reverse=True)

    def _tell(self, changed: list[Row], removed: list[str]) -> None:
        if not self._viewers:
            return
        told = event("runs", {"changed": changed, "removed": removed, "scanning": self.scanning})
        for viewer in self._viewers:
            viewer.put(told)
            if viewer.behind:
                rows = [self._summaries.row(run) for run in self.directory.runs]
                viewer.catch_up(event("runs", {"changed": rows, "removed": [], "scanning": self.scanning}))
