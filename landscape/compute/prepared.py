"""A prepared job: everything that the evaluation of its landscapes needs, as values."""

from __future__ import annotations

import logging
import math
import platform
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.modules.batchnorm import _NormBase

from landscape.compute.reused_values import Extension
from landscape.core.grid import Grid
from landscape.core.plan import Plan, default_plan
from landscape.core.system import sent_from
from landscape.evaluation.tuning.choices import Tuned
from landscape.job.directions.base import DirectionTensors
from landscape.job.directions.file import PRODUCT_EVALUATIONS
from landscape.job.job import Job
from landscape.model.parameters import ParameterInfo, State
from landscape.problem.batches import Samples
from landscape.problem.terms import Problem
from landscape.store.format import PathPlan
from landscape.surface.accuracy import levels_of
from landscape.surface.record import Record
from landscape.surface.record_parts import LevelRecord, Provenance
from landscape.surface.refinement import from_stretches, new_points_per_tile

log = logging.getLogger("landscape")


USUAL_SAMPLES = 4096  # at each point of the first pass, about, where an accuracy is asked for
WATCHED_EVALUATIONS = 4  # about: watching the layers at a point takes the time of so many forward passes


@dataclass(frozen=True)
class PreparedLandscape:
    """One landscape, ready to be evaluated.

    Attributes:
        origin: the weights at which the axes cross.
        path: the coordinates of the snapshots of its paths; None if it has no path.
        identity: everything that decides its values.
        record: the facts that the store keeps in addition to its values.
        snapshot_state: the weights of a snapshot, by its index on the path.
        extension: the parts reused from the landscape that it extends; None if it extends none.
    """

    name: str
    origin: State
    directions: tuple[DirectionTensors, ...]
    grid: Grid
    path: PathPlan | None
    plan: Plan
    identity: Mapping[str, Any]
    record: Record
    observables: tuple[str, ...]
    snapshot_state: Callable[[int], State] = field(repr=False)
    extension: Extension | None = None

    @property
    def level(self) -> LevelRecord | None:
        """The level of refinement, if this is one; None for a landscape itself."""
        return self.record.level

    def in_batches(self, batch_size: int) -> PreparedLandscape:
        """The same landscape in batches of another size, which its record says."""
        return self._planned(replace(self.plan, batch_size=batch_size))

    def tuned(self, tuned: Tuned) -> PreparedLandscape:
        """The same landscape with the plan that measurements chose; the record says how.

        Raises:
            JobError: it extends another landscape, whose plan it must keep, but cannot.
        """
        provenance = replace(self.record.provenance, engine=tuned.record())
        record = self.record.changed(provenance=provenance, precision_error=tuned.precision_error)
        return replace(self, record=record)._planned(tuned.plan)

    def on_device(self, device: str, job: Job) -> PreparedLandscape:
        """The same landscape, planned for the workers' kind of device."""
        samples = int(self.identity["num_samples"])
        plan = default_plan(
            samples, device, job.precision, job.batch_norm, job.seed, job.batch_size, job.threads,
            self.plan.bfloat16_weights,
        )  # fmt: skip
        return self._planned(replace(plan, reduction=self.plan.reduction))

    def _planned(self, plan: Plan) -> PreparedLandscape:
        if self.extension is not None:
            self.extension.refuse_other_plan(plan)
        plan = plan.rounding(self.plan.quantise)  # the landscape's own rounding, which may differ from that of others
        return replace(self, plan=plan, record=self.record.changed(plan=plan.record()))

    @property
    def evaluations_per_point(self) -> int:
        """The cost of a grid point, in evaluations of all samples; about, and at most."""
        convexity, layers = self.record.convexity, self.record.layers
        products = 0 if convexity is None else convexity.products
        return 1 + products * PRODUCT_EVALUATIONS + (0 if layers is None else WATCHED_EVALUATIONS)

    @property
    def points(self) -> int:
        """The number of evaluations: the grid's points, and two per snapshot of the path."""
        if self.record.accuracy is not None:  # a guess: what is needed shows as it is computed
            first, samples = math.prod(levels_of(len(self.grid.names)).shape(1)), self.record.accuracy.population
            return max(first, -(-first * USUAL_SAMPLES // max(1, samples)))
        if self.level is not None:
            held = new_points_per_tile(self.grid.shape)
            return int(held[from_stretches(self.level.blocks, held.shape)].sum())
        return self.grid.points + (2 * len(self.path.step) if self.path else 0)


@dataclass(frozen=True)
class PreparedJob:
    """A whole job, checked and ready to be evaluated.

    Attributes:
        run: the place of the run: an absolute folder, or a URL.
        samples: those over which every point is evaluated.
        looked: whether a call of `observe` has shown the observables; else the first worker must call it.
        warnings: a line for each setting that may be a mistake; each names its remedy.
        folder: the working directory of the user's code, as the callback left it.
        sample_index: the indices of the samples in the data.
        borrowed: the plan of the run whose engine the job uses, if no landscape of the job is on disk.
        network: the options with which the training of the run made its network.
        observables: those that `observe` returns; landscapes may have more.
        ranks: of how many processes a worker is a group.
    """

    job: Job
    run: str
    problem: Problem
    samples: Samples
    landscapes: tuple[PreparedLandscape, ...]
    looked: bool = True
    warnings: tuple[str, ...] = ()
    folder: Path = field(default_factory=Path.cwd)
    borrowed: Plan | None = None
    sample_index: NDArray[np.int64] | None = None
    network: Mapping[str, Any] = field(default_factory=dict)
    observables: tuple[str, ...] = ()
    ranks: int = 1

    def log_warnings(self) -> None:
        """Log the warnings; to be called once, before the first value."""
        for warning in self.warnings:
            log.warning("%s", warning)


def kept_samples(prepared: PreparedJob, landscape: PreparedLandscape) -> int:
    """The number of samples whose losses the landscape stores; 0 if it stores none."""
    return prepared.samples.length if landscape.record.keep_samples else 0


# ----------------------------------------------------------------------------------------------------
# The provenance of a landscape: its machine, model and versions.


def provenance(model: torch.nn.Module, infos: Sequence[ParameterInfo], folder: Path) -> Provenance:
    """This machine, now, the model with its parameters, and the folders in which its callback is looked up."""
    sent_host, sent_folder = sent_from() or (None, None)
    return Provenance(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        host=socket.gethostname(),
        platform=platform.platform(),
        versions={"python": platform.python_version(), **versions()},
        model=type(model).__name__,
        parameters=sum(int(np.prod(info.shape)) for info in infos),
        folder=str(folder),
        sent_from=sent_folder,
        sent_host=sent_host,
        batch_norm_layers=batch_norm_layers(model),
    )


def batch_norm_layers(model: torch.nn.Module) -> int:
    """The number of layers that the job's `batch_norm` changes."""
    return sum(map(_is_batch_norm, model.modules()))


def _is_batch_norm(module: torch.nn.Module) -> bool:
    """Whether the job's `batch_norm` changes this layer; layers of other libraries are recognised by their name."""
    return isinstance(module, _NormBase) or "BatchNorm" in type(module).__name__


@cache  # a process computes with the packages that it has imported, even if others are installed meanwhile
def versions() -> Mapping[str, str]:
    """The versions of the packages that compute and store the values."""
    versions = {"torch": torch.__version__, "numpy": np.__version__}
    for package in ("zarr", "ray", "loss-landscape-cluster"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions
