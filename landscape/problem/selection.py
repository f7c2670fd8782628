"""Which samples a landscape is computed on: chosen once, by the seed alone, and kept in memory or on disk."""

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
from landscape.problem.endless import ReadingLimit
from landscape.problem.sources import Items, Stream, source_of
from landscape.problem.tensor_files import TensorFiles

PIECE_BYTES = 64 << 20  # of samples that are written to disk at a time
# Up to this many samples all their indices are shuffled, at eight bytes each; of more only the wanted ones are drawn.
LARGEST_SHUFFLED = 1 << 28

log = logging.getLogger("landscape")


def select_samples(data: Any, num_samples: int, seed: int, *, at_most: bool = False, limit: int | None = None) -> Batch:
    """Choose `num_samples` different samples by the seed alone, and return them as one batch on the CPU.

    Of tensors and map-style data sets a random subset of the indices is taken; the samples keep their order in the
    data. An iterable is read once, batch by batch: each sample draws a uniform key, and those with the smallest keys
    are kept (reservoir sampling with random keys). Samples that take more memory than `limit` are written
    to disk while they are read, and mapped.

    While the data are read, torch, numpy and `random` draw from seeds of the job's own; afterwards the process's
    generators are as they were.

    Args:
        data: what `Problem.data` holds.
        num_samples: how many samples to choose.
        seed: the job's seed.
        at_most: where there are fewer samples than `num_samples`, take them all; otherwise that is refused.
        limit: bytes of samples above which they are kept on disk; default: a share of the memory that is available.

    Returns:
        One batch whose tensors have `num_samples` as their first dimension.

    Raises:
        JobError: there are fewer samples than asked for, the data is none of the known kinds, or cannot be read.

    Example:
        >>> data = torch.arange(10)
        >>> chosen = select_samples(data, 4, seed=0)
        >>> len(chosen), bool((chosen == select_samples(data, 4, seed=0)).all())
        (4, True)
    """
    choice = _Choice(num_samples, seed, at_most, host_limit() if limit is None else limit)
    source = source_of(data)
    with fixed_seeds(seed):
        if isinstance(source, Items):
            return _from_items(source, choice)
        if isinstance(source, Stream):
            return _from_stream(source, choice)
    return _rows_of(source, choice.indices(batch_length(source)), choice.limit)


def chosen_indices(available: int, num_samples: int, seed: int) -> list[int]:
    """The indices of the samples chosen from so many, ascending; of all of them where there are not enough.

    Example:
        >>> chosen_indices(3, 5, seed=0)
        [0, 1, 2]
    """
    return _Choice(num_samples, seed, at_most=True, limit=0).indices(available).tolist()


@dataclass(frozen=True)
class _Choice:
    """What `select_samples` was asked for: how many samples, by which seed, and above how many bytes on disk."""

    num_samples: int
    seed: int
    at_most: bool
    limit: int

    def indices(self, available: int) -> Tensor:
        """The indices of the chosen samples, ascending, below `available`."""
        self.check(available)
        generator = torch.Generator().manual_seed(self.seed)
        if available <= LARGEST_SHUFFLED:
            chosen = torch.randperm(available, generator=generator)[: self.num_samples]
        else:
            chosen = _few_of_many(min(self.num_samples, available), available, generator)
        return chosen.sort().values

    def check(self, available: int) -> None:
        """Refuse data with no samples, or with too few.

        Raises:
            JobError: says how many there are.
        """
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
    return torch.tensor(list(chosen))


def _rows_of(data: Batch, indices: Tensor, limit: int) -> Batch:
    """The samples of `data` at these indices, in memory up to `limit` bytes, else on disk."""
    sample_bytes = -(-batch_bytes(data) // max(1, batch_length(data)))
    if sample_bytes * len(indices) <= limit:
        return _take(data, indices)
    parts = indices.split(max(1, PIECE_BYTES // sample_bytes))  # type: ignore[no-untyped-call]
    return _on_disk(_take(data, part) for part in parts)


def _from_items(data: Items, choice: _Choice) -> Batch:
    length = data.length()
    indices = choice.indices(length)
    items = data.read(indices.tolist(), length, choice.seed)
    first = next(items)
    sample_bytes = max(1, _bytes_of(first))
    items = itertools.chain([first], items)
    if sample_bytes * len(indices) <= choice.limit:
        return data.collated(list(items), choice.seed, 0)
    at_once = max(1, PIECE_BYTES // sample_bytes)

    def pieces() -> Iterator[Batch]:
        for start in range(0, len(indices), at_once):
            yield data.collated(list(itertools.islice(items, at_once)), choice.seed, start)

    return _on_disk(pieces())


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


def _from_stream(data: Stream, choice: _Choice) -> Batch:
    """The samples with the smallest keys, of every sample that the iterable yields."""
    limit = ReadingLimit(data.name, data.length(), choice.num_samples)
    generator = torch.Generator().manual_seed(choice.seed)
    reservoir = _Reservoir(choice.limit)
    keys = torch.empty(0, dtype=torch.float64)
    seen = 0
    for number, batch in enumerate(data.batches(choice.seed), 1):
        count = batch_length(batch)
        seen += count
        limit.check(number, seen)
        keys = torch.cat([keys, torch.rand(count, generator=generator, dtype=torch.float64)])
        best = torch.arange(len(keys))
        if len(keys) > choice.num_samples:
            best = keys.topk(choice.num_samples, largest=False).indices.sort().values
        reservoir.keep(batch, best)
        keys = keys[best]
    choice.check(seen)
    return reservoir.samples()


class _Reservoir:
    """The samples that are kept of those seen so far: in memory up to `limit` bytes, from then on on disk.

    A sample that is no longer kept leaves an unused row. In memory such rows are cleared away when they outnumber the
    others; on disk at the end, where about n·ln(N/n) of them are expected if n of N samples are kept.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._like: Batch = None
        self._pieces: list[Batch] = []  # the rows in memory
        self._bytes = 0  # of the pieces
        self._files: TensorFiles | None = None  # the rows on disk
        self._rows = 0
        self._kept_rows = torch.empty(0, dtype=torch.int64)  # ascending

    def keep(self, batch: Batch, best: Tensor) -> None:
        """Keep some of the samples kept so far and some of a new batch.

        Args:
            batch: the new samples.
            best: the positions, ascending, of the samples to keep among those kept so far followed by the batch's.
        """
        self._like = empty_like(batch) if self._like is None else self._like
        batch, old = in_order(self._like, batch), len(self._kept_rows)
        new = best[best >= old] - old
        if len(new):
            self._append(batch if len(new) == batch_length(batch) else _take(batch, new))
        added = torch.arange(self._rows, self._rows + len(new))
        self._kept_rows = torch.cat([self._kept_rows[best[best < old]], added])
        self._rows += len(new)
        if self._files is None:
            self._drop_unused_rows()
            self._move_to_disk_above_limit()

    def _append(self, rows: Batch) -> None:
        if self._files is None:
            self._pieces.append(rows)
            self._bytes += batch_bytes(rows)
        else:
            self._files.append(tensors_of(rows))

    def _drop_unused_rows(self) -> None:
        if self._rows > 2 * len(self._kept_rows):
            self._pieces = [_take(concatenate(self._pieces), self._kept_rows)]
            self._bytes = batch_bytes(self._pieces[0])
            self._rows = len(self._kept_rows)
            self._kept_rows = torch.arange(self._rows)

    def _move_to_disk_above_limit(self) -> None:
        if self._bytes * len(self._kept_rows) > self._limit * self._rows:
            self._files = TensorFiles(tensors_of(self._like))
            for piece in self._pieces:
                self._append(piece)
            self._pieces = []

    def samples(self) -> Batch:
        """The samples that are kept, in the order in which they were seen."""
        if self._files is not None:
            rows = filled(self._like, self._files.mapped())
            return rows if len(self._kept_rows) == self._rows else _rows_of(rows, self._kept_rows, limit=0)
        rows = concatenate(self._pieces)
        return rows if len(self._kept_rows) == self._rows else _take(rows, self._kept_rows)


def _take(batch: Batch, indices: Tensor) -> Batch:
    return map_tensors(lambda tensor: tensor[indices].contiguous(), batch)


def _on_disk(pieces: Iterable[Batch]) -> Batch:
    """These batches, one after the other, as one batch whose tensors are mapped files."""
    like: Batch = None
    for piece in pieces:
        if like is None:
            like, files = empty_like(piece), TensorFiles(tensors_of(piece))
        files.append(tensors_of(in_order(like, piece)))
        del piece  # before the next is read, so that only one is in memory at a time
    samples = filled(like, files.mapped())
    log.info("data: %.1f MB of samples are kept on disk, in %s", batch_bytes(samples) / 1e6, tempfile.gettempdir())
    return samples
