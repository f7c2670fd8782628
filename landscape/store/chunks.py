"""What an examination of the chunks finds: which tiles are left to compute, and which chunks are damaged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from landscape.core.grid import Index
from landscape.surface.surface import NOT_FINITE, OK


@dataclass(frozen=True)
class Examination:
    """What is left to compute of a landscape, and which chunks are damaged.

    Attributes:
        missing_mask: over the tiles, those to compute.
        path_missing: the stretches of the path to compute, in snapshots.
        damaged: the damaged chunks, each as the name of its array and its index.
    """

    missing_mask: NDArray[np.bool_]
    path_missing: tuple[slice, ...]
    damaged: tuple[tuple[str, Index], ...]

    @property
    def missing(self) -> frozenset[Index]:
        """The indices of the tiles to compute."""
        return frozenset(map(tuple, np.argwhere(self.missing_mask).tolist()))

    @property
    def complete(self) -> bool:
        """Whether nothing is left to compute, of the tiles and of the path."""
        return not self.missing_mask.any() and not self.path_missing


@dataclass(frozen=True)
class Checked:
    """The values of an array, and its damaged chunks, each as the name of the array and its index."""

    values: NDArray[Any]
    damaged: list[tuple[str, Index]]


def status_of(loss: NDArray[np.float64]) -> NDArray[np.uint8]:
    """1 where the loss is finite, 2 where it is NaN or infinite."""
    return np.where(np.isfinite(loss), OK, NOT_FINITE).astype(np.uint8)


def chunks_where(mask: NDArray[np.bool_], chunks: Sequence[int]) -> set[Index]:
    """The indices of the chunks in which `mask` holds anywhere."""
    places = np.argwhere(mask) // np.asarray(chunks)
    return set(map(tuple, np.unique(places, axis=0).tolist())) if len(places) else set()
