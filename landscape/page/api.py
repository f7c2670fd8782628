"""The answers to what the page's scripts ask, each computed in a thread; those that many ask for are kept."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from starlette.responses import Response

from landscape.core.errors import JobError, LandscapeError, StoreError
from landscape.page.answers import THREADS, Answer, EventStream, Keeper, in_thread, pack_json
from landscape.page.comparison import Readable, compare_answer, compare_query, differences_answer, readable
from landscape.page.description import csv_answer, run_description
from landscape.page.figures import (
    figure_answer,
    history_answer,
    history_query,
    history_stamp,
    looks,
    no_thumbnail,
    thumbnail_answer,
)
from landscape.page.jobs import box_job, box_query
from landscape.page.queries import MOST_POINTS, AddressQuery, Item, figure_query, items_of, log_of
from landscape.page.runs import OpenRuns, RunReader
from landscape.page.service import PatchResponse, PatchStream, exact_answer, patch_query, point_query, slopes_answer
from landscape.page.watching import SEARCH_SECONDS, Interest, RunListing, RunWatch
from landscape.store.state import cause_of
from landscape.store.status import Directory, GoneError, RunPlace
from landscape.surface.surface import check_observable

T = TypeVar("T")
Answering = Callable[[AddressQuery], Awaitable[Answer | Response]]

KEPT_BYTES = 64 << 20  # of answers
REMOTE_THREADS, WATCHING_THREADS, SERVICE_THREADS = 12, 4, 8


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
        self._keeper = Keeper(KEPT_BYTES)
        self._listing = RunListing(Directory(places), partial(in_thread, self._background), search_seconds)
        self._listing.gone = self._runs.close
        self._watches: dict[str, RunWatch] = {}

    def table(self) -> Mapping[str, Answering]:
        """The questions by the last part of their addresses."""
        return {
            "looks": self.looks,
            "runs": self.runs,
            "run": self.run,
            "figure": self.figure,
            "csv": self.csv,
            "history": self.history,
            "thumbnail": self.thumbnail,
            "job": self.job,
            "compare": self.compare,
            "differences": self.differences,
            "exact": self.exact,
            "slopes": self.slopes,
            "patch": self.patch,
            "events": self.events,
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
        query.refuse_others()
        return await self._keeper.answer("looks", partial(in_thread, self._threads, lambda: pack_json(looks())))

    async def runs(self, query: AddressQuery) -> Answer:
        """The list of runs."""
        query.refuse_others()
        rows = await self._listing.rows()
        return await in_thread(self._threads, lambda: pack_json(rows))

    async def run(self, query: AddressQuery) -> Answer:
        """One run."""
        reader = await self._reader(query.needed("run", "a run by its identifier"))
        query.refuse_others()
        return await self._of(reader, lambda: pack_json(run_description(reader)))

    async def figure(self, query: AddressQuery) -> Answer:
        """One figure."""
        asked = figure_query(query)
        reader = await self._reader(asked.run)
        generation = await self._generation(reader, asked.landscape)
        return await self._kept((asked, generation), reader, partial(figure_answer, reader, asked))

    async def csv(self, query: AddressQuery) -> Answer:
        """What a figure shows, as a table."""
        asked = figure_query(query)
        reader = await self._reader(asked.run)
        return await self._of(reader, partial(csv_answer, reader, asked))

    async def history(self, query: AddressQuery) -> Answer:
        """The history of the training of one or several runs."""
        asked = history_query(query)
        readers = [await self._reader(run) for run in asked.runs]
        stamp = await self._of(readers[0], partial(history_stamp, readers))
        compute = partial(history_answer, readers, asked)
        if stamp is None:
            return await self._of(readers[0], compute)
        return await self._kept((asked, stamp), readers[0], compute)

    async def thumbnail(self, query: AddressQuery) -> Answer:
        """A small picture of a landscape."""
        run, landscape = query.needed("run", "a run"), query.needed("landscape", "a landscape of the run")
        observable = query.text("observable", "loss")
        query.refuse_others()
        reader = await self._reader(run)
        try:
            key = ("thumbnail", run, landscape, observable, await self._generation(reader, landscape))
            return await self._kept(key, reader, partial(thumbnail_answer, reader, landscape, observable))
        except (GoneError, JobError, StoreError):
            raise
        except LandscapeError as error:
            if not await self._of(reader, lambda: reader.lists(landscape)):
                raise
            return no_thumbnail(cause_of(error))  # the list asks for the pictures of all that it shows

    async def job(self, query: AddressQuery) -> Answer:
        """The job for a box of a landscape."""
        asked = box_query(query)
        reader = await self._reader(asked.run)
        return await self._of(reader, lambda: pack_json(box_job(reader, asked)))

    async def compare(self, query: AddressQuery) -> Answer:
        """Several landscapes as figures."""
        asked = compare_query(query)
        there = await self._readable(asked.items)
        key = (asked, there.items, there.generations, there.notes)
        return await self._kept(key, there.runs[0], partial(compare_answer, there, asked))

    async def differences(self, query: AddressQuery) -> Answer:
        """What differs between several landscapes."""
        items = items_of(query)
        query.refuse_others()
        there = await self._readable(items)
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
        return await in_thread(self._remote if remote else self._threads, partial(readable, items, runs))

    async def exact(self, query: AddressQuery) -> Answer:
        """The values of one point, as a service computes them."""
        asked = point_query(query)
        reader = await self._reader(asked.run)
        return await in_thread(self._service, lambda: pack_json(exact_answer(reader, asked)))

    async def slopes(self, query: AddressQuery) -> Answer:
        """Gradient and curvature at one point, as a service computes them."""
        asked = point_query(query)
        reader = await self._reader(asked.run)
        return await in_thread(self._service, lambda: pack_json(slopes_answer(reader, asked)))

    async def patch(self, query: AddressQuery) -> Response:
        """The values of a patch, row by row as a service computes them."""
        asked = patch_query(query)
        reader = await self._reader(asked.run)
        patch = await in_thread(self._service, lambda: PatchStream(reader, asked, partial(in_thread, self._service)))
        await patch.begin()
        return PatchResponse(patch)

    async def events(self, query: AddressQuery) -> Response:
        """The stream of what is new: of the list, or of one run."""
        run, landscape = query.text("run"), query.text("landscape")
        observable, log = query.text("observable", "loss"), bool(log_of(query))
        most = query.count("max", 2, MOST_POINTS)
        query.refuse_others()
        if not run:
            viewer = self._listing.join()
            return EventStream(viewer, self._listing.leave)
        reader = await self._reader(run)
        if landscape:
            store = await self._of(reader, lambda: reader.reader(landscape).store())
            check_observable(landscape, observable, store.record.surfaces)
        watch = self._watches.get(run)
        if watch is None:
            watch = self._watches[run] = RunWatch(
                reader, partial(in_thread, self._watching), partial(self._unwatch, run)
            )
        viewer = watch.join(Interest(landscape, observable, log, most) if landscape else None)
        return EventStream(viewer, watch.leave)

    def _unwatch(self, run: str) -> None:
        self._watches.pop(run, None)

    async def _generation(self, reader: RunReader, landscape: str) -> str:
        """What the kept answers of a landscape are told apart by."""
        return await self._of(reader, lambda: reader.reader(landscape).generation(reader.alive()))

    async def _of(self, reader: RunReader, compute: Callable[[], T]) -> T:
        """What `compute` makes of a run, in a thread."""
        return await in_thread(self._remote if reader.is_remote else self._threads, compute)

    async def _kept(self, key: Hashable, reader: RunReader, compute: Callable[[], Answer]) -> Answer:
        """The kept answer with that key, or what `compute` makes of a run."""
        return await self._keeper.answer(key, lambda: self._of(reader, compute))

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
