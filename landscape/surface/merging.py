"""All levels of a landscape as one grid: what is known, and the rest bilinear between what is known around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from landscape.core.grid import Floats
from landscape.surface.grids import Mask

Map = NDArray[np.uint8]


def spread(values: Floats) -> Floats:
    """Values on the grid of half the steps: each new point is the mean of its neighbours, along one axis after another.

    That is bilinear interpolation in the middle of edges and cells; what lies beside a NaN is NaN.

    >>> spread(np.array([[0.0, 2.0], [4.0, 6.0]])).tolist()
    [[0.0, 1.0, 2.0], [2.0, 3.0, 4.0], [4.0, 5.0, 6.0]]
    """
    for dimension in range(values.ndim):
        along = np.moveaxis(values, dimension, 0)
        finer = np.empty((2 * len(along) - 1, *along.shape[1:]))
        finer[::2] = along
        with np.errstate(invalid="ignore", over="ignore"):  # of infinite losses beside each other
            finer[1::2] = along[:-1] + 0.5 * (along[1:] - along[:-1])
        values = np.moveaxis(finer, 0, dimension)
    return values


def merge(levels: Sequence[Floats], held: Sequence[Mask]) -> Floats:
    """The values on the finest grid. A point that no level holds is bilinear in the smallest known cell around it.

    Args:
        levels: the values of each level over its own grid, the coarsest first; the first one is whole.
        held: which points of each level it holds.

    >>> fine = np.full((3, 3), np.nan)
    >>> fine[1, 0] = 9.0
    >>> merge([np.array([[0.0, 2.0], [4.0, 6.0]]), fine], [np.ones((2, 2), bool), ~np.isnan(fine)]).tolist()
    [[0.0, 1.0, 2.0], [9.0, 3.0, 4.0], [4.0, 5.0, 6.0]]
    """
    merged = levels[0]
    for values, mask in zip(levels[1:], held[1:], strict=True):
        merged = np.where(mask, values, spread(merged))
    return merged


def merge_all(observables: Sequence[Mapping[str, Floats]], status: Sequence[Map]) -> tuple[dict[str, Floats], Map, Map]:
    """The observables, the status and the map of `interpolated_from` of all levels merged.

    Args:
        observables, status: of each level over its own grid, the coarsest first; status 0 is not computed, 1 is OK, and
            an interpolated point is OK where the corners of its cell are.
    """
    held = [np.ones(status[0].shape, np.bool_), *(each != 0 for each in status[1:])]
    names = [name for name in observables[0] if all(name in each for each in observables)]
    values = {name: merge([each[name] for each in observables], held) for name in names}
    interpolated = interpolated_from(held)
    merged = merge_status(status)
    sound = merge([np.where(each == 1, 0.0, np.nan) for each in status], held)
    merged[(interpolated > 0) & np.isfinite(sound)] = 1
    return values, merged, interpolated


def merge_status(levels: Sequence[Map]) -> Map:
    """The status on the finest grid; 0, which is not computed, where no level holds the point."""
    merged = levels[0]
    for status in levels[1:]:
        finer = np.array(status)
        coarse = tuple(slice(None, None, 2) for _ in finer.shape)
        finer[coarse] = merged
        merged = finer
    return merged


def interpolated_from(held: Sequence[Mask]) -> Map:
    """How many levels above the finest one the cell lies that each point is interpolated in; 0 where it is known.

    >>> interpolated_from([np.ones((2, 2), bool), np.zeros((3, 3), bool)]).tolist()
    [[0, 1, 0], [1, 1, 1], [0, 1, 0]]
    """
    found = np.zeros(held[0].shape, np.uint8)
    for steps, mask in zip(range(len(held) - 1, 0, -1), held[1:], strict=True):
        above: NDArray[Any] = found
        for dimension in range(above.ndim):
            along = np.moveaxis(above, dimension, 0)
            finer = np.empty((2 * len(along) - 1, *along.shape[1:]), np.uint8)
            finer[::2], finer[1::2] = along, np.maximum(along[:-1], along[1:])
            above = np.moveaxis(finer, 0, dimension)
        old = np.zeros(mask.shape, np.bool_)
        old[tuple(slice(None, None, 2) for _ in mask.shape)] = True
        found = np.where(mask, 0, np.where(old, above, np.maximum(above, steps))).astype(np.uint8)
    return found
