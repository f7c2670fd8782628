"""THOR beside SGD with momentum and Adam from the same start: loss over steps and seconds, paths, surroundings."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from landscape.core.folders import open_folder
from landscape.core.grid import Floats
from landscape.recipes.lenet import LeNet5
from landscape.recipes.settings import Settings, make_optimizer
from landscape.recipes.training import build_seeded
from landscape.surface.surface import Surface
from studies.data import StudyData, handwriting
from studies.findings import Finding, Findings
from studies.networks import Network, Recipe, train
from studies.quantities import OverSeeds, in_how_many
from studies.settings import choose, folder_of
from studies.shown import Table

Options = Mapping[str, Any]

STUDY = "thor-sgd-adam"
# Of each optimiser what it always has, and its trials, as many as the others'.
TRIALS: dict[str, tuple[Options, Sequence[Options]]] = {
    "SGD": ({"optimizer": "momentum"}, [{"learning_rate": rate} for rate in (0.02, 0.03, 0.05, 0.07, 0.1, 0.15)]),
    "Adam": ({"optimizer": "adam"}, [{"learning_rate": rate} for rate in (0.002, 0.003, 0.004, 0.006, 0.009, 0.012)]),
    "THOR": (
        {"optimizer": "thor", "frequency": 20, "average": 0.9},  # as the recipe of LeNet-5 has them
        [
            {"learning_rate": rate, "damping": damping}
            for damping, rates in ((0.1, (0.01, 0.03, 0.06)), (0.3, (0.03, 0.06, 0.1)))
            for rate in rates
        ],
    ),
}
TRIAL_SEED = 100  # none of those that are compared
DISTANCE = 0.5  # along lines, in the length of each filter
DIVERGED = 100.0  # a loss that no network has that has learned anything, or nothing
WIDTH = 20  # steps of a mean, by which losses of single batches are smoothed


@dataclass(frozen=True)
class Chosen:
    """The networks of one optimiser with its best settings, and the held-out loss that each trial ended with."""

    label: str
    settings: str
    trials: Mapping[str, float]
    networks: Sequence[Network]


def seeds() -> tuple[int, ...]:
    """Those of the trainings."""
    return choose((0, 1, 2), (0, 1))


def data() -> StudyData:
    """The images of this study."""
    return handwriting(choose(4000, 128))


def trained(images: StudyData) -> list[Chosen]:
    """The networks of each optimiser, with the settings of the trial that had the lowest held-out loss."""
    return [_choose_settings(label, images) for label in TRIALS]


def _choose_settings(label: str, images: StudyData) -> Chosen:
    always, trials = TRIALS[label]
    epochs = choose(5, 2)
    recipes = {
        _in_words(trial): Recipe(
            f"{label}, {_in_words(trial)}", LeNet5, images,
            {"epochs": epochs, "batch_size": 64, "schedule": "cosine", **always, **trial}, [range(epochs + 1)],
        )
        for trial in choose(trials, trials[:1])
    }  # fmt: skip
    with _without_warnings():  # of a trial that diverges; the table says so
        losses = {words: train(STUDY, recipe, [TRIAL_SEED])[0].loss for words, recipe in recipes.items()}
    best = min(losses, key=lambda words: losses[words] if np.isfinite(losses[words]) else np.inf)
    networks = [
        replace(network, recipe=replace(network.recipe, label=label))
        for network in train(STUDY, recipes[best], seeds())
    ]
    return Chosen(label, best, losses, networks)


def _in_words(options: Options) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in options.items())


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
        (each.label, words, f"{loss:.4f}" if loss < DIVERGED else "diverged", "taken" * (words == each.settings))
        for each in chosen
        for words, loss in each.trials.items()
    ]
    return Table.of(("optimiser", "settings", "held-out loss", ""), *rows)


def paces(chosen: Sequence[Chosen], images: StudyData) -> dict[str, OverSeeds]:
    """Processor seconds of a step of each optimiser, measured several times in turn; kept once they are measured."""
    place = folder_of(STUDY, images.slug, "processor-seconds.json")
    if not place.exists():
        times = choose(5, 1)
        recipes = {each.label: each.networks[0].recipe for each in chosen}
        rounds = [{label: _processor_seconds(recipe) for label, recipe in recipes.items()} for _ in range(times)]
        measured = {label: [one[label] for one in rounds] for label in recipes}
        open_folder(place.parent).write(place.name, json.dumps(measured).encode())  # whole, or not at all
    return {label: OverSeeds(tuple(values)) for label, values in json.loads(place.read_text(encoding="utf-8")).items()}


def _processor_seconds(recipe: Recipe) -> float:
    """Of a step: the mean over so many that THOR refreshes its inverses three times, after as many others."""
    settings, count = Settings(**recipe.options), choose(60, 2)
    inputs, labels = (values[: settings.batch_size] for values in recipe.data.inputs())
    model = build_seeded(recipe.build, 0).train()
    optimizer = make_optimizer(model, settings, count)
    for _ in range(2):
        began = time.process_time()
        for _ in range(count):
            loss = nn.functional.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
    return (time.process_time() - began) / count


def over_seconds(network: Network, pace: OverSeeds) -> tuple[Floats, Floats]:
    """The processor seconds of training up to each step, and its training loss."""
    steps, losses = network.training_losses
    return steps * pace.mean, losses


def steps_to(network: Network, loss: float) -> float:
    """The step at which the mean training loss of the last steps first is this low; NaN where it never is."""
    steps, losses = network.training_losses
    means = np.convolve(losses, np.full(WIDTH, 1 / WIDTH), "valid") if len(losses) >= WIDTH else losses[-1:]
    reached = np.flatnonzero(means <= loss)
    return float(steps[reached[0] + len(steps) - len(means)]) if len(reached) else float("nan")


def target(chosen: Sequence[Chosen]) -> float:
    """The training loss that every network of this study reaches: the highest of their ends, and a tenth more."""
    ends = [float(network.training_losses[1][-WIDTH:].mean()) for each in chosen for network in each.networks]
    return 1.1 * max(ends)


def table(chosen: Sequence[Chosen], pace: Mapping[str, OverSeeds]) -> Table:
    """A line for each optimiser."""
    aim = target(chosen)
    rows = []
    for each in chosen:
        networks = each.networks
        rows.append((
            each.label,
            _over(100 * network.accuracy for network in networks),
            _over(network.loss for network in networks),
            _over(float(network.training_losses[1][-WIDTH:].mean()) for network in networks),
            _over(steps_to(network, aim) for network in networks),
            _over(1000 * value for value in pace[each.label].values),
            _over(rise(network) for network in networks),
        ))  # fmt: skip
    heads = (
        "optimiser", "held-out accuracy, %", "held-out loss", f"training loss, last {WIDTH} steps",
        f"steps to a training loss of {aim:.3g}", "processor ms per step", f"rise at {DISTANCE}",
    )  # fmt: skip
    return Table.of(heads, *rows)


def _over(values: Any) -> OverSeeds:
    return OverSeeds(tuple(float(value) for value in values))


def paths_table(plane: Surface) -> Table:
    """Where the paths begin and end, how far off the plane, and the losses there and at the projections."""
    assert plane.path is not None
    rows = []
    for part in plane.path.parts():
        for name, at in (("start", 0), ("end", -1)):
            words = (part.distance[at], part.loss[at], part.projected_loss[at])
            rows.append((f"{part.label}, {name}", *(f"{value:.3g}" for value in words)))
    return Table.of(("", "off the plane by", "loss", "loss drawn on the plane"), *rows)


def rise(network: Network) -> float:
    """The mean rise along random filter-normalised lines."""
    return network.mean_rise(DISTANCE, lines=choose(8, 1), num_samples=choose(512, 32))


def findings(chosen: Sequence[Chosen], pace: Mapping[str, OverSeeds], images: StudyData) -> Findings:
    """What is to be said of THOR beside the others."""
    aim = target(chosen)
    sgd, adam, thor = chosen
    steps = {each.label: _over(steps_to(network, aim) for network in each.networks) for each in chosen}
    seconds = {label: _over(pace[label].mean * value for value in each.values) for label, each in steps.items()}
    rises = {each.label: _over(rise(network) for network in each.networks) for each in chosen}
    losses = {each.label: _over(network.loss for network in each.networks) for each in chosen}
    count, name = len(thor.networks), images.name
    milliseconds = {label: _over(1000 * value for value in each.values) for label, each in pace.items()}
    found = []
    for other in (sgd.label, adam.label):
        found += [
            Finding(
                f"THOR takes fewer steps than {other} to the same training loss",
                f"{steps['THOR']} against {steps[other]} to {aim:.3g}",
                count, name, in_how_many(steps[other], steps["THOR"], larger=False),
            ),
            Finding(
                f"THOR takes less processor time than {other} to that training loss",
                f"{seconds['THOR']} s against {seconds[other]} s; {milliseconds['THOR']} ms a step against "
                f"{milliseconds[other]} ms",
                count, name, in_how_many(seconds[other], seconds["THOR"], larger=False),
            ),
            Finding(
                f"THOR ends with a lower held-out loss than {other}",
                f"{losses['THOR']} against {losses[other]}",
                count, name, in_how_many(losses[other], losses["THOR"], larger=False),
            ),
            Finding(
                f"THOR ends in flatter surroundings than {other}",
                f"rise at {DISTANCE}: {rises['THOR']} against {rises[other]}",
                count, name, in_how_many(rises[other], rises["THOR"], larger=False),
            ),
        ]  # fmt: skip
    return Findings.of(*found)
