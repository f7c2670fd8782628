"""The choice of samples from an iterable: cut out of its batches, or its batches whole where they cannot be cut."""

from __future__ import annotations

import bisect
import itertools
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from landscape.core.errors import JobError
from landscape.problem.batches import Batch, are_one_kind, batch_length, first_dimension, kind_in_words, tensors_of
from landscape.problem.collated import Collated, KeptItems, WholeBatches, bytes_of, length_by
from landscape.problem.disk_buffer import Reservoir
from landscape.problem.randomness import SampleRequest, SelectedSamples
from landscape.problem.samples import TensorSamples
from landscape.problem.sources import IterableData, ReadingLimit, as_rows, numpy_to_tensors

log = logging.getLogger("landscape")


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
    """Keys of the samples seen so far that are kept, in the order in which they were seen."""

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
    """The batches as tensors with one first dimension, each with the shapes of one sample.

    Raises:
        _NotRowsError: the first of them is no such batch.
    """
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
        added = {k: kept.add(items[k - before], bytes_of(items[k - before])) for k in best if k >= before}
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
        bisect.insort(taken, _Whole(key, number, kept.add(batch, bytes_of(batch)), length))
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
    """How many samples a batch holds: by the problem's `length`, by its structure, or by what `observe` returns."""
    if choice.length is not None:
        return length_by(choice.length, batch)
    rows = first_dimension(numpy_to_tensors(batch))
    if rows:
        return rows
    if choice.observed is None:
        raise JobError(f"data: how many samples batch {number} of {name} holds is not known; give Problem(length=...)")
    return choice.observed(batch)
