"""Surfaces of a steep valley: refined in a corner, and as fine everywhere."""

from __future__ import annotations

import numpy as np

from landscape import Axis, Surface
from landscape.surface.refinement import to_stretches

PROGRESS = {"state": "complete", "seconds": 10.0}


def at(axes: tuple[Axis, ...], held: np.ndarray, record: dict, levels: tuple[Surface, ...] = ()) -> Surface:
    """The surface of a steep valley, known where `held` says so."""
    grid = np.meshgrid(*(axis.coordinates for axis in reversed(axes)), indexing="ij")
    loss = np.where(held, 1 + sum(place**2 for place in grid) + 9 * np.exp(-((8 * (grid[-1] - 0.3)) ** 2)), np.nan)
    errors = {name: np.where(held, 0.01, np.nan) for name in ("loss_stderr", "loss_rise_stderr")}
    return Surface("valley", axes, {"loss": loss} | errors, held.astype(np.uint8), attributes=record, levels=levels)


def refined(dimensions: int = 2, *, left: int = 0) -> Surface:
    """A landscape of 9 points per axis whose level 1 holds its first block, all but `left` of its points."""
    names = ("alpha", "beta", "gamma")[:dimensions]
    axes = [tuple(Axis(name, np.linspace(-1, 1, size)) for name in names) for size in (9, 17)]
    held = np.zeros((17,) * dimensions, bool)
    held[(slice(0, 8),) * dimensions] = True
    held[(slice(None, None, 2),) * dimensions] = False
    places = np.flatnonzero(held)
    held.flat[places[len(places) - left :]] = False
    tiles = np.zeros((3,) * dimensions, bool)
    tiles.flat[0] = True
    level = {"number": 1, "stride": 2, "blocks": [list(pair) for pair in to_stretches(tiles)]}
    state = {"state": "running" if left else "complete", "seconds": 5.0}
    record = {"origin_loss": 1.0, "progress": PROGRESS}
    return at(axes[0], np.ones((9,) * dimensions, bool), record,
              (at(axes[1], held, {"level": level, "progress": state}),))  # fmt: skip


def plain(size: int = 17) -> Surface:
    """The valley over two axes with so many points along each."""
    axes = tuple(Axis(name, np.linspace(-1, 1, size)) for name in ("alpha", "beta"))
    return at(axes, np.ones((size, size), bool), {"origin_loss": 1.0, "progress": PROGRESS})
