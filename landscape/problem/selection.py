"""Which samples a landscape is computed on: chosen once, by the seed alone, and kept in memory or on disk."""

from __future__ import annotations

import bisect
import itertools
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, default_collate

from landscape.core.devices import host_limit
from landscape.core.errors import JobError
from landscape.core.random_state import fixed_seeds
from landscape.model.packed_model import PackedSamples
from landscape.problem import disk_buffer
from landscape.problem.batches import (
    Batch,
    Samples,
    TensorSamples,
    are_one_kind,
    batch_bytes,
    batch_length,
    first_dimension,
    kind_in_words,
    map_tensors,
    tensors_of,
)
from landscape.problem.collated import Collated, KeptItems, Length, WholeBatches, approximate_bytes, length_by
from landscape.problem.disk_buffer import Reservoir, on_disk, rows_at
from landscape.problem.sources import (
    IterableData,
    MapStyleData,
    ReadingLimit,
    as_rows,
    numpy_to_tensors,
    seed_of,
    source_of,
)
from landscape.problem.terms import PointData, PointSets

log = logging.getLogger("landscape")

# Up to this many samples all their indices are shuffled, at eight bytes each; of more only the wanted ones are drawn.
LARGEST_SHUFFLED = 1 << 28


@dataclass(frozen=True)
class SelectedSamples:
    """The samples of a job, and which of the data they are.

    Attributes:
        samples: in the order drawn.
        indices: int64, one for each sample in their order: its index in the data, of an iterable its running number.
    """

    samples: Samples
    indices: NDArray[np.int64]


@dataclass(frozen=True)
class SampleRequest:
    """What `select_samples` was asked for: how many samples, by which seed, and above how many bytes on disk."""

    num_samples: int
    seed: int
    at_most: bool
    limit: int
    length: Length | None = None
    observed: Length | None = None

    def indices(self, available: int) -> Tensor:
        """The indices of the chosen samples, below `available`."""
        self.check(available)
        generator = torch.Generator().manual_seed(self.seed)
        if available <= LARGEST_SHUFFLED:
            chosen = torch.randperm(available, generator=generator)[: self.num_samples]
        else:
            chosen = _few_of_many(min(self.num_samples, available), available, generator)
        return chosen

    def check(self, available: int) -> None:
        """Refuse data with no samples, or with too few."""
        if available == 0:
            raise JobError("data: holds no samples; num_samples needs at least 1")
        if self.num_samples > available and not self.at_most:
            raise JobError(
                f"num_samples: must be at most the {available} samples that the data has, not {self.num_samples}"
            )


def _few_of_many(count: int, available: int, generator: torch.Generator) -> Tensor:
    """`count` different numbers below `available`; every set of them is equally likely."""
    chosen: dict[int, None] = {}
    while len(chosen) < count:
        drawn = torch.randint(available, (count - len(chosen),), generator=generator)
        chosen.update(dict.fromkeys(drawn.tolist()))
    return torch.tensor(list(chosen), dtype=torch.int64)


def chosen_indices(available: int, num_samples: int, seed: int) -> list[int]:
    """The indices of the samples chosen from so many, ascending; of all of them where there are not enough.

    Example:
        >>> chosen_indices(3, 5, seed=0)
        [0, 1, 2]
    """
    return sorted(SampleRequest(num_samples, seed, at_most=True, limit=0).indices(available).tolist())


def select_samples(
    data: Any, num_samples: int, seed: int, *, at_most: bool = False,
    limit: int | None = None, length: Length | None = None, observed: Length | None = None,
) -> SelectedSamples:  # fmt: skip
    """Choose `num_samples` different samples by the seed alone; they stay on the CPU.

    Of tensors and map-style data sets a random subset of the indices is taken. An iterable is read once, batch by
    batch: each sample draws a uniform key, and those with the smallest keys are kept (reservoir sampling with random
    keys). Where its batches cannot be cut into samples of one shape, whole batches draw keys, and those with the
    smallest are taken until there are enough samples. The samples are in the order drawn, so that the first of many
    are those that fewer would be. Samples that take more memory than `limit` are written to disk while they are read,
    and mapped.

    Items of a loader with a collate function of its own stay items, which are collated batch by batch.

    While the data are read, torch, numpy and `random` draw from seeds of the job's own; afterwards the process's
    generators are as they were.

    Args:
        data: what `Problem.data` holds.
        num_samples: how many samples to choose.
        seed: the job's seed.
        at_most: where there are fewer samples than `num_samples`, take them all; otherwise that is refused.
        limit: bytes of samples above which they are kept on disk; default: a share of the memory that is available.
        length: `Problem.length`.
        observed: how many values `observe` returns for a batch, which is asked where nothing else tells its length.

    Raises:
        JobError: there are fewer samples than asked for, the data is none of the known kinds, or cannot be read.

    Example:
        >>> import torch
        >>> data = torch.arange(10)
        >>> chosen, more = (select_samples(data, count, seed=0) for count in (4, 6))
        >>> bool((chosen.samples.rows == data[chosen.indices]).all())
        True
        >>> bool((chosen.indices == more.indices[:4]).all())
        True
    """
    choice = SampleRequest(num_samples, seed, at_most, host_limit() if limit is None else limit, length, observed)
    if isinstance(data, PackedSamples):
        return chosen_of(data, choice)
    if isinstance(data, PointData):
        return _of_points(data, choice)
    source = source_of(data)
    with fixed_seeds(seed):
        if isinstance(source, MapStyleData):
            return _from_items(source, choice)
        if isinstance(source, IterableData):
            return from_stream(source, choice)
    indices = choice.indices(batch_length(source))
    return SelectedSamples(TensorSamples(rows_at(source, indices, choice.limit)), indices.numpy())


def samples_in(data: Any) -> int | None:
    """How many samples tensors or a map-style data set hold; None of what has to be read to tell."""
    if isinstance(data, (PackedSamples, PointData, DataLoader)):
        return None
    source = source_of(data)
    if isinstance(source, IterableData):
        return None
    return source.length() if isinstance(source, MapStyleData) else batch_length(source)


def _of_points(data: PointData, choice: SampleRequest) -> SelectedSamples:
    """Points of every set, drawn each by a seed of its own, so that a set does not depend on the size of another.

    The indices are those of the largest set.
    """
    choice.check(data.length)
    drawn = {}
    for name, points in data.sets.items():
        own = replace(choice, seed=seed_of(choice.seed, "points", name), at_most=True)
        drawn[name] = own.indices(batch_length(points))
    sets = {name: rows_at(points, drawn[name], choice.limit) for name, points in data.sets.items()}
    return SelectedSamples(PointSets(sets), max(drawn.values(), key=len).numpy())


def _from_items(data: MapStyleData, choice: SampleRequest) -> SelectedSamples:
    data = data.resolved(choice.num_samples, choice.seed)
    length = data.length()
    indices = choice.indices(length)
    items = data.read(indices.tolist(), length, choice.seed)
    first = list(itertools.islice(items, 2))
    items = itertools.chain(first, items)
    numbers = data.numbered(indices.numpy())
    if _gives_rows(data, first, choice.seed):
        return SelectedSamples(TensorSamples(_rows_of(data, items, len(indices), choice)), numbers)
    kept = KeptItems(choice.limit)
    places = [kept.add(item, approximate_bytes(item)) for item in items]
    return SelectedSamples(Collated(kept.items(places), data.collate, choice.seed, data.name, choice.length), numbers)


def _gives_rows(data: MapStyleData, first: list[Any], seed: int) -> bool:
    """Whether the items are rectangular: torch's own function collates them, to tensors with a row for each item.

    A collate function of the user's may pad, pack or join: what it returns depends on which items are together.
    """
    if data.collate is not default_collate:
        return False
    return first_dimension(data.collate_any(first, seed, 0)) == len(first)


def _rows_of(data: MapStyleData, items: Iterator[Any], count: int, choice: SampleRequest) -> Batch:
    """So many items collated at once; above the limit in pieces, on disk."""
    first = next(items)
    sample_bytes = max(1, _bytes_of(first))
    items = itertools.chain([first], items)
    if sample_bytes * count <= choice.limit:
        return as_rows(data.collate_any(list(items), choice.seed, 0))
    at_once = max(1, disk_buffer.PIECE_BYTES // sample_bytes)

    def pieces() -> Iterator[Batch]:
        for start in range(0, count, at_once):
            yield as_rows(data.collate_any(list(itertools.islice(items, at_once)), choice.seed, start))

    return on_disk(pieces())


def _bytes_of(item: Any) -> int:
    """About how many bytes a sample of a data set takes: its tensors, arrays, images and numbers."""
    if isinstance(item, Tensor):
        return item.nbytes
    if isinstance(item, Mapping):
        return sum(map(_bytes_of, item.values()))
    if isinstance(item, (tuple, list)):
        return sum(map(_bytes_of, item))
    try:
        return int(np.asarray(item).nbytes)
    except Exception:  # a class of the user's, which only the loader's collate function understands
        return 0


def chosen_of(data: PackedSamples, choice: SampleRequest) -> SelectedSamples:
    """The first of the packed samples, as many as are asked for: those that the packed job would have drawn.

    Raises:
        JobError: more are asked for, or those of another seed.
    """
    if choice.seed != data.seed:
        raise JobError(
            f"seed: must be {data.seed}, with which the samples of {data.name} were drawn, not {choice.seed}; pack the "
            "job anew with the other one"
        )
    choice.check(data.length)
    count = min(choice.num_samples, data.length)
    indices = data.indices[:count].numpy()
    if data.sequences is not None:
        items = [data.sets[""][place] for place in range(count)]
        return SelectedSamples(Collated(items, data.collate_fn, choice.seed, data.name), indices)
    sets = {name: map_tensors(lambda tensor: tensor[:count], rows) for name, rows in data.sets.items()}
    whole = data.in_memory and count == data.length
    if not whole and sum(map(batch_bytes, sets.values())) <= choice.limit:
        sets = {name: map_tensors(lambda tensor: tensor.clone(), rows) for name, rows in sets.items()}
    return SelectedSamples(TensorSamples(sets[""]) if "" in sets else PointSets(sets), indices)


# ----------------------------------------------------------------------------------------------------
# The samples of an iterable: cut out of its batches, or its batches whole where they cannot be cut.


def from_stream(data: IterableData, choice: SampleRequest) -> SelectedSamples:
    """The samples of an iterable, see `select_samples`."""
    if data.collate is not None:
        return _items(data, data.collate, choice)
    try:
        return _rows(data, choice)
    except _NotRowsError as reason:
        log.info("data: the batches of %s are taken whole: %s", data.name, reason)
        begun = reason.begun
    return _whole(data, choice, begun)


class _NotRowsError(Exception):
    """The batches cannot be cut into samples of one shape.

    Attributes:
        begun: all batches, where only the first was read so far; None where they are to be read anew.
    """

    def __init__(self, reason: str, begun: Iterator[Any] | None) -> None:
        super().__init__(reason)
        self.begun = begun


class _Draw:
    """The random keys of the samples that are kept so far, in the order in which the samples were seen."""

    def __init__(self, data: IterableData, choice: SampleRequest) -> None:
        self._choice, self._limit = choice, ReadingLimit(data.name, data.length(), choice.num_samples)
        self._generator = torch.Generator().manual_seed(choice.seed)
        self._keys, self._numbers = torch.empty(0, dtype=torch.float64), torch.empty(0, dtype=torch.int64)
        self._seen = self._batches = 0

    def see(self, count: int) -> Tensor:
        """Draw keys for so many more samples; the positions, ascending, of those to keep among the kept and these."""
        new = torch.rand(count, generator=self._generator, dtype=torch.float64)
        keys = torch.cat([self._keys, new])
        numbers = torch.cat([self._numbers, torch.arange(self._seen, self._seen + count)])
        self._seen, self._batches = self._seen + count, self._batches + 1
        self._limit.check(self._batches, self._seen)
        best = torch.arange(len(keys))
        if len(keys) > self._choice.num_samples:
            best = keys.topk(self._choice.num_samples, largest=False).indices.sort().values
        self._keys, self._numbers = keys[best], numbers[best]
        return best

    def order(self) -> tuple[Tensor, NDArray[np.int64]]:
        """The places of the kept samples in the order drawn, and their numbers in that order."""
        self._choice.check(self._seen)
        order = self._keys.argsort()
        return order, self._numbers[order].numpy()


def _rows(data: IterableData, choice: SampleRequest) -> SelectedSamples:
    """The samples with the smallest keys, of every sample that the iterable yields, as rows of tensors."""
    reservoir, draw = Reservoir(choice.limit), _Draw(data, choice)
    batches = data.batches(choice.seed)
    for number, (batch, shapes) in enumerate(_cut(batches, choice)):
        if number == 0:
            first = shapes
        elif len(shapes) == len(first) and shapes != first:
            differ = f"batch {number} has samples of shapes {shapes}, the first of {first}"
            if data.once:
                raise JobError(
                    f"data: {data.name}: {differ}, and such batches are taken whole, for which it must be read again; "
                    "return a list, a DataLoader or a class with __iter__"
                )
            raise _NotRowsError(differ, None)
        reservoir.keep(batch, draw.see(batch_length(batch)))
    order, numbers = draw.order()
    return SelectedSamples(TensorSamples(reservoir.samples(order)), numbers)


def _cut(batches: Iterator[Any], choice: SampleRequest) -> Iterator[tuple[Batch, list[tuple[int, ...]]]]:
    """The batches as tensors with one first dimension, each with the shapes of one sample."""
    for number, batch in enumerate(batches):
        if number == 0 and not _is_rows(batch, choice):
            raise _NotRowsError("they are not tensors with one first dimension", itertools.chain([batch], batches))
        rows = as_rows(batch)
        yield rows, [tuple(tensor.shape[1:]) for tensor in tensors_of(rows)]


def _is_rows(batch: Any, choice: SampleRequest) -> bool:
    """Whether a batch is tensors with one first dimension, which is also the number of samples that `length` gives."""
    count = first_dimension(numpy_to_tensors(batch))
    return count is not None and (choice.length is None or length_by(choice.length, batch) == count)


def _items(data: IterableData, collate: Callable[[list[Any]], Any], choice: SampleRequest) -> SelectedSamples:
    """The items with the smallest keys, and the loader's collate function."""
    kept, draw, places = KeptItems(choice.limit), _Draw(data, choice), list[int]()
    for items in data.batches(choice.seed):
        before = len(places)
        best = draw.see(len(items)).tolist()
        added = {k: kept.add(items[k - before], approximate_bytes(items[k - before])) for k in best if k >= before}
        for place in set(range(before)) - set(best):
            kept.drop(places[place])
        places = [places[k] if k < before else added[k] for k in best]
    order, numbers = draw.order()
    chosen = kept.items([places[k] for k in order.tolist()])
    return SelectedSamples(Collated(chosen, collate, choice.seed, data.name, choice.length), numbers)


@dataclass(frozen=True, order=True)
class _Whole:
    """A batch that is kept: its key, its number in the iterable, its place among what is kept, its samples."""

    key: float
    number: int
    place: int
    length: int


def _whole(data: IterableData, choice: SampleRequest, begun: Iterator[Batch] | None) -> SelectedSamples:
    """Batches with the smallest keys, in the order of these, until there are as many samples as asked for."""
    limit = ReadingLimit(data.name, data.length(), choice.num_samples)
    generator = torch.Generator().manual_seed(choice.seed)
    kept, taken, kind = KeptItems(choice.limit), list[_Whole](), ""
    seen = held = 0  # samples in the batches that were ever kept, and in those that are
    for number, batch in enumerate(begun or data.batches(choice.seed)):
        kind = _same_kind(kind, batch, data.name)
        key = float(torch.rand(1, generator=generator, dtype=torch.float64))
        limit.check(number + 1, seen)
        if held >= choice.num_samples and key > taken[-1].key:
            continue  # whatever its length, which it may take a call of `observe` to tell
        length = _length_of(batch, number, data.name, choice)
        seen += length
        bisect.insort(taken, _Whole(key, number, kept.add(batch, approximate_bytes(batch)), length))
        held += length
        while held - taken[-1].length >= choice.num_samples:
            held -= taken[-1].length
            kept.drop(taken.pop().place)
    choice.check(seen)
    lengths = np.array([batch.length for batch in taken], np.int64)
    batches = kept.items([batch.place for batch in taken])
    return SelectedSamples(
        WholeBatches(batches, lengths, choice.length is not None), np.array([batch.number for batch in taken], np.int64)
    )


def _same_kind(kind: str, batch: Any, name: str) -> str:
    found = kind_in_words(batch, -1)
    if kind and not are_one_kind(found, kind):
        raise JobError(f"data: {name} must yield one kind of batch, not {kind} first and then {found}")
    return found


def _length_of(batch: Any, number: int, name: str, choice: SampleRequest) -> int:
    """How many samples a batch holds, by the problem's `length`, its structure, or what `observe` returns."""
    if choice.length is not None:
        return length_by(choice.length, batch)
    rows = first_dimension(numpy_to_tensors(batch))
    if rows:
        return rows
    if choice.observed is None:
        raise JobError(f"data: how many samples batch {number} of {name} holds is not known; give Problem(length=...)")
    return choice.observed(batch)
