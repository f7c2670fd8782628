"""A whole landscape read into a `Surface`."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from landscape.core.errors import LandscapeError, shown
from landscape.core.grid import Index
from landscape.core.system import free_host_bytes
from landscape.store.arrays import LandscapeArrays
from landscape.store.attributes import axis_attributes
from landscape.store.chunks import chunks_where
from landscape.store.constants import stored_path
from landscape.store.format import NETWORK
from landscape.store.kept import sample_index, stored_losses
from landscape.surface.derived import derive
from landscape.surface.record import Record
from landscape.surface.surface import NOT_COMPUTED, Axis, ProjectedPath, Surface

log = logging.getLogger("landscape")


def read_surface(arrays: LandscapeArrays, record: Record) -> Surface:
    """All values of a landscape; damaged chunks read as not computed.

    Raises:
        LandscapeError: the coordinates themselves are damaged, or the values need more memory than is free.
    """
    _refuse_too_large(arrays)
    # The status is read first: values are written before their status, also by a driver that writes meanwhile.
    states = arrays.read_checked("status")
    status = states.values.astype(np.uint8)
    committed = chunks_where(status != NOT_COMPUTED, arrays.tile_shape)
    values = {name: arrays.read_checked(name, committed) for name in arrays.value_names}
    for array in values.values():
        for _, index in array.damaged:
            status[arrays.tile(index).windows] = NOT_COMPUTED
    _warn_of_damage(arrays.name, [*states.damaged, *(chunk for array in values.values() for chunk in array.damaged)])
    # A tile whose status is not written yet is not committed, whatever its chunks hold.
    observables = {name: np.where(status == NOT_COMPUTED, np.nan, array.values) for name, array in values.items()}
    observables |= derive(record.derived, observables)
    path, networks = read_path(arrays)
    return Surface(
        arrays.name, read_axes(arrays), observables, status, path, dict(record.attributes),
        stored_losses(arrays), sample_index(arrays), networks=networks,
    )  # fmt: skip


def read_axes(arrays: LandscapeArrays) -> tuple[Axis, ...]:
    """The axes of a landscape, with their coordinates and what is recorded of them.

    Raises:
        LandscapeError: the coordinates are damaged.
    """
    grid = arrays.grid()
    if grid is None:
        raise LandscapeError(
            f"landscape {shown(arrays.name)}: its coordinates are damaged on disk; give the command that computed it "
            "again, which mends them"
        )
    return tuple(
        Axis(axis, coordinates, axis_attributes(arrays[axis].attributes))
        for axis, coordinates in zip(grid.names, grid.coordinates, strict=True)
    )


def read_path(arrays: LandscapeArrays) -> tuple[ProjectedPath | None, ProjectedPath | None]:
    """The path of a landscape, and the networks of a plane; None where it has none, or where the places are damaged."""
    plan = stored_path(arrays)
    if plan is None:
        return None, None
    values = {name: arrays.read_checked(f"path_{name}").values for name in ("status", "loss", "projected_loss")}
    coordinates = {axis: plan.coordinates[:, k] for k, axis in enumerate(arrays.axis_names)}
    steps = np.array(plan.step, np.int64)
    run = np.array(plan.run, np.int64) if plan.runs else None
    found = ProjectedPath(
        plan.unit, steps, coordinates, values["loss"], values["projected_loss"], plan.distance, values["status"],
        run, plan.runs,
    )  # fmt: skip
    networks = next((part for part in found.parts() if part.unit == NETWORK), None)
    return found.without(NETWORK), networks


def _warn_of_damage(name: str, damaged: Sequence[tuple[str, Index]]) -> None:
    if damaged:
        array, index = damaged[0]
        more = f" and {len(damaged) - 1} more" if len(damaged) > 1 else ""
        log.warning(
            "landscape %r: %s chunk %s%s cannot be read: its points are shown as not computed; "
            "running the job again mends them", name, array, "/".join(map(str, index)), more,
        )  # fmt: skip


def _refuse_too_large(arrays: LandscapeArrays) -> None:
    """Refuse by the metadata alone what this machine's memory does not hold: they may promise anything."""
    points, values = int(np.prod(arrays.shape)), len(arrays.value_names)
    needed, free = points * (2 * 8 * values + 8), free_host_bytes()
    if needed > free:
        raise LandscapeError(
            f"landscape {shown(arrays.name)}: its {points} points need {needed / 2**30:.3g} GiB of memory, of which "
            f"{free / 2**30:.3g} GiB are free; read it on a larger machine, or by parts with zarr or xarray"
        )
