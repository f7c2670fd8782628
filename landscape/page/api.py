"""The answers to what the page's scripts ask. Each is computed in a thread; those that many ask for are cached."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from starlette.responses import Response

from landscape.core.errors import JobError, LandscapeError, StoreError
from landscape.page.answers import THREADS, Answer, AnswerCache, EventStream, in_thread, pack_json
from landscape.page.comparison import Readable, compare_answer, differences_answer, find_readable
from landscape.page.description import csv_answer, run_description
from landscape.page.figures import (
    figure_answer,
    history_answer,
    history_stamp,
    looks,
    no_thumbnail,
    thumbnail_answer,
)
from landscape.page.jobs import box_job
from landscape.page.queries import (
    AddressQuery,
    BoxQuery,
    CompareQuery,
    DifferencesQuery,
    EventsQuery,
    FigureQuery,
    HistoryQuery,
    Item,
    NoQuery,
    PatchQuery,
    PointQuery,
    RunQuery,
    ThumbnailQuery,
    parse_query,
)
from landscape.page.runs import OpenRuns, RunReader
from landscape.page.service import PatchResponse, PatchStream, exact_answer, slopes_answer
from landscape.page.watching import SEARCH_SECONDS, RunListing, RunWatch
from landscape.store.state import cause_of
from landscape.store.status import Directory, GoneError, RunPlace
from landscape.surface.surface import check_observable

T = TypeVar("T")
Answering = Callable[[AddressQuery], Awaitable[Answer | Response]]

KEPT_BYTES = 64 << 20  # of answers
REMOTE_THREADS, WATCHING_THREADS, SERVICE_THREADS = 12, 4, 8


# Questions about one run: what each asks for, and who answers it.
OF_RUN: Mapping[str, tuple[type[Any], Callable[[RunReader, Any], Answer]]] = {
    "run": (RunQuery, lambda reader, asked: pack_json(run_description(reader))),
    "csv": (FigureQuery, csv_answer),
    "job": (BoxQuery, lambda reader, asked: pack_json(box_job(reader, asked))),
}
# Questions that are handed on to a service.
BY_SERVICE: Mapping[str, tuple[type[Any], Callable[[RunReader, Any], dict[str, Any]]]] = {
    "exact": (PointQuery, exact_answer),
    "slopes": (PointQuery, slopes_answer),
}


class Api:
    """Answers questions about the runs of some places."""

    def __init__(self, places: Sequence[RunPlace], search_seconds: float = SEARCH_SECONDS) -> None:
        """
        Args:
            search_seconds: between two searches for runs, at least.
        """
        self._runs = OpenRuns()
        self._threads = ThreadPoolExecutor(THREADS, "landscape-page")
        # What waits for an object store, or reads many runs, holds up nobody else.
        self._remote = ThreadPoolExecutor(REMOTE_THREADS, "landscape-remote")
        self._watching = ThreadPoolExecutor(WATCHING_THREADS, "landscape-watch")
        self._service = ThreadPoolExecutor(SERVICE_THREADS, "landscape-service")  # which a patch may take for minutes
        self._background = ThreadPoolExecutor(1, "landscape-list")
        self._cache = AnswerCache(KEPT_BYTES)
        self._listing = RunListing(Directory(places), partial(in_thread, self._background), search_seconds)
        self._listing.gone = self._runs.close
        self._watches: dict[str, RunWatch] = {}

    def table(self) -> Mapping[str, Answering]:
        """Who answers, by the last part of the address."""
        of_run = {name: partial(self._answer_of_run, name) for name in OF_RUN}
        by_service = {name: partial(self._answer_by_service, name) for name in BY_SERVICE}
        return {
            "looks": self.looks,
            "runs": self.runs,
            "figure": self.figure,
            "history": self.history,
            "thumbnail": self.thumbnail,
            "compare": self.compare,
            "differences": self.differences,
            "patch": self.patch,
            "events": self.events,
            **of_run,
            **by_service,
        }

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """While the block runs, look for runs."""
        listing = asyncio.create_task(self._listing.run())
        try:
            yield
        finally:
            listing.cancel()
            await asyncio.gather(listing, return_exceptions=True)
            for threads in (self._threads, self._remote, self._watching, self._service, self._background):
                threads.shutdown(wait=False, cancel_futures=True)

    def end(self) -> None:
        """End all streams of events, which have no end of their own."""
        self._listing.end()
        for watch in tuple(self._watches.values()):
            watch.end()

    async def looks(self, query: AddressQuery) -> Answer:
        """What all figures have in common."""
        parse_query(query, NoQuery)
        return await self._cache.answer("looks", partial(in_thread, self._threads, lambda: pack_json(looks())))

    async def runs(self, query: AddressQuery) -> Answer:
        """The list of runs."""
        parse_query(query, NoQuery)
        rows = await self._listing.rows()
        return await in_thread(self._threads, lambda: pack_json(rows))

    async def _answer_of_run(self, name: str, query: AddressQuery) -> Answer:
        form, answer = OF_RUN[name]
        asked = parse_query(query, form)
        reader = await self._reader(asked.run)
        return await self._of(reader, partial(answer, reader, asked))

    async def figure(self, query: AddressQuery) -> Answer:
        """One figure."""
        asked = parse_query(query, FigureQuery)
        reader = await self._reader(asked.run)
        generation = await self._generation(reader, asked.landscape)
        return await self._cached((asked, generation), reader, partial(figure_answer, reader, asked))

    async def history(self, query: AddressQuery) -> Answer:
        """The history of the training of one or several runs."""
        asked = parse_query(query, HistoryQuery)
        readers = [await self._reader(run) for run in asked.runs]
        stamp = await self._of(readers[0], partial(history_stamp, readers))
        compute = partial(history_answer, readers, asked)
        if stamp is None:
            return await self._of(readers[0], compute)
        return await self._cached((asked, stamp), readers[0], compute)

    async def thumbnail(self, query: AddressQuery) -> Answer:
        """A small picture of a landscape."""
        asked = parse_query(query, ThumbnailQuery)
        reader = await self._reader(asked.run)
        try:
            key = (asked, await self._generation(reader, asked.landscape))
            return await self._cached(key, reader, partial(thumbnail_answer, reader, asked))
        except (GoneError, JobError, StoreError):
            raise
        except LandscapeError as error:
            if not await self._of(reader, lambda: reader.lists(asked.landscape)):
                raise
            return no_thumbnail(cause_of(error))  # the list asks for the pictures of all that it shows

    async def compare(self, query: AddressQuery) -> Answer:
        """Several landscapes as figures."""
        asked = parse_query(query, CompareQuery)
        there = await self._readable(asked.items)
        key = (asked, there.items, there.generations, there.notes)
        return await self._cached(key, there.runs[0], partial(compare_answer, there, asked))

    async def differences(self, query: AddressQuery) -> Answer:
        """What differs between several landscapes."""
        there = await self._readable(parse_query(query, DifferencesQuery).items)
        return await self._of(there.runs[0], partial(differences_answer, there))

    async def _readable(self, items: Sequence[Item]) -> Readable:
        """What of the items of a comparison is there.

        Raises:
            LandscapeError: none of them can be read.
        """
        runs: dict[str, RunReader | LandscapeError] = {}
        for run in dict.fromkeys(item.run for item in items):
            try:
                runs[run] = await self._reader(run)
            except LandscapeError as error:
                runs[run] = error
        remote = any(isinstance(run, RunReader) and run.is_remote for run in runs.values())
        return await in_thread(self._remote if remote else self._threads, partial(find_readable, items, runs))

    async def _answer_by_service(self, name: str, query: AddressQuery) -> Answer:
        form, answer = BY_SERVICE[name]
        asked = parse_query(query, form)
        reader = await self._reader(asked.run)
        return await in_thread(self._service, lambda: pack_json(answer(reader, asked)))

    async def patch(self, query: AddressQuery) -> Response:
        """The values of a patch, row by row as a service computes them."""
        asked = parse_query(query, PatchQuery)
        reader = await self._reader(asked.run)
        patch = await in_thread(self._service, lambda: PatchStream(reader, asked, partial(in_thread, self._service)))
        await patch.begin()
        return PatchResponse(patch)

    async def events(self, query: AddressQuery) -> Response:
        """The stream of what is new: of the list, or of one run."""
        asked = parse_query(query, EventsQuery)
        run, landscape = asked.followed_run, asked.followed_landscape
        if not run:
            viewer = self._listing.join()
            return EventStream(viewer, self._listing.leave)
        reader = await self._reader(run)
        if landscape:
            store = await self._of(reader, lambda: reader.reader(landscape).store())
            check_observable(landscape, asked.observable, store.record.surfaces)
        watch = self._watches.get(run)
        if watch is None:
            watch = self._watches[run] = RunWatch(
                reader, partial(in_thread, self._watching), partial(self._unwatch, run)
            )
        viewer = watch.join(asked if landscape else None)
        return EventStream(viewer, watch.leave)

    def _unwatch(self, run: str) -> None:
        self._watches.pop(run, None)

    async def _generation(self, reader: RunReader, landscape: str) -> str:
        """What differs between two contents of a landscape: the key of its cached answers."""
        return await self._of(reader, lambda: reader.reader(landscape).generation(reader.alive()))

    async def _of(self, reader: RunReader, compute: Callable[[], T]) -> T:
        """What `compute` makes of a run, in a thread."""
        return await in_thread(self._remote if reader.is_remote else self._threads, compute)

    async def _cached(self, key: Hashable, reader: RunReader, compute: Callable[[], Answer]) -> Answer:
        """The cached answer of that key, or what `compute` makes of a run."""
        return await self._cache.answer(key, lambda: self._of(reader, compute))

    async def _reader(self, run: str) -> RunReader:
        """The open run with that identifier; while the first search goes on, an unknown one is waited for.

        Raises:
            GoneError: it is not there any more.
            NotFoundError: there is none.
        """
        await self._listing.searched()
        try:
            found = self._listing.directory.find(run)
        except GoneError:
            self._runs.close(run)
            raise
        return await in_thread(self._threads, partial(self._runs.open, found))
