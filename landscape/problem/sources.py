"""Where samples come from: which kind of data the user has returned, and how it is read."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, SubsetRandomSampler, default_collate

from landscape.core.errors import JobError, flat
from landscape.problem.batches import Batch, tensors_of
from landscape.problem.reading import Items, Stream, as_rows, name_of, numpy_to_tensors
from landscape.problem.structure import tensors_in


def source_of(data: Any) -> Batch | Items | Stream:
    """Which kind of data this is.

    Args:
        data: what `Problem.data` holds.

    Returns:
        Tensors, as one batch on the CPU that holds all samples; else the map-style data set or the iterable to read.

    Raises:
        JobError: it is none of the known kinds.
    """
    if isinstance(data, DataLoader):
        return _of_loader(data)
    if isinstance(data, IterableDataset):
        raise JobError(
            f"data: {name_of(data)} yields samples without a number; wrap it in a DataLoader, which makes batches"
        )
    if isinstance(data, Mapping) and data and all(_is_data_set(member) for member in data.values()):
        names = ", ".join(flat(str(name), 60) for name in data)
        raise JobError(f"data: must be one data set, not a {name_of(data)} of {names}; return one of them")
    if isinstance(data, (Tensor, tuple, Mapping)) or _is_list_of_tensors(data):
        return as_rows(data)
    if isinstance(data, Dataset) or (
        hasattr(data, "__getitem__") and hasattr(data, "__len__") and not _holds_batches(data)
    ):
        return Items(data, collate_of(data))
    if isinstance(data, Iterable):
        return Stream(data)
    if hasattr(data, "val_dataloader"):
        raise JobError(f"data: must be a loader of {name_of(data)}, such as its val_dataloader() after setup()")
    raise JobError(f"data: must be tensors, a map-style Dataset or an iterable of batches, not {name_of(data)}")


def _of_loader(loader: DataLoader[Any]) -> Items | Stream:
    """The data set behind a loader: the loader's own shuffling and `drop_last` would decide which samples there are."""
    dataset = loader.dataset
    if isinstance(dataset, IterableDataset):
        if loader.batch_size is None or loader.collate_fn is default_collate:
            return Stream(loader)
        items = copy.copy(loader)
        items.collate_fn = list
        return Stream(items, loader.collate_fn)
    if loader.batch_sampler is None:  # batch_size=None means that the data set's items are batches
        return Stream(_Batches(dataset, loader.collate_fn))
    if type(loader.batch_sampler) is not BatchSampler:
        return Items(dataset, loader.collate_fn, loader.batch_sampler)
    if isinstance(loader.sampler, SubsetRandomSampler):
        numbers = sorted({int(index) for index in loader.sampler.indices})
        return Items(dataset, loader.collate_fn, numbers=tuple(numbers))
    return Items(dataset, loader.collate_fn)


def collate_of(data: Any) -> Callable[[list[Any]], Any]:
    """The function that makes a batch of items of the data: its own `collate_fn`, as loaders have one, else torch's."""
    own = getattr(data, "collate_fn", None)
    return own if callable(own) else default_collate


def _is_data_set(value: Any) -> bool:
    """Whether it is a map-style data set or an iterable one, and no tensors."""
    if isinstance(value, (Tensor, np.ndarray, Mapping, tuple, list)):
        return False
    return isinstance(value, (Dataset, DataLoader)) or (hasattr(value, "__getitem__") and hasattr(value, "__len__"))


@dataclass(frozen=True)
class _Batches:
    """An iterable over a map-style data set whose items are batches already."""

    data: Any
    convert: Callable[[Any], Any]

    def __len__(self) -> int:
        return len(self.data)

    def __iter__(self) -> Iterator[Any]:
        return (self.convert(self.data[k]) for k in range(len(self)))


def _is_list_of_tensors(data: Any) -> bool:
    """Whether this is a short list of tensors with one first dimension: the fields of all samples, not the samples."""
    return (
        isinstance(data, list)
        and bool(data)
        and all(isinstance(tensor, Tensor) for tensor in data)
        and (len({tensor.shape[:1] for tensor in data}) == 1 and len(data) <= 8)
    )


def _holds_batches(data: Any) -> bool:
    """Whether a plain list holds batches (tuples of tensors with a sample dimension) rather than samples.

    A field without dimensions is a label, so that what holds it is a sample.
    """
    if not isinstance(data, list) or not data:
        return False
    try:
        first = numpy_to_tensors(data[0])
        fields = [*first.values()] if isinstance(first, dict) else first
        if isinstance(fields, (tuple, list)) and any(isinstance(each, Tensor) and not each.dim() for each in fields):
            return False
        return any(tensor.dim() > 0 for tensor in tensors_of(first))
    except JobError:  # it holds something else: a number, as a sample with its label does, or an object of tensors
        known = (Mapping, tuple, list)
        return not isinstance(data[0], known) and len(tensors_in(data[0])) > 0
