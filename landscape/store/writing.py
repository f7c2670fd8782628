"""Whole chunks of a landscape's arrays, written many at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray
from zarr.abc.store import Store
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

from landscape.grid import Index, tile_at
from landscape.store.codec import encode, is_plain

CONCURRENT = 32


def write_chunks(store: Store, chunks: Sequence[tuple[Any, Index, NDArray[Any]]]) -> None:
    """Write each array's chunk at an index; when this returns all of them are handed to the store."""
    plain = [each for each in chunks if is_plain(each[0])]
    sync(_write(store, plain))
    for array, index, values in chunks:
        if not is_plain(array):
            array[tile_at(index, array.shape, array.chunks).windows] = values


async def _write(store: Store, chunks: Sequence[tuple[Any, Index, NDArray[Any]]]) -> None:
    gate, buffer = asyncio.Semaphore(CONCURRENT), default_buffer_prototype().buffer

    async def one(array: Any, index: Index, values: NDArray[Any]) -> None:
        async with gate:
            key = f"{array.path}/{array.metadata.encode_chunk_key(index)}"
            await store.set(key, buffer.from_bytes(encode(array, values)))

    # All of them end before the first error is raised: nothing is written behind the caller's back.
    for error in await asyncio.gather(*(one(*each) for each in chunks), return_exceptions=True):
        if error is not None:
            raise error
