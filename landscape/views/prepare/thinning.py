"""Fewer points of a surface where it has more than a screen shows: picked, never changed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from landscape.surface.surface import Axis, Surface
from landscape.views.prepare.words import resolution

MAX_POINTS = {1: 100_001, 2: 1025, 3: 49}  # per axis, by number of axes: more than a screen shows


def thinned(surface: Surface, limit: int) -> Surface:
    """At most `limit` points per axis, evenly picked with both ends; the values picked are untouched."""
    picks = picked_of([len(axis.coordinates) for axis in surface.axes], limit, refined=surface.interpolated is not None)
    if all(len(pick) == len(axis.coordinates) for pick, axis in zip(picks, surface.axes, strict=True)):
        return surface
    index = np.ix_(*reversed(picks))
    axes = tuple(
        Axis(axis.name, axis.coordinates[pick], axis.attributes) for axis, pick in zip(surface.axes, picks, strict=True)
    )
    observables = {name: np.asarray(values)[index] for name, values in surface.observables.items()}
    return Surface(
        surface.name, axes, observables, surface.status[index], surface.path, surface.attributes,
        interpolated=None if surface.interpolated is None else levels_picked(surface.interpolated, picks),
        unfinished=surface.unfinished, networks=surface.networks,
    )  # fmt: skip


def picked_of(sizes: Sequence[int], limit: int, *, refined: bool = False) -> list[NDArray[np.intp]]:
    """The indices along each axis of a grid of which at most `limit` points are drawn per axis.

    Args:
        refined: the grid is that of a refined landscape, of which every second point is that of the level above: steps
            are doubled as long as they can be, as uneven ones would show a grid of their own.
    """
    stride = 1
    while refined and max(sizes) > limit * stride and all((size - 1) % (2 * stride) == 0 for size in sizes):
        stride *= 2
    return [np.arange(0, size, stride)[picked(-(-size // stride), limit)] for size in sizes]


def levels_picked(interpolated: NDArray[np.uint8], picks: Sequence[NDArray[np.intp]]) -> NDArray[np.uint8]:
    """`Surface.interpolated` of the picked points alone, of which the finest grid has steps twice as long, or longer.

    Args:
        picks: the indices along each axis, the first axis first.
    """
    steps = min(int(np.diff(pick).min()) if len(pick) > 1 else 1 for pick in picks)
    kept = interpolated[np.ix_(*reversed(picks))]
    return np.maximum(kept, steps.bit_length() - 1) - np.uint8(steps.bit_length() - 1)


def picked(size: int, limit: int) -> NDArray[np.intp]:
    """At most `limit` of `size` indices, evenly spread, with both ends."""
    if size <= limit:
        return np.arange(size)
    return np.unique(np.round(np.linspace(0, size - 1, limit)).astype(np.intp))


def thinning_note(full: Surface, shown: Surface) -> list[str]:
    """What the caption says of points that are left out."""
    return [] if full is shown else [f"drawn from {resolution(shown)} of them"]
