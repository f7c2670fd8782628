"""Where the snapshots of a landscape's paths lie on its axes, and what weights they have."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, TypeVar, cast

import numpy as np
from torch import Tensor

from landscape.compute.paths import Weights, paths_of
from landscape.core.errors import JobError
from landscape.core.folders import locate
from landscape.core.grid import Floats
from landscape.job.directions.base import (
    DirectionSpec,
    DirectionTensors,
    RunPath,
    RunSnapshot,
    Spectrum,
    Workers,
    in_this_process,
)
from landscape.job.directions.pca import PcaDirection
from landscape.job.directions.plane import PlaneDirection
from landscape.job.directions.tensors import PrincipalComponents, gram_matrix, gram_of_centred, project, refuse_diverged
from landscape.job.landscape import Landscape
from landscape.model.parameters import ParameterInfo, State
from landscape.model.weight_files import load_weights
from landscape.problem.batches import Batch
from landscape.problem.samples import Samples
from landscape.problem.terms import Problem
from landscape.store.format import MIXED, NETWORK, PathPlan
from landscape.store.landscape import LandscapeStore
from landscape.surface.record_entries import PathRecord

# ----------------------------------------------------------------------------------------------------
# What the directions of one landscape ask for: the weights of its run, its problem and its samples.

T = TypeVar("T")
SolveHere = Callable[[tuple[int, ...], int, int], Spectrum]  # `Context.spectrum` of one origin


@dataclass(frozen=True)
class LandscapeContext:
    """The `landscape.job.directions.base.Context` of one landscape; there its members are described.

    Attributes:
        spec: the landscape, under the defaults that held when it was begun.
        weights: what it may name weights by, each read once.
    """

    spec: Landscape
    weights: Weights
    infos: Sequence[ParameterInfo]
    problem: Problem
    chosen: Samples
    workers: Workers = in_this_process
    solve: SolveHere | None = None
    _known: dict[Hashable, Any] = field(default_factory=dict, repr=False)

    @cached_property
    def reference(self) -> int | str | RunSnapshot:
        """The origin by its name in the job, `first` and `last` as the number of their snapshot.

        A job that leaves it out means the last snapshot of the first of its paths, else the last that a direction is
        made from, else the last of the run, else the weights that the callback returns.
        """
        if self.spec.origin is not None:
            return self.weights.resolve(self.spec.origin)
        if self.paths:
            return self.paths[0].snapshots[-1]
        numbers = self.snapshots(self.spec.snapshots or "all")
        return numbers[-1] if numbers else "problem"

    @property
    def meant(self) -> dict[str, int]:
        """The numbers of the snapshots that `first`, `last` and RUN@last stand for, by these words."""
        named = (self.spec.origin, *(name for axis in self.axes for name in axis.weights))
        words = [name for name in named if isinstance(name, str) and name.rpartition("@")[2] in ("first", "last")]
        keys = {name: self.weights.resolve(name) for name in words}
        numbers = {name: key.number if isinstance(key, RunSnapshot) else key for name, key in keys.items()}
        return {name: number for name, number in numbers.items() if isinstance(number, int)}  # others are files

    @property
    def origin(self) -> State:
        """The weights at the origin, read when they are first asked for."""
        return self.weights.state(self.reference)

    @property
    def axes(self) -> Sequence[DirectionSpec]:
        """The directions of the landscape."""
        return self.spec.directions

    @property
    def samples(self) -> Batch:
        """All samples as one batch."""
        return self.once("samples", lambda: self.chosen.batch(0, self.chosen.length))

    @property
    def unit(self) -> str:
        """`step` or `epoch`, as the run counts its snapshots."""
        return self.weights.trajectory.unit

    def spectrum(self, ranks: tuple[int, ...], steps: int, seed: int) -> Spectrum:
        """Eigenpairs of the Hessian at the origin, as the solver of the job computes them."""
        assert self.solve is not None, "a landscape that is prepared has one"
        return self.solve(ranks, steps, seed)

    @cached_property
    def paths(self) -> tuple[RunPath, ...]:
        """The runs whose paths the landscape draws."""
        return paths_of(self.spec, self.weights)

    def state(self, reference: int | str | RunSnapshot) -> State:
        """The weights of that name, read once for all landscapes of the job."""
        return self.weights.state(reference)

    def digest(self, reference: int | str | RunSnapshot) -> str:
        """Their digest."""
        return self.weights.digest(reference)

    def name(self, reference: int | str | RunSnapshot) -> str:
        """What labels call them; those of a run whose path is drawn by the label of that."""
        key = self.weights.resolve(reference)
        drawn = next((path for path in self.paths if key in path.snapshots), None)
        if drawn is not None and isinstance(key, RunSnapshot):
            return f"{drawn.label} {drawn.unit} {key.number}"
        return self.weights.label(key)

    def snapshots(self, selection: Sequence[int] | Literal["all"]) -> tuple[int, ...]:
        """The selected snapshots of the run by their numbers, ascending."""
        return self.weights.trajectory.select(selection).numbers

    def tensors(self, path: str) -> dict[str, Tensor]:
        """The tensors of a file, read anew each time, so that a large file is not held in memory."""
        return load_weights(locate(path, self.weights.folder))

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """What `make` returned when this key was first asked for."""
        if key not in self._known:
            self._known[key] = make()
        return cast(T, self._known[key])


# ----------------------------------------------------------------------------------------------------


def no_path_to_fit(spec: Landscape) -> JobError:
    """The error of an axis whose default range is fitted to the path, where the landscape has no path."""
    fitted = sorted({axis.title or axis.kind for axis in spec.directions if axis.snapshots is not None})
    return JobError(f"range: must be given where {', '.join(fitted)} axes are mixed with others")


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


def states_on(path: PathPlan | None, context: LandscapeContext) -> Callable[[int], State]:
    """What gives the weights on a path by their place on it: those of a snapshot, or of a network of a plane."""
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
    """The snapshots that all axes are made from, projected on their plane, or the networks that a plane runs through.

    Where the job names `paths`, the snapshots of these, and behind them the networks. None where an axis is made
    otherwise and no paths are named.

    Raises:
        JobError: an axis without a range would be fitted to a path that not all axes have.
    """
    networks = _networks(context)
    if context.paths:
        return _of_runs(context, directions, networks)
    if networks is not None:
        return networks
    selections = [axis.snapshots for axis in context.axes]
    if None in selections:
        if context.spec.range is None and context.spec.snapshots is not None:
            raise no_path_to_fit(context.spec)
        return None
    chosen = [context.snapshots(selection) for selection in selections if selection is not None]
    numbers = sorted({number for snapshots in chosen for number in snapshots})
    coordinates, distance = _projected([context.state(number) for number in numbers], context, directions)
    return PathPlan(context.weights.trajectory.unit, tuple(numbers), coordinates, distance)


def _networks(context: LandscapeContext) -> PathPlan | None:
    """The networks that a plane runs through, at their places; None for every other landscape."""
    networks = networks_of(context.spec)
    if not networks:
        return None
    corners = np.stack([np.asarray(axis.places(context)) for axis in context.axes], axis=1)
    return PathPlan(NETWORK, tuple(range(len(networks))), corners, np.zeros(len(networks)))


def _projected(
    states: Sequence[State], context: LandscapeContext, directions: Sequence[DirectionTensors]
) -> tuple[Floats, Floats]:
    """The coordinates of weights on the axes, [states, axes], and their distances off these."""
    names, tensors = [info.name for info in context.infos], [axis.tensors for axis in directions]
    places = [project(state, context.origin, tensors, names) for state in states]
    return np.array([place for place, _ in places]), np.array([far for _, far in places])


def _of_runs(context: LandscapeContext, directions: Sequence[DirectionTensors], networks: PathPlan | None) -> PathPlan:
    """The snapshots of all runs one path after another, and behind them the networks of a plane.

    Raises:
        JobError: one of them is not finite; it would have no place, and the ranges no ends.
    """
    parts, records, of_walks = list[PathPlan](), list[PathRecord](), _shown_of_walks(context)
    for k, path in enumerate(context.paths):
        states = [context.state(snapshot) for snapshot in path.snapshots]
        coordinates, distance = _projected(states, context, directions)
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
    """The share of the variance of some snapshots, about their own mean, that the plane shows; None where it is none.

    With Δᵢ = θᵢ − θ̄ and its projection Pᵢ on the axes: Σ‖Pᵢ‖² / Σ‖Δᵢ‖².

    Args:
        coordinates: of their projections [states, axes].
    """
    names = [info.name for info in context.infos]
    whole = float(np.trace(gram_of_centred(states, names)))
    away = coordinates - coordinates.mean(0)
    axes = [{name: axis.tensors[name] for name in names if name in axis.tensors} for axis in directions]
    inside = float(np.einsum("sa,ab,sb->", away, gram_matrix(axes), away))
    return min(1.0, inside / whole) if whole > 0 else None


def _shown_of_walks(context: LandscapeContext) -> list[float | None] | None:
    """The same of random walks in place of the paths, where all axes are principal components of these; else None."""
    axes = [axis for axis in context.axes if isinstance(axis, PcaDirection) and axis.trajectory == "paths"]
    if len(axes) < len(context.axes):
        return None
    found: PrincipalComponents = axes[0].components_of(context)
    return found.walks.shown([axis.component for axis in axes])
