"""The fixed choice of samples: by the seed alone, from tensors, data sets and iterables; in memory or on disk."""

from __future__ import annotations

import itertools
import logging
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, SubsetRandomSampler, default_collate

from landscape.errors import JobError
from landscape.memory import host_limit
from landscape.samples import (
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
from landscape.spill import Columns

PIECE_BYTES = 64 << 20  # of what is written to disk, at a time

log = logging.getLogger("landscape")


def select_samples(data: Any, num_samples: int, seed: int, *, at_most: bool = False, limit: int | None = None) -> Batch:
    """Choose `num_samples` different samples by the seed alone and return them as one batch on the CPU.

    Tensors and map-style data sets keep the samples' order in the data. An iterable is read once, batch by
    batch, and only the chosen samples are kept: each sample gets a uniform key and the smallest keys win.
    What is more than the memory may hold is written to disk as it comes, and mapped.

    Args:
        at_most: take all there are where `num_samples` is more; otherwise that is refused.
        limit: bytes above which they are kept on disk; default: a share of the memory that is available.

    Raises:
        JobError: there are fewer samples than asked for, or the data is none of the known kinds.
    """
    how = _Choice(num_samples, seed, at_most, host_limit() if limit is None else limit)
    if isinstance(data, DataLoader):
        return _from_loader(data, how)
    if isinstance(data, IterableDataset):
        raise JobError(
            f"data: {type(data).__name__} yields samples without a number; wrap it in a DataLoader, which makes batches"
        )
    if isinstance(data, (Tensor, tuple, Mapping)) or _is_list_of_tensors(data):
        data = map_tensors(lambda tensor: tensor.detach().cpu(), _numpy_to_tensors(data))
        return _rows_of(data, how.indices(batch_length(data)), how.limit)
    if isinstance(data, Dataset) or (
        hasattr(data, "__getitem__") and hasattr(data, "__len__") and not _holds_batches(data)
    ):
        return _from_dataset(data, how, default_collate)
    if isinstance(data, Iterable):
        return _from_batches(data, how)
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


@dataclass(frozen=True)
class _Choice:
    """How many samples, by which seed, and above how many bytes they are kept on disk."""

    num_samples: int
    seed: int
    at_most: bool
    limit: int

    def indices(self, available: int) -> Tensor:
        self.check(available)
        order = torch.randperm(available, generator=torch.Generator().manual_seed(self.seed))
        return order[: self.num_samples].sort().values

    def check(self, available: int) -> None:
        if available == 0:
            raise JobError("data: holds no samples; num_samples needs at least 1")
        if self.num_samples > available and not self.at_most:
            raise JobError(
                f"num_samples: must be at most the {available} samples that the data has, not {self.num_samples}"
            )


def _rows_of(data: Batch, index: Tensor, limit: int) -> Batch:
    row = -(-batch_bytes(data) // max(1, batch_length(data)))
    if row * len(index) <= limit:
        return _take(data, index)
    parts = index.split(max(1, PIECE_BYTES // row))  # type: ignore[no-untyped-call]
    return _on_disk(_take(data, part) for part in parts)


def _from_loader(data: DataLoader[Any], how: _Choice) -> Batch:
    """From the data set behind a loader, whose own shuffling and drop_last depend on who reads it."""
    dataset = data.dataset
    if isinstance(dataset, IterableDataset):
        return _from_batches(data, how)
    if data.batch_sampler is None:  # batch_size=None: the data set's items are batches
        items = (data.collate_fn(dataset[i]) for i in range(len(dataset)))  # type: ignore[arg-type]
        return _from_batches(items, how)
    if isinstance(data.sampler, SubsetRandomSampler):
        dataset = Subset(dataset, sorted({int(i) for i in data.sampler.indices}))
    return _from_dataset(dataset, how, data.collate_fn)


def _from_dataset(data: Any, how: _Choice, collate: Callable[[list[Any]], Any]) -> Batch:
    def collated(items: list[Any]) -> Batch:
        return map_tensors(lambda tensor: tensor.detach().cpu().contiguous(), collate(items))

    index = how.indices(len(data))
    items: Iterator[Any] = (data[int(i)] for i in index)
    first = next(items)
    size = max(1, _bytes_of(first))
    items = itertools.chain([first], items)
    if size * len(index) <= how.limit:
        return collated(list(items))
    pieces = iter(lambda: list(itertools.islice(items, max(1, PIECE_BYTES // size))), [])
    return _on_disk(map(collated, pieces))


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


def _from_batches(data: Iterable[Any], how: _Choice) -> Batch:
    generator = torch.Generator().manual_seed(how.seed)
    kept = _Kept(how.limit)
    keys = torch.empty(0, dtype=torch.float64)
    seen = 0
    for batch in _batches(data):
        count = batch_length(batch)
        seen += count
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
        self._columns: Columns | None = None  # on disk
        self._rows = 0
        self._places = torch.empty(0, dtype=torch.int64)  # the rows that are kept

    def add(self, batch: Batch, best: Tensor) -> None:
        """Keep the rows `best`, ascending, of those kept so far followed by the batch's."""
        self._like = empty_like(batch) if self._like is None else self._like
        batch, old = in_order(self._like, batch), len(self._places)
        new = best[best >= old] - old
        self._append(batch if len(new) == batch_length(batch) else _take(batch, new))
        self._places = torch.cat([self._places[best[best < old]], torch.arange(self._rows, self._rows + len(new))])
        self._rows += len(new)
        if self._columns is None:
            self._tidy()

    def _append(self, rows: Batch) -> None:
        if self._columns is None:
            self._pieces.append(rows)
        else:
            self._columns.append(tensors_of(rows))

    def _tidy(self) -> None:
        if self._rows > 2 * len(self._places):
            self._pieces = [_take(concatenate(self._pieces), self._places)]
            self._rows = len(self._places)
            self._places = torch.arange(self._rows)
        if sum(map(batch_bytes, self._pieces)) * len(self._places) > self._limit * self._rows:
            self._columns = Columns(tensors_of(self._like))
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


def _batches(data: Iterable[Any]) -> Iterator[Batch]:
    for batch in data:
        yield map_tensors(lambda tensor: tensor.detach().cpu(), _numpy_to_tensors(batch))


def _on_disk(pieces: Iterable[Batch]) -> Batch:
    """The batches one after the other as one, in files that are mapped."""
    like: Batch = None
    for piece in pieces:
        if like is None:
            like, columns = empty_like(piece), Columns(tensors_of(piece))
        columns.append(tensors_of(in_order(like, piece)))
    found = filled(like, columns.mapped())
    log.info("data: %.1f MB of samples are kept on disk, in %s", batch_bytes(found) / 1e6, tempfile.gettempdir())
    return found
