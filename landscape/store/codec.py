"""A chunk as its bytes on disk, and back: what Zarr's own codecs do, without its event loop.

Zarr sends every codec of every chunk through that loop, which for a chunk of some kilobytes costs ten times what the
codec does, and a landscape has thousands of chunks. The bytes are the same; arrays with other codecs are left to Zarr.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import google_crc32c
import numpy as np
from numcodecs.zstd import Zstd
from numpy.typing import NDArray
from zarr.codecs import BytesCodec, Crc32cCodec, ZstdCodec

from landscape.grid import Index, tile_at

CHECKSUM_BYTES = 4


class Damaged(Exception):
    """A chunk whose bytes are not those that were written."""


def is_plain(array: Any) -> bool:
    """Whether an array has the codecs that this module knows: little-endian bytes, Zstd or not, CRC32C."""
    first, *rest = array.metadata.codecs
    little = isinstance(first, BytesCodec) and getattr(first.endian, "value", "little") == "little"
    return little and [type(codec) for codec in rest] in ([ZstdCodec, Crc32cCodec], [Crc32cCodec])


def encode(array: Any, values: NDArray[Any]) -> bytes:
    """The bytes of a whole chunk; one that is cut off by the array's end is filled up."""
    whole = np.full(array.chunks, array.fill_value, array.dtype.newbyteorder("<"))
    whole[tuple(map(slice, values.shape))] = values
    body = _compressed(array.metadata.codecs, whole)
    return body + _checksum(body)


def _checksum(body: bytes) -> bytes:
    return int(google_crc32c.value(body)).to_bytes(CHECKSUM_BYTES, "little")


def _compressed(codecs: Sequence[Any], whole: NDArray[Any]) -> bytes:
    if not isinstance(codecs[1], ZstdCodec):
        return whole.tobytes()
    return bytes(Zstd(codecs[1].level, codecs[1].checksum).encode(whole))


def decode(array: Any, index: Index, data: bytes) -> NDArray[Any]:
    """The values of a chunk, without what lies beyond the array's end.

    Raises:
        Damaged: its checksum fails, or it does not decode.
    """
    body, checksum = data[:-CHECKSUM_BYTES], data[-CHECKSUM_BYTES:]
    if checksum != _checksum(body):
        raise Damaged
    try:
        plain = Zstd().decode(body) if isinstance(array.metadata.codecs[1], ZstdCodec) else body
        whole = np.frombuffer(plain, array.dtype.newbyteorder("<")).reshape(array.chunks)
    except (ValueError, RuntimeError):
        raise Damaged from None
    return whole[tuple(map(slice, tile_at(index, array.shape, array.chunks).shape))]
