"""A run opened for reading: its landscapes by name, and what training left there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from landscape.core.errors import LandscapeError, NotFoundError, shown
from landscape.core.folders import open_folder
from landscape.job.reading import read_job
from landscape.model.history import read_history
from landscape.model.packed_snapshots import logged_beyond
from landscape.model.run_files import read_info, read_measures
from landscape.model.snapshots import Trajectory, read_trajectory
from landscape.store import LandscapeStore, landscape_names, survey
from landscape.surface.surface import Surface


class Run(Mapping[str, Surface]):
    """A run opened for reading: its landscapes by name, and what training left there."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __repr__(self) -> str:
        return f"Run({shown(self.path)}, landscapes={list(self)})"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """What a notebook shows of this run: its landscapes with small pictures, and text."""
        from landscape.views.notebook import run_bundle

        return run_bundle(self)

    def __iter__(self) -> Iterator[str]:
        return iter(landscape_names(self.path))

    def __contains__(self, name: object) -> bool:
        # `Mapping` would read the whole surface for this; a landscape that cannot be read is not in the run.
        return any(name == known for known in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __getitem__(self, name: str) -> Surface:
        surface = LandscapeStore.open(self.path, name).read_surface()
        number, known = surface.record.origin_step, surface.record.went_on_to
        later = self._logged_beyond(number) if number is not None else ""
        if not later or later == known:
            return surface
        return replace(surface, attributes=surface.record.changed(went_on_to=later).attributes)

    def _logged_beyond(self, number: int) -> str:
        """How far training has gone by now beyond a snapshot of this run, as `logged_beyond` says it."""
        with contextlib.suppress(LandscapeError):
            trajectory = self.trajectory
            return logged_beyond(trajectory, trajectory.snapshot(number))
        return ""

    @property
    def unreadable(self) -> dict[str, str]:
        """The landscapes that are left out because their metadata cannot be read, with the reasons."""
        return survey(self.path).unreadable

    @property
    def info(self) -> dict[str, Any]:
        """What was trained, as `run.json` holds it."""
        return read_info(self.path)

    @property
    def history(self) -> list[dict[str, Any]]:
        """The training history, one dict per recorded step."""
        return read_history(self.path)

    @property
    def measures(self) -> dict[str, Any]:
        """What was measured of the run, as `measures.json` holds it; empty where there is no such file."""
        return read_measures(self.path)

    @property
    def trajectory(self) -> Trajectory:
        """The snapshots that training left, in order."""
        return read_trajectory(self.path)


def open_run(path: str | Path) -> Run:
    """Open a run for reading; needs no lock, also while a job writes it.

    Raises:
        NotFoundError: there is no such folder, or nothing at that URL. For a job file the message names the job's run.

    Example:
        >>> import torch
        >>> from landscape import Job, Problem, run
        >>> def problem():
        ...     return Problem.supervised(torch.nn.Linear(2, 2), (torch.ones(8, 2), torch.zeros(8).long()))
        >>> landscapes = [{"name": "minimum", "size": 3}]
        >>> _ = run(Job(run="runs/mine", problem=problem, num_samples=8, tile=3, landscapes=landscapes))
        >>> opened = open_run("runs/mine")
        >>> list(opened), opened["minimum"].loss.shape
        (['minimum'], (3, 3))
    """
    folder = open_folder(path)
    if folder.exists():
        return Run(folder.name)
    if os.path.isfile(path):
        raise NotFoundError(f"run: must be a folder or URL, not the file {shown(str(path))}; {_run_named_in(path)}")
    raise NotFoundError(f"run {shown(str(path))} does not exist; `landscape run JOB` makes one")


def _run_named_in(file: str | Path) -> str:
    """A remedy where a file is given for a run: the run of the job that the file holds."""
    try:
        return f"the run of this job is {shown(read_job(file).run_path, 300)}"
    except LandscapeError:
        return "name the run that a job has written"
