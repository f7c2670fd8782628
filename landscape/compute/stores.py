"""The landscapes on disk that prepared ones are written to: gone on with, or made anew."""

from __future__ import annotations

from landscape.compute.eigen_stores import remove_bases
from landscape.compute.identity import changes
from landscape.compute.prepared import PreparedJob, PreparedLandscape, kept_samples
from landscape.compute.refinement import joined
from landscape.core.errors import JobError, LandscapeError, shown
from landscape.core.grid import Index
from landscape.core.validation import AUTO
from landscape.job.directions.file import EigenDirection
from landscape.model.parameters import describe_parameters, layout
from landscape.store.format import NewArrays
from landscape.store.landscape import LandscapeStore


def reopen_store(prepared: PreparedJob, landscape: PreparedLandscape) -> LandscapeStore | None:
    """The landscape on disk, open for writing, its coordinates and directions mended where damaged.

    Returns:
        None where there is none yet.

    Raises:
        LandscapeError: what is on disk is not this landscape any more, or cannot be gone on with.
    """
    level = landscape.level
    store = LandscapeStore.find(prepared.run, landscape.name, write=True, level=level.number if level else 0)
    if store is None:
        return None
    if store.refusal:
        raise LandscapeError(store.refusal)
    changed = changes(store.identity.whole, landscape.identity)
    if changed or store.plan.whole != landscape.plan.record():
        raise JobError(
            f"run: landscape {shown(landscape.name)} was made by another driver meanwhile; give the command again"
        )
    recomputed = [axis.record.digest for axis in landscape.directions]
    if recomputed != store.direction_digests():
        raise JobError(
            f"directions: those of landscape {shown(landscape.name)} had to be made anew, and this machine rounds them "
            "differently; go on where it was begun, or give it another name or run"
        )
    if level is not None and store.record.level is not None:
        blocks = joined(store.record.level, level)
        if blocks != store.record.level:
            store.update_attributes(level=blocks)
    if store.check_constants():
        store.repair_constants(
            landscape.grid, [axis.tensors for axis in landscape.directions], landscape.path, prepared.sample_index
        )
    return store


def create_store(prepared: PreparedJob, landscape: PreparedLandscape, tile_shape: Index) -> LandscapeStore:
    """A new landscape on disk, with all of its record and none of its values.

    Args:
        tile_shape: of a tile, in points per array dimension.
    """
    looked_at = any(axis.attributes.get("foreseen") for axis in landscape.directions)
    looked_at |= any(AUTO in axis for axis in landscape.identity["coordinates"])
    assert not looked_at, "prepared to be looked at only"
    states = [axis.tensors for axis in landscape.directions]
    moved = [name for name in landscape.origin if any(name in state for state in states)]
    parameters = [info.name for info in describe_parameters(prepared.problem.model)]
    names = [*parameters, *(name for name in moved if name not in parameters)]
    new = NewArrays(
        landscape.grid, tile_shape, landscape.observables, [axis.attributes for axis in landscape.directions], states,
        layout(landscape.origin, names), landscape.path, landscape.record.moment_rows,
        prepared.sample_index if landscape.record.moment_rows else None,
        kept_samples(prepared, landscape),
    )  # fmt: skip
    store = LandscapeStore.create(prepared.run, landscape.name, new, landscape.record)
    if any(axis.record.kind == EigenDirection.model_fields["kind"].default for axis in landscape.directions):
        remove_bases(prepared.run, landscape.name)
    return store
