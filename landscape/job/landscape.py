"""One landscape as a job describes it: origin, directions, grid, and the runs whose paths it draws."""

from __future__ import annotations

import os.path
from collections.abc import Iterator, Mapping, Sequence
from numbers import Integral
from typing import Annotated, Any, Literal, Self, Union

from pydantic import BeforeValidator, TypeAdapter, WithJsonSchema, field_validator, model_validator

from landscape.core.errors import quoted
from landscape.core.grid import AXIS_NAMES
from landscape.core.validation import (
    AUTO,
    OF_RUN,
    Axes,
    Frozen,
    RangesOrAuto,
    Reference,
    Sizes,
    Snapshots,
    any_snapshots,
    is_list,
    landscape_name,
    pair,
    refuse_coinciding,
    snapshots_or_paths,
)
from landscape.job.directions.base import DEFAULT_IGNORE
from landscape.job.directions.kinds import KINDS, Direction
from landscape.job.directions.plane import PcaDirection, PlaneDirection
from landscape.job.landscape_options import DEFAULT_SIZE as CONVEXITY_SIZE
from landscape.job.landscape_options import (
    EXCLUDED,
    NO_CURVATURE,
    MaybeAccuracy,
    MaybeBudget,
    MaybeConvexity,
    MaybeLayers,
    MaybeQuantise,
    Refine,
    refuse_with_accuracy,
    refuse_with_like,
)
from landscape.surface.accuracy import FINEST_POINTS
from landscape.surface.barriers import Curve

# ----------------------------------------------------------------------------------------------------
# The runs whose paths a landscape draws: `paths:` of a landscape.

MOST_PATHS = 12  # more lines over one another cannot be told apart
LONGEST_LABEL = 60

Selection = Annotated[
    Union[tuple[int, ...], Literal["all"]],
    BeforeValidator(any_snapshots),
    WithJsonSchema(
        {"anyOf": [{"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}, {"const": "all"}]}
    ),
]


class PathOfRun(Frozen):
    """A run whose snapshots are drawn as a path."""

    run: str
    """Folder or URL that holds the trajectory; a relative folder starts at that of the job file."""
    snapshots: Selection = "all"
    """Which of its snapshots, by their numbers; default: all."""
    label: str | None = None
    """What figures call it; default: the end of the folder's name by which it differs from the others."""

    @field_validator("run", mode="before")
    @classmethod
    def _run_path(cls, value: Any) -> Any:
        value = os.fspath(value) if isinstance(value, os.PathLike) else value
        if not isinstance(value, str) or not value.strip():
            raise ValueError(f"must be a folder or URL, not {quoted(value)}")
        return value

    @field_validator("label")
    @classmethod
    def _label(cls, value: str | None) -> str | None:
        if value is not None and not 0 < len(value.strip()) <= LONGEST_LABEL:
            raise ValueError(f"must have 1 to {LONGEST_LABEL} characters, not {quoted(value)}")
        return None if value is None else value.strip()


# For editors; `listed_paths` also takes a run by itself.
PATHS_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {
            "type": "array",
            "items": {"anyOf": [{"type": "string"}, PathOfRun.model_json_schema()]},
            "minItems": 1,
            "maxItems": MOST_PATHS,
        },
        {"type": "null"},
    ]
}


def listed_paths(value: Any) -> Any:
    """The `paths:` of a landscape, each run as the fields of a `PathOfRun`.

    >>> listed_paths(["runs/sgd", {"run": "runs/thor", "label": "THOR"}])
    ({'run': 'runs/sgd'}, {'run': 'runs/thor', 'label': 'THOR'})
    """
    if value is None:
        return None
    if not is_list(value) or not 1 <= len(value) <= MOST_PATHS:
        raise ValueError(
            f"must list 1 to {MOST_PATHS} runs, such as [runs/sgd, runs/thor], not "
            f"{f'{len(value)} of them; draw the others in another landscape' if is_list(value) else quoted(value)}"
        )
    return tuple(path if isinstance(path, (Mapping, PathOfRun)) else {"run": path} for path in value)


def refuse_twice(paths: Sequence[PathOfRun]) -> None:
    """Refuse paths that share a snapshot or a label.

    Raises:
        ValueError: names the run or the label.
    """
    for k, path in enumerate(paths):
        for other in paths[:k]:
            if os.path.normpath(path.run) == os.path.normpath(other.run) and overlap(path.snapshots, other.snapshots):
                raise ValueError(
                    f"paths must name each run once, or different snapshots of it, and {quoted(path.run)} stands twice"
                )
            if path.label is not None and path.label == other.label:
                raise ValueError(f"paths must have labels of their own, and {quoted(path.label)} stands twice")


def overlap(first: Sequence[int] | Literal["all"], second: Sequence[int] | Literal["all"]) -> bool:
    """Whether two selections of snapshots of one run have some in common."""
    return first == "all" or second == "all" or bool(set(first) & set(second))


# ----------------------------------------------------------------------------------------------------
# Rules of axes, in whatever short form they were written.


def refuse_without_paths(directions: tuple[Direction, ...], paths: tuple[PathOfRun, ...] | None) -> None:
    """Refuse principal components of paths in a landscape without `paths`, and paths that share a snapshot or a label.

    Raises:
        ValueError: with the rule and the remedy.
    """
    if paths:
        refuse_twice(paths)
    elif any(isinstance(axis, PcaDirection) and axis.trajectory == "paths" for axis in directions):
        raise ValueError("directions: `trajectory: paths` goes with paths only; list the runs: paths: [runs/sgd, …]")


def refuse_auto(directions: tuple[Direction, ...]) -> None:
    """Refuse `range: auto` along axes whose kind decides their ends.

    Raises:
        ValueError: with the rule and the remedy.
    """
    for direction in directions:
        if direction.reaches_to:
            kind = direction.title or direction.kind
            raise ValueError(
                f"range must be left out along {kind} axes, or given in numbers, not auto; left out, it reaches "
                f"{direction.reaches_to}"
            )


def refuse_equal(directions: tuple[Direction, ...]) -> None:
    """Refuse two equal axes.

    Raises:
        ValueError: with the rule and the remedy.
    """
    described = [direction.model_dump_json() for direction in directions]
    for axis, text in enumerate(described):
        if text in described[:axis]:
            raise ValueError(f"directions {described.index(text) + 1} and {axis + 1} are the same: {text}; change one")


# ----------------------------------------------------------------------------------------------------

NO_FILES = ("problem", "first", "last")  # nor are snapshots of other runs sent as files: every node sees the runs
DEFAULT_SIZE = 41  # odd: a symmetric range then has a point at the origin
PLANE_SIZE = 21  # of a plane through three networks, as in Garipov et al. 2018


class Landscape(Frozen):
    """One grid around one origin: 1 to 3 directions, or `trajectory` for a PCA plane fitted to the path."""

    name: str
    """Letters, digits, `.`, `-` and `_`; different from the others of the job in more than case."""
    origin: Reference | None = None
    """Where the axes cross: a snapshot's number, `first`, `last`, one of another run (`runs/sgd@last`), `problem` (the
    callback's weights), or a file of weights; default: `last` where the run has a trajectory, else `problem`.
    """
    directions: tuple[Direction, ...] = ()
    """One direction per axis, 1 to 3 of them; default: two random ones, filter-normalised."""
    trajectory: Snapshots | None = None
    """Short for principal components of these snapshots (numbers, or `all`): the range is fitted to the path, and the
    path drawn.
    """
    paths: Annotated[tuple[PathOfRun, ...] | None, BeforeValidator(listed_paths), WithJsonSchema(PATHS_SCHEMA)] = None
    """Draw the paths of these runs, 1 to 12 folders or URLs, or `{run: …, snapshots: …, label: …}`, on the axes given;
    by default on principal components of all their snapshots together, around the last of the first path.
    """
    axes: Axes | None = None
    """How many principal components `trajectory` or `paths` takes; default: 2."""
    plane: tuple[Reference, Reference, Reference] | None = None
    """Short for the two axes of the plane through three networks, in Euclidean distance; the first is the origin."""
    curve: Curve | None = None
    """Draw on that `plane` the curve from its first network to its second of which the third is the bend: `bezier` or
    `polyline`.
    """
    size: Sizes = (DEFAULT_SIZE,)
    """Points per axis, one number or one per axis; 21 on a `plane`, 11 of a `convexity` map. An odd one has a point at
    the middle of the range.
    """
    range: RangesOrAuto | None = None
    """[low, high], or one such pair per axis; or `auto`: as far as the loss changes visibly along each axis, which is
    found by bisection. Default: [-1, 1]; a `towards` axis has both ends among its points; `trajectory` is fitted to the
    path, `plane` to its networks; where `paths` are drawn, it reaches over all of them.
    """
    refine: Refine | None = None
    """Finer steps where interpolation is off by more than `tolerance`, up to `points` points in all; default: none."""
    accuracy: MaybeAccuracy = None
    """How true the picture shall be, in place of `size`, `num_samples` and `refine`: `1%` of the relief, a number in
    units of the loss, or `{error: 1%, scale: log}`. Points and samples are added where they are needed, out of all
    samples of the problem; default: none.
    """
    budget: MaybeBudget = None
    """What an `accuracy` may cost: `10 min` or `1e6 evaluations` (of one sample at one point); default: no limit."""
    convexity: MaybeConvexity = None
    """Also the largest and the smallest eigenvalue of the Hessian at every point, and their ratio: `true`, or
    `{steps: 60}`; default: none.
    """
    layers: MaybeLayers = None
    """Also which layer of the network breaks first at every point, and by which rule: `true`, or
    `{rules: {tensor_too_large: 1e6}, statistics: [abs_mean]}`; default: none.
    """
    like: str | None = None
    """Take origin, directions, size and range from this landscape of the job, or of the run on disk."""
    quantise: MaybeQuantise = None
    """The network with its weights rounded to a few bits at every point: `{bits: 4}`; `false`: not rounded;
    default: the job's, else not.
    """

    @classmethod
    def unknown_key(cls, key: str) -> str:
        """The error of an unknown key; keys of a direction are often written one level too high."""
        owners = [kind.word() for kind in KINDS if key in kind.model_fields]
        if owners and key not in ("kind", "seed"):  # a seed may be meant for the job
            return f"belongs to a direction, not to the landscape: directions: [{{kind: {owners[0]}, {key}: …}}]"
        return super().unknown_key(key)

    @field_validator("name")
    @classmethod
    def _plain_name(cls, name: str) -> str:
        return landscape_name(name)

    @field_validator("size", mode="before")
    @classmethod
    def _sizes(cls, value: Any) -> Any:
        return tuple(value) if is_list(value) else (value,)

    @field_validator("range", mode="before")
    @classmethod
    def _ranges(cls, value: Any) -> Any:
        if value is None or value == AUTO:
            return value
        if isinstance(value, str):
            raise ValueError(f"must be a pair [low, high], one pair per axis, or auto, not {quoted(value)}")
        if is_list(value) and value and is_list(value[0]):
            return tuple(pair(limits) for limits in value)
        return (pair(value),)

    @model_validator(mode="before")
    @classmethod
    def _fill_directions(cls, data: Any) -> Any:
        """Turn short forms into directions; a landscape without any gets two random ones."""
        if not isinstance(data, Mapping):
            return data
        data = dict(data)
        refuse_with_like(data)
        refuse_with_accuracy(data)
        if data.get("convexity") not in (None, False) and data.get("size") is None:
            data["size"] = CONVEXITY_SIZE
        if data.get("paths") is not None and data.get("trajectory") is not None:
            raise ValueError("paths and trajectory exclude each other: list the run itself among paths")
        if data.get("plane") is not None:
            data |= _through_networks(data)
        elif data.get("curve") is not None:
            raise ValueError("curve goes with plane only: plane: [first, second, bend]")
        elif data.get("trajectory") is not None:
            data["directions"] = _along_trajectory(data)
        elif data.get("paths") is not None and (data.get("directions") is None or data.get("axes") is not None):
            data["directions"] = _along_trajectory({**data, "trajectory": "paths"})
        elif data.get("axes") is not None:
            raise ValueError("axes goes with trajectory and paths only; otherwise list one direction per axis")
        elif data.get("directions") is None:
            data["directions"] = [
                {"kind": "random", "seed": seed, "normalise": "filter", "ignore": DEFAULT_IGNORE} for seed in (1, 2)
            ]
        return data

    @model_validator(mode="after")
    def _per_axis(self) -> Self:
        """Give every axis its size, its range and its seed."""
        count = len(self.directions)
        if not 1 <= count <= len(AXIS_NAMES):
            raise ValueError(f"directions must list 1, 2 or 3 directions, one per axis, not {count}")
        if self.quantise and self.convexity is not None:
            raise ValueError(NO_CURVATURE)
        if self.accuracy is not None:
            own = (FINEST_POINTS[count],)
            if "size" in self.model_fields_set and set(self.size) != set(own):  # it is that of a recorded job
                raise ValueError(EXCLUDED.format(field="size"))
            object.__setattr__(self, "size", own)
        if self.refine is not None and count > 2:
            raise ValueError("refine must be left out over three axes; `landscape refine --box` makes a part finer")
        for field in ("size", "range"):
            values = getattr(self, field)
            if values == AUTO:
                refuse_auto(self.directions)
            elif values is not None and len(values) == 1:
                object.__setattr__(self, field, values * count)
            elif values is not None and len(values) != count:
                raise ValueError(f"{field} must be one for all axes or one per axis ({count}), not {len(values)}")
        for points, (low, high) in zip(self.size, self.ranges or (), strict=False):
            refuse_coinciding(low, high, points)
        directions = tuple(direction.on_axis(axis) for axis, direction in enumerate(self.directions))
        object.__setattr__(self, "directions", directions)
        refuse_equal(self.directions)
        refuse_without_paths(self.directions, self.paths)
        return self

    @property
    def leaves_quantise_open(self) -> bool:
        """Whether the job decides if the landscape is quantised."""
        return "quantise" not in self.model_fields_set

    @property
    def finds_range(self) -> bool:
        """Whether the range is found from the change of the loss along the axes."""
        return self.range == AUTO

    @property
    def ranges(self) -> tuple[tuple[float, float], ...] | None:
        """The range of each axis, if the job gives it in numbers; else None."""
        return self.range if isinstance(self.range, tuple) else None

    @property
    def axis_names(self) -> tuple[str, ...]:
        """The names of its axes: alpha, beta, gamma; one per direction."""
        return AXIS_NAMES[: len(self.directions)]

    def named_files(self) -> Iterator[str]:
        """The files of weights and directions that it names, as the job writes them."""
        for reference in self._named():
            if isinstance(reference, str) and not (reference in NO_FILES or OF_RUN.fullmatch(reference)):
                yield reference

    def named_runs(self) -> Iterator[str]:
        """The other runs that it names, in paths and as RUN@SNAPSHOT, as the job writes them."""
        yield from (path.run for path in self.paths or ())
        snapshots = (OF_RUN.fullmatch(reference) for reference in self._named() if isinstance(reference, str))
        yield from (match[1] for match in snapshots if match is not None)

    def _named(self) -> list[int | str | None]:
        """The weights and directions that it names."""
        return [self.origin, *(name for axis in self.directions for name in (*axis.files, *axis.weights))]

    @property
    def snapshots(self) -> tuple[int, ...] | Literal["all"] | None:
        """The snapshots of the first axis that is made from snapshots; None where there is no such axis."""
        selections = (direction.snapshots for direction in self.directions)
        return next((selection for selection in selections if selection is not None), None)

    @property
    def needs_trajectory(self) -> bool:
        """Whether it names snapshots, of its run or of others."""
        references = [self.origin, *(name for direction in self.directions for name in direction.weights)]
        named = any(isinstance(name, int) or name in ("first", "last") for name in references)
        return named or self.snapshots is not None or any(self.named_runs())


def _along_trajectory(data: Mapping[str, Any]) -> tuple[Direction, ...]:
    """The directions that `trajectory:` stands for; none if the check of that field will refuse it."""
    axes = 2 if data.get("axes") is None else data["axes"]
    if type(axes) is bool or not isinstance(axes, Integral) or axes not in (1, 2, 3):
        raise ValueError(f"axes must be 1, 2 or 3, not {quoted(axes)}")
    try:
        chosen = snapshots_or_paths(data["trajectory"])
    except ValueError:
        return ()
    components = tuple(PcaDirection(trajectory=chosen, component=k + 1) for k in range(int(axes)))
    if _lists_others(data, components):
        field = "paths with axes" if chosen == "paths" else "trajectory"
        raise ValueError(f"{field} and directions exclude each other: keep one of them")
    return components


def _lists_others(data: Mapping[str, Any], directions: tuple[Direction, ...]) -> bool:
    """Whether `directions:` lists others than those that a short form stands for."""
    listed = data.get("directions")
    return bool(listed) and TypeAdapter(tuple[Direction, ...]).validate_python(listed) != directions


def _through_networks(data: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that `plane:` stands for; no directions if the check of that field will refuse it."""
    networks = data["plane"]
    if data.get("trajectory") is not None or data.get("axes") is not None:
        raise ValueError("plane and trajectory exclude each other: keep one of them")
    if not is_list(networks) or len(networks) != 3:
        raise ValueError(
            f"plane must list three networks, such as [a.safetensors, b.safetensors, last], not {quoted(networks)}"
        )
    if len({repr(name) for name in networks}) < 3:
        raise ValueError(f"plane must list three different networks, not {quoted(list(networks))}; name another one")
    if data.get("origin") not in (None, networks[0]):
        raise ValueError(f"origin must be the first network of plane, {quoted(networks[0])}, or left out")
    try:
        fields = {"kind": "plane", "models": networks, "curve": data.get("curve")}
        axes = tuple(PlaneDirection.model_validate({**fields, "axis": axis}) for axis in (1, 2))
    except ValueError:
        return {"directions": ()}
    if _lists_others(data, axes):
        raise ValueError("plane and directions exclude each other: keep one of them")
    size = {} if data.get("size") is not None else {"size": PLANE_SIZE}
    return {"directions": axes, "origin": networks[0], **size}


# ----------------------------------------------------------------------------------------------------
# `like: NAME` takes origin, directions, size and range from another landscape, but not these fields.
OWN = ("name", "quantise", "refine", "accuracy", "budget", "convexity", "layers")


def with_likes(landscapes: Sequence[Landscape], others: Mapping[str, Landscape]) -> tuple[Landscape, ...]:
    """The landscapes with their `like` resolved among themselves and `others`; an unknown name stays as it is.

    Raises:
        ValueError: some refer to each other in a circle.
    """
    by_name = {**others, **{landscape.name: landscape for landscape in landscapes}}
    return tuple(_resolve(landscape, by_name, (landscape.name,)) for landscape in landscapes)


def _resolve(landscape: Landscape, by_name: Mapping[str, Landscape], chain: tuple[str, ...]) -> Landscape:
    if landscape.like is None or landscape.like not in by_name:
        return landscape
    if landscape.like in chain:
        circle = " is like ".join([*chain[chain.index(landscape.like) :], landscape.like])
        raise ValueError(f"like must not lead back to itself: {circle}; give one of them directions of its own")
    target = _resolve(by_name[landscape.like], by_name, (*chain, landscape.like))
    if target.like is not None:
        return landscape
    own = {name: getattr(landscape, name) for name in OWN}
    if landscape.accuracy is not None:
        own["size"] = (FINEST_POINTS[len(target.directions)],) * len(target.directions)
    resolved = target.model_copy(update={"like": None, **own})
    resolved.model_fields_set.difference_update(set(OWN) - landscape.model_fields_set)
    return resolved
