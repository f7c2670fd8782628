"""`pack`: a job, its problem exported, its samples and snapshots, written as one file that needs no user code."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from landscape.compute.callback_place import with_packed_names
from landscape.compute.landscape_context import in_memory
from landscape.compute.pack_file import (
    ArchiveWriter,
    are_sequences,
    describe_sequences,
    describe_tree,
    example_of_sequences,
    inlined_layers,
    parameters_as_values,
    unwritable,
)
from landscape.compute.pack_graph import Constants, Function, describe_graph, example_of, export_function
from landscape.compute.prepare import prepare
from landscape.compute.prepared import PreparedJob
from landscape.compute.recorded_job import asked_of
from landscape.core.errors import JobError, quoted
from landscape.core.files import whole_file
from landscape.core.folders import locate, real_place, run_labels, split_path
from landscape.core.plan import Plan
from landscape.evaluation.engines.base import arithmetic, autocast
from landscape.evaluation.model_state import private_copy
from landscape.evaluation.running_model import take_to_type
from landscape.evaluation.twice_differentiable import differentiable_operations
from landscape.job.job import Job
from landscape.job.landscape import Landscape
from landscape.job.reading import read_job
from landscape.model.packed_file import REMEDY, SUFFIX
from landscape.model.packed_model import CONSTANTS, JOB, SAMPLES, WEIGHTS, PortableModel, batch_structure, leaves_of
from landscape.model.run_files import FOLDER
from landscape.model.snapshots import Trajectory, read_trajectory, versions
from landscape.model.weight_files import load_weights
from landscape.problem.batches import Samples, moved
from landscape.problem.callback import portable_problem
from landscape.problem.supervised import Combination, Observe, Supervised
from landscape.problem.terms import PointSets, Problem, Terms
from landscape.problem.user_code import in_folder, in_words

# ----------------------------------------------------------------------------------------------------
# Comparing the packed problem with its source on samples of the job, in batches of several sizes.

SIZES = (1, 2, 7, 64)  # samples of a batch
STEP = 0.01  # of weights, relative to their size, to the second point of comparison
TOLERANCES = {"float64": 1e-12, "bfloat16": 2e-2}
TOLERANCE = 1e-6
GRADIENT_OF = 5  # samples whose losses are differentiated
GRADIENT_TOLERANCES = {"float64": 1e-8, "bfloat16": 0.1}  # of the largest derivative of a parameter
GRADIENT_TOLERANCE = 1e-3
OTHERWISE = "model: computes otherwise when it is exported"
COMPARED_REMEDY = (
    "; something in it depends on more than its weights and its batch, such as int() of a shape, which becomes a "
    "constant; run the job from its source"
)
CPU = torch.device("cpu")


@dataclass(frozen=True)
class PackDeviation:
    """The difference between the packed problem's values and those of its source.

    Attributes:
        difference: the largest one, relative to the value, or absolute for values below 1.
        batches: how many batches were compared.
    """

    difference: float
    batches: int

    @property
    def equal(self) -> bool:
        """Whether they are equal to the bit."""
        return self.difference == 0.0


def compare(
    source: tuple[nn.Module, Observe], packed: tuple[nn.Module, Observe], samples: Samples, plan: Plan
) -> PackDeviation:
    """Compare both at the model's weights, and at weights a small step away.

    Raises:
        JobError: they differ by more than rounding, or the packed one does not run.
    """
    dtype = torch.float64 if plan.precision == "float64" else torch.float32
    worst, count = 0.0, 0
    with arithmetic(plan, CPU), torch.no_grad(), autocast(plan, CPU):
        for step in (0.0, STEP):
            for model in (source[0], packed[0]):
                _move(model, step)
            for size in SIZES:
                batch = moved(samples.batch(0, min(size, samples.length)), CPU, dtype)
                try:
                    mine = _observe(source[1], source[0], batch)
                except Exception as error:
                    raise _refuse_batch(source[0], size, error) from error
                try:
                    other = _observe(packed[1], packed[0], batch)
                except JobError:
                    raise
                except Exception as error:
                    raise JobError(
                        f"{OTHERWISE}: of {size} samples it {in_words(error)[:200]}{COMPARED_REMEDY}"
                    ) from error
                worst, count = max(worst, _difference(mine, other)), count + 1
        batch = moved(samples.batch(0, min(GRADIENT_OF, samples.length)), CPU, dtype)
    with arithmetic(plan, CPU), autocast(plan, CPU):
        _compare_gradients(source, packed, batch, plan)
    if worst > TOLERANCES.get(plan.precision, TOLERANCE):
        raise JobError(f"{OTHERWISE}, by {worst:.2g}{COMPARED_REMEDY}")
    return PackDeviation(worst, count)


def _refuse_batch(model: nn.Module, size: int, error: Exception) -> JobError:
    """The error of a source that takes no batch of this size, such as batch norm on the statistics of the batch."""
    norms = [
        path for path, module in model.named_modules()
        if isinstance(module, _BatchNorm) and (module.training or module.running_mean is None)
    ]  # fmt: skip
    if norms:
        return JobError(
            f"model: must give a sample the same loss in every batch to be packed, and {quoted(norms[0])} normalises "
            "by the statistics of the batch; give it running statistics (track_running_stats=True, and eval mode), or "
            "run the job from its source"
        )
    return JobError(
        f"model: must take any number of samples to be packed, and of {size} it {in_words(error)[:200]}; mend that, or "
        "run the job from its source"
    )


def refuse_other_layers(source: PreparedJob, packed: PreparedJob) -> None:
    """Refuse landscapes with `layers` if the packed network has other layers than its source.

    Raises:
        JobError: names the first layer of the source that the packed network lacks.
    """
    for mine, theirs in zip(source.landscapes, packed.landscapes, strict=True):
        if mine.record.layers is None or theirs.record.layers is None:
            continue
        missing = [name for name in mine.record.layers.layers if name not in theirs.record.layers.layers]
        if missing or mine.record.layers.layers != theirs.record.layers.layers:
            what = f" such as {quoted(missing[0])}" if missing else ""
            raise JobError(
                f"layers: must be left out of landscape {quoted(mine.name)} to be packed, as the packed network has "
                f"operations in place of layers{what}; or run the job from its source"
            )


def _compare_gradients(
    source: tuple[nn.Module, Observe], packed: tuple[nn.Module, Observe], batch: object, plan: Plan
) -> None:
    """Refuse different derivatives, such as of a loss that is partly computed without gradients."""
    try:
        mine = _gradients(*source, batch)
    except (RuntimeError, NotImplementedError):  # the source has no derivatives itself
        return
    try:
        other = _gradients(*packed, batch)
    except Exception as error:
        raise JobError(f"{OTHERWISE}: its derivative {in_words(error)[:200]}{COMPARED_REMEDY}") from error
    tolerance = GRADIENT_TOLERANCES.get(plan.precision, GRADIENT_TOLERANCE)
    for name, gradient in mine.items():
        scale = float(gradient.nan_to_num(nan=0.0).abs().max()) if gradient.numel() else 0.0
        same = torch.equal(gradient.isnan(), other[name].isnan())  # NaN where the source has NaN
        apart = float((gradient - other[name]).nan_to_num(nan=0.0).abs().max()) if gradient.numel() else 0.0
        if not same or not apart <= tolerance * scale + 1e-12:
            raise JobError(
                f"{OTHERWISE}: its derivative by {name} differs by {apart:.2g} of {scale:.2g}{COMPARED_REMEDY}"
            )


def _gradients(model: nn.Module, observe: Observe, batch: object) -> dict[str, Tensor]:
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.is_floating_point()}
    for parameter in trained.values():
        parameter.requires_grad_(True)
    try:
        with differentiable_operations():
            losses = [value for name, value in _observe(observe, model, batch).items() if value.requires_grad]
            total = torch.stack([value.double().sum() for value in losses]).sum()
            found = torch.autograd.grad(total, [*trained.values()], allow_unused=True, materialize_grads=True)
        return dict(zip(trained, found, strict=True))
    finally:
        for parameter in trained.values():
            parameter.requires_grad_(False)


def _move(model: nn.Module, step: float) -> None:
    """Move every parameter by a step that is the same for both models."""
    for parameter in model.parameters():
        if step and parameter.is_floating_point() and parameter.numel():
            places = torch.arange(parameter.numel()).reshape(parameter.shape) % 7 - 3
            parameter.add_(places.to(parameter.dtype) * (step * parameter.float().abs().mean().to(parameter.dtype)))


def _observe(observe: Observe, model: nn.Module, batch: object) -> Mapping[str, Tensor]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return observe(model, batch)


def _difference(mine: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    if set(mine) != set(other) or any(mine[name].shape != other[name].shape for name in mine):
        return float("inf")
    worst = 0.0
    for name, values in mine.items():
        one, two = values.double(), other[name].double()
        if not torch.equal(torch.isnan(one), torch.isnan(two)):
            return float("inf")
        apart = ((one - two).abs() / one.abs().clamp(min=1.0)).nan_to_num(nan=0.0)
        worst = max(worst, float(apart.max()) if apart.numel() else 0.0)
    return worst


# ----------------------------------------------------------------------------------------------------
# Files and runs that a job names: weights in files, snapshots of its own run and of others.


@dataclass
class NamedFiles:
    """The files and runs that a job's landscapes name.

    Attributes:
        files: the place of each file in the portable problem, by its name in the job.
        runs: likewise for runs.
        own: the snapshots of the job's own run that it needs.
    """

    job: Job
    landscapes: tuple[Landscape, ...]
    files: dict[str, str] = field(default_factory=dict)
    runs: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in dict.fromkeys(name for landscape in self.landscapes for name in landscape.named_files()):
            self.files[name] = f"files/{len(self.files)}-{_word(Path(name).stem)}.safetensors"
        named = list(dict.fromkeys(name for landscape in self.landscapes for name in landscape.named_runs()))
        places = [real_place(locate(name, self.job.folder)) for name in named]
        for name, place, label in zip(named, places, run_labels(places), strict=True):
            first = named[places.index(place)]
            taken = {known for other, known in self.runs.items() if other != first}
            word = f"runs/{_word(label)}"
            self.runs[name] = self.runs.get(first, word if word not in taken else f"{word}-{len(self.runs)}")

    @property
    def own(self) -> Trajectory:
        """The snapshots of the job's own run that its landscapes need."""
        trajectory = read_trajectory(self.job.run_path)
        if not trajectory.snapshots:
            return trajectory
        wanted: set[int] = set()
        for landscape in self.landscapes:
            wanted |= set(_numbers(landscape, trajectory))
        return trajectory.select(sorted(wanted))

    def write(self, writer: ArchiveWriter, *, own: bool) -> None:
        """Add them to the file; with `own`, the snapshots of the job's own run too."""
        for name, member in self.files.items():
            writer.tensors(member, load_weights(locate(name, self.job.folder), again=True))
        if own:
            self._write_snapshots(writer, self.own, FOLDER)
        for member in dict.fromkeys(self.runs.values()):
            name = next(name for name, known in self.runs.items() if known == member)
            trajectory = read_trajectory(real_place(locate(name, self.job.folder)))
            self._write_snapshots(writer, trajectory, member)

    def _write_snapshots(self, writer: ArchiveWriter, trajectory: Trajectory, below: str) -> None:
        for snapshot in trajectory.snapshots:
            folder, name = split_path(snapshot.path)
            snapshot.load()  # raises for a damaged snapshot
            with folder.fetched(name) as file:
                writer.file(f"{below}/{snapshot.unit}-{snapshot.number:05d}.safetensors", Path(file))


def _numbers(landscape: Landscape, trajectory: Trajectory) -> Iterator[int]:
    """The snapshots of its own run that a landscape needs."""
    if landscape.snapshots == "all":
        yield from trajectory.numbers
    elif landscape.snapshots is not None:
        yield from landscape.snapshots
    origin = "last" if landscape.origin is None else landscape.origin
    for name in (origin, *(name for direction in landscape.directions for name in direction.weights)):
        if isinstance(name, int):
            yield name
        elif name in ("first", "last"):
            yield trajectory.numbers[0 if name == "first" else -1]


def _word(text: str) -> str:
    return re.sub(r"[^\w-]", "_", text, flags=re.ASCII)[:60] or "_"


MACHINE = {
    "run",
    "problem",
    "landscapes",
    "workers",
    "max_workers",
    "num_gpus",
    "worker_resources",
    "device_ids",
}  # fields about one machine
METRIC = "metric_"  # begins the names of graphs of metrics


@dataclass(frozen=True)
class PackResult:
    """The result of packing.

    Attributes:
        path: the file.
        size: its bytes.
        tensor_bytes: how many of these bytes are tensors.
        compared: the difference between its values and those of the source.
        named: the files and runs that the job names, as they are called in the file.
    """

    path: Path
    size: int
    tensor_bytes: int
    compared: PackDeviation
    named: NamedFiles


def pack(job: Job, path: str | Path) -> PackResult:
    """Write a job and its problem as one file, which `landscape run` computes without the user's code.

    Args:
        job: any job whose problem exports.
        path: the file, which ends in `.landscape`.

    Raises:
        JobError: the model or `observe` does not export, or the data are no tensors of one shape.
        LandscapeError: the file cannot be written.
    """
    path = Path(path)
    if path.suffix != SUFFIX:
        raise JobError(f"out: must end in {SUFFIX}, not {quoted(path.name)}; write -o {path.stem or 'job'}{SUFFIX}")
    of_all = [spec.name for spec in job.landscapes if spec.accuracy is not None]
    if of_all and len(of_all) < len(job.landscapes):
        raise JobError(
            f"accuracy: landscape {quoted(of_all[0])} takes all samples of the problem, and others num_samples: give "
            "each kind a job of its own to pack"
        )
    return pack_prepared(prepare(job), path)


def pack_prepared(prepared: PreparedJob, path: Path, run: str | None = None) -> PackResult:
    """Write a prepared job and its problem as one file, as `pack` does.

    Args:
        run: the job's own run, where the file is to be used: it holds no snapshots of it, and is refused where it would
            not give the landscapes that are there; default: the file is to be used anywhere.
    """
    with in_folder(prepared.folder):
        made = _Exporting(prepared)
        made.export()
    try:
        with whole_file(path) as unproved:
            with ArchiveWriter(unproved, path) as writer:
                made.write(writer, snapshots=run is None)
            with in_folder(prepared.folder):
                compared = _read_again(made, unproved.absolute())
            refuse_other_layers(prepared, prepare(read_job(unproved, run=run), reading=run is not None))
    except OSError as error:
        raise unwritable(path, error) from None
    return PackResult(path, path.stat().st_size, writer.tensor_bytes, compared, made.named)


def _read_again(made: _Exporting, path: Path) -> PackDeviation:
    """Read the file, and compare its problem with the source; a refusal of the reader is phrased for the model.

    Raises:
        JobError: the reader refuses the file, or the values differ.
    """
    try:
        return made.compared(path)
    except JobError as error:
        _, refused, why = str(error).partition(" cannot be taken: ")
        if not refused or path.stem not in str(error):
            raise
        raise JobError(f"model: cannot be packed: {why.removesuffix(REMEDY)}; run the job from its source") from None


class _Exporting:
    """The parts of the file, made from a prepared job."""

    def __init__(self, prepared: PreparedJob) -> None:
        self.prepared, self.problem, self.samples = prepared, in_memory(prepared.problem), prepared.samples
        self.plan: Plan = prepared.landscapes[0].plan
        self.model = _copy_for_evaluation(self.problem, self.plan)
        self.sequences = are_sequences(self.samples)
        self.sets = {} if self.sequences else _sets_of(self.samples)
        self.graphs: dict[str, dict[str, Any]] = {}
        self.constants = Constants()
        self.named = NamedFiles(prepared.job, asked_of(prepared.job).landscapes)
        self.kind: dict[str, Any] = {}

    def export(self) -> None:
        """Export the problem's `observe`."""
        observe: Any = self.problem.observe
        inner = observe.observe if isinstance(observe, Combination) else observe
        if isinstance(inner, Terms) and isinstance(self.samples, PointSets):
            self.kind = {"kind": "terms"}
            for name in self.sets:
                self._add(f"term_{name}", _term_of(inner, name), self._example(name))
        elif type(inner) is Supervised and self._splits(inner):
            self.kind = {"kind": "supervised", "classifies": inner.classifies}
        else:
            self.kind = {"kind": "whole"}
            self._add("model", inner, self._example(""))

    def _splits(self, observe: Supervised) -> bool:
        """Export outputs, losses and metrics separately, for products with the Gauss-Newton matrix."""
        batch = self._example("")
        with torch.no_grad():
            outputs = observe.outputs(self.model, batch)
        if not isinstance(outputs, Tensor):
            return False
        self._add("model", lambda model, inputs: model(inputs), batch[0], "model")
        pair = (outputs, batch[1])
        self._add("loss", lambda _, given: observe.losses(*_as_batch(given)), pair, "criterion")
        for name, metric in observe.metrics.items():
            self._add(f"{METRIC}{name}", _metric_of(metric), pair, f"metric {name}")
        return True

    def _add(self, name: str, function: Function, batch: Any, what: str = "observe") -> None:
        found, takes, returns = export_function(function, self.model, batch, what, (0, 1) if self.sequences else (0,))
        lowered = self.plan.precision == "bfloat16"
        graph = describe_graph(found, self.model, self.constants, lowered=lowered)
        self.graphs[name] = {"graph": graph, "takes": takes, "returns": returns}

    def _example(self, name: str) -> Any:
        return self._moved(example_of_sequences(self.samples) if self.sequences else example_of(self.sets[name]))

    def _moved(self, batch: Any) -> Any:
        dtype = torch.float64 if self.plan.precision == "float64" else torch.float32
        return moved(batch, torch.device("cpu"), dtype)

    def _inlined(self) -> dict[str, list[str]]:
        batch = self._moved(self.samples.batch(0, min(2, self.samples.length)))
        with torch.no_grad():
            inlined = inlined_layers(self.model, lambda: self.problem.observe(self.model, batch), self.graphs)
        before = self.problem.model.inlined if isinstance(self.problem.model, PortableModel) else {}
        return {kind: [*before.get(kind, ()), *paths] for kind, paths in inlined.items()}

    def write(self, writer: ArchiveWriter, *, snapshots: bool) -> None:
        """Write all members; with `snapshots`, those of the job's own run too."""
        entries, tensors = describe_tree(self.problem.model)
        graphs = {}
        for place, (name, graph) in enumerate(self.graphs.items()):
            writer.data(f"graphs/{place}.json", graph["graph"])
            graphs[name] = {"member": str(place), "takes": graph["takes"], "returns": graph["returns"]}
        writer.text(JOB, yaml.safe_dump(self._job(), sort_keys=False))
        writer.tensors(WEIGHTS, tensors)
        if self.constants.tensors:
            writer.tensors(CONSTANTS, {str(place): tensor for place, tensor in enumerate(self.constants.tensors)})
        self.named.write(writer, own=snapshots)
        samples = self._write_samples(writer)
        problem = {**self._describe_problem(), "modules": entries, "graphs": graphs}
        writer.manifest({"versions": versions(), "problem": problem, "samples": samples})

    def _write_samples(self, writer: ArchiveWriter) -> dict[str, Any]:
        """Write the samples; returns their entry for the manifest."""
        index = self.prepared.sample_index
        assert index is not None
        leaves = [leaf for rows in self.sets.values() for leaf in leaves_of(batch_structure(rows), rows)]
        named = {"indices": torch.from_numpy(index), **{str(place): leaf for place, leaf in enumerate(leaves)}}
        about = None
        if self.sequences:
            about, joined = describe_sequences(self.samples)
            named |= joined
        writer.tensors(SAMPLES, named)
        return {
            "sets": [[name, batch_structure(rows)] for name, rows in self.sets.items()],
            "sequences": about,
            "num_samples": asked_of(self.prepared.job).num_samples,
            "seed": self.prepared.job.seed,
        }

    def _describe_problem(self) -> dict[str, Any]:
        """The manifest's entries beside modules and graphs."""
        problem = self.problem
        return {
            **self.kind,
            "observables": list(self.prepared.observables),
            "term_weights": None if problem.term_weights is None else dict(problem.term_weights),
            "derived": dict(problem.derived),
            "expected": dict(problem.expected),
            "precision": self.plan.precision,
            "names_types": any(
                _names_types(graph) for name, graph in self.graphs.items() if not name.startswith(METRIC)
            ),
            "inlined": self._inlined(),
            "parameters": parameters_as_values(problem.model),
        }

    def _job(self) -> Mapping[str, Any]:
        """The job without the fields about this machine."""
        job = self.prepared.job
        left = MACHINE | ({"engine"} if "/" in job.engine else set())  # an engine named by a run of this machine
        fields = job.model_dump(mode="json", exclude_unset=True, exclude=left)
        specs = [landscape.model_dump(mode="json", exclude_none=True) for landscape in self.named.landscapes]
        names = self.named
        return {**fields, "landscapes": [with_packed_names(spec, names.files, names.runs) for spec in specs]}

    def compared(self, path: Path) -> PackDeviation:
        """Compare the packed problem with its source."""
        packed = portable_problem(path)
        theirs = _copy_for_evaluation(packed, self.plan)
        mine = _copy_for_evaluation(self.problem, self.plan)
        return compare((mine, self.problem.observe), (theirs, packed.observe), self.samples, self.plan)


def _names_types(values: Any) -> bool:
    """Whether a graph names a floating-point type, that of the job's precision."""
    if isinstance(values, dict):
        return "float" in str(values.get("dtype")) or any(map(_names_types, values.values()))
    return isinstance(values, list) and any(map(_names_types, values))


def _copy_for_evaluation(problem: Problem, plan: Plan) -> nn.Module:
    """A copy of the model as it is evaluated: in eval mode, in the plan's type, without gradients of parameters."""
    model = private_copy(problem.model)[0].cpu()
    take_to_type(model, plan)
    return model.eval().requires_grad_(False)


def _sets_of(samples: Samples) -> Mapping[str, Any]:
    """The samples as rows of tensors, by the names of their terms, or under ''.

    Raises:
        JobError: the samples are no rows of tensors.
    """
    if isinstance(samples, PointSets):
        return samples.sets
    if samples.rows is None:
        raise JobError(
            "data: samples must be tensors of one shape to be packed, not items that are collated batch by batch; pad "
            "them to one length in the data set, or run the job from its source"
        )
    return {"": samples.rows}


def _as_batch(pair: Any) -> tuple[Any, tuple[None, Any]]:
    """Outputs, and a batch for a criterion that only reads the targets."""
    outputs, targets = pair
    return outputs, (None, targets)


def _metric_of(metric: Any) -> Function:
    return lambda _, pair: metric(*pair)


def _term_of(terms: Terms, name: str) -> Function:
    return lambda model, points: terms(model, {name: points})[name]
