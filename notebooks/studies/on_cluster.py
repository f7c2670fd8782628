"""A job that takes as long as that of a larger network, for the study of clusters: LeNet-5 that waits at each point."""

from __future__ import annotations

import math
import shutil
import time
from pathlib import Path

from torch import Tensor, nn

from landscape.core.errors import LandscapeError
from landscape.problem.terms import Problem
from landscape.recipes.lenet import LeNet5
from landscape.recipes.training import build_seeded
from landscape.store.results import open_run
from landscape.surface.surface import OK, Surface
from studies.data import StudyData, handwriting
from studies.settings import choose, folder_of

STUDY = "on-a-cluster"
NAME = "plane"
WORKERS = choose(2, 1)  # each is a process that imports torch
FEW, MORE = 6, choose(80, 6)  # points after which something is killed
JOB = """\
run: {run}
problem: studies.on_cluster:problem
num_samples: 64
batch_size: 64
engine: eager
tile: 1
landscapes:
  - {{name: plane, size: {size}}}
"""


class WaitingLeNet(nn.Module):
    """LeNet-5 that waits before it answers: a point takes as long as one of a larger network, and costs no core."""

    def __init__(self) -> None:
        super().__init__()
        self.network = LeNet5()
        self.seconds = choose(0.3, 0.05)

    def forward(self, images: Tensor) -> Tensor:
        """The logits [N, 10] of images [N, 1, 32, 32]."""
        time.sleep(self.seconds)
        return self.network(images)  # type: ignore[no-any-return]


def data() -> StudyData:
    """The images of this study."""
    return handwriting(64)


def problem() -> Problem:
    """The callback of the job: a network with initial weights."""
    return Problem.supervised(build_seeded(WaitingLeNet, 0).eval(), data().inputs(), metrics=["accuracy"])


def write_job(name: str) -> Path:
    """Write the job file of a run of that name; a run that an earlier execution left is begun anew.

    Returns:
        The job file, in a folder of its own.
    """
    folder = folder_of(STUDY, name)
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    file = folder / "job.yaml"
    file.write_text(JOB.format(run="run", size=choose(15, 5)), encoding="utf-8")
    return file


def surface(job: Path) -> Surface:
    """The landscape that a job has written so far."""
    return open_run(job.parent / "run")[NAME]


def wait_for_points(job: Path, count: int, seconds: float = 600.0) -> int:
    """Wait until so many points are there, or all of them.

    Returns:
        How many are there now.

    Raises:
        LandscapeError: they are not there after so many seconds.
    """
    end = time.monotonic() + seconds
    while True:
        done, points = _progress(job)
        if done >= min(count, points):
            return done
        if time.monotonic() > end:
            raise LandscapeError(f"{done} of {count} points are there after {seconds:g} s; look at the driver's log")
        time.sleep(0.3)


def _progress(job: Path) -> tuple[int, float]:
    """How many points are there, and how many there will be; before the run has begun that is not known."""
    try:
        status = surface(job).status
    except (LandscapeError, LookupError):
        return 0, math.inf
    return int((status == OK).sum()), status.size
