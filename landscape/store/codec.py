"""Encodes a chunk to its bytes on disk and decodes it, to the same bytes as Zarr's own codecs.

Zarr runs every codec of every chunk through an event loop. For a chunk of some kilobytes the loop takes ten times as
long as the codec, and a landscape has thousands of chunks.
"""

from __future__ import annotations

from typing import Any

import google_crc32c
import numpy as np
from numcodecs.zstd import Zstd
from numpy.typing import NDArray

from landscape.core.grid import Index, tile_at
from landscape.store.metadata import StoredArray

CHECKSUM_BYTES = 4
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


class Damaged(Exception):
    """The bytes of a chunk are not those that were written."""


def encode(array: StoredArray, values: NDArray[Any]) -> bytes:
    """The bytes of a chunk; values of one that the array's end cuts off are padded with the fill value."""
    whole = np.full(array.chunks, array.fill_value, array.dtype)
    whole[tuple(map(slice, values.shape))] = values
    body = whole.tobytes() if array.level is None else bytes(Zstd(array.level, array.checksum).encode(whole))
    return body + _checksum(body)


def _checksum(body: bytes) -> bytes:
    return int(google_crc32c.value(body)).to_bytes(CHECKSUM_BYTES, "little")


def longest(array: StoredArray) -> int:
    """An upper bound of the bytes of an encoded chunk: a longer file was not written by this software."""
    return array.chunk_bytes + array.chunk_bytes // 128 + 1024


def decode(array: StoredArray, index: Index, data: bytes) -> NDArray[Any]:
    """The values of a chunk, cut off at the array's end.

    Raises:
        Damaged: its checksum fails, or it does not decode to the bytes of a chunk.
    """
    body, checksum = data[:-CHECKSUM_BYTES], data[-CHECKSUM_BYTES:]
    if len(data) > longest(array) or checksum != _checksum(body):
        raise Damaged
    plain = body if array.level is None else _decompressed(body, array.chunk_bytes)
    if len(plain) != array.chunk_bytes:
        raise Damaged
    whole = np.frombuffer(plain, array.dtype).reshape(array.chunks)
    return whole[tuple(map(slice, tile_at(index, array.shape, array.chunks).shape))]


def _decompressed(body: bytes, size: int) -> bytes:
    # A hostile chunk may have a right checksum and unpack to terabytes: the size that it declares is checked first.
    if _declared_size(body) != size:
        raise Damaged
    try:
        return bytes(Zstd().decode(body))
    except (ValueError, RuntimeError):
        raise Damaged from None


def _declared_size(body: bytes) -> int | None:
    """The bytes that a Zstd frame declares to unpack to (RFC 8878).

    None where it declares no size, or where the data are not exactly one frame.
    """
    if len(body) < 6 or body[:4] != ZSTD_MAGIC:
        return None
    flags, place = body[4], 5
    single = bool(flags & 0x20)
    place += (0 if single else 1) + (0, 1, 2, 4)[flags & 3]
    length = (1 if single else 0, 2, 4, 8)[flags >> 6]
    if length == 0:
        return None
    size = int.from_bytes(body[place : place + length], "little") + (256 if length == 2 else 0)
    place, last = place + length, False
    while not last and place + 3 <= len(body):
        header = int.from_bytes(body[place : place + 3], "little")
        last, run_length = bool(header & 1), (header >> 1) & 3 == 1
        place += 3 + (1 if run_length else header >> 3)
    return size if last and place + (4 if flags & 4 else 0) == len(body) else None
