"""The range of a landscape's axes where the job leaves it to the loss: taken from the record, or asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from landscape.compute.context import LandscapeContext
from landscape.compute.prepared import PreparedJob, PreparedLandscape
from landscape.core.grid import AXIS_NAMES, Grid
from landscape.core.plan import Plan
from landscape.job.directions.base import DirectionTensors, Range
from landscape.job.landscape import Landscape
from landscape.model.parameters import norm
from landscape.store.landscape import LandscapeStore
from landscape.surface.record import Record
from landscape.surface.record_entries import FoundRange

# What lies farther away than so many lengths of the weights is the landscape of noise, and not of this network.
FARTHEST = 4.0


class RangeFinder(Protocol):
    """What finds how far axes run: this process, or the workers of a cluster."""

    def __call__(
        self,
        prepared: PreparedJob,
        landscape: PreparedLandscape,
        starts: Sequence[float],
        farthest: Sequence[float],
        /,
    ) -> FoundRange | None:
        """The range, by evaluations along the axes; None where a job is only looked at.

        Args:
            prepared: the job, with this landscape alone.
            landscape: its origin, axes and plan; its grid is another than it will have.
            starts: of each axis, where the search begins.
            farthest: of each axis, where it ends.

        Raises:
            JobError: the loss is the same wherever it was looked at, or not finite at the origin or close to it.
        """


def not_found(
    prepared: PreparedJob, landscape: PreparedLandscape, starts: Sequence[float], farthest: Sequence[float], /
) -> None:
    """Nothing, where a job is looked at and nothing is to be computed: the range is where the search would begin."""


def found_of(stored: LandscapeStore | None) -> FoundRange | None:
    """The range that was found when a landscape was begun; None where none was."""
    return None if stored is None else stored.record.found_range


def with_found_range(spec: Landscape, stored: LandscapeStore | None) -> Landscape:
    """The landscape with the range in numbers that was found when it was begun; as it is where none was."""
    found = found_of(stored)
    if found is None or not spec.finds_range or len(found.axes) != len(spec.directions):
        return spec
    return _with_ends(spec, [axis.radius for axis in found.axes])


def with_range(
    finder: RangeFinder,
    prepared: PreparedJob,
    context: LandscapeContext,
    directions: tuple[DirectionTensors, ...],
    plan: Plan,
    stored: LandscapeStore | None,
) -> tuple[LandscapeContext, FoundRange | None]:
    """The landscape with its range in numbers, and how they were found; None where they are given, or not found yet.

    Args:
        prepared: the job, without its landscapes.
        stored: the landscape on disk, whose range has been put in already.

    Raises:
        JobError: as `RangeFinder` does.
    """
    if not context.spec.finds_range:
        return context, found_of(stored)
    lengths = [_length(context, axis) for axis in directions]
    hints = [axis.range_at(context) for axis in context.axes]
    starts = [length if hint is None else _reach(hint) for hint, length in zip(hints, lengths, strict=True)]
    farthest = [max(start, FARTHEST * length) for start, length in zip(starts, lengths, strict=True)]
    grid = Grid(
        AXIS_NAMES[: len(starts)], tuple(np.array([-start, 0.0, start]) for start in starts)
    )  # around which a point can be timed
    landscape = PreparedLandscape(
        context.spec.name, context.origin, directions, grid, None, plan, {}, Record(), ("loss",),
        lambda number: context.origin,
    )  # fmt: skip
    found = finder(replace(prepared, landscapes=(landscape,)), landscape, starts, farthest)
    radii = starts if found is None else [axis.radius for axis in found.axes]
    return replace(context, spec=_with_ends(context.spec, radii)), found


def _with_ends(spec: Landscape, radii: Sequence[float]) -> Landscape:
    return spec.model_copy(update={"range": tuple((-radius, radius) for radius in radii)})


def _reach(ends: Range) -> float:
    return max(abs(end) for end in ends)


def _length(context: LandscapeContext, axis: DirectionTensors) -> float:
    """How far along an axis its weights have moved by their own length; 1 where they, or the axis, have none."""
    whole = norm({name: context.origin[name] for name in axis.tensors})
    step = norm(axis.tensors)
    return whole / step if whole and step else 1.0
