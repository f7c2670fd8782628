"""Named tensors of a member, in the format of safetensors, mapped from the file or copied out of it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from landscape.errors import shown
from landscape.portable.archive import Archive

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
    "C64": torch.complex64, "U16": torch.uint16, "U32": torch.uint32, "U64": torch.uint64,
}  # fmt: skip
TENSOR_NAME = re.compile(r"[^\x00-\x1f]{1,1000}")
LARGEST_HEADER = 100_000_000  # bytes, as safetensors allows


def read_tensors(archive: Archive, member: str) -> dict[str, Tensor]:
    """The tensors of a member, whose memory is the file; written to, they are copies, and the file stays as it is.

    Raises:
        JobError: the member is damaged.
    """
    view = archive.bytes_of(member)
    try:
        length = int.from_bytes(view[:8], "little")
        if not 2 <= length <= min(LARGEST_HEADER, len(view) - 8):
            raise ValueError(f"a header of {length} bytes")
        header = json.loads(bytes(view[8 : 8 + length]))
        entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
        return {name: _tensor(view, 8 + length, name, entry) for name, entry in entries.items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, RuntimeError) as error:
        raise archive.damaged(f"{shown(member)} holds no tensors: {str(error)[:80]}") from None


def copied_tensors(archive: Archive, member: str) -> dict[str, Tensor]:
    """The tensors of a member in memory, which keep nothing of the file open.

    Raises:
        JobError: the member is damaged.
    """
    return {name: tensor.clone() for name, tensor in read_tensors(archive, member).items()}


def _tensor(view: memoryview, start: int, name: str, entry: Mapping[str, Any]) -> Tensor:
    if not TENSOR_NAME.fullmatch(name):
        raise ValueError("a name that no tensor has")
    dtype, shape, (first, last) = DTYPES[entry["dtype"]], entry["shape"], entry["data_offsets"]
    if not all(type(size) is int and size >= 0 for size in (*shape, first, last)):
        raise ValueError(f"sizes of {shown(name)} that are no numbers")
    count = math.prod(shape)
    if last - first != count * dtype.itemsize or start + last > len(view):
        raise ValueError(f"{shown(name)} does not have the bytes of its shape")
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(view, dtype=dtype, count=count, offset=start + first).view(shape)
