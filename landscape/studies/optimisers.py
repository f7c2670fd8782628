"""THOR beside SGD with momentum and Adam from the same start: loss over steps and seconds, paths, surroundings."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from landscape.recipes.lenet import LeNet5
from landscape.studies.data import StudyData, handwriting
from landscape.studies.findings import Finding, Findings
from landscape.studies.networks import Network, Recipe, train
from landscape.studies.quantities import OverSeeds, in_how_many
from landscape.studies.settings import choose
from landscape.studies.shown import Table
from landscape.surface import Surface

Floats = NDArray[np.float64]

STUDY = "thor-sgd-adam"
# Of each optimiser as many trials; what is tried is the learning rate, the rest is usual.
TRIALS: dict[str, tuple[dict[str, Any], tuple[float, ...]]] = {
    "SGD": ({"optimizer": "momentum"}, (0.03, 0.1, 0.2)),
    "Adam": ({"optimizer": "adam"}, (0.003, 0.006, 0.012)),
    "THOR": ({"optimizer": "thor", "frequency": 20, "damping": 0.1}, (0.01, 0.03, 0.06)),
}
DISTANCE = 0.5  # along lines, in the length of each filter
DIVERGED = 100.0  # a loss that no network has that has learned anything, or nothing
WIDTH = 20  # steps of a mean, by which losses of single batches are smoothed


@dataclass(frozen=True)
class Chosen:
    """The networks of one optimiser at its best learning rate, and what each trial ended with on the first seed."""

    label: str
    rate: float
    trials: Mapping[float, float]
    networks: Sequence[Network]


def seeds() -> tuple[int, ...]:
    """Those of the trainings."""
    return choose((0, 1, 2), (0, 1))


def data() -> StudyData:
    """The images of this study."""
    return handwriting(choose(4000, 128))


def trained(images: StudyData) -> list[Chosen]:
    """The networks of each optimiser. Its rate is that of the trial with the lowest held-out loss on the first seed."""
    return [_choose_rate(label, images) for label in TRIALS]


def _choose_rate(label: str, images: StudyData) -> Chosen:
    options, rates = TRIALS[label]
    first, *_ = seeds()
    epochs = choose(5, 2)
    recipes = {
        rate: Recipe(
            f"{label}, rate {rate:g}", LeNet5, images,
            {"epochs": epochs, "batch_size": 64, "schedule": "cosine", "learning_rate": rate, **options},
            [range(epochs + 1)],
        )
        for rate in choose(rates, rates[1:2])
    }  # fmt: skip
    with _without_warnings():  # of a trial that diverges; the table says so
        losses = {rate: train(STUDY, recipe, [first])[0].loss for rate, recipe in recipes.items()}
    best = min(losses, key=lambda rate: losses[rate] if np.isfinite(losses[rate]) else np.inf)
    networks = [
        replace(network, recipe=replace(network.recipe, label=label))
        for network in train(STUDY, recipes[best], seeds())
    ]
    return Chosen(label, best, losses, networks)


@contextmanager
def _without_warnings() -> Iterator[None]:
    log = logging.getLogger("landscape")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def trials_table(chosen: Sequence[Chosen]) -> Table:
    """What each trial ended with."""
    rows = [
        (
            each.label,
            f"{rate:g}",
            f"{loss:.4f}" if loss < DIVERGED else "diverged",
            "taken" if rate == each.rate else "",
        )
        for each in chosen
        for rate, loss in each.trials.items()
    ]
    return Table.of(("optimiser", "learning rate", "held-out loss, first seed", ""), *rows)


def over_seconds(network: Network) -> tuple[Floats, Floats]:
    """The seconds of training at each recorded step, and the training loss of it."""
    lines = [line for line in network.opened.history if line.get("loss") is not None and "seconds" in line]
    return np.array([line["seconds"] for line in lines]), np.array([line["loss"] for line in lines])


def steps_to(network: Network, loss: float) -> float:
    """The step at which the mean training loss of the last steps first is this low; NaN where it never is."""
    steps, losses = network.training_losses
    means = np.convolve(losses, np.full(WIDTH, 1 / WIDTH), "valid") if len(losses) >= WIDTH else losses[-1:]
    reached = np.flatnonzero(means <= loss)
    return float(steps[reached[0] + len(steps) - len(means)]) if len(reached) else float("nan")


def seconds_per_step(network: Network) -> float:
    """The median over the steps."""
    seconds, _ = over_seconds(network)
    return float(np.median(np.diff(seconds)))


def target(chosen: Sequence[Chosen]) -> float:
    """The training loss that every network of this study reaches: the highest of their ends, and a tenth more."""
    ends = [float(network.training_losses[1][-WIDTH:].mean()) for each in chosen for network in each.networks]
    return 1.1 * max(ends)


def table(chosen: Sequence[Chosen]) -> Table:
    """A line for each optimiser."""
    aim = target(chosen)
    rows = []
    for each in chosen:
        networks = each.networks
        rows.append((
            each.label,
            f"{each.rate:g}",
            _over(100 * network.accuracy for network in networks),
            _over(network.loss for network in networks),
            _over(steps_to(network, aim) for network in networks),
            _over(1000 * seconds_per_step(network) for network in networks),
            _over(rise(network) for network in networks),
        ))  # fmt: skip
    heads = (
        "optimiser", "learning rate", "held-out accuracy, %", "held-out loss", f"steps to a training loss of {aim:.3g}",
        "ms per step", f"rise at {DISTANCE}",
    )  # fmt: skip
    return Table.of(heads, *rows)


def _over(values: Any) -> OverSeeds:
    return OverSeeds(tuple(float(value) for value in values))


def paths(chosen: Sequence[Chosen]) -> Surface:
    """The paths of the first seed's networks on the two principal components of all their snapshots together."""
    networks = [each.networks[0] for each in chosen]
    listed = [{"run": str(network.run.absolute()), "label": network.recipe.label} for network in networks]
    return networks[0].landscapes(
        {"name": "paths", "paths": listed, "size": choose(25, 5)}, num_samples=choose(256, 32)
    )[0]


def plane(network: Network) -> Surface:
    """The plane of two random, filter-normalised directions around a network; the same for all."""
    return network.landscapes({"name": "plane", "size": choose(21, 5), "range": [-1, 1]}, num_samples=choose(256, 32))[
        0
    ]


def rise(network: Network) -> float:
    """The mean rise along random filter-normalised lines."""
    return network.mean_rise(DISTANCE, lines=choose(8, 1), num_samples=choose(512, 32))


def findings(chosen: Sequence[Chosen], images: StudyData) -> Findings:
    """What is to be said of THOR beside the others."""
    aim = target(chosen)
    sgd, adam, thor = chosen
    steps = {each.label: _over(steps_to(network, aim) for network in each.networks) for each in chosen}
    pace = {each.label: _over(1000 * seconds_per_step(network) for network in each.networks) for each in chosen}
    rises = {each.label: _over(rise(network) for network in each.networks) for each in chosen}
    seconds = {label: _over(np.array(steps[label].values) * np.array(pace[label].values) / 1000) for label in steps}
    count, name = len(thor.networks), images.name
    found = [
        Finding(
            f"THOR takes fewer steps than {other.label} to the same training loss",
            f"{steps['THOR']} against {steps[other.label]} to {aim:.3g}",
            count, name, in_how_many(steps[other.label], steps["THOR"], larger=False),
        )
        for other in (sgd, adam)
    ]  # fmt: skip
    losses = {each.label: _over(network.loss for network in each.networks) for each in chosen}
    found += [
        Finding(
            f"THOR ends with a lower held-out loss than {other.label}",
            f"{losses['THOR']} against {losses[other.label]}",
            count, name, in_how_many(losses[other.label], losses["THOR"], larger=False),
        )
        for other in (sgd, adam)
    ]  # fmt: skip
    found += [
        Finding(
            "THOR takes less time than SGD to that training loss",
            f"{seconds['THOR']} s against {seconds['SGD']} s; {pace['THOR']} ms a step against {pace['SGD']} ms",
            count, name, in_how_many(seconds["SGD"], seconds["THOR"], larger=False),
        ),
        Finding(
            "THOR ends in a flatter minimum than SGD",
            f"rise at {DISTANCE}: {rises['THOR']} against {rises['SGD']}",
            count, name, in_how_many(rises["SGD"], rises["THOR"], larger=False),
        ),
    ]  # fmt: skip
    return Findings.of(*found)
