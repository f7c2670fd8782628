"""The arrays that are written when a landscape is made, read back: its directions and the places of its path."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from landscape import parameters
from landscape.store.arrays import LandscapeArrays
from landscape.store.layout import PathPlan, parameter_layout, path_unit, rows_written

if TYPE_CHECKING:
    from torch import Tensor


def stored_directions(arrays: LandscapeArrays) -> list[dict[str, Tensor]] | None:
    """The stored directions, or None where one is kept as its seed alone or its chunk is damaged."""
    array = arrays["directions"]
    # A missing chunk would read as zeros, and a damaged shape may ask for more memory than there is: so the chunks are
    # seen to exist before any of them is read.
    if not all(rows_written(array)) or not arrays.all_there("directions"):
        return None
    values, damaged, _ = arrays.reader("directions").whole()
    return None if damaged else [parameters.unflatten(row, parameter_layout(array)) for row in values]


def stored_path(arrays: LandscapeArrays) -> PathPlan | None:
    """Where the snapshots lie, or None where there is no path or a chunk of it is damaged."""
    if not arrays.has_path or arrays.check_constants(arrays.path_constants):
        return None
    coordinates = np.stack([arrays.values(f"path_{axis}") for axis in arrays.axis_names], axis=1)
    steps = tuple(int(step) for step in arrays.values("path_step"))
    return PathPlan(path_unit(arrays["path_step"]), steps, coordinates, arrays.values("path_distance"))
