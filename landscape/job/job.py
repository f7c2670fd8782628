"""The job: what to compute, as one frozen value that is parsed and checked once, at the border.

Unknown keys, wrong types and impossible values are refused with one line that names field, rule, value and remedy.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    BeforeValidator,
    ConfigDict,
    PrivateAttr,
    WithJsonSchema,
    field_serializer,
    field_validator,
    model_validator,
)

from landscape.core.errors import quoted
from landscape.core.folders import locate
from landscape.core.grid import AXIS_NAMES
from landscape.core.plan import BatchNorm, Engine, OriginIn, Precision
from landscape.core.validation import (
    Count,
    Frozen,
    GpuNumber,
    Gpus,
    Intervals,
    Seed,
    Size,
    Threads,
    TileShape,
    Unit,
    Workers,
    is_list,
    snapshots,
)
from landscape.job.landscape import Landscape, with_likes
from landscape.job.landscape_options import DEFAULT_SAMPLES as CONVEXITY_SAMPLES
from landscape.job.landscape_options import NO_CURVATURE, MaybeQuantise
from landscape.model.packed_file import SUFFIX, WRITTEN, names_a_file, names_onnx, onnx_files, reference_of
from landscape.surface.record_parts import LevelRecord

# ----------------------------------------------------------------------------------------------------
# The collector's options, in the words of the tutorial, and the landscapes that a run with them gets.

COLLECTED_SIZE, DEFAULT_SAMPLES = 40, 2048  # MindSpore's


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
                f"must be a list of lists of epochs or steps, such as [[1, 2, 3], [7, 8, 9]], not {quoted(value)}"
            )
        intervals = [snapshots(interval) for interval in value]
        if "all" in intervals:
            raise ValueError("must list its epochs or steps; 'all' serves in a job's trajectory only")
        return tuple(intervals)

    @property
    def snapshots(self) -> tuple[int, ...]:
        """Every epoch or step at which the weights are kept, ascending."""
        return tuple(sorted({number for interval in self.intervals for number in interval}))

    def landscapes(self) -> tuple[Landscape, ...]:
        """The landscapes of a run with these options whose job lists none."""
        landscapes: list[Landscape] = []
        for interval in self.intervals if self.create_landscape.train else ():
            name = f"{self.unit}s-{interval[0]}-{interval[-1]}"
            equal = sum(landscape.name.split("_")[0] == name for landscape in landscapes)
            unique = f"{name}_{equal + 1}" if equal else name
            landscapes.append(Landscape(name=unique, trajectory=interval, size=(self.landscape_size,)))
        if self.create_landscape.result:
            landscapes.append(Landscape(name="result", origin="last", size=(self.landscape_size,)))
        return tuple(landscapes)


# ----------------------------------------------------------------------------------------------------
# How a job names its problem: a callback, the file of a portable problem, or a model in ONNX's format.

MODULE_FUNCTION = re.compile(r"(?!\S*\.py:)[^\W\d][\w-]*(\.[^\W\d][\w-]*)*:[^\W\d]\w*")


def problem_reference(value: Any) -> Any:
    """A valid `problem:` of a job: a function, or a text that names a function, a portable problem or an ONNX model.

    Raises:
        ValueError: the value is none of these.
    """
    if isinstance(value, Mapping):
        value = reference_of(value)
    if names_a_file(value) or (names_onnx(value) and onnx_files(value)):
        return value
    if names_onnx(value):
        raise ValueError(f"must be written {WRITTEN}, not {quoted(value)}; a model alone has no samples and no loss")
    if isinstance(value, str) and not MODULE_FUNCTION.fullmatch(value):
        raise ValueError(f"must be 'module:function' or a file {SUFFIX}, not {quoted(value)}{_remedy(value)}")
    if not isinstance(value, str) and not callable(value):
        raise ValueError(f"must be 'module:function' or a function, not {quoted(value)}")
    return value


def _remedy(reference: str) -> str:
    """The remedy for a wrong name of a callback: its correct form, where that is clear."""
    if ".py:" in reference:
        return "; leave out '.py'"
    module, _, function = reference.rpartition(".")
    written = f"{module}:{function}"
    return f"; write {quoted(written)}" if function != "py" and MODULE_FUNCTION.fullmatch(written) else ""


def module_files(reference: str, folder: Path) -> list[str]:
    """The module or package of 'module:function' as it lies in a folder; empty where it is not there."""
    top = reference.partition(":")[0].partition(".")[0]
    return [name for name in (f"{top}.py", top) if (folder / name).is_file() or (folder / name).is_dir()]


# ----------------------------------------------------------------------------------------------------


def custom_resources(value: Any) -> dict[str, float]:
    """How much a worker needs of each custom resource of a Ray cluster; `NAME=AMOUNT` texts are taken too.

    >>> custom_resources(["a100=1", "licence=0.5"])
    {'a100': 1.0, 'licence': 0.5}
    """
    if is_list(value) and all(isinstance(text, str) for text in value):
        pairs = [text.partition("=")[::2] for text in value]
        value = dict(pairs)
        if len(value) < len(pairs):
            raise ValueError(f"must name each resource once, not {quoted(' '.join(name for name, _ in pairs))}")
    if not isinstance(value, Mapping):
        raise ValueError(f"must be amounts by name, such as {{a100: 1}}, not {quoted(value)}")
    amounts = {}
    for name, amount in value.items():
        number = math.nan
        with contextlib.suppress(TypeError, ValueError):
            number = float(amount)
        if not isinstance(name, str) or not re.fullmatch(r"[\w.:/-]+", name) or name in ("CPU", "GPU", "memory"):
            raise ValueError(
                f"must name custom resources, not {quoted(name)}; threads and num_gpus are for cores and GPUs"
            )
        if isinstance(amount, bool) or not 0 < number < math.inf or (number > 1 and number != int(number)):
            raise ValueError(f"must have a share up to 1, or a whole number, of {name}, not {quoted(amount)}")
        amounts[name] = number
    return amounts


CustomResources = Annotated[
    dict[str, float],
    BeforeValidator(custom_resources),
    WithJsonSchema({"type": "object", "additionalProperties": {"type": "number", "exclusiveMinimum": 0}}),
]


def _require_the_run_alone(schema: dict[str, Any]) -> None:
    """Require `run` alone: a job file may leave out a callback that the run has recorded."""
    schema["required"] = ["run"]


class Resources(Frozen):
    """What one worker has; several of them are for a group of processes, if the callback takes their device mesh."""

    gpus: Gpus | None = None
    """GPUs: a share from 0 to 1, or a whole number."""
    cpus: Count | None = None
    """Processes without a GPU."""
    nodes: Count | None = None
    """Nodes over which the processes lie, equally many on each; default: all on one."""


class Job(Frozen):
    """A whole job: the run folder, the callback, the samples, the arithmetic and the landscapes to compute."""

    model_config = ConfigDict(json_schema_extra=_require_the_run_alone)

    # Without `seed`, which a direction has too, and without the fields that every job has.
    often_misplaced: ClassVar[frozenset[str]] = frozenset([
        "num_samples", "batch_size", "precision", "batch_norm", "engine", "device", "threads", "workers", "num_gpus",
        "device_ids", "origin_in", "tile", "keep_samples",
    ])  # fmt: skip

    run: str
    """Folder or URL that holds the trajectory and all landscapes."""
    problem: Annotated[
        str | Callable[[], Any],
        BeforeValidator(problem_reference),
        WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object"}]}),
    ]
    """The callback, `module:function`; the module is looked up beside the job file first. Or the file of a portable
    problem, `FILE.landscape`; or `MODEL.onnx with SAMPLES.npz and CRITERION`, also `{onnx: …, data: …, criterion: …}`.
    Required, but for a job file of a run whose training recorded it, as the recipes do.
    """
    num_samples: Count = DEFAULT_SAMPLES
    """Samples that every value is the mean of; the same ones at every point. Default: 256 where all landscapes are
    `convexity` maps.
    """
    seed: Seed = 0
    """Decides which samples are taken, and what `observe` draws."""
    batch_size: Count | None = None
    """Samples per forward pass; default: chosen by the engine, and recorded."""
    precision: Precision = "float32"
    """Of the evaluation."""
    batch_norm: BatchNorm = "eval"
    """What normalisation layers use: statistics of training, each batch's, or statistics taken anew at every point."""
    engine: str = "auto"
    """How points are evaluated: `auto` chooses, by rules and in long jobs by measuring; or an engine by name, such as
    `eager` for plain arithmetic; or a run, written with a slash (./RUN), whose engine is taken.
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
    max_workers: Workers | None = None
    """How many workers at most, where the cluster has more places; default: what LANDSCAPE_MAX_WORKERS says."""
    num_gpus: Gpus | None = None
    """GPUs of each worker: a share from 0 to 1, or a whole number."""
    resources: Resources | None = None
    """Of one worker: `{gpus: 4}`, the same as `num_gpus: 4`, or `{cpus: 4}`. A callback that takes a device mesh,
    `def problem(mesh)`, is called in a group of as many processes, which together are one worker.
    """
    worker_resources: CustomResources | None = None
    """Custom resources of a Ray cluster that each worker needs, and how much of each, such as `{a100: 1}`."""
    origin_in: OriginIn | None = None
    """Where a large model's weights at the origin are kept while points are set from them: a copy in the memory of the
    `device`, a copy in that of the `host`, or the `file` that they are read from; default: on a GPU that has room for
    them, else where they are. It changes no value.
    """
    device_ids: tuple[GpuNumber, ...] | None = None
    """Which GPUs of this machine a local Ray may use."""
    tile: TileShape | None = None
    """Points per axis of a tile, the unit that is computed and written at once; default: chosen so that a tile takes
    about 10 s.
    """
    keep_samples: bool = False
    """Whether the loss of every single sample is stored at every point of the grid, beside the means."""
    quantise: MaybeQuantise = None
    """What landscapes without a `quantise` of their own have; `quantise: false` of a landscape rounds nothing there."""

    packed_copy: bool | None = None
    """Whether the run keeps a packed copy of the problem, which holds the graph of its code and its samples, so that
    machines without the callback can ask about the landscapes; default: of a job that `landscape submit` sends, up to
    1 GiB.
    """

    _folder: Path = PrivateAttr(default_factory=Path.cwd)
    _extends: str | None = PrivateAttr(default=None)
    _adds: tuple[str, ...] = PrivateAttr(default=())
    _level: LevelRecord | None = PrivateAttr(default=None)

    if TYPE_CHECKING:

        def __init__(self, /, **data: Any) -> None: ...

    @classmethod
    def unknown_key(cls, key: str) -> str:
        """The error of a key that is no field; fields of a landscape are often written one level too high."""
        if key in Landscape.model_fields:
            return f"belongs to a landscape, not to the job: landscapes: [{{name: …, {key}: …}}]"
        return super().unknown_key(key)

    @field_validator("run", mode="before")
    @classmethod
    def _run_path(cls, value: Any) -> Any:
        if isinstance(value, Path):
            value = str(value)
        if not isinstance(value, str) or not value.strip():
            raise ValueError(f"must be a folder or URL, not {quoted(value)}")
        return value

    @field_serializer("problem")
    def _problem_name(self, value: Any) -> str:
        if isinstance(value, str):
            return value
        owner = value if hasattr(value, "__qualname__") else type(value)  # such as a functools.partial
        return f"{owner.__module__}:{owner.__qualname__}"

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
            raise ValueError(f"must be one number or one per axis, not {quoted(list(value))}")
        return value

    @field_validator("device_ids")
    @classmethod
    def _different_gpus(cls, value: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if value is not None and (not value or len(set(value)) < len(value)):
            raise ValueError(f"must name at least one GPU, and each once, not {quoted(list(value))}")
        return value

    @model_validator(mode="before")
    @classmethod
    def _with_gpus(cls, value: Any) -> Any:
        """`resources: {gpus: 4}` says `num_gpus: 4`."""
        resources = value.get("resources") if isinstance(value, Mapping) else None
        gpus = resources.gpus if isinstance(resources, Resources) else None
        if isinstance(resources, Mapping):
            gpus = resources.get("gpus")
        return value if gpus is None or value.get("num_gpus") is not None else {**value, "num_gpus": gpus}

    @model_validator(mode="after")
    def _one_kind_of_processes(self) -> Self:
        resources = self.resources
        if resources is not None and resources.gpus is not None and resources.gpus != self.num_gpus:
            raise ValueError(f"resources: gpus must be num_gpus, {self.num_gpus:g}, not {resources.gpus:g}; name one")
        if resources is not None and resources.cpus is not None and self.num_gpus:
            raise ValueError("resources: must be gpus or cpus, the processes of one kind, not both; name one")
        if resources is not None and resources.nodes and self.processes % resources.nodes:
            raise ValueError(
                f"resources: nodes must divide the processes of a worker, {self.processes}, not {resources.nodes}"
            )
        return self

    @property
    def processes(self) -> int:
        """Of how many processes a worker may be a group: as many as it has GPUs, or as its `cpus`."""
        if self.num_gpus and self.num_gpus >= 1:
            return int(self.num_gpus)
        return (self.resources and self.resources.cpus) or 1

    @field_validator("landscapes", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        if isinstance(value, Mapping):
            raise ValueError(f"must be a list, not {quoted(value)}; begin each landscape with '- name: …'")
        return value

    @field_validator("landscapes")
    @classmethod
    def _unique_names(cls, value: tuple[Landscape, ...]) -> tuple[Landscape, ...]:
        """Refuse equal names, also names that differ in case only: some file systems would mix two landscapes."""
        counts = Counter(landscape.name for landscape in value)
        folded = dict[str, str]()
        for name, count in counts.items():
            if count > 1:
                raise ValueError(f"must have names of their own; {quoted(name)} stands {count} times")
            other = folded.setdefault(name.lower(), name)
            if other != name:
                raise ValueError(f"must have names that differ in more than case; {other} and {name} do not")
        return value

    @field_validator("landscapes")
    @classmethod
    def _alike(cls, value: tuple[Landscape, ...]) -> tuple[Landscape, ...]:
        return with_likes(value, {})

    @model_validator(mode="after")
    def _no_curvature_of_steps(self) -> Self:
        if self.quantise and any(spec.convexity and spec.leaves_quantise_open for spec in self.landscapes):
            raise ValueError(f"{NO_CURVATURE}; or give the landscape `quantise: false`")
        return self

    @model_validator(mode="after")
    def _fewer_samples_of_maps(self) -> Self:
        maps = bool(self.landscapes) and all(spec.convexity is not None for spec in self.landscapes)
        if maps and "num_samples" not in self.model_fields_set:
            object.__setattr__(self, "num_samples", CONVEXITY_SAMPLES)  # still a default: data may have fewer
        return self

    @property
    def folder(self) -> Path:
        """The folder of relative paths: the job file's, else the working directory."""
        return self._folder

    @property
    def run_path(self) -> str:
        """The run as an absolute folder, or its URL."""
        return locate(self.run, self._folder)

    @property
    def asked_engine(self) -> Engine | None:
        """The engine that the job names; None where it is to be chosen, or taken from a run."""
        return None if self.engine == "auto" or names_a_run(self.engine) else Engine.parse(self.engine)

    @property
    def extends(self) -> str | None:
        """For an extension, the landscape of the run whose values the job's one landscape reuses; else None."""
        return self._extends

    @property
    def adds(self) -> tuple[str, ...]:
        """The observables that an extension adds."""
        return self._adds

    def extending(self, name: str, folder: Path, observables: tuple[str, ...] = ()) -> Job:
        """A copy whose landscape extends the one of this name, by these observables.

        Args:
            folder: where the callback is looked up first.
        """
        copy = self.in_folder(folder)
        copy._extends, copy._adds = name, observables
        return copy

    @property
    def level(self) -> LevelRecord | None:
        """For a refinement, the level of the job's one landscape that it computes; else None."""
        return self._level

    def refining(self, level: LevelRecord, folder: Path, extends: str | None = None) -> Job:
        """A copy that computes a level of refinement of its one landscape, which is on disk.

        Args:
            folder: where the callback is looked up first.
            extends: the landscape whose same level is extended by it; None if none is.
        """
        copy = self.extending(extends or self.landscapes[0].name, folder)
        copy._level = level
        return copy

    def in_folder(self, folder: Path) -> Job:
        """A copy whose callback and relative paths are looked up in this folder."""
        copy = self.replace()
        copy._folder = folder
        return copy

    def replace(self, **changes: Any) -> Job:
        """A checked copy with some fields changed; a change of None keeps the field."""
        fields = {name: getattr(self, name) for name in self.model_fields_set}
        fields.update({name: value for name, value in changes.items() if value is not None})
        copy = Job(**fields)
        copy._folder, copy._extends, copy._adds = self._folder, self._extends, self._adds
        copy._level = self._level
        return copy


def names_a_run(engine: str) -> bool:
    """Whether `engine` is a run's folder or URL: no engine's name has a slash."""
    return "/" in engine
