"""Chunks of one array, read many at once: which are there, which are damaged, and what the others hold."""

from __future__ import annotations

import asyncio
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

from landscape.grid import Index, tile_at, tile_counts
from landscape.store.codec import Damaged, decode, is_plain

BATCH = 512  # chunks in memory at once
CONCURRENT = 32


class ChunkReader:
    """The chunks of one array of a landscape."""

    def __init__(self, store: Store, array: Any) -> None:
        self._store, self._array = store, array
        self.shape, self.chunks = tuple(array.shape), tuple(array.chunks)
        self.counts = tile_counts(self.shape, self.chunks)
        self.empty = np.array(array.fill_value, array.dtype)

    def present(self) -> NDArray[np.bool_]:
        """Which chunks there are, over the chunks' grid."""
        found = np.zeros(self.counts, np.bool_)
        prefix = f"{self._array.path}/c/"
        for index in sync(_listed(self._store, prefix, len(self.counts))):
            if all(i < n for i, n in zip(index, self.counts, strict=True)):
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
                    yield index, self._decode(index, data), False
                except Damaged:
                    yield index, None, True

    def _fetch(self, indices: Sequence[Index]) -> list[bytes | None]:
        keys = [f"{self._array.path}/{self._array.metadata.encode_chunk_key(index)}" for index in indices]
        if isinstance(self._store, LocalStore):
            return [_contents(self._store.root / key) for key in keys]  # a file is read sooner than asked for
        return sync(_get_all(self._store, keys))

    def _decode(self, index: Index, data: bytes) -> NDArray[Any]:
        if is_plain(self._array):
            return decode(self._array, index, data)
        try:
            return np.asarray(self._array[tile_at(index, self.shape, self.chunks).windows])
        except (ValueError, OSError):
            raise Damaged from None


def _contents(file: Path) -> bytes | None:
    try:
        return file.read_bytes()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None


async def _get_all(store: Store, keys: Sequence[str]) -> list[bytes | None]:
    gate, prototype = asyncio.Semaphore(CONCURRENT), default_buffer_prototype()

    async def one(key: str) -> bytes | None:
        async with gate:
            found = await store.get(key, prototype)
        return None if found is None else found.to_bytes()

    return await asyncio.gather(*map(one, keys))


async def _listed(store: Store, prefix: str, dimensions: int) -> list[Index]:
    found = []
    async for key in store.list_prefix(prefix):
        parts = key[len(prefix) :].split("/")
        # Files with other names are leftovers of a write that was cut off.
        if len(parts) == dimensions and all(part.isdigit() for part in parts):
            found.append(tuple(map(int, parts)))
    return found
