"""The healthy folder that every case starts from: a callback, a job, a run with a path, checkpoints, files of the user's."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from judging import Kept
from torch import nn

from landscape import TrajectoryCollector, open_run, read_job, run

CALLBACK = """
import torch
from torch import nn

from landscape import Problem


def network():
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return model


def data():
    generator = torch.Generator().manual_seed(2)
    return torch.randn(16, 3, generator=generator), torch.randint(0, 2, (16,), generator=generator)


def problem():
    return Problem.supervised(network(), data())
"""
MODULE = "fuzzed_problem"
JOB: dict[str, Any] = {
    "run": "run",
    "problem": f"{MODULE}:problem",
    "num_samples": 12,
    "seed": 3,
    "batch_size": 6,
    "precision": "float32",
    "batch_norm": "eval",
    "engine": "eager",
    "threads": 1,
    "device": "cpu",
    "tile": 2,
    "landscapes": [
        {"name": "plane", "origin": "last", "directions": [{"kind": "random", "seed": 1}, {"kind": "random", "seed": 2}],
         "size": [4, 3], "range": [[-1, 1], [-0.5, 0.5]]},
        {"name": "path", "trajectory": "all", "size": 3},
        {"name": "line", "directions": [{"kind": "towards", "target": "first"}], "size": 5, "range": [-0.2, 1.2]},
    ],
}  # fmt: skip
USERS = {"notes.txt": b"mine\n", "run/weights.partial.bak": b"\x00mine", "run/.notes.partial": b"mine too"}


@dataclass(frozen=True)
class Scene:
    """A folder of its own with everything in it."""

    folder: Path

    @property
    def job(self) -> Path:
        return self.folder / "job.yaml"

    @property
    def run(self) -> Path:
        return self.folder / "run"

    def write_job(self, job: Mapping[str, Any]) -> None:
        self.job.write_text(yaml.safe_dump(dict(job), sort_keys=False, allow_unicode=True))

    def kept(self) -> Kept:
        """The user's own files."""
        return Kept.of(*(self.folder / name for name in USERS))


def make(folder: Path) -> Scene:
    """Compute it once; `copy` gives each case its own."""
    folder.mkdir(parents=True)
    (folder / f"{MODULE}.py").write_text(CALLBACK)
    scene = Scene(folder)
    scene.write_job(JOB)
    _train(scene.run)
    shutil.copytree(scene.run, folder / "fresh")  # with the path and without landscapes
    run(read_job(scene.job))
    for name, data in USERS.items():
        (folder / name).write_bytes(data)
    return scene


def _train(place: Path) -> None:
    """Four epochs, their weights kept; the same as checkpoints beside the run."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    collector = TrajectoryCollector(place, model, optimizer, unit="epoch", intervals=[[1, 2, 3, 4]])
    inputs, targets = torch.randn(12, 3), torch.randint(0, 2, (12,))
    for epoch in range(1, 5):
        loss = nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        collector.step(loss)
        collector.end_epoch()
        torch.save(model.state_dict(), place.parent / f"ckpt_{20 * epoch}.pt")


def copied(scene: Scene, folder: Path) -> Scene:
    shutil.copytree(scene.folder, folder, symlinks=True)
    return Scene(folder)


def values(place: Path) -> dict[str, dict[str, np.ndarray]]:
    """Every observable of every landscape that can be read."""
    found = {}
    opened = open_run(place)
    for name in ("plane", "path", "line"):
        surface = opened[name]
        found[name] = dict(surface.observables) | {"status": surface.status}
    return found
