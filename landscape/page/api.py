"""The answers to what the page's scripts ask, each computed in a thread; those that many ask for are kept."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response

from landscape.page.answers import THREADS, Answer, Keeper, in_thread, pack_json
from landscape.page.describing import run_description
from landscape.page.figures import figure_answer
from landscape.page.looks import looks
from landscape.page.places import Directory, Place
from landscape.page.queries import Query, figure_query
from landscape.page.runs import OpenRuns, RunReader
from landscape.views.figures.colours import COLOUR_SCALES, DEFAULT_SCALE

T = TypeVar("T")

KEPT_BYTES = 64 << 20  # of answers
VALUE_BYTES = 128 << 20  # of landscapes in memory
FIRST_SECONDS = 0.5  # that the first list waits for the first search, which mostly takes less
SEARCH_SECONDS = 2.0  # between two searches for runs, at least
SEARCH_SHARE = 0.02  # of a processor's time that the searches take, at most


class Api:
    """Answers questions about the runs of some places."""

    def __init__(self, places: Sequence[Place]) -> None:
        self.directory = Directory(places)
        self.open_runs = OpenRuns(VALUE_BYTES)
        self._threads = ThreadPoolExecutor(THREADS, "landscape-page")
        self._keeper = Keeper(KEPT_BYTES, self._threads)
        self._searched = asyncio.Event()

    def table(self) -> Mapping[str, Callable[[Request, Query], Awaitable[Answer | Response]]]:
        """The questions by the last part of their addresses."""
        return {"looks": self.looks, "runs": self.runs, "run": self.run, "figure": self.figure}

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """While the block runs, look for runs."""
        search = asyncio.create_task(self._search_on())
        try:
            yield
        finally:
            search.cancel()
            await asyncio.gather(search, return_exceptions=True)
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def looks(self, request: Request, query: Query) -> Answer:
        """What all figures have in common."""
        query.refuse_others()
        return await self._keeper.answer("looks", lambda: pack_json(looks()))

    async def runs(self, request: Request, query: Query) -> Answer:
        """The list of runs."""
        query.refuse_others()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._searched.wait(), FIRST_SECONDS)
        places = [{"name": place.name, "path": place.path, "problem": place.problem} for place in self.directory.places]
        rows = [{"id": run.id, "name": run.name, "path": run.path, "pending": True} for run in self.directory.runs]
        return pack_json({"scanning": not self._searched.is_set(), "places": places, "runs": rows})

    async def run(self, request: Request, query: Query) -> Answer:
        """One run."""
        reader = await self._reader(query.needed("run", "a run by its identifier"))
        query.refuse_others()
        return await self.computed(lambda: pack_json(run_description(reader)))

    async def figure(self, request: Request, query: Query) -> Answer:
        """One figure."""
        asked = figure_query(query, COLOUR_SCALES, DEFAULT_SCALE)
        reader = await self._reader(asked.run)
        generation = await self.computed(lambda: reader.view(asked.landscape).generation)
        return await self._keeper.answer((asked, generation), partial(figure_answer, reader, asked))

    async def computed(self, compute: Callable[[], T]) -> T:
        """What `compute` gives, in a thread."""
        return await in_thread(self._threads, compute)

    async def _reader(self, run: str) -> RunReader:
        """The open run with that identifier; while the first search goes on, an unknown one is waited for.

        Raises:
            NotFoundError: there is none.
        """
        if not self._searched.is_set():
            await self._searched.wait()
        found = self.directory.find(run)
        return await self.computed(lambda: self.open_runs.open(found))

    async def _search_on(self) -> None:
        """Look for runs again and again."""
        loop = asyncio.get_running_loop()
        while True:
            begun = loop.time()
            await self.computed(self.directory.search)
            self._searched.set()
            await asyncio.sleep(max(SEARCH_SECONDS, (loop.time() - begun) / SEARCH_SHARE))
