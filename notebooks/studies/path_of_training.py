"""The path of training: how much of it a plane shows, early and late, beside what a random walk would show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from landscape.core.grid import Floats
from landscape.job.directions.tensors import random_walk_variance
from landscape.recipes.lenet import LeNet5
from landscape.recipes.resnet import ResNet
from landscape.surface.surface import Surface
from studies.data import StudyData, handwriting, photographs
from studies.findings import Finding, Findings
from studies.networks import Network, Recipe, train
from studies.quantities import OverSeeds, in_how_many
from studies.settings import choose
from studies.shown import Table

STUDY = "path-of-training"
LENET, RESNET = "LeNet-5", "ResNet-8"
NEARLY = 30.0  # degrees
WHOLE = choose("epochs-0-10", "epochs-0-3")  # of the LeNet


def seeds() -> tuple[int, ...]:
    """Those of the trainings."""
    return choose((0, 1, 2), (0,))


def digits() -> StudyData:
    """The images of the LeNet."""
    return handwriting(choose(None, 128))


def photos() -> StudyData:
    """The images of the ResNet."""
    return photographs(choose(2000, 64), halved=True)


def lenets(images: StudyData) -> list[Network]:
    """LeNet-5 over the tutorial's ten epochs, a network for each seed."""
    options = {"epochs": choose(10, 3), "batch_size": choose(32, 64), "learning_rate": 0.01, "schedule": "constant"}
    return train(STUDY, Recipe(LENET, LeNet5, images, options, [*intervals(LENET).values()]), seeds())


def resnets(images: StudyData) -> list[Network]:
    """A ResNet whose learning rate falls to zero along half a cosine, a network for each seed."""
    options = {"epochs": choose(24, 3), "batch_size": choose(128, 64), "learning_rate": 0.1, "weight_decay": 5e-4}
    return train(STUDY, Recipe(RESNET, partial(ResNet, 8), images, options, [*intervals(RESNET).values()]), seeds())


def intervals(label: str) -> Mapping[str, Sequence[int]]:
    """The epochs of each landscape, by its name."""
    if label == RESNET:
        return choose(
            {"epochs-1-12": range(1, 13), "epochs-13-24": range(13, 25)},
            {"epochs-0-2": range(3), "epochs-0-3": range(4)},
        )
    return choose(
        {"epochs-1-3": range(1, 4), "epochs-7-10": range(7, 11), WHOLE: range(11)},
        {"epochs-1-3": range(1, 4), WHOLE: range(4)},
    )


def explained(plane: Surface) -> float:
    """The share of the variance of the snapshots that both axes of a plane explain together."""
    return sum(axis.record.explained_variance or 0.0 for axis in plane.axes)


def of_random_walk(epochs: Sequence[int]) -> float:
    """The share that two principal components explain of a random walk over the same epochs."""
    return float(random_walk_variance(epochs)[:2].sum())


def angle_to_descent(plane: Surface) -> float:
    """The mean angle in degrees between the path's steps on a plane and the steepest descent of its loss there.

    Near 0 the path crosses the contours at right angles; at 90 it runs along them. The slope at the middle of each step
    is that of the bilinear surface through the points around it.
    """
    assert plane.path is not None
    x, y = (plane.path.coordinates[name] for name in ("alpha", "beta"))
    angles = []
    for (a, b), (u, v) in zip(_middles(x, y), zip(np.diff(x), np.diff(y), strict=True), strict=True):
        slope = _slope(plane, a, b)
        cosine = -(slope[0] * u + slope[1] * v) / (np.hypot(*slope) * np.hypot(u, v))
        angles.append(float(np.degrees(np.arccos(np.clip(cosine, -1, 1)))))
    return float(np.mean(angles))


def _middles(x: Floats, y: Floats) -> Iterator[tuple[float, float]]:
    return zip((x[1:] + x[:-1]) / 2, (y[1:] + y[:-1]) / 2, strict=True)


def _slope(plane: Surface, a: float, b: float) -> tuple[float, float]:
    """The derivatives of the bilinear surface at (a, b)."""
    i = int(np.clip(np.searchsorted(plane.alpha, a) - 1, 0, len(plane.alpha) - 2))
    j = int(np.clip(np.searchsorted(plane.beta, b) - 1, 0, len(plane.beta) - 2))
    wide, high = plane.alpha[i + 1] - plane.alpha[i], plane.beta[j + 1] - plane.beta[j]
    right, up = (a - plane.alpha[i]) / wide, (b - plane.beta[j]) / high
    (z00, z10), (z01, z11) = plane.loss[j : j + 2, i : i + 2]
    along = ((1 - up) * (z10 - z00) + up * (z11 - z01)) / wide
    return float(along), float(((1 - right) * (z01 - z00) + right * (z11 - z10)) / high)


def angle_table(planes_of: Mapping[str, Sequence[Mapping[str, Surface]]]) -> Table:
    """The angle between path and steepest descent in each interval, and by how much the loss falls on the way."""
    rows = []
    for label, over_seeds in planes_of.items():
        for name in intervals(label):
            angles = OverSeeds(tuple(angle_to_descent(planes[name]) for planes in over_seeds))
            falls = OverSeeds(tuple(_fall(planes[name]) for planes in over_seeds))
            rows.append((label, name, f"{angles}°", falls, len(angles.values)))
    return Table.of(("network", "interval", "path to steepest descent", "loss falls by", "seeds"), *rows)


def _fall(plane: Surface) -> float:
    assert plane.path is not None
    return float(plane.path.loss[0] - plane.path.loss[-1])


def variance_table(planes_of: Mapping[str, Sequence[Mapping[str, Surface]]]) -> Table:
    """How much each interval's plane explains, over the seeds, beside a random walk over the same epochs."""
    rows = []
    for label, over_seeds in planes_of.items():
        for name, epochs in intervals(label).items():
            shares = OverSeeds(tuple(100 * explained(planes[name]) for planes in over_seeds))
            walk = 100 * of_random_walk(epochs)
            rows.append((label, name, len(epochs), f"{shares} %", f"{walk:.1f} %", len(shares.values)))
    return Table.of(("network", "interval", "snapshots", "two axes explain", "of a random walk", "seeds"), *rows)


def findings(planes_of: Mapping[str, Sequence[Mapping[str, Surface]]], images: Mapping[str, StudyData]) -> Findings:
    """What the planes say of three claims."""
    found = []
    for label, over_seeds in planes_of.items():
        first, last, *_ = intervals(label)
        whole = max(intervals(label), key=lambda name: len(intervals(label)[name]))
        angles = [OverSeeds(tuple(angle_to_descent(planes[name]) for planes in over_seeds)) for name in (first, last)]
        shares = OverSeeds(tuple(100 * explained(planes[whole]) for planes in over_seeds))
        walk = 100 * of_random_walk(intervals(label)[whole])
        count, name = len(over_seeds), images[label].name
        found += [
            Finding(
                f"{label}: early, the path crosses the contour lines nearly at right angles",
                f"{angles[0]}° to the steepest descent, {first}",
                count, name, in_how_many(OverSeeds((NEARLY,) * count), angles[0], larger=False),
            ),
            Finding(
                f"{label}: late, it runs along them",
                f"{angles[1]}° to the steepest descent, {last}",
                count, name, in_how_many(OverSeeds((90 - NEARLY,) * count), angles[1]),
            ),
            Finding(
                f"{label}: a plane of two components shows more of the path than of a random walk",
                f"{shares} % of the variance, {whole}; a random walk {walk:.1f} %",
                count, name, in_how_many(OverSeeds((walk,) * count), shares),
            ),
        ]  # fmt: skip
    return Findings.of(*found)
