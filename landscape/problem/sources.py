"""The sources of samples: the kinds of data that a user may return, and how they are read."""

from __future__ import annotations

import copy
import hashlib
import itertools
import logging
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, SubsetRandomSampler, default_collate

from landscape.core.errors import JobError, flat
from landscape.core.random_state import seed_draws
from landscape.problem.batches import Batch, exchange_tensors, map_tensors, tensors_in, tensors_of
from landscape.problem.user_code import calling

log = logging.getLogger("landscape")

# ----------------------------------------------------------------------------------------------------
# An endless iterable is refused, so that no job reads for ever.

# An iterable without a length counts as endless beyond these, unless more samples are to be chosen.
MOST_BATCHES, MOST_SAMPLES = 100_000, 2_000_000
LARGEST_LENGTH = 10_000_000  # batches: a larger length of an iterable is not believed
WARN_AFTER = 10_000  # batches of an iterable without a length; a warning then says that it is still being read


@dataclass(frozen=True)
class ReadingLimit:
    """How much of an iterable is read before it counts as endless.

    Counts decide, not time, so that the same data are always accepted or always refused. An iterable with a length may
    be that long, up to `LARGEST_LENGTH` batches.

    Args:
        name: of the iterable in messages.
        length: the number of batches by its `__len__`; None without one.
        wanted: how many samples are to be chosen.
    """

    name: str
    length: int | None
    wanted: int

    @property
    def batches(self) -> int:
        """The most batches that are read."""
        return max(MOST_BATCHES, 10 * self.wanted, min(self.length or 0, LARGEST_LENGTH))

    @property
    def samples(self) -> int:
        """The most samples that are read from an iterable without a length."""
        return max(MOST_SAMPLES, 100 * self.wanted)

    def check(self, batches: int, samples: int) -> None:
        """Refuse an iterable that goes on after this many batches and samples; warn once before that."""
        if batches == WARN_AFTER and self.length is None:
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


# ----------------------------------------------------------------------------------------------------
# Map-style data sets and iterables of batches. The seed for reading a sample follows from the job's seed and the
# sample's number alone, so that the sample draws the same numbers whatever else is read.

RAGGED = "return a DataLoader whose collate_fn makes a batch of such samples"
END = object()  # the default of `next` at the end of an iterable


def seed_of(seed: int, *place: object) -> int:
    """The seed for reading one part of the data.

    Args:
        place: of the part, such as ("sample", 7).

    Returns:
        63 bits of the SHA-256 of both, as a number.
    """
    text = f"{seed} {' '.join(map(str, place))}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) >> 1


@dataclass(frozen=True)
class MapStyleData:
    """A map-style data set, and the function that makes a batch of its samples.

    Attributes:
        sampler: a loader's own batch sampler; the samples are those at its indices.
        numbers: the indices of the samples in `data`; None for all.
    """

    data: Any
    collate: Callable[[list[Any]], Any]
    sampler: Any = None
    numbers: tuple[Any, ...] | None = None

    def read_sampler(self, wanted: int, seed: int) -> MapStyleData:
        """The same data with the indices of the sampler as `numbers`; the sampler is read once under seeds of the job.

        Args:
            wanted: how many samples are to be chosen, see `ReadingLimit`.

        Raises:
            JobError: the sampler raises, or does not end.
        """
        if self.sampler is None:
            return self
        name = class_name(self.sampler)
        limit = ReadingLimit(name, _length_of(self.sampler), wanted)
        numbers: dict[Any, None] = {}
        seed_draws(seed_of(seed, "batch sampler"))
        with calling(f"data: the batch sampler {name}"):
            for number, indices in enumerate(self.sampler, 1):
                numbers.update(dict.fromkeys(map(_plain_index, indices)))
                limit.check(number, len(numbers))
        whole = all(isinstance(index, int) for index in numbers)
        return replace(self, sampler=None, numbers=tuple(sorted(numbers) if whole else numbers))

    @property
    def name(self) -> str:
        """The data set's class, for messages."""
        return class_name(self.data)

    def length(self) -> int:
        """How many samples the data set has.

        Raises:
            JobError: its `__len__` raises.
        """
        if self.numbers is not None:
            return len(self.numbers)
        with calling(f"data: len() of {self.name}"):
            return len(self.data)

    def read(self, indices: Iterable[int], length: int, seed: int) -> Iterator[Any]:
        """The samples at these indices, one after the other, as the data set returns them.

        Args:
            length: how many samples there are, for messages.
            seed: the job's seed, from which each sample has a seed of its own.

        Raises:
            JobError: the data set raises; the message names the sample.
        """
        name = self.name
        for index in indices:
            seed_draws(seed_of(seed, "sample", index))
            number = index if self.numbers is None else self.numbers[index]
            with calling(f"data: sample {number} of {name} (length {length})"):
                item = self.data[number]
            yield item

    def collate_any(self, items: list[Any], seed: int, first: int) -> Any:
        """The collate function's batch of these samples.

        Args:
            seed: the job's seed, from which and from `first` the batch has a seed of its own.
            first: the position of the first sample among the chosen samples.

        Raises:
            JobError: the collate function raises.
        """
        seed_draws(seed_of(seed, "batch", first))
        remedy = RAGGED if self.collate is default_collate else ""
        with calling(f"data: the collate function, given {len(items)} samples of {self.name},", remedy):
            return self.collate(items)

    def numbers_of(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """The indices in `data` of the samples at these indices; the same indices if `data` has other keys."""
        numbers = self.numbers
        if numbers is None or not all(isinstance(number, int) for number in numbers):
            return indices
        return np.array(numbers, np.int64)[indices]


def _plain_index(index: Any) -> Any:
    """An index of Python, numpy or torch as an int; another key as it is."""
    try:
        return operator.index(index)
    except TypeError:
        return index


@dataclass(frozen=True)
class IterableData:
    """An iterable of batches; with `collate`, of lists of items, from each of which `collate` makes a batch."""

    data: Any
    collate: Callable[[list[Any]], Any] | None = None

    @property
    def name(self) -> str:
        """The iterable's class, or that of a loader's data set, for messages."""
        return class_name(self.data.dataset if isinstance(self.data, DataLoader) else self.data)

    @property
    def once(self) -> bool:
        """Whether it can be read only once, like a generator."""
        return hasattr(self.data, "__next__")

    def length(self) -> int | None:
        """The number of batches by its `__len__`; None without one, which is usual."""
        return _length_of(self.data)

    def batches(self, seed: int) -> Iterator[Batch]:
        """Its batches, on the CPU, with arrays in plain tuples, lists and dicts turned into tensors; items as they are.

        Args:
            seed: the job's seed, from which each batch has a seed of its own.

        Raises:
            JobError: the iterable raises, or yields None; the message names the batch.
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
            if batch is None:
                raise JobError(f"data: batch {number} of {name} must hold samples, not None")
            if self.collate is None:
                batch = exchange_tensors(lambda tensor: tensor.detach().cpu(), numpy_to_tensors(batch, keep_kinds=True))
            yield batch


def _length_of(data: Any) -> int | None:
    """The length of an iterable; None if it has no `__len__`, or that raises."""
    try:
        with calling("data: len()"):
            return len(data)
    except JobError:
        return None


def _seeded(loader: DataLoader[Any], seed: int) -> DataLoader[Any]:
    """A copy of the loader whose worker processes are new and draw from this seed."""
    seeded = copy.copy(loader)
    seeded.generator = torch.Generator().manual_seed(seed)
    seeded._iterator = None  # persistent workers would continue their earlier draws
    return seeded


def numpy_to_tensors(data: Any, *, keep_kinds: bool = False) -> Any:
    """The data with numpy arrays, also inside mappings, tuples and lists, as tensors that share their memory.

    Args:
        keep_kinds: whether mappings other than dict are left unchanged, with the arrays in them.

    Raises:
        JobError: an array does not hold numbers.
    """
    if isinstance(data, np.ndarray):
        # Tensors have the byte order of the machine, and no dimension that runs backwards.
        is_usual = data.dtype.isnative and all(step >= 0 for step in data.strides)
        try:
            return torch.from_numpy(data if is_usual else data.astype(data.dtype.newbyteorder("="), order="C"))
        except TypeError:
            raise JobError(f"data: arrays must hold numbers, not {flat(str(data.dtype))}") from None
    if type(data) is dict or (isinstance(data, Mapping) and not keep_kinds):
        return {key: numpy_to_tensors(value, keep_kinds=keep_kinds) for key, value in data.items()}
    if type(data) in (tuple, list) or (isinstance(data, tuple) and hasattr(data, "_fields")):
        elements = [numpy_to_tensors(element, keep_kinds=keep_kinds) for element in data]
        return type(data)(*elements) if hasattr(data, "_fields") else type(data)(elements)
    return data


def as_rows(data: Any) -> Batch:
    """Tensors and arrays in tuples, lists and mappings as a batch of tensors on the CPU, mappings as dicts.

    Raises:
        JobError: `data` holds something else.
    """
    return map_tensors(lambda tensor: tensor.detach().cpu(), numpy_to_tensors(data))


def class_name(data: Any) -> str:
    return flat(type(data).__name__, 60)


def source_of(data: Any) -> Batch | MapStyleData | IterableData:
    """The data as one of three kinds.

    Returns:
        Tensors, as one batch on the CPU with all samples; else the map-style data set or the iterable to read.

    Raises:
        JobError: the data are of no known kind.
    """
    if isinstance(data, DataLoader):
        return _of_loader(data)
    if isinstance(data, IterableDataset):
        raise JobError(
            f"data: {class_name(data)} yields samples without a number; wrap it in a DataLoader, which makes batches"
        )
    if isinstance(data, Mapping) and data and all(_is_data_set(member) for member in data.values()):
        names = ", ".join(flat(str(name), 60) for name in data)
        raise JobError(f"data: must be one data set, not a {class_name(data)} of {names}; return one of them")
    if isinstance(data, (Tensor, tuple, Mapping)) or _is_list_of_tensors(data):
        return as_rows(data)
    if isinstance(data, Dataset) or (
        hasattr(data, "__getitem__") and hasattr(data, "__len__") and not _holds_batches(data)
    ):
        return MapStyleData(data, collate_of(data))
    if isinstance(data, Iterable):
        return IterableData(data)
    if hasattr(data, "val_dataloader"):
        raise JobError(f"data: must be a loader of {class_name(data)}, such as its val_dataloader() after setup()")
    raise JobError(f"data: must be tensors, a map-style Dataset or an iterable of batches, not {class_name(data)}")


def _of_loader(loader: DataLoader[Any]) -> MapStyleData | IterableData:
    """The data set of a loader, because the loader's shuffling and `drop_last` would change the choice of samples."""
    dataset = loader.dataset
    if isinstance(dataset, IterableDataset):
        if loader.batch_size is None or loader.collate_fn is default_collate:
            return IterableData(loader)
        items = copy.copy(loader)
        items.collate_fn = list
        return IterableData(items, loader.collate_fn)
    if loader.batch_sampler is None:  # batch_size=None means that the data set's items are batches
        return IterableData(_Batches(dataset, loader.collate_fn))
    if type(loader.batch_sampler) is not BatchSampler:
        return MapStyleData(dataset, loader.collate_fn, loader.batch_sampler)
    if isinstance(loader.sampler, SubsetRandomSampler):
        numbers = sorted({int(index) for index in loader.sampler.indices})
        return MapStyleData(dataset, loader.collate_fn, numbers=tuple(numbers))
    return MapStyleData(dataset, loader.collate_fn)


def collate_of(data: Any) -> Callable[[list[Any]], Any]:
    """The function that makes a batch of items of the data: its own `collate_fn`, if it has one, else torch's."""
    own = getattr(data, "collate_fn", None)
    return own if callable(own) else default_collate


def _is_data_set(value: Any) -> bool:
    """Whether a value is a map-style or an iterable data set, and no tensors."""
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
    """Whether data are a short list of tensors with one first dimension: the fields of all samples, not the samples."""
    return (
        isinstance(data, list)
        and bool(data)
        and all(isinstance(tensor, Tensor) for tensor in data)
        and (len({tensor.shape[:1] for tensor in data}) == 1 and len(data) <= 8)
    )


def _holds_batches(data: Any) -> bool:
    """Whether a plain list holds batches (tuples of tensors with a sample dimension) rather than samples.

    A field without dimensions is a label, so its tuple is a sample.
    """
    if not isinstance(data, list) or not data:
        return False
    try:
        first = numpy_to_tensors(data[0])
        fields = [*first.values()] if isinstance(first, dict) else first
        if isinstance(fields, (tuple, list)) and any(isinstance(t, Tensor) and not t.dim() for t in fields):
            return False
        return any(tensor.dim() > 0 for tensor in tensors_of(first))
    except JobError:  # it holds something else: a number, such as a label, or an object of tensors
        return not isinstance(data[0], (Mapping, tuple, list)) and len(tensors_in(data[0])) > 0
