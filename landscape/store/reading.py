"""Chunks of one array, read many at once: which are there, which are damaged, and what the others hold."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from zarr.abc.store import Store
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import LocalStore

from landscape.folders.files import open_plain
from landscape.grid import Index, tile_at, tile_counts
from landscape.store.codec import Damaged, decode, longest
from landscape.store.metadata import StoredArray

BATCH = 512  # chunks in memory at once
CONCURRENT = 32


class ChunkReader:
    """The chunks of one array of a landscape."""

    def __init__(self, store: Store, array: StoredArray) -> None:
        self._store, self._array = store, array
        self.shape, self.chunks = array.shape, array.chunks
        self.counts = tile_counts(self.shape, self.chunks)
        self.empty = np.array(array.fill_value, array.dtype)

    def present(self) -> NDArray[np.bool_]:
        """Which chunks there are, over the chunks' grid."""
        found = np.zeros(self.counts, np.bool_)
        prefix = f"{self._array.path}/c"
        if isinstance(self._store, LocalStore):
            indices = _files_below(self._store.root / prefix, self.counts)
        else:
            indices = iter(sync(_listed(self._store, f"{prefix}/", self.counts)))
        for index in indices:
            found[index] = True
        return found

    def read(self, indices: Iterable[Index]) -> Iterator[tuple[Index, NDArray[Any] | None, bool]]:
        """Each chunk's index, its values (None where it is absent or damaged), and whether it is damaged."""
        left = iter(indices)
        while batch := list(islice(left, BATCH)):
            for index, data in zip(batch, self._fetch(batch), strict=True):
                if data is None:
                    yield index, None, False
                    continue
                try:
                    yield index, decode(self._array, index, data), False
                except Damaged:
                    yield index, None, True

    def whole(self) -> tuple[NDArray[Any], list[Index], NDArray[np.bool_]]:
        """All values, those of absent and damaged chunks as the fill value; the damaged ones; which are there."""
        values = np.full(self.shape, self._array.fill_value, self._array.dtype)
        there, damaged = self.present(), []
        for index, found, _ in self.read(map(tuple, np.argwhere(there).tolist())):
            if found is None:  # a link that leads nowhere is there and has no bytes
                damaged.append(index)
            else:
                values[tile_at(index, self.shape, self.chunks).windows] = found
        return values, damaged, there

    def unsound(self, expected: Iterable[Index]) -> Iterator[Index]:
        """Those of the expected chunks that are absent or damaged, few of them in memory at once."""
        return (index for index, values, _ in self.read(expected) if values is None)

    def _fetch(self, indices: Sequence[Index]) -> Iterable[bytes | None]:
        keys = [self._array.key(index) for index in indices]
        if isinstance(self._store, LocalStore):
            # A file is read sooner than asked for.
            most, root = longest(self._array), self._store.root
            return (_contents(root / key, most) for key in keys)
        return sync(_get_all(self._store, keys))


def _contents(file: Path, most: int) -> bytes | None:
    """The bytes of a chunk's file, of one that is too long as many as tell; none where what is there does not read."""
    try:
        with open_plain(file) as opened:
            return opened.read(most + 1)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.EIO, errno.ELOOP, errno.ENXIO):
            return b""  # a pipe, a bad sector, a link in a circle: damaged
        raise


def _files_below(folder: Path, counts: Index) -> Iterator[Index]:
    """The indices that files below name: no links are gone through, which may lead in a circle."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                number = _number(entry.name, counts[0])
                if number is None:
                    continue  # leftovers of a write that was cut off have other names
                if len(counts) == 1:
                    if not entry.is_dir(follow_symlinks=False):
                        yield (number,)
                elif entry.is_dir(follow_symlinks=False):
                    yield from ((number, *rest) for rest in _files_below(Path(entry.path), counts[1:]))
    except (FileNotFoundError, NotADirectoryError):
        return


def _number(text: str, count: int) -> int | None:
    """A component of a chunk's index as it is written, below `count`."""
    if len(text) > 9 or not (text.isascii() and text.isdecimal()) or str(int(text)) != text:
        return None
    return int(text) if int(text) < count else None


async def _get_all(store: Store, keys: Sequence[str]) -> list[bytes | None]:
    gate, prototype = asyncio.Semaphore(CONCURRENT), default_buffer_prototype()

    async def one(key: str) -> bytes | None:
        async with gate:
            found = await store.get(key, prototype)
        return None if found is None else found.to_bytes()

    return await asyncio.gather(*map(one, keys))


async def _listed(store: Store, prefix: str, counts: Index) -> list[Index]:
    found = []
    async for key in store.list_prefix(prefix):
        parts = key[len(prefix) :].split("/")
        if len(parts) == len(counts):
            index = [_number(part, count) for part, count in zip(parts, counts, strict=True)]
            if None not in index:
                found.append(tuple(each for each in index if each is not None))
    return found
