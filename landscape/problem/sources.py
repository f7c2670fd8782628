"""Where samples come from: tensors, data sets and iterables of batches, read under seeds of the job's own.

A sample's seed follows from the job's and its number alone, so that it is the same whatever else is read.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import logging
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

# Beyond this an iterable that does not tell its length is taken for endless, where no more samples are asked for.
MOST_BATCHES, MOST_SAMPLES = 100_000, 2_000_000
LONGEST_TOLD = 10_000_000  # batches: a length beyond it is not believed
BATCHES_TOLD = 10_000  # of such an iterable, when a line tells that it is still being read

END = object()

log = logging.getLogger("landscape")


def seed_of(seed: int, *place: object) -> int:
    """The seed of what is drawn at a place, such as ('sample', 7): 63 bits."""
    text = f"{seed} {' '.join(map(str, place))}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) >> 1


@dataclass(frozen=True)
class Items:
    """A map-style data set, and how its samples become a batch."""

    data: Any
    collate: Callable[[list[Any]], Any]

    @property
    def name(self) -> str:
        return _name_of(self.data)

    def length(self) -> int:
        with calling(f"data: len() of {self.name}"):
            return len(self.data)

    def read(self, indices: Iterable[int], length: int, seed: int) -> Iterator[Any]:
        name = self.name
        for index in indices:
            seed_draws(seed_of(seed, "sample", index))
            with calling(f"data: sample {index} of {name} (length {length})"):
                item = self.data[index]
            yield item

    def collated(self, items: list[Any], seed: int, first: int) -> Batch:
        """These samples as a batch, the first of them being the one at position `first` of those chosen."""
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
        return _name_of(self.data.dataset if isinstance(self.data, DataLoader) else self.data)

    @property
    def once(self) -> bool:
        """Whether it can be read a single time, as a generator can."""
        return hasattr(self.data, "__next__")

    def length(self) -> int | None:
        """How many batches it says it has, where it does."""
        try:
            with calling(f"data: len() of {self.name}"):
                return len(self.data)
        except JobError:  # as is usual of an iterable
            return None

    def batches(self, seed: int) -> Iterator[Batch]:
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
    """The data as tensors, which need no reading, or as what is to be read.

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
    """The data set behind a loader, whose own shuffling and drop_last depend on who reads it."""
    dataset = loader.dataset
    if isinstance(dataset, IterableDataset):
        return Stream(loader)
    if loader.batch_sampler is None:  # batch_size=None: the data set's items are batches
        return Stream(_Batches(dataset, loader.collate_fn))
    if isinstance(loader.sampler, SubsetRandomSampler):
        dataset = Subset(dataset, sorted({int(i) for i in loader.sampler.indices}))
    return Items(dataset, loader.collate_fn)


@dataclass(frozen=True)
class _Batches:
    """A data set whose items are batches."""

    data: Any
    convert: Callable[[Any], Any]

    def __len__(self) -> int:
        return len(self.data)

    def __iter__(self) -> Iterator[Any]:
        return (self.convert(self.data[k]) for k in range(len(self)))


def _seeded(loader: DataLoader[Any], seed: int) -> DataLoader[Any]:
    """The same loader, whose worker processes begin anew and draw from this seed, with torch, numpy and `random`."""
    found = copy.copy(loader)
    found.generator = torch.Generator().manual_seed(seed)
    found._iterator = None
    return found


@dataclass(frozen=True)
class Bound:
    """How much of a stream is read before it is taken for endless; by numbers alone, so that it is the same each time.

    A stream that tells its length may be as long, within reason.
    """

    name: str
    length: int | None
    wanted: int  # samples that are to be chosen

    @property
    def batches(self) -> int:
        return max(MOST_BATCHES, 10 * self.wanted, min(self.length or 0, LONGEST_TOLD))

    @property
    def samples(self) -> int:
        return max(MOST_SAMPLES, 100 * self.wanted)

    def check(self, batches: int, samples: int) -> None:
        """Refuse a stream of which so much was read; tell before that it is being read."""
        if batches == BATCHES_TOLD and self.length is None:
            log.warning(
                "data: %s has given %d batches so far and does not tell its length; it is read to its end, or to %d "
                "batches", self.name, batches, self.batches,
            )  # fmt: skip
        if batches > self.batches or (self.length is None and samples > self.samples):
            raise JobError(
                f"data: {self.name} must end within {self.batches} batches and {self.samples} samples unless it tells "
                f"its length, and went on after {batches} batches ({samples} samples); give it a __len__, or return "
                "list(itertools.islice(batches, N))"
            )


def numpy_to_tensors(data: Any) -> Any:
    if isinstance(data, np.ndarray):
        try:
            return torch.from_numpy(data)
        except TypeError:
            raise JobError(f"data: arrays must hold numbers, not {flat(str(data.dtype))}") from None
    if isinstance(data, Mapping):
        return {key: numpy_to_tensors(value) for key, value in data.items()}
    return type(data)(numpy_to_tensors(each) for each in data) if type(data) in (tuple, list) else data


def _is_list_of_tensors(data: Any) -> bool:
    return (
        isinstance(data, list)
        and bool(data)
        and all(isinstance(each, Tensor) for each in data)
        and (len({each.shape[:1] for each in data}) == 1 and len(data) <= 8)
    )


def _holds_batches(data: Any) -> bool:
    """Whether a plain list holds batches (tuples of tensors with a sample dimension) rather than samples."""
    if not isinstance(data, list) or not data:
        return False
    try:
        return any(tensor.dim() > 0 for tensor in tensors_of(numpy_to_tensors(data[0])))
    except JobError:  # a plain number among them: a sample's label
        return False


def _name_of(data: Any) -> str:
    return flat(type(data).__name__, 60)
