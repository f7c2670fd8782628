"""Whether samples are random: some of them are read again under the same seed, and under another one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from landscape.draws import fixed_seeds
from landscape.errors import JobError, flat, message_of
from landscape.problem.batches import Batch, batch_length, field_names
from landscape.problem.selection import chosen_indices
from landscape.problem.sources import Items, Stream, seed_of, source_of

READ_AGAIN = 16  # samples; of a stream its first batch
LISTED = 5  # fields in a warning


@dataclass(frozen=True)
class Randomness:
    """Which fields of the batches are random, as far as was seen.

    Args:
        fields: differ under another seed; the job's own seed decides them.
        unseeded: differ under one seed too: drawn from a generator of the data's own, which no seed of ours reaches.
        checked: how many samples were compared.
        unchecked: why none were, or not all kinds.
    """

    fields: tuple[str, ...] = ()
    unseeded: tuple[str, ...] = ()
    checked: int = 0
    unchecked: str = ""

    def record(self) -> dict[str, Any]:
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}

    @classmethod
    def of_record(cls, record: Any) -> Randomness | None:
        """What a landscape has recorded; None where it has nothing that can be read."""
        try:
            found = cls(tuple(record["fields"]), tuple(record["unseeded"]), record["checked"], record["unchecked"])
        except (KeyError, TypeError):
            return None
        words = (*found.fields, *found.unseeded, found.unchecked)
        return found if all(isinstance(each, str) for each in words) and type(found.checked) is int else None

    def warnings(self) -> list[str]:
        found = []
        if self.unseeded:
            found.append(
                f"data: {_listed(self.unseeded)} differ each time they are read, under one seed too, as the data draw "
                "from a generator of their own: a job that is stopped may be refused when it goes on, and two runs "
                "differ; draw from torch's, numpy's or random's global generator, or return the evaluation transform"
            )
        if self.fields:
            found.append(
                f"data: {_listed(self.fields)} are random, as training's augmentation is; they are drawn once, under "
                "the job's seed, and are the same at every point, so the landscape is that of these draws; for that "
                "of the data as they are return the evaluation transform (no random crop, flip, noise or shuffling)"
            )
        if self.unchecked:
            found.append(f"data: whether the samples are random was not looked at: {self.unchecked}")
        return found


def look_for_randomness(data: Any, num_samples: int, seed: int) -> Randomness:
    """Read at most `READ_AGAIN` of a job's samples twice more: under its seed and under another.

    Where they differ they are read under the other seed once more, to tell what no seed reaches: two readings in a
    row, so that data that alternate do not seem seeded. Of an iterable its first batch is read so. The process's
    generators are left alone.
    """
    source = source_of(data)
    if not isinstance(source, (Items, Stream)):
        return Randomness(checked=min(num_samples, batch_length(source)))
    if isinstance(source, Stream) and source.once:
        return Randomness(
            unchecked=f"{source.name} can be read once only; return a list, a DataLoader or a class with __iter__"
        )
    read = _some_items(source, num_samples, seed) if isinstance(source, Items) else _first_batch(source)
    try:
        with fixed_seeds(seed):
            another = seed_of(seed, "another")
            first, other = read(seed), read(another)
            differ = tuple(differing(first, other))
            unseeded = tuple(differing(other, read(another))) if differ else ()
    except JobError as error:
        return Randomness(unchecked=f"they cannot be read a second time: {message_of(error).removeprefix('data: ')}")
    return Randomness(tuple(each for each in differ if each not in unseeded), unseeded, batch_length(first))


def _some_items(data: Items, num_samples: int, seed: int) -> Callable[[int], Batch]:
    length = data.length()
    chosen = chosen_indices(length, num_samples, seed)
    some = chosen[:: max(1, len(chosen) // READ_AGAIN)][:READ_AGAIN]
    return lambda draws: data.collated(list(data.read(some, length, draws)), draws, 0)


def _first_batch(data: Stream) -> Callable[[int], Batch]:
    def read(draws: int) -> Batch:
        batches = data.batches(draws)
        batch = next(batches, None)
        if batch is None:
            raise JobError(f"{data.name} is empty when it is iterated over anew")
        return batch

    return read


def differing(one: Batch, other: Batch) -> Iterator[str]:
    """The fields that are not the same bytes in both batches, in words: 'inputs (field 0)', a key of a dict."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        if not _same(one, other):
            yield "samples"
    elif isinstance(one, Mapping) and isinstance(other, Mapping) and one.keys() == other.keys():
        yield from (flat(str(key), 60) for key in one if not _same(one[key], other[key]))
    elif isinstance(one, (tuple, list)) and isinstance(other, (tuple, list)) and len(one) == len(other):
        fields = zip(field_names(one), one, other, strict=True)
        yield from (name for name, first, second in fields if not _same(first, second))
    else:
        yield "keys and lengths of the batches"


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        bits = [each.contiguous().reshape(-1).view(torch.uint8) for each in (one, other)]
        return one.dtype == other.dtype and one.shape == other.shape and torch.equal(*bits)
    return not any(True for _ in differing(one, other))


def _listed(names: tuple[str, ...]) -> str:
    few = [*names[:LISTED], *([f"{len(names) - LISTED} more fields"] if len(names) > LISTED else [])]
    return " and ".join(filter(None, [", ".join(few[:-1]), few[-1]]))
