"""One landscape as it lies on disk, read once and brought up to date by the chunks that were written since."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass

from landscape.core.errors import NotFoundError, shown
from landscape.core.folders import open_folder
from landscape.core.grid import Index
from landscape.page.content import Block, Content, View, thinned_view
from landscape.store.changes import file_stamp
from landscape.store.landscape import LandscapeStore
from landscape.store.status import GoneError

TRIES = 5  # at reading a landscape whose place another one takes meanwhile


@dataclass(frozen=True)
class Change:
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
    """Keeps one landscape in memory, and up to date; several threads may ask.

    Its methods raise GoneError where the landscape was removed, NotFoundError where there is none, StoreError where
    the object store does not answer, and LandscapeError where its documents or coordinates cannot be read.
    """

    def __init__(self, run: str, name: str) -> None:
        self.run, self.name = run, name
        self._folder = open_folder(run)
        self._lock = threading.RLock()
        self._document: tuple[int, ...] | None = None
        self._content: Content | None = None
        self._news = Change()  # since the last call of `look`
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

    def look(self) -> Change:
        """Look what has changed on disk since the last call, and read that."""
        with self._lock:
            self._refresh()
            news, self._news = self._news, Change()
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
        return view if most is None else thinned_view(view, most)

    def generation(self, alive: bool) -> str:
        """What differs between two contents of the landscape, as it is now."""
        with self._lock:
            return self._refresh().generation(alive)

    def blocks(
        self, observable: str, tiles: Iterable[Index], alive: bool, most: int | None = None
    ) -> tuple[list[Block], str]:
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
        """Read what has changed on disk, and keep what that was for the next `look`."""
        content = self._current()
        for _ in range(TRIES):
            tiles, on_path = content.update()
            news = self._news
            self._news = Change(news.anew, news.tiles | tiles, news.otherwise or on_path)
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
        """What is in memory, after reading the landscape's own document; that this has changed is kept for `look`."""
        content, anew, otherwise = self._opened()
        # Noted at once: where the store stops answering later, the next look must not take this for known.
        self._news = Change(self._news.anew or anew, self._news.tiles, self._news.otherwise or otherwise)
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
                raise GoneError(f"landscape {shown(self.name)} was removed meanwhile; choose another one")
            raise NotFoundError(f"landscape {shown(self.name)} is not in this run; choose one that is")
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
