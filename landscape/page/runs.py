"""An open run: the readers of its landscapes, its documents, and whether its driver is alive."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
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
from landscape.store.state import WAITING, in_turn
from landscape.store.status import FoundRun, GoneError

# ----------------------------------------------------------------------------------------------------
# One landscape on disk, read once and then updated by the chunks that were written since.

TRIES = 5  # to read a landscape while another one replaces it


@dataclass(frozen=True)
class LandscapeChange:
    """The changes of a landscape since the last look.

    Attributes:
        anew: whether it is a new landscape of this name.
        tiles: the chunks of the grid that were written, replaced or removed.
        otherwise: whether its document or its path has changed.
    """

    anew: bool = False
    tiles: frozenset[Index] = frozenset()
    otherwise: bool = False

    def __bool__(self) -> bool:
        return self.anew or self.otherwise or bool(self.tiles)


class LandscapeReader:
    """Holds one landscape in memory, and keeps it up to date; thread-safe.

    Its methods raise GoneError if the landscape was removed, NotFoundError if there is none, StoreError if the object
    store does not answer, and LandscapeError if its documents or coordinates cannot be read.
    """

    def __init__(self, run: str, name: str) -> None:
        self.run, self.name = run, name
        self._folder = open_folder(run)
        self._lock = threading.RLock()
        self._document: tuple[int, ...] | None = None
        self._content: Content | None = None
        self._news = LandscapeChange()  # since the last call of `look`
        self.used = 0.0  # time of the last request for values

    @property
    def size(self) -> int:
        """Bytes of memory that the values take."""
        content = self._content
        return 0 if content is None else content.size

    def forget(self) -> bool:
        """Free the memory of the values, which are read again on demand.

        Returns:
            False if the values stay, because another thread is reading (and may be waiting for an object store).
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
        """Read and return the changes on disk since the last call."""
        with self._lock:
            self._refresh()
            news, self._news = self._news, LandscapeChange()
            return news

    def view(
        self, observables: Iterable[str] = (), alive: bool = False, most: int | None = None, *, fresh: bool = True
    ) -> View:
        """The current landscape, with the values of these observables and their known errors.

        Args:
            observables: names that the landscape does not have are ignored.
            alive: whether the run's driver is alive, for the words on the landscape's state.
            most: points per axis that are drawn at most.
            fresh: read changes first; otherwise the view is as of the last look.
        """
        with self._lock:
            content = self._refresh() if fresh or self._content is None else self._content
            content, names = self._load(content, tuple(observables))
            view = content.view(names, alive)
        return view if most is None else thin_view(view, most)

    def generation(self, alive: bool) -> str:
        """A value that differs between two contents of the landscape; reads changes first."""
        with self._lock:
            return self._refresh().generation(alive)

    def blocks(
        self, observable: str, tiles: Iterable[Index], alive: bool, most: int | None = None
    ) -> tuple[list[TileBlock], str]:
        """The values of these tiles as of the last look, without tiles of which no point is drawn; the generation.

        Args:
            alive: as for `view`.
            most: points per axis that are drawn at most.
        """
        with self._lock:
            content = self._content or self._refresh()
            current, _ = self._load(content, [observable])
            # The tiles belong to another landscape, which the next look reports; or a finer grid is drawn.
            if current is not content or content.drawn_levels:
                return [], current.generation(alive)
            blocks = [content.block(observable, index, most) for index in sorted(tiles)]
            return [block for block in blocks if block.states.size], content.generation(alive)

    def store(self) -> LandscapeStore:
        """The landscape, opened for reading, with its documents as of the last look."""
        with self._lock:
            return self._current().store

    def _refresh(self) -> Content:
        """Read the changes on disk, and note them for the next `look`."""
        content = self._current()
        for _ in range(TRIES):
            tiles, on_path = content.update()
            news = self._news
            self._news = LandscapeChange(news.anew, news.tiles | tiles, news.otherwise or on_path)
            # Chunks that were read while another landscape replaced this one may belong to either.
            before, content = content, self._current() if tiles or on_path else content
            if content is before:
                break
        return content

    def _load(self, content: Content, observables: Iterable[str]) -> tuple[Content, list[str]]:
        """Read the values of these observables that are not in memory yet.

        Returns:
            The content, a new one if another landscape has replaced this one meanwhile; the arrays.
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
        """The content in memory, after reading the landscape's document; a change of it is noted for `look`."""
        content, anew, otherwise = self._opened()
        # Noted at once: the next look must report it even if the store stops answering.
        self._news = LandscapeChange(self._news.anew or anew, self._news.tiles, self._news.otherwise or otherwise)
        return content

    def _opened(self) -> tuple[Content, bool, bool]:
        """The content in memory, after reading the landscape's document if it has changed.

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
        # The document of a landscape that is being renamed lies elsewhere.
        known = stamp if store.path == self.name else None
        if self._content is None or not self._content.goes_on_as(store):
            self._content = None  # if the new landscape cannot be read, the old one must not replace it
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
REMOTE_SECONDS = 2.0  # between two requests to an object store for rarely changing facts


@dataclass(frozen=True)
class RunChange:
    """The changes of a run since the last look.

    Attributes:
        changed: the changes of each landscape.
        new: landscapes that are new, or begun anew.
        gone: landscapes that were removed, or have become unreadable.
        alive: whether the run's driver is alive; `turned` says whether that has changed.
    """

    changed: dict[str, LandscapeChange]
    new: tuple[str, ...]
    gone: tuple[str, ...]
    alive: bool
    turned: bool

    def __bool__(self) -> bool:
        return bool(self.changed or self.new or self.gone or self.turned)


class RunReader:
    """Holds the landscapes of one run in memory, and keeps them up to date; thread-safe."""

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
        self._looked: set[str] | None = None  # the landscapes found by the last look
        self._was_alive = False
        self._remembered: dict[str, tuple[object, Any]] = {}
        self._turn = ""  # the landscape that the driver computes, although nothing of it is recorded yet

    @property
    def is_remote(self) -> bool:
        """Whether the run lies in an object store."""
        return "://" in self._folder.name

    def alive(self) -> bool:
        """Whether the run's driver is alive."""
        with self._lock:
            if not self.is_remote or time.monotonic() - self._asked_at > REMOTE_SECONDS:
                self._alive, self._asked_at = driver_alive(self.found.path), time.monotonic()
            return self._alive

    def refuse_gone(self) -> None:
        """Check that the run still exists.

        Raises:
            GoneError: it is gone.
            StoreError: the object store does not answer.
        """
        if not self._folder.exists():
            raise GoneError(
                f"run {quoted(self.found.name)} was deleted or moved away meanwhile; choose another one in the list"
            )

    def stamp(self, *files: str) -> object:
        """A value that differs between two contents of these files of the run; None in an object store."""
        return None if self.is_remote else tuple(file_stamp(self._folder, file) for file in files)

    def names(self) -> tuple[str, ...]:
        """The readable landscapes, in the order of the job.

        Raises:
            LandscapeError: they cannot be listed.
        """
        self._survey()
        return self._names

    def unreadable(self) -> dict[str, str]:
        """The unreadable landscapes, with the reasons."""
        self._survey()
        return dict(self._unreadable)

    def lists(self, name: str) -> bool:
        """Whether there is a landscape of that name, readable or not."""
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
        """Read and return the changes since the last call.

        Raises:
            GoneError: the run no longer exists.
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
            if before is None:  # at the first look nothing counts as new
                return RunChange({}, (), (), alive, True)
            return RunChange(changed, tuple(new), tuple(sorted(before - self._looked)), alive, alive != was_alive)

    def rest(self) -> None:
        """Make the next look count as the first one."""
        with self._lock:
            self._looked = None

    def view(
        self, name: str, observables: tuple[str, ...] = (), most: int | None = None, *, noted: bool = True
    ) -> View:
        """The current landscape; see `LandscapeReader.view`.

        Args:
            noted: let it run where `note_turn` has noted that it does, and not wait.
        """
        view = self.reader(name).view(observables, self.alive(), most)
        bound_memory(self.readers)
        return self.as_in_turn(view) if noted else view

    def note_turn(self, views: Sequence[View]) -> None:
        """Note which of the run's landscapes its driver computes now, from views of all of them."""
        self._turn = in_turn([(view.surface.name, view.state) for view in views])

    def as_in_turn(self, view: View) -> View:
        """The view; if its landscape waits and was noted as the one in turn, it runs."""
        return view.in_turn() if view.surface.name == self._turn and view.state == WAITING else view

    def remembered(self, name: str, stamp: object, compute: Callable[[], T]) -> T:
        """The result of `compute`, or its last result if the stamp is the same; None is no stamp."""
        known = self._remembered.get(name)
        if stamp is None or known is None or known[0] != stamp:
            known = self._remembered[name] = (stamp, compute())
        value: T = known[1]
        return value

    @property
    def readers(self) -> tuple[LandscapeReader, ...]:
        """The readers of the landscapes that were requested."""
        return tuple(self._readers.values())

    def _survey(self) -> None:
        """List the landscapes, if they may have changed."""
        with self._lock:
            stamp = file_stamp(self._folder, "landscapes.zarr")
            if stamp is not None and stamp == self._surveyed:
                return
            if self.is_remote and time.monotonic() - self._surveyed_at < REMOTE_SECONDS:
                return
            found = survey(self._folder)
            self._names, self._unreadable = found.names, dict(found.unreadable)
            # A driver creates a landscape file by file: an incomplete one is looked at again.
            whole = set(self._names) | set(self._unreadable)
            settled = whole >= {name for name in self._folder.folders("landscapes.zarr") if not name.startswith(".")}
            self._surveyed = stamp if settled else None
            self._surveyed_at = time.monotonic()


class OpenRuns:
    """The requested runs. The values that were not requested for longest are forgotten first."""

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
        """Forget a run that no longer exists, by its identifier."""
        with self._lock:
            self._runs.pop(run, None)


def bound_memory(readers: Collection[LandscapeReader]) -> None:
    """Forget the values that were not requested for longest, until the others take at most `VALUE_BYTES`."""
    total = sum(reader.size for reader in readers)
    if total <= VALUE_BYTES:
        return
    for reader in sorted(readers, key=lambda one: one.used)[:-1]:
        if total <= VALUE_BYTES:
            return
        size = reader.size
        total -= size if reader.forget() else 0
