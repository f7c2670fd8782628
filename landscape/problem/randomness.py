"""Whether reading the data draws random numbers: some samples are read again, under the same seed and another one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from landscape.core.errors import JobError, flat, message_of
from landscape.core.random_state import fixed_seeds
from landscape.model.packed_model import PackedSamples
from landscape.problem.batches import Batch, batch_length, field_names, first_dimension
from landscape.problem.collated import Length, digest_of, fields_of
from landscape.problem.samples import Samples
from landscape.problem.sources import IterableData, MapStyleData, numpy_to_tensors, seed_of, source_of
from landscape.problem.terms import PointData
from landscape.surface.record_parts import RandomData

# ----------------------------------------------------------------------------------------------------
# Which samples are asked for, the indices that a seed gives, and what comes of it.

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


def chosen_indices(available: int, num_samples: int, seed: int) -> list[int]:
    """The indices of the samples chosen from so many, ascending; of all of them where there are not enough.

    Example:
        >>> chosen_indices(3, 5, seed=0)
        [0, 1, 2]
    """
    return sorted(SampleRequest(num_samples, seed, at_most=True, limit=0).indices(available).tolist())


# ----------------------------------------------------------------------------------------------------

READ_AGAIN = 16  # samples of a map-style data set; of an iterable it is the first batch
LISTED = 5  # fields that a warning names


def randomness_warnings(random: RandomData) -> list[str]:
    """What the user is told; empty where no field is random."""
    lines = []
    if random.unseeded:
        lines.append(
            f"data: {_listed(random.unseeded)} differ each time they are read, under one seed too, as the data draw "
            "from a generator of their own: a job that is stopped may be refused when it goes on, and two runs "
            "differ; draw from torch's, numpy's or random's global generator, or return the evaluation transform"
        )
    if random.fields:
        lines.append(
            f"data: {_listed(random.fields)} are random, as training's augmentation is; they are drawn once, under "
            "the job's seed, and are the same at every point, so the landscape is that of these draws; for that "
            "of the data as they are return the evaluation transform (no random crop, flip, noise or shuffling)"
        )
    if random.unchecked:
        lines.append(f"data: it was not checked whether the samples are random: {random.unchecked}")
    return lines


def look_for_randomness(data: Any, num_samples: int, seed: int) -> RandomData:
    """Read some of a job's samples twice more, under its seed and under another, and compare.

    Fields that differ are read once more under the other seed, and compared with the reading just before: what
    differs even then no seed of ours reaches. Two readings in a row are compared, so that data which alternate between
    two values do not seem to follow the seed. The process's random number generators are left as they were.

    Args:
        data: what `Problem.data` holds.
        num_samples: how many samples the job chooses; at most `READ_AGAIN` of them are read, of an iterable the first
            batch.
        seed: the job's seed.

    Returns:
        What differs; data that cannot be read again are no error, and `unchecked` says so.
    """
    if isinstance(data, (PointData, PackedSamples)):
        return _outcome(checked=min(num_samples, data.length))
    source = source_of(data)
    if not isinstance(source, (MapStyleData, IterableData)):
        return _outcome(checked=min(num_samples, batch_length(source)))
    if isinstance(source, IterableData) and source.once:
        return _outcome(
            unchecked=f"{source.name} can be read once only; return a list, a DataLoader or a class with __iter__"
        )
    try:
        with fixed_seeds(seed):
            if isinstance(source, MapStyleData):
                read = _reader_of_items(source, num_samples, seed)
            else:
                read = _reader_of_first_batch(source)
            another = seed_of(seed, "another")
            first, second = read(seed), read(another)
            differ = tuple(differing(first.batch, second.batch))
            unseeded = tuple(differing(second.batch, read(another).batch)) if differ else ()
    except JobError as error:
        return _outcome(unchecked=f"they cannot be read a second time: {message_of(error).removeprefix('data: ')}")
    return _outcome(tuple(name for name in differ if name not in unseeded), unseeded, first.count)


def _outcome(
    fields: tuple[str, ...] = (), unseeded: tuple[str, ...] = (), checked: int = 0, unchecked: str = ""
) -> RandomData:
    return RandomData(fields=fields, unseeded=unseeded, checked=checked, unchecked=unchecked)


@dataclass(frozen=True)
class _Reading:
    """A batch that was read for comparison, and how many samples it was made of."""

    batch: Any
    count: int


def _reader_of_items(data: MapStyleData, num_samples: int, seed: int) -> Callable[[int], _Reading]:
    """A function that reads some of the chosen samples, always the same ones, under the seed that it is given."""
    data = data.resolved(num_samples, seed)
    length = data.length()
    chosen = chosen_indices(length, num_samples, seed)
    some = chosen[:: max(1, len(chosen) // READ_AGAIN)][:READ_AGAIN]
    return lambda seed: _Reading(data.collate_any(list(data.read(some, length, seed)), seed, 0), len(some))


def _reader_of_first_batch(data: IterableData) -> Callable[[int], _Reading]:
    """A function that reads the first batch under the seed that it is given."""

    def read(seed: int) -> _Reading:
        batches = data.batches(seed)
        batch = next(batches, None)
        if batch is None:
            raise JobError(f"{data.name} is empty when it is iterated over anew")
        count = len(batch) if data.collate is not None else first_dimension(numpy_to_tensors(batch))
        return _Reading(batch, count or 1)

    return read


def differing(one: Batch, other: Batch) -> Iterator[str]:
    """The fields that do not hold the same bytes in both batches, in words: 'inputs (field 0)', a key of a dict.

    Example:
        >>> import torch
        >>> list(differing((torch.zeros(2), torch.zeros(2)), (torch.zeros(2), torch.ones(2))))
        ['targets (field 1)']
    """
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        if not _same(one, other):
            yield "samples"
    elif isinstance(one, Mapping) and isinstance(other, Mapping) and one.keys() == other.keys():
        yield from (flat(str(key), 60) for key in one if not _same(one[key], other[key]))
    elif isinstance(one, (tuple, list)) and isinstance(other, (tuple, list)) and len(one) == len(other):
        fields = zip(field_names(one), one, other, strict=True)
        yield from (name for name, first, second in fields if not _same(first, second))
    elif type(one) is type(other) and not isinstance(one, (Mapping, tuple, list)):
        others = fields_of(other)
        yield from (name for name, member in fields_of(one).items() if not _same(member, others[name]))
    else:
        yield "keys and lengths of the batches"


def _same(one: Any, other: Any) -> bool:
    return digest_of([one]) == digest_of([other])


def _listed(names: tuple[str, ...]) -> str:
    """At most `LISTED` names as a list in words: 'a, b and 3 more fields'."""
    few = [*names[:LISTED], *([f"{len(names) - LISTED} more fields"] if len(names) > LISTED else [])]
    return " and ".join(filter(None, [", ".join(few[:-1]), few[-1]]))
