"""Whole chunks of a landscape's arrays, written many at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray
from zarr.abc.store import Store
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

from landscape.core.grid import Index
from landscape.store.codec import encode
from landscape.store.metadata import StoredArray

CONCURRENT = 32


def write_chunks(store: Store, chunks: Sequence[tuple[StoredArray, Index, NDArray[Any]]]) -> None:
    """Write each array's chunk at an index; when this returns all of them are handed to the store."""
    sync(_write(store, chunks))


def write_document(store: Store, key: str, data: bytes) -> None:
    """Write one metadata document whole."""
    sync(store.set(key, default_buffer_prototype().buffer.from_bytes(data)))


async def _write(store: Store, chunks: Sequence[tuple[StoredArray, Index, NDArray[Any]]]) -> None:
    gate, buffer = asyncio.Semaphore(CONCURRENT), default_buffer_prototype().buffer

    async def one(array: StoredArray, index: Index, values: NDArray[Any]) -> None:
        async with gate:
            await store.set(array.key(index), buffer.from_bytes(encode(array, values)))

    # All of them end before the first error is raised: nothing is written behind the caller's back.
    for error in await asyncio.gather(*(one(*each) for each in chunks), return_exceptions=True):
        if error is not None:
            raise error
