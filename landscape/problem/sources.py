"""Where samples come from: tensors, map-style data sets and iterables of batches, read under seeds of the job's own.

The seed that a sample is read under follows from the job's seed and the sample's number alone, so what it draws is the
same whatever else is read.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, SubsetRandomSampler, default_collate

from landscape.draws import seed_draws
from landscape.errors import JobError, flat
from landscape.problem.batches import Batch, map_tensors, tensors_of
from landscape.problem.user_code import calling

END = object()  # what `next` returns when an iterable has ended


def seed_of(seed: int, *place: object) -> int:
    """The seed under which something is read.

    Args:
        seed: the job's seed.
        place: what is read, such as ("sample", 7).

    Returns:
        63 bits of the SHA-256 of both, as a number.
    """
    text = f"{seed} {' '.join(map(str, place))}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) >> 1


@dataclass(frozen=True)
class Items:
    """A map-style data set, and the function that makes a batch of its samples."""

    data: Any
    collate: Callable[[list[Any]], Any]

    @property
    def name(self) -> str:
        """The data set's class, for messages."""
        return _name_of(self.data)

    def length(self) -> int:
        """How many samples the data set has.

        Raises:
            JobError: its `__len__` raises.
        """
        with calling(f"data: len() of {self.name}"):
            return len(self.data)

    def read(self, indices: Iterable[int], length: int, seed: int) -> Iterator[Any]:
        """The samples at these indices, one after the other, as the data set returns them.

        Args:
            indices: which samples.
            length: how many samples there are, for messages.
            seed: the job's seed; each sample draws from one of its own that follows from it.

        Raises:
            JobError: the data set raises; names the sample.
        """
        name = self.name
        for index in indices:
            seed_draws(seed_of(seed, "sample", index))
            with calling(f"data: sample {index} of {name} (length {length})"):
                item = self.data[index]
            yield item

    def collated(self, items: list[Any], seed: int, first: int) -> Batch:
        """These samples as a batch on the CPU.

        Args:
            items: samples, as `read` yields them.
            seed: the job's seed; the batch draws from one of its own that follows from it and from `first`.
            first: the position of the first of them among the chosen samples.

        Raises:
            JobError: the collate function raises, or returns something that is no batch of tensors.
        """
        seed_draws(seed_of(seed, "batch", first))
        with calling(f"data: the collate function, given {len(items)} samples of {self.name},"):
            batch = self.collate(items)
        return map_tensors(lambda tensor: tensor.detach().cpu().contiguous(), batch)


@dataclass(frozen=True)
class Stream:
    """An iterable of batches."""

    data: Any

    @property
    def name(self) -> str:
        """Its class, or that of a loader's data set, for messages."""
        return _name_of(self.data.dataset if isinstance(self.data, DataLoader) else self.data)

    @property
    def once(self) -> bool:
        """Whether it can be read only once, as is the case for a generator."""
        return hasattr(self.data, "__next__")

    def length(self) -> int | None:
        """How many batches it says that it has; None where it does not say it, as is usual of an iterable."""
        try:
            with calling(f"data: len() of {self.name}"):
                return len(self.data)
        except JobError:
            return None

    def batches(self, seed: int) -> Iterator[Batch]:
        """Its batches, on the CPU, with arrays turned into tensors.

        Args:
            seed: the job's seed; each batch draws from one of its own that follows from it.

        Raises:
            JobError: the iterable raises, or yields something that is no batch; names the batch.
        """
        data = _seeded(self.data, seed_of(seed, "loader")) if isinstance(self.data, DataLoader) else self.data
        seed_draws(seed_of(seed, "begin"))
        with calling(f"data: iter() of {self.name}"):
            iterator = iter(data)
        name = self.name
        for number in itertools.count():
            seed_draws(seed_of(seed, "batch", number))
            with calling(f"data: batch {number} of {name}"):
                batch = next(iterator, END)
            if batch is END:
                return
            yield map_tensors(lambda tensor: tensor.detach().cpu(), numpy_to_tensors(batch))


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
            f"data: {_name_of(data)} yields samples without a number; wrap it in a DataLoader, which makes batches"
        )
    if isinstance(data, (Tensor, tuple, Mapping)) or _is_list_of_tensors(data):
        return map_tensors(lambda tensor: tensor.detach().cpu(), numpy_to_tensors(data))
    if isinstance(data, Dataset) or (
        hasattr(data, "__getitem__") and hasattr(data, "__len__") and not _holds_batches(data)
    ):
        return Items(data, default_collate)
    if isinstance(data, Iterable):
        return Stream(data)
    raise JobError(f"data: must be tensors, a map-style Dataset or an iterable of batches, not {_name_of(data)}")


def _of_loader(loader: DataLoader[Any]) -> Items | Stream:
    """The data set behind a loader: the loader's own shuffling and `drop_last` would decide which samples there are."""
    dataset = loader.dataset
    if isinstance(dataset, IterableDataset):
        return Stream(loader)
    if loader.batch_sampler is None:  # batch_size=None means that the data set's items are batches
        return Stream(_Batches(dataset, loader.collate_fn))
    if isinstance(loader.sampler, SubsetRandomSampler):
        dataset = Subset(dataset, sorted({int(index) for index in loader.sampler.indices}))
    return Items(dataset, loader.collate_fn)


@dataclass(frozen=True)
class _Batches:
    """An iterable over a map-style data set whose items are batches already."""

    data: Any
    convert: Callable[[Any], Any]

    def __len__(self) -> int:
        return len(self.data)

    def __iter__(self) -> Iterator[Any]:
        return (self.convert(self.data[k]) for k in range(len(self)))


def _seeded(loader: DataLoader[Any], seed: int) -> DataLoader[Any]:
    """A copy of the loader whose worker processes start anew and draw from this seed."""
    seeded = copy.copy(loader)
    seeded.generator = torch.Generator().manual_seed(seed)
    seeded._iterator = None  # persistent workers would go on with what they drew before
    return seeded


def numpy_to_tensors(data: Any) -> Any:
    """The data with numpy arrays, also inside dicts, tuples and lists, as tensors that share their memory.

    Raises:
        JobError: an array does not hold numbers.
    """
    if isinstance(data, np.ndarray):
        try:
            return torch.from_numpy(data)
        except TypeError:
            raise JobError(f"data: arrays must hold numbers, not {flat(str(data.dtype))}") from None
    if isinstance(data, Mapping):
        return {key: numpy_to_tensors(value) for key, value in data.items()}
    return type(data)(numpy_to_tensors(element) for element in data) if type(data) in (tuple, list) else data


def _is_list_of_tensors(data: Any) -> bool:
    """Whether this is a short list of tensors with one first dimension: the fields of all samples, not the samples."""
    return (
        isinstance(data, list)
        and bool(data)
        and all(isinstance(tensor, Tensor) for tensor in data)
        and (len({tensor.shape[:1] for tensor in data}) == 1 and len(data) <= 8)
    )


def _holds_batches(data: Any) -> bool:
    """Whether a plain list holds batches (tuples of tensors with a sample dimension) rather than samples."""
    if not isinstance(data, list) or not data:
        return False
    try:
        return any(tensor.dim() > 0 for tensor in tensors_of(numpy_to_tensors(data[0])))
    except JobError:  # it holds a plain number, so it is a sample with its label
        return False


def _name_of(data: Any) -> str:
    return flat(type(data).__name__, 60)
