"""Networks that a study trains, over seeds: each is a run below `runs/studies`, trained once and read again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from landscape.compute.refine import run as compute_job
from landscape.core.grid import Floats
from landscape.job.job import Job
from landscape.model.snapshots import read_trajectory
from landscape.problem.terms import Problem
from landscape.recipes.training import Arrays, Settings, fit
from landscape.store.results import Run, open_run
from landscape.training.training import Training
from studies.data import StudyData
from studies.quantities import mean_rise
from studies.settings import choose, folder_of

# A small study is done before the fastest engine is found, and before many tiles are synced.
QUICK = {"engine": "eager", "batch_size": 256, "tile": 9}


@dataclass(frozen=True)
class Recipe:
    """How the networks of one kind are trained.

    Attributes:
        label: what pictures and tables call them; the run is named after it.
        build: the network with initial weights.
        options: of `Settings`: epochs, batch_size, learning_rate and others.
        intervals: the epochs at which weights are kept.
    """

    label: str
    build: Callable[[], nn.Module] = field(repr=False)
    data: StudyData = field(repr=False)
    options: Mapping[str, Any]
    intervals: Sequence[Sequence[int]]


class OfRun:
    """What a study reads of the run of a training."""

    run: Path

    @cached_property
    def opened(self) -> Run:
        """The run."""
        return open_run(self.run)

    @property
    def last(self) -> Path:
        """The file of the last weights."""
        return Path(read_trajectory(self.run).snapshots[-1].path).absolute()

    @property
    def training_losses(self) -> tuple[Floats, Floats]:
        """The numbers of the steps, and the training loss of each."""
        lines = [line for line in self.opened.history if line.get("loss") is not None and "step" in line]
        return np.array([line["step"] for line in lines], float), np.array([line["loss"] for line in lines], float)


@dataclass(frozen=True)
class Network(OfRun):
    """A trained network: its recipe, seed and run, its held-out accuracy from 0 to 1, and its held-out loss."""

    recipe: Recipe
    seed: int
    run: Path
    accuracy: float
    loss: float

    def __repr__(self) -> str:
        return f"{self.recipe.label}, seed {self.seed}: held-out accuracy {self.accuracy:.1%}, loss {self.loss:.3f}"

    def problem(self) -> Problem:
        """Cross-entropy and accuracy over the training images, as they are without augmentation."""
        return Problem.supervised(self.recipe.build().eval(), self.recipe.data.inputs(), metrics=["accuracy"])

    def mean_rise(self, distance: float, *, lines: int, num_samples: int) -> float:
        """The mean rise at `distance` along so many random filter-normalised lines, computed unless they are kept."""
        job = Job(
            run=str(self.run), problem=self.problem, num_samples=num_samples, **choose({}, QUICK),
            landscapes=[
                {"name": f"line-{seed}", "origin": "last", "directions": [{"kind": "random", "seed": seed}], "size": 3,
                 "range": [-distance, distance]}
                for seed in range(1, lines + 1)
            ],
        )  # fmt: skip
        computed = compute_job(job, progress=False)  # a cell that asks for a number shows it alone
        return mean_rise([computed[landscape.name] for landscape in job.landscapes], distance)


def train(study: str, recipe: Recipe, seeds: Sequence[int]) -> list[Network]:
    """The networks of a recipe, one for each seed. What an earlier call has trained is read, not trained again."""
    data = recipe.data
    networks = []
    for seed in seeds:
        place = folder_of(study, data.slug, f"{_file_name(recipe.label)}-seed-{seed}")
        settings = Settings(
            **recipe.options,
            seed=seed,
            collect={"unit": "epoch", "intervals": [list(interval) for interval in recipe.intervals]},
            network={"label": recipe.label, "images": len(data.training[1])},
        )
        taught, held_out = (Arrays(images, data.transform, seed) for images in (data.training, data.held_out))
        trained = fit(Training(place, seed=seed), recipe.build, taught, held_out, settings)
        networks.append(Network(recipe, seed, place, trained.accuracy, trained.loss))
    return networks


def _file_name(label: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in label.lower())
