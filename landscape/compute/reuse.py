"""Values that an extension takes over: written where whole tiles are known, and put beside what was evaluated."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from landscape.compute.extension import Extension
from landscape.compute.reproducibility import NotReproduced
from landscape.compute.work import Task
from landscape.core.errors import shown
from landscape.core.grid import Floats, Tile
from landscape.store.landscape import LandscapeStore
from landscape.surface.surface import OVER_SAMPLES

AT_ONCE = 64  # tiles that share their syncs
VALUES_AT_ONCE = 1 << 26  # losses of single samples that they may have, as they are in memory together


def take_over(extension: Extension, store: LandscapeStore, tasks: Iterable[Task]) -> bool:
    """Write what needs no evaluation: tiles all of whose points are known, and a path that stays as it is.

    Returns:
        Whether there was any.
    """
    tiles: list[Tile] = []
    written, at_once = False, _at_once(store)
    for task in tasks:
        if task.path is not None and extension.gives_path:
            window = slice(*task.path)
            store.write_path(window, extension.path_values(window))
            written = True
        elif task.tile is not None and extension.known(store.tile(task.tile)).all():
            tiles.append(store.tile(task.tile))
            written = True
        if len(tiles) == at_once:
            _write(extension, store, tiles)
            tiles = []
    _write(extension, store, tiles)
    return written


def _at_once(store: LandscapeStore) -> int:
    """How many tiles share their syncs."""
    each = max(1, math.prod(store.tile_shape) * store.arrays.kept_samples)
    return max(1, min(AT_ONCE, VALUES_AT_ONCE // each))


def _write(extension: Extension, store: LandscapeStore, tiles: Iterable[Tile]) -> None:
    store.write_tiles([(tile, extension.values(tile)) for tile in tiles])


def completed(
    extension: Extension, name: str, tile: Tile, evaluated: dict[str, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    """The arrays of a tile, of which only the points that are not known were evaluated.

    Raises:
        NotReproduced: what was evaluated again is not what is known.
    """
    if extension.more_observables:
        if extension.blocks is None:
            _refuse_other(extension, name, tile, evaluated)
        return evaluated
    before = extension.samples_before(tile)
    if before:
        return evaluated | {name: np.concatenate([kept, evaluated[name]], -1) for name, kept in before.items()}
    known = extension.known(tile)
    if not known.any():
        return evaluated
    whole = extension.values(tile)
    arrays = {}
    for array, values in evaluated.items():
        if array in OVER_SAMPLES:
            arrays[array] = values
            continue
        filled = np.array(whole[array])
        filled[~known] = values
        arrays[array] = filled
    return arrays


def _refuse_other(extension: Extension, name: str, tile: Tile, evaluated: Mapping[str, Floats]) -> None:
    """Refuse values of known observables that were evaluated again and are other ones."""
    for observable in extension.store.observables:
        before, now = extension.values_of(observable, tile), evaluated[observable]
        differ = ~((before == now) | (np.isnan(before) & np.isnan(now)))
        if differ.any() and extension.exact:
            raise NotReproduced(
                f"landscape {shown(name)} cannot be extended: {observable} {now[differ][0]:.9g} where it holds "
                f"{before[differ][0]:.9g}; the code or a version has changed: go back to those, or compute it anew "
                "under another name"
            )
