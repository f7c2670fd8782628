"""Options that all recipes share: the fields of `Settings` and `RecipeOptions`, as the signature of each `train`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_type_hints

from torch import nn

from landscape.core.files import Place
from landscape.core.validation import Unit
from landscape.recipes.data import REMEMBERED, DataPlace
from landscape.recipes.settings import OPTIMIZERS, OneOf, OnlyWith, Settings, known_of_settings, listed_intervals
from landscape.recipes.training import Arrays, Images, Report, Trained, Transform, as_stored, fit, training_of
from landscape.training.training import Training


@dataclass(frozen=True)
class RecipeOptions:
    """The options of recipes in addition to `Settings`: those of `TrajectoryCollector` and of `Training`.

    Args:
        seed: that of the training; None for 0.
        intervals: lists of epochs or steps; every list becomes one landscape of the trajectory.
        unit: what the intervals count.
        landscape_size: points per axis.
        num_samples: how many samples the losses of landscapes are computed on.
        device: "cpu", "cuda" or "auto".
        overwrite: begin anew, whatever the run holds.
        report: called after every epoch with its number and metrics, on rank 0.
    """

    seed: int | None = None
    intervals: Sequence[Sequence[int]] | None = None
    unit: Unit = "epoch"
    landscape_size: int = 40
    num_samples: int = 2048
    device: str = "cpu"
    overwrite: bool = False
    report: Report | None = None


NOT_SHARED = ("epochs", "seed", "collect", "network", "default_intervals")  # of `Settings`: a recipe determines them
F = TypeVar("F", bound=Callable[..., Any])


@functools.cache
def shared_types() -> dict[str, Any]:
    """The type of each option that recipes share; for a choice between names, these names."""
    hints = {name: hint for name, hint in get_type_hints(Settings).items() if name not in NOT_SHARED}
    for name, hint in hints.items():
        for rule in known_of_settings()[name]:
            if isinstance(rule, OneOf):
                others = [kind for kind in get_args(hint) if kind is not str]
                hints[name] = Union[(Literal[rule.names], *others)]
    return hints | get_type_hints(RecipeOptions)


# Defaults for recipes that set none: PyTorch's own.
USUAL: Mapping[str, Mapping[str, Any]] = {"adagrad": {"learning_rate": 0.01}, "adam": {"learning_rate": 0.001}}


class Words(str):
    """The description of a default that follows from other options."""


@dataclass(frozen=True)
class OptionTable:
    """The options of a recipe's loop.

    Args:
        base: the default of each.
        of_optimizers: the defaults that differ with an optimiser.
        in_words: descriptions of the defaults that `train` determines, by the option's name and the optimiser's.
        only_with: the optimisers that take an option of the recipe's own, if not all do.
    """

    base: Mapping[str, Any]
    of_optimizers: Mapping[str, Mapping[str, Any]]
    in_words: Mapping[str, Mapping[str, str]]
    only_with: Mapping[str, Sequence[str]]

    def completed(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The given options, and for all others the defaults with the chosen optimiser."""
        return {**self._with(given.get("optimizer", self.base["optimizer"])), **given}

    def check(self, given: Mapping[str, Any]) -> None:
        """Refuse options without an effect with the optimiser or schedule, whether chosen or default."""
        chosen = self.completed(given)
        known = {"optimizer": chosen["optimizer"] in list(OPTIMIZERS), "schedule": True}  # the settings refuse others
        for name, value in given.items():
            taken = self.takers_of(name)
            if value is not None and taken is not None and known[taken.field]:
                taken.check(name, chosen[taken.field])

    def default_of(self, name: str) -> Any:
        """The default of an option with the recipe's default optimiser, or with the first that takes it."""
        return self._with(self._optimizers_of(name)[0])[name]

    def takers_of(self, name: str) -> OnlyWith | None:
        """The optimisers or schedules that take an option; None if all do."""
        if name in self.only_with:
            return OnlyWith("optimizer", tuple(self.only_with[name]))
        return next((rule for rule in known_of_settings().get(name, ()) if isinstance(rule, OnlyWith)), None)

    def defaults_of(self, name: str) -> dict[str, Any]:
        """The default of an option with each optimiser that takes it, the recipe's default optimiser first.

        A default that `train` determines is described by `Words`; an option of the recipe's own without such a
        description has none here.
        """
        words = self.in_words.get(name, {})
        return {
            optimizer: Words(words[optimizer]) if optimizer in words else self._with(optimizer)[name]
            for optimizer in self._optimizers_of(name)
            if optimizer in words or name in self.base
        }

    def _optimizers_of(self, name: str) -> list[str]:
        """The optimisers that take an option, the recipe's default first."""
        taken = self.takers_of(name)
        names = OPTIMIZERS if taken is None or taken.field == "schedule" else taken.names
        return sorted(names, key=lambda optimizer: optimizer != self.base["optimizer"])

    def _with(self, optimizer: Any) -> dict[str, Any]:
        own = [table.get(optimizer, {}) for table in (USUAL, self.of_optimizers) if isinstance(optimizer, str)]
        return {name: value for table in (self.base, *own) for name, value in table.items()}


def for_every_optimizer(words: str) -> dict[str, str]:
    """The same description with every optimiser."""
    return dict.fromkeys(OPTIMIZERS, words)


def epochs_in_words(intervals: Sequence[Sequence[int]]) -> str:
    """The epochs of several landscapes in words; each has no gaps, and the last one ends with the training.

    Example:
        >>> epochs_in_words([[1, 2, 3], [7, 8]])
        'epochs 1 to 3 and the last 2, or all where there are fewer'
    """
    *first, last = intervals
    spans = " and ".join([*(f"{min(interval)} to {max(interval)}" for interval in first), f"the last {len(last)}"])
    return f"epochs {spans}, or all where there are fewer"


def takes_loop_options(
    *,
    of_optimizers: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    in_words: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
    only_with: Mapping[str, Sequence[str]] = MappingProxyType({}),
    **defaults: Any,
) -> Callable[[F], F]:
    """Give a function with `**options` the options that recipes share, with types and defaults, and refuse others.

    An option without an effect with the optimiser or the schedule is refused, too. The function gets its `OptionTable`
    as the attribute `options`.

    Args:
        of_optimizers, in_words, only_with: see `OptionTable`.
        defaults: those of this recipe that differ from those of `Settings`.
    """
    known = {field.name: field.default for kind in (Settings, RecipeOptions) for field in fields(kind)} | defaults
    types = shared_types()
    table = OptionTable({name: known[name] for name in types}, of_optimizers, in_words, only_with)
    assert MISSING not in table.base.values(), "a recipe must have a default for each option without one in `Settings`"

    def decorate(function: F) -> F:
        own = [
            parameter
            for parameter in inspect.signature(function).parameters.values()
            if parameter.kind is not parameter.VAR_KEYWORD
        ]
        shared = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=table.default_of(name)) for name in types
        ]

        @functools.wraps(function)
        def called(*given: Any, **options: Any) -> Any:
            signature.bind(*given, **options)
            table.check(options)
            return function(*given, **table.completed(options))

        signature = inspect.Signature([*own, *shared])
        called.__signature__ = signature  # type: ignore[attr-defined]
        called.__annotations__ = {
            parameter.name: parameter.annotation for parameter in own if parameter.annotation is not parameter.empty
        }
        called.__annotations__ |= types
        called.options = table  # type: ignore[attr-defined]
        return cast(F, called)

    return decorate


def make_settings(
    training: Training,
    epochs: int,
    options: Mapping[str, Any],
    default_intervals: Sequence[Sequence[int]],
    **network: Any,
) -> Settings:
    """The settings of a training, checked.

    Args:
        options: all of them, as `takes_loop_options` completes them.
        default_intervals: the epochs of each landscape if `intervals` is None; the last ones end with the training.
        network: the options of the model and the data.

    Raises:
        JobError: one of them is not usable.
    """
    given: dict[str, Any] = dict(options)
    intervals = given["intervals"]
    wanted = (
        listed_intervals(epochs, default_intervals) if intervals is None else [list(interval) for interval in intervals]
    )
    collect = {"unit": given["unit"], "intervals": wanted}
    collect |= {name: given[name] for name in ("landscape_size", "num_samples")}
    own = {field.name for field in fields(Settings)}
    settings = {name: value for name, value in given.items() if name in own} | {"seed": training.seed}
    settings["milestones"] = tuple(given["milestones"])
    default = intervals is None
    return Settings(epochs=epochs, **settings, collect=collect, network=network, default_intervals=default)


@dataclass(frozen=True)
class ImageRecipe:
    """The part of a recipe that is the same in each of its trainings.

    Args:
        place: finds its images.
        problem: the callback of the landscapes of its runs.
        intervals: the epochs of each landscape if `intervals` is not given.
        threads: see `fit`.
    """

    place: DataPlace
    problem: str
    intervals: Sequence[Sequence[int]]
    threads: int | None = 1

    @property
    def in_words(self) -> dict[str, dict[str, str]]:
        """Descriptions of the defaults that follow from other options (`OptionTable`)."""
        words = {"data": self.place.order, "intervals": epochs_in_words(self.intervals)}
        return {name: for_every_optimizer(text) for name, text in words.items()}

    def train(
        self,
        run: Place | Training,
        data: str | Path | None,
        epochs: int,
        options: Mapping[str, Any],
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
            network: the options of the network and the images.

        Raises:
            NotFoundError: the data are missing.
            JobError: no data are named, an option is not usable, or the run holds another trajectory.
        """
        training = training_of(run, seed=options["seed"], device=options["device"], overwrite=options["overwrite"])
        path = self.place.for_training(data, training.run, overwrite=options["overwrite"])
        settings = make_settings(training, epochs, options, self.intervals, **network, split=split)
        trained, held_out = (
            Arrays(read(path, part), transform, training.seed, training.device) for part in (split, "test")
        )
        return fit(
            training, build, trained, held_out, settings, threads=self.threads, problem=self.problem,
            report=options["report"], recorded={REMEMBERED: path},
        )  # fmt: skip
