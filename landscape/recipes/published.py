"""By what ResNet-50 is trained: the published rates of THOR and of SGD, in place of options that are left open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from landscape.core.errors import JobError, nearest, shown
from landscape.core.validation import check_whole
from landscape.recipes.options import LoopOptions
from landscape.training.thor.optimizer import SCHEDULES, Schedule

DEFAULT = "gpu-8"  # of THOR's trainings
REFRESHES = 6  # of THOR's factors in an epoch: every 834 steps of 5,004
# Goyal et al. (2017), by which SGD comes to 76.3 %: 0.1 for 256 images, scaled with the batch, warmed up for 5 epochs.
EPOCHS, MILESTONES, WARMUP = 90, (30, 60, 80), 5

# The options with each optimiser. None is left open: it follows from the number of epochs, and of steps in each.
SGD: Mapping[str, Any] = {
    "learning_rate": 0.1, "base_batch": 256, "weight_decay": 1e-4,
    "schedule": "steps", "milestones": None, "warmup_epochs": None,
}  # fmt: skip
THOR: Mapping[str, Any] = {
    "learning_rate": None, "schedule": None, "damping": None, "frequency": None, "weight_decay": 5e-4,
}  # fmt: skip
OF_OPTIMIZERS = {"thor": THOR, "momentum": SGD, "sgd": SGD}
# What is left open, in words.
TOLD_OF_THOR = {
    "epochs": f"{SCHEDULES[DEFAULT].epochs} as published",
    "learning_rate": f"{SCHEDULES[DEFAULT].lr_init} falling as published",
    "schedule": "the published one",
    "damping": f"{SCHEDULES[DEFAULT].damping(0)} falling as published",
    "frequency": "a sixth of an epoch",
}
TOLD_OF_SGD = {
    "milestones": f"after {', '.join(map(str, MILESTONES))} of {EPOCHS} epochs",
    "warmup_epochs": f"{WARMUP} of {EPOCHS} epochs",
}


@dataclass(frozen=True)
class OverEpochs:
    """A published schedule of THOR, stretched or squeezed to another number of epochs."""

    published: Schedule
    epochs: int

    def learning_rate(self, epoch: float) -> float:
        """After some epochs of this training."""
        return self.published.learning_rate(epoch * self.published.epochs / self.epochs)

    def damping(self, epoch: float) -> float:
        """After some epochs of this training."""
        return self.published.damping(epoch * self.published.epochs / self.epochs)


def with_published(epochs: int | None, options: LoopOptions, published: str, steps: int) -> tuple[int, LoopOptions]:
    """The number of epochs, and the options with the published ones in place of those that are left open.

    Args:
        published: which of THOR's trainings.
        steps: in an epoch.

    Raises:
        JobError: nothing is published under this name.
    """
    if published not in SCHEDULES:
        raise JobError(f"published: unknown {shown(published)}; {nearest(published, SCHEDULES)}")
    if epochs is not None:
        check_whole("epochs", epochs, 1)
    known: dict[str, Any]
    if options["optimizer"] == "thor":
        of_thor = SCHEDULES[published]
        epochs = of_thor.epochs if epochs is None else epochs
        rate = options["learning_rate"] or of_thor.lr_init
        over = OverEpochs(replace(of_thor, lr_init=rate), epochs)
        known = {"learning_rate": rate, "schedule": over.learning_rate, "damping": over.damping,
                 "frequency": max(1, steps // REFRESHES)}  # fmt: skip
    else:
        epochs = EPOCHS if epochs is None else epochs
        share = epochs / EPOCHS
        milestones = tuple(share * each for each in MILESTONES) if options["schedule"] == "steps" else ()
        known = {"milestones": milestones, "warmup_epochs": WARMUP * share}
    left_open = {name: value for name, value in known.items() if options[name] is None}  # type: ignore[literal-required]
    return epochs, {**options, **left_open}  # type: ignore[typeddict-item]


def told() -> dict[str, dict[str, str]]:
    """What is left open, in words, by the option's name and the optimiser's."""
    words = {name: {"thor": text} for name, text in TOLD_OF_THOR.items()}
    words |= {name: dict.fromkeys(("momentum", "sgd"), text) for name, text in TOLD_OF_SGD.items()}
    words["epochs"] |= dict.fromkeys(("momentum", "sgd", "adagrad", "adam"), str(EPOCHS))
    return words
