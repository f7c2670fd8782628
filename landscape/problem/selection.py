"""The choice of the samples that a landscape is computed on: made once, by the seed alone, in memory or on disk."""

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

# Up to this many samples, all indices are shuffled, at eight bytes each; above, only the wanted indices are drawn.
LARGEST_SHUFFLED = 1 << 28


@dataclass(frozen=True)
class SelectedSamples:
    """The samples of a job, and their places in the data.

    Attributes:
        samples: in the order drawn.
        indices: int64, for each sample in this order its index in the data, or its running number in an iterable.
    """

    samples: Samples
    indices: NDArray[np.int64]


@dataclass(frozen=True)
class SampleRequest:
    """The arguments of `select_samples`."""

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
    """The indices of `num_samples` samples chosen from `available`, ascending; all indices if there are fewer.

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

    From tensors and map-style data sets, a random subset of the indices is taken. An iterable is read once, batch by
    batch: each sample draws a uniform key, and those with the smallest keys are kept (reservoir sampling with random
    keys). If its batches cannot be cut into samples of one shape, whole batches draw keys, and those with the smallest
    are taken until there are enough samples. The samples are in the order drawn: a smaller choice is the beginning of a
    larger one. Samples that take more memory than `limit` are written to disk while they are read, and mapped.

    Items of a loader with its own collate function stay items, which are collated batch by batch.

    While the data are read, torch, numpy and `random` draw from seeds of the job; afterwards the generators of the
    process have their earlier states.

    Args:
        data: `Problem.data`.
        num_samples: how many samples to choose.
        seed: the job's seed.
        at_most: whether to take all samples if there are fewer than `num_samples`; otherwise that is an error.
        limit: bytes of samples above which they are stored on disk; default: a share of the available memory.
        length: `Problem.length`.
        observed: counts the values that `observe` returns for a batch, for batches whose length is otherwise unknown.

    Raises:
        JobError: there are fewer samples than `num_samples`, the data is of no known kind, or cannot be read.

    Example:
        >>> import torch
        >>> data = torch.arange(10)
        >>> chosen, more = (select_samples(data, count, seed=0) for count in (4, 6))
        >>> bool((chosen.samples.rows == data[chosen.indices]).all())
        True
        >>> bool((chosen.indices == more.indices[:4]).all())
        True
    """
    request = SampleRequest(num_samples, seed, at_most, host_limit() if limit is None else limit, length, observed)
    if isinstance(data, PackedSamples):
        return _from_packed(data, request)
    if isinstance(data, PointData):
        return _from_points(data, request)
    source = source_of(data)
    with fixed_seeds(seed):
        if isinstance(source, MapStyleData):
            return _from_items(source, request)
        if isinstance(source, IterableData):
            return _from_stream(source, request)
    indices = request.indices(batch_length(source))
    return SelectedSamples(TensorSamples(rows_at(source, indices, request.limit)), indices.numpy())


def samples_in(data: Any) -> int | None:
    """How many samples tensors or a map-style data set hold; None for data that must be read to tell."""
    if isinstance(data, (PackedSamples, PointData, DataLoader)):
        return None
    source = source_of(data)
    if isinstance(source, IterableData):
        return None
    return source.length() if isinstance(source, MapStyleData) else batch_length(source)


def _from_points(data: PointData, request: SampleRequest) -> SelectedSamples:
    """Points of every set, each drawn by a seed of its own, so that a set does not depend on the size of another.

    The indices are those of the largest set.
    """
    request.check(data.length)
    drawn = {}
    for name, points in data.sets.items():
        own = replace(request, seed=seed_of(request.seed, "points", name), at_most=True)
        drawn[name] = own.indices(batch_length(points))
    sets = {name: rows_at(points, drawn[name], request.limit) for name, points in data.sets.items()}
    return SelectedSamples(PointSets(sets), max(drawn.values(), key=len).numpy())


def _from_items(data: MapStyleData, request: SampleRequest) -> SelectedSamples:
    data = data.read_sampler(request.num_samples, request.seed)
    length = data.length()
    indices = request.indices(length)
    items = data.read(indices.tolist(), length, request.seed)
    first = list(itertools.islice(items, 2))
    items = itertools.chain(first, items)
    numbers = data.numbers_of(indices.numpy())
    if _gives_rows(data, first, request.seed):
        return SelectedSamples(TensorSamples(_rows_of(data, items, len(indices), request)), numbers)
    buffer = KeptItems(request.limit)
    places = [buffer.add(item, approximate_bytes(item)) for item in items]
    samples = Collated(buffer.items(places), data.collate, request.seed, data.name, request.length)
    return SelectedSamples(samples, numbers)


def _gives_rows(data: MapStyleData, first: list[Any], seed: int) -> bool:
    """Whether the items are rectangular: torch's own function collates them to tensors with a row per item.

    A collate function of the user may pad, pack or join: its result depends on which items are together.
    """
    if data.collate is not default_collate:
        return False
    return first_dimension(data.collate_any(first, seed, 0)) == len(first)


def _rows_of(data: MapStyleData, items: Iterator[Any], count: int, request: SampleRequest) -> Batch:
    """`count` items collated at once; above the limit in pieces, on disk."""
    first = next(items)
    sample_bytes = max(1, _bytes_of(first))
    items = itertools.chain([first], items)
    if sample_bytes * count <= request.limit:
        return as_rows(data.collate_any(list(items), request.seed, 0))
    at_once = max(1, disk_buffer.PIECE_BYTES // sample_bytes)

    def pieces() -> Iterator[Batch]:
        for start in range(0, count, at_once):
            yield as_rows(data.collate_any(list(itertools.islice(items, at_once)), request.seed, start))

    return on_disk(pieces())


def _bytes_of(item: Any) -> int:
    """The approximate bytes of a sample of a data set: of its tensors, arrays, images and numbers."""
    if isinstance(item, Tensor):
        return item.nbytes
    if isinstance(item, Mapping):
        return sum(map(_bytes_of, item.values()))
    if isinstance(item, (tuple, list)):
        return sum(map(_bytes_of, item))
    try:
        return int(np.asarray(item).nbytes)
    except Exception:  # a class of the user, which only the loader's collate function understands
        return 0


def _from_packed(data: PackedSamples, request: SampleRequest) -> SelectedSamples:
    """The first packed samples, which are those that the packed job would have drawn.

    Raises:
        JobError: more samples are requested than are packed, or another seed.
    """
    if request.seed != data.seed:
        raise JobError(
            f"seed: must be {data.seed}, with which the samples of {data.name} were drawn, not {request.seed}; pack "
            "the job anew with the other one"
        )
    request.check(data.length)
    count = min(request.num_samples, data.length)
    indices = data.indices[:count].numpy()
    if data.sequences is not None:
        items = [data.sets[""][place] for place in range(count)]
        return SelectedSamples(Collated(items, data.collate_fn, request.seed, data.name), indices)
    sets = {name: map_tensors(lambda tensor: tensor[:count], rows) for name, rows in data.sets.items()}
    whole = data.in_memory and count == data.length
    if not whole and sum(map(batch_bytes, sets.values())) <= request.limit:
        sets = {name: map_tensors(lambda tensor: tensor.clone(), rows) for name, rows in sets.items()}
    return SelectedSamples(TensorSamples(sets[""]) if "" in sets else PointSets(sets), indices)


# ----------------------------------------------------------------------------------------------------
# The samples of an iterable: cut out of its batches, or whole batches if they cannot be cut.


def _from_stream(data: IterableData, request: SampleRequest) -> SelectedSamples:
    if data.collate is not None:
        return _select_items(data, data.collate, request)
    try:
        return _select_rows(data, request)
    except _NotRowsError as reason:
        log.info("data: the batches of %s are taken whole: %s", data.name, reason)
        batches = reason.batches
    return _select_batches(data, request, batches)


class _NotRowsError(Exception):
    """The batches cannot be cut into samples of one shape.

    Attributes:
        batches: all batches, if only the first was read so far; None if they must be read again.
    """

    def __init__(self, reason: str, batches: Iterator[Any] | None) -> None:
        super().__init__(reason)
        self.batches = batches


class _Draw:
    """The random keys of the samples kept so far, in the order in which the samples were seen."""

    def __init__(self, data: IterableData, request: SampleRequest) -> None:
        self._request, self._limit = request, ReadingLimit(data.name, data.length(), request.num_samples)
        self._generator = torch.Generator().manual_seed(request.seed)
        self._keys, self._numbers = torch.empty(0, dtype=torch.float64), torch.empty(0, dtype=torch.int64)
        self._seen = self._batches = 0

    def see(self, count: int) -> Tensor:
        """Draw keys for `count` new samples.

        Returns:
            The positions of the samples to keep, ascending, among the samples kept so far and then the new ones.
        """
        new = torch.rand(count, generator=self._generator, dtype=torch.float64)
        keys = torch.cat([self._keys, new])
        numbers = torch.cat([self._numbers, torch.arange(self._seen, self._seen + count)])
        self._seen, self._batches = self._seen + count, self._batches + 1
        self._limit.check(self._batches, self._seen)
        best = torch.arange(len(keys))
        if len(keys) > self._request.num_samples:
            best = keys.topk(self._request.num_samples, largest=False).indices.sort().values
        self._keys, self._numbers = keys[best], numbers[best]
        return best

    def order(self) -> tuple[Tensor, NDArray[np.int64]]:
        """The places of the kept samples in the order drawn, and their numbers in that order."""
        self._request.check(self._seen)
        order = self._keys.argsort()
        return order, self._numbers[order].numpy()


def _select_rows(data: IterableData, request: SampleRequest) -> SelectedSamples:
    """Of all samples that the iterable yields, those with the smallest keys, as rows of tensors."""
    reservoir, draw = Reservoir(request.limit), _Draw(data, request)
    batches = data.batches(request.seed)
    for number, (batch, shapes) in enumerate(_cut(batches, request)):
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


def _cut(batches: Iterator[Any], request: SampleRequest) -> Iterator[tuple[Batch, list[tuple[int, ...]]]]:
    """The batches as tensors with one first dimension, each with the shapes of one sample."""
    for number, batch in enumerate(batches):
        if number == 0 and not _is_rows(batch, request):
            raise _NotRowsError("they are not tensors with one first dimension", itertools.chain([batch], batches))
        rows = as_rows(batch)
        yield rows, [tuple(tensor.shape[1:]) for tensor in tensors_of(rows)]


def _is_rows(batch: Any, request: SampleRequest) -> bool:
    """Whether a batch is tensors with one first dimension, which equals the problem's `length`, if it has one."""
    count = first_dimension(numpy_to_tensors(batch))
    return count is not None and (request.length is None or length_by(request.length, batch) == count)


def _select_items(data: IterableData, collate: Callable[[list[Any]], Any], request: SampleRequest) -> SelectedSamples:
    """The items with the smallest keys, and the loader's collate function."""
    buffer, draw, places = KeptItems(request.limit), _Draw(data, request), list[int]()
    for items in data.batches(request.seed):
        before = len(places)
        best = draw.see(len(items)).tolist()
        added = {k: buffer.add(items[k - before], approximate_bytes(items[k - before])) for k in best if k >= before}
        for place in set(range(before)) - set(best):
            buffer.drop(places[place])
        places = [places[k] if k < before else added[k] for k in best]
    order, numbers = draw.order()
    chosen = buffer.items([places[k] for k in order.tolist()])
    return SelectedSamples(Collated(chosen, collate, request.seed, data.name, request.length), numbers)


@dataclass(frozen=True, order=True)
class _KeptBatch:
    """A batch that is kept: its key, its number in the iterable, its place in the buffer, its number of samples."""

    key: float
    number: int
    place: int
    length: int


def _select_batches(data: IterableData, request: SampleRequest, batches: Iterator[Batch] | None) -> SelectedSamples:
    """Whole batches with the smallest keys, ordered by key, until there are enough samples.

    Args:
        batches: of the iterable, if its reading has begun; default: read it.
    """
    limit = ReadingLimit(data.name, data.length(), request.num_samples)
    generator = torch.Generator().manual_seed(request.seed)
    buffer, kept, kind = KeptItems(request.limit), list[_KeptBatch](), ""
    seen = samples = 0  # samples in the batches that were ever kept, and in those that are kept now
    for number, batch in enumerate(batches or data.batches(request.seed)):
        kind = _check_kind(kind, batch, data.name)
        key = float(torch.rand(1, generator=generator, dtype=torch.float64))
        limit.check(number + 1, seen)
        if samples >= request.num_samples and key > kept[-1].key:
            continue  # its length is not needed, which may take a call of `observe`
        length = _length_of(batch, number, data.name, request)
        seen += length
        bisect.insort(kept, _KeptBatch(key, number, buffer.add(batch, approximate_bytes(batch)), length))
        samples += length
        while samples - kept[-1].length >= request.num_samples:
            samples -= kept[-1].length
            buffer.drop(kept.pop().place)
    request.check(seen)
    lengths = np.array([one.length for one in kept], np.int64)
    whole = WholeBatches(buffer.items([one.place for one in kept]), lengths, request.length is not None)
    return SelectedSamples(whole, np.array([one.number for one in kept], np.int64))


def _check_kind(first: str, batch: Any, name: str) -> str:
    kind = kind_in_words(batch, -1)
    if first and not are_one_kind(kind, first):
        raise JobError(f"data: {name} must yield one kind of batch, not {first} first and then {kind}")
    return kind


def _length_of(batch: Any, number: int, name: str, request: SampleRequest) -> int:
    """How many samples a batch holds, from the problem's `length`, its structure, or the values of `observe`."""
    if request.length is not None:
        return length_by(request.length, batch)
    rows = first_dimension(numpy_to_tensors(batch))
    if rows:
        return rows
    if request.observed is None:
        raise JobError(f"data: how many samples batch {number} of {name} holds is not known; give Problem(length=...)")
    return request.observed(batch)
