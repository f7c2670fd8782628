"""The axes of a landscape, the grid over them, and the coordinates of its paths' snapshots on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from landscape.compute.landscape_context import LandscapeContext
from landscape.core.errors import JobError
from landscape.core.grid import (
    LARGEST_GROWTH,
    Floats,
    Grid,
    axis_coordinates,
    coordinates_through_zero,
    remedy_of_target,
    size_through,
)
from landscape.core.validation import MAX_SIZE
from landscape.job.directions.base import DirectionSpec, DirectionTensors, Range, RunPath
from landscape.job.directions.computed import are_held, hold_if_small
from landscape.job.directions.plane import PcaDirection, PlaneDirection
from landscape.job.directions.random import DrawnTensors
from landscape.job.directions.tensors import (
    PrincipalComponents,
    cosines,
    gram_matrix,
    gram_of_centred,
    project,
    refuse_diverged,
)
from landscape.job.job import Job
from landscape.job.landscape import Landscape
from landscape.model.parameters import State, direction_digest, norm
from landscape.store.format import MIXED, NETWORK, PathPlan
from landscape.store.landscape import LandscapeStore
from landscape.surface.barriers import has_point
from landscape.surface.record import plain
from landscape.surface.record_entries import PathRecord
from landscape.surface.record_parts import AxisRecord

PATH_MARGIN = 0.2  # the axes run 20 % beyond the path on each side, as in MindInsight


def axis_ranges(spec: Landscape) -> list[Range | None]:
    """The range per axis as given, else the kind's default; None if it is to be fitted to the paths."""
    return [_axis_range(spec, k) for k in range(len(spec.directions))]


def _axis_range(spec: Landscape, k: int) -> Range | None:
    if spec.ranges is not None:
        return spec.ranges[k]
    chosen = _chosen_coordinates(spec, k)
    if chosen is None:
        return None if spec.paths else spec.directions[k].default_range
    return float(chosen[0]), float(chosen[-1])


def _chosen_coordinates(spec: Landscape, k: int) -> Floats | None:
    """The coordinates that the kind of an axis without a range chooses; None if it chooses none."""
    return None if spec.range is not None else spec.directions[k].coordinates(spec.size[k])


def make_coordinates(
    spec: Landscape,
    path: PathPlan | None,
    places: Sequence[Floats | None] = (),
    ends: Sequence[Range | None] = (),
) -> tuple[Floats, ...]:
    """The coordinates per axis, in float64.

    Args:
        path: the projected trajectory, to which axes without a range are fitted.
        places: per axis the coordinates to fit it to instead of the path; None and default: the path.
        ends: per axis the range that follows from the origin; None and default: it does not follow.

    Raises:
        JobError: an axis without a range would be fitted to the path, and there is no path.
    """
    own = [None if coordinates is None else fit_range(coordinates) for coordinates in places or [None] * len(spec.size)]
    fitted = [end or fit for end, fit in zip(ends or [None] * len(spec.size), own, strict=True)]
    return tuple(_make_axis(spec, k, path, fitted[k]) for k in range(len(spec.size)))


def _make_axis(spec: Landscape, k: int, path: PathPlan | None, fitted: Range | None) -> Floats:
    size = spec.size[k]
    if (chosen := _chosen_coordinates(spec, k)) is not None:
        return chosen
    if (limits := _axis_range(spec, k)) is not None:
        return axis_coordinates(size, *limits)
    if spec.paths and path is not None:
        return _over_paths(size, path.coordinates[:, k], fitted, spec.directions[k].default_range)
    if fitted is not None:
        return coordinates_through_zero(size, *fitted)
    if path is None:
        raise no_path_to_fit(spec)
    return coordinates_through_zero(size, *fit_range(path.coordinates[:, k]))


def _over_paths(size: int, places: Floats, fitted: Range | None, usual: Range | None) -> Floats:
    """Coordinates that cover all paths, and at least the range without paths."""
    low, high = fit_range(places)
    if usual is not None and fitted is None and usual[0] <= low and high <= usual[1]:
        return axis_coordinates(size, *usual)
    ends = [bounds for bounds in (fitted, usual) if bounds is not None]
    return coordinates_through_zero(size, min([low, *(end for end, _ in ends)]), max([high, *(end for _, end in ends)]))


def make_grid(context: LandscapeContext, path: PathPlan | None) -> Grid:
    """The grid of a new landscape."""
    places = [direction.places(context) for direction in context.axes]
    ends = [axis.range_at(context) if context.spec.range is None else None for axis in context.axes]
    return Grid(context.spec.axis_names, make_coordinates(context.spec, path, places, ends))


def cosines_of(directions: Sequence[DirectionTensors], context: LandscapeContext) -> Floats:
    """The cosines between the axes [axes, axes], over the parameters alone if every axis moves some.

    Buffers that move along, such as running variances, do not count for an angle in weight space.
    """
    names = {info.name for info in context.infos}
    tensors = [axis.tensors for axis in directions]
    every_axis_moves_some = all(any(name in names for name in axis) for axis in tensors)
    return cosines(tensors, names if every_axis_moves_some else None)


def fit_range(coordinates: np.ndarray) -> Range:
    """From the smallest to the largest coordinate of path and origin, extended by 20 % at both ends."""
    low, high = min(0.0, float(coordinates.min())), max(0.0, float(coordinates.max()))
    margin = PATH_MARGIN * (high - low) or 1.0
    return low - margin, high + margin


def make_axes(context: LandscapeContext, stored: LandscapeStore | None) -> tuple[DirectionTensors, ...]:
    """The tensors and the record of every axis; of a landscape on disk, the stored ones."""
    # What is computed when it is needed is not read whole.
    kept = stored.directions() if stored and not _are_computed(context) else None
    made: Sequence[State] = kept or [spec.make(context) for spec in context.axes]
    axes = []
    for k, (spec, tensors) in enumerate(zip(context.axes, hold_if_small(made), strict=True)):
        recorded = stored.arrays[stored.arrays.axis_names[k]].attributes if stored and spec.is_costly else None
        axes.append(DirectionTensors(tensors, _describe(spec, tensors, context, recorded)))
    return tuple(axes)


def _are_computed(context: LandscapeContext) -> bool:
    """Whether the axes are large, and computed from weights that lie in files."""
    numbers = sum(tensor.numel() for tensor in context.origin.values()) * len(context.axes)
    return not are_held(numbers) and all(spec.in_parts for spec in context.axes)


def _describe(
    spec: DirectionSpec, tensors: State, context: LandscapeContext, recorded: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The record of an axis: an existing one with the digest of these tensors, else a new one."""
    if recorded is not None:
        return {**recorded, "digest": _digest(tensors)}
    fields = spec.model_dump(mode="json")
    record = AxisRecord(kind=fields["kind"], norm=norm(tensors), label=spec.label(context), digest=_digest(tensors))
    return {**fields, **plain(record), **spec.attributes(context)}


def _digest(tensors: State) -> str:
    """The digest of a direction: of its tensors, or of what they are drawn from."""
    return tensors.digest() if isinstance(tensors, DrawnTensors) else direction_digest(tensors)


def check_tile(job: Job, grid: Grid) -> None:
    """Raises JobError for a shape of tiles with another number of axes than the grid."""
    if job.tile is not None and len(job.tile) not in (1, len(grid.shape)):
        raise JobError(f"tile: must be one number or one per axis ({len(grid.shape)}), not {list(job.tile)}")


# ----------------------------------------------------------------------------------------------------
# Whether the origin and the target of a line are points of a grid, and how to make them so.


def without_zero(grid: Grid) -> list[int]:
    """The axes without a point at 0, the origin."""
    return [k for k, axis in enumerate(grid.coordinates) if 0.0 not in axis]


def target_remedy(grid: Grid) -> str | None:
    """How to make the target of a line, at 1, a point of the grid; None if it is one, or the range ends before it."""
    (axis,) = grid.coordinates
    return None if axis[-1] < 1 or has_point(axis, 1.0) else remedy_of_target(axis)


def origin_remedy(grid: Grid, *, line: bool = False) -> str | None:
    """How to make the origin a point of the grid; None if it is one.

    If zero lies at a simple fraction of the written range, the smallest suitable larger size is proposed.

    Args:
        line: whether the only axis leads to a target at 1, which must be a point too if the range holds it.
    """
    axes = without_zero(grid)
    if not axes:
        return None
    sizes = [len(axis) for axis in grid.coordinates]
    better = [
        size_through(len(axis), float(axis[0]), float(axis[-1]), (0, 1) if line and axis[-1] >= 1 else (0,))
        for axis in grid.coordinates
    ]
    for k in axes:
        size = better[k]
        if size is None:
            return f"`range` must hold 0 for that, and {grid.names[k]} does not"
        if size > min(LARGEST_GROWTH * sizes[k], MAX_SIZE):
            return "a `range` with 0 in its middle and an odd `size` have one there"
        sizes[k] = size
    return f"`size: {sizes[0] if len(set(sizes)) == 1 else sizes}` has one there"


def no_path_to_fit(spec: Landscape) -> JobError:
    """The error of an axis whose default range would be fitted to a path that the landscape does not have."""
    fitted = sorted({axis.title or axis.kind for axis in spec.directions if axis.snapshots is not None})
    return JobError(f"range: must be given where {', '.join(fitted)} axes are mixed with others")


def networks_of(spec: Landscape) -> tuple[int | str, ...]:
    """The networks that a plane runs through; empty for other landscapes."""
    first, *others = spec.directions
    if not isinstance(first, PlaneDirection) or len(others) != 1 or not isinstance(others[0], PlaneDirection):
        return ()
    return first.models if others[0].models == first.models and others[0].axis != first.axis else ()


def path_of(
    context: LandscapeContext, directions: Sequence[DirectionTensors], stored: LandscapeStore | None
) -> PathPlan | None:
    """The path of a landscape on disk; of a new landscape, the path that its axes run through."""
    if stored is not None and not stored.has_path and networks_of(context.spec):
        return None  # begun by a version that did not evaluate these networks
    return (stored.path_plan() if stored else None) or make_path(context, directions)


def states_on(path: PathPlan | None, context: LandscapeContext) -> Callable[[int], State]:
    """A function from a place on the path to its weights: of a snapshot, or of a network of a plane."""
    networks = networks_of(context.spec)

    def state(place: int) -> State:
        assert path is not None
        number = path.step[place]
        run = path.runs[path.run[place]] if path.runs else None
        if (path.unit if run is None else run.unit) == NETWORK:
            return context.state(networks[number])
        if run is None:
            return context.state(number)
        drawn = context.paths[path.run[place]]
        return context.state(drawn.snapshots[drawn.numbers.index(number)])

    return state


def make_path(context: LandscapeContext, directions: Sequence[DirectionTensors]) -> PathPlan | None:
    """The projected snapshots that all axes are made from, or the networks that a plane runs through.

    If the job names `paths`: their snapshots, followed by the networks. None if some axis is not made from snapshots
    and no paths are named.

    Raises:
        JobError: an axis without a range would be fitted to a path that not all axes have.
    """
    networks = _place_networks(context)
    if context.paths:
        return _place_runs(context, directions, networks)
    if networks is not None:
        return networks
    selections = [axis.snapshots for axis in context.axes]
    if None in selections:
        if context.spec.range is None and context.spec.snapshots is not None:
            raise no_path_to_fit(context.spec)
        return None
    chosen = [context.snapshots(selection) for selection in selections if selection is not None]
    numbers = sorted({number for snapshots in chosen for number in snapshots})
    coordinates, distance = _project([context.state(number) for number in numbers], context, directions)
    return PathPlan(context.weights.trajectory.unit, tuple(numbers), coordinates, distance)


def _place_networks(context: LandscapeContext) -> PathPlan | None:
    """The networks that a plane runs through, at their places; None for other landscapes."""
    networks = networks_of(context.spec)
    if not networks:
        return None
    corners = np.stack([np.asarray(axis.places(context)) for axis in context.axes], axis=1)
    return PathPlan(NETWORK, tuple(range(len(networks))), corners, np.zeros(len(networks)))


def _project(
    states: Sequence[State], context: LandscapeContext, directions: Sequence[DirectionTensors]
) -> tuple[Floats, Floats]:
    """The coordinates of weights on the axes, [states, axes], and their distances from the axes' span."""
    names, tensors = [info.name for info in context.infos], [axis.tensors for axis in directions]
    places = [project(state, context.origin, tensors, names) for state in states]
    return np.array([place for place, _ in places]), np.array([far for _, far in places])


def _place_runs(
    context: LandscapeContext, directions: Sequence[DirectionTensors], networks: PathPlan | None
) -> PathPlan:
    """The snapshots of all runs, one path after another, followed by the networks of a plane.

    Raises:
        JobError: a snapshot or network is not finite, so it has no place on the axes.
    """
    parts, records, of_walks = list[PathPlan](), list[PathRecord](), _shares_of_walks(context)
    for k, path in enumerate(context.paths):
        states = [context.state(snapshot) for snapshot in path.snapshots]
        coordinates, distance = _project(states, context, directions)
        refuse_diverged(distance.tolist(), [context.name(snapshot) for snapshot in path.snapshots], "paths: their")
        parts.append(PathPlan(path.unit, path.numbers, coordinates, distance))
        share = shown_share(states, coordinates, context, directions)
        records.append(_record(path, share, of_walks[k] if of_walks and share is not None else None))
    units = {part.unit for part in parts}
    if networks is not None:
        parts.append(networks)
        records.append(PathRecord(label=NETWORK, unit=NETWORK))
    return PathPlan(
        units.pop() if len(units) == 1 else MIXED,
        tuple(step for part in parts for step in part.step),
        np.concatenate([part.coordinates for part in parts]),
        np.concatenate([part.distance for part in parts]),
        tuple(k for k, part in enumerate(parts) for _ in part.step),
        tuple(records),
    )


def _record(path: RunPath, share: float | None, of_walk: float | None) -> PathRecord:
    return PathRecord(
        label=path.label, run=path.named, unit=path.unit, own=path.own, shown=share, shown_of_walk=of_walk
    )


def shown_share(
    states: Sequence[State], coordinates: Floats, context: LandscapeContext, directions: Sequence[DirectionTensors]
) -> float | None:
    """The share of the snapshots' variance, about their own mean, that the plane shows; None if they do not vary.

    With Δᵢ = θᵢ − θ̄ and its projection Pᵢ on the axes: Σ‖Pᵢ‖² / Σ‖Δᵢ‖².

    Args:
        coordinates: of the projections [states, axes].
    """
    names = [info.name for info in context.infos]
    whole = float(np.trace(gram_of_centred(states, names)))
    away = coordinates - coordinates.mean(0)
    axes = [{name: axis.tensors[name] for name in names if name in axis.tensors} for axis in directions]
    inside = float(np.einsum("sa,ab,sb->", away, gram_matrix(axes), away))
    return min(1.0, inside / whole) if whole > 0 else None


def _shares_of_walks(context: LandscapeContext) -> list[float | None] | None:
    """The same for random walks in place of the paths, if all axes are principal components of the paths; else None."""
    axes = [axis for axis in context.axes if isinstance(axis, PcaDirection) and axis.trajectory == "paths"]
    if len(axes) < len(context.axes):
        return None
    found: PrincipalComponents = axes[0].components_of(context)
    return found.walks.shown([axis.component for axis in axes])
