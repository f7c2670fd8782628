"""The basins of minima: which minimum each point flows down to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from landscape.surface.descent import descend, face_steps
from landscape.surface.persistence import Index, PersistencePair, finite_in_order

Floats = NDArray[np.float64]


def basins_of(values: Floats, pairs: Sequence[PersistencePair], kept: Sequence[PersistencePair]) -> NDArray[np.intp]:
    """The number in `kept` of the minimum to which each point belongs; -1 where the value is not finite.

    A point belongs to the minimum that steepest descent leads to, over neighbours along the axes. A minimum that is not
    kept belongs to the one which it joins at its saddle.

    Args:
        pairs: all minima of the values.
        kept: those of them that have a basin, all of a persistence greater than those that are not kept.
    """
    points = finite_in_order(values)
    flow = descend(points, values.shape, face_steps(values.ndim))
    target = _targets(pairs, {pair.extremum: number for number, pair in enumerate(kept)})
    minima = zip(*(part.tolist() for part in np.unravel_index(points[flow.extrema], values.shape)), strict=True)
    labels = np.full(values.size, -1, dtype=np.intp)
    if len(points):
        labels[points] = np.array([target[minimum] for minimum in minima])[flow.basin]
    return labels.reshape(values.shape)


def _targets(pairs: Sequence[PersistencePair], kept: dict[Index, int]) -> dict[Index, int]:
    """Of each minimum, the number of the kept one that it belongs to; -1 where it joins none."""
    elders = {pair.extremum: pair.elder for pair in pairs}

    def target(minimum: Index) -> int:
        at: Index | None = minimum
        while at is not None and at not in kept:
            at = elders[at]
        return -1 if at is None else kept[at]

    return {pair.extremum: target(pair.extremum) for pair in pairs}
