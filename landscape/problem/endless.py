"""When an iterable of batches is taken for endless and refused, so that no job reads for ever."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from landscape.core.errors import JobError

# An iterable that has no length is taken for endless beyond this, unless more samples are asked for.
MOST_BATCHES, MOST_SAMPLES = 100_000, 2_000_000
LARGEST_LENGTH = 10_000_000  # batches: a longer iterable's length is not believed
WARN_AFTER = 10_000  # batches of an iterable without a length; a warning then says that it is still being read

log = logging.getLogger("landscape")


@dataclass(frozen=True)
class ReadingLimit:
    """How much of an iterable is read before it is taken for endless.

    Counts decide, not time, so that the same data are accepted or refused each time. An iterable that has a length may
    be as long as it says, up to `LARGEST_LENGTH` batches.

    Args:
        name: what messages call the iterable.
        length: how many batches it says that it has; None where it does not say it.
        wanted: how many samples are to be chosen.
    """

    name: str
    length: int | None
    wanted: int

    @property
    def batches(self) -> int:
        """The most batches that are read."""
        return max(MOST_BATCHES, 10 * self.wanted, min(self.length or 0, LARGEST_LENGTH))

    @property
    def samples(self) -> int:
        """The most samples that are read of an iterable without a length."""
        return max(MOST_SAMPLES, 100 * self.wanted)

    def check(self, batches: int, samples: int) -> None:
        """Refuse an iterable that went on after so many batches and samples; warn once before that.

        Raises:
            JobError: it is taken for endless.
        """
        if batches == WARN_AFTER and self.length is None:
            log.warning(
                "data: %s has given %d batches so far and does not tell its length; it is read to its end, or to %d "
                "batches", self.name, batches, self.batches,
            )  # fmt: skip
        if batches > self.batches or (self.length is None and samples > self.samples):
            raise JobError(
                f"data: {self.name} must end within {self.batches} batches and {self.samples} samples unless it tells "
                f"its length, and went on after {batches} batches ({samples} samples); give it a __len__, or return "
                "list(itertools.islice(batches, N))"
            )
