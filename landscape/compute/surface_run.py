"""What a surface asks of the run that it was read from: the weights at a point, and its job file."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from landscape.compute.callback_place import find_callback, with_packed_names
from landscape.compute.in_memory import session
from landscape.compute.pack import pack
from landscape.compute.prepare import prepare
from landscape.compute.recorded_job import job_of, recorded_job
from landscape.core.errors import JobError, quoted
from landscape.core.files import whole_file
from landscape.core.plan import Engine
from landscape.evaluation.running_model import LoadedModel
from landscape.job.landscape import Landscape
from landscape.job.reading import spec_as_computed
from landscape.model.packed_file import SUFFIX
from landscape.model.parameters import targets_of
from landscape.store.landscape import LandscapeStore, located
from landscape.surface.surface import Surface

WRITTEN = "# Written by Surface.job, which may replace this file."  # the first line of job files


def weights_at(surface: Surface, point: Sequence[float]) -> dict[str, Tensor]:
    """The weights of a point as a state dict of the model: those that its loss was evaluated with.

    Raises:
        JobError: the surface is of no run, was imported, or the point has not a coordinate for each of its axes.
    """
    run, name = located(surface)
    if len(point) != len(surface.axes):
        names = ", ".join(axis.name for axis in surface.axes)
        raise JobError(f"weights: must be given a coordinate for each of {names}, not {len(point)} of them")
    try:
        is_finite = all(map(math.isfinite, point))
    except TypeError:
        is_finite = False
    if not is_finite:
        raise JobError(f"weights: must be given finite numbers, not {quoted(tuple(point))}")
    prepared = prepare(recorded_job(run, LandscapeStore.open(run, name)), reading=True)
    (landscape,) = prepared.landscapes
    loaded = LoadedModel(prepared.problem.model, landscape.plan, torch.device("cpu"))
    directions = [direction.tensors for direction in landscape.directions]
    weights = loaded.place(landscape.origin, directions, Engine()).state_at(point)
    model = prepared.problem.model
    first_names = {id(tensor): tensor_name for tensor_name, tensor in targets_of(model).items()}  # of tied tensors
    state: dict[str, torch.Tensor] = {}
    for tensor_name, own in model.state_dict(keep_vars=True).items():
        at_point = weights.get(first_names.get(id(own), tensor_name), own)
        state[tensor_name] = at_point.detach().to(own.dtype, copy=True)
    return state


def write_job(surface: Surface, path: str | Path) -> Path:
    """Write the job file of a landscape, as `Surface.job` says."""
    run, name = located(surface)
    file, store = _writable(Path(path)), LandscapeStore.open(run, name)
    place, spec_fields = find_callback(run, store), {**spec_as_computed(store.record), "name": name}
    taken = store.identity.num_samples  # the data may have had fewer samples than requested
    recorded = {**store.job.whole, "num_samples": taken, "run": run, "problem": place.problem}
    job = job_of({**recorded, "landscapes": [spec_fields]})
    spec, temporary = job.landscapes[0], _is_temporary(run)
    if temporary and spec.needs_trajectory:
        raise JobError(
            f"job: landscape {quoted(name)} is of checkpoints in a run that this process deletes; compute it with "
            'keep="runs/x", which keeps them'
        )
    fields = {"run": f"runs/{file.stem}" if temporary else run, "problem": place.problem}
    if not isinstance(place.problem, str):
        packed = file.with_suffix(SUFFIX)
        pack(job.replace(run=str(session().folder / "packed"), landscapes=[Landscape(name=name, size=(3,))]), packed)
        fields["problem"] = packed.name
    temporary_files = [Path(named) for named in dict.fromkeys(spec.named_files()) if _is_temporary(named)]
    names = [place.name for place in temporary_files]
    beside = {
        str(place): "-".join([file.stem, *([place.parent.name] if names.count(place.name) > 1 else []), place.name])
        for place in temporary_files
    }
    for named, copy in beside.items():
        shutil.copyfile(named, file.with_name(copy))
    fields |= _written(job, ("run", "problem", "landscapes"))
    landscape = {"name": name} | with_packed_names(_written(spec, ("name",)), beside, {})
    text = yaml.safe_dump({**fields, "landscapes": [landscape]}, sort_keys=False, allow_unicode=True)
    with whole_file(file) as temporary_file:
        temporary_file.write_text(f"{WRITTEN}\n{text}", encoding="utf-8")
    return file


def _writable(path: Path) -> Path:
    """The absolute path of a job file that is written; a file that another program or a person wrote is kept.

    Raises:
        JobError: it is a folder, has the suffix of packed files, or is such a file.
    """
    file = path.absolute()
    if file.is_dir() or file.suffix == SUFFIX:
        raise JobError(f"path: must be a file such as job.yaml, not {quoted(str(path))}; name another one")
    if file.is_file() and not file.read_bytes().startswith(WRITTEN.encode()):
        raise JobError(f"path: {quoted(str(path))} was not written by Surface.job, and is kept; name another file")
    if file.with_suffix(SUFFIX).exists() and not file.exists():
        raise JobError(f"path: {quoted(file.stem + SUFFIX)} beside it is of another job; name another file")
    return file


def _is_temporary(place: str) -> bool:
    """Whether a run or a file is deleted with this process."""
    return Path(place).is_relative_to(session().folder)


def _written(value: Any, left_out: Sequence[str]) -> dict[str, Any]:
    """The fields of a job or a landscape as one writes them, without defaults and what short forms stand for."""
    fields: dict[str, Any] = value.model_dump(mode="json", exclude_defaults=True, exclude=set(left_out))
    if fields.get("trajectory") is not None or fields.get("plane") is not None or fields.get("axes") is not None:
        fields.pop("directions", None)
    if "directions" in fields:
        fields["directions"] = [
            {"kind": direction.kind, **direction.model_dump(mode="json", exclude_defaults=True)}
            for direction in value.directions
        ]
    for name in ("size", "range"):
        if isinstance(fields.get(name), list) and len({str(part) for part in fields[name]}) == 1:
            fields[name] = fields[name][0]
    return fields
