"""Which samples a landscape is computed on: chosen once, by the seed alone, and kept in memory or on disk."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from landscape.draws import fixed_seeds
from landscape.errors import JobError
from landscape.memory import host_limit
from landscape.problem import kept_rows
from landscape.problem.batches import (
    Batch,
    batch_length,
)
from landscape.problem.endless import ReadingLimit
from landscape.problem.kept_rows import Reservoir, on_disk, rows_at
from landscape.problem.points import PointData, PointSets
from landscape.problem.samples import Rows, Samples
from landscape.problem.sources import Items, Stream, seed_of, source_of

# Up to this many samples all their indices are shuffled, at eight bytes each; of more only the wanted ones are drawn.
LARGEST_SHUFFLED = 1 << 28

log = logging.getLogger("landscape")


@dataclass(frozen=True)
class Chosen:
    """The samples of a job, and which of the data they are.

    Attributes:
        samples: in the order drawn; ascending where that was asked for.
        indices: int64, one for each sample in their order: its index in the data, of an iterable its running number.
    """

    samples: Samples
    indices: NDArray[np.int64]


def select_samples(
    data: Any, num_samples: int, seed: int, *, at_most: bool = False, ascending: bool = False, limit: int | None = None
) -> Chosen:
    """Choose `num_samples` different samples by the seed alone; they stay on the CPU.

    Of tensors and map-style data sets a random subset of the indices is taken. An iterable is read once, batch by
    batch: each sample draws a uniform key, and those with the smallest keys are kept (reservoir sampling with random
    keys). The samples are in the order drawn, so that the first of many are those that fewer would be. Samples that
    take more memory than `limit` are written to disk while they are read, and mapped.

    While the data are read, torch, numpy and `random` draw from seeds of the job's own; afterwards the process's
    generators are as they were.

    Args:
        data: what `Problem.data` holds.
        num_samples: how many samples to choose.
        seed: the job's seed.
        at_most: where there are fewer samples than `num_samples`, take them all; otherwise that is refused.
        ascending: keep the order that the samples have in the data, as earlier versions did.
        limit: bytes of samples above which they are kept on disk; default: a share of the memory that is available.

    Raises:
        JobError: there are fewer samples than asked for, the data is none of the known kinds, or cannot be read.

    Example:
        >>> data = torch.arange(10)
        >>> chosen, more = (select_samples(data, count, seed=0) for count in (4, 6))
        >>> bool((chosen.samples.rows == data[chosen.indices]).all())
        True
        >>> bool((chosen.indices == more.indices[:4]).all())
        True
    """
    choice = _Choice(num_samples, seed, at_most, ascending, host_limit() if limit is None else limit)
    if isinstance(data, PointData):
        return _of_points(data, choice)
    source = source_of(data)
    with fixed_seeds(seed):
        if isinstance(source, Items):
            return _from_items(source, choice)
        if isinstance(source, Stream):
            return _from_stream(source, choice)
    indices = choice.indices(batch_length(source))
    return Chosen(Rows(rows_at(source, indices, choice.limit)), indices.numpy())


def _of_points(data: PointData, choice: _Choice) -> Chosen:
    """Points of every set, drawn each by a seed of its own, so that a set does not depend on the size of another.

    The indices are those of the largest set.
    """
    choice.check(data.length)
    drawn = {}
    for name, points in data.sets.items():
        own = replace(choice, seed=seed_of(choice.seed, "points", name), at_most=True)
        drawn[name] = own.indices(batch_length(points))
    sets = {name: rows_at(points, drawn[name], choice.limit) for name, points in data.sets.items()}
    return Chosen(PointSets(sets), max(drawn.values(), key=len).numpy())


def chosen_indices(available: int, num_samples: int, seed: int) -> list[int]:
    """The indices of the samples chosen from so many, ascending; of all of them where there are not enough.

    Example:
        >>> chosen_indices(3, 5, seed=0)
        [0, 1, 2]
    """
    return _Choice(num_samples, seed, at_most=True, ascending=True, limit=0).indices(available).tolist()


@dataclass(frozen=True)
class _Choice:
    """What `select_samples` was asked for: how many samples, by which seed, and above how many bytes on disk."""

    num_samples: int
    seed: int
    at_most: bool
    ascending: bool
    limit: int

    def indices(self, available: int) -> Tensor:
        """The indices of the chosen samples, below `available`."""
        self.check(available)
        generator = torch.Generator().manual_seed(self.seed)
        if available <= LARGEST_SHUFFLED:
            chosen = torch.randperm(available, generator=generator)[: self.num_samples]
        else:
            chosen = _few_of_many(min(self.num_samples, available), available, generator)
        return chosen.sort().values if self.ascending else chosen

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
    return torch.tensor(list(chosen), dtype=torch.int64)


def _from_items(data: Items, choice: _Choice) -> Chosen:
    length = data.length()
    indices = choice.indices(length)
    items = data.read(indices.tolist(), length, choice.seed)
    first = next(items)
    sample_bytes = max(1, _bytes_of(first))
    items = itertools.chain([first], items)
    if sample_bytes * len(indices) <= choice.limit:
        return Chosen(Rows(data.collated(list(items), choice.seed, 0)), indices.numpy())
    at_once = max(1, kept_rows.PIECE_BYTES // sample_bytes)

    def pieces() -> Iterator[Batch]:
        for start in range(0, len(indices), at_once):
            yield data.collated(list(itertools.islice(items, at_once)), choice.seed, start)

    return Chosen(Rows(on_disk(pieces())), indices.numpy())


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


def _from_stream(data: Stream, choice: _Choice) -> Chosen:
    """The samples with the smallest keys, of every sample that the iterable yields."""
    limit = ReadingLimit(data.name, data.length(), choice.num_samples)
    generator = torch.Generator().manual_seed(choice.seed)
    reservoir = Reservoir(choice.limit)
    keys, numbers = torch.empty(0, dtype=torch.float64), torch.empty(0, dtype=torch.int64)
    seen = 0
    for number, batch in enumerate(data.batches(choice.seed), 1):
        count = batch_length(batch)
        keys = torch.cat([keys, torch.rand(count, generator=generator, dtype=torch.float64)])
        numbers = torch.cat([numbers, torch.arange(seen, seen + count)])
        seen += count
        limit.check(number, seen)
        best = torch.arange(len(keys))
        if len(keys) > choice.num_samples:
            best = keys.topk(choice.num_samples, largest=False).indices.sort().values
        reservoir.keep(batch, best)
        keys, numbers = keys[best], numbers[best]
    choice.check(seen)
    order = torch.arange(len(keys)) if choice.ascending else keys.argsort()
    return Chosen(Rows(reservoir.samples(order)), numbers[order].numpy())
