"""What a sample of any kind holds: its digest, its bytes and its NaN, by the values alone and not by their memory."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from landscape.core.errors import JobError, flat, one_line
from landscape.problem.batches import field_names
from landscape.problem.structure import ATOMS, dense_parts, dense_tensors_in

Part = str | np.ndarray
Parents = tuple[Any, ...]  # the objects that hold a value, from the outermost on


def parts_of(value: Any, parents: Parents = ()) -> Iterator[Part]:
    """The values that a structure holds, in a fixed order, each with words before it that say what it is.

    An object that is no known container is taken apart as `pickle` does it. Sets are sorted by the digests of their
    members, since their order differs from process to process.

    Raises:
        JobError: an object cannot be pickled.
    """
    if type(value) in ATOMS:
        yield f"{type(value).__name__} {value!r};"
        return
    if isinstance(value, Tensor):
        yield from _of_tensor(value)
        return
    if isinstance(value, np.ndarray):
        yield from _of_array(value, parents)
        return
    if isinstance(value, type) or (hasattr(value, "__qualname__") and hasattr(value, "__module__")):
        yield f"named {value.__module__}.{value.__qualname__};"
        return
    depth = next((depth for depth, parent in enumerate(parents) if parent is value), None)
    if depth is not None:
        yield f"again {depth};"
        return
    inner = (*parents, value)
    if isinstance(value, (set, frozenset)):
        yield f"{type(value).__name__} {' '.join(sorted(digest_of([member]) for member in value))};"
    elif type(value) is dict:
        yield from _of_members("dict", (part for pair in value.items() for part in pair), 2 * len(value), inner)
    elif type(value) in (list, tuple):
        yield from _of_members(type(value).__name__, value, len(value), inner)
    else:
        yield from _of_object(value, inner)


def _of_members(name: str, members: Iterable[Any], count: int, parents: Parents) -> Iterator[Part]:
    yield f"{name} {count};"
    for member in members:
        yield from parts_of(member, parents)


def _of_tensor(tensor: Tensor) -> Iterator[Part]:
    yield f"tensor {tensor.dtype} {len(dense_parts(tensor))};"
    for part in dense_parts(tensor):
        plain = part.detach().cpu().contiguous()
        yield f"{plain.dtype} {tuple(plain.shape)};"
        yield plain.reshape(-1).view(torch.uint8).numpy()


def _of_array(array: np.ndarray, parents: Parents) -> Iterator[Part]:
    yield f"array {array.dtype} {array.shape};"
    if array.dtype.hasobject:
        for member in array.reshape(-1).tolist():
            yield from parts_of(member, (*parents, array))
    else:
        yield np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)


def _of_object(value: Any, parents: Parents) -> Iterator[Part]:
    try:
        reduced = value.__reduce_ex__(4)
    except Exception as error:
        raise JobError(
            f"data: a sample holds {flat(type(value).__name__, 60)}, which cannot be pickled ({one_line(error)}); "
            "return tensors, arrays, numbers or plain objects"
        ) from None
    if isinstance(reduced, str):
        yield f"named {reduced};"
        return
    function, arguments, state, members, pairs = (*reduced, None, None, None)[:5]
    yield "object;"
    for part in (function, arguments, state):
        yield from parts_of(part, parents)
    yield from _of_members("members", (listed := list(members or ())), len(listed), parents)
    yield from _of_members("pairs", (paired := list(pairs or ())), len(paired), parents)


def digest_of(values: Iterable[Any]) -> str:
    """SHA-256 of all values in their order, in hexadecimal: the same in every process, whatever its hash seed."""
    hashed = hashlib.sha256()
    for value in values:
        for part in parts_of(value):
            hashed.update(part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part.data)
    return hashed.hexdigest()


def bytes_of(value: Any) -> int:
    """About how many bytes a sample takes: those of its tensors and arrays, and of its words and numbers."""
    return sum(part.nbytes if isinstance(part, np.ndarray) else len(part) for part in parts_of(value))


def fields_of(value: Any) -> dict[str, Any]:
    """The parts of a sample at its top level, by their names in words; the sample itself where it has none."""
    if isinstance(value, Mapping):
        return {flat(str(key), 60): member for key, member in value.items()}
    if isinstance(value, (tuple, list)):
        return dict(zip(field_names(value), value, strict=True))
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return {"samples": value}


def holds_not_finite(value: Any) -> bool:
    """Whether a tensor, array or number of a structure is NaN or infinite."""
    return any(not bool(torch.isfinite(numbers).all()) for numbers in _numbers_in(value))


def _numbers_in(value: Any) -> Iterator[Tensor]:
    """The floating-point numbers of a structure, as tensors."""
    if isinstance(value, float):
        yield torch.tensor(value)
    elif isinstance(value, np.ndarray):
        if value.dtype.kind in "fc":
            yield torch.from_numpy(np.ascontiguousarray(value).astype(np.complex128))
    elif isinstance(value, (tuple, list)):
        for member in value:
            yield from _numbers_in(member)
    elif type(value) is dict:
        yield from _numbers_in(list(value.values()))
    else:
        yield from (tensor for tensor in dense_tensors_in(value) if tensor.is_floating_point() or tensor.is_complex())
