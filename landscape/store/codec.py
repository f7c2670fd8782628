"""A chunk as its bytes on disk, and back: what Zarr's own codecs do, without its event loop.

Zarr sends every codec of every chunk through that loop, which for a chunk of some kilobytes costs ten times what the
codec does, and a landscape has thousands of chunks. The bytes are the same.
"""

from __future__ import annotations

from typing import Any

import google_crc32c
import numpy as np
from numcodecs.zstd import Zstd
from numpy.typing import NDArray

from landscape.grid import Index, tile_at
from landscape.store.metadata import StoredArray

CHECKSUM_BYTES = 4
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


class Damaged(Exception):
    """A chunk whose bytes are not those that were written."""


def encode(array: StoredArray, values: NDArray[Any]) -> bytes:
    """The bytes of a whole chunk; one that is cut off by the array's end is filled up."""
    whole = np.full(array.chunks, array.fill_value, array.dtype)
    whole[tuple(map(slice, values.shape))] = values
    body = whole.tobytes() if array.level is None else bytes(Zstd(array.level, array.checksum).encode(whole))
    return body + _checksum(body)


def _checksum(body: bytes) -> bytes:
    return int(google_crc32c.value(body)).to_bytes(CHECKSUM_BYTES, "little")


def longest(array: StoredArray) -> int:
    """Bytes that no chunk exceeds, however badly it compresses: those above them were not written here."""
    return array.chunk_bytes + array.chunk_bytes // 128 + 1024


def decode(array: StoredArray, index: Index, data: bytes) -> NDArray[Any]:
    """The values of a chunk, without what lies beyond the array's end.

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
    # The checksum is no proof against a chunk made to unpack to terabytes: what it declares is looked at first.
    if _declared_size(body) != size:
        raise Damaged
    try:
        return bytes(Zstd().decode(body))
    except (ValueError, RuntimeError):
        raise Damaged from None


def _declared_size(body: bytes) -> int | None:
    """What exactly one Zstd frame says it unpacks to (RFC 8878); None where it does not say, or more follows."""
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
