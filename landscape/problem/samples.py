"""The samples of a job: the same ones for every point, in a fixed order, given to `observe` as batches.

Samples are a value that a job chooses once. They say how many there are, make the batch of any consecutive ones, and
know their digest and size. Where they are rectangular, all fast ways of cutting tensors into batches are open: `rows`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from landscape.problem.batches import (
    Batch,
    batch_bytes,
    batch_edges,
    batch_length,
    map_tensors,
    not_finite,
    samples_digest,
)


class Samples(ABC):
    """What was chosen for a job, in the order in which it was drawn."""

    @property
    @abstractmethod
    def length(self) -> int:
        """How many samples there are."""

    @property
    @abstractmethod
    def rows(self) -> Batch | None:
        """All samples as one batch of tensors with one first dimension; None where they are not rectangular."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """How many bytes their tensors take, on the host."""

    @abstractmethod
    def batch(self, start: int, stop: int) -> Batch:
        """The samples from `start` to before `stop` as one batch, as `observe` gets it, where they are kept.

        Raises:
            JobError: the user's collate function cannot make the batch.
        """

    def count(self, start: int, stop: int, batch: Batch) -> int | None:
        """How many values `observe` must return for this batch; None where it is what `observe` returns."""
        return stop - start

    @abstractmethod
    def few(self, count: int) -> Samples:
        """About the first `count` samples: a batch that cannot be cut stays whole."""

    @abstractmethod
    def digest(self) -> str:
        """SHA-256 of the values of all samples in their order, in hexadecimal; the same in every process."""

    @abstractmethod
    def not_finite(self) -> dict[str, int]:
        """How many samples hold NaN or infinity, for each field that has such samples."""

    @property
    def cuts(self) -> list[tuple[int, int]] | None:
        """Where batches begin and end that cannot be cut otherwise; None where any samples make a batch."""
        return None

    def edges(self, batch_size: int) -> list[tuple[int, int]]:
        """Where batches of at most so many samples begin and end; what cannot be cut gives larger ones."""
        return self.cuts or batch_edges(self.length, batch_size)


@dataclass(frozen=True)
class TensorSamples(Samples):
    """Tensors that share their first dimension, the samples; batches are views of them."""

    tensors: Batch

    @cached_property
    def length(self) -> int:
        """The first dimension of the tensors."""
        return batch_length(self.tensors)

    @property
    def rows(self) -> Batch:
        """The tensors themselves."""
        return self.tensors

    @property
    def nbytes(self) -> int:
        """Of the tensors."""
        return batch_bytes(self.tensors)

    def batch(self, start: int, stop: int) -> Batch:
        """Views of the rows from `start` to before `stop`."""
        return map_tensors(lambda tensor: _rows(tensor, start, stop), self.tensors)

    def few(self, count: int) -> TensorSamples:
        """The first `count` rows."""
        return TensorSamples(self.batch(0, count))

    def digest(self) -> str:
        """See `samples_digest`."""
        return samples_digest(self.tensors)

    def not_finite(self) -> dict[str, int]:
        """See `landscape.problem.batches.not_finite`."""
        return not_finite(self.tensors)


def _rows(tensor: Tensor, start: int, stop: int) -> Tensor:
    return tensor[start:stop]


def as_samples(samples: Samples | Batch) -> Samples:
    """Samples as they are; a batch of tensors that holds all of them as `TensorSamples`."""
    return samples if isinstance(samples, Samples) else TensorSamples(samples)
