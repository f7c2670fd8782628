"""A training as it is asked for: what is trained, its options, its run, its workers; and what each rank is told."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cluster.runtime.options import checked_workers
from cluster.training.function import NamedFunction
from landscape.core.errors import JobError
from landscape.core.folders import locate
from landscape.core.validation import gpus

THREADS = 1  # of a rank on a CPU: how many share a sum decides how it rounds


@dataclass(frozen=True)
class TrainingJob:
    """A training as it is asked for; what a Ray session asks of a job, it answers.

    Attributes:
        run: the run's folder or URL, as it was given.
        options: of the function, checked.
        workers: how many; None for one per GPU, and for one where there are none.
        gpus_per_worker: None for one where there are GPUs.
        here: what a relative run is below; the function may change the current directory.
    """

    what: NamedFunction
    run: str
    options: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    workers: int | None = None
    gpus_per_worker: float | None = None
    here: Path = field(default_factory=Path.cwd)

    def __post_init__(self) -> None:
        checked_workers(self.workers)
        if not self.run.strip():
            raise JobError("run: must name a folder or URL for the training; give --run")
        try:
            self.gpus_per_worker is None or gpus(self.gpus_per_worker)
        except ValueError as error:
            raise JobError(f"gpus_per_worker: {error}") from None

    @property
    def run_path(self) -> str:
        """The run as an absolute folder or a URL."""
        return locate(self.run, self.here)

    @property
    def folder(self) -> Path:
        """Where the module of the function lies."""
        return self.what.folder

    @property
    def problem(self) -> str | None:
        """'module:function', whose files travel to a cluster; None where nothing has to."""
        return self.what.module

    @property
    def device(self) -> str:
        """Which devices: GPUs where there are any, unless each worker is to have none of them."""
        return "cpu" if self.gpus_per_worker == 0 else "auto"

    @property
    def num_gpus(self) -> float | None:
        """GPUs of each worker."""
        return self.gpus_per_worker

    device_ids = None
    threads = THREADS


@dataclass(frozen=True)
class RankPlan:
    """What every rank of a training is told.

    Attributes:
        run: an absolute folder or a URL; empty for a folder of the rank's own, which is removed at the end.
        card: what the file says that describes the driver in the run; a node that does not see it does not see the run.
        path: the driver's module path.
        here: the driver's working directory.
        former: the function that the run was trained by, where it was another one.
        steps: end after so many measured steps; None to train to the end.
        warm: steps before those, which are not measured.
    """

    what: NamedFunction
    options: Mapping[str, Any]
    run: str
    seed: int
    card: bytes = b""
    path: tuple[str, ...] = ()
    here: str = ""
    former: str = ""
    steps: int | None = None
    warm: int = 0


def plan_of(job: TrainingJob, **changes: Any) -> RankPlan:
    """What the ranks of a training are told."""
    path = tuple(os.path.abspath(each) for each in sys.path)
    plan = RankPlan(job.what, dict(job.options), job.run_path, job.seed, path=path, here=os.getcwd())
    return replace(plan, **changes)
