"""Observables whose values stand for names, and the points where layers are known though the loss is not finite."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from landscape.surface.surface import NOT_FINITE, OK, Surface


def categories_of(surface: Surface, observable: str) -> tuple[str, ...] | None:
    """What the values 0, 1, 2, … of an observable stand for; None where they are plain numbers."""
    return surface.record.categories(observable)


def status_of(surface: Surface, observable: str) -> NDArray[np.uint8]:
    """The status of the points; what is known of layers is known also where the loss is not finite."""
    layers = surface.record.layers
    if layers is None or observable not in layers.observables:
        return surface.status
    known = (surface.status == NOT_FINITE) & np.isfinite(surface[observable])
    return np.where(known, OK, surface.status).astype(np.uint8)
