"""The axes of a landscape and the path on them, from its specification and the weights it names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from landscape.directions.base import DirectionSpec, DirectionTensors, Range
from landscape.directions.networks import PlaneDirection
from landscape.directions.plane import cosines, project
from landscape.errors import JobError
from landscape.grid import Floats, Grid, axis_coordinates, coordinates_through_zero
from landscape.parameters import State, direction_digest, norm
from landscape.preparation.context import LandscapeContext
from landscape.preparation.weights import Weights
from landscape.record import AxisRecord, plain
from landscape.spec.defaults import DEFAULTS
from landscape.spec.job import Job
from landscape.spec.landscape import Landscape
from landscape.store import NETWORK, LandscapeStore, PathPlan

PATH_MARGIN = 0.2  # the axes run 20 % beyond the path on each side, as in MindInsight


def axis_ranges(spec: Landscape) -> list[Range | None]:
    """The range per axis as given, else the kind's default; None where it is to be fitted to the path."""
    return [_axis_range(spec, k) for k in range(len(spec.directions))]


def _axis_range(spec: Landscape, k: int) -> Range | None:
    if spec.ranges is not None:
        return spec.ranges[k]
    chosen = _chosen_coordinates(spec, k)
    return spec.directions[k].default_range if chosen is None else (float(chosen[0]), float(chosen[-1]))


def _chosen_coordinates(spec: Landscape, k: int) -> Floats | None:
    """The coordinates that the kind of the axis chooses where the range is left out; None where it chooses none."""
    return None if spec.range is not None else spec.directions[k].coordinates(spec.size[k])


def make_coordinates(
    spec: Landscape,
    path: PathPlan | None,
    defaults: int = DEFAULTS,
    places: Sequence[Floats | None] = (),
    ends: Sequence[Range | None] = (),
) -> tuple[Floats, ...]:
    """The coordinates per axis, in float64.

    Args:
        path: the projected trajectory, to which axes without a range are fitted.
        defaults: the version of the defaults; axes fitted under the first one did not go through zero.
        places: per axis the coordinates that its kind is fitted to instead; None, and by default, the path.
        ends: per axis the range that follows from the origin; None, and by default, it does not.

    Raises:
        JobError: an axis without a range would be fitted to the path, and there is none.
    """
    own = [None if each is None else fit_range(each) for each in places or [None] * len(spec.size)]
    fitted = [end or fit for end, fit in zip(ends or [None] * len(spec.size), own, strict=True)]
    return tuple(_make_axis(spec, k, path, defaults, fitted[k]) for k in range(len(spec.size)))


def _make_axis(spec: Landscape, k: int, path: PathPlan | None, defaults: int, fitted: Range | None) -> Floats:
    size = spec.size[k]
    if (chosen := _chosen_coordinates(spec, k)) is not None:
        return chosen
    if (limits := _axis_range(spec, k)) is not None:
        return axis_coordinates(size, *limits)
    if fitted is not None:
        return coordinates_through_zero(size, *fitted)
    if path is None:
        raise _no_path_to_fit(spec)
    spread = coordinates_through_zero if defaults > 1 else axis_coordinates
    return spread(size, *fit_range(path.coordinates[:, k]))


def _no_path_to_fit(spec: Landscape) -> JobError:
    """The error of an axis whose default range is fitted to the path, where the landscape has no path."""
    fitted = sorted({axis.title or axis.kind for axis in spec.directions if axis.snapshots is not None})
    return JobError(f"range: must be given where {', '.join(fitted)} axes are mixed with others")


def make_grid(context: LandscapeContext, path: PathPlan | None, defaults: int) -> Grid:
    """The grid of a landscape that is new."""
    places = [direction.places(context) for direction in context.axes]
    ends = [axis.range_at(context) if context.spec.range is None else None for axis in context.axes]
    return Grid(context.spec.axis_names, make_coordinates(context.spec, path, defaults, places, ends))


def cosines_of(directions: Sequence[DirectionTensors], context: LandscapeContext) -> Floats:
    """The cosines between the axes [axes, axes]: of the parameters alone where all axes move some.

    Buffers that move along, such as running variances, are no part of an angle in weight space.
    """
    names = {info.name for info in context.infos}
    parts = [{name: part for name, part in axis.tensors.items() if name in names} for axis in directions]
    return cosines(parts if all(parts) else [axis.tensors for axis in directions])


def fit_range(coordinates: np.ndarray) -> Range:
    """From the least to the largest coordinate of the path, the origin included, and 20 % of that beyond each."""
    low, high = min(0.0, float(coordinates.min())), max(0.0, float(coordinates.max()))
    margin = PATH_MARGIN * (high - low) or 1.0
    return low - margin, high + margin


def make_axes(context: LandscapeContext, stored: LandscapeStore | None) -> tuple[DirectionTensors, ...]:
    """Every axis's tensors and what to record of them; those of a landscape on disk as they were stored."""
    kept = stored.directions() if stored else None
    axes = []
    for k, spec in enumerate(context.axes):
        tensors = kept[k] if kept else spec.make(context)
        recorded = stored.arrays[stored.arrays.axis_names[k]].attributes if stored and spec.is_costly else None
        axes.append(DirectionTensors(tensors, _describe(spec, tensors, context, recorded)))
    return tuple(axes)


def _describe(
    spec: DirectionSpec, tensors: State, context: LandscapeContext, recorded: Mapping[str, Any] | None
) -> dict[str, Any]:
    """What is recorded of an axis; where it is recorded already, the same, with the digest of the tensors at hand."""
    if recorded is not None:
        return {**recorded, "digest": direction_digest(tensors)}
    fields = spec.model_dump(mode="json")
    record = AxisRecord(
        kind=fields["kind"], norm=norm(tensors), label=spec.label(context), digest=direction_digest(tensors)
    )
    return {**fields, **plain(record), **spec.attributes(context)}


def networks_of(spec: Landscape) -> tuple[int | str, ...]:
    """The networks whose plane a landscape is; none of every other landscape."""
    first, *others = spec.directions
    if not isinstance(first, PlaneDirection) or len(others) != 1 or not isinstance(others[0], PlaneDirection):
        return ()
    return first.models if others[0].models == first.models and others[0].axis != first.axis else ()


def path_of(
    context: LandscapeContext, directions: Sequence[DirectionTensors], stored: LandscapeStore | None
) -> PathPlan | None:
    """The path of a landscape on disk, or, of a new one, what its axes run through."""
    if stored is not None and not stored.has_path and networks_of(context.spec):
        return None  # begun by a version that did not evaluate the networks
    return (stored.path_plan() if stored else None) or make_path(context, directions)


def states_on(path: PathPlan | None, spec: Landscape, weights: Weights) -> Callable[[int], State]:
    """What gives the weights on a path by their number: that of a snapshot, or the place in a plane's list."""
    if path is None or path.unit != NETWORK:
        return weights.state
    networks = networks_of(spec)
    return lambda number: weights.state(networks[number])


def make_path(context: LandscapeContext, directions: Sequence[DirectionTensors]) -> PathPlan | None:
    """The snapshots that all axes are made from, projected on their plane, or the networks that a plane runs through.

    None where an axis is made otherwise.

    Raises:
        JobError: an axis without a range would be fitted to a path that not all axes have.
    """
    selections = [axis.snapshots for axis in context.axes]
    if networks := networks_of(context.spec):
        corners = np.stack([np.asarray(axis.places(context)) for axis in context.axes], axis=1)
        return PathPlan(NETWORK, tuple(range(len(networks))), corners, np.zeros(len(networks)))
    if None in selections:
        if context.spec.range is None and context.spec.snapshots is not None:
            raise _no_path_to_fit(context.spec)
        return None
    chosen = [context.snapshots(selection) for selection in selections if selection is not None]
    numbers = sorted({number for snapshots in chosen for number in snapshots})
    names, tensors = [info.name for info in context.infos], [axis.tensors for axis in directions]
    places = [project(context.state(number), context.origin, tensors, names) for number in numbers]
    coordinates = np.array([place for place, _ in places])
    return PathPlan(context.weights.trajectory.unit, tuple(numbers), coordinates, np.array([far for _, far in places]))


def check_tile(job: Job, grid: Grid) -> None:
    """Refuse, by a `JobError`, a shape of tiles that has another number of axes than the grid."""
    if job.tile is not None and len(job.tile) not in (1, len(grid.shape)):
        raise JobError(f"tile: must be one number or one per axis ({len(grid.shape)}), not {list(job.tile)}")
