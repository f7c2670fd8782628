"""An open run: its landscapes' readers, what training left there, and whether its driver lives."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, TypeVar

from landscape.core.errors import LandscapeError, NotFoundError, StoreError, nearest, shown
from landscape.core.folders import open_folder
from landscape.core.lock import driver_alive
from landscape.page.content import View
from landscape.page.reading import Change, LandscapeReader
from landscape.store.changes import file_stamp
from landscape.store.runs import survey
from landscape.store.status import FoundRun, GoneError

T = TypeVar("T")

VALUE_BYTES = 96 << 20  # of landscapes in memory
REMOTE_SECONDS = 2.0  # for so long an object store is not asked again for what changes seldom


@dataclass(frozen=True)
class RunChange:
    """What a look at a run has found.

    Attributes:
        changed: what has changed of each landscape.
        new: landscapes that are new, or begun anew.
        gone: landscapes that were removed, or cannot be read any more.
        alive: whether the run's driver lives; `turned` where that was otherwise at the last look.
    """

    changed: dict[str, Change]
    new: tuple[str, ...]
    gone: tuple[str, ...]
    alive: bool
    turned: bool

    def __bool__(self) -> bool:
        return bool(self.changed or self.new or self.gone or self.turned)


class RunReader:
    """Keeps the landscapes of one run in memory, and up to date; several threads may ask."""

    def __init__(self, found: FoundRun) -> None:
        self.found = found
        self._folder = open_folder(found.path)
        self._lock = threading.RLock()
        self._readers: dict[str, LandscapeReader] = {}
        self._names: tuple[str, ...] = ()
        self._unreadable: dict[str, str] = {}
        self._surveyed: tuple[int, ...] | None = None
        self._surveyed_at = -REMOTE_SECONDS
        self._alive, self._asked_at = False, -REMOTE_SECONDS
        self._looked: set[str] | None = None  # the landscapes that the last look has met
        self._was_alive = False
        self._remembered: dict[str, tuple[object, Any]] = {}

    @property
    def is_remote(self) -> bool:
        """Whether the run lies in an object store."""
        return "://" in self._folder.name

    def alive(self) -> bool:
        """Whether the driver that writes the run lives."""
        with self._lock:
            if not self.is_remote or time.monotonic() - self._asked_at > REMOTE_SECONDS:
                self._alive, self._asked_at = driver_alive(self.found.path), time.monotonic()
            return self._alive

    def refuse_gone(self) -> None:
        """Refuse to go on where the run is not there any more.

        Raises:
            GoneError: it is gone.
            StoreError: the object store does not answer.
        """
        if not self._folder.exists():
            raise GoneError(
                f"run {shown(self.found.name)} was deleted or moved away meanwhile; choose another one in the list"
            )

    def stamp(self, *files: str) -> object:
        """What differs between two contents of these files of the run; None in an object store."""
        return None if self.is_remote else tuple(file_stamp(self._folder, file) for file in files)

    def names(self) -> tuple[str, ...]:
        """The landscapes that can be read, in the order of the job.

        Raises:
            LandscapeError: they cannot be told.
        """
        self._survey()
        return self._names

    def unreadable(self) -> dict[str, str]:
        """The landscapes that cannot be read, with the reasons."""
        self._survey()
        return dict(self._unreadable)

    def lists(self, name: str) -> bool:
        """Whether there is a landscape of that name, be it readable or not."""
        self._survey()
        return name in self._names or name in self._unreadable

    def reader(self, name: str) -> LandscapeReader:
        """The reader of a landscape.

        Raises:
            GoneError: it was there before.
            NotFoundError: there is none of that name.
        """
        with self._lock:
            if name not in self._readers or name not in self._names:
                self._survey()
            if name in self._names:
                if name not in self._readers:
                    self._readers[name] = LandscapeReader(self.found.path, name)
                return self._readers[name]
            self.refuse_gone()
            if name in self._unreadable:
                raise NotFoundError(self._unreadable[name])
            if self._readers.pop(name, None) is not None:
                raise GoneError(f"landscape {shown(name)} was removed meanwhile; choose another one")
            raise NotFoundError(
                f"landscape {shown(name)} is not in run {shown(self.found.name)}; {nearest(name, self._names)}"
            )

    def look(self) -> RunChange:
        """Look what has changed since the last call.

        Raises:
            GoneError: the run is not there any more.
            StoreError: the object store does not answer.
        """
        with self._lock:
            self.refuse_gone()
            before, self._looked = self._looked, set()
            was_alive, alive = self._was_alive, self.alive()
            self._was_alive = alive
            new: list[str] = []
            changed: dict[str, Change] = {}
            for name in self.names():
                try:
                    change = self.reader(name).look()
                except StoreError:
                    raise
                except (LandscapeError, OSError):
                    continue  # removed or damaged meanwhile
                self._looked.add(name)
                if before is not None and (name not in before or change.anew):
                    new.append(name)
                if change:
                    changed[name] = change
            if before is None:  # of what was there before anybody looked, nothing is new
                return RunChange({}, (), (), alive, True)
            return RunChange(changed, tuple(new), tuple(sorted(before - self._looked)), alive, alive != was_alive)

    def rest(self) -> None:
        """Take the next look as the first one again."""
        with self._lock:
            self._looked = None

    def view(self, name: str, observables: tuple[str, ...] = (), most: int | None = None) -> View:
        """A landscape as it is now; see `LandscapeReader.view`."""
        view = self.reader(name).view(observables, self.alive(), most)
        bound(self.readers)
        return view

    def remembered(self, name: str, stamp: object, compute: Callable[[], T]) -> T:
        """What `compute` gives, or gave the last time where the stamp is the same; None is no stamp."""
        known = self._remembered.get(name)
        if stamp is None or known is None or known[0] != stamp:
            known = self._remembered[name] = (stamp, compute())
        value: T = known[1]
        return value

    @property
    def readers(self) -> tuple[LandscapeReader, ...]:
        """The readers of the landscapes that somebody has asked for."""
        return tuple(self._readers.values())

    def _survey(self) -> None:
        """Look which landscapes there are, where that may have changed."""
        with self._lock:
            stamp = file_stamp(self._folder, "landscapes.zarr")
            if stamp is not None and stamp == self._surveyed:
                return
            if self.is_remote and time.monotonic() - self._surveyed_at < REMOTE_SECONDS:
                return
            found = survey(self._folder)
            self._names, self._unreadable = found.names, dict(found.unreadable)
            # A driver makes a landscape file by file: as long as one is half made, it is looked at again.
            whole = set(self._names) | set(self._unreadable)
            settled = whole >= {name for name in self._folder.folders("landscapes.zarr") if not name.startswith(".")}
            self._surveyed = stamp if settled else None
            self._surveyed_at = time.monotonic()


class OpenRuns:
    """The runs that somebody has asked for. Values that nobody asks for any more are forgotten, the oldest first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: dict[str, RunReader] = {}

    def open(self, found: FoundRun) -> RunReader:
        """The reader of a run."""
        with self._lock:
            reader = self._runs.get(found.id)
            if reader is None:
                reader = self._runs[found.id] = RunReader(found)
            bound([reader for run in self._runs.values() for reader in run.readers])
            return reader

    def close(self, run: str) -> None:
        """Forget a run, by its identifier, that is not there any more."""
        with self._lock:
            self._runs.pop(run, None)


def bound(readers: Collection[LandscapeReader]) -> None:
    """Forget values of the landscapes that were asked for longest ago, until the others take at most `VALUE_BYTES`."""
    total = sum(reader.size for reader in readers)
    if total <= VALUE_BYTES:
        return
    for reader in sorted(readers, key=lambda one: one.used)[:-1]:
        if total <= VALUE_BYTES:
            return
        size = reader.size
        total -= size if reader.forget() else 0
