"""Eigenpairs for the axes of one landscape: what a solver is given, what is refused before, and what it costs."""

from __future__ import annotations

import errno
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch

from landscape.compute.extension import joined
from landscape.compute.identity import changes
from landscape.compute.path import SolveHere
from landscape.compute.prepared import PreparedJob, PreparedLandscape, kept_samples
from landscape.core.devices import CURVATURE_BYTES, curvature_limit
from landscape.core.errors import JobError, LandscapeError, quoted
from landscape.core.folders import open_folder
from landscape.core.grid import Grid, Index
from landscape.core.plan import Plan
from landscape.core.validation import AUTO, LEAST_STEPS
from landscape.evaluation.derivatives import RECALIBRATED
from landscape.job.directions.base import DirectionTensors, Eigenpair, Spectrum
from landscape.job.directions.file import STEPS, EigenDirection
from landscape.model.parameters import State, describe_parameters, layout, norm
from landscape.store.format import NewArrays
from landscape.store.landscape import LandscapeStore
from landscape.surface.record import Record

FURTHER = 4  # times the steps are taken at most where the sign of the smallest eigenvalue stays open
BASES = "curvature"  # the folder of a run in which Lanczos steps are kept while eigenvectors are computed


class Solver(Protocol):
    """What computes eigenpairs of the Hessian: this process, or the workers of a cluster."""

    def __call__(
        self, prepared: PreparedJob, landscape: PreparedLandscape, ranks: tuple[int, ...], steps: int, seed: int, /
    ) -> Spectrum:
        """The eigenpairs of these ranks at the landscape's origin, see `landscape.job.directions.base.Context`.

        Args:
            prepared: the job, with this landscape alone.
            landscape: its origin, plan and identity; its axes are others than it will have.
        """


def foreseen(
    prepared: PreparedJob, landscape: PreparedLandscape, ranks: tuple[int, ...], steps: int, seed: int, /
) -> Spectrum:
    """Stand-ins for eigenpairs, where a job is looked at and nothing is to be computed: random unit vectors."""
    (stand_in,) = landscape.directions
    pairs = {}
    for rank in ranks:
        generator = torch.Generator().manual_seed(10 + rank)
        drawn = {
            name: torch.randn(tensor.shape, generator=generator) for name, tensor in sorted(stand_in.tensors.items())
        }
        length = norm(drawn)
        vector = {name: tensor / length for name, tensor in drawn.items()}
        pairs[rank] = Eigenpair(math.nan, math.nan, None, vector)
    return Spectrum(pairs, math.nan, 0, "autograd", foreseen=True)


def solving_for(
    solver: Solver, prepared: PreparedJob, name: str, origin: State, plan: Plan, identity: Mapping[str, Any]
) -> SolveHere:
    """`Context.spectrum` of a landscape: refuses what cannot be, then asks the solver.

    Args:
        prepared: the job, without its landscapes.
        identity: of the landscape.
    """

    def spectrum(ranks: tuple[int, ...], steps: int, seed: int) -> Spectrum:
        if plan.statistics.recalibrated:
            raise JobError(RECALIBRATED)
        infos = [info for info in describe_parameters(prepared.problem.model) if info.trainable and info.name in origin]
        refuse_large_bases(sum(math.prod(info.shape) for info in infos), steps)
        # An axis that moves all that eigenvectors move, so that a point can be timed.
        axis = DirectionTensors({info.name: torch.ones(info.shape) for info in infos})
        line = Grid(("alpha",), (np.array([-1.0, 0.0, 1.0]),))
        landscape = PreparedLandscape(
            name, origin, (axis,), line, None, plan, identity, Record(), ("loss",), lambda number: origin
        )
        return solver(replace(prepared, landscapes=(landscape,)), landscape, ranks, steps, seed)

    return spectrum


def bytes_of_bases(size: int, steps: int = STEPS) -> int:
    """Bytes of the basis of so many steps over P numbers, in memory and on disk alike: 8·P·(m + 1)."""
    return 8 * size * (min(steps, size) + 1)


def most_steps(size: int, steps: int) -> int:
    """How many steps over P numbers are taken at most while the sign of the smallest eigenvalue is open."""
    return max(steps, min(FURTHER * steps, _within_limit(size)))


def _within_limit(size: int) -> int:
    return curvature_limit() // (8 * size) - 1


def refuse_large_bases(size: int, steps: int) -> None:
    """Refuse bases that take more than the limit.

    Raises:
        JobError: says how many steps would fit, and what to set.
    """
    needed, limit = bytes_of_bases(size, steps), curvature_limit()
    if needed <= limit:
        return
    fits = _within_limit(size)
    fewer = f"take steps: {fits}, or " if fits >= LEAST_STEPS else ""
    raise JobError(
        f"steps: the vectors of the Lanczos method must take at most {limit} bytes, not {needed} ({min(steps, size)} "
        f"steps of {size} parameters); {fewer}set {CURVATURE_BYTES}={needed}"
    )


def remove_bases(run: str, landscape: str) -> None:
    """Remove the Lanczos steps that were kept for a landscape; where another process adds to them, it removes them."""
    folder = open_folder(run)
    try:
        folder.delete_below(f"{BASES}/{landscape}")
        if not folder.folders(BASES):
            folder.delete_below(BASES)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.ENOENT):
            raise


# ----------------------------------------------------------------------------------------------------
# The landscapes on disk that prepared ones are written to: gone on with, or made anew.


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
            f"run: landscape {quoted(landscape.name)} was made by another driver meanwhile; give the command again"
        )
    recomputed = [axis.record.digest for axis in landscape.directions]
    if recomputed != store.direction_digests():
        raise JobError(
            f"directions: those of landscape {quoted(landscape.name)} had to be made anew, and this machine rounds "
            "them differently; go on where it was begun, or give it another name or run"
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
    if any(axis.record.kind == EigenDirection.word() for axis in landscape.directions):
        remove_bases(prepared.run, landscape.name)
    return store
