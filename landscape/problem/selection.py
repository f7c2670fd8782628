"""Which samples a landscape is computed on: chosen once, by the seed alone, and kept in memory or on disk."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader, default_collate

from landscape.core.devices import host_limit
from landscape.core.random_state import fixed_seeds
from landscape.model.packed_model import PackedSamples
from landscape.problem import disk_buffer
from landscape.problem.batches import Batch, batch_length, first_dimension
from landscape.problem.callback import chosen_of
from landscape.problem.collated import Collated, KeptItems, Length, bytes_of
from landscape.problem.disk_buffer import on_disk, rows_at
from landscape.problem.randomness import SampleRequest, SelectedSamples
from landscape.problem.samples import TensorSamples
from landscape.problem.sources import IterableData, MapStyleData, as_rows, seed_of, source_of
from landscape.problem.streams import from_stream
from landscape.problem.terms import PointData, PointSets


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
    places = [kept.add(item, bytes_of(item)) for item in items]
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
