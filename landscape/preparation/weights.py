"""The sets of weights that a job may name: the callback's own, the snapshots of the trajectory, files."""

from __future__ import annotations

from pathlib import Path

import torch

from landscape.errors import JobError, LandscapeError, shown
from landscape.folders.places import locate
from landscape.parameters import match_state, state_digest, state_of
from landscape.problem.problem import Problem
from landscape.trajectory.snapshots import Trajectory
from landscape.trajectory.weight_files import load_weights


class Weights:
    """Weights by their name in the job: `problem`, `last`, `first`, a number, a file. Each is read and matched once."""

    def __init__(self, problem: Problem, trajectory: Trajectory, folder: Path) -> None:
        """
        Args:
            folder: what relative paths of files are relative to.
        """
        self.model, self.trajectory, self.folder = problem.model, trajectory, folder
        self._known: dict[int | str, dict[str, torch.Tensor]] = {}
        self._digests: dict[int | str, str] = {}

    def resolve(self, reference: int | str) -> int | str:
        """`last` and `first` as the number of their snapshot; all else as it is.

        Raises:
            JobError: the run has no snapshot.
        """
        if reference not in ("last", "first"):
            return reference
        if not self.trajectory.numbers:
            raise JobError(
                f"origin: {shown(reference)} needs a trajectory, and the run has none; use origin: problem or a file"
            )
        return self.trajectory.numbers[-1 if reference == "last" else 0]

    def state(self, reference: int | str) -> dict[str, torch.Tensor]:
        """The weights of that name, as a state of the model.

        Raises:
            LandscapeError: there are none, or they are not those of such a model.
        """
        key = self.resolve(reference)
        if key not in self._known:
            self._known[key] = self._read(key)
        return self._known[key]

    def digest(self, reference: int | str) -> str:
        """The digest of the weights of that name."""
        key = self.resolve(reference)
        if key not in self._digests:
            self._digests[key] = state_digest(self.state(key))
        return self._digests[key]

    def label(self, reference: int | str) -> str:
        """What figures and errors call the weights of that name, such as `epoch 3`."""
        key = self.resolve(reference)
        return f"{self.trajectory.unit} {key}" if isinstance(key, int) else key

    def _read(self, key: int | str) -> dict[str, torch.Tensor]:
        if key == "problem":
            return state_of(self.model)
        if isinstance(key, int):
            return match_state(self.model, self.trajectory.snapshot(key).load(), f"{self.trajectory.unit} {key}")
        try:
            tensors = load_weights(locate(key, self.folder))
        except LandscapeError as error:
            raise type(error)(f"origin or target {shown(key)}: {error}") from None
        return match_state(self.model, tensors, f"file {shown(key)}")
