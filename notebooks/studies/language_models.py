"""A small GPT after trainings of several lengths, and along the longest: how wide its basin is, what it predicts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np
from torch import Tensor

from landscape.core.grid import Floats
from landscape.problem.terms import Problem
from landscape.recipes.gpt import GPT, NextByte, read_rows
from landscape.recipes.training import Arrays, Settings, fit
from landscape.training.training import Training
from studies.findings import Finding
from studies.networks import OfRun
from studies.quantities import OverSeeds, in_how_many
from studies.settings import choose, folder_of
from studies.shown import Table
from studies.widths import Rises, Width

STUDY = "language-models"
HELP = "Python's help"
SHAPE = {"width": 64, "depth": 2}  # of the recipe's GPT, which has 128 and 4
BATCH = 16
WARM_UP = 40  # steps
RISES = (0.1, 0.5)  # nats per predicted token, of which the width is told
LAST = 50  # steps whose mean training loss is told
ITS_END, ON_THE_WAY = "the end of a training", "on the way of the longest"

# By its steps: how many passes a training makes over how many of the first sequences.
LENGTHS = {100: (1, 1600), 300: (2, 2400), 1000: (5, 3200), 3000: (15, 3200)}
FEW_LENGTHS = {2: (1, 32), 4: (2, 32)}

Basins = Mapping[str, Mapping[int, Sequence[Rises]]]  # by kind, then by steps, one of each seed


def lengths() -> dict[int, tuple[int, int]]:
    """The passes and the sequences of each training, by its steps."""
    return choose(LENGTHS, FEW_LENGTHS)


def kept() -> list[int]:
    """The steps at which the weights of the longest training are looked at, before its end."""
    return choose([100, 300, 1000, 2000], [2])


def seeds() -> tuple[int, ...]:
    """Those of the trainings."""
    return choose((0, 1, 2), (0,))


@cache
def rows() -> tuple[Tensor, Tensor]:
    """Sequences of bytes to train on, and those held out, which the landscapes are of."""
    training, held_out = read_rows()
    most = max(count for _, count in lengths().values())
    return training[:most], held_out[: choose(None, 16)]


def data() -> str:
    """What the models are trained on, in a line."""
    training, held_out = rows()
    of_length = f"sequences of {training.shape[1]} bytes"
    return f"data: {HELP}, {len(training):,} {of_length} to train on, {len(held_out):,} held out"


@dataclass(frozen=True)
class Trained(OfRun):
    """A GPT trained for so many steps: its run, and its loss over the held-out text in nats per byte."""

    steps: int
    seed: int
    run: Path
    loss: float

    def __repr__(self) -> str:
        return f"{self.steps:,} steps, seed {self.seed}: held-out loss {self.loss:.3f} nats per byte"

    @property
    def snapshots(self) -> list[int]:
        """The steps that its landscapes are around."""
        return [*kept(), self.steps] if self.steps == max(lengths()) else [self.steps]

    def training_loss(self, step: int) -> float:
        """The mean of the last steps up to this one."""
        return float(self.training_losses[1][max(0, step - LAST) : step].mean())


def build() -> GPT:
    """The network of this part, with initial weights."""
    return GPT(**SHAPE)


def problem() -> Problem:
    """The cross entropy of the next byte over the held-out text, as in the recipe."""
    return Problem.causal_lm(build().eval(), rows()[1])


def train(steps: int) -> list[Trained]:
    """The networks of one length, one for each seed; the learning rate falls to zero at the end of each.

    What an earlier call has trained is read, not trained again.
    """
    epochs, count = lengths()[steps]
    networks = []
    for seed in seeds():
        place = folder_of(STUDY, f"gpt-{steps}-seed-{seed}")
        snapshots = [0, *(step for step in kept() if step < steps), steps]
        settings = Settings(
            epochs=epochs, batch_size=BATCH, learning_rate=2e-3, optimizer="adam", seed=seed,
            warmup_epochs=min(0.5, WARM_UP * BATCH / count), network={"label": "GPT", **SHAPE},
            collect={"unit": "step", "intervals": [snapshots if len(snapshots) > 2 else [0, 1, steps]]},
        )  # fmt: skip
        training, held_out = rows()
        taught, tested = (Arrays((part[:, :-1], part[:, 1:])) for part in (training[:count], held_out))
        trained = fit(Training(place, seed=seed), partial(NextByte, **SHAPE), taught, tested, settings)
        networks.append(Trained(steps, seed, place, trained.loss))
    return networks


def basins(networks: Mapping[int, Sequence[Trained]], rises: Mapping[Path, Mapping[int, Rises]]) -> Basins:
    """The rises around the ends of all trainings, and around the snapshots of the longest."""
    longest = networks[max(networks)]
    ends = {steps: [rises[each.run][steps] for each in of_one] for steps, of_one in networks.items()}
    way = {step: [rises[each.run][step] for each in longest] for step in longest[0].snapshots}
    return {ITS_END: ends, ON_THE_WAY: way}


def widths_of(of_seeds: Sequence[Rises], rise: float) -> list[Width]:
    """The width of each seed's basin."""
    return [each.width(rise) for each in of_seeds]


def over_seeds(widths: Sequence[Width]) -> OverSeeds:
    """Their values."""
    return OverSeeds(tuple(width.value for width in widths))


def in_words(widths: Sequence[Width]) -> str:
    """Over the seeds: the mean with its standard deviation; or each, where not every line rises as far."""
    if any(math.isinf(width.value) for width in widths):
        each = [f"> {width.farthest:g}" if math.isinf(width.value) else f"{width.value:.3g}" for width in widths]
        return each[0] if len(set(each)) == 1 else ", ".join(each)
    return str(over_seeds(widths))


def _mean(values: Sequence[float]) -> str:
    mean = math.fsum(values) / len(values)
    return "" if math.isnan(mean) else f"± {mean:.2g}"


def table(networks: Mapping[int, Sequence[Trained]], found: Basins) -> Table:
    """A line for each length of training: losses over the seeds, widths with their intervals."""
    heads = [
        "steps", "weights", f"training loss, {LAST} steps", "held-out loss",
        *(word for rise in RISES for word in (f"width to {rise}", "over directions", "over samples")),
    ]  # fmt: skip
    rows_of_table = []
    for kind, by_steps in found.items():
        for step, of_seeds in by_steps.items():
            trained = networks[step if kind == ITS_END else max(networks)]
            row: list[object] = [
                f"{step:,}", kind, OverSeeds(tuple(each.training_loss(step) for each in trained)),
                OverSeeds(tuple(each.mean_loss for each in of_seeds)),
            ]  # fmt: skip
            for rise in RISES:
                widths = widths_of(of_seeds, rise)
                row += [in_words(widths), _mean([w.half for w in widths]), _mean([w.stderr for w in widths])]
            rows_of_table.append(row)
    return Table.of(heads, *rows_of_table)


def curves(found: Basins, kind: str) -> dict[str, list[tuple[Floats, Floats]]]:
    """The mean rises over the distance, by the steps of training."""
    return {f"{step:,} steps": [each.curve() for each in of_seeds] for step, of_seeds in found[kind].items()}


def measured(found: Basins, rise: float, *, over_loss: bool = False) -> dict[str, tuple[Floats, Floats, Floats]]:
    """For a picture: steps or losses, the mean widths over the seeds, and half of their 95 % intervals over directions.

    Widths beyond what was looked at are left out.
    """
    pictured = {}
    for kind, by_steps in found.items():
        points = []
        for step, of_seeds in by_steps.items():
            widths = widths_of(of_seeds, rise)
            loss = float(np.mean([each.mean_loss for each in of_seeds]))
            means = [float(np.mean([getattr(w, name) for w in widths])) for name in ("value", "half")]
            points.append((loss if over_loss else step, *means))
        x, y, half = np.array([point for point in points if math.isfinite(point[1])] or [(math.nan,) * 3], float).T
        pictured[kind] = (x, y, half)
    return pictured


def findings(found: Basins) -> list[Finding]:
    """What is to be said of two claims on training."""
    ends, way = found[ITS_END], found[ON_THE_WAY]
    first, last = min(ends), max(ends)
    wide, narrow = (widths_of(ends[step], RISES[0]) for step in (first, last))
    middle = max(set(ends) & set(kept()))
    ended, passed = (widths_of(kind[middle], RISES[0]) for kind in (ends, way))
    losses = [OverSeeds(tuple(each.mean_loss for each in kind[middle])) for kind in (ends, way)]
    model, seed_count = "GPT of 0.12 million weights", len(seeds())
    return [
        Finding(
            f"{model}: the longer it is trained, the wider its basin",
            f"width to {RISES[0]}: {in_words(wide)} after {first:,} steps, {in_words(narrow)} after {last:,}",
            seed_count, HELP, in_how_many(over_seeds(wide), over_seeds(narrow)),
        ),
        Finding(
            f"{model}: as the learning rate falls to zero, training settles in a wider basin",
            f"width to {RISES[0]}: {in_words(ended)} after a training of {middle:,} steps, whose loss is {losses[0]}, "
            f"{in_words(passed)} at step {middle:,} of the longest, whose loss is {losses[1]}",
            seed_count, HELP, in_how_many(over_seeds(passed), over_seeds(ended)),
        ),
    ]  # fmt: skip
