"""The axes of a landscape and the path on them, from its specification and the weights it names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from landscape.directions.making import (
    DirectionTensors,
    PrincipalComponents,
    principal_components,
    project,
    random_direction,
    supplied_direction,
    towards_direction,
)
from landscape.errors import JobError, shown
from landscape.folders.places import locate
from landscape.grid import Floats, axis_coordinates, coordinates_through_zero, coordinates_through_zero_and_one
from landscape.parameters import ParameterInfo, State, direction_digest, norm
from landscape.preparation.weights import Weights
from landscape.spec.job import (
    DEFAULT_RANGE,
    DEFAULTS,
    Direction,
    FileDirection,
    Landscape,
    PcaDirection,
    RandomDirection,
    TowardsDirection,
)
from landscape.store import LandscapeStore, PathPlan
from landscape.trajectory.weight_files import load_weights

PATH_MARGIN = 0.2  # the axes run 20 % beyond the path on each side, as in MindInsight


def axis_ranges(spec: Landscape) -> list[tuple[float, float] | None]:
    """The range per axis as given, else the kind's default; None where it is to be fitted to the path."""
    return [_axis_range(spec, k) for k in range(len(spec.directions))]


def _axis_range(spec: Landscape, k: int) -> tuple[float, float] | None:
    if spec.range is not None:
        return spec.range[k]
    line = _line_coordinates(spec, k)
    return DEFAULT_RANGE.get(spec.directions[k].kind) if line is None else (float(line[0]), float(line[-1]))


def _line_coordinates(spec: Landscape, k: int) -> Floats | None:
    """Those of a `towards` axis whose range is left out: both ends of the line, 0 and 1, are points of the grid."""
    if spec.range is not None or not isinstance(spec.directions[k], TowardsDirection):
        return None
    return coordinates_through_zero_and_one(spec.size[k])


def make_coordinates(spec: Landscape, path: PathPlan | None, defaults: int = DEFAULTS) -> tuple[Floats, ...]:
    """The coordinates per axis; those fitted under the first version of the defaults did not go through zero."""
    found = []
    for k, size in enumerate(spec.size):
        if (line := _line_coordinates(spec, k)) is not None:
            found.append(line)
        elif (limits := _axis_range(spec, k)) is not None:
            found.append(axis_coordinates(size, *limits))
        else:
            assert path is not None
            fitted = fit_range(path.coordinates[:, k])
            found.append(coordinates_through_zero(size, *fitted) if defaults > 1 else axis_coordinates(size, *fitted))
    return tuple(found)


def fit_range(coordinates: np.ndarray) -> tuple[float, float]:
    """From the least to the largest coordinate of the path, the origin included, and 20 % of that beyond each."""
    low, high = min(0.0, float(coordinates.min())), max(0.0, float(coordinates.max()))
    margin = PATH_MARGIN * (high - low) or 1.0
    return low - margin, high + margin


def make_axes(
    spec: Landscape, weights: Weights, origin: int | str, infos: Sequence[ParameterInfo], stored: LandscapeStore | None
) -> tuple[DirectionTensors, ...]:
    """Every axis's tensors and what to record of them; those of a landscape on disk as they were stored."""
    tensors = stored.directions() if stored else None
    components = _components(spec, weights, infos)
    found = []
    for k, each in enumerate(spec.directions):
        made = tensors[k] if tensors else _make_direction(each, weights, origin, infos, components)
        found.append(DirectionTensors(made, _describe(each, made, weights, components)))
    return tuple(found)


def _components(spec: Landscape, weights: Weights, infos: Sequence[ParameterInfo]) -> dict[Any, PrincipalComponents]:
    """One PCA per list of snapshots that the axes name, with as many components as they need."""
    needed: dict[Any, int] = {}
    for each in spec.directions:
        if isinstance(each, PcaDirection):
            needed[each.trajectory] = max(needed.get(each.trajectory, 0), each.component)
    names = [info.name for info in infos]
    return {
        snapshots: principal_components(
            [weights.state(n) for n in weights.trajectory.select(snapshots).numbers], names, count
        )
        for snapshots, count in needed.items()
    }


def _make_direction(
    spec: Direction, weights: Weights, origin: int | str, infos: Sequence[ParameterInfo], components: Mapping[Any, Any]
) -> dict[str, torch.Tensor]:
    state = weights.state(origin)
    if isinstance(spec, RandomDirection):
        assert spec.seed is not None
        return random_direction(state, infos, spec.seed, spec.normalise, spec.ignore)
    if isinstance(spec, TowardsDirection):
        return towards_direction(state, weights.state(spec.target))
    if isinstance(spec, FileDirection):
        tensors = load_weights(locate(spec.path, weights.folder))
        return supplied_direction(
            tensors, state, infos, f"direction file {shown(spec.path)}", spec.normalise, spec.ignore
        )
    return dict(components[spec.trajectory].components[spec.component - 1])


def _describe(
    spec: Direction, tensors: State, weights: Weights, components: Mapping[Any, PrincipalComponents]
) -> dict[str, Any]:
    found: dict[str, Any] = spec.model_dump(mode="json") | {
        "norm": norm(tensors),
        "label": "",
        "digest": direction_digest(tensors),
    }
    if isinstance(spec, RandomDirection):
        found["label"] = f"random direction (seed {spec.seed}, {_normalised(spec.normalise, spec.ignore)})"
    elif isinstance(spec, FileDirection):
        found["label"] = f"direction from {Path(spec.path).name} ({_normalised(spec.normalise, spec.ignore)})"
    elif isinstance(spec, TowardsDirection):
        target = weights.label(spec.target)
        found["label"] = f"towards {Path(target).name} (at 1)"
    else:
        pca, k = components[spec.trajectory], spec.component - 1
        numbers = weights.trajectory.select(spec.trajectory).numbers
        found |= {"explained_variance": pca.explained_variance[k], "random_walk_variance": pca.random_walk_variance[k]}
        found["label"] = (
            f"principal component {spec.component} of {weights.trajectory.unit}s {numbers[0]} to {numbers[-1]}"
        )
    return found


def _normalised(normalise: str, ignore: Sequence[str]) -> str:
    scaled = "not normalised" if normalise == "none" else f"{normalise}-normalised"
    return f"{scaled}, {' and '.join(ignore)} ignored" if ignore else scaled


def make_path(
    spec: Landscape,
    weights: Weights,
    origin: int | str,
    directions: Sequence[DirectionTensors],
    infos: Sequence[ParameterInfo],
) -> PathPlan | None:
    """The trajectory of a PCA plane projected on it; None where an axis is something else."""
    lists = [each.trajectory for each in spec.directions if isinstance(each, PcaDirection)]
    if len(lists) != len(spec.directions):
        if lists and spec.range is None:
            raise JobError("range: must be given where PCA axes are mixed with others")
        return None
    numbers = sorted({n for each in lists for n in weights.trajectory.select(each).numbers})
    names = [info.name for info in infos]
    state, tensors = weights.state(origin), [each.tensors for each in directions]
    places = [project(weights.state(n), state, tensors, names) for n in numbers]
    coordinates = np.array([place for place, _ in places])
    return PathPlan(weights.trajectory.unit, tuple(numbers), coordinates, np.array([far for _, far in places]))
