"""Batches of samples: their structure, length and digest, and how they are joined and split.

A batch is a tensor, or tuples, lists and dicts of tensors; all its tensors share their first dimension, the samples.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from landscape.core.errors import JobError, flat, one_line

Batch = Any

CHECKED_AT_ONCE = 1 << 26  # bytes of a tensor that are searched for NaN at a time


def map_tensors(function: Callable[[Tensor], Tensor], batch: Batch) -> Batch:
    """Apply `function` to every tensor of a batch and keep its structure.

    Example:
        >>> batch = (torch.zeros(4, 2), {"labels": torch.ones(4)})
        >>> map_tensors(lambda tensor: tensor[:1], batch)
        (tensor([[0., 0.]]), {'labels': tensor([1.])})

    Raises:
        JobError: it holds something that is neither a tensor nor a tuple, list or dict.
    """
    if isinstance(batch, Tensor):
        return function(batch)
    if isinstance(batch, Mapping):
        return {key: map_tensors(function, value) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(map_tensors(function, value) for value in batch))
    if isinstance(batch, (tuple, list)):
        return type(batch)(map_tensors(function, value) for value in batch)
    raise JobError(f"data: batches must hold tensors in tuples, lists and dicts, not {type(batch).__name__}")


def tensors_of(batch: Batch) -> list[Tensor]:
    """The tensors of a batch, in the order in which `map_tensors` visits them."""
    tensors: list[Tensor] = []
    map_tensors(lambda tensor: tensors.append(tensor) or tensor, batch)  # type: ignore[func-returns-value]
    return tensors


def batch_length(batch: Batch) -> int:
    """How many samples a batch holds: the first dimension that all its tensors share.

    Raises:
        JobError: they do not share it, or the batch holds no tensor.
    """
    lengths = {tensor.shape[0] if tensor.dim() else None for tensor in tensors_of(batch)}
    if len(lengths) != 1 or None in lengths:
        shapes = [tuple(tensor.shape) for tensor in tensors_of(batch)]
        raise JobError(
            f"data: all tensors of a batch must share their first dimension, the samples; got shapes {shapes}"
        )
    return int(lengths.pop() or 0)


def batch_bytes(batch: Batch) -> int:
    """How many bytes the tensors of a batch take."""
    return sum(tensor.nbytes for tensor in tensors_of(batch))


def empty_like(batch: Batch) -> Batch:
    """A batch of no samples, which keeps the structure, types and shapes of this one."""
    return map_tensors(lambda tensor: tensor[:0].clone(), batch)


def filled(like: Batch, tensors: Iterable[Tensor]) -> Batch:
    """These tensors, in the order of `tensors_of`, in the structure of the batch `like`."""
    rest = iter(tensors)
    return map_tensors(lambda _: next(rest), like)


def concatenate(batches: Sequence[Batch]) -> Batch:
    """The samples of several batches as one batch, one batch after the other.

    Raises:
        JobError: the batches differ in structure, or in the shapes of their samples.
    """
    like = batches[0]
    columns = zip(*(tensors_of(in_order(like, batch)) for batch in batches), strict=True)
    try:
        return filled(like, [torch.cat(column).contiguous() for column in columns])
    except RuntimeError as error:
        raise JobError(f"data: batches must have samples of one shape to be joined: {one_line(error)}") from None


def in_order(like: Batch, batch: Batch) -> Batch:
    """The batch with the keys of its dicts in the order that they have in `like`.

    Raises:
        JobError: the two differ in structure.
    """
    if isinstance(like, Tensor) and isinstance(batch, Tensor):
        return batch
    if isinstance(like, Mapping) and isinstance(batch, Mapping) and set(like) == set(batch):
        return {key: in_order(value, batch[key]) for key, value in like.items()}
    if isinstance(like, (tuple, list)) and type(like) is type(batch) and len(like) == len(batch):
        fields = [in_order(*pair) for pair in zip(like, batch, strict=True)]
        return type(like)(*fields) if hasattr(like, "_fields") else type(like)(fields)
    raise JobError(
        f"data: batches must have one structure to be joined, not {type(like).__name__} and {type(batch).__name__} "
        "with other keys or lengths"
    )


def not_finite(samples: Batch) -> dict[str, int]:
    """How many samples hold NaN or infinity, for each field that has such samples.

    Example:
        >>> not_finite((torch.tensor([1.0, float("nan")]), torch.tensor([0, 1])))
        {'inputs (field 0)': 1}
    """
    counts = {name: sum(map(_rows_not_finite, tensors_of(field))) for name, field in _fields(samples)}
    return {name: count for name, count in counts.items() if count}


def _fields(batch: Batch) -> Iterator[tuple[str, Batch]]:
    """The parts of a batch at its top level, each with its name in words."""
    if isinstance(batch, Mapping):
        yield from ((flat(str(key), 60), value) for key, value in batch.items())
    elif isinstance(batch, (tuple, list)):
        yield from zip(field_names(batch), batch, strict=True)
    else:
        yield "samples", batch


def field_names(batch: Sequence[Any]) -> list[str]:
    """The names of a tuple's fields, in words: 'inputs (field 0)' and 'targets (field 1)' of a pair, else 'field 2'."""
    names = getattr(batch, "_fields", ("inputs", "targets") if len(batch) == 2 else ())
    return [f"{names[k]} (field {k})" if names else f"field {k}" for k in range(len(batch))]


def _rows_not_finite(tensor: Tensor) -> int:
    if not (tensor.is_floating_point() or tensor.is_complex()) or not tensor.numel():
        return 0
    # Only a part at a time, since the tensor may be a mapped file that is larger than the memory.
    step = max(1, CHECKED_AT_ONCE * len(tensor) // tensor.nbytes)
    parts = (tensor[start : start + step].reshape(-1, tensor[0].numel()) for start in range(0, len(tensor), step))
    return sum(int((~torch.isfinite(part)).any(1).sum()) for part in parts)


def samples_digest(samples: Batch) -> str:
    """SHA-256 over the type, shape and bytes of every tensor, in hexadecimal."""
    hashed = hashlib.sha256()
    for tensor in tensors_of(samples):
        hashed.update(f"{tensor.dtype} {tuple(tensor.shape)};".encode())
        hashed.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return hashed.hexdigest()


def split_batches(samples: Batch, batch_size: int) -> list[Batch]:
    """All samples in consecutive batches, cut at `batch_edges`; their tensors are views."""
    return [
        map_tensors(lambda tensor, a=a, b=b: tensor[a:b], samples)  # type: ignore[misc]
        for a, b in batch_edges(batch_length(samples), batch_size)
    ]


def batch_edges(count: int, batch_size: int) -> list[tuple[int, int]]:
    """Where the batches of `count` samples begin and end: at most `batch_size` each, sizes differing by at most one.

    Example:
        >>> batch_edges(10, 4)
        [(0, 3), (3, 6), (6, 10)]
    """
    parts = -(-count // batch_size)
    return list(itertools.pairwise(count * part // parts for part in range(parts + 1)))
