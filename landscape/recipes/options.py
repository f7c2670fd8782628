"""The options that all recipes share: one list of them, which becomes part of the signature of each `train`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from types import MappingProxyType
from typing import Any, Literal, TypedDict, TypeVar, cast

from landscape.core.validation import Unit
from landscape.recipes.defaults import OptionTable
from landscape.recipes.settings import Damping, Settings, listed_intervals
from landscape.recipes.training import Report
from landscape.training.schedules import RateSchedule
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
