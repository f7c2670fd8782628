"""Points that a landscape on disk holds, those of its refinement among them, found by their coordinates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from landscape.evaluation.values import Floats
from landscape.store.landscape import LandscapeStore
from landscape.surface.surface import NOT_FINITE, OK, Surface


@dataclass(frozen=True, eq=False)
class StoredPoints:
    """The values of a surface in memory.

    Args:
        surface: as it is read, its levels beside it.
        columns: the names of a point's values, in their order. Names that an earlier version did not keep are NaN.
    """

    surface: Surface
    columns: tuple[str, ...]

    def find(self, points: Floats) -> tuple[NDArray[np.bool_], Floats]:
        """Which of the points [P, axes] were evaluated and are held, and the values of those, [held, columns]."""
        merged = self.surface
        held, indices = np.ones(len(points), bool), []
        for column, axis in enumerate(merged.axes):
            index, on_axis = _places(axis.coordinates, points[:, column])
            held &= on_axis
            indices.append(index)
        place = tuple(reversed(indices))
        status = merged.status[place]
        held &= (status == OK) | (status == NOT_FINITE)
        if merged.interpolated is not None:
            held &= merged.interpolated[place] == 0
        chosen = tuple(index[held] for index in place)
        nothing = np.full(int(held.sum()), np.nan)
        values = [merged.observables[name][chosen] if name in merged.observables else nothing for name in self.columns]
        return held, np.stack(values, axis=1)


def _places(coordinates: Floats, wanted: Floats) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """The place of each wanted coordinate on an axis, and whether it is there to the bit."""
    order = np.argsort(coordinates)
    found = np.searchsorted(coordinates, wanted, sorter=order).clip(0, len(coordinates) - 1)
    index = order[found]
    return index, coordinates[index] == wanted


def read_stored(store: LandscapeStore, columns: tuple[str, ...]) -> StoredPoints:
    """All values of a landscape and its levels."""
    return StoredPoints(store.read_surface().merged(), columns)


def state_of(store: LandscapeStore) -> Sequence[object]:
    """What changes when the store gets values, or is another one: of the landscape, and of each level."""
    records = [each.record for each in (store, *store.levels())]
    return [(each.digest, each.provenance.created, each.progress) for each in records]
