"""The metadata of a store, checked before anything relies on them, since files on disk may be damaged or hostile.

Zarr itself never parses a document that this process did not write: a codec may run code, and a shape may ask for all
memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from landscape.core.errors import shown
from landscape.core.grid import Index
from landscape.core.validation import RepeatedKey, parse_json

LARGEST_DOCUMENT = 64 << 20  # bytes: thousands of failures with their tracebacks, and a long layout
DEEPEST = 64
MOST_CHUNK_POINTS = 1 << 24
MOST_CHUNKS = 1 << 27
MOST_DIMENSIONS = 4  # three axes, and one of moments
DTYPES = {"float64": "<f8", "float32": "<f4", "int64": "<i8", "uint8": "|u1"}


class BadMetadataError(ValueError):
    """A document is damaged or not ours; the message says where, as `field: must RULE, not VALUE`."""


@dataclass(frozen=True)
class StoredArray:
    """One array of a landscape as its metadata describe it.

    Attributes:
        path: where it lies in the store.
        level: the compression level of Zstd; None where chunks are not compressed.
        checksum: whether Zstd adds a checksum of its own.
    """

    path: str
    shape: Index
    chunks: Index
    dtype: np.dtype[Any]
    fill_value: float
    dimension_names: tuple[str, ...]
    level: int | None = None
    checksum: bool = False
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def chunk_bytes(self) -> int:
        """Bytes of the values of one chunk, uncompressed."""
        return math.prod(self.chunks) * self.dtype.itemsize

    def key(self, index: Index) -> str:
        """The key of a chunk in the store, by its index."""
        return f"{self.path}/c/{'/'.join(map(str, index))}"


def parse(data: bytes) -> dict[str, Any]:
    """A document as one JSON object, refused where it is too long or nested too deeply to be handled safely.

    Raises:
        BadMetadataError: it is refused, or is no JSON object.
    """
    if len(data) > LARGEST_DOCUMENT:
        raise BadMetadataError(f"is longer than {LARGEST_DOCUMENT >> 20} MiB")
    if not data.strip():
        raise BadMetadataError("is empty")
    try:
        document = parse_json(data)
    except RepeatedKey as error:
        raise BadMetadataError(f"holds the key {shown(error.key)} twice") from None
    except (ValueError, RecursionError):
        raise BadMetadataError("is not JSON, or is nested too deeply") from None
    if not isinstance(document, dict):
        raise BadMetadataError("must hold one JSON object")
    _refuse_deep(document)
    return document


def _refuse_deep(document: Any) -> None:
    level = [document]
    for _ in range(DEEPEST):
        inner = (list(value.values()) if isinstance(value, dict) else value for value in level)
        level = [value for values in inner for value in values if isinstance(value, (dict, list))]
        if not level:
            return
    raise BadMetadataError(f"is nested deeper than {DEEPEST} levels")


def checked_group(document: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of a Zarr v3 group.

    Raises:
        BadMetadataError: the document describes something else.
    """
    _check_kind(document, "group")
    return _mapping(document.get("attributes", {}), "attributes")


def checked_array(document: Mapping[str, Any], path: str) -> StoredArray:
    """The array that a document describes; each of its properties must be one that this project writes.

    Raises:
        BadMetadataError: a property is another one; the message names the field.
    """
    _check_kind(document, "array")
    shape = _sizes(document, document.get("shape"), "shape", 0)
    _, grid = _named(document.get("chunk_grid"), "chunk_grid", "regular")
    chunks = _sizes(document, grid.get("chunk_shape"), "chunk_shape", 1)
    if len(chunks) != len(shape):
        raise BadMetadataError(f"chunk_shape: must have {len(shape)} numbers, not {len(chunks)}")
    if math.prod(chunks) > MOST_CHUNK_POINTS:
        raise BadMetadataError(f"chunk_shape: must hold at most {MOST_CHUNK_POINTS} points, not {shown(list(chunks))}")
    if math.prod(-(-n // c) for n, c in zip(shape, chunks, strict=True)) > MOST_CHUNKS:
        raise BadMetadataError(f"shape: must make at most {MOST_CHUNKS} chunks, not {shown(list(shape))}")
    _, separator = _named(document.get("chunk_key_encoding"), "chunk_key_encoding", "default")
    if separator.get("separator", "/") != "/":
        raise BadMetadataError("chunk_key_encoding: must separate by '/'")
    dtype = _one_of(document, "data_type", DTYPES)
    fill = document.get("fill_value")
    if isinstance(fill, bool) or not (fill == 0 or (fill == "NaN" and dtype.startswith("float"))):
        raise BadMetadataError(f"fill_value: must be 0 or NaN, not {shown(fill)}")
    if document.get("storage_transformers") not in (None, [], ()):
        raise BadMetadataError("storage_transformers: must be empty")
    level, checksum = _codecs(document.get("codecs"), dtype)
    dimensions = document.get("dimension_names")
    if not isinstance(dimensions, (list, tuple)) or not all(isinstance(name, str) for name in dimensions):
        raise BadMetadataError("dimension_names: must be a list of names")
    attributes = _mapping(document.get("attributes", {}), "attributes")
    return StoredArray(
        path, shape, chunks, np.dtype(DTYPES[dtype]), float("nan") if fill == "NaN" else 0.0, tuple(dimensions),
        level, checksum, attributes,
    )  # fmt: skip


def _check_kind(document: Mapping[str, Any], kind: str) -> None:
    version = document.get("zarr_format")
    if version != 3 or isinstance(version, bool):
        raise BadMetadataError(f"zarr_format: must be 3, not {shown(version)}")
    if document.get("node_type") != kind:
        raise BadMetadataError(f"node_type: must be {kind!r}, not {shown(document.get('node_type'))}")


def _mapping(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadMetadataError(f"{name}: must be a JSON object, not {shown(value)}")
    return value


def _named(value: Any, name: str, expected: str) -> tuple[str, dict[str, Any]]:
    """The name and the configuration of an extension of Zarr, such as a codec, which must be the expected one."""
    extension = _mapping(value, name)
    if extension.get("name") != expected:
        raise BadMetadataError(f"{name}: must be {expected!r}, not {shown(extension.get('name'))}")
    return expected, _mapping(extension.get("configuration", {}), f"{name}.configuration")


def _sizes(document: Mapping[str, Any], value: Any, name: str, least: int) -> Index:
    whole = isinstance(value, (list, tuple)) and all(
        isinstance(size, int) and not isinstance(size, bool) and least <= size < 1 << 48 for size in value
    )
    if not whole or not 1 <= len(value) <= MOST_DIMENSIONS:
        raise BadMetadataError(
            f"{name}: must be 1 to {MOST_DIMENSIONS} whole numbers from {least} on, not {shown(value)}"
        )
    return tuple(value)


def _one_of(document: Mapping[str, Any], name: str, known: Mapping[str, Any]) -> str:
    value = document.get(name)
    if not isinstance(value, str) or value not in known:
        raise BadMetadataError(f"{name}: must be one of {', '.join(known)}, not {shown(value)}")
    return value


def _codecs(value: Any, dtype: str) -> tuple[int | None, bool]:
    """The level of Zstd, None where it is not used, and whether Zstd adds a checksum.

    This software writes little-endian bytes, with or without Zstd, then a CRC32C; all else is refused.
    """
    codecs = value if isinstance(value, (list, tuple)) else []
    names = [codec.get("name") if isinstance(codec, dict) else codec for codec in codecs]
    if names not in (["bytes", "crc32c"], ["bytes", "zstd", "crc32c"]):
        raise BadMetadataError(f"codecs: must be bytes, zstd and crc32c, as this software writes, not {shown(names)}")
    _, order = _named(codecs[0], "codecs", "bytes")
    if order.get("endian", "little") != "little" and dtype != "uint8":
        raise BadMetadataError("codecs: bytes must be little-endian")
    if len(codecs) == 2:
        return None, False
    _, zstd = _named(codecs[1], "codecs", "zstd")
    level, checksum = zstd.get("level", 0), zstd.get("checksum", False)
    if not isinstance(level, int) or not -50 <= level <= 22 or not isinstance(checksum, bool):
        raise BadMetadataError("codecs: zstd must have a level from -50 to 22, and a checksum or not")
    return int(level), checksum
