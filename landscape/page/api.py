"""The answers to requests of the page's scripts. Each is computed in a thread; those often requested are cached."""

from __future__ import annotations

import asyncio
import contextlib
import math
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import yaml
from starlette.responses import Response

from landscape.core.errors import JobError, LandscapeError, StoreError, quoted
from landscape.core.validation import LONGEST_LANDSCAPE_NAME
from landscape.job.job import Job
from landscape.job.reading import spec_as_computed
from landscape.page.answers import THREADS, Answer, AnswerCache, EventStream, in_thread, pack_json
from landscape.page.content import View
from landscape.page.description import csv_answer, run_description
from landscape.page.figures import (
    Readable,
    compare_answer,
    differences_answer,
    figure_answer,
    find_readable,
    history_answer,
    history_stamp,
    looks,
    no_thumbnail,
    thumbnail_answer,
)
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
    round_end,
)
from landscape.page.runs import OpenRuns, RunReader
from landscape.page.service import PatchResponse, PatchStream, exact_answer, slopes_answer
from landscape.page.watching import SEARCH_SECONDS, RunListing, RunWatch
from landscape.store.landscape import LandscapeStore
from landscape.store.levels import FACTORS, Finer, box_of_blocks, levels_left, points_left
from landscape.store.state import cause_of
from landscape.store.status import Directory, GoneError, RunPlace
from landscape.surface.surface import Axis, check_observable

# ----------------------------------------------------------------------------------------------------
# The commands that refine a box of a landscape: the points of each, or why there is none.

BOX_DIGITS = 6  # of the ends of a box that a user has drawn


def finer_steps(
    run: RunReader, landscape: str, axes: Sequence[Axis], box: Sequence[tuple[float, float]], problem: str | None
) -> list[dict[str, Any]]:
    """A command for each factor, for a box cut off at the ends of the landscape.

    Args:
        problem: the text for the callback in the command; None for the recorded callback.

    Returns:
        For each factor `command`, the number of `points` that it computes, and the range [low, high] of each axis that
        it `covers`; or the `reason` why there is no such command.
    """
    return [{"factor": factor} | _finer(run, landscape, axes, box, factor, problem) for factor in FACTORS]


def _finer(
    run: RunReader,
    landscape: str,
    axes: Sequence[Axis],
    box: Sequence[tuple[float, float]],
    factor: int,
    problem: str | None,
) -> dict[str, Any]:
    try:
        inside = [snap_to_axis(*ends, axis) for ends, axis in zip(box, axes, strict=False)]
        inside += [(float(axis.coordinates[0]), float(axis.coordinates[-1])) for axis in axes[len(box) :]]
        finer = Finer(factor, inside)
        if run.alive():
            return {"reason": "a job writes this run now; refine when it has ended"}
        path, store = run.found.path, LandscapeStore.open(run.found.path, landscape)
        if not (levels := levels_left(path, landscape, finer)):
            return {"reason": finer.held_already(landscape, len(store.shape))}
        points = sum(points_left(path, landscape, level, store.shape) for level in levels)
        covers = [list(ends) for ends in box_of_blocks(store, finer)]
    except LandscapeError as error:
        return {"reason": cause_of(error)}
    return {"command": _command(path, landscape, inside, factor, problem), "points": points, "covers": covers}


def snap_to_axis(low: float, high: float, axis: Axis) -> tuple[float, float]:
    """The ends of a box along an axis, rounded to a few digits, within the landscape.

    >>> import numpy as np
    >>> snap_to_axis(-3.0, 0.123456789, Axis("alpha", np.array([-1.0, 0.0, 1.0])))
    (-1.0, 0.123457)
    """
    first, last = float(axis.coordinates[0]), float(axis.coordinates[-1])
    rounded = [float(f"{end:.{BOX_DIGITS}g}") for end in (low, high)]
    return max(first, min(last, rounded[0])), max(first, min(last, rounded[1]))


def _command(run: str, landscape: str, box: Sequence[tuple[float, float]], factor: int, problem: str | None) -> str:
    ends = ",".join(repr(end) for pair in box for end in pair)
    more = ["--problem", problem] if problem is not None else []
    words = ["landscape", "refine", run, landscape, f"--box={ends}", "--factor", str(factor), *more]
    return " ".join(map(shlex.quote, words))


# ----------------------------------------------------------------------------------------------------
# The job file that computes a box as a landscape of its own.

WEIGHTS = (".safetensors", ".pt", ".pth", ".ckpt", ".bin")  # endings of files of weights
PLACEHOLDER = "my_problem:problem"
# What a box has of its own, or has from its landscape; the other fields are those of the job that is recorded.
NOT_KEPT = (
    "run", "problem", "landscapes", "collect_landscape", "device_ids", "tile", "keep_samples", "quantise",
)  # fmt: skip
KEPT = tuple(name for name in Job.model_fields if name not in NOT_KEPT)


def box_job(run: RunReader, asked: BoxQuery) -> dict[str, Any]:
    """The answer of `api/job`.

    Returns:
        `yaml`, the job file; `seconds`, its time at the recorded rate, None if no rate is recorded; `command`; `note`,
        advice to read before it is run, or ''; `finer`, the commands that refine the box, from `finer_steps`, with the
        seconds that each takes.

    Raises:
        JobError: the box or the size does not fit the landscape's axes.
        LandscapeError: the landscape does not record the job that began it.
    """
    view = run.view(asked.landscape)
    record, axes = view.record, view.surface.axes
    if record.job is None or not record.job.landscapes:
        raise LandscapeError(
            f"landscape {quoted(asked.landscape)} does not record the job that began it, so no job can be made of it"
        )
    if len(asked.box) > len(axes) or (len(asked.size) > 1 and len(asked.size) != len(axes)):
        raise JobError(
            f"box: {quoted(asked.landscape)} has {len(axes)} axes; give as many pairs, and one size or as many"
        )
    name = free_name(asked.landscape, run.names())
    own = tuple(reversed(run.reader(asked.landscape).store().shape))
    landscape = _landscape(view, spec_as_computed(record), asked, name, own)
    problem, notes = _problem(record.job.whole)
    notes += _file_notes(landscape)
    fields = {key: value for key in KEPT if (value := record.job.whole.get(key)) is not None}
    document = {"run": run.found.path, "problem": problem, **fields, "landscapes": [landscape]}
    Job(**document)  # refuses fields unknown to this version
    text = yaml.safe_dump(document, sort_keys=False, default_flow_style=None, allow_unicode=True, width=100)
    points = math.prod(landscape["size"])
    finer = finer_steps(
        run, asked.landscape, axes, asked.box, None if problem == record.job.whole.get("problem") else problem
    )
    return {
        "yaml": text,
        "seconds": _seconds(view, points),
        "points": points,
        "command": f"landscape run {name}.yaml",
        "note": " ".join(notes),
        "finer": [{**step, "seconds": _seconds(view, step["points"]) if "points" in step else None} for step in finer],
    }


def free_name(name: str, taken: Collection[str]) -> str:
    """A name for a part of a landscape that no landscape of the run has; upper and lower case count as the same."""
    used = {other.lower() for other in taken}
    base = f"{name[: LONGEST_LANDSCAPE_NAME - 10]}-box"
    number = 1
    while (found := base if number == 1 else f"{base}-{number}").lower() in used:
        number += 1
    return found


def _landscape(
    view: View, recorded: Mapping[str, Any], asked: BoxQuery, name: str, own: tuple[int, ...]
) -> dict[str, Any]:
    """The entry of the landscape in the job: the recorded directions, from the same origin, over the box.

    Args:
        recorded: the landscape's own fields, with snapshots by number, since the training may have continued.
        own: points per axis of the landscape itself, without its levels.
    """
    axes = view.surface.axes
    boxes = [*asked.box, *(_range(axis) for axis in axes[len(asked.box) :])]
    sizes = asked.size or own
    document: dict[str, Any] = {"name": name}
    document |= {"origin": recorded["origin"]} if recorded.get("origin") is not None else {}
    if recorded.get("trajectory") is not None:
        document["trajectory"] = recorded["trajectory"]
        document["axes"] = len(axes)
    else:
        document["directions"] = [
            {key: value for key, value in direction.items() if value is not None}
            for direction in recorded.get("directions", ())
        ]
    if recorded.get("paths"):
        document["paths"] = [
            {key: value for key, value in path.items() if value is not None} for path in recorded["paths"]
        ]
    document["size"] = list(sizes if len(sizes) > 1 else sizes * len(axes))
    document["range"] = [list(box) for box in boxes]
    return document


def _range(axis: Axis) -> tuple[float, float]:
    return round_end(float(axis.coordinates[0])), round_end(float(axis.coordinates[-1]))


def _problem(job: Mapping[str, Any]) -> tuple[str, list[str]]:
    """The callback's name, and notes on it."""
    recorded = job.get("problem")
    module, _, function = recorded.partition(":") if isinstance(recorded, str) else ("", "", "")
    named = all(part.isidentifier() for part in (*module.split("."), *function.split(".")))
    if module == "__main__" or not named:
        return PLACEHOLDER, [
            f"The callback was a function of a program, {quoted(recorded)}: "
            f"put module:function of your own in place of {PLACEHOLDER}."
        ]
    return str(recorded), [f"Save the file in the folder from which {module} can be imported."]


def _file_notes(landscape: Mapping[str, Any]) -> list[str]:
    """Notes on the files and runs that the job names."""
    named = [landscape.get("origin")]
    named += [value for direction in landscape.get("directions", ()) for value in direction.values()]
    files = [value for value in named if isinstance(value, str) and ("/" in value or value.endswith(WEIGHTS))]
    files += [path["run"] for path in landscape.get("paths", ())]
    return ["Paths in it are relative to the folder of the job that began the landscape."] if files else []


def _seconds(view: View, points: int) -> float | None:
    """Seconds for `points` at the total speed of the workers that computed the landscape; None if unknown."""
    progress = view.record.progress
    if progress.rate:
        return points / progress.rate
    if progress.seconds and progress.points_done:
        return points * progress.seconds / progress.points_done
    return None


# ----------------------------------------------------------------------------------------------------
# The requests, and the functions that answer them.

T = TypeVar("T")
Answering = Callable[[AddressQuery], Awaitable[Answer | Response]]

KEPT_BYTES = 64 << 20  # of answers
REMOTE_THREADS, WATCHING_THREADS, SERVICE_THREADS = 12, 4, 8


# Requests about one run: the query of each, and the function that answers it.
OF_RUN: Mapping[str, tuple[type[Any], Callable[[RunReader, Any], Answer]]] = {
    "run": (RunQuery, lambda reader, asked: pack_json(run_description(reader))),
    "csv": (FigureQuery, csv_answer),
    "job": (BoxQuery, lambda reader, asked: pack_json(box_job(reader, asked))),
}
# Requests that are passed on to a service.
BY_SERVICE: Mapping[str, tuple[type[Any], Callable[[RunReader, Any], dict[str, Any]]]] = {
    "exact": (PointQuery, exact_answer),
    "slopes": (PointQuery, slopes_answer),
}


class Api:
    """Answers requests about the runs of some places."""

    def __init__(self, places: Sequence[RunPlace], search_seconds: float = SEARCH_SECONDS) -> None:
        """
        Args:
            search_seconds: the least time between two searches for runs.
        """
        self._runs = OpenRuns()
        self._threads = ThreadPoolExecutor(THREADS, "landscape-page")
        # A request that waits for an object store, or reads many runs, must not delay the others.
        self._remote = ThreadPoolExecutor(REMOTE_THREADS, "landscape-remote")
        self._watching = ThreadPoolExecutor(WATCHING_THREADS, "landscape-watch")
        self._service = ThreadPoolExecutor(SERVICE_THREADS, "landscape-service")  # a patch may take minutes
        self._background = ThreadPoolExecutor(1, "landscape-list")
        self._cache = AnswerCache(KEPT_BYTES)
        self._listing = RunListing(Directory(places), partial(in_thread, self._background), search_seconds)
        self._listing.gone = self._runs.close
        self._watches: dict[str, RunWatch] = {}

    def table(self) -> Mapping[str, Answering]:
        """The functions that answer, by the last part of the address."""
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
        """Search for runs within the block."""
        listing = asyncio.create_task(self._listing.run())
        try:
            yield
        finally:
            listing.cancel()
            await asyncio.gather(listing, return_exceptions=True)
            for threads in (self._threads, self._remote, self._watching, self._service, self._background):
                threads.shutdown(wait=False, cancel_futures=True)

    def end(self) -> None:
        """End all streams of events, which do not end by themselves."""
        self._listing.end()
        for watch in tuple(self._watches.values()):
            watch.end()

    async def looks(self, query: AddressQuery) -> Answer:
        """The settings that all figures share."""
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
            return no_thumbnail(cause_of(error))  # the list requests the picture of every landscape that it shows

    async def compare(self, query: AddressQuery) -> Answer:
        """Several landscapes as figures."""
        asked = parse_query(query, CompareQuery)
        there = await self._readable(asked.items)
        key = (asked, there.items, there.generations, there.notes)
        return await self._cached(key, there.runs[0], partial(compare_answer, there, asked))

    async def differences(self, query: AddressQuery) -> Answer:
        """The differences between several landscapes."""
        there = await self._readable(parse_query(query, DifferencesQuery).items)
        return await self._of(there.runs[0], partial(differences_answer, there))

    async def _readable(self, items: Sequence[Item]) -> Readable:
        """The items of a comparison that can be read.

        Raises:
            LandscapeError: none can be read.
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
        """The values of a patch, row by row, as a service computes them."""
        asked = parse_query(query, PatchQuery)
        reader = await self._reader(asked.run)
        patch = await in_thread(self._service, lambda: PatchStream(reader, asked, partial(in_thread, self._service)))
        await patch.begin()
        return PatchResponse(patch)

    async def events(self, query: AddressQuery) -> Response:
        """The stream of news of the list, or of one run."""
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
        """A text that changes with the content of a landscape: the key of its cached answers."""
        return await self._of(reader, lambda: reader.reader(landscape).generation(reader.alive()))

    async def _of(self, reader: RunReader, compute: Callable[[], T]) -> T:
        """The result of `compute` for a run, computed in a thread."""
        return await in_thread(self._remote if reader.is_remote else self._threads, compute)

    async def _cached(self, key: Hashable, reader: RunReader, compute: Callable[[], Answer]) -> Answer:
        """The cached answer of that key, or else the result of `compute` for a run."""
        return await self._cache.answer(key, lambda: self._of(reader, compute))

    async def _reader(self, run: str) -> RunReader:
        """The open run with that identifier; waits for an unknown run until the first search has ended.

        Raises:
            GoneError: the run no longer exists.
            NotFoundError: there is no such run.
        """
        await self._listing.searched()
        try:
            found = self._listing.directory.find(run)
        except GoneError:
            self._runs.close(run)
            raise
        return await in_thread(self._threads, partial(self._runs.open, found))
