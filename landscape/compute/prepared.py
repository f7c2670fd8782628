"""A job that is prepared: all that evaluating its landscapes needs, as values."""

from __future__ import annotations

import logging
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
from landscape.evaluation.tuning.choices import Tuned
from landscape.job.directions.base import DirectionTensors
from landscape.job.directions.file import PRODUCT_EVALUATIONS
from landscape.job.job import Job
from landscape.model.parameters import ParameterInfo, State
from landscape.problem.batches import Samples
from landscape.problem.terms import Problem
from landscape.store.format import PathPlan
from landscape.surface.record import Record
from landscape.surface.record_parts import LevelRecord, Provenance
from landscape.surface.refinement import from_stretches, new_points_per_tile

log = logging.getLogger("landscape")


WATCHED_EVALUATIONS = 4  # forward passes in whose time the layers of a network are watched at a point, about


@dataclass(frozen=True)
class PreparedLandscape:
    """One landscape, ready to be evaluated.

    Attributes:
        origin: the weights at which the axes cross.
        path: where the snapshots of its paths lie on the axes; None where it has none.
        identity: what decides its values.
        record: what the store keeps of it beside its values.
        snapshot_state: the weights of a snapshot, by its place on the path.
        extension: what it takes over from the landscape that it extends; None where it is computed from the beginning.
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
        """The level of refinement that this is; None for a landscape itself."""
        return self.record.level

    def in_batches(self, batch_size: int) -> PreparedLandscape:
        """The same landscape in batches of another size, which its record says."""
        return self._planned(replace(self.plan, batch_size=batch_size))

    def tuned(self, tuned: Tuned) -> PreparedLandscape:
        """The same landscape with the plan that was chosen by measuring; the record says how it was chosen.

        Raises:
            JobError: it extends another one, whose plan it has to keep and cannot.
        """
        provenance = replace(self.record.provenance, engine=tuned.record())
        record = self.record.changed(provenance=provenance, precision_error=tuned.precision_error)
        return replace(self, record=record)._planned(tuned.plan)

    def on_device(self, device: str, job: Job) -> PreparedLandscape:
        """The same landscape planned for the kind of device that the workers have."""
        samples = int(self.identity["num_samples"])
        plan = default_plan(
            samples, device, job.precision, job.batch_norm, job.seed, job.batch_size, job.threads,
            self.plan.bfloat16_weights,
        )  # fmt: skip
        return self._planned(plan)

    def _planned(self, plan: Plan) -> PreparedLandscape:
        if self.extension is not None:
            self.extension.refuse_other_plan(plan)
        plan = plan.rounding(self.plan.quantise)  # which is the landscape's own, whatever its job's other ones have
        return replace(self, plan=plan, record=self.record.changed(plan=plan.record()))

    @property
    def evaluations_per_point(self) -> int:
        """As many evaluations of all samples a point of the grid takes about as long as, at most."""
        convexity, layers = self.record.convexity, self.record.layers
        products = 0 if convexity is None else convexity.products
        return 1 + products * PRODUCT_EVALUATIONS + (0 if layers is None else WATCHED_EVALUATIONS)

    @property
    def points(self) -> int:
        """Evaluations in all: the grid's points, and two per snapshot of the path."""
        if self.level is not None:
            held = new_points_per_tile(self.grid.shape)
            return int(held[from_stretches(self.level.blocks, held.shape)].sum())
        return self.grid.points + (2 * len(self.path.step) if self.path else 0)


@dataclass(frozen=True)
class PreparedJob:
    """A whole job, checked and ready to be evaluated.

    Attributes:
        run: where the run lies: an absolute folder, or a URL.
        samples: those over which every point is evaluated.
        looked: whether `observe` was seen to return the observables; else the first worker must look.
        warnings: a line each on what may be meant otherwise; each names its remedy.
        folder: the working directory of the user's code, as the callback left it.
        sample_index: the places of the samples in the data.
        borrowed: the plan of the run whose engine the job takes, where no landscape of the job stands on disk.
        network: the options that the training of the run made its network with.
        observables: what `observe` returns; landscapes may have more.
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

    def log_warnings(self) -> None:
        """Log the warnings; to be called once, before the first value."""
        for warning in self.warnings:
            log.warning("%s", warning)


def kept_samples(prepared: PreparedJob, landscape: PreparedLandscape) -> int:
    """Of how many samples the landscape stores the losses; 0 where it stores none."""
    return prepared.samples.length if landscape.record.keep_samples else 0


# ----------------------------------------------------------------------------------------------------
# Where a landscape was computed, of what, and with which versions.


def provenance(model: torch.nn.Module, infos: Sequence[ParameterInfo], folder: Path) -> Provenance:
    """This machine, now, the model with its parameters, and the folder in which its callback is looked up."""
    return Provenance(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        host=socket.gethostname(),
        platform=platform.platform(),
        versions={"python": platform.python_version(), **versions()},
        model=type(model).__name__,
        parameters=sum(int(np.prod(info.shape)) for info in infos),
        folder=str(folder),
        batch_norm_layers=batch_norm_layers(model),
    )


def batch_norm_layers(model: torch.nn.Module) -> int:
    """How many layers of the model the job's `batch_norm` changes."""
    return sum(map(_is_batch_norm, model.modules()))


def _is_batch_norm(module: torch.nn.Module) -> bool:
    """Whether the job's `batch_norm` changes what the layer does; layers of other libraries are known by their name."""
    return isinstance(module, _NormBase) or "BatchNorm" in type(module).__name__


@cache  # a process computes with what it has imported, whatever is installed meanwhile
def versions() -> Mapping[str, str]:
    """The versions of the packages that compute and store the values."""
    versions = {"torch": torch.__version__, "numpy": np.__version__}
    for package in ("zarr", "ray", "loss-landscape-cluster"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions
