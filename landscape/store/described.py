"""What the metadata documents of a landscape and of its arrays describe, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from landscape.core.errors import JobError, shown
from landscape.core.grid import AXIS_NAMES, Index
from landscape.core.validation import MAX_SIZE
from landscape.store.attributes import checked_layout, checked_record
from landscape.store.format import FORMER_PATH_MOMENT, SCHEMA_VERSION, expected_array
from landscape.store.metadata import BadMetadataError, StoredArray, checked_group
from landscape.surface.record import Record
from landscape.surface.surface import PATH_MOMENTS


@dataclass(frozen=True)
class Described:
    """What is known of a landscape from its document.

    Attributes:
        problems: what is wrong with its own file, a sentence each.
        mend: whether a driver must write the file anew.
        path: the folder in the store that it lies in, where that is not its name: it is getting another name.
    """

    record: Record
    problems: tuple[str, ...] = ()
    mend: bool = False
    path: str = ""


@dataclass(frozen=True)
class Expected:
    """The shape and the chunks that an array must have, as another array of the landscape has them."""

    shape: Index
    chunks: Index


@dataclass(frozen=True)
class DescribedArray:
    """An array as its document describes it.

    Attributes:
        problem: what is wrong with its own file, where the root's copy was read in its place; else empty.
    """

    array: StoredArray
    document: dict[str, Any]
    problem: str = ""


def landscape_of(document: Mapping[str, Any], name: str) -> tuple[Record, tuple[str, ...]]:
    """The checked record of a landscape, and the names of the entries left out.

    Raises:
        BadMetadataError: this software did not write it, or it is damaged.
        JobError: a newer version of this software wrote it.
    """
    attributes = checked_group(document)
    version = attributes.get("schema_version")
    if type(version) is not int or version < 1:
        raise BadMetadataError("schema_version: must be a whole number; this is no landscape of this software")
    if version > SCHEMA_VERSION:
        raise JobError(
            f"landscape {shown(name)} has schema version {shown(version)}, this software reads up to {SCHEMA_VERSION}; "
            "update it, or use another run"
        )
    return checked_record(attributes)


def as_expected(array: StoredArray, name: str, like: Expected | None, axes: tuple[str, ...] | None) -> StoredArray:
    """The same array, checked to be what its name promises.

    Raises:
        BadMetadataError: it is not; the message names the field.
    """
    if axes is None:
        axes = tuple(reversed(array.dimension_names))
        if axes != AXIS_NAMES[: len(axes)]:
            raise BadMetadataError(f"dimension_names: must be axes of a landscape, not {shown(array.dimension_names)}")
        if not all(1 <= n <= MAX_SIZE for n in array.shape):
            raise BadMetadataError(f"shape: must be 1 to {MAX_SIZE} points per axis, not {shown(array.shape)}")
    dtype, dimensions = expected_array(name, axes)
    if array.dtype.name != dtype:
        raise BadMetadataError(f"data_type: must be {dtype}, not {array.dtype.name}")
    if name == PATH_MOMENTS and array.dimension_names == (dimensions[0], FORMER_PATH_MOMENT):
        dimensions = array.dimension_names
    if array.dimension_names != dimensions or len(array.shape) != len(dimensions):
        raise BadMetadataError(f"dimension_names: must be {shown(dimensions)}, not {shown(array.dimension_names)}")
    if like is not None and (array.shape, array.chunks) != (like.shape, like.chunks):
        raise BadMetadataError(
            f"shape: must be {shown(like.shape)} in chunks of {shown(like.chunks)}, as the others tell, not "
            f"{shown(array.shape)} in {shown(array.chunks)}"
        )
    if name == "directions":
        if array.shape[0] != len(axes) or array.chunks[0] != 1:
            raise BadMetadataError(f"shape: must be one row for each of {len(axes)} axes, not {shown(array.shape)}")
        checked_layout(array.attributes, len(axes), array.shape[1])
    return array
