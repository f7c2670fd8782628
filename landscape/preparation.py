"""From a job to what can be evaluated: the problem, its samples, and per landscape origin, axes, grid and path.

Everything that can be wrong with a job is found here, before anything is written. What decides the values is
collected as the landscape's *identity*; a landscape on disk with another identity is refused.
"""

from __future__ import annotations

import platform
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from landscape.directions import (
    DirectionTensors,
    PrincipalComponents,
    cosines,
    principal_components,
    project,
    random_direction,
    supplied_direction,
    towards_direction,
)
from landscape.errors import JobError
from landscape.evaluation import Plan, default_plan, observe_names, pick_device
from landscape.grid import Grid, Index, axis_coordinates
from landscape.parameters import (
    ParameterInfo,
    State,
    describe_parameters,
    direction_digest,
    layout,
    match_state,
    norm,
    state_digest,
    state_of,
)
from landscape.problem import Batch, Problem, batch_length, load_problem, samples_digest, select_samples
from landscape.spec import (
    DEFAULT_RANGE,
    CollectLandscape,
    Direction,
    FileDirection,
    Job,
    Landscape,
    PcaDirection,
    RandomDirection,
    TowardsDirection,
    digest,
    locate,
)
from landscape.store import LandscapeStore, PathPlan, landscape_names, refuse_unwritable
from landscape.trajectory import Trajectory, load_weights, read_info, read_trajectory

PATH_MARGIN = 0.2  # the axes run 20 % beyond the path on each side, as in MindInsight


@dataclass(frozen=True)
class PreparedLandscape:
    """One landscape, ready to be evaluated: weights, axes, grid, path, and the record of what they are."""

    name: str
    origin: State
    directions: tuple[DirectionTensors, ...]
    grid: Grid
    path: PathPlan | None
    plan: Plan
    identity: Mapping[str, Any]
    attributes: Mapping[str, Any]
    observables: tuple[str, ...]
    snapshot_state: Callable[[int], State] = field(repr=False)

    @property
    def points(self) -> int:
        """Evaluations in all: the grid's points, and two per snapshot of the path."""
        return self.grid.points + (2 * len(self.path.step) if self.path else 0)


@dataclass(frozen=True)
class PreparedJob:
    job: Job
    run: str
    problem: Problem
    samples: Batch
    landscapes: tuple[PreparedLandscape, ...]


class Weights:
    """The sets of weights a job may name: the problem's own, snapshots, files. Each is read and matched once."""

    def __init__(self, problem: Problem, trajectory: Trajectory, folder: Path) -> None:
        self.model, self.trajectory, self._folder = problem.model, trajectory, folder
        self._known: dict[int | str, dict[str, torch.Tensor]] = {}
        self._digests: dict[int | str, str] = {}

    def resolve(self, reference: int | str) -> int | str:
        """`last` and `first` as the number of their snapshot; all else as it is."""
        if reference not in ("last", "first"):
            return reference
        if not self.trajectory.numbers:
            raise JobError(
                f"origin: {reference!r} needs a trajectory, and the run has none; use origin: problem or a file"
            )
        return self.trajectory.numbers[-1 if reference == "last" else 0]

    def state(self, reference: int | str) -> dict[str, torch.Tensor]:
        key = self.resolve(reference)
        if key not in self._known:
            self._known[key] = self._read(key)
        return self._known[key]

    def digest(self, reference: int | str) -> str:
        key = self.resolve(reference)
        if key not in self._digests:
            self._digests[key] = state_digest(self.state(key))
        return self._digests[key]

    def label(self, reference: int | str) -> str:
        key = self.resolve(reference)
        return f"{self.trajectory.unit} {key}" if isinstance(key, int) else key

    def _read(self, key: int | str) -> dict[str, torch.Tensor]:
        if key == "problem":
            return state_of(self.model)
        if isinstance(key, int):
            return match_state(self.model, self.trajectory.snapshot(key).load(), f"{self.trajectory.unit} {key}")
        return match_state(self.model, load_weights(locate(key, self._folder)), f"file {key!r}")


def prepare(job: Job, *, device: str | None = None) -> PreparedJob:
    """Check the whole job and work out every landscape; reads, and writes nothing.

    Args:
        device: the kind of device the workers have, `cpu` or `cuda`; default: as the job says, on this machine.

    Raises:
        JobError: something in the job cannot be computed as it stands.
    """
    run = job.run_path
    refuse_unwritable(run)
    kind = device or pick_device(job.device).type
    problem = load_problem(job.problem, job.folder)
    specs, at_most, num_samples = _landscapes_of(job, run)
    samples = select_samples(problem.data, num_samples, job.seed, at_most=at_most)
    names = observe_names(problem.model, problem.observe, samples, job.precision, pick_device(job.device))
    weights = Weights(problem, read_trajectory(run), job.folder)
    common = _Common(job, run, problem, weights, samples_digest(samples), batch_length(samples), names, kind)
    return PreparedJob(job, run, problem, samples, tuple(_prepare_landscape(common, spec) for spec in specs))


def _landscapes_of(job: Job, run: str) -> tuple[tuple[Landscape, ...], bool, int]:
    """The landscapes to compute, whether fewer samples will do, and their number: the job's, else the collector's."""
    options = job.collect_landscape or _collected(run)
    asked = "num_samples" in job.model_fields_set
    num_samples = job.num_samples if asked or options is None else options.num_samples
    if job.landscapes:
        return job.landscapes, not asked, num_samples
    if options is None:
        return (Landscape(name="result"),), not asked, num_samples
    found = options.landscapes()
    if not found:
        raise JobError(
            "create_landscape: both train and result are false: nothing to compute; set one of them or list landscapes"
        )
    return found, not asked, num_samples


def _collected(run: str) -> CollectLandscape | None:
    options = read_info(run).get("collect_landscape")
    return CollectLandscape(**options) if options else None


@dataclass(frozen=True)
class _Common:
    """What all landscapes of a job share."""

    job: Job
    run: str
    problem: Problem
    weights: Weights
    samples: str
    num_samples: int
    observables: tuple[str, ...]
    device: str


def _prepare_landscape(common: _Common, spec: Landscape) -> PreparedLandscape:
    job, weights = common.job, common.weights
    origin = _origin_of(spec, weights)
    identity = _identity(common, spec, origin)
    stored = _stored(common, spec.name, identity)
    infos = describe_parameters(weights.model)
    directions = _directions(spec, weights, origin, infos, stored)
    # What is on disk wins: another machine may round a fitted range or a component differently.
    path = (stored.path_plan() if stored else None) or _path(spec, weights, origin, directions, infos)
    grid = (stored.grid() if stored else None) or Grid(spec.axis_names, _coordinates(spec, path))
    plan = _plan(common, stored)
    attributes = {
        "job": job.model_dump(mode="json") | {"landscapes": [spec.model_dump(mode="json")]},
        "identity": identity,
        "digest": digest(identity),
        "num_samples": common.num_samples,
        "precision": job.precision,
        "batch_norm": job.batch_norm,
        "seed": job.seed,
        "observables": list(common.observables),
        "cosine": cosines([each.tensors for each in directions]).tolist(),
        "origin": weights.label(origin),
        "origin_step": origin if isinstance(origin, int) else None,
        "plan": asdict(plan),
        "provenance": _provenance(weights.model, infos),
        "failures": [],
    }
    state = weights.state(origin)
    return PreparedLandscape(
        spec.name, state, directions, grid, path, plan, identity, attributes, common.observables, weights.state
    )


def _origin_of(spec: Landscape, weights: Weights) -> int | str:
    numbers = weights.trajectory.numbers
    if spec.origin is not None:
        return weights.resolve(spec.origin)
    pca = [each for each in spec.directions if isinstance(each, PcaDirection)]
    if pca:
        return weights.trajectory.select(pca[0].trajectory).numbers[-1]
    return numbers[-1] if numbers else "problem"


def _identity(common: _Common, spec: Landscape, origin: int | str) -> dict[str, Any]:
    """All that decides the values; not tile shape, workers or machine."""
    job = common.job
    ranges = _ranges(spec)
    return {
        "origin": common.weights.digest(origin),
        "directions": [_direction_identity(each, common.weights, origin) for each in spec.directions],
        "coordinates": [[size, *(ranges[k] or ["fitted"])] for k, size in enumerate(spec.size)],
        "observables": list(common.observables),
        "num_samples": common.num_samples,
        "samples": common.samples,
        "seed": job.seed,
        "precision": job.precision,
        "batch_norm": job.batch_norm,
    }


def _direction_identity(spec: Direction, weights: Weights, origin: int | str) -> dict[str, Any]:
    found = spec.model_dump(mode="json")
    if isinstance(spec, TowardsDirection):
        return {"kind": "towards", "target": weights.digest(spec.target)}
    if isinstance(spec, FileDirection):
        del found["path"]
        return found | {"tensors": state_digest(load_weights(locate(spec.path, weights._folder)))}
    if isinstance(spec, PcaDirection):
        numbers = weights.trajectory.select(spec.trajectory).numbers
        return {"kind": "pca", "component": spec.component, "snapshots": {str(n): weights.digest(n) for n in numbers}}
    return found


def _ranges(spec: Landscape) -> list[tuple[float, float] | None]:
    """The range per axis as given, else the kind's default; None where it is to be fitted to the path."""
    given = spec.range or (None,) * len(spec.directions)
    return [each or DEFAULT_RANGE.get(d.kind) for each, d in zip(given, spec.directions, strict=True)]


def _coordinates(spec: Landscape, path: PathPlan | None) -> tuple[Any, ...]:
    found = []
    for k, (size, limits) in enumerate(zip(spec.size, _ranges(spec), strict=True)):
        if limits is None:
            assert path is not None
            limits = fit_range(path.coordinates[:, k])
        found.append(axis_coordinates(size, *limits))
    return tuple(found)


def fit_range(coordinates: np.ndarray) -> tuple[float, float]:
    """From the least to the largest coordinate of the path, the origin included, and 20 % of that beyond each."""
    low, high = min(0.0, float(coordinates.min())), max(0.0, float(coordinates.max()))
    margin = PATH_MARGIN * (high - low) or 1.0
    return low - margin, high + margin


def _directions(
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
        tensors = load_weights(locate(spec.path, weights._folder))
        return supplied_direction(tensors, state, infos, f"direction file {spec.path!r}", spec.normalise, spec.ignore)
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


def _path(
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


def _plan(common: _Common, stored: LandscapeStore | None) -> Plan:
    """The recorded plan of a landscape on disk, else the default; refused where the job contradicts the record."""
    job = common.job
    if stored is None:
        return default_plan(
            common.num_samples, common.device, job.precision, job.batch_norm, job.seed, job.batch_size, job.threads
        )
    plan = Plan(**stored.attributes["plan"])
    asked = {"batch_size": job.batch_size and min(job.batch_size, common.num_samples), "threads": job.threads}
    changed = [f"{k} {getattr(plan, k)} to {v}" for k, v in asked.items() if v is not None and v != getattr(plan, k)]
    if changed:
        raise JobError(_refusal(stored.name, changed, "leave it out to go on as before"))
    return plan


def _stored(common: _Common, name: str, identity: Mapping[str, Any]) -> LandscapeStore | None:
    """The landscape on disk where there is one.

    Raises:
        JobError: it was computed from something else; says from what.
    """
    if name not in landscape_names(common.run):
        return None
    store = LandscapeStore.open(common.run, name)
    recorded = store.attributes["identity"]
    differ = [key for key, value in identity.items() if recorded.get(key) != value]
    if {"num_samples", "seed"} & set(differ):
        differ.remove("samples")  # follows from them
    changed = [_change(key, recorded.get(key), identity[key]) for key in differ]
    if changed:
        raise JobError(_refusal(name, changed, "change it back"))
    return store


def _refusal(name: str, changed: Sequence[str], remedy: str) -> str:
    return (
        f"landscape {name!r} was computed with another job; changed: {'; '.join(changed)}: "
        f"{remedy}, or give it another name or run"
    )


def _change(key: str, before: Any, now: Any) -> str:
    """What changed in one field of the identity; a digest says nothing to a person."""
    if key in ("origin", "samples"):
        return f"{key} (other {'weights' if key == 'origin' else 'data'})"
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        parts = [
            f"axis {k + 1}: {_plain(b)} to {_plain(n)}"
            for k, (b, n) in enumerate(zip(before, now, strict=True))
            if b != n
        ]
        return f"{key} ({', '.join(parts)})"
    return f"{key} {_plain(before)} to {_plain(now)}"


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{k}={_plain(v)}" for k, v in value.items() if k != "kind") or "none"
    text = str(value)
    return text[:8] if len(text) == 64 and text.isalnum() else text


def _provenance(model: torch.nn.Module, infos: Sequence[ParameterInfo]) -> dict[str, Any]:
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "versions": {"python": platform.python_version(), **versions()},
        "model": type(model).__name__,
        "parameters": sum(int(np.prod(info.shape)) for info in infos),
    }


def versions() -> dict[str, str]:
    """The versions of what computes the values."""
    found = {"torch": torch.__version__, "numpy": np.__version__}
    for package in ("zarr", "ray", "loss-landscape-cluster"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def existing_store(prepared: PreparedJob, landscape: PreparedLandscape) -> LandscapeStore | None:
    """The landscape on disk, open for going on, its coordinates and directions mended where damaged."""
    if landscape.name not in landscape_names(prepared.run):
        return None
    store = LandscapeStore.open(prepared.run, landscape.name, write=True)
    if store.check_constants():
        store.repair_constants(landscape.grid, [each.tensors for each in landscape.directions], landscape.path)
    return store


def create_store(prepared: PreparedJob, landscape: PreparedLandscape, tile_shape: Index) -> LandscapeStore:
    states = [each.tensors for each in landscape.directions]
    moved = [name for name in landscape.origin if any(name in state for state in states)]
    parameters = [info.name for info in describe_parameters(prepared.problem.model)]
    names = [*parameters, *(name for name in moved if name not in parameters)]
    return LandscapeStore.create(
        prepared.run, landscape.name, landscape.grid, tile_shape, landscape.observables,
        axes=[each.attributes for each in landscape.directions], directions=states,
        layout=layout(landscape.origin, names), path=landscape.path, attributes=landscape.attributes,
    )  # fmt: skip
