"""The list of runs: looks for runs and reads their rows in the background, as long as somebody wants to know."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from landscape.page.viewers import Viewer, event
from landscape.store.status import Directory, FoundRun, Row, Summaries, changed, pending_row

T = TypeVar("T")

log = logging.getLogger("landscape.page")

FIRST_SECONDS = 0.5  # that the first list waits for the first search, also after a rest; it mostly takes less
SEARCH_SECONDS = 2.0  # between two searches, at least
SEARCH_SHARE = 0.03  # of a processor's time that searches take, at most
WANTED_SECONDS = 30.0  # after the last question, for which the search goes on without viewers
TOLD_SECONDS = 0.5  # between two events of rows, at least
ROWS_AT_ONCE = 8


class Listing:
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
        self._current = asyncio.Event()  # whether a search has ended since the last rest
        self._asked = 0.0
        self.gone: Callable[[str], None] = lambda run: None  # called for each run that is not there any more

    @property
    def scanning(self) -> bool:
        """Whether the first search goes on, or the first one after a rest."""
        return not self._current.is_set()

    async def searched(self) -> None:
        """Wait until the first search is done."""
        self._want()
        await self._searched.wait()

    async def rows(self) -> dict[str, Any]:
        """The answer of `api/runs`."""
        self._want()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._current.wait(), FIRST_SECONDS)
        places = [{"name": place.name, "path": place.path, "problem": place.problem} for place in self.directory.places]
        # While it is scanning, what is known is of before the rest.
        row = pending_row if self.scanning else self._summaries.row
        rows = [row(run) for run in self.directory.runs]
        return {"scanning": self.scanning, "places": places, "runs": rows}

    def join(self) -> Viewer:
        """A new viewer of the list."""
        viewer = Viewer()
        self._viewers.add(viewer)
        self._want()
        return viewer

    def leave(self, viewer: Viewer) -> None:
        """Take a viewer out."""
        self._viewers.discard(viewer)

    def end(self) -> None:
        """End the streams of all viewers."""
        for viewer in self._viewers:
            viewer.end()

    def _want(self) -> None:
        self._asked = time.monotonic()
        self._wanted.set()

    async def run(self) -> None:
        """Search and read on, until cancelled."""
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
        """Look for runs, and tell which are new or gone; those whose rows are to be read."""
        known, first = {run.id for run in self.directory.runs}, self.scanning
        gone = await self._in_thread(self.directory.search)
        self._summaries.forget(gone)
        due: list[FoundRun] = await self._in_thread(self._due)
        if first:  # rows of before the rest that have changed since are pending, and not shown for those of now
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
        """Read the rows that are due, and tell them as they come."""
        rows: list[Row] = []
        told = -TOLD_SECONDS  # the first ones are told at once
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
        """The runs whose rows are to be read, the last changed ones first, which the page shows on top."""
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
