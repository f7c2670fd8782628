"""Whether reading the data draws random numbers: some samples are read again, with the same seed and with another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from landscape.core.errors import JobError, message_of
from landscape.core.random_state import fixed_seeds
from landscape.model.packed_model import PackedSamples
from landscape.problem.batches import Batch, batch_length, fields_of, first_dimension
from landscape.problem.collated import digest_values
from landscape.problem.selection import chosen_indices
from landscape.problem.sources import IterableData, MapStyleData, numpy_to_tensors, seed_of, source_of
from landscape.problem.terms import PointData
from landscape.surface.record_parts import RandomData

READ_AGAIN = 16  # samples of a map-style data set; of an iterable it is the first batch
LISTED = 5  # fields that a warning names


def randomness_warnings(random: RandomData) -> list[str]:
    """The warnings for the user; none where no field is random."""
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
    """Read some of a job's samples twice more, with its seed and with another, and compare.

    If fields differ, the samples are read once more with the other seed, and compared with the reading just before. A
    field that differs even then draws from a generator of its own. Two readings in a row are compared, so that data
    which alternate between two values do not seem to follow the seed. The generators of the process are restored.

    Args:
        num_samples: how many samples the job chooses; at most `READ_AGAIN` of them are read, or the first batch of an
            iterable.

    Returns:
        Which fields differ. Data that cannot be read again are no error; then `unchecked` gives the reason.
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
            differ = tuple(differing_fields(first.batch, second.batch))
            unseeded = tuple(differing_fields(second.batch, read(another).batch)) if differ else ()
    except JobError as error:
        return _outcome(unchecked=f"they cannot be read a second time: {message_of(error).removeprefix('data: ')}")
    return _outcome(tuple(name for name in differ if name not in unseeded), unseeded, first.count)


def _outcome(
    fields: tuple[str, ...] = (), unseeded: tuple[str, ...] = (), checked: int = 0, unchecked: str = ""
) -> RandomData:
    return RandomData(fields=fields, unseeded=unseeded, checked=checked, unchecked=unchecked)


@dataclass(frozen=True)
class _Reading:
    """A batch that was read for comparison, and how many samples it holds."""

    batch: Any
    count: int


def _reader_of_items(data: MapStyleData, num_samples: int, seed: int) -> Callable[[int], _Reading]:
    """A function that reads some of the chosen samples, always the same ones, with the seed that it is given."""
    data = data.read_sampler(num_samples, seed)
    length = data.length()
    chosen = chosen_indices(length, num_samples, seed)
    some = chosen[:: max(1, len(chosen) // READ_AGAIN)][:READ_AGAIN]
    return lambda seed: _Reading(data.collate_any(list(data.read(some, length, seed)), seed, 0), len(some))


def _reader_of_first_batch(data: IterableData) -> Callable[[int], _Reading]:
    """A function that reads the first batch with the seed that it is given."""

    def read(seed: int) -> _Reading:
        batches = data.batches(seed)
        batch = next(batches, None)
        if batch is None:
            raise JobError(f"{data.name} is empty when it is iterated over anew")
        count = len(batch) if data.collate is not None else first_dimension(numpy_to_tensors(batch))
        return _Reading(batch, count or 1)

    return read


def differing_fields(first: Batch, second: Batch) -> Iterator[str]:
    """The fields with other bytes in the second batch, in words such as 'inputs (field 0)', or a key of a dict.

    Example:
        >>> import torch
        >>> list(differing_fields((torch.zeros(2), torch.zeros(2)), (torch.zeros(2), torch.ones(2))))
        ['targets (field 1)']
    """
    fields, other_fields = fields_of(first), fields_of(second)
    if fields.keys() != other_fields.keys():
        yield "keys and lengths of the batches"
    else:
        yield from (name for name, part in fields.items() if not _same(part, other_fields[name]))


def _same(first: Any, second: Any) -> bool:
    return digest_values([first]) == digest_values([second])


def _listed(names: tuple[str, ...]) -> str:
    """At most `LISTED` names as a list in words: 'a, b and 3 more fields'."""
    few = [*names[:LISTED], *([f"{len(names) - LISTED} more fields"] if len(names) > LISTED else [])]
    return " and ".join(filter(None, [", ".join(few[:-1]), few[-1]]))
