"""Batch size 64 and 256: the line between both minima, planes around them, the line from the initial weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from torch import nn

from landscape.core.grid import Floats
from landscape.recipes.cnn import CNN
from landscape.recipes.lenet import SIDE, LeNet5
from landscape.surface.surface import Surface
from studies.data import StudyData, handwriting
from studies.findings import Finding, Findings
from studies.networks import Network, Recipe, train
from studies.quantities import OverSeeds, in_how_many
from studies.settings import SMALL, choose, size
from studies.shown import Table

STUDY = "batch-size"
BATCHES = (64, 256)
DISTANCE = 0.5  # along lines, in the length of each filter
NEARBY = 0.1  # nats

Pairs = Sequence[tuple[Network, Network]]


def seeds() -> tuple[int, ...]:
    """Those of the trainings."""
    return choose((0, 1, 2), (0,))


def data() -> StudyData:
    """The images of this study."""
    return handwriting(choose(4000, 64))


def pairs(images: StudyData) -> list[tuple[Network, Network]]:
    """For each seed a network trained in batches of 64, and one in batches of 256 from the same initial weights."""
    epochs = choose(4, 2)
    build: Callable[[], nn.Module] = LeNet5 if size() == SMALL else partial(CNN, side=SIDE)
    sets = []
    for batch in BATCHES:
        options = {"epochs": epochs, "batch_size": min(batch, choose(batch, batch // 4)), "learning_rate": 0.02}
        sets.append(train(STUDY, Recipe(f"batch {batch}", build, images, options, [[0, 1, epochs]]), seeds()))
    return list(zip(*sets, strict=True))


def rise(network: Network) -> float:
    """The mean rise along random filter-normalised lines."""
    return network.mean_rise(DISTANCE, lines=choose(4, 1), num_samples=choose(256, 32))


def numbers(trained: Pairs) -> dict[str, dict[str, OverSeeds]]:
    """Of both batch sizes, by the names of the numbers."""
    columns = zip(*trained, strict=True)
    return {
        networks[0].recipe.label: {
            "held-out accuracy, %": OverSeeds(tuple(100 * network.accuracy for network in networks)),
            "held-out loss": OverSeeds(tuple(network.loss for network in networks)),
            f"mean rise at {DISTANCE}": OverSeeds(tuple(rise(network) for network in networks)),
            "length of the weights": OverSeeds(tuple(_length(network) for network in networks)),
        }
        for networks in columns
    }


def _length(network: Network) -> float:
    weights = network.opened.trajectory.snapshots[-1].load()
    return math.sqrt(math.fsum(float(tensor.double().square().sum()) for tensor in weights.values()))


def table(found: Mapping[str, Mapping[str, OverSeeds]]) -> Table:
    """A line for each number, a column for each batch size."""
    first = next(iter(found.values()))
    return Table.of(("", *found), *((name, *(each[name] for each in found.values())) for name in first))


def outwards(line: Surface) -> tuple[float, float]:
    """How far beyond each end of a line the loss stays within 0.1 of that end's, in the length of the line.

    At most to where the line ends. Between the ends it is no valley of either where one lies lower than the other.
    """
    before, behind = line.alpha <= 0, line.alpha >= 1
    return _reach(-line.alpha[before][::-1], line.loss[before][::-1]), _reach(line.alpha[behind] - 1, line.loss[behind])


def _reach(distance: Floats, loss: Floats) -> float:
    higher = np.flatnonzero(loss > loss[0] + NEARBY)
    return float(distance[higher[0] - 1] if len(higher) else distance[-1])


def findings(trained: Pairs, lines: Sequence[Surface], images: StudyData) -> Findings:
    """What is to be said of three claims."""
    found = numbers(trained)
    small, large = (found[f"batch {batch}"] for batch in BATCHES)
    rises = f"mean rise at {DISTANCE}"
    ends = [outwards(line) for line in lines]
    narrow, broad = (OverSeeds(tuple(pair[k] for pair in ends)) for k in (1, 0))
    barriers = OverSeeds(tuple(line_barrier(line) for line in lines))
    rest: dict[str, Any] = {"seeds": len(trained), "data": images.name}
    return Findings.of(
        Finding(
            "on the line between both, the minimum of batch 64 is the broader one",
            f"beyond its end the loss stays within {NEARBY} for {broad} of the way at 64 (0.5: to the end of the "
            f"line), for {narrow} at 256",
            shows=in_how_many(narrow, broad), **rest,
        ),
        Finding(
            "with filter-normalised directions the minimum of batch 64 is the flatter one",
            f"mean rise at {DISTANCE}: {small[rises]} at 64, {large[rises]} at 256",
            shows=in_how_many(large[rises], small[rises], larger=False), **rest,
        ),
        Finding(
            "batch 64 generalises better after as many epochs",
            f"held-out accuracy {small['held-out accuracy, %']} % at 64, {large['held-out accuracy, %']} % at 256",
            shows=in_how_many(large["held-out accuracy, %"], small["held-out accuracy, %"]), **rest,
        ),
        Finding(
            "a barrier lies between both, though they began at the same weights",
            f"{barriers} nats",
            shows=in_how_many(OverSeeds((0.1,) * len(trained)), barriers), **rest,
        ),
    )  # fmt: skip


def line_barrier(line: Surface) -> float:
    """How far the line rises above the straight line between the losses of its ends."""
    inside = (line.alpha >= 0) & (line.alpha <= 1)
    at = line.alpha[inside]
    loss = line.loss[inside]
    return float((loss - ((1 - at) * loss[0] + at * loss[-1])).max())
