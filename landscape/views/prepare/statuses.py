"""Points counted by their status, over all levels of a refined landscape."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from landscape.surface.surface import NOT_COMPUTED, NOT_FINITE, OK, QUARANTINED, Surface


def count_statuses(status: NDArray[np.uint8]) -> tuple[int, ...]:
    """How many of these points have each status, 0 to 3."""
    return tuple(int((status == code).sum()) for code in (NOT_COMPUTED, OK, NOT_FINITE, QUARANTINED))


def is_evaluated(surface: Surface) -> NDArray[np.bool_]:
    """Which points were evaluated, those whose value is not finite among them; not those interpolated between them."""
    computed = np.isin(surface.status, (OK, NOT_FINITE))
    return computed if surface.interpolated is None else computed & (surface.interpolated == 0)


def point_counts(surface: Surface) -> tuple[int, ...]:
    """How many points have each status, 0 to 3; of all levels, those that were evaluated or are still to be."""
    if surface.interpolated is None:
        return count_statuses(surface.status)
    missing, *others = count_statuses(surface.status[surface.interpolated == 0])
    return (missing + surface.unfinished, *others)
