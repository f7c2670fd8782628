"""Which samples are asked for, the indices that a seed gives, and what comes of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from landscape.core.errors import JobError
from landscape.problem.collated import Length
from landscape.problem.samples import Samples

# Up to this many samples all their indices are shuffled, at eight bytes each; of more only the wanted ones are drawn.
LARGEST_SHUFFLED = 1 << 28


@dataclass(frozen=True)
class Chosen:
    """The samples of a job, and which of the data they are.

    Attributes:
        samples: in the order drawn; ascending where that was asked for.
        indices: int64, one for each sample in their order: its index in the data, of an iterable its running number.
    """

    samples: Samples
    indices: NDArray[np.int64]


@dataclass(frozen=True)
class Choice:
    """What `select_samples` was asked for: how many samples, by which seed, and above how many bytes on disk."""

    num_samples: int
    seed: int
    at_most: bool
    ascending: bool
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


def chosen_indices(available: int, num_samples: int, seed: int) -> list[int]:
    """The indices of the samples chosen from so many, ascending; of all of them where there are not enough.

    Example:
        >>> chosen_indices(3, 5, seed=0)
        [0, 1, 2]
    """
    return Choice(num_samples, seed, at_most=True, ascending=True, limit=0).indices(available).tolist()
