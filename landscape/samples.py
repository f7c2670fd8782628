"""The fixed choice of samples: by the seed alone, from tensors, data sets and iterables; and batches of them.

A batch is a tensor, or tuples, lists and dicts of tensors that share their first dimension, the samples.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, SubsetRandomSampler, default_collate

from landscape.errors import JobError, one_line

Batch = Any


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


def select_samples(data: Any, num_samples: int, seed: int, *, at_most: bool = False) -> Batch:
    """Choose `num_samples` different samples by the seed alone and return them as one batch on the CPU.

    Tensors and map-style data sets keep the samples' order in the data. An iterable is read once, batch by
    batch, and only the chosen samples are kept: each sample gets a uniform key and the smallest keys win.

    Args:
        at_most: take all there are where `num_samples` is more; otherwise that is refused.

    Raises:
        JobError: there are fewer samples than asked for, or the data is none of the known kinds.
    """
    if isinstance(data, DataLoader):
        return _from_loader(data, num_samples, seed, at_most)
    if isinstance(data, IterableDataset):
        raise JobError(
            f"data: {type(data).__name__} yields samples without a number; wrap it in a DataLoader, which makes batches"
        )
    if isinstance(data, (Tensor, tuple, Mapping)) or _is_list_of_tensors(data):
        data = map_tensors(lambda tensor: tensor.detach().cpu(), _numpy_to_tensors(data))
        index = _choose(batch_length(data), num_samples, seed, at_most)
        return map_tensors(lambda tensor: tensor[index].contiguous(), data)
    if isinstance(data, Dataset) or (
        hasattr(data, "__getitem__") and hasattr(data, "__len__") and not _holds_batches(data)
    ):
        return _from_dataset(data, num_samples, seed, at_most, default_collate)
    if isinstance(data, Iterable):
        return _from_batches(data, num_samples, seed, at_most)
    raise JobError(f"data: must be tensors, a map-style Dataset or an iterable of batches, not {type(data).__name__}")


def _is_list_of_tensors(data: Any) -> bool:
    return (
        isinstance(data, list)
        and bool(data)
        and all(isinstance(each, Tensor) for each in data)
        and (len({each.shape[:1] for each in data}) == 1 and len(data) <= 8)
    )


def _holds_batches(data: Any) -> bool:
    """Whether a plain list holds batches (tuples of tensors with a sample dimension) rather than samples."""
    return (
        isinstance(data, list)
        and bool(data)
        and any(tensor.dim() > 0 for tensor in tensors_of(_numpy_to_tensors(data[0])))
    )


def _numpy_to_tensors(data: Any) -> Any:
    if isinstance(data, np.ndarray):
        return torch.from_numpy(data)
    if isinstance(data, Mapping):
        return {key: _numpy_to_tensors(value) for key, value in data.items()}
    return type(data)(_numpy_to_tensors(each) for each in data) if type(data) in (tuple, list) else data


def _choose(available: int, num_samples: int, seed: int, at_most: bool) -> Tensor:
    _check_enough(available, num_samples, at_most)
    order = torch.randperm(available, generator=torch.Generator().manual_seed(seed))
    return order[:num_samples].sort().values


def _check_enough(available: int, num_samples: int, at_most: bool) -> None:
    if available == 0:
        raise JobError("data: holds no samples; num_samples needs at least 1")
    if num_samples > available and not at_most:
        raise JobError(f"num_samples: must be at most the {available} samples that the data has, not {num_samples}")


def _from_loader(data: DataLoader[Any], num_samples: int, seed: int, at_most: bool) -> Batch:
    """From the data set behind a loader, whose own shuffling and drop_last depend on who reads it."""
    dataset = data.dataset
    if isinstance(dataset, IterableDataset):
        return _from_batches(data, num_samples, seed, at_most)
    if data.batch_sampler is None:  # batch_size=None: the data set's items are batches
        items = (data.collate_fn(dataset[i]) for i in range(len(dataset)))  # type: ignore[arg-type]
        return _from_batches(items, num_samples, seed, at_most)
    if isinstance(data.sampler, SubsetRandomSampler):
        dataset = Subset(dataset, sorted({int(i) for i in data.sampler.indices}))
    return _from_dataset(dataset, num_samples, seed, at_most, data.collate_fn)


def _from_dataset(data: Any, num_samples: int, seed: int, at_most: bool, collate: Callable[[list[Any]], Any]) -> Batch:
    index = _choose(len(data), num_samples, seed, at_most)
    return map_tensors(lambda tensor: tensor.detach().cpu().contiguous(), collate([data[int(i)] for i in index]))


def _from_batches(data: Iterable[Any], num_samples: int, seed: int, at_most: bool) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    kept: Batch = None
    keys = torch.empty(0, dtype=torch.float64)
    seen = 0
    for batch in _batches(data):
        count = batch_length(batch)
        seen += count
        keys = torch.cat([keys, torch.rand(count, generator=generator, dtype=torch.float64)])
        kept = batch if kept is None else _concatenate(kept, batch)
        if len(keys) > num_samples:
            best = keys.topk(num_samples, largest=False).indices.sort().values
            keys, kept = keys[best], map_tensors(lambda tensor, best=best: tensor[best], kept)  # type: ignore[misc]
    _check_enough(seen, num_samples, at_most)
    return map_tensors(lambda tensor: tensor.contiguous(), kept)


def _batches(data: Iterable[Any]) -> Iterator[Batch]:
    for batch in data:
        yield map_tensors(lambda tensor: tensor.detach().cpu(), _numpy_to_tensors(batch))


def _concatenate(first: Batch, second: Batch) -> Batch:
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        try:
            return torch.cat([first, second])
        except RuntimeError as error:
            raise JobError(f"data: batches must have samples of one shape to be joined: {one_line(error)}") from None
    if isinstance(first, Mapping) and isinstance(second, Mapping) and set(first) == set(second):
        return {key: _concatenate(value, second[key]) for key, value in first.items()}
    if isinstance(first, (tuple, list)) and type(first) is type(second) and len(first) == len(second):
        joined = [_concatenate(*pair) for pair in zip(first, second, strict=True)]
        return type(first)(*joined) if hasattr(first, "_fields") else type(first)(joined)
    raise JobError(
        f"data: batches must have one structure to be joined, not {type(first).__name__} and {type(second).__name__} "
        "with other keys or lengths"
    )


def samples_digest(samples: Batch) -> str:
    """SHA-256 over shape, type and bytes of the chosen samples."""
    found = hashlib.sha256()
    for tensor in tensors_of(samples):
        found.update(f"{tensor.dtype} {tuple(tensor.shape)};".encode())
        found.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def split_batches(samples: Batch, batch_size: int) -> list[Batch]:
    """All samples in consecutive batches of at most `batch_size`, their sizes differing by one at most."""
    count = batch_length(samples)
    parts = -(-count // batch_size)
    edges = [count * part // parts for part in range(parts + 1)]
    return [
        map_tensors(lambda tensor, a=a, b=b: tensor[a:b], samples)  # type: ignore[misc]
        for a, b in itertools.pairwise(edges)
    ]
