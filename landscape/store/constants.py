"""The arrays that are written when a landscape is made, read back: its directions and the places of its path."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from landscape.store.arrays import LandscapeArrays
from landscape.store.format import RUNS, PathPlan, parameter_layout, path_unit, rows_written
from landscape.surface.record_entries import path_records

if TYPE_CHECKING:
    from torch import Tensor

MOST_RUNS = 64  # whose paths a landscape draws, and more than a job may name: the array may say anything


def stored_directions(arrays: LandscapeArrays) -> list[dict[str, Tensor]] | None:
    """The stored directions, or None where one is kept as its seed alone or its chunk is damaged."""
    from landscape.model.parameters import unflatten  # of torch

    array = arrays["directions"]
    # A missing chunk would read as zeros, and a damaged shape may ask for more memory than there is: so the chunks are
    # seen to exist before any of them is read.
    if not all(rows_written(array)) or not arrays.all_there("directions"):
        return None
    values, damaged, _ = arrays.reader("directions").whole()
    return None if damaged else [unflatten(row, parameter_layout(array)) for row in values]


def stored_path(arrays: LandscapeArrays) -> PathPlan | None:
    """Where the snapshots lie, or None where there is no path or a chunk of it is damaged."""
    if not arrays.has_path or arrays.check_constants(arrays.path_constants):
        return None
    coordinates = np.stack([arrays.values(f"path_{axis}") for axis in arrays.axis_names], axis=1)
    steps = tuple(int(step) for step in arrays.values("path_step"))
    unit, distance = path_unit(arrays["path_step"]), arrays.values("path_distance")
    if not arrays.has_runs:
        return PathPlan(unit, steps, coordinates, distance)
    run = tuple(int(place) for place in arrays.values("path_run"))
    listed = arrays["path_run"].attributes.get(RUNS)
    count = max(run, default=-1) + 1
    if min(run, default=0) < 0 or count > MOST_RUNS:
        return None
    return PathPlan(unit, steps, coordinates, distance, run, path_records(listed, count))
