"""Batches of samples: their structure, their length, their digest; joined and split.

A batch is a tensor, or tuples, lists and dicts of tensors that share their first dimension, the samples.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from landscape.errors import JobError, flat, one_line

Batch = Any

LOOKED_AT_ONCE = 1 << 26  # bytes


def map_tensors(function: Callable[[Tensor], Tensor], batch: Batch) -> Batch:
    """Apply `function` to every tensor of a batch and keep its structure."""
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
    """The tensors of a batch in a fixed order."""
    found: list[Tensor] = []
    map_tensors(lambda tensor: found.append(tensor) or tensor, batch)  # type: ignore[func-returns-value]
    return found


def batch_length(batch: Batch) -> int:
    """How many samples a batch holds: the one first dimension of its tensors."""
    lengths = {tensor.shape[0] if tensor.dim() else None for tensor in tensors_of(batch)}
    if len(lengths) != 1 or None in lengths:
        shapes = [tuple(tensor.shape) for tensor in tensors_of(batch)]
        raise JobError(
            f"data: all tensors of a batch must share their first dimension, the samples; got shapes {shapes}"
        )
    return int(lengths.pop() or 0)


def batch_bytes(batch: Batch) -> int:
    """How much memory the tensors of a batch take."""
    return sum(tensor.nbytes for tensor in tensors_of(batch))


def empty_like(batch: Batch) -> Batch:
    """A batch of no samples, as a record of the structure."""
    return map_tensors(lambda tensor: tensor[:0].clone(), batch)


def filled(like: Batch, tensors: Iterable[Tensor]) -> Batch:
    """These tensors in the structure of a batch."""
    rest = iter(tensors)
    return map_tensors(lambda _: next(rest), like)


def concatenate(batches: Sequence[Batch]) -> Batch:
    """The samples of batches of one structure, one batch after the other."""
    like = batches[0]
    columns = zip(*(tensors_of(in_order(like, each)) for each in batches), strict=True)
    try:
        return filled(like, [torch.cat(column).contiguous() for column in columns])
    except RuntimeError as error:
        raise JobError(f"data: batches must have samples of one shape to be joined: {one_line(error)}") from None


def in_order(like: Batch, batch: Batch) -> Batch:
    """A batch in the structure of another one, the order of its keys included."""
    if isinstance(like, Tensor) and isinstance(batch, Tensor):
        return batch
    if isinstance(like, Mapping) and isinstance(batch, Mapping) and set(like) == set(batch):
        return {key: in_order(value, batch[key]) for key, value in like.items()}
    if isinstance(like, (tuple, list)) and type(like) is type(batch) and len(like) == len(batch):
        found = [in_order(*pair) for pair in zip(like, batch, strict=True)]
        return type(like)(*found) if hasattr(like, "_fields") else type(like)(found)
    raise JobError(
        f"data: batches must have one structure to be joined, not {type(like).__name__} and {type(batch).__name__} "
        "with other keys or lengths"
    )


def not_finite(samples: Batch) -> dict[str, int]:
    """How many samples hold NaN or infinity, by the field that does: 'targets (field 1)', a key of a dict."""
    found = {name: sum(map(_rows_not_finite, tensors_of(field))) for name, field in _fields(samples)}
    return {name: count for name, count in found.items() if count}


def _fields(batch: Batch) -> Iterator[tuple[str, Batch]]:
    if isinstance(batch, Mapping):
        yield from ((flat(str(key), 60), value) for key, value in batch.items())
    elif isinstance(batch, (tuple, list)):
        yield from zip(field_names(batch), batch, strict=True)
    else:
        yield "samples", batch


def field_names(batch: Sequence[Any]) -> list[str]:
    """What the fields of a tuple are called in words: 'inputs (field 0)', 'field 2'."""
    names = getattr(batch, "_fields", ("inputs", "targets") if len(batch) == 2 else ())
    return [f"{names[k]} (field {k})" if names else f"field {k}" for k in range(len(batch))]


def _rows_not_finite(tensor: Tensor) -> int:
    if not (tensor.is_floating_point() or tensor.is_complex()) or not tensor.numel():
        return 0
    # A part at a time: they may be mapped files that memory does not hold.
    step = max(1, LOOKED_AT_ONCE * len(tensor) // tensor.nbytes)
    parts = (tensor[start : start + step].reshape(-1, tensor[0].numel()) for start in range(0, len(tensor), step))
    return sum(int((~torch.isfinite(part)).any(1).sum()) for part in parts)


def samples_digest(samples: Batch) -> str:
    """SHA-256 over shape, type and bytes of the chosen samples."""
    found = hashlib.sha256()
    for tensor in tensors_of(samples):
        found.update(f"{tensor.dtype} {tuple(tensor.shape)};".encode())
        found.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def split_batches(samples: Batch, batch_size: int) -> list[Batch]:
    """All samples in consecutive batches, see `batch_edges`: views."""
    return [
        map_tensors(lambda tensor, a=a, b=b: tensor[a:b], samples)  # type: ignore[misc]
        for a, b in batch_edges(batch_length(samples), batch_size)
    ]


def batch_edges(count: int, batch_size: int) -> list[tuple[int, int]]:
    """Where batches of at most `batch_size` begin and end, their sizes differing by one at most."""
    parts = -(-count // batch_size)
    return list(itertools.pairwise(count * part // parts for part in range(parts + 1)))
