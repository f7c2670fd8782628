"""The sets of weights that a job may name: the callback's own, snapshots of its run and of others, files."""

from __future__ import annotations

from pathlib import Path

import torch

from landscape.core.errors import JobError, LandscapeError, NotFoundError, shown
from landscape.core.folders import locate, real_place, run_labels
from landscape.core.validation import OF_RUN
from landscape.job.directions.base import RunSnapshot
from landscape.model.packed_snapshots import logged_beyond, trajectory_at
from landscape.model.parameters import match_state, state_digest, state_of
from landscape.model.snapshots import Trajectory
from landscape.model.weight_files import load_weights
from landscape.problem.terms import Problem


class Weights:
    """Weights by their name in the job: `problem`, `last`, `first`, a number, RUN@last, a file.

    Each set is read and matched once.
    """

    def __init__(self, problem: Problem, trajectory: Trajectory, folder: Path) -> None:
        """
        Args:
            folder: what relative paths of files and runs are relative to.
        """
        self.model, self.trajectory, self.folder = problem.model, trajectory, folder
        self._known: dict[int | str | RunSnapshot, dict[str, torch.Tensor]] = {}
        self._digests: dict[int | str | RunSnapshot, str] = {}
        self._went_on_to: dict[int | RunSnapshot, str] = {}
        self._runs: dict[str, Trajectory] = {trajectory.run: trajectory}

    def run(self, place: str) -> Trajectory:
        """The trajectory of the run at an absolute folder or a URL, read once."""
        if place not in self._runs:
            self._runs[place] = trajectory_at(place)
        return self._runs[place]

    def resolve(self, reference: int | str | RunSnapshot) -> int | str | RunSnapshot:
        """`last` and `first` as the number of their snapshot, also those of another run; all else as it is.

        Raises:
            JobError: the run has no snapshot.
        """
        if isinstance(reference, str) and (of_run := self._of_run(reference)) is not None:
            return of_run
        if reference not in ("last", "first"):
            return reference
        if not self.trajectory.numbers:
            raise JobError(
                f"origin: {shown(reference)} needs a trajectory, and the run has none; use origin: problem or a file"
            )
        return self.trajectory.numbers[-1 if reference == "last" else 0]

    def _of_run(self, reference: str) -> RunSnapshot | None:
        """The snapshot that RUN@last and its like name; None where the reference is a file, or something else."""
        match = OF_RUN.fullmatch(reference)
        place = "" if match is None else real_place(locate(match[1], self.folder))
        if match is None or Path(locate(reference, self.folder)).is_file():
            return None
        numbers = self.run(place).numbers
        if not numbers:
            raise JobError(f"{shown(reference)}: run {shown(place)} holds no snapshots; name a run that holds some")
        number = numbers[{"first": 0, "last": -1}[match[2]]] if match[2] in ("first", "last") else int(match[2])
        return RunSnapshot(place, number)

    def state(self, reference: int | str | RunSnapshot) -> dict[str, torch.Tensor]:
        """The weights of that name, as a state of the model.

        Raises:
            LandscapeError: there are none, or they are not those of such a model.
        """
        key = self.resolve(reference)
        if key not in self._known:
            self._known[key] = self._read(key)
        return self._known[key]

    def digest(self, reference: int | str | RunSnapshot) -> str:
        """The digest of the weights of that name."""
        key = self.resolve(reference)
        if key not in self._digests:
            self._digests[key] = state_digest(self.state(key))
        return self._digests[key]

    def went_on_to(self, reference: int | str | RunSnapshot) -> str:
        """How far the log of a training goes beyond a snapshot, by `logged_beyond`; empty of other weights."""
        key = self.resolve(reference)
        if isinstance(key, str):
            return ""
        if key not in self._went_on_to:
            trajectory = self.run(key.run) if isinstance(key, RunSnapshot) else self.trajectory
            snapshot = trajectory.snapshot(key.number if isinstance(key, RunSnapshot) else key)
            self._went_on_to[key] = logged_beyond(trajectory, snapshot)
        return self._went_on_to[key]

    def label(self, reference: int | str | RunSnapshot) -> str:
        """What figures and errors call the weights of that name, such as `epoch 3`, or `sgd epoch 3` of another run."""
        key = self.resolve(reference)
        if isinstance(key, RunSnapshot):
            return f"{run_labels([key.run])[0]} {self.run(key.run).unit} {key.number}"
        return f"{self.trajectory.unit} {key}" if isinstance(key, int) else key

    def _read(self, key: int | str | RunSnapshot) -> dict[str, torch.Tensor]:
        if key == "problem":
            return state_of(self.model)
        if isinstance(key, int):
            return match_state(self.model, self.trajectory.snapshot(key).load(), f"{self.trajectory.unit} {key}")
        if isinstance(key, RunSnapshot):
            of_run = self.run(key.run)
            what = f"run {shown(key.run)}, {of_run.unit} {key.number}"
            return match_state(self.model, of_run.snapshot(key.number).load(), what)
        try:
            tensors = load_weights(locate(key, self.folder))
        except LandscapeError as error:
            hint = "; a snapshot of a run is RUN@last, RUN@first or RUN@12"
            hint = hint if "@" in key and isinstance(error, NotFoundError) else ""
            raise type(error)(f"origin or target {shown(key)}: {error}{hint}") from None
        return match_state(self.model, tensors, f"file {shown(key)}")
