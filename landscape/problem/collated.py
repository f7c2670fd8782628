"""Samples that are no rectangle: items of any kind, and the function that makes a batch of some of them.

A batch is what the user's collate function returns for the items of this batch, so that it may depend on which are
together, as padding to the longest does. Batches that an iterable made itself are taken whole.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from landscape.core.errors import JobError, NotRetried, shown
from landscape.core.random_state import fixed_seeds
from landscape.problem.batches import Batch
from landscape.problem.contents import bytes_of, digest_of, fields_of, holds_not_finite
from landscape.problem.observables import Observe
from landscape.problem.reading import seed_of
from landscape.problem.samples import Samples
from landscape.problem.structure import are_one_kind, exchanged, kind_in_words
from landscape.problem.user_code import calling

Length = Callable[[Any], int]


class NoBatch(NotRetried):
    """The collate function makes no batch of some samples, and would make none of them anywhere else either."""


@dataclass(frozen=True, eq=False)
class Collated(Samples):
    """Items as the data set returns them, and the loader's collate function.

    Attributes:
        collate: makes a batch of a list of items.
        seed: the job's; each batch draws from a seed of its own that follows from it and from the first of its items.
        name: what messages call the data set.
        length_of: `Problem.length`; None where the problem has none.
    """

    items: Sequence[Any]
    collate: Callable[[list[Any]], Any]
    seed: int
    name: str
    length_of: Length | None = None
    _kinds: list[str] = field(default_factory=list, repr=False)

    @property
    def length(self) -> int:
        """How many items there are."""
        return len(self.items)

    @property
    def rows(self) -> None:
        """None: items may differ in shape."""

    @property
    def nbytes(self) -> int:
        """Of the items."""
        return sum(map(bytes_of, self.items))

    def batch(self, start: int, stop: int) -> Batch:
        """What the collate function makes of the items from `start` to before `stop`, on the CPU.

        Raises:
            NoBatch: it raises, returns nothing, or another kind of batch than before.
        """
        # Copies, since a collate function may take its items apart, and they are collated again in other batches.
        items = [exchanged(_itself, self.items[k]) for k in range(start, min(stop, self.length))]
        try:
            with fixed_seeds(seed_of(self.seed, "batch", start)):
                with calling(f"data: the collate function, given {len(items)} samples of {self.name},"):
                    batch = self.collate(items)
                return self._checked(batch, len(items))
        except JobError as error:
            raise NoBatch(str(error)) from error.__cause__

    def _checked(self, batch: Batch, count: int) -> Batch:
        if batch is None or (hasattr(batch, "__len__") and _is_empty(batch)):
            what = "None" if batch is None else f"an empty {type(batch).__name__}"
            raise JobError(
                f"data: the collate function must return a batch, not {what}, which it made of {count} samples of "
                f"{self.name}"
            )
        kind = kind_in_words(batch, count)
        if not self._kinds:
            self._kinds.append(kind)
        if not are_one_kind(kind, self._kinds[0]):
            raise JobError(
                f"data: the collate function must return one kind of batch, not {self._kinds[0]} for some samples of "
                f"{self.name} and {kind} for others"
            )
        return exchanged(lambda tensor: tensor.detach().cpu(), batch)

    def count(self, start: int, stop: int, batch: Batch) -> int | None:
        """What the problem's `length` says of the batch; None without it."""
        return None if self.length_of is None else length_by(self.length_of, batch)

    def few(self, count: int) -> Collated:
        """The first `count` items."""
        return Collated(self.items[:count], self.collate, self.seed, self.name, self.length_of, self._kinds)

    def digest(self) -> str:
        """SHA-256 of all items as the data set returned them."""
        return digest_of(self.items)

    def not_finite(self) -> dict[str, int]:
        """How many items hold NaN or infinity, for each field of an item that does so."""
        counts: dict[str, int] = {}
        for item in self.items:
            for name, member in fields_of(item).items():
                counts[name] = counts.get(name, 0) + holds_not_finite(member)
        return {name: count for name, count in counts.items() if count}


@dataclass(frozen=True, eq=False)
class WholeBatches(Samples):
    """Batches that an iterable made and that cannot be cut into samples.

    Attributes:
        lengths: int64, how many samples each batch holds.
        strict: whether the problem's `length` says so, and `observe` must return as many values.
    """

    batches: Sequence[Any]
    lengths: np.ndarray
    strict: bool = False

    @property
    def length(self) -> int:
        """How many samples the batches hold together."""
        return int(self.lengths.sum())

    @property
    def rows(self) -> None:
        """None: the batches are not cut."""

    @property
    def nbytes(self) -> int:
        """Of the batches."""
        return sum(map(bytes_of, self.batches))

    @property
    def cuts(self) -> list[tuple[int, int]]:
        """Where the batches begin and end."""
        ends = np.cumsum([0, *self.lengths]).tolist()
        return list(itertools.pairwise(ends))

    def batch(self, start: int, stop: int) -> Batch:
        """The batch that begins at sample `start`."""
        return self.batches[int(np.searchsorted(np.cumsum([0, *self.lengths]), start))]

    def count(self, start: int, stop: int, batch: Batch) -> int | None:
        """How many samples the batch holds, where the problem's `length` says it."""
        return stop - start if self.strict else None

    def few(self, count: int) -> WholeBatches:
        """The first batches that hold at least so many samples."""
        enough = int(np.searchsorted(np.cumsum(self.lengths), count)) + 1
        return WholeBatches(self.batches[:enough], self.lengths[:enough], self.strict)

    def digest(self) -> str:
        """SHA-256 of all batches."""
        return digest_of(self.batches)

    def not_finite(self) -> dict[str, int]:
        """How many samples are in batches that hold NaN or infinity, for each field of a batch that does so."""
        counts: dict[str, int] = {}
        for batch, length in zip(self.batches, self.lengths.tolist(), strict=True):
            for name, member in fields_of(batch).items():
                counts[name] = counts.get(name, 0) + length * holds_not_finite(member)
        return {name: count for name, count in counts.items() if count}


def length_by(length_of: Length, batch: Batch) -> int:
    """How many samples a batch holds by the problem's `length`.

    Raises:
        JobError: it raises, or returns no whole number above zero.
    """
    with calling(f"length: given a batch, {type(batch).__name__},"):
        count = length_of(batch)
    try:
        whole = int(count)
    except (TypeError, ValueError):
        whole = 0
    if whole < 1 or whole != count:
        raise JobError(f"length: must return the number of samples of a batch, at least 1, not {shown(count)}")
    return whole


def length_by_observing(model: nn.Module, observe: Observe) -> Length:
    """A function that counts the samples of a batch as the losses that `observe` returns for it, on the CPU."""
    private: list[nn.Module] = []

    def length(batch: Batch) -> int:
        with (
            calling("observe: given a whole batch, to count its samples,", "give Problem(length=...)"),
            torch.no_grad(),
        ):
            private[:] = private or [copy.deepcopy(model).cpu().eval()]
            losses = observe(private[0], exchanged(_itself, batch))["loss"]
        return length_by(lambda _: losses.shape[0], batch)

    return length


def _is_empty(batch: Any) -> bool:
    try:
        return len(batch) == 0
    except TypeError:  # such as a tensor without dimensions
        return False


def _itself(tensor: Any) -> Any:
    return tensor
