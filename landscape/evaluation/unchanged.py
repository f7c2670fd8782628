"""Check that user code has not written to the samples; where it has, the job ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from landscape.core.errors import NotRetried
from landscape.evaluation.checksum import checksums
from landscape.evaluation.feed import Feed


class SamplesChanged(NotRetried):
    """User code has written to the samples: no value that is computed from here on in this process would be right."""

    def __init__(self) -> None:
        super().__init__(
            "observe: must not change its batch in place, as every point sees the same samples; clone it first"
        )


class UnseenWriteError(Exception):
    """User code has written to the model past torch's counters: the values so far are to be computed again."""


class UnchangedSamples:
    """The samples of a feed, compared with what they were before the first value was computed."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._sums: list[int] = []
        self._generation: int | None = None

    def remember(self) -> None:
        """Keep checksums of the samples as they are now, where they were not kept of the same memory before."""
        if self._generation != self._feed.generation:
            self._sums, self._generation = self._sums_now(), self._feed.generation

    def check(self) -> None:
        """Raises SamplesChanged where the samples are not what was remembered."""
        if self._generation == self._feed.generation and self._sums_now() != self._sums:
            raise SamplesChanged

    def _sums_now(self) -> list[int]:
        return checksums(self._feed.tensors)


def marks(tensors: Sequence[Tensor]) -> list[tuple[Any, ...]]:
    """What changes of each tensor when it is written to, or given other memory: counter, address, shape, strides."""
    return [(each._version, each.data_ptr(), each.shape, each.stride()) for each in tensors]
