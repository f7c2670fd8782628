"""How a recipe is trained: the settings of the loop, checked, and the optimisers and schedules that they name."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from landscape.core.errors import JobError, nearest, quoted
from landscape.core.validation import check_whole, is_number, ranges
from landscape.model.layer_rules import asked_rules
from landscape.training import schedules
from landscape.training.schedules import RateSchedule
from landscape.training.thor.optimizer import THOR

# ----------------------------------------------------------------------------------------------------
# Which options do nothing but with one optimiser or one schedule: given with another they are refused.

OF_OPTIMIZER: Mapping[str, Sequence[str]] = {
    "momentum": ("momentum", "thor"),
    **dict.fromkeys(
        ("damping", "frequency", "balance", "average", "first_order", "refresh", "growth", "clip"), ("thor",)
    ),
}
OF_SCHEDULE: Mapping[str, Sequence[str]] = {
    "final": ("cosine", "polynomial"), "milestones": ("steps",), "factor": ("steps",), "power": ("polynomial",),
}  # fmt: skip


def refuse_unused(given: Iterable[str], field: str, chosen: Any, takers: Mapping[str, Sequence[str]]) -> None:
    """Refuse options that do nothing with the optimiser or the schedule that was chosen.

    Args:
        given: the names of the options that were given.
        field: "optimizer" or "schedule".
        chosen: the name of the optimiser or schedule; of a schedule also a function, or None for a published one.
        takers: the optimisers or schedules that take each option; one that is not named here goes with all of them.

    Raises:
        JobError: names the first such option, and what takes it.
    """
    unused = next((name for name in given if name in takers and chosen not in takers[name]), None)
    if unused is not None:
        other = "the published one" if chosen is None else "a function" if callable(chosen) else quoted(chosen)
        names = alternatives(takers[unused])
        raise JobError(
            f"{unused}: must go with {field} {names}, not with {other}, where it does nothing; leave it out, or "
            f"choose {field} {names}"
        )


def alternatives(names: Sequence[str]) -> str:
    """Names as a choice.

    Example:
        >>> alternatives(["momentum", "thor"])
        'momentum or thor'
    """
    return " or ".join(names)


# ----------------------------------------------------------------------------------------------------
# Training in half precision: the forward pass under autocast, the loss scaled up so that small gradients are kept.

PRECISIONS = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}
log = logging.getLogger("landscape")


def outputs_of(network: nn.Module, inputs: Tensor, precision: str) -> Tensor:
    """The network's outputs, with products in this precision; weights, gradients and losses stay as they are."""
    dtype = PRECISIONS[precision]
    if dtype is None:
        return network(inputs)  # type: ignore[no-any-return]
    with torch.autocast(inputs.device.type, dtype):
        return network(inputs).float()  # type: ignore[no-any-return]


class ScaledSteps:
    """Backward passes of a loss times `scale`, and steps by its gradients over `scale`.

    Float16 holds no gradient below 6·10⁻⁸; times 128 it does. A step of which a gradient is not finite is left out, as
    THOR does by itself. Ranks agree, since gradients are averaged before.

    Args:
        scale: the same throughout; 1 leaves loss, gradients and steps alone.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, scale: float) -> None:
        self._optimizer, self._scale, self._skipped = optimizer, scale, 0

    def step(self, loss: Tensor) -> None:
        """Take the step of this loss."""
        self._optimizer.zero_grad()
        (loss if self._scale == 1 else loss * self._scale).backward()  # type: ignore[no-untyped-call]
        if self._scale == 1 or isinstance(self._optimizer, THOR) or self._unscaled():
            self._optimizer.step()

    def _unscaled(self) -> bool:
        """Divide the gradients by the scale; whether they are finite."""
        groups = self._optimizer.param_groups
        gradients = [each.grad for group in groups for each in group["params"] if each.grad is not None]
        finite = bool(nn.utils.get_total_norm(gradients).isfinite())
        if finite:
            for gradient in gradients:
                gradient.div_(self._scale)
        else:
            self._skipped += 1
            if self._skipped == 1 or self._skipped % 100 == 0:
                log.warning(
                    "%d steps left out, as a gradient was not finite; a smaller loss_scale may help", self._skipped
                )
        return finite


# ----------------------------------------------------------------------------------------------------

LARGEST_RATE = 1000.0  # that anybody is known to use
Damping = float | Callable[[float], float]


@dataclass(frozen=True)
class Settings:
    """How to train, checked. Each setting changes the result, so a run that was begun with others is refused.

    Args:
        epochs: after which the training ends.
        batch_size: samples of a step, over all ranks.
        learning_rate: of the first step, before `base_batch` and `warmup_epochs`.
        momentum: of "momentum" and "thor".
        weight_decay: L2 regularisation, added to the gradients; that of "thor" is added after preconditioning.
        final: the share of the learning rate that "cosine" and "polynomial" end with.
        seed: initial weights, order of samples, augmentation and dropout follow from it.
        optimizer: "sgd", "momentum", "adagrad", "adam" or "thor".
        schedule: "constant", "cosine", "steps", "polynomial", or a function of the epochs done that gives the rate.
        milestones, factor: of "steps": the epochs after each of which the rate is multiplied by the factor.
        power: of "polynomial".
        warmup_epochs: in which the rate rises along a line, from the rate for `base_batch`, else from 0.
        base_batch: the batch size that `learning_rate` is for; it is scaled with the batch size. None: it stays.
        damping, frequency, balance, average, first_order, refresh, growth, clip: of "thor" (`landscape.optim.THOR`);
            the damping may be a function of the epochs done, and the interval between refreshes grows up to an epoch.
        label_smoothing: of the cross-entropy in training; the held-out loss is without.
        precision: of the forward pass in training: "float32", "bfloat16" or "float16".
        loss_scale: by which the loss is multiplied, and its gradients divided again; for "float16".
        checkpoint_steps: steps between checkpoints within an epoch; None: one after each epoch.
        log_every: steps whose mean accuracy the history gets at the last of them.
        watch, watch_every: rules that are asked about the training, see `TrajectoryCollector`.
        collect: the options of `TrajectoryCollector`.
        network: what model and data were made with.
        default_intervals: whether nobody gave the intervals in `collect`: a training that goes on then keeps to those
            that it was begun with, as by a version with other defaults.

    Raises:
        JobError: one of them is impossible; names it.
    """

    epochs: int
    batch_size: int
    learning_rate: float
    momentum: float = 0.9
    weight_decay: float = 0.0
    final: float = 0.0
    seed: int = 0
    optimizer: str = "momentum"
    schedule: str | RateSchedule = "cosine"
    milestones: Sequence[float] = ()
    factor: float = 0.1
    power: float = 2.0
    warmup_epochs: float = 0
    base_batch: int | None = None
    damping: Damping = 0.03
    frequency: int = 100
    balance: bool = False
    average: float = 0.0
    first_order: float = 1.0
    refresh: str = "frequency"
    growth: float = 1.0
    clip: float | None = None
    label_smoothing: float = 0.0
    precision: str = "float32"
    loss_scale: float = 1.0
    checkpoint_steps: int | None = None
    log_every: int = 100
    watch: Any = None
    watch_every: int = 100
    collect: Mapping[str, Any] = field(default_factory=dict)
    network: Mapping[str, Any] = field(default_factory=dict)
    default_intervals: bool = False

    def __post_init__(self) -> None:
        _check(self)

    def plain(self) -> dict[str, Any]:
        """The settings as a checkpoint holds them: a function by what it is called."""
        values = asdict(self)
        values.pop("default_intervals")  # it decides nothing beside `collect`
        return {name: _named(value) if callable(value) else value for name, value in values.items()}

    def with_default_steps(self, steps_per_epoch: int) -> Settings:
        """These settings with intervals that nobody gave, which count epochs, in steps where steps are counted."""
        if not self.default_intervals or self.collect["unit"] == "epoch":
            return self
        intervals = [[number * steps_per_epoch for number in interval] for interval in self.collect["intervals"]]
        return replace(self, collect={**self.collect, "intervals": intervals})

    def with_intervals_of(self, begun: Mapping[str, Any]) -> Settings:
        """These settings with the intervals of a training that was begun with others by default."""
        intervals = (begun.get("collect") or {}).get("intervals")
        if not self.default_intervals or intervals is None:
            return self
        return replace(self, collect={**self.collect, "intervals": intervals})

    @classmethod
    def default_of(cls, name: str) -> Any:
        """The value of a setting where none is given; None of one that must be given."""
        return next((each.default for each in fields(cls) if each.name == name and each.default is not MISSING), None)


# They change no weight, and may be changed when a training goes on.
UNDECIDING = ("checkpoint_steps", "log_every", "watch", "watch_every")


def _named(function: Callable[..., Any]) -> str:
    """A text that is the same in every process: the repr, unless that holds an address."""
    text = repr(function)
    return str(getattr(function, "__qualname__", type(function).__name__)) if " at 0x" in text else text


def _check(settings: Settings) -> None:
    given = [name for name in ("base_batch", "checkpoint_steps") if getattr(settings, name) is not None]
    for name in ("epochs", "batch_size", "frequency", "log_every", "watch_every", *given):
        check_whole(name, getattr(settings, name), 1)
    asked_rules("watch", settings.watch)
    for name in ("momentum", "weight_decay", "warmup_epochs", "final", "factor", "power", "label_smoothing"):
        value = getattr(settings, name)
        if not is_number(value) or value < 0:
            raise JobError(f"{name}: must be a number from 0 on, not {quoted(value)}")
    for name in ("learning_rate", "loss_scale"):
        value = getattr(settings, name)
        if not is_number(value) or value <= 0:
            raise JobError(f"{name}: must be a positive number, not {quoted(value)}")
    for name, value, known in (
        ("optimizer", settings.optimizer, OPTIMIZERS), ("schedule", settings.schedule, SCHEDULES),
        ("precision", settings.precision, PRECISIONS),
    ):  # fmt: skip
        if not (callable(value) or (isinstance(value, str) and value in known)):
            raise JobError(f"{name}: unknown {quoted(value)}; {nearest(str(value), known)}")
    changed = (name for name in OF_OPTIMIZER if getattr(settings, name) != Settings.default_of(name))
    refuse_unused(changed, "optimizer", settings.optimizer, OF_OPTIMIZER)
    if settings.schedule == "steps" and not settings.milestones:
        raise JobError("milestones: must list the epochs after which the learning rate falls; schedule steps needs it")
    if not all(is_number(each) for each in settings.milestones):
        raise JobError(f"milestones: must be finite numbers of epochs, not {quoted(settings.milestones)}")
    if list(settings.milestones) != sorted(settings.milestones):
        raise JobError(f"milestones: must ascend, not {quoted(settings.milestones)}; sort them")
    if settings.label_smoothing > 1:
        raise JobError(f"label_smoothing: must be at most 1, not {quoted(settings.label_smoothing)}")


def listed_intervals(epochs: int, intervals: Sequence[Sequence[int]]) -> list[list[int]]:
    """The default `intervals` for so many epochs: the last one is moved so that it ends with the training.

    Where it would then reach into another one, a single interval over all epochs.

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
    """Say what is allowed, and hardly meant: a rate that throws weights away, snapshots that training ends before."""
    if settings.learning_rate > LARGEST_RATE:
        log.warning("learning_rate: %g is above %g, which hardly lowers a loss", settings.learning_rate, LARGEST_RATE)
    unit = settings.collect.get("unit", "step")
    last = settings.epochs * (1 if unit == "epoch" else steps_per_epoch)
    beyond = sorted({number for each in settings.collect.get("intervals", ()) for number in each if number > last})
    if beyond:
        log.warning("intervals: training ends at %s %d, before %ss %s", unit, last, unit, ranges(beyond))


def _thor(model: nn.Module, settings: Settings, steps_per_epoch: int) -> torch.optim.Optimizer:
    from landscape.training.thor.optimizer import THOR

    of_epochs = settings.damping
    damping = (lambda step: of_epochs(step / steps_per_epoch)) if callable(of_epochs) else of_epochs
    return THOR(
        model, settings.learning_rate, damping=damping, frequency=settings.frequency, balance=settings.balance,
        average=settings.average, first_order=settings.first_order, refresh=settings.refresh, growth=settings.growth,
        longest=max(settings.frequency, steps_per_epoch), clip=settings.clip, momentum=settings.momentum,
        weight_decay=settings.weight_decay, loss_scale=settings.loss_scale,
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


def make_optimizer(model: nn.Module, settings: Settings, steps_per_epoch: int) -> torch.optim.Optimizer:
    """The optimiser that the settings name, of all parameters."""
    return OPTIMIZERS[settings.optimizer](model, settings, steps_per_epoch)


def schedule_of(settings: Settings) -> RateSchedule:
    """The learning rate as a function of the epochs done, with `base_batch` and `warmup_epochs`.

    A function that was handed in gives the rate itself, which `base_batch` does not scale.
    """
    if callable(settings.schedule):
        after = settings.schedule
    else:
        rate = schedules.scaled(settings.learning_rate, settings.batch_size, settings.base_batch)
        after = SCHEDULES[settings.schedule](rate, settings)
    start = 0.0 if settings.base_batch is None else settings.learning_rate
    return schedules.warmed_up(after, settings.warmup_epochs, start) if settings.warmup_epochs else after


# ----------------------------------------------------------------------------------------------------
# The defaults of a recipe's options, which differ by the optimiser.

# What is usual wherever a recipe knows nothing better: PyTorch's own.
USUAL: Mapping[str, Mapping[str, Any]] = {"adagrad": {"learning_rate": 0.01}, "adam": {"learning_rate": 0.001}}


class Words(str):
    """A default in words, where it follows from something else."""


@dataclass(frozen=True)
class OptionTable:
    """The options of a recipe's loop.

    Args:
        base: the default of each.
        of_optimizers: what takes its place with an optimiser.
        told: how defaults that `train` works out are described, by the option's name and the optimiser's.
        only_with: the optimisers that take an option of the recipe's own, where not all do.
    """

    base: Mapping[str, Any]
    of_optimizers: Mapping[str, Mapping[str, Any]]
    told: Mapping[str, Mapping[str, str]]
    only_with: Mapping[str, Sequence[str]]

    def completed(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The options that were given, and the defaults of all others with the optimiser that is among them."""
        return {**self._with(given.get("optimizer", self.base["optimizer"])), **given}

    def check(self, given: Mapping[str, Any]) -> None:
        """Refuse options that do nothing with the optimiser or schedule that is chosen, or is the default.

        Raises:
            JobError: names the option, and what takes it.
        """
        chosen = self.completed(given)
        names = [name for name, value in given.items() if value is not None]
        if isinstance(chosen["optimizer"], str) and chosen["optimizer"] in OPTIMIZERS:  # the settings refuse others
            refuse_unused(names, "optimizer", chosen["optimizer"], self._takers)
        refuse_unused(names, "schedule", chosen["schedule"], OF_SCHEDULE)

    def default_of(self, name: str) -> Any:
        """The default of an option with the recipe's own optimiser, or with the first that takes it."""
        return self._with(self._optimizers_of(name)[0])[name]

    def takers_of(self, name: str) -> tuple[str, Sequence[str]] | None:
        """The field "optimizer" or "schedule", and those of them that take an option; None where all do."""
        if name in self._takers:
            return "optimizer", self._takers[name]
        return ("schedule", OF_SCHEDULE[name]) if name in OF_SCHEDULE else None

    def defaults_of(self, name: str) -> dict[str, Any]:
        """The default of an option with each optimiser that takes it, the recipe's own optimiser first.

        A default that `train` works out is described by `Words`; an option of the recipe's own that has no such
        description has none here.
        """
        told = self.told.get(name, {})
        return {
            optimizer: Words(told[optimizer]) if optimizer in told else self._with(optimizer)[name]
            for optimizer in self._optimizers_of(name)
            if optimizer in told or name in self.base
        }

    def _optimizers_of(self, name: str) -> list[str]:
        """Those that take an option, the recipe's own first."""
        return sorted(self._takers.get(name, OPTIMIZERS), key=lambda optimizer: optimizer != self.base["optimizer"])

    @property
    def _takers(self) -> Mapping[str, Sequence[str]]:
        return {**OF_OPTIMIZER, **self.only_with}

    def _with(self, optimizer: Any) -> dict[str, Any]:
        own = [table.get(optimizer, {}) for table in (USUAL, self.of_optimizers) if isinstance(optimizer, str)]
        return {name: value for table in (self.base, *own) for name, value in table.items()}


def of_all(words: str) -> dict[str, str]:
    """The same description with every optimiser."""
    return dict.fromkeys(OPTIMIZERS, words)


def epochs_in_words(intervals: Sequence[Sequence[int]]) -> str:
    """The epochs of several landscapes, each without gaps, the last of which end with the training.

    Example:
        >>> epochs_in_words([[1, 2, 3], [7, 8]])
        'epochs 1 to 3 and the last 2, or all where there are fewer'
    """
    *first, last = intervals
    spans = " and ".join([*(f"{min(each)} to {max(each)}" for each in first), f"the last {len(last)}"])
    return f"epochs {spans}, or all where there are fewer"
