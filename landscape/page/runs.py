"""An open run: its landscapes' readers, what training left there, and whether its driver lives."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from landscape.core.errors import LandscapeError, NotFoundError, StoreError, nearest, quoted
from landscape.core.folders import open_folder
from landscape.core.grid import Index
from landscape.core.lock import driver_alive
from landscape.page.content import Content, TileBlock, View, thin_view
from landscape.store.changes import file_stamp
from landscape.store.landscape import LandscapeStore
from landscape.store.runs import survey
from landscape.store.status import FoundRun, GoneError

# ----------------------------------------------------------------------------------------------------
# One landscape as it lies on disk, read once and brought up to date by the chunks that were written since.

TRIES = 5  # at reading a landscape whose place another one takes meanwhile


@dataclass(frozen=True)
class LandscapeChange:
    """What a look at a landscape has found.

    Attributes:
        anew: it is another landscape of the same name than at the last look, or there was none.
        tiles: the chunks of the grid that were written, replaced or removed.
        otherwise: whether its document or its path has changed.
    """

    anew: bool = False
    tiles: frozenset[Index] = frozenset()
    otherwise: bool = False

    def __bool__(self) -> bool:
        return self.anew or self.otherwise or bool(self.tiles)


class LandscapeReader:
    """Holds one landscape in memory, and keeps it up to date; several threads may use it.

    Its methods raise GoneError where the landscape was removed, NotFoundError where there is none, StoreError where
    the object store does not answer, and LandscapeError where its documents or coordinates cannot be read.
    """

    def __init__(self, run: str, name: str) -> None:
        self.run, self.name = run, name
        self._folder = open_folder(run)
        self._lock = threading.RLock()
        self._document: tuple[int, ...] | None = None
        self._content: Content | None = None
        self._news = LandscapeChange()  # since the last call of `look`
        self.used = 0.0  # when values were last asked for

    @property
    def size(self) -> int:
        """Bytes of memory that the values take."""
        content = self._content
        return 0 if content is None else content.size

    def forget(self) -> bool:
        """Free the memory of the values, which are read again when somebody asks.

        Returns:
            Whether they are forgotten. They stay while another thread reads: an object store may keep that one waiting.
        """
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if self._content is not None:
                self._content.forget()
        finally:
            self._lock.release()
        return True

    def look(self) -> LandscapeChange:
        """Read what has changed on disk since the last call, and tell it."""
        with self._lock:
            self._refresh()
            news, self._news = self._news, LandscapeChange()
            return news

    def view(
        self, observables: Iterable[str] = (), alive: bool = False, most: int | None = None, *, fresh: bool = True
    ) -> View:
        """The landscape as it is now, with the values of these observables and what is known of their errors.

        Args:
            observables: those that the landscape does not have are left out.
            alive: whether the run's driver lives, which the words on the state of the landscape depend on.
            most: points per axis that are drawn at most.
            fresh: look first what has changed; else it is as of the last look.
        """
        with self._lock:
            content = self._refresh() if fresh or self._content is None else self._content
            content, names = self._load(content, tuple(observables))
            view = content.view(names, alive)
        return view if most is None else thin_view(view, most)

    def generation(self, alive: bool) -> str:
        """What differs between two contents of the landscape, as it is now."""
        with self._lock:
            return self._refresh().generation(alive)

    def blocks(
        self, observable: str, tiles: Iterable[Index], alive: bool, most: int | None = None
    ) -> tuple[list[TileBlock], str]:
        """The values of these tiles as of the last look, without those of which no point is drawn; the generation.

        Args:
            alive: as `view` has it.
            most: points per axis that are drawn at most.
        """
        with self._lock:
            content = self._content or self._refresh()
            current, _ = self._load(content, [observable])
            # The tiles are those of another landscape, which the next look says; or a finer grid than theirs is drawn.
            if current is not content or content.drawn_levels:
                return [], current.generation(alive)
            found = [content.block(observable, index, most) for index in sorted(tiles)]
            return [block for block in found if block.states.size], content.generation(alive)

    def store(self) -> LandscapeStore:
        """The landscape, opened for reading; of documents, as of the last look."""
        with self._lock:
            return self._current().store

    def _refresh(self) -> Content:
        """Read what has changed on disk, and note it for the next `look`."""
        content = self._current()
        for _ in range(TRIES):
            tiles, on_path = content.update()
            news = self._news
            self._news = LandscapeChange(news.anew, news.tiles | tiles, news.otherwise or on_path)
            # Chunks that were read while another landscape took the place of this one may be of either.
            before, content = content, self._current() if tiles or on_path else content
            if content is before:
                break
        return content

    def _load(self, content: Content, observables: Iterable[str]) -> tuple[Content, list[str]]:
        """Read the values of these observables that are not in memory yet.

        Returns:
            The content, which is another one where another landscape took the place of this one meanwhile; the arrays.
        """
        for _ in range(TRIES):
            names = list(dict.fromkeys(array for name in observables for array in content.arrays_of(name)))
            known = set(names) <= content.values.values.keys()
            content.load(names)
            self.used = time.monotonic() if names else self.used
            if known or self._current() is content:
                break
            content = self._refresh()
        return content, names

    def _current(self) -> Content:
        """What is in memory, once the landscape's own document is read; a change of that is noted for `look`."""
        content, anew, otherwise = self._opened()
        # Noted at once: if the store stops answering later on, the next look must still tell it.
        self._news = LandscapeChange(self._news.anew or anew, self._news.tiles, self._news.otherwise or otherwise)
        return content

    def _opened(self) -> tuple[Content, bool, bool]:
        """What is in memory, after reading the landscape's own document where that has changed.

        Returns:
            The content; whether it is that of a new landscape; whether the document has changed.
        """
        stamp = file_stamp(self._folder, f"landscapes.zarr/{self.name}/zarr.json")
        if self._content is not None and stamp is not None and stamp == self._document:
            return self._content, False, False
        store = LandscapeStore.find(self._folder, self.name)
        if store is None:
            gone, self._content = self._content is not None, None
            if gone:
                raise GoneError(f"landscape {quoted(self.name)} was removed meanwhile; choose another one")
            raise NotFoundError(f"landscape {quoted(self.name)} is not in this run; choose one that is")
        # Of a landscape that is getting another name the document lies elsewhere.
        known = stamp if store.path == self.name else None
        if self._content is None or not self._content.goes_on_as(store):
            self._content = None  # where the new one cannot be read, the one before must not stand for it
            self._content = Content(self._folder, store)
            self._document = known
            return self._content, True, True
        self._document = known
        told = self._content.store.attributes != store.attributes
        self._content.store = store
        return self._content, False, told


# ----------------------------------------------------------------------------------------------------

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

    changed: dict[str, LandscapeChange]
    new: tuple[str, ...]
    gone: tuple[str, ...]
    alive: bool
    turned: bool

    def __bool__(self) -> bool:
        return bool(self.changed or self.new or self.gone or self.turned)


class RunReader:
    """Holds the landscapes of one run in memory, and keeps them up to date; several threads may use it."""

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
                f"run {quoted(self.found.name)} was deleted or moved away meanwhile; choose another one in the list"
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
                raise GoneError(f"landscape {quoted(name)} was removed meanwhile; choose another one")
            raise NotFoundError(
                f"landscape {quoted(name)} is not in run {quoted(self.found.name)}; {nearest(name, self._names)}"
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
            changed: dict[str, LandscapeChange] = {}
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
        bound_memory(self.readers)
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
    """The runs that somebody has asked for. Values that nobody has asked for lately are forgotten, the oldest first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: dict[str, RunReader] = {}

    def open(self, found: FoundRun) -> RunReader:
        """The reader of a run."""
        with self._lock:
            reader = self._runs.get(found.id)
            if reader is None:
                reader = self._runs[found.id] = RunReader(found)
            bound_memory([reader for run in self._runs.values() for reader in run.readers])
            return reader

    def close(self, run: str) -> None:
        """Forget a run, by its identifier, that is not there any more."""
        with self._lock:
            self._runs.pop(run, None)


def bound_memory(readers: Collection[LandscapeReader]) -> None:
    """Forget values of the landscapes that were asked for longest ago, until the others take at most `VALUE_BYTES`."""
    total = sum(reader.size for reader in readers)
    if total <= VALUE_BYTES:
        return
    for reader in sorted(readers, key=lambda one: one.used)[:-1]:
        if total <= VALUE_BYTES:
            return
        size = reader.size
        total -= size if reader.forget() else 0
