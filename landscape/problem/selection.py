"""The fixed choice of samples: by the seed alone, from tensors, data sets and iterables; in memory or on disk."""

from __future__ import annotations

import itertools
import logging
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from landscape.draws import fixed_seeds
from landscape.errors import JobError
from landscape.memory import host_limit
from landscape.problem.batches import (
    Batch,
    batch_bytes,
    batch_length,
    concatenate,
    empty_like,
    filled,
    in_order,
    map_tensors,
    tensors_of,
)
from landscape.problem.sources import Bound, Items, Stream, source_of
from landscape.problem.tensor_files import TensorFiles

PIECE_BYTES = 64 << 20  # of what is written to disk, at a time
LARGEST_SHUFFLED = 1 << 28  # samples whose numbers are shuffled, at eight bytes each; of more the few wanted are drawn

log = logging.getLogger("landscape")


def select_samples(data: Any, num_samples: int, seed: int, *, at_most: bool = False, limit: int | None = None) -> Batch:
    """Choose `num_samples` different samples by the seed alone and return them as one batch on the CPU.

    Tensors and map-style data sets keep the samples' order in the data. An iterable is read once, batch by
    batch, and only the chosen samples are kept: each sample gets a uniform key and the smallest keys win.
    What is more than the memory may hold is written to disk as it comes, and mapped. What the data draw of torch,
    numpy and `random` meanwhile is drawn under seeds of the job's own, and the process's generators are left alone.

    Args:
        at_most: take all there are where `num_samples` is more; otherwise that is refused.
        limit: bytes above which they are kept on disk; default: a share of the memory that is available.

    Raises:
        JobError: there are fewer samples than asked for, the data is none of the known kinds, or cannot be read.
    """
    how = _Choice(num_samples, seed, at_most, host_limit() if limit is None else limit)
    source = source_of(data)
    with fixed_seeds(seed):
        if isinstance(source, Items):
            return _from_items(source, how)
        if isinstance(source, Stream):
            return _from_stream(source, how)
    return _rows_of(source, how.indices(batch_length(source)), how.limit)


def chosen_indices(available: int, num_samples: int, seed: int) -> list[int]:
    """Which of so many samples are chosen, or all where there are fewer."""
    return _Choice(num_samples, seed, at_most=True, limit=0).indices(available).tolist()


@dataclass(frozen=True)
class _Choice:
    """How many samples, by which seed, and above how many bytes they are kept on disk."""

    num_samples: int
    seed: int
    at_most: bool
    limit: int

    def indices(self, available: int) -> Tensor:
        self.check(available)
        generator = torch.Generator().manual_seed(self.seed)
        if available <= LARGEST_SHUFFLED:
            chosen = torch.randperm(available, generator=generator)[: self.num_samples]
        else:
            chosen = _few_of_many(min(self.num_samples, available), available, generator)
        return chosen.sort().values

    def check(self, available: int) -> None:
        if available == 0:
            raise JobError("data: holds no samples; num_samples needs at least 1")
        if self.num_samples > available and not self.at_most:
            raise JobError(
                f"num_samples: must be at most the {available} samples that the data has, not {self.num_samples}"
            )


def _few_of_many(count: int, available: int, generator: torch.Generator) -> Tensor:
    """Different numbers below `available`, all sets of them being equally likely."""
    chosen: dict[int, None] = {}
    while len(chosen) < count:
        drawn = torch.randint(available, (count - len(chosen),), generator=generator)
        chosen.update(dict.fromkeys(drawn.tolist()))
    return torch.tensor(list(chosen))


def _rows_of(data: Batch, index: Tensor, limit: int) -> Batch:
    row = -(-batch_bytes(data) // max(1, batch_length(data)))
    if row * len(index) <= limit:
        return _take(data, index)
    parts = index.split(max(1, PIECE_BYTES // row))  # type: ignore[no-untyped-call]
    return _on_disk(_take(data, part) for part in parts)


def _from_items(data: Items, how: _Choice) -> Batch:
    length = data.length()
    index = how.indices(length)
    items = data.read(index.tolist(), length, how.seed)
    first = next(items)
    size = max(1, _bytes_of(first))
    items = itertools.chain([first], items)
    if size * len(index) <= how.limit:
        return data.collated(list(items), how.seed, 0)
    at_once = max(1, PIECE_BYTES // size)

    def pieces() -> Iterator[Batch]:
        for start in range(0, len(index), at_once):
            yield data.collated(list(itertools.islice(items, at_once)), how.seed, start)

    return _on_disk(pieces())


def _bytes_of(item: Any) -> int:
    """About how much memory a sample of a data set takes: its tensors, arrays, images and numbers."""
    if isinstance(item, Tensor):
        return item.nbytes
    if isinstance(item, Mapping):
        return sum(map(_bytes_of, item.values()))
    if isinstance(item, (tuple, list)):
        return sum(map(_bytes_of, item))
    try:
        return int(np.asarray(item).nbytes)
    except Exception:  # a class of the user's, which the loader's collate_fn understands
        return 0


def _from_stream(data: Stream, how: _Choice) -> Batch:
    bound = Bound(data.name, data.length(), how.num_samples)
    generator = torch.Generator().manual_seed(how.seed)
    kept = _Kept(how.limit)
    keys = torch.empty(0, dtype=torch.float64)
    seen = 0
    for number, batch in enumerate(data.batches(how.seed), 1):
        count = batch_length(batch)
        seen += count
        bound.check(number, seen)
        keys = torch.cat([keys, torch.rand(count, generator=generator, dtype=torch.float64)])
        best = torch.arange(len(keys))
        if len(keys) > how.num_samples:
            best = keys.topk(how.num_samples, largest=False).indices.sort().values
        kept.add(batch, best)
        keys = keys[best]
    how.check(seen)
    return kept.samples()


class _Kept:
    """The samples kept of those seen so far, in memory up to `limit` bytes, then on disk.

    Rows that lose their place are cleared away now and then in memory, and at the end on disk, where n·ln(N/n) of
    them are expected for n kept of N.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._like: Batch = None
        self._pieces: list[Batch] = []  # in memory
        self._bytes = 0  # of them
        self._columns: TensorFiles | None = None  # on disk
        self._rows = 0
        self._places = torch.empty(0, dtype=torch.int64)  # the rows that are kept

    def add(self, batch: Batch, best: Tensor) -> None:
        """Keep the rows `best`, ascending, of those kept so far followed by the batch's."""
        self._like = empty_like(batch) if self._like is None else self._like
        batch, old = in_order(self._like, batch), len(self._places)
        new = best[best >= old] - old
        if len(new):
            self._append(batch if len(new) == batch_length(batch) else _take(batch, new))
        self._places = torch.cat([self._places[best[best < old]], torch.arange(self._rows, self._rows + len(new))])
        self._rows += len(new)
        if self._columns is None:
            self._tidy()

    def _append(self, rows: Batch) -> None:
        if self._columns is None:
            self._pieces.append(rows)
            self._bytes += batch_bytes(rows)
        else:
            self._columns.append(tensors_of(rows))

    def _tidy(self) -> None:
        if self._rows > 2 * len(self._places):
            self._pieces = [_take(concatenate(self._pieces), self._places)]
            self._bytes = batch_bytes(self._pieces[0])
            self._rows = len(self._places)
            self._places = torch.arange(self._rows)
        if self._bytes * len(self._places) > self._limit * self._rows:
            self._columns = TensorFiles(tensors_of(self._like))
            for piece in self._pieces:
                self._append(piece)
            self._pieces = []

    def samples(self) -> Batch:
        if self._columns is not None:
            found = filled(self._like, self._columns.mapped())
            return found if len(self._places) == self._rows else _rows_of(found, self._places, limit=0)
        found = concatenate(self._pieces)
        return found if len(self._places) == self._rows else _take(found, self._places)


def _take(batch: Batch, index: Tensor) -> Batch:
    return map_tensors(lambda tensor: tensor[index].contiguous(), batch)


def _on_disk(pieces: Iterable[Batch]) -> Batch:
    """The batches one after the other as one, in files that are mapped."""
    like: Batch = None
    for piece in pieces:
        if like is None:
            like, columns = empty_like(piece), TensorFiles(tensors_of(piece))
        columns.append(tensors_of(in_order(like, piece)))
        del piece  # before the next is read, so that one is in memory at a time
    found = filled(like, columns.mapped())
    log.info("data: %.1f MB of samples are kept on disk, in %s", batch_bytes(found) / 1e6, tempfile.gettempdir())
    return found
