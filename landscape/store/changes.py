"""Finds the chunks that were written since the last look, from the names and times of files alone."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Protocol

from landscape.core.files import Folder
from landscape.core.grid import Index
from landscape.store.chunk_io import chunk_number
from landscape.store.documents import FOLDER

Stamp = tuple[int | str, ...]  # differs between two contents of a file

UNSETTLED_NS = 50_000_000  # the kernel's clock is coarse: within it, a folder may change again without a new time


class ChunkChanges(Protocol):
    """The chunks of one array that exist, each with its stamp."""

    present: dict[Index, Stamp]

    def look(self) -> set[Index]:
        """The chunks that were written, replaced or removed since the last call; at first all that exist.

        Raises:
            StoreError: the object store does not answer.
        """


def chunk_changes(folder: Folder, landscape: str, array: str, counts: Index) -> ChunkChanges:
    """The changes of an array of a landscape; `counts` are its chunks per dimension."""
    path = f"{FOLDER}/{landscape}/{array}/c"
    if "://" in folder.name:
        return ObjectChanges(folder, path, counts)
    return FileChanges(Path(folder.place(path)), counts)


class FileChanges:
    """The changes of chunks that are files; a folder is listed only when its time has changed."""

    def __init__(self, root: Path, counts: Index) -> None:
        self._root, self._counts = root, counts
        self._times: dict[Index, int] = {}  # of each folder, by the numbers in its path
        self._inner: dict[Index, set[int]] = {}  # the numbers in each folder
        self.present: dict[Index, Stamp] = {}

    def look(self) -> set[Index]:
        """The chunks that were written, replaced or removed since the last call; at first all that exist."""
        changed: set[Index] = set()
        self._look((), changed)
        return changed

    def _look(self, above: Index, changed: set[Index]) -> None:
        folder = self._root.joinpath(*map(str, above))
        try:
            modified = os.stat(folder, follow_symlinks=not above).st_mtime_ns
        except OSError:
            self._forget(above, changed)
            return
        if self._times.get(above) != modified:
            # List the folder again the next time if it may still change within this tick of the clock.
            settled = time.time_ns() - modified > UNSETTLED_NS
            self._list(above, folder, changed)
            self._times[above] = modified if settled else -1
        if len(above) < len(self._counts) - 1:
            for number in tuple(self._inner.get(above, ())):
                self._look((*above, number), changed)

    def _list(self, above: Index, folder: Path, changed: set[Index]) -> None:
        innermost = len(above) == len(self._counts) - 1
        numbers: set[int] = set()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    number = chunk_number(entry.name, self._counts[len(above)])
                    if number is None or entry.is_dir(follow_symlinks=False) == innermost:
                        continue
                    numbers.add(number)
                    if innermost:
                        self._note((*above, number), _stamp(entry), changed)
        except OSError:
            numbers.clear()
        for number in self._inner.get(above, set()) - numbers:
            self._forget((*above, number), changed)
        self._inner[above] = numbers

    def _note(self, index: Index, stamp: Stamp, changed: set[Index]) -> None:
        if self.present.get(index) != stamp:
            self.present[index] = stamp
            changed.add(index)

    def _forget(self, above: Index, changed: set[Index]) -> None:
        """Forget a chunk, or a folder with all chunks in it."""
        if self.present.pop(above, None) is not None:
            changed.add(above)
        self._times.pop(above, None)
        for number in self._inner.pop(above, set()):
            self._forget((*above, number), changed)


def _stamp(entry: os.DirEntry[str]) -> Stamp:
    try:
        status = entry.stat(follow_symlinks=False)
    except OSError:
        return (0,)
    return (status.st_mtime_ns, status.st_size, status.st_ino)


class ObjectChanges:
    """The changes of chunks that are objects; each look lists all of them."""

    def __init__(self, folder: Folder, path: str, counts: Index) -> None:
        self._folder, self._path, self._counts = folder, path, counts
        self.present: dict[Index, Stamp] = {}

    def look(self) -> set[Index]:
        """The chunks that were written, replaced or removed since the last call; at first all that exist.

        Raises:
            StoreError: the object store does not answer.
        """
        before, self.present = self.present, _by_index(self._folder.stamps(self._path), self._counts)
        indices = before.keys() | self.present.keys()
        return {index for index in indices if before.get(index) != self.present.get(index)}


def _by_index(stamps: Mapping[str, str], counts: Index) -> dict[Index, Stamp]:
    """The stamps of chunks by their indices; objects with other names are left out."""
    by_index: dict[Index, Stamp] = {}
    for path, stamp in stamps.items():
        parts = path.split("/")
        if len(parts) == len(counts):
            numbers = [chunk_number(part, count) for part, count in zip(parts, counts, strict=True)]
            index = tuple(number for number in numbers if number is not None)
            if len(index) == len(counts):
                by_index[index] = (stamp,)
    return by_index


# ----------------------------------------------------------------------------------------------------
# Stamps of files and chunks, which show a change without reading them.


def file_stamp(folder: Folder, path: str) -> tuple[int, ...] | None:
    """The stamp of a local file; None if there is none, and in an object store."""
    if "://" in folder.name:
        return None
    try:
        status = os.stat(folder.place(path))
    except OSError:
        return None
    return (status.st_mtime_ns, status.st_size, status.st_ino)


class NotedChunks:
    """Noted chunks, whose `total` changes whenever one of them does; it does not depend on the order of noting."""

    def __init__(self) -> None:
        self._noted: dict[tuple[str, Index], int] = {}
        self.total = 0

    def note(self, array: str, chunks: Iterable[Index], changes: ChunkChanges) -> None:
        """Note these chunks of an array as they are now."""
        for index in chunks:
            stamp = repr((array, index, changes.present.get(index))).encode()
            number = int.from_bytes(blake2b(stamp, digest_size=8).digest())
            self.total = (self.total + number - self._noted.get((array, index), 0)) % (1 << 64)
            self._noted[array, index] = number
