"""The options that all recipes share: one list of them, which becomes part of the signature of each `train`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypedDict, TypeVar, cast

from torch import nn

from landscape.core.errors import JobError, nearest, quoted
from landscape.core.files import Place
from landscape.core.validation import Unit, check_whole
from landscape.recipes.data import REMEMBERED, DataPlace
from landscape.recipes.settings import Damping, OptionTable, Settings, epochs_in_words, listed_intervals, of_all
from landscape.recipes.training import Arrays, Images, Report, Trained, Transform, as_stored, fit, training_of
from landscape.training.schedules import RateSchedule
from landscape.training.thor.optimizer import SCHEDULES, Schedule
from landscape.training.training import Training


class LoopOptions(TypedDict, total=False):
    """Those of `Settings`, of `TrajectoryCollector` and of `Training`, as recipes take them."""

    seed: int | None
    batch_size: int
    learning_rate: float
    optimizer: Literal["sgd", "momentum", "adagrad", "adam", "thor"]
    momentum: float
    weight_decay: float
    schedule: Literal["constant", "cosine", "steps", "polynomial"] | RateSchedule
    final: float
    milestones: Sequence[float]
    factor: float
    power: float
    warmup_epochs: float
    base_batch: int | None
    damping: Damping
    frequency: int
    balance: bool
    average: float
    first_order: float
    refresh: Literal["frequency", "thor", "thor_stop", "thor_nt"]
    growth: float
    clip: float | None
    label_smoothing: float
    precision: Literal["float32", "bfloat16", "float16"]
    loss_scale: float
    checkpoint_steps: int | None
    log_every: int
    watch: str | Sequence[str] | Mapping[str, float] | None
    watch_every: int
    intervals: Sequence[Sequence[int]] | None
    unit: Unit
    landscape_size: int
    num_samples: int
    device: str
    overwrite: bool
    report: Report | None


OTHERS: dict[str, Any] = {  # defaults of what is none of the settings
    "seed": None,
    "intervals": None,
    "unit": "epoch",
    "landscape_size": 40,
    "num_samples": 2048,
    "device": "cpu",
    "overwrite": False,
    "report": None,
}
F = TypeVar("F", bound=Callable[..., Any])


def takes_loop_options(
    *,
    of_optimizers: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    told: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
    only_with: Mapping[str, Sequence[str]] = MappingProxyType({}),
    **defaults: Any,
) -> Callable[[F], F]:
    """Give a function with `**options: Unpack[LoopOptions]` all of them, each with its default, and refuse others.

    An option that does nothing with the optimiser or the schedule is refused, too. The function has its `OptionTable`
    as the attribute `options`.

    Args:
        of_optimizers, told, only_with: see `OptionTable`.
        defaults: those of this recipe, where they differ from those of `Settings`.
    """
    known = {each.name: each.default for each in fields(Settings) if each.default is not MISSING} | OTHERS | defaults
    known = {name: known[name] for name in LoopOptions.__annotations__}
    table = OptionTable(known, of_optimizers, told, only_with)

    def decorate(function: F) -> F:
        own = [each for each in inspect.signature(function).parameters.values() if each.kind is not each.VAR_KEYWORD]
        shared = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=table.default_of(name)) for name in known
        ]

        @functools.wraps(function)
        def called(*given: Any, **options: Any) -> Any:
            signature.bind(*given, **options)
            table.check(options)
            return function(*given, **table.completed(options))

        signature = inspect.Signature([*own, *shared])
        called.__signature__ = signature  # type: ignore[attr-defined]
        called.options = table  # type: ignore[attr-defined]
        return cast(F, called)

    return decorate


def settings_of(
    training: Training,
    epochs: int,
    options: LoopOptions,
    default_intervals: Sequence[Sequence[int]],
    **network: Any,
) -> Settings:
    """The settings of a training, checked.

    Args:
        options: all of them, as `takes_loop_options` completes them.
        default_intervals: the epochs of each landscape where `intervals` is None; the last ones end with the training.
        network: what the model and the data are made with.

    Raises:
        JobError: one of them is not usable.
    """
    given: dict[str, Any] = dict(options)
    intervals = given["intervals"]
    wanted = listed_intervals(epochs, default_intervals) if intervals is None else [list(each) for each in intervals]
    collect = {"unit": given["unit"], "intervals": wanted}
    collect |= {name: given[name] for name in ("landscape_size", "num_samples")}
    own = {each.name for each in fields(Settings)}
    settings = {name: value for name, value in given.items() if name in own} | {"seed": training.seed}
    settings["milestones"] = tuple(given["milestones"])
    default = intervals is None
    return Settings(epochs=epochs, **settings, collect=collect, network=network, default_intervals=default)


# ----------------------------------------------------------------------------------------------------
# The training that recipes of images in memory share: from the place of the data to a trained network.


@dataclass(frozen=True)
class ImageRecipe:
    """What stays the same in every training of a recipe.

    Args:
        place: where its images are named.
        problem: the callback of the landscapes of its runs.
        intervals: the epochs of each landscape, where `intervals` is not given.
        threads: see `fit`.
    """

    place: DataPlace
    problem: str
    intervals: Sequence[Sequence[int]]
    threads: int | None = 1

    @property
    def told(self) -> dict[str, dict[str, str]]:
        """What the options of the recipe are by default, where that follows from something else (`OptionTable`)."""
        return {"data": of_all(self.place.order), "intervals": of_all(epochs_in_words(self.intervals))}

    def train(
        self,
        run: Place | Training,
        data: str | Path | None,
        epochs: int,
        options: LoopOptions,
        build: Callable[[], nn.Module],
        read: Callable[[str, Any], Images],
        *,
        split: str,
        transform: Transform = as_stored,
        **network: Any,
    ) -> Trained:
        """Train `build()` on the images of `split`; accuracy is taken on those of "test".

        Args:
            read: the images of a split, from the path of the data.
            transform: see `Arrays`.
            network: the options that the network and the images are made with.

        Raises:
            NotFoundError: the data are missing.
            JobError: no data are named, an option is not usable, or the run holds another trajectory.
        """
        training = training_of(run, seed=options["seed"], device=options["device"], overwrite=options["overwrite"])
        path = self.place.for_training(data, training.run, overwrite=options["overwrite"])
        settings = settings_of(training, epochs, options, self.intervals, **network, split=split)
        trained, held_out = (
            Arrays(read(path, part), transform, training.seed, training.device) for part in (split, "test")
        )
        return fit(
            training, build, trained, held_out, settings, threads=self.threads, problem=self.problem,
            report=options["report"], told={REMEMBERED: path},
        )  # fmt: skip


# ----------------------------------------------------------------------------------------------------
# By what ResNet-50 is trained: the published rates of THOR and of SGD, in place of options that are left open.

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
        raise JobError(f"published: unknown {quoted(published)}; {nearest(published, SCHEDULES)}")
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
