"""The job: what to compute, as frozen values that are parsed and checked once, at the border.

Everything a user may write in a job file or pass from Python is described here. Unknown keys, wrong
types and impossible values are refused with one line that names field, rule, value and remedy.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, Union

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    TypeAdapter,
    ValidationError,
    field_serializer,
    field_validator,
    model_validator,
)

from landscape.engine import Engine
from landscape.errors import JobError, NotFoundError, message_of, nearest, shown
from landscape.masking import holds_credentials, masked

MIN_SIZE, MAX_SIZE = 3, 65536
# An odd size has a point at the origin of a symmetric range; the collector keeps MindSpore's.
DEFAULT_SIZE, COLLECTED_SIZE, DEFAULT_SAMPLES = 41, 40, 2048
DEFAULTS = 2  # the version of what a landscape means that leaves fields out; see `with_defaults_of`
AXIS_NAMES = ("alpha", "beta", "gamma")

Precision = Literal["float32", "tf32", "bfloat16", "float64"]
BatchNorm = Literal["eval", "batch", "recalibrate"]
Normalise = Literal["filter", "layer", "model", "none"]
Ignored = Literal["bias", "norm"]
Unit = Literal["step", "epoch"]
DEFAULT_IGNORE: tuple[Ignored, ...] = ("bias", "norm")  # of random directions, as in Li et al. 2018


def _whole(value: Any) -> int:
    """A strict integer: neither a bool nor a float nor a string that looks like one."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"must be a whole number, not {shown(value)}")
    return value


def _at_least(low: int, remedy: str = "") -> BeforeValidator:
    def check(value: Any) -> int:
        if _whole(value) < low:
            raise ValueError(f"must be at least {low}, not {value}{remedy and '; ' + remedy}")
        return int(value)

    return BeforeValidator(check)


def _size(value: Any) -> int:
    if not MIN_SIZE <= _whole(value) <= MAX_SIZE:
        raise ValueError(f"must be from {MIN_SIZE} to {MAX_SIZE} points per axis, not {value}")
    return int(value)


Size = Annotated[int, BeforeValidator(_size)]
Seed = Annotated[int, _at_least(0)]
Count = Annotated[int, _at_least(1)]


def _snapshots(value: Any) -> tuple[int, ...] | Literal["all"]:
    if value == "all":
        return "all"
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ValueError(f"must be a list of epochs or steps, or 'all', not {shown(value)}")
    numbers = [_whole(each) for each in value]
    if len(set(numbers)) < 3:
        raise ValueError(f"must name at least 3 different snapshots, not {numbers}; PCA needs 3 points to span a plane")
    if min(numbers) < 0:
        raise ValueError(f"must hold epochs or steps from 0 on, not {min(numbers)}")
    return tuple(sorted(set(numbers)))


Snapshots = Annotated[Union[tuple[int, ...], Literal["all"]], BeforeValidator(_snapshots)]


class Frozen(BaseModel):
    """A value: immutable, compared by content, closed to unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    @field_validator("*")
    @classmethod
    def _no_credentials(cls, value: Any) -> Any:
        """Those of a URL would stand in the run's provenance, in manifests and on dashboards."""
        if isinstance(value, str) and holds_credentials(value):
            raise ValueError(f"must not hold credentials ({masked(value)}); give them to the driver in its environment")
        return value


class RandomDirection(Frozen):
    """A Gaussian direction drawn from `seed`, scaled to the weights as `normalise` says (Li et al. 2018)."""

    kind: Literal["random"] = "random"
    seed: Seed | None = None
    normalise: Normalise = "filter"
    ignore: tuple[Ignored, ...] = DEFAULT_IGNORE


class TowardsDirection(Frozen):
    """The straight line from the origin (0) to `target` (1): a snapshot's name or number, or a file of weights."""

    kind: Literal["towards"] = "towards"
    target: int | str


class FileDirection(Frozen):
    """A direction supplied by the user: a safetensors file with one tensor per parameter."""

    kind: Literal["file"] = "file"
    path: str
    normalise: Normalise = "none"
    ignore: tuple[Ignored, ...] = ()


class PcaDirection(Frozen):
    """The `component`-th principal component (from 1) of the snapshots in `trajectory`."""

    kind: Literal["pca"] = "pca"
    trajectory: Snapshots
    component: Annotated[int, _at_least(1)] = 1


Direction = Annotated[
    Union[RandomDirection, TowardsDirection, FileDirection, PcaDirection], Field(discriminator="kind")
]

DEFAULT_RANGE: dict[str, tuple[float, float]] = {"random": (-1.0, 1.0), "file": (-1.0, 1.0), "towards": (-0.2, 1.2)}


def _pair(value: Any) -> tuple[float, float]:
    if isinstance(value, str) or not isinstance(value, Sequence) or len(value) != 2:
        raise ValueError(f"must be a pair [low, high] or one pair per axis, not {shown(value)}")
    if any(isinstance(each, bool) or not isinstance(each, (int, float)) for each in value):
        raise ValueError(f"must hold two numbers, not {shown(list(value))}")
    low, high = (float(each) if abs(each) < 1e308 else math.inf for each in value)
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ValueError(f"must be finite, not [{low:g}, {high:g}]")
    if low >= high:
        raise ValueError(f"must go from low to high, not [{low:g}, {high:g}]; swap or widen the two ends")
    return low, high


class Landscape(Frozen):
    """One grid around one origin: 1 to 3 directions, or `trajectory` for a PCA plane fitted to the path."""

    name: str
    origin: int | str | None = None
    directions: tuple[Direction, ...] = ()
    trajectory: Snapshots | None = None
    axes: Annotated[int, BeforeValidator(_whole)] | None = None
    size: tuple[Size, ...] = (DEFAULT_SIZE,)
    range: tuple[tuple[float, float], ...] | None = None

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
        return tuple(value) if isinstance(value, (list, tuple)) else (value,)

    @field_validator("range", mode="before")
    @classmethod
    def _ranges(cls, value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, (list, tuple)) and value and isinstance(value[0], (list, tuple)):
            return tuple(_pair(each) for each in value)
        return (_pair(value),)

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
            if axes not in (1, 2, 3) or isinstance(axes, bool):
                raise ValueError(f"axes must be 1, 2 or 3, not {shown(axes)}")
            try:
                snapshots = _snapshots(data["trajectory"])
            except ValueError:
                return data | {"directions": ()}  # the field's own check reports it
            short = tuple(PcaDirection(trajectory=snapshots, component=k + 1) for k in range(axes))
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

    Version 1 (0.1.0): 40 points per axis, and a random direction that was written out ignored nothing.
    """
    if version >= DEFAULTS:
        return spec
    size = spec.size if "size" in spec.model_fields_set else (40,) * len(spec.directions)
    directions = tuple(
        each.model_copy(update={"ignore": ()})
        if isinstance(each, RandomDirection) and "ignore" not in each.model_fields_set
        else each
        for each in spec.directions
    )
    return spec.model_copy(update={"size": size, "directions": directions})


class CreateLandscape(Frozen):
    """Which landscapes a collected run stands for: `train` along the trajectory, `result` around its end."""

    train: bool = True
    result: bool = True


class CollectLandscape(Frozen):
    """The collector's options, in the words, with the meaning and the defaults of the tutorial.

    `landscape_size` reaches further here (3 to 65536; the tutorial stops at 256), and `num_samples` refuses
    0 and negative numbers, which the tutorial lets pass.
    """

    landscape_size: Size = COLLECTED_SIZE
    unit: Unit = "step"
    create_landscape: CreateLandscape = CreateLandscape()
    num_samples: Count = DEFAULT_SAMPLES
    intervals: tuple[tuple[int, ...], ...]

    @field_validator("intervals", mode="before")
    @classmethod
    def _intervals(cls, value: Any) -> Any:
        if isinstance(value, str) or not isinstance(value, Sequence) or not value:
            raise ValueError(
                f"must be a list of lists of epochs or steps, such as [[1, 2, 3], [7, 8, 9]], not {shown(value)}"
            )
        intervals = [_snapshots(each) for each in value]
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
    problem: str | Callable[[], Any]
    num_samples: Count = DEFAULT_SAMPLES
    seed: Seed = 0
    batch_size: Count | None = None
    precision: Precision = "float32"
    batch_norm: BatchNorm = "eval"
    engine: str = "auto"
    landscapes: tuple[Landscape, ...] = ()
    collect_landscape: CollectLandscape | None = None
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: Count | None = None
    workers: Count | None = None
    num_gpus: Annotated[float, Field(ge=0)] | None = None
    device_ids: tuple[Annotated[int, _at_least(0)], ...] | None = None
    tile: tuple[Annotated[int, _at_least(1)], ...] | None = None

    _folder: Path = PrivateAttr(default_factory=Path.cwd)

    def __init__(self, /, **data: Any) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            raise JobError(explain(error, type(self))) from None

    @field_validator("run", mode="before")
    @classmethod
    def _run_path(cls, value: Any) -> Any:
        if isinstance(value, Path):
            value = str(value)
        if not isinstance(value, str) or not value.strip():
            raise ValueError(f"must be a folder or URL, not {shown(value)}")
        return value

    @field_validator("problem")
    @classmethod
    def _problem_reference(cls, value: Any) -> Any:
        if isinstance(value, str):
            module, _, function = value.partition(":")
            if not module or not function.isidentifier():
                raise ValueError(f"must be 'module:function', not {shown(value)}")
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
        return value if value == "auto" else str(Engine.parse(value))

    @field_validator("tile", mode="before")
    @classmethod
    def _tile(cls, value: Any) -> Any:
        return (value,) if isinstance(value, int) else value

    @field_validator("landscapes")
    @classmethod
    def _unique_names(cls, value: tuple[Landscape, ...]) -> tuple[Landscape, ...]:
        names = [each.name for each in value]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"must have names of their own; {shown(name)} stands {names.count(name)} times")
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


def locate(path: str, folder: Path) -> str:
    """`path` as an absolute path, relative ones taken from `folder`; a URL stays as it is."""
    if "://" in path and not path.startswith("file://"):
        return path
    return str((folder / Path(path.removeprefix("file://")).expanduser()).absolute())


def read_job(path: str | Path, **overrides: Any) -> Job:
    """Read a YAML job file; `overrides` that are not None replace its fields.

    Raises:
        NotFoundError: there is no such file.
        JobError: it is not YAML, or not a job.
    """
    file = Path(path)
    try:
        data = yaml.safe_load(file.read_text())
    except FileNotFoundError:
        raise NotFoundError(
            f"job file {shown(str(path))} does not exist; `landscape init` writes one to start from"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise JobError(f"job file {shown(str(path))} cannot be read: {error}") from None
    except yaml.YAMLError as error:
        raise JobError(f"job file {shown(str(path))} is not YAML: {message_of(error)}") from None
    if not isinstance(data, dict):
        raise JobError(f"job file {shown(str(path))} must hold 'key: value' lines, not {type(data).__name__}")
    run = overrides.get("run")
    if run is not None:
        overrides["run"] = locate(run, Path.cwd())
    data.update({key: value for key, value in overrides.items() if value is not None})
    job = Job(**{str(key): value for key, value in data.items()})  # YAML has keys that are no words
    job._folder = file.absolute().parent
    return job


def canonical_json(value: Any) -> str:
    """One text per value: sorted keys, no spaces, shortest floats, NaN refused."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(value: Any) -> str:
    """SHA-256 of the canonical JSON, in hexadecimal."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """Pydantic's report as one line per error, two at most, in the words of the job file."""
    found = error.errors(include_url=False)
    lines = [_explain_one(each, model) for each in found[:2]]
    if len(found) > 2:
        lines[1] += f" (and {len(found) - 2} more)"
    return "\n".join(lines)


def _explain_one(error: Any, model: type[BaseModel]) -> str:
    place = [part for part in error["loc"] if part not in ("random", "towards", "file", "pca", "int", "str")]
    where = ".".join(str(part) for part in place) or model.__name__.lower()
    kind, value = error["type"], error["input"]
    if kind == "extra_forbidden":
        owner = _model_at(model, error["loc"][:-1])
        return f"{where}: unknown key {shown(place[-1])}; {nearest(str(place[-1]), owner.model_fields)}"
    if kind == "missing":
        return f"{where}: is required and missing"
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        got = value.get("kind") if isinstance(value, Mapping) else value
        return f"{where}.kind: must be random, towards, file or pca, not {shown(got)}"
    if kind == "value_error":
        return f"{where}: {error['ctx']['error']}"
    message = error["msg"].removeprefix("Input should be ").removeprefix("Input should ")
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
