"""The job: what to compute, as frozen values that are parsed and checked once, at the border.

Everything a user may write in a job file or pass from Python is described here. Unknown keys, wrong
types and impossible values are refused with one line that names field, rule, value and remedy.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, Union

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
    field_serializer,
    field_validator,
    model_validator,
)

from landscape.errors import JobError, NotFoundError, flat, holds_credentials, masked, message_of, nearest, shown
from landscape.fields import (
    Axes,
    Count,
    GpuNumber,
    Gpus,
    Intervals,
    Ranges,
    Reference,
    Seed,
    Size,
    Sizes,
    Snapshots,
    Threads,
    TileShape,
    Unit,
    Workers,
    is_list,
    pair,
    plain_text,
    refuse_coinciding,
    snapshots,
)
from landscape.folders.places import locate
from landscape.grid import AXIS_NAMES
from landscape.plan import BatchNorm, Engine, Precision
from landscape.spec.strict_yaml import MAX_BYTES, parse_yaml

# An odd size has a point at the origin of a symmetric range; the collector keeps MindSpore's.
DEFAULT_SIZE, COLLECTED_SIZE, DEFAULT_SAMPLES = 41, 40, 2048
DEFAULTS = 2  # the version of what a landscape means that leaves fields out; see `with_defaults_of`
MODULE_FUNCTION = re.compile(r"(?!\S*\.py:)[^\W\d][\w-]*(\.[^\W\d][\w-]*)*:[^\W\d]\w*")
LONGEST_KEY = 30  # characters of a key that an error repeats
LONGEST_ERROR = 285  # characters of a line; the count of further ones follows

Normalise = Literal["filter", "layer", "model", "none"]
Ignored = Literal["bias", "norm"]
DEFAULT_IGNORE: tuple[Ignored, ...] = ("bias", "norm")  # of random directions, as in Li et al. 2018


class Frozen(BaseModel):
    """A value: immutable, compared by content, closed to unknown keys."""

    # A text below a field is its description, in the reference of the job and in editors.
    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True, use_attribute_docstrings=True)

    def __init__(self, /, **data: Any) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            raise JobError(explain(error, type(self))) from None

    # Pydantic then validates a value inside another one by itself, and an error keeps the whole way to its field.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @field_validator("*")
    @classmethod
    def _plain_text(cls, value: Any) -> Any:
        """A URL's credentials would stand in the run's provenance, in manifests and on dashboards."""
        if isinstance(value, str) and holds_credentials(value):
            place = shown(masked(value))  # in quotes, at which another masking stops
            raise ValueError(f"must not hold credentials ({place}); give them to the driver in its environment")
        return plain_text(value) if isinstance(value, str) else value


class RandomDirection(Frozen):
    """A Gaussian direction drawn from `seed`, scaled to the weights as `normalise` says (Li et al. 2018)."""

    kind: Literal["random"] = "random"
    seed: Seed | None = None
    """Of the Gaussian draw; default: 1 on the first axis, 2 on the second, 3 on the third."""
    normalise: Normalise = "filter"
    """Scale each filter, each layer or the whole direction to the norm of the weights there, or leave it as drawn."""
    ignore: tuple[Ignored, ...] = DEFAULT_IGNORE
    """What does not move: biases, normalisation layers."""


class TowardsDirection(Frozen):
    """The straight line from the origin (0) to `target` (1): a snapshot's name or number, or a file of weights."""

    kind: Literal["towards"] = "towards"
    target: Reference
    """A snapshot's number, `first`, `last`, `problem`, or a file of weights."""


class FileDirection(Frozen):
    """A direction supplied by the user: a safetensors file with one tensor per parameter."""

    kind: Literal["file"] = "file"
    path: str
    """A safetensors file with one tensor per parameter, under the names of `state_dict()`."""
    normalise: Normalise = "none"
    """As for a random direction; by default the direction is taken as it is."""
    ignore: tuple[Ignored, ...] = ()
    """What does not move: biases, normalisation layers."""

    @field_validator("path")
    @classmethod
    def _some_path(cls, path: str) -> str:
        if not path.strip():
            raise ValueError(f"must be a file of weights, not {shown(path)}")
        return path


class PcaDirection(Frozen):
    """The `component`-th principal component (from 1) of the snapshots in `trajectory`."""

    kind: Literal["pca"] = "pca"
    trajectory: Snapshots
    """The snapshots, by their numbers, at least 3; or `all`."""
    component: Count = 1
    """Which principal component, from 1."""


Direction = Annotated[
    Union[RandomDirection, TowardsDirection, FileDirection, PcaDirection], Field(discriminator="kind")
]

DEFAULT_RANGE: dict[str, tuple[float, float]] = {"random": (-1.0, 1.0), "file": (-1.0, 1.0), "towards": (-0.2, 1.2)}


class Landscape(Frozen):
    """One grid around one origin: 1 to 3 directions, or `trajectory` for a PCA plane fitted to the path."""

    name: str
    """Letters, digits, `.`, `-` and `_`; different from the others of the job in more than case."""
    origin: Reference | None = None
    """Where the axes cross: a snapshot's number, `first`, `last`, `problem` (the callback's weights), or a file of
    weights; default: `last` where the run has a trajectory, else `problem`.
    """
    directions: tuple[Direction, ...] = ()
    """One direction per axis, 1 to 3 of them; default: two random ones, filter-normalised."""
    trajectory: Snapshots | None = None
    """Short for principal components of these snapshots (numbers, or `all`): the range is fitted to the path, and the
    path drawn.
    """
    axes: Axes | None = None
    """How many principal components `trajectory` takes; default: 2."""
    size: Sizes = (DEFAULT_SIZE,)
    """Points per axis, one number or one per axis. An odd one has a point at the middle of the range."""
    range: Ranges | None = None
    """[low, high], or one such pair per axis. Default: [-1, 1]; a `towards` axis has both ends among its points;
    `trajectory` is fitted to the path.
    """

    @field_validator("name")
    @classmethod
    def _plain_name(cls, name: str) -> str:
        plain = name.replace("-", "").replace("_", "").replace(".", "")
        if not (plain.isascii() and plain.isalnum() and name[0].isalnum()) or len(name) > 100:
            raise ValueError(f"must be letters, digits, '.', '-' and '_', at most 100, not {shown(name)}")
        if name == "zarr.json":
            raise ValueError("must not be 'zarr.json', a file of the store; choose another")
        return name

    @field_validator("size", mode="before")
    @classmethod
    def _sizes(cls, value: Any) -> Any:
        return tuple(value) if is_list(value) else (value,)

    @field_validator("range", mode="before")
    @classmethod
    def _ranges(cls, value: Any) -> Any:
        if value is None:
            return None
        if is_list(value) and value and is_list(value[0]):
            return tuple(pair(each) for each in value)
        return (pair(value),)

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, data: Any) -> Any:
        """Turn the short form `trajectory:` into directions and give every axis its seed, size and range."""
        if not isinstance(data, Mapping):
            return data
        data = dict(data)
        directions = data.get("directions")
        if data.get("trajectory") is not None:
            axes = 2 if data.get("axes") is None else data["axes"]
            if type(axes) is bool or not isinstance(axes, Integral) or axes not in (1, 2, 3):
                raise ValueError(f"axes must be 1, 2 or 3, not {shown(axes)}")
            try:
                chosen = snapshots(data["trajectory"])
            except ValueError:
                return data | {"directions": ()}  # the field's own check reports it
            short = tuple(PcaDirection(trajectory=chosen, component=k + 1) for k in range(axes))
            if directions and TypeAdapter(tuple[Direction, ...]).validate_python(directions) != short:
                raise ValueError("trajectory and directions exclude each other: keep one of them")
            data["directions"] = short
        elif data.get("axes") is not None:
            raise ValueError("axes goes with trajectory only; otherwise list one direction per axis")
        elif directions is None:
            data["directions"] = [
                {"kind": "random", "seed": k, "normalise": "filter", "ignore": DEFAULT_IGNORE} for k in (1, 2)
            ]
        return data

    @model_validator(mode="after")
    def _per_axis(self) -> Self:
        count = len(self.directions)
        if not 1 <= count <= 3:
            raise ValueError(f"directions must list 1, 2 or 3 directions, one per axis, not {count}")
        for field in ("size", "range"):
            values = getattr(self, field)
            if values is not None and len(values) == 1:
                object.__setattr__(self, field, values * count)
            elif values is not None and len(values) != count:
                raise ValueError(f"{field} must be one for all axes or one per axis ({count}), not {len(values)}")
        for points, (low, high) in zip(self.size, self.range or (), strict=False):
            refuse_coinciding(low, high, points)
        seeded = tuple(
            each.model_copy(update={"seed": axis + 1})
            if isinstance(each, RandomDirection) and each.seed is None
            else each
            for axis, each in enumerate(self.directions)
        )
        object.__setattr__(self, "directions", seeded)
        described = [each.model_dump_json() for each in seeded]
        for axis, each in enumerate(described):
            if each in described[:axis]:
                raise ValueError(
                    f"directions {described.index(each) + 1} and {axis + 1} are the same: {each}; change one"
                )
        return self

    @property
    def axis_names(self) -> tuple[str, ...]:
        return AXIS_NAMES[: len(self.directions)]


def with_defaults_of(spec: Landscape, version: int) -> Landscape:
    """What a landscape stood for when `version` of the defaults filled in the fields that its job leaves out.

    Version 1 (0.1.0): 40 points per axis, a random direction that was written out ignored nothing, and a `towards`
    axis ran from -0.2 to 1.2 whether or not 0 and 1 were points of it.
    """
    if version >= DEFAULTS:
        return spec
    kinds = [each.kind for each in spec.directions]
    limits = spec.range
    if limits is None and "towards" in kinds and "pca" not in kinds:
        limits = tuple(DEFAULT_RANGE[kind] for kind in kinds)
    size = spec.size if "size" in spec.model_fields_set else (40,) * len(spec.directions)
    directions = tuple(
        each.model_copy(update={"ignore": ()})
        if isinstance(each, RandomDirection) and "ignore" not in each.model_fields_set
        else each
        for each in spec.directions
    )
    return spec.model_copy(update={"size": size, "directions": directions, "range": limits})


class CreateLandscape(Frozen):
    """Which landscapes a collected run stands for: `train` along the trajectory, `result` around its end."""

    train: bool = True
    """A landscape along the trajectory, for each interval."""
    result: bool = True
    """A random plane around the end."""


class CollectLandscape(Frozen):
    """The collector's options, in the words, with the meaning and the defaults of the tutorial.

    `landscape_size` reaches further here (3 to 65536; the tutorial stops at 256), and `num_samples` refuses
    0 and negative numbers, which the tutorial lets pass.
    """

    landscape_size: Size = COLLECTED_SIZE
    """Points per axis."""
    unit: Unit = "step"
    """What `intervals` count."""
    create_landscape: CreateLandscape = CreateLandscape()
    """Which landscapes the run stands for."""
    num_samples: Count = DEFAULT_SAMPLES
    """Samples that every value is the mean of."""
    intervals: Intervals
    """Lists of at least 3 epochs or steps each, at which the weights are kept."""

    @field_validator("intervals", mode="before")
    @classmethod
    def _intervals(cls, value: Any) -> Any:
        if not is_list(value) or not value:
            raise ValueError(
                f"must be a list of lists of epochs or steps, such as [[1, 2, 3], [7, 8, 9]], not {shown(value)}"
            )
        intervals = [snapshots(each) for each in value]
        if "all" in intervals:
            raise ValueError("must list its epochs or steps; 'all' serves in a job's trajectory only")
        return tuple(intervals)

    @property
    def snapshots(self) -> tuple[int, ...]:
        """Every epoch or step at which the weights are kept, ascending."""
        return tuple(sorted({number for interval in self.intervals for number in interval}))

    def landscapes(self) -> tuple[Landscape, ...]:
        """What a run with these options computes when its job lists no landscapes."""
        found: list[Landscape] = []
        if self.create_landscape.train:
            for interval in self.intervals:
                name = f"{self.unit}s-{interval[0]}-{interval[-1]}"
                taken = sum(each.name.split("_")[0] == name for each in found)
                found.append(
                    Landscape(
                        name=f"{name}_{taken + 1}" if taken else name, trajectory=interval, size=(self.landscape_size,)
                    )
                )
        if self.create_landscape.result:
            found.append(Landscape(name="result", origin="last", size=(self.landscape_size,)))
        return tuple(found)


class Job(Frozen):
    """A whole job: the run folder, the callback, the samples, the arithmetic and the landscapes to compute."""

    run: str
    """Folder or URL that holds the trajectory and all landscapes."""
    problem: Annotated[str | Callable[[], Any], WithJsonSchema({"type": "string"})]
    """The callback, `module:function`; the module is looked up beside the job file first."""
    num_samples: Count = DEFAULT_SAMPLES
    """Samples that every value is the mean of; the same ones at every point."""
    seed: Seed = 0
    """Decides which samples are taken, and what `observe` draws."""
    batch_size: Count | None = None
    """Samples per forward pass; default: chosen by the engine, and recorded."""
    precision: Precision = "float32"
    """Of the evaluation."""
    batch_norm: BatchNorm = "eval"
    """What normalisation layers use: statistics of training, each batch's, or statistics taken anew at every point."""
    engine: str = "auto"
    """How points are evaluated: `auto` measures and chooses; or an engine by name; or a run, written with a slash
    (./RUN), whose engine is taken.
    """
    landscapes: tuple[Landscape, ...] = ()
    """What to compute; default: what the collector's options stand for."""
    collect_landscape: CollectLandscape | None = None
    """The collector's options, instead of those that the run has recorded."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto` takes a GPU where there is one."""
    threads: Threads | None = None
    """CPU threads of each worker; default: 1."""
    workers: Workers | None = None
    """How many workers; default: one per GPU, else one per core."""
    num_gpus: Gpus | None = None
    """GPUs of each worker: a share from 0 to 1, or a whole number."""
    device_ids: tuple[GpuNumber, ...] | None = None
    """Which GPUs of this machine a local Ray may use."""
    tile: TileShape | None = None
    """Points per axis of a tile, the unit that is computed and written at once; default: chosen so that a tile takes
    about 10 s.
    """

    _folder: Path = PrivateAttr(default_factory=Path.cwd)

    if TYPE_CHECKING:

        def __init__(self, /, **data: Any) -> None: ...

    @field_validator("run", mode="before")
    @classmethod
    def _run_path(cls, value: Any) -> Any:
        if isinstance(value, Path):
            value = str(value)
        if not isinstance(value, str) or not value.strip():
            raise ValueError(f"must be a folder or URL, not {shown(value)}")
        return value

    @field_validator("problem", mode="before")
    @classmethod
    def _problem_reference(cls, value: Any) -> Any:
        if isinstance(value, str) and not MODULE_FUNCTION.fullmatch(value):
            remedy = "; leave out '.py'" if ".py:" in value else ""
            raise ValueError(f"must be 'module:function', not {shown(value)}{remedy}")
        if not isinstance(value, str) and not callable(value):
            raise ValueError(f"must be 'module:function' or a function, not {shown(value)}")
        return value

    @field_serializer("problem")
    def _problem_name(self, value: Any) -> str:
        if isinstance(value, str):
            return value
        named = value if hasattr(value, "__qualname__") else type(value)  # such as a functools.partial
        return f"{named.__module__}:{named.__qualname__}"

    @field_validator("engine")
    @classmethod
    def _engine_name(cls, value: str) -> str:
        if value == "auto" or names_a_run(value):
            return value
        try:
            return str(Engine.parse(value))
        except ValueError as error:
            raise ValueError(f"{error}; a run, whose engine it shall be, is written with a slash: ./RUN") from None

    @field_validator("tile", mode="before")
    @classmethod
    def _tile(cls, value: Any) -> Any:
        value = (value,) if isinstance(value, Integral) else value
        if is_list(value) and not 1 <= len(value) <= len(AXIS_NAMES):
            raise ValueError(f"must be one number or one per axis, not {shown(list(value))}")
        return value

    @field_validator("device_ids")
    @classmethod
    def _different_gpus(cls, value: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if value is not None and (not value or len(set(value)) < len(value)):
            raise ValueError(f"must name at least one GPU, and each once, not {shown(list(value))}")
        return value

    @field_validator("landscapes")
    @classmethod
    def _unique_names(cls, value: tuple[Landscape, ...]) -> tuple[Landscape, ...]:
        """Also where case makes no difference: file systems that fold it would mix two landscapes."""
        counts = Counter(each.name for each in value)
        folded = dict[str, str]()
        for name, count in counts.items():
            if count > 1:
                raise ValueError(f"must have names of their own; {shown(name)} stands {count} times")
            other = folded.setdefault(name.lower(), name)
            if other != name:
                raise ValueError(f"must have names that differ in more than case; {other} and {name} do not")
        return value

    @property
    def folder(self) -> Path:
        """What relative paths are relative to: the job file's folder, else the working directory."""
        return self._folder

    @property
    def run_path(self) -> str:
        """The run as an absolute folder, or the URL as given."""
        return locate(self.run, self._folder)

    def replace(self, **changes: Any) -> Job:
        """A checked copy with some fields changed; a change of None means 'as it was'."""
        given = {name: getattr(self, name) for name in self.model_fields_set}
        given.update({name: value for name, value in changes.items() if value is not None})
        copy = Job(**given)
        copy._folder = self._folder
        return copy


def names_a_run(engine: str) -> bool:
    """Whether `engine` is a run's folder or URL: no engine's name has a slash."""
    return "/" in engine


def read_job(path: str | Path, **overrides: Any) -> Job:
    """Read a YAML job file; `overrides` that are not None replace its fields.

    Raises:
        NotFoundError: there is no such file.
        JobError: it is not YAML, or not a job.
    """
    file, name = Path(path), f"job file {shown(str(path), 100)}"
    try:
        with open(file, "rb") as opened:
            data = parse_yaml(opened.read(MAX_BYTES + 1))
    except FileNotFoundError:
        raise NotFoundError(f"{name} does not exist; `landscape init` writes one to start from") from None
    except OSError as error:
        raise JobError(f"{name} cannot be read: {error.strerror or message_of(error)}") from None
    except ValueError as error:
        raise JobError(f"{name}: {error}") from None
    if not isinstance(data, dict):
        raise JobError(f"{name} must hold 'key: value' lines, not {KINDS.get(type(data), 'a value')}")
    run = overrides.get("run")
    if isinstance(run, str) and run.strip():
        overrides["run"] = locate(run, Path.cwd())
    data.update({key: value for key, value in overrides.items() if value is not None})
    job = Job(**data)
    job._folder = file.absolute().parent
    return job


KINDS = {type(None): "nothing", list: "a list", str: "one text", int: "a number", float: "a number", bool: "a bool"}


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """Pydantic's report as one line per error, two at most, in the words of the job file."""
    count = error.error_count()
    lines = [flat(_explain_one(each, model), LONGEST_ERROR) for each in error.errors(include_url=False)[:2]]
    if count > 2:
        lines[1] += f" (and {count - 2} more)"
    return "\n".join(lines)


TAGS = ("random", "towards", "file", "pca", "int", "str")
EXPECTED = {
    "string_type": "text", "dict_type": "keys and values", "model_type": "keys and values",
    "model_attributes_type": "keys and values", "tuple_type": "a list", "is_instance_of": "another type",
    "bool_type": "true or false", "bool_parsing": "true or false", "invalid_key": "keys that are words",
}  # fmt: skip


def _explain_one(error: Any, model: type[BaseModel]) -> str:
    place = [part for part in error["loc"] if part not in TAGS]
    where = ".".join(flat(str(part), LONGEST_KEY) for part in place) or model.__name__.lower()
    kind, value = error["type"], error["input"]
    if kind == "extra_forbidden":
        owner = _model_at(model, error["loc"][:-1])
        if owner is Job and place[-1] in Landscape.model_fields:
            return f"{where}: belongs to a landscape, not to the job: landscapes: [{{name: …, {place[-1]}: …}}]"
        return f"{where}: unknown key {shown(place[-1], LONGEST_KEY)}; {nearest(str(place[-1]), owner.model_fields)}"
    if kind == "missing":
        return f"{where}: is required and missing"
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        got = value.get("kind") if isinstance(value, Mapping) else value
        return f"{where}.kind: must be random, towards, file or pca, not {shown(got)}"
    if kind == "value_error":
        return f"{where}: {error['ctx']['error']}"
    message = EXPECTED.get(kind) or error["msg"].removeprefix("Input should be ").removeprefix("Input should ")
    return f"{where}: must be {message}, not {shown(value)}"


def _model_at(model: type[BaseModel], location: Sequence[Any]) -> type[BaseModel]:
    """The model that the keys at `location` belong to, to list its right names."""
    kinds: dict[Any, type[BaseModel]] = {
        "landscapes": Landscape,
        "collect_landscape": CollectLandscape,
        "create_landscape": CreateLandscape,
        "random": RandomDirection,
        "towards": TowardsDirection,
        "file": FileDirection,
        "pca": PcaDirection,
    }
    return next((kinds[part] for part in reversed(location) if part in kinds), model)
