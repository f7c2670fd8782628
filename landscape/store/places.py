"""The runs that lie in the given places, each with an identifier: an address names a run by that alone, never a path.

A run is a folder with `run.json` or `landscapes.zarr`. Links to folders are not followed, so nothing outside the places
is found, and what lies inside a run is not searched.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from landscape.core.errors import LandscapeError, NotFoundError, shown
from landscape.core.files import Folder
from landscape.core.folders import open_folder
from landscape.store.state import cause_of

MARKS = ("run.json", "landscapes.zarr")  # what makes a folder a run
DEEPEST = 12
MOST_FOLDERS = 200_000
ID_DIGITS = 12


@dataclass(frozen=True)
class FoundRun:
    """A run by its identifier; `name` is its path below the place that it was found in, `path` its folder or URL."""

    id: str
    name: str
    path: str


@dataclass(frozen=True)
class Place:
    """What the user has named, a folder or a URL, and what lies there; `problem` is why not all could be looked at."""

    name: str
    path: str
    runs: tuple[FoundRun, ...] = ()
    problem: str = ""


def open_place(name: str) -> Place:
    """The place of that name, not searched yet.

    Raises:
        NotFoundError: there is no such folder.
        JobError: the name is no folder and no URL that is known.
        StoreError: the object store does not answer.
    """
    folder = open_folder(name)
    if not folder.exists():
        what = "is a file, not a folder" if os.path.isfile(name) else "does not exist"
        raise NotFoundError(
            f"place {shown(name)} {what}; name a run, a folder of runs, or a URL such as s3://bucket/runs"
        )
    return Place(name, folder.name)


def search(place: Place) -> Place:
    """The place with the runs that lie there now, sorted by name."""
    runs: list[FoundRun] = []
    problem = ""
    try:
        folder = open_folder(place.path)
        walk = _walk_objects(folder) if "://" in place.path else _walk(Path(place.path))
        for below in walk:
            path = folder.place(below) if below else folder.name
            runs.append(FoundRun(identifier(path), below or path.rstrip("/").rpartition("/")[2], path))
    except (LandscapeError, OSError) as error:
        problem = cause_of(error)
    return replace(place, runs=tuple(sorted(runs, key=lambda run: run.name)), problem=problem)


def identifier(path: str) -> str:
    """The identifier of a run: the same one in every server that shows it, so that a link serves a colleague too."""
    return hashlib.sha256(path.encode("utf-8", "surrogatepass")).hexdigest()[:ID_DIGITS]


def _walk(root: Path) -> Iterator[str]:
    """The paths of the runs below a local folder, relative to it; the folder itself is ''.

    Raises:
        OSError: the root cannot be listed. A folder below it that cannot be is left out.
    """
    waiting, count = [("", 0)], 0
    while waiting:
        below, depth = waiting.pop()
        count += 1
        if count > MOST_FOLDERS:
            raise _too_many()
        try:
            with os.scandir(root / below) as entries:
                names = {entry.name: entry.is_dir(follow_symlinks=False) for entry in entries}
        except OSError:
            if not below:
                raise
            continue  # removed meanwhile, or without the right to read
        if any(mark in names for mark in MARKS):
            yield below
        elif depth < DEEPEST:
            inner = (name for name, is_folder in names.items() if is_folder and not name.startswith("."))
            waiting += [(f"{below}/{name}" if below else name, depth + 1) for name in inner]


def _walk_objects(folder: Folder) -> Iterator[str]:
    """The paths of the runs below a prefix of an object store, as `_walk` gives those below a folder."""
    level = [""]
    for _ in range(DEEPEST + 1):
        looks = folder.map(lambda below: (folder.names(below), folder.folders(below)), level)
        inner: list[str] = []
        for below, (names, folders) in zip(level, looks, strict=True):
            if any(mark in names or mark in folders for mark in MARKS):
                yield below
            else:
                inner += [f"{below}/{name}" if below else name for name in folders if not name.startswith(".")]
        if len(inner) > MOST_FOLDERS:
            raise _too_many()
        level = inner


def _too_many() -> LandscapeError:
    return LandscapeError(f"holds more than {MOST_FOLDERS} folders, of which the rest is not looked at; name one below")


class Directory:
    """The runs of all places by their identifiers, as the last search found them."""

    def __init__(self, places: Sequence[Place]) -> None:
        self.places = tuple(places)
        self.searches = 0
        self._runs: dict[str, FoundRun] = {}
        self._former: set[str] = set()

    @property
    def runs(self) -> tuple[FoundRun, ...]:
        """All runs, in the order of the places; one that two places hold stands once."""
        return tuple(self._runs.values())

    def search(self) -> frozenset[str]:
        """Look at the places anew.

        Returns:
            The identifiers of the runs that were there before and are not any more.
        """
        self.places = tuple(search(place) for place in self.places)
        runs = {run.id: run for place in reversed(self.places) for run in place.runs}
        runs = {run.id: runs[run.id] for place in self.places for run in place.runs}
        # What an unreachable store holds is not gone.
        kept = {
            run.id: run
            for run in self._runs.values()
            if run.id not in runs and any(place.problem and run.path.startswith(place.path) for place in self.places)
        }
        gone = frozenset(self._runs) - set(runs) - set(kept)
        self._runs = {**runs, **kept}
        self._former = (self._former | gone) - set(self._runs)
        self.searches += 1
        return gone

    def find(self, run: str) -> FoundRun:
        """The run with this identifier.

        Raises:
            GoneError: it was there when the server started or later, and is not any more.
            NotFoundError: there is none.
        """
        if run in self._runs:
            return self._runs[run]
        if run in self._former:
            raise GoneError(f"run {shown(run)} was deleted or moved away meanwhile; choose another one in the list")
        raise NotFoundError(f"run {shown(run)} is not in the places that this page shows; choose one in the list")


class GoneError(NotFoundError):
    """A run or a landscape was there and is not any more."""


def changed(run: FoundRun) -> int:
    """When something was last made or begun in a local run, in nanoseconds; 0 in an object store."""
    times = [0]
    for place in (run.path, f"{run.path}/landscapes.zarr"):
        with contextlib.suppress(OSError):
            times.append(os.stat(place).st_mtime_ns)
    return max(times)
