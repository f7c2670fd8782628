"""Named tensors of a member, in the format of safetensors, read into memory or mapped from a copy."""

from __future__ import annotations

import math
import mmap
import re
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from landscape.core.errors import JobError, one_line, shown
from landscape.core.validation import parse_json
from landscape.model.packed_file import Archive

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
    "C64": torch.complex64, "U16": torch.uint16, "U32": torch.uint32, "U64": torch.uint64,
}  # fmt: skip
TENSOR_NAME = re.compile(r"[^\x00-\x1f]{1,1000}")
LARGEST_HEADER = 100_000_000  # bytes, as safetensors allows


def read_tensors(archive: Archive, member: str, limit: int | None = None) -> dict[str, Tensor]:
    """The tensors of a member.

    Args:
        limit: bytes of a member above which they are mapped from a copy without a name, which nobody else can change;
            written to, they are pages of memory. Default: they are read into memory.

    Raises:
        JobError: the member is damaged, or its copy does not fit the disk.
    """
    size = archive.size_of(member)
    try:
        if limit is not None and size > limit:
            return _mapped(archive, member, size)
        with archive.reading(member) as read:
            begin, entries = _header(bytes(read.take(min(8, size))), size, read.take)
            tensors = {}
            for name, entry in sorted(entries.items(), key=lambda each: each[1]["data_offsets"]):
                shape, dtype = _layout(name, entry, size - begin)
                read.skip(begin + entry["data_offsets"][0] - (size - read.left))
                tensors[name] = tensor = torch.empty(shape, dtype=dtype)
                if tensor.numel():
                    read.into(tensor.reshape(-1).view(torch.uint8).numpy().data)
                _refuse_other_truths(name, tensor)
            return {name: tensors[name] for name in entries}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, RuntimeError) as error:
        if isinstance(error, JobError):
            raise
        raise archive.damaged(f"{shown(member)} holds no tensors: {str(error)[:80]}") from None


def _mapped(archive: Archive, member: str, size: int) -> dict[str, Tensor]:
    with tempfile.TemporaryFile() as copy:
        try:
            archive.copy(member, copy)
            copy.flush()
        except OSError as error:
            raise JobError(
                f"{archive.name}: {shown(member)} does not fit the folder {tempfile.gettempdir()} ({one_line(error)}); "
                "point TMPDIR at a larger disk, or ask for fewer num_samples"
            ) from None
        whole = memoryview(mmap.mmap(copy.fileno(), size, access=mmap.ACCESS_COPY))
    begin, entries = _header(bytes(whole[:8]), size, lambda count: whole[8 : 8 + count])
    tensors = {}
    for name, entry in entries.items():
        shape, dtype = _layout(name, entry, size - begin)
        count, start = math.prod(shape), begin + entry["data_offsets"][0]
        held = torch.frombuffer(whole, dtype=dtype, count=count, offset=start).view(shape) if count else None
        tensors[name] = torch.empty(shape, dtype=dtype) if held is None else held
        _refuse_other_truths(name, tensors[name])
    return tensors


def _refuse_other_truths(name: str, tensor: Tensor) -> None:
    """Refuse truth values whose bytes are neither 0 nor 1, which kernels take for places in tables."""
    if tensor.dtype == torch.bool and tensor.numel() and int(tensor.view(torch.uint8).max()) > 1:
        raise ValueError(f"truth values of {shown(name)} that are neither 0 nor 1")


def _header(first: bytes, size: int, take: Callable[[int], Any]) -> tuple[int, dict[str, Any]]:
    """Where the bytes of tensors begin, and the entry of each."""
    length = int.from_bytes(first, "little")
    if not 2 <= length <= min(LARGEST_HEADER, size - 8):
        raise ValueError(f"a header of {length} bytes")
    header = parse_json(bytes(take(length)))
    return 8 + length, {name: entry for name, entry in header.items() if name != "__metadata__"}


def _layout(name: str, entry: Mapping[str, Any], size: int) -> tuple[list[int], torch.dtype]:
    """The shape and the type of a tensor that lies within so many bytes."""
    if not TENSOR_NAME.fullmatch(name):
        raise ValueError("a name that no tensor has")
    dtype, shape, (first, last) = DTYPES[entry["dtype"]], entry["shape"], entry["data_offsets"]
    if not all(type(number) is int and number >= 0 for number in (*shape, first, last)):
        raise ValueError(f"sizes of {shown(name)} that are no numbers")
    if last - first != math.prod(shape) * dtype.itemsize or last > size:
        raise ValueError(f"{shown(name)} does not have the bytes of its shape")
    return shape, dtype
