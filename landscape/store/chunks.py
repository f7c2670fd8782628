"""Chunks by their index: which a mask touches, which are there, which are damaged; and what that leaves to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from zarr.abc.store import Store

from landscape.grid import Index
from landscape.surface import NOT_FINITE, OK


@dataclass(frozen=True)
class Examination:
    """What a landscape lacks: tiles and stretches of the path to compute, and the chunks found damaged."""

    missing: frozenset[Index]
    path_missing: tuple[slice, ...]
    damaged: tuple[tuple[str, Index], ...]

    @property
    def complete(self) -> bool:
        return not self.missing and not self.path_missing


@dataclass(frozen=True)
class Checked:
    values: NDArray[Any]
    damaged: list[tuple[str, Index]]


def status_of(loss: NDArray[np.float64]) -> NDArray[np.uint8]:
    """1 where the loss is finite, 2 where it is NaN or infinite."""
    return np.where(np.isfinite(loss), OK, NOT_FINITE).astype(np.uint8)


def chunks_where(mask: NDArray[np.bool_], chunks: Sequence[int]) -> set[Index]:
    """The indices of the chunks in which `mask` holds anywhere."""
    places = np.argwhere(mask) // np.asarray(chunks)
    return set(map(tuple, np.unique(places, axis=0).tolist())) if len(places) else set()


async def listed(store: Store, prefix: str) -> list[str]:
    # Files with other names are leftovers of a write that was cut off.
    return [key async for key in store.list_prefix(prefix) if key[len(prefix) :].replace("/", "").isdigit()]
