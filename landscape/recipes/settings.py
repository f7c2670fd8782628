"""The settings of a recipe's training, one field for each option, and the optimisers and schedules that they name."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from typing import Any

import torch
from torch import nn

from landscape.core.errors import JobError, nearest, quoted
from landscape.core.validation import check_whole, is_number, ranges
from landscape.model.layer_rules import asked_rules
from landscape.training import schedules
from landscape.training.schedules import RateSchedule
from landscape.training.thor.formulas import FORMULAS
from landscape.training.thor.inverses import RULES
from landscape.training.thor.optimizer import THOR

PRECISIONS = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}
LARGEST_RATE = 1000.0  # larger learning rates are unknown in practice
log = logging.getLogger("landscape")

# ----------------------------------------------------------------------------------------------------
# The rules of an option in addition to its type: its allowed values, and the optimisers or schedules that use it.


def _at_least_1(name: str, value: Any) -> None:
    check_whole(name, value, 1)


def _at_least_0(name: str, value: Any) -> None:
    if not is_number(value) or value < 0:
        raise JobError(f"{name}: must be a number from 0 on, not {quoted(value)}")


def _positive(name: str, value: Any) -> None:
    if not is_number(value) or value <= 0:
        raise JobError(f"{name}: must be a positive number, not {quoted(value)}")


def _at_most_1(name: str, value: Any) -> None:
    if value > 1:
        raise JobError(f"{name}: must be at most 1, not {quoted(value)}")


def _ascending(name: str, value: Any) -> None:
    if not all(is_number(number) for number in value):
        raise JobError(f"{name}: must be finite numbers of epochs, not {quoted(value)}")
    if list(value) != sorted(value):
        raise JobError(f"{name}: must ascend, not {quoted(value)}; sort them")


@dataclass(frozen=True)
class OneOf:
    """The names that an option may have, and whether it may be a function instead."""

    names: tuple[str, ...]
    or_function: bool = False

    def __call__(self, name: str, value: Any) -> None:
        """Refuse any other value."""
        if not ((self.or_function and callable(value)) or (isinstance(value, str) and value in self.names)):
            raise JobError(f"{name}: unknown {quoted(value)}; {nearest(str(value), self.names)}")


@dataclass(frozen=True)
class OnlyWith:
    """The only optimisers or schedules with which an option has an effect.

    Args:
        field: "optimizer" or "schedule".
    """

    field: str
    names: tuple[str, ...]

    def check(self, name: str, chosen: Any) -> None:
        """Refuse the option `name` together with another choice; None means a published schedule."""
        if chosen not in self.names:
            other = "the published one" if chosen is None else "a function" if callable(chosen) else quoted(chosen)
            takers = alternatives(self.names)
            raise JobError(
                f"{name}: must go with {self.field} {takers}, not with {other}, where it does nothing; leave it out, "
                f"or choose {self.field} {takers}"
            )


def alternatives(names: Sequence[str]) -> str:
    """Names as a choice.

    Example:
        >>> alternatives(["momentum", "thor"])
        'momentum or thor'
    """
    return " or ".join(names)


def rules(*known: Any) -> dict[str, Any]:
    """The metadata of a setting: functions that refuse values, and `OnlyWith`."""
    return {"known": known}


WITH_THOR = OnlyWith("optimizer", ("thor",))
WITH_STEPS = OnlyWith("schedule", ("steps",))


def _thor(model: nn.Module, settings: Settings, steps_per_epoch: int) -> torch.optim.Optimizer:
    of_epochs = settings.damping
    damping = (lambda step: of_epochs(step / steps_per_epoch)) if callable(of_epochs) else of_epochs
    return THOR(
        model, settings.learning_rate, damping=damping, frequency=settings.frequency, balance=settings.balance,
        average=settings.average, first_order=settings.first_order, refresh=settings.refresh, growth=settings.growth,
        longest=max(settings.frequency, steps_per_epoch), clip=settings.clip, momentum=settings.momentum,
        weight_decay=settings.weight_decay, loss_scale=settings.loss_scale, factors=settings.factors,
    )  # fmt: skip


OPTIMIZERS: dict[str, Callable[[nn.Module, Settings, int], torch.optim.Optimizer]] = {
    "sgd": lambda model, chosen, _: torch.optim.SGD(
        model.parameters(), chosen.learning_rate, weight_decay=chosen.weight_decay
    ),
    "momentum": lambda model, chosen, _: torch.optim.SGD(
        model.parameters(), chosen.learning_rate, momentum=chosen.momentum, weight_decay=chosen.weight_decay
    ),
    "adagrad": lambda model, chosen, _: torch.optim.Adagrad(
        model.parameters(), chosen.learning_rate, weight_decay=chosen.weight_decay
    ),
    "adam": lambda model, chosen, _: torch.optim.Adam(
        model.parameters(), chosen.learning_rate, weight_decay=chosen.weight_decay
    ),
    "thor": _thor,
}
SCHEDULES: dict[str, Callable[[float, Settings], RateSchedule]] = {
    "constant": lambda rate, chosen: schedules.constant(rate),
    "cosine": lambda rate, chosen: schedules.cosine(rate, chosen.epochs, chosen.final),
    "steps": lambda rate, chosen: schedules.steps(rate, chosen.milestones, chosen.factor),
    "polynomial": lambda rate, chosen: schedules.polynomial(rate, chosen.epochs, chosen.power, rate * chosen.final),
}


@dataclass(frozen=True)
class Settings:
    """How to train, checked. Each setting changes the result, so a run that was begun with others is refused.

    Args:
        epochs: after which the training ends.
        batch_size: samples of a step, over all ranks.
        learning_rate: of the first step, before `base_batch` and `warmup_epochs`.
        optimizer: "sgd", "momentum", "adagrad", "adam" or "thor".
        momentum: of "momentum" and "thor".
        weight_decay: L2 regularisation, added to the gradients; that of "thor" is added after preconditioning.
        schedule: "constant", "cosine", "steps", "polynomial", or a function of the epochs done that gives the rate.
        final: the share of the learning rate that "cosine" and "polynomial" end with.
        milestones, factor: of "steps": the epochs after each of which the rate is multiplied by the factor.
        power: of "polynomial".
        warmup_epochs: in which the rate rises along a line, from the rate for `base_batch`, else from 0.
        base_batch: the batch size that `learning_rate` is for; it is scaled with the batch size. None: it stays.
        damping, frequency, balance, average, first_order, refresh, growth, clip, factors: of "thor"
            (`landscape.optim.THOR`); the damping may be a function of the epochs done, and the interval between
            refreshes grows up to an epoch.
        label_smoothing: of the cross-entropy in training; the held-out loss is without.
        precision: of the forward pass in training: "float32", "bfloat16" or "float16".
        loss_scale: by which the loss is multiplied, and its gradients divided again; for "float16".
        checkpoint_steps: steps between checkpoints within an epoch; None: one after each epoch.
        log_every: steps whose mean accuracy the history gets at the last of them.
        watch, watch_every: rules that are asked about the training, see `TrajectoryCollector`.
        seed: initial weights, order of samples, augmentation and dropout follow from it.
        collect: the options of `TrajectoryCollector`.
        network: the options of the model and the data.
        default_intervals: whether the intervals in `collect` are defaults: a training that resumes then keeps the
            intervals of its start, which may be those of another version.

    Raises:
        JobError: one of them is impossible; names it.
    """

    epochs: int = field(metadata=rules(_at_least_1))
    batch_size: int = field(metadata=rules(_at_least_1))
    learning_rate: float = field(metadata=rules(_positive))
    optimizer: str = field(default="momentum", metadata=rules(OneOf(tuple(OPTIMIZERS))))
    momentum: float = field(default=0.9, metadata=rules(_at_least_0, OnlyWith("optimizer", ("momentum", "thor"))))
    weight_decay: float = field(default=0.0, metadata=rules(_at_least_0))
    schedule: str | RateSchedule = field(default="cosine", metadata=rules(OneOf(tuple(SCHEDULES), or_function=True)))
    final: float = field(default=0.0, metadata=rules(_at_least_0, OnlyWith("schedule", ("cosine", "polynomial"))))
    milestones: Sequence[float] = field(default=(), metadata=rules(_ascending, WITH_STEPS))
    factor: float = field(default=0.1, metadata=rules(_at_least_0, WITH_STEPS))
    power: float = field(default=2.0, metadata=rules(_at_least_0, OnlyWith("schedule", ("polynomial",))))
    warmup_epochs: float = field(default=0, metadata=rules(_at_least_0))
    base_batch: int | None = field(default=None, metadata=rules(_at_least_1))
    damping: float | Callable[[float], float] = field(default=0.03, metadata=rules(WITH_THOR))
    frequency: int = field(default=100, metadata=rules(_at_least_1, WITH_THOR))
    balance: bool = field(default=False, metadata=rules(WITH_THOR))
    average: float = field(default=0.0, metadata=rules(WITH_THOR))
    first_order: float = field(default=1.0, metadata=rules(WITH_THOR))
    refresh: str = field(default="frequency", metadata=rules(OneOf(tuple(RULES)), WITH_THOR))
    growth: float = field(default=1.0, metadata=rules(WITH_THOR))
    clip: float | None = field(default=None, metadata=rules(WITH_THOR))
    factors: str = field(default="exact", metadata=rules(OneOf(tuple(FORMULAS)), WITH_THOR))
    label_smoothing: float = field(default=0.0, metadata=rules(_at_least_0, _at_most_1))
    precision: str = field(default="float32", metadata=rules(OneOf(tuple(PRECISIONS))))
    loss_scale: float = field(default=1.0, metadata=rules(_positive))
    checkpoint_steps: int | None = field(default=None, metadata=rules(_at_least_1))
    log_every: int = field(default=100, metadata=rules(_at_least_1))
    watch: str | Sequence[str] | Mapping[str, float] | None = field(default=None, metadata=rules(asked_rules))
    watch_every: int = field(default=100, metadata=rules(_at_least_1))
    seed: int = 0
    collect: Mapping[str, Any] = field(default_factory=dict)
    network: Mapping[str, Any] = field(default_factory=dict)
    default_intervals: bool = False

    def __post_init__(self) -> None:
        for setting in fields(self):
            value = getattr(self, setting.name)
            for rule in setting.metadata.get("known", ()) if value is not None or setting.default is not None else ():
                if not isinstance(rule, OnlyWith):
                    rule(setting.name, value)
                elif rule.field == "optimizer" and value != setting.default:
                    rule.check(setting.name, self.optimizer)
        if self.schedule == "steps" and not self.milestones:
            raise JobError(
                "milestones: must list the epochs after which the learning rate falls; schedule steps needs it"
            )

    def plain(self) -> dict[str, Any]:
        """The settings as a checkpoint holds them, with the name of a function in its place."""
        values = asdict(self)
        values.pop("default_intervals")  # `collect` has the intervals themselves
        return {name: _named(value) if callable(value) else value for name, value in values.items()}

    def with_default_steps(self, steps_per_epoch: int) -> Settings:
        """These settings, with default intervals, which count epochs, converted to steps if snapshots count steps."""
        if not self.default_intervals or self.collect["unit"] == "epoch":
            return self
        intervals = [[number * steps_per_epoch for number in interval] for interval in self.collect["intervals"]]
        return replace(self, collect={**self.collect, "intervals": intervals})

    def with_intervals_of(self, begun: Mapping[str, Any]) -> Settings:
        """These settings, with the intervals of an earlier start if these ones are defaults."""
        intervals = (begun.get("collect") or {}).get("intervals")
        if not self.default_intervals or intervals is None:
            return self
        return replace(self, collect={**self.collect, "intervals": intervals})

    @classmethod
    def default_of(cls, name: str) -> Any:
        """The default of a setting; None for one without a default."""
        return next(
            (field.default for field in fields(cls) if field.name == name and field.default is not MISSING), None
        )


# They change no weight, and may be changed when a training resumes.
UNDECIDING = ("checkpoint_steps", "log_every", "watch", "watch_every")


def known_of_settings() -> dict[str, tuple[Any, ...]]:
    """The rules of each setting in addition to its type: functions that refuse values, and `OnlyWith`."""
    return {field.name: field.metadata.get("known", ()) for field in fields(Settings)}


def _named(function: Callable[..., Any]) -> str:
    """A text that is the same in every process: the repr, unless that holds an address."""
    text = repr(function)
    return str(getattr(function, "__qualname__", type(function).__name__)) if " at 0x" in text else text


def listed_intervals(epochs: int, intervals: Sequence[Sequence[int]]) -> list[list[int]]:
    """The default `intervals` for this number of epochs: the last one is moved so that it ends with the training.

    If it would then overlap with another one, the result is a single interval over all epochs.

    Example:
        >>> listed_intervals(12, [[0, 1, 2, 3], [7, 8, 9, 10]]), listed_intervals(4, [[0, 1, 2, 3], [7, 8, 9, 10]])
        ([[0, 1, 2, 3], [9, 10, 11, 12]], [[0, 1, 2, 3, 4]])

    Raises:
        JobError: fewer than 2 epochs, which make no trajectory.
    """
    if epochs < 2:
        raise JobError(f"epochs: must be at least 2 for a trajectory landscape, not {epochs}; or give intervals")
    *first, last = intervals
    moved = [number + epochs - max(last) for number in last]
    if min(moved) <= max((number for interval in first for number in interval), default=-1):
        return [list(range(epochs + 1))]
    return [*(list(interval) for interval in first), moved]


def warn_of(settings: Settings, steps_per_epoch: int) -> None:
    """Warn of settings that are allowed but probably a mistake: too high a rate, snapshots after the last epoch."""
    if settings.learning_rate > LARGEST_RATE:
        log.warning("learning_rate: %g is above %g, which hardly lowers a loss", settings.learning_rate, LARGEST_RATE)
    unit = settings.collect.get("unit", "step")
    last = settings.epochs * (1 if unit == "epoch" else steps_per_epoch)
    beyond = sorted(
        {number for interval in settings.collect.get("intervals", ()) for number in interval if number > last}
    )
    if beyond:
        log.warning("intervals: training ends at %s %d, before %ss %s", unit, last, unit, ranges(beyond))


def make_optimizer(model: nn.Module, settings: Settings, steps_per_epoch: int) -> torch.optim.Optimizer:
    """The optimiser of the settings, for all parameters."""
    return OPTIMIZERS[settings.optimizer](model, settings, steps_per_epoch)


def schedule_of(settings: Settings) -> RateSchedule:
    """The learning rate as a function of the epochs done, with `base_batch` and `warmup_epochs`.

    A schedule that is a function gives the rate itself, which `base_batch` does not scale.
    """
    if callable(settings.schedule):
        after = settings.schedule
    else:
        rate = schedules.scaled(settings.learning_rate, settings.batch_size, settings.base_batch)
        after = SCHEDULES[settings.schedule](rate, settings)
    start = 0.0 if settings.base_batch is None else settings.learning_rate
    return schedules.warmed_up(after, settings.warmup_epochs, start) if settings.warmup_epochs else after
