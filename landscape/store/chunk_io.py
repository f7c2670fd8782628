"""The chunks of one array, read many at once: which exist, which are damaged, and the values of the others."""

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

from landscape.core.files import open_plain
from landscape.core.grid import Index, tile_at, tile_counts
from landscape.store.codec import Damaged, decode, longest
from landscape.store.metadata import StoredArray

BATCH = 512  # chunks in memory at once, and
BATCH_BYTES = 1 << 28  # no more than so many bytes of them
CONCURRENT = 32


class ChunkReader:
    """Reads the chunks of one array of a landscape."""

    def __init__(self, store: Store, array: StoredArray) -> None:
        self._store, self._array = store, array
        self.shape, self.chunks = array.shape, array.chunks
        self.counts = tile_counts(self.shape, self.chunks)
        self.empty = np.array(array.fill_value, array.dtype)

    def present(self) -> NDArray[np.bool_]:
        """A mask over the grid of chunks: which of them exist, sound or damaged."""
        present = np.zeros(self.counts, np.bool_)
        prefix = f"{self._array.path}/c"
        if isinstance(self._store, LocalStore):
            indices = _files_below(self._store.root / prefix, self.counts)
        else:
            indices = iter(sync(_listed(self._store, f"{prefix}/", self.counts)))
        for index in indices:
            present[index] = True
        return present

    def read(self, indices: Iterable[Index]) -> Iterator[tuple[Index, NDArray[Any] | None, bool]]:
        """Each chunk's index, its values (None where it is absent or damaged), and whether it is damaged."""
        left, at_once = iter(indices), max(1, min(BATCH, BATCH_BYTES // max(1, self._array.chunk_bytes)))
        while batch := list(islice(left, at_once)):
            for index, data in zip(batch, self._fetch(batch), strict=True):
                if data is None:
                    yield index, None, False
                    continue
                try:
                    yield index, decode(self._array, index, data), False
                except Damaged:
                    yield index, None, True

    def whole(self) -> tuple[NDArray[Any], list[Index], NDArray[np.bool_]]:
        """The whole array, which of its chunks are damaged, and which exist.

        Returns:
            The values, in which the fill value stands for absent and damaged chunks; the indices of damaged chunks; a
            mask over the grid of chunks.
        """
        values = np.full(self.shape, self._array.fill_value, self._array.dtype)
        present, damaged = self.present(), []
        for index, chunk, _ in self.read(map(tuple, np.argwhere(present).tolist())):
            if chunk is None:  # a link that leads nowhere exists and has no bytes
                damaged.append(index)
            else:
                values[tile_at(index, self.shape, self.chunks).windows] = chunk
        return values, damaged, present

    def unsound(self, expected: Iterable[Index]) -> Iterator[Index]:
        """Those of the expected chunks that are absent or damaged; a batch of them is in memory at once."""
        return (index for index, values, _ in self.read(expected) if values is None)

    def _fetch(self, indices: Sequence[Index]) -> Iterable[bytes | None]:
        keys = [self._array.key(index) for index in indices]
        if isinstance(self._store, LocalStore):
            # A local file is read at once: handing it to the event loop takes longer.
            most, root = longest(self._array), self._store.root
            return (chunk_bytes(root / key, most) for key in keys)
        return sync(_get_all(self._store, keys))


def chunk_bytes(file: Path, most: int) -> bytes | None:
    """The bytes of a chunk's file; None where there is no file.

    Args:
        most: bytes that a sound chunk may have. One more is read at most, which shows that a file is too long.
    """
    try:
        with open_plain(file) as opened:
            return opened.read(most + 1)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.EIO, errno.ELOOP, errno.ENXIO):
            return b""  # a pipe, a bad sector or a link in a circle counts as a damaged chunk
        raise


def _files_below(folder: Path, counts: Index) -> Iterator[Index]:
    """The indices of the chunks whose files lie below a folder. Links are not followed, as they may form a circle."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                number = chunk_number(entry.name, counts[0])
                if number is None:
                    continue  # leftovers of a write that was cut off have other names
                if len(counts) == 1:
                    if not entry.is_dir(follow_symlinks=False):
                        yield (number,)
                elif entry.is_dir(follow_symlinks=False):
                    yield from ((number, *rest) for rest in _files_below(Path(entry.path), counts[1:]))
    except (FileNotFoundError, NotADirectoryError):
        return


def chunk_number(text: str, count: int) -> int | None:
    """The number that a part of a chunk's path stands for; None where it is none, or not below `count`."""
    if len(text) > 9 or not (text.isascii() and text.isdecimal()) or str(int(text)) != text:
        return None
    return int(text) if int(text) < count else None


async def _get_all(store: Store, keys: Sequence[str]) -> list[bytes | None]:
    gate, prototype = asyncio.Semaphore(CONCURRENT), default_buffer_prototype()

    async def one(key: str) -> bytes | None:
        async with gate:
            data = await store.get(key, prototype)
        return None if data is None else data.to_bytes()

    return await asyncio.gather(*map(one, keys))


async def _listed(store: Store, prefix: str, counts: Index) -> list[Index]:
    indices: list[Index] = []
    async for key in store.list_prefix(prefix):
        parts = key[len(prefix) :].split("/")
        if len(parts) == len(counts):
            numbers = [chunk_number(part, count) for part, count in zip(parts, counts, strict=True)]
            if None not in numbers:
                indices.append(tuple(number for number in numbers if number is not None))
    return indices
