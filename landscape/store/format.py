"""The arrays of a landscape on disk: names, dimensions, chunks, codecs. A tile is a chunk; each ends in a CRC32C."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import google_crc32c
import numpy as np
from numcodecs.zstd import Zstd
from numpy.typing import NDArray
from zarr.abc.codec import Codec
from zarr.codecs import BytesCodec, Crc32cCodec, ZstdCodec
from zarr.core.buffer import default_buffer_prototype
from zarr.core.metadata.v3 import ArrayV3Metadata
from zarr.dtype import parse_dtype

from landscape.core.errors import quoted
from landscape.core.grid import Floats, Grid, Index, tile_at
from landscape.core.validation import RepeatedKey, parse_json
from landscape.job.directions.random import DrawnTensors
from landscape.model.run_files import depth_exceeds
from landscape.surface.record import plain
from landscape.surface.record_entries import PathRecord
from landscape.surface.surface import (
    INTERPOLATED,
    INTERPOLATION_ERROR,
    LOSS_SAMPLES,
    MOMENT_PARTS,
    MOMENTS,
    ORIGIN_SAMPLES,
    PATH_MOMENTS,
    RISE_STDERR,
    SAMPLE_INDEX,
    SAMPLE_WEIGHTS,
    SAMPLES_KNOWN,
)

if TYPE_CHECKING:
    from landscape.model.parameters import State


# ----------------------------------------------------------------------------------------------------
# Metadata are checked before anything relies on them: files on disk may be damaged or hostile. Zarr never parses a
# document that this process did not write: a codec may run code, and a shape may need all memory.

LARGEST_DOCUMENT = 64 << 20  # bytes: thousands of failures with their tracebacks, and a long layout
DEEPEST = 64
MOST_CHUNK_POINTS = 1 << 24
MOST_CHUNKS = 1 << 27
MOST_DIMENSIONS = 4  # three axes, and one of moments
DTYPES = {"float64": "<f8", "float32": "<f4", "int64": "<i8", "uint8": "|u1"}


class BadMetadataError(ValueError):
    """A document is damaged or foreign; the message is `field: must RULE, not VALUE`."""


@dataclass(frozen=True)
class StoredArray:
    """One array of a landscape as its metadata describe it.

    Attributes:
        path: its path in the store.
        level: the compression level of Zstd; None if chunks are not compressed.
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


def parse_metadata(data: bytes) -> dict[str, Any]:
    """A document as one JSON object.

    Raises:
        BadMetadataError: it is no JSON object, too long, or nested too deeply.
    """
    if len(data) > LARGEST_DOCUMENT:
        raise BadMetadataError(f"is longer than {LARGEST_DOCUMENT >> 20} MiB")
    if not data.strip():
        raise BadMetadataError("is empty")
    try:
        document = parse_json(data)
    except RepeatedKey as error:
        raise BadMetadataError(f"holds the key {quoted(error.key)} twice") from None
    except (ValueError, RecursionError):
        raise BadMetadataError("is not JSON, or is nested too deeply") from None
    if not isinstance(document, dict):
        raise BadMetadataError("must hold one JSON object")
    if depth_exceeds(document, DEEPEST):
        raise BadMetadataError(f"is nested deeper than {DEEPEST} levels")
    return document


def parse_group(document: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of a Zarr v3 group.

    Raises:
        BadMetadataError: the document describes something else.
    """
    _check_kind(document, "group")
    return _mapping(document.get("attributes", {}), "attributes")


def parse_array(document: Mapping[str, Any], path: str) -> StoredArray:
    """The array that a document describes.

    Raises:
        BadMetadataError: a field has a value that this software never writes; the message names the field.
    """
    _check_kind(document, "array")
    shape = _sizes(document.get("shape"), "shape", 0)
    grid = _configuration(document.get("chunk_grid"), "chunk_grid", "regular")
    chunks = _sizes(grid.get("chunk_shape"), "chunk_shape", 1)
    if len(chunks) != len(shape):
        raise BadMetadataError(f"chunk_shape: must have {len(shape)} numbers, not {len(chunks)}")
    if math.prod(chunks) > MOST_CHUNK_POINTS:
        raise BadMetadataError(f"chunk_shape: must hold at most {MOST_CHUNK_POINTS} points, not {quoted(list(chunks))}")
    if math.prod(-(-n // c) for n, c in zip(shape, chunks, strict=True)) > MOST_CHUNKS:
        raise BadMetadataError(f"shape: must make at most {MOST_CHUNKS} chunks, not {quoted(list(shape))}")
    keys = _configuration(document.get("chunk_key_encoding"), "chunk_key_encoding", "default")
    if keys.get("separator", "/") != "/":
        raise BadMetadataError("chunk_key_encoding: must separate by '/'")
    dtype = document.get("data_type")
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise BadMetadataError(f"data_type: must be one of {', '.join(DTYPES)}, not {quoted(dtype)}")
    fill = document.get("fill_value")
    if isinstance(fill, bool) or not (fill == 0 or (fill == "NaN" and dtype.startswith("float"))):
        raise BadMetadataError(f"fill_value: must be 0 or NaN, not {quoted(fill)}")
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
        raise BadMetadataError(f"zarr_format: must be 3, not {quoted(version)}")
    if document.get("node_type") != kind:
        raise BadMetadataError(f"node_type: must be {kind!r}, not {quoted(document.get('node_type'))}")


def _mapping(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadMetadataError(f"{name}: must be a JSON object, not {quoted(value)}")
    return value


def _configuration(value: Any, name: str, expected: str) -> dict[str, Any]:
    """The configuration of an extension of Zarr, such as a codec, which must have the expected name."""
    extension = _mapping(value, name)
    if extension.get("name") != expected:
        raise BadMetadataError(f"{name}: must be {expected!r}, not {quoted(extension.get('name'))}")
    return _mapping(extension.get("configuration", {}), f"{name}.configuration")


def _sizes(value: Any, name: str, least: int) -> Index:
    whole = isinstance(value, (list, tuple)) and all(
        isinstance(size, int) and not isinstance(size, bool) and least <= size < 1 << 48 for size in value
    )
    if not whole or not 1 <= len(value) <= MOST_DIMENSIONS:
        raise BadMetadataError(
            f"{name}: must be 1 to {MOST_DIMENSIONS} whole numbers from {least} on, not {quoted(value)}"
        )
    return tuple(value)


def _codecs(value: Any, dtype: str) -> tuple[int | None, bool]:
    """The level of Zstd, None without Zstd, and whether Zstd adds a checksum.

    Accepted are the codecs that this software writes: little-endian bytes, Zstd or not, then a CRC32C.
    """
    codecs = value if isinstance(value, (list, tuple)) else []
    names = [codec.get("name") if isinstance(codec, dict) else codec for codec in codecs]
    if names not in (["bytes", "crc32c"], ["bytes", "zstd", "crc32c"]):
        raise BadMetadataError(f"codecs: must be bytes, zstd and crc32c, as this software writes, not {quoted(names)}")
    order = _configuration(codecs[0], "codecs", "bytes")
    if order.get("endian", "little") != "little" and dtype != "uint8":
        raise BadMetadataError("codecs: bytes must be little-endian")
    if len(codecs) == 2:
        return None, False
    zstd = _configuration(codecs[1], "codecs", "zstd")
    level, checksum = zstd.get("level", 0), zstd.get("checksum", False)
    if not isinstance(level, int) or not -50 <= level <= 22 or not isinstance(checksum, bool):
        raise BadMetadataError("codecs: zstd must have a level from -50 to 22, and a checksum or not")
    return int(level), checksum


# ----------------------------------------------------------------------------------------------------

SCHEMA_VERSION = 1
DIRECTION_CHUNK = 1 << 24
# Names in the documents of the arrays.
LAYOUT, STORED = "layout", "stored"  # of `directions`: the places of the parameters, and which rows are written
UNIT, RUNS = "unit", "runs"  # of `path_step`, and of `path_run`
# xarray requires one length per dimension, and a path has moments of fewer rows than the grid.
PATH_MOMENT = "path_moment"  # the dimension of `path_moments`
NETWORK = "network"  # the unit if the arrays of the path hold the networks of a plane
MIXED = "mixed"  # the unit of several paths if some count steps and others epochs


@dataclass(frozen=True)
class PathPlan:
    """The places of the snapshots of a trajectory, or of the networks of a plane, before their losses are known.

    Attributes:
        run: for each snapshot, the index of its run in `runs`, if the job names `paths`; else both are empty.
    """

    unit: str
    step: tuple[int, ...]
    coordinates: Floats  # [snapshots, axes]
    distance: Floats
    run: tuple[int, ...] = ()
    runs: tuple[PathRecord, ...] = ()

    @property
    def labels(self) -> list[str]:
        """The names in figures of the runs in the job's `paths`; none for the run's own path."""
        return [run.label for run in self.runs if run.unit != NETWORK]


@dataclass(frozen=True)
class NewArrays:
    """All that the arrays of a new landscape are made from.

    Attributes:
        tile_shape: points per dimension of a tile, the last axis first.
        observables: their names, `loss` first.
        axes: the attributes of each axis's document; `record.AxisRecord` is a part of them.
        directions: the tensors of each axis.
        layout: the places of the parameters in a direction, from `layout` of `model/parameters.py`.
        path: the snapshots on the plane; None if the landscape has no path.
        moment_rows: the rows of the stored moments, see `evaluation.reduction`; empty if none are stored.
        sample_index: the places of the samples in the data, int64, in the order of the samples.
        kept_samples: the number of samples whose losses are stored; 0 if they are not.
        accurate: whether the landscape is computed to an accuracy, round by round.
    """

    grid: Grid
    tile_shape: Index
    observables: Sequence[str]
    axes: Sequence[Mapping[str, Any]]
    directions: Sequence[State]
    layout: Sequence[Mapping[str, Any]]
    path: PathPlan | None = None
    moment_rows: Sequence[str] = ()
    sample_index: NDArray[np.int64] | None = None
    kept_samples: int = 0
    accurate: bool = False


def path_moment_rows(moment_rows: Sequence[str]) -> list[str]:
    """The rows of moments along the path: for the loss or its terms, at the snapshots and at their projections.

    >>> path_moment_rows(["loss", "accuracy", "loss-rise"])
    ['loss', 'projected-loss']
    """
    names = [row.removesuffix("-rise") for row in moment_rows if row.endswith("-rise")]
    return [*names, *(f"projected-{name}" for name in names)]


def expected_array(name: str, axes: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """The type and the dimensions of an array by its name; unknown names are observables."""
    if name in axes:
        return "float64", (name,)
    if name == "directions":
        return "float32", ("axis", "parameter")
    if name == MOMENTS:
        return "float64", (*reversed(axes), "moment")
    if name == PATH_MOMENTS:
        return "float64", ("snapshot", PATH_MOMENT)
    if name == LOSS_SAMPLES:
        return "float32", (*reversed(axes), "sample")
    if name in (ORIGIN_SAMPLES, SAMPLE_WEIGHTS):
        return ("float32" if name == ORIGIN_SAMPLES else "float64"), ("sample",)
    if name == SAMPLE_INDEX:
        return "int64", ("sample",)
    if name == SAMPLES_KNOWN:
        return "int64", tuple(reversed(axes))
    if name in ("path_status", "path_step", "path_run"):
        return ("uint8" if name == "path_status" else "int64"), ("snapshot",)
    if name in (*(f"path_{axis}" for axis in axes), "path_distance", "path_loss", "path_projected_loss"):
        return "float64", ("snapshot",)
    return ("uint8" if name in ("status", INTERPOLATED) else "float64"), tuple(reversed(axes))


def parameter_layout(directions: StoredArray) -> list[dict[str, Any]]:
    """The place of each parameter in a row of the stored directions."""
    return list(directions.attributes[LAYOUT])


def rows_written(directions: StoredArray) -> list[bool]:
    """For each axis, whether its direction is stored as tensors, or else as its seed."""
    return list(directions.attributes[STORED])


def path_unit(steps: StoredArray) -> str:
    """The unit of the numbers of the snapshots; `NETWORK` if the arrays hold the networks of a plane."""
    unit = steps.attributes.get(UNIT)
    return str(unit) if unit in ("step", NETWORK, MIXED) else "epoch"


@dataclass(frozen=True)
class NewArray:
    """An array to make: its document as Zarr writes it, the same as checked, and the chunks that it begins with."""

    document: bytes
    stored: StoredArray
    chunks: Iterable[tuple[Index, NDArray[Any]]] = ()


def lay_out(path: str, new: NewArrays, *, of_level: bool = False) -> Iterator[NewArray]:
    """Every array of a landscape, with nothing computed.

    Args:
        path: of the landscape, or its level, in the store.
        of_level: whether to omit the arrays that a level of refinement shares with its landscape: samples, directions
            and path.
    """
    grid = new.grid
    for axis, coordinates, attributes in zip(grid.names, grid.coordinates, new.axes, strict=True):
        yield _whole(f"{path}/{axis}", coordinates, (axis,), attributes)
    over_grid = grid.shape, new.tile_shape, grid.dimensions
    for values in (*with_stderr(new.observables), RISE_STDERR):
        yield _empty(f"{path}/{values}", np.float64, np.nan, *over_grid)
    yield _empty(f"{path}/status", np.uint8, 0, *over_grid)
    if new.accurate:
        for name, dtype, fill in ACCURATE:
            yield _empty(f"{path}/{name}", dtype, fill, *over_grid)
    if new.moment_rows:
        yield _beside(f"{path}/{MOMENTS}", np.float64, over_grid, MOMENT_PARTS * len(new.moment_rows), "moment")
    if of_level:
        return
    if new.kept_samples:
        count, dimension = (new.kept_samples,), ("sample",)
        yield _beside(f"{path}/{LOSS_SAMPLES}", np.float32, over_grid, *count, *dimension)
        yield _empty(f"{path}/{ORIGIN_SAMPLES}", np.float32, np.nan, count, count, dimension)
        yield _empty(f"{path}/{SAMPLE_WEIGHTS}", np.float64, np.nan, count, count, dimension)
    if new.sample_index is not None:
        yield _whole(f"{path}/{SAMPLE_INDEX}", np.asarray(new.sample_index, np.int64), ("sample",))
    yield _directions(f"{path}/directions", new)
    if new.path is not None:
        tile_points = int(np.prod(new.tile_shape))
        yield from _along_path(f"{path}/path", grid, new.path, tile_points, len(path_moment_rows(new.moment_rows)))


def lay_out_round(
    path: str, plan: NDArray[np.int64], chunk: int, moments: int, samples: int, *, weighted: bool
) -> Iterator[NewArray]:
    """Every array of a round, with nothing computed.

    Args:
        path: of the round in the store.
        plan: [items, dimensions + 1], the place and the block of each item.
        moments, samples: how many moments and rises an item has.
    """
    over_items = (len(plan),), (chunk,), ("item",)
    yield _whole(f"{path}/plan", plan, ("item", "place_and_block"))
    yield _beside(f"{path}/moments", np.float64, over_items, moments, "moment")
    yield _beside(f"{path}/rises", np.float32, over_items, samples, "sample")
    if weighted:
        yield _beside(f"{path}/weights", np.float64, over_items, samples, "sample")
    yield _empty(f"{path}/status", np.uint8, 0, *over_items)


# The arrays of a landscape with an accuracy beside those of any landscape: name, type and fill value.
ACCURATE = ((INTERPOLATION_ERROR, np.float64, np.nan), (INTERPOLATED, np.uint8, 0), (SAMPLES_KNOWN, np.int64, 0))


def with_stderr(observables: Sequence[str]) -> Iterator[str]:
    """The names of the arrays of values: each observable, followed by its standard error."""
    for name in observables:
        yield name
        yield f"{name}_stderr"


def _empty(
    path: str, dtype: Any, fill: float, shape: Index, chunks: Index, dimensions: tuple[str, ...]
) -> NewArray:  # fmt: skip
    """An array without chunks, whose chunks are compressed."""
    return _new(path, dtype, fill, shape, chunks, dimensions, (ZstdCodec(level=1), Crc32cCodec()), {})


def _beside(
    path: str, dtype: Any, points: tuple[Index, Index, tuple[str, ...]], width: int, dimension: str
) -> NewArray:  # fmt: skip
    """An array without chunks that has so many values for each of the points."""
    shape, chunks, dimensions = points
    return _empty(path, dtype, np.nan, (*shape, width), (*chunks, width), (*dimensions, dimension))


def _whole(
    path: str, data: NDArray[Any], dimensions: tuple[str, ...], attributes: Mapping[str, Any] | None = None
) -> NewArray:
    """An array of one chunk, with its values."""
    chunks = tuple(max(1, n) for n in data.shape)
    made = _new(path, data.dtype, 0, data.shape, chunks, dimensions, (Crc32cCodec(),), attributes or {})
    return replace(made, chunks=[((0,) * data.ndim, data)] if data.size else ())


def _directions(path: str, new: NewArrays) -> NewArray:
    """The array of the directions, one row of all parameters per axis, with the rows that are stored.

    Tensors that are drawn when they are asked for are not stored: their seed is in the attributes of the axis.
    """
    from landscape.model.parameters import flat_pieces  # needs torch

    directions, layout = new.directions, new.layout
    size = sum(int(np.prod(place["shape"], dtype=np.int64)) for place in layout)
    stored = [not isinstance(direction, DrawnTensors) for direction in directions]
    width = min(max(size, 1), DIRECTION_CHUNK)
    made = _new(
        path, np.float32, 0, (len(directions), size), (1, width), ("axis", "parameter"), (Crc32cCodec(),),
        {LAYOUT: [dict(place) for place in layout], STORED: stored},
    )  # fmt: skip
    pieces = (
        ((k, n), piece[None])
        for k, direction in enumerate(directions) if stored[k]
        for n, piece in enumerate(flat_pieces(direction, layout, width))
    )  # fmt: skip
    return replace(made, chunks=pieces)


def _along_path(
    prefix: str, grid: Grid, path: PathPlan, tile_points: int, moment_rows: int
) -> Iterator[NewArray]:  # fmt: skip
    """The arrays of the path."""
    count, dimension = (len(path.step),), ("snapshot",)
    yield _whole(f"{prefix}_step", np.array(path.step, np.int64), dimension, {UNIT: path.unit})
    for k, axis in enumerate(grid.names):
        yield _whole(f"{prefix}_{axis}", np.ascontiguousarray(path.coordinates[:, k]), dimension)
    yield _whole(f"{prefix}_distance", np.asarray(path.distance, np.float64), dimension)
    if path.runs:
        yield _whole(f"{prefix}_run", np.array(path.run, np.int64), dimension, {RUNS: plain(path.runs)})
    # Few snapshots per chunk: each costs two evaluations, and its weights are sent to the worker.
    over_path = count, (max(1, min(*count, tile_points // 2, 8)),), dimension
    for name in ("loss", "projected_loss"):
        yield _empty(f"{prefix}_{name}", np.float64, np.nan, *over_path)
    if moment_rows:
        yield _beside(f"{prefix}_moments", np.float64, over_path, MOMENT_PARTS * moment_rows, PATH_MOMENT)
    yield _empty(f"{prefix}_status", np.uint8, 0, *over_path)


def _new(
    path: str, dtype: Any, fill: float, shape: Index, chunks: Index, dimensions: tuple[str, ...],
    codecs: Sequence[Codec], attributes: Mapping[str, Any],
) -> NewArray:  # fmt: skip
    # By Zarr's own document, but not by its `create_array`, which takes ten times as long.
    metadata = ArrayV3Metadata(
        shape=shape,
        data_type=parse_dtype(np.dtype(dtype), zarr_format=3),
        chunk_grid={"name": "regular", "configuration": {"chunk_shape": chunks}},
        chunk_key_encoding={"name": "default", "configuration": {"separator": "/"}},
        fill_value=fill,
        codecs=[BytesCodec(endian=None if np.dtype(dtype).itemsize == 1 else "little"), *codecs],
        attributes=dict(attributes),
        dimension_names=dimensions,
    )
    document = metadata.to_buffer_dict(default_buffer_prototype())["zarr.json"].to_bytes()
    return NewArray(document, parse_array(parse_metadata(document), path))


# ----------------------------------------------------------------------------------------------------
# Chunks encoded to the bytes of Zarr's own codecs, and decoded. Zarr runs every codec of every chunk through an event
# loop. For a chunk of some kilobytes this takes ten times as long as the codec, and a landscape has thousands.

CHECKSUM_BYTES = 4
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


class Damaged(Exception):
    """The bytes of a chunk are not those that were written."""


def encode(array: StoredArray, values: NDArray[Any]) -> bytes:
    """The bytes of a chunk; a chunk cut off by the array's end is padded with the fill value."""
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
        Damaged: its checksum fails, or its bytes do not decode to a chunk.
    """
    body, checksum = data[:-CHECKSUM_BYTES], data[-CHECKSUM_BYTES:]
    if len(data) > longest(array) or checksum != _checksum(body):
        raise Damaged
    plain = body if array.level is None else _decompress(body, array.chunk_bytes)
    if len(plain) != array.chunk_bytes:
        raise Damaged
    whole = np.frombuffer(plain, array.dtype).reshape(array.chunks)
    return whole[tuple(map(slice, tile_at(index, array.shape, array.chunks).shape))]


def _decompress(body: bytes, size: int) -> bytes:
    # A hostile chunk may have a valid checksum and unpack to terabytes: check its declared size first.
    if _declared_size(body) != size:
        raise Damaged
    try:
        return bytes(Zstd().decode(body))
    except (ValueError, RuntimeError):
        raise Damaged from None


def _declared_size(body: bytes) -> int | None:
    """The unpacked size that a Zstd frame declares (RFC 8878).

    None if it declares no size, or if the data are not exactly one frame.
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
