"""`pack`: a job, its problem exported, its samples and snapshots, written as one file that needs no user code."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor, nn

from landscape.compute.asked import asked_of
from landscape.compute.compared import Compared, compare, refuse_other_layers
from landscape.compute.exported import Function, example_of, exported
from landscape.compute.named import Named
from landscape.compute.pack_graph import Constants, described_graph
from landscape.compute.pack_inlined import inlined_layers
from landscape.compute.pack_writing import ArchiveWriter
from landscape.compute.prepare import prepare
from landscape.compute.prepared import PreparedJob
from landscape.compute.sequences import are_sequences, described_sequences, example_of_sequences
from landscape.compute.tree import described_parameters, described_tree
from landscape.core.errors import JobError, shown
from landscape.core.plan import Plan
from landscape.evaluation.model_state import private_copy
from landscape.evaluation.running_model import take_to_type
from landscape.job.job import Job
from landscape.job.reading import read_job
from landscape.model.packed_file import REMEDY, SUFFIX
from landscape.model.packed_model import CONSTANTS, JOB, SAMPLES, WEIGHTS, PortableModel, leaves_of, structure_of
from landscape.model.snapshots import versions
from landscape.problem.batches import moved
from landscape.problem.callback import portable_problem
from landscape.problem.samples import Samples
from landscape.problem.supervised import Combination, Supervised
from landscape.problem.terms import PointSets, Problem, Terms
from landscape.problem.user_code import in_folder

MACHINE = {"run", "problem", "landscapes", "workers", "num_gpus", "device_ids"}  # fields that are of one machine
METRIC = "metric_"  # begins the names of graphs of metrics


@dataclass(frozen=True)
class Packed:
    """What was packed.

    Attributes:
        path: the file.
        size: its bytes.
        tensor_bytes: how many of them are tensors.
        compared: its values beside those of the source.
    """

    path: Path
    size: int
    tensor_bytes: int
    compared: Compared


def pack(job: Job, path: str | Path) -> Packed:
    """Write a job and its problem as one file, which `landscape run` computes without the user's code.

    Args:
        job: any job whose problem exports.
        path: the file, which ends in `.landscape`.

    Raises:
        JobError: the model or what it observes does not export, or the data are no tensors of one shape.
    """
    path = Path(path)
    if path.suffix != SUFFIX:
        raise JobError(f"out: must end in {SUFFIX}, not {shown(path.name)}; write -o {path.stem or 'job'}{SUFFIX}")
    prepared = prepare(job)
    with in_folder(prepared.folder):
        made = _Exporting(prepared)
        made.export()
    unproved = path.with_name(f".{path.stem}-{os.getpid()}{SUFFIX}")
    try:
        with ArchiveWriter(unproved) as writer:
            made.write(writer)
        with in_folder(prepared.folder):
            compared = _read_again(made, unproved.absolute())
        refuse_other_layers(prepared, prepare(read_job(unproved)))
        os.replace(unproved, path)
    finally:
        unproved.unlink(missing_ok=True)
    return Packed(path, path.stat().st_size, writer.tensor_bytes, compared)


def _read_again(made: _Exporting, path: Path) -> Compared:
    """The problem of the file beside its source; what its reader refuses is said of the model, not of this file.

    Raises:
        JobError: it is refused, or computes otherwise.
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
        self.prepared, self.problem, self.samples = prepared, prepared.problem, prepared.samples
        self.plan: Plan = prepared.landscapes[0].plan
        self.model = _settled_copy(self.problem, self.plan)
        self.sequences = are_sequences(self.samples)
        self.sets = {} if self.sequences else _sets_of(self.samples)
        self.graphs: dict[str, dict[str, Any]] = {}
        self.constants = Constants()
        self.named = Named(prepared.job, asked_of(prepared.job).landscapes)
        self.kind: dict[str, Any] = {}

    def export(self) -> None:
        """Export what the problem observes."""
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
        """Export outputs, losses and metrics apart, as products with the Gauss-Newton matrix need them."""
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
        found, takes, returns = exported(function, self.model, batch, what, (0, 1) if self.sequences else (0,))
        lowered = self.plan.precision == "bfloat16"
        graph = described_graph(found, self.model, self.constants, lowered=lowered)
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

    def write(self, writer: ArchiveWriter) -> None:
        """Write all members."""
        entries, tensors = described_tree(self.problem.model)
        graphs = {}
        for place, (name, graph) in enumerate(self.graphs.items()):
            writer.data(f"graphs/{place}.json", graph["graph"])
            graphs[name] = {"member": str(place), "takes": graph["takes"], "returns": graph["returns"]}
        writer.text(JOB, yaml.safe_dump(self._job(), sort_keys=False))
        writer.tensors(WEIGHTS, tensors)
        if self.constants.tensors:
            writer.tensors(CONSTANTS, {str(place): each for place, each in enumerate(self.constants.tensors)})
        self.named.write(writer)
        samples = self._write_samples(writer)
        problem = {**self._described(), "modules": entries, "graphs": graphs}
        writer.manifest({"versions": versions(), "problem": problem, "samples": samples})

    def _write_samples(self, writer: ArchiveWriter) -> dict[str, Any]:
        """Write the samples; returns what the manifest says of them."""
        index = self.prepared.sample_index
        assert index is not None
        leaves = [leaf for rows in self.sets.values() for leaf in leaves_of(structure_of(rows), rows)]
        named = {"indices": torch.from_numpy(index), **{str(place): leaf for place, leaf in enumerate(leaves)}}
        about = None
        if self.sequences:
            about, joined = described_sequences(self.samples)
            named |= joined
        writer.tensors(SAMPLES, named)
        return {
            "sets": [[name, structure_of(rows)] for name, rows in self.sets.items()],
            "sequences": about,
            "num_samples": asked_of(self.prepared.job).num_samples,
            "seed": self.prepared.job.seed,
        }

    def _described(self) -> dict[str, Any]:
        """What the manifest says of the problem beside its modules and graphs."""
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
            "parameters": described_parameters(problem.model),
        }

    def _job(self) -> Mapping[str, Any]:
        """The job without what is of this machine alone."""
        job = self.prepared.job
        left = MACHINE | ({"engine"} if "/" in job.engine else set())  # that of a run, which stays here
        fields = job.model_dump(mode="json", exclude_unset=True, exclude=left)
        specs = [each.model_dump(mode="json", exclude_none=True) for each in self.named.landscapes]
        return {**fields, "landscapes": [self.named.renamed(spec) for spec in specs]}

    def compared(self, path: Path) -> Compared:
        """The packed problem beside its source."""
        packed = portable_problem(path)
        theirs = _settled_copy(packed, self.plan)
        mine = _settled_copy(self.problem, self.plan)
        return compare((mine, self.problem.observe), (theirs, packed.observe), self.samples, self.plan)


def _names_types(values: Any) -> bool:
    """Whether a graph names a floating-point type, which was that of the job's precision."""
    if isinstance(values, dict):
        return "float" in str(values.get("dtype")) or any(map(_names_types, values.values()))
    return isinstance(values, list) and any(map(_names_types, values))


def _settled_copy(problem: Problem, plan: Plan) -> nn.Module:
    """A copy of the model as it is evaluated: in eval mode, in the plan's type, without gradients of parameters."""
    model = private_copy(problem.model)[0].cpu()
    take_to_type(model, plan)
    return model.eval().requires_grad_(False)


def _sets_of(samples: Samples) -> Mapping[str, Any]:
    """The samples as rows of tensors, by the names of their terms, or under ''.

    Raises:
        JobError: they are no rows.
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
    """Outputs, and a batch of which a criterion takes the targets alone."""
    outputs, targets = pair
    return outputs, (None, targets)


def _metric_of(metric: Any) -> Function:
    return lambda _, pair: metric(*pair)


def _term_of(terms: Terms, name: str) -> Function:
    return lambda model, points: terms(model, {name: points})[name]
