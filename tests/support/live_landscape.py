"""A landscape that a driver computes, played through the store's own writer; the run's lock is held meanwhile."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from landscape.core.grid import Index
from landscape.core.lock import run_lock
from landscape.store.landscape import LandscapeStore


def value_at(index: tuple[int, ...], step: float = 0.0) -> float:
    """The loss of the point with that index, which tests compute as well."""
    return 1.0 + sum(10.0**k * i for k, i in enumerate(reversed(index))) + step


class LiveLandscape:
    """A landscape whose tiles a test commits one by one."""

    def __init__(self, run: Path, name: str) -> None:
        self.store = LandscapeStore.open(str(run), name, write=True)

    def tiles(self) -> list[Index]:
        """The indices of all tiles."""
        counts = self.store.arrays.reader("status").counts
        return [tuple(index) for index in np.argwhere(np.ones(counts, bool)).tolist()]

    def commit(self, *tiles: Index, step: float = 0.0) -> None:
        """Commit tiles whose losses are `value_at`."""
        self.store.write_tiles([(self.store.tile(index), self._values(index, step)) for index in tiles])

    def _values(self, index: Index, step: float) -> dict[str, np.ndarray]:
        tile = self.store.tile(index)
        places = np.argwhere(np.ones(tile.shape, bool)) + np.array(tile.start)
        loss = np.array([value_at(tuple(place), step) for place in places.tolist()])
        return {name: loss if name == "loss" else np.full(loss.shape, 0.5) for name in self.store.arrays.value_names}


def empty(run: Path, name: str) -> None:
    """Take every committed tile of a landscape away, as if nothing of it had been computed."""
    folder = run / "landscapes.zarr" / name
    for chunks in folder.glob("*/c"):
        if chunks.parent.name in ("status", "path_status") or (folder / chunks.parent.name).name in (
            "loss",
            "accuracy",
        ):
            shutil.rmtree(chunks)


@contextmanager
def driven(run: Path) -> Iterator[None]:
    """A driver that lives while the block runs."""
    with run_lock(str(run)):
        yield
