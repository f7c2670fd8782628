"""A landscape made finer in a box, or everywhere, with every point that is there: levels of half the steps each.

The points of a level are those of the job that asks for the finer grid at once, to the bit. A level lies with its
landscape, and holds whole blocks of it; `landscape.refinement` has their geometry.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from landscape.compute.recorded_job import job_of, recorded_fields, recorded_folder
from landscape.compute.serial import run as run_serially
from landscape.job.job import Job
from landscape.store.commit import finish_move
from landscape.store.landscape import LandscapeStore
from landscape.store.levels import Box, Finer, levels_left, refinable
from landscape.store.results import Run, open_run, writing
from landscape.store.runs import refuse_unwritable
from landscape.surface.record_parts import LevelRecord
from landscape.surface.refinement import BLOCK
from landscape.surface.surface import NOT_COMPUTED, QUARANTINED


def refine(
    run: str | Path,
    name: str,
    *,
    factor: int = 2,
    box: Box | None = None,
    problem: str | Callable[[], Any] | None = None,
    folder: Path | None = None,
    compute: Callable[[Job], Run] = run_serially,
) -> Run:
    """Make a landscape of a run finer; interrupted, the same call goes on.

    Args:
        factor: 2 or 4: by how much its steps are divided.
        box: where: [low, high] of each axis, widened to whole blocks of 8 cells; default: everywhere.
        problem: the callback; default: the one that the landscape was computed with, by its name.
        folder: where the callback is looked up first; default: where it was then.
        compute: what computes a job, such as `cluster.run`; default: this process.

    Returns:
        The run, opened for reading.

    Raises:
        NotFoundError: there is no such run or landscape.
        JobError: the landscape cannot be refined in this way; says why.
        Interrupted: the same call goes on.
    """
    finer = Finer(factor, box)
    path = open_run(run).path
    refuse_unwritable(path)
    levels_left(path, name, finer)  # what is refused leaves no lock in the run
    with writing(path):
        finish_move(path)
    jobs = [level_job(run, name, level, problem, folder) for level in levels_left(path, name, finer)]
    for job in jobs:
        opened, level = compute(job), job.level
        assert level is not None
        left = LandscapeStore.open(path, name, level=level.number).counts()
        if left[NOT_COMPUTED] or left[QUARANTINED]:
            return opened  # partial: the failures are listed with the level
    return open_run(run)


def level_job(
    run: str | Path,
    name: str,
    level: LevelRecord,
    problem: str | Callable[[], Any] | None = None,
    folder: Path | None = None,
) -> Job:
    """The job that computes a level; what it is planned for and costs, `landscape plan` tells.

    Raises:
        JobError: the landscape cannot be refined.
    """
    path = open_run(run).path
    store = refinable(path, name)
    recorded = recorded_fields(path, store, problem)
    recorded |= {"engine": "auto", "batch_size": None, "tile": [BLOCK], "keep_samples": None}
    return job_of(recorded).refining(level, folder or recorded_folder(store))
