"""Fewer points of a surface where it has more than a screen shows: picked, never changed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from landscape.surface import Axis, Surface
from landscape.views.prepared.wording import resolution

MAX_POINTS = {1: 100_000, 2: 1024, 3: 48}  # per axis, by number of axes: more than a screen shows


def thinned(surface: Surface, limit: int) -> Surface:
    """At most `limit` points per axis, evenly picked with both ends; the values picked are untouched."""
    picks = [picked(len(axis.coordinates), limit) for axis in surface.axes]
    if all(len(pick) == len(axis.coordinates) for pick, axis in zip(picks, surface.axes, strict=True)):
        return surface
    index = np.ix_(*reversed(picks))
    axes = tuple(
        Axis(axis.name, axis.coordinates[pick], axis.attributes) for axis, pick in zip(surface.axes, picks, strict=True)
    )
    observables = {name: np.asarray(values)[index] for name, values in surface.observables.items()}
    levels = None if surface.interpolated is None else surface.interpolated[index]
    return Surface(
        surface.name,
        axes,
        observables,
        surface.status[index],
        surface.path,
        surface.attributes,
        interpolated=levels,
        networks=surface.networks,
    )


def picked(size: int, limit: int) -> NDArray[np.intp]:
    """At most `limit` of `size` indices, evenly spread, with both ends."""
    if size <= limit:
        return np.arange(size)
    return np.unique(np.round(np.linspace(0, size - 1, limit)).astype(np.intp))


def thinning_note(full: Surface, shown: Surface) -> list[str]:
    """What the caption says of points that are left out."""
    return [] if full is shown else [f"drawn from {resolution(shown)} of them"]
