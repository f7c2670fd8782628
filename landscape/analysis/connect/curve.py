"""Training the bend of a curve: stochastic gradient descent on the loss along the curve, as work items."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from landscape.compute.executor import EvaluationContext, EvaluationSetting, Executor, Shared, WorkItem
from landscape.core.errors import Interrupted, JobError, NotRetried
from landscape.core.random_state import fixed_seeds
from landscape.core.validation import WEIGHT
from landscape.evaluation.engines.base import arithmetic
from landscape.evaluation.model_state import private_copy
from landscape.model.parameters import State
from landscape.problem.batches import Batch, Samples, map_tensors
from landscape.problem.sources import seed_of
from landscape.problem.supervised import Combination, Observe
from landscape.problem.user_code import in_words, kept_alive
from landscape.surface.barriers import Curve, curve_shares

CONSTANT, LOWEST, AT_LOWEST = 0.5, 0.01, 0.9  # of the training: Garipov et al. 2018, appendix A.2


@dataclass(frozen=True)
class BendTraining:
    """How a bend is trained: stochastic gradient descent with momentum, seeded.

    Attributes:
        epochs: passes over the samples.
        learning_rate: constant over the first half, then falling linearly to 1 % of itself at 90 %.
        weight_decay: of the weights φ(t) on the curve, ½·weight_decay·‖φ(t)‖²; none of the bend itself.
        seed: of the order of the samples, of t, and of what the model draws.
    """

    epochs: int = 30
    learning_rate: float = 0.02
    momentum: float = 0.9
    weight_decay: float = 0.0
    batch_size: int = 32
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("epochs", 1), ("batch_size", 1), ("seed", 0)):
            if getattr(self, name) < least:
                raise JobError(f"{name}: must be at least {least}, not {getattr(self, name)}")
        for name, value, fits in (
            ("learning_rate", self.learning_rate, self.learning_rate > 0),
            ("momentum", self.momentum, 0 <= self.momentum < 1),
            ("weight_decay", self.weight_decay, self.weight_decay >= 0),
        ):
            if not (fits and math.isfinite(value)):
                rule = {"learning_rate": "above 0", "momentum": "from 0 to below 1"}.get(name, "at least 0")
                raise JobError(f"{name}: must be {rule}, and finite, not {value:g}")

    def rate(self, progress: float) -> float:
        """The learning rate after this share of the training.

        >>> [round(BendTraining(learning_rate=1.0).rate(share), 4) for share in (0.0, 0.5, 0.7, 0.9, 1.0)]
        [1.0, 1.0, 0.505, 0.01, 0.01]
        """
        falling = (progress - CONSTANT) / (AT_LOWEST - CONSTANT)
        return self.learning_rate * (1 - (1 - LOWEST) * min(max(falling, 0.0), 1.0))


@dataclass(frozen=True)
class Reached:
    """The state before a step.

    Attributes:
        bend: θ, as the weights of a network.
        velocity: of the gradient descent, per moving parameter; empty before the first step.
    """

    bend: dict[str, Tensor]
    velocity: dict[str, Tensor] = field(default_factory=dict)

    def is_finite(self) -> bool:
        """Whether all moving numbers are finite."""
        return all(bool(self.bend[name].isfinite().all()) for name in self.velocity)


@dataclass(frozen=True)
class Stepped:
    """The state after a stretch of steps, and the loss at each step."""

    reached: Reached
    losses: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class StepsOfBend(WorkItem[Stepped]):
    """A stretch of the steps of one epoch.

    The model's random numbers and its own state start anew with each stretch, so the answer depends on the work item
    alone.

    Attributes:
        begin, end: the steps of the epoch.
        reached: the state before the first step; replaced by a shared value when it is sent.
    """

    kind: Curve
    training: BendTraining
    epoch: int
    begin: int
    end: int
    reached: Reached
    ends: Shared[tuple[State, State]] | None = None
    shared: Shared[Reached] | None = None

    @property
    def label(self) -> str:
        """The name of the work item in messages."""
        return f"steps {self.begin + 1} to {self.end} of epoch {self.epoch + 1} of the curve"

    def about(self, ends: Shared[tuple[State, State]], reached: Shared[Reached]) -> StepsOfBend:
        """The work item with shared values, to be sent."""
        return replace(self, reached=Reached({}), ends=ends, shared=reached)

    def answer(self, station: EvaluationContext) -> Stepped:
        """Take the steps, with the arithmetic of the setting's plan."""
        assert self.ends is not None
        assert self.shared is not None
        evaluator, ends, reached = station.evaluator, self.ends.get(), self.shared.get()
        with arithmetic(evaluator.plan, evaluator.device):
            model, observe, samples = evaluator.model, evaluator.observe, evaluator.held_samples
            dtype = torch.float64 if evaluator.plan.precision == "float64" else torch.float32
            return take_steps(model, samples, observe, self, ends, reached, evaluator.device, dtype)


def take_steps(
    model: nn.Module, samples: Samples, observe: Observe, asked: StepsOfBend, ends: tuple[State, State],
    reached: Reached, device: torch.device, dtype: torch.dtype | None = None,
) -> Stepped:  # fmt: skip
    """Take a stretch of steps in this process.

    Args:
        dtype: of the model, float32 or float64; default: unchanged.
    """
    training, epoch = asked.training, asked.epoch
    generator = torch.Generator().manual_seed(seed_of(training.seed, "epoch", epoch) if epoch else training.seed)
    batches = list(_batches(samples, training.batch_size, generator))
    places = _spread(len(batches), generator)
    with fixed_seeds(seed_of(training.seed, "steps", epoch, asked.begin)), torch.enable_grad():
        curve = _MovingCurve(model, observe, asked.kind, ends, reached, training, device, dtype)
        losses = []
        for step in range(asked.begin, asked.end):
            rate = training.rate((epoch + step / len(batches)) / training.epochs)
            try:
                losses.append(curve.step(batches[step](), places[step], rate))
            except ValueError as error:
                if not _is_of_one(samples, training, step):
                    raise
                raise NotRetried(
                    f"batch_size: must leave no batch of one sample, which this model does not take, not "
                    f"{training.batch_size} of {samples.length} samples ({in_words(error)}); take another"
                ) from error
    return Stepped(curve.reached(), tuple(losses))


def steps_per_epoch(samples: Samples, training: BendTraining) -> int:
    """The number of batches that the samples make."""
    if samples.rows is None:
        return len(samples.edges(training.batch_size))
    return -(-samples.length // training.batch_size)


def _is_of_one(samples: Samples, training: BendTraining, step: int) -> bool:
    """Whether the batch of a step of an epoch holds a single sample."""
    return samples.rows is not None and min(training.batch_size, samples.length - step * training.batch_size) == 1


class _MovingCurve:
    """A copy of the model whose weights are set to points of the curve, and the bend that follows their gradients."""

    def __init__(
        self, model: nn.Module, observe: Observe, kind: Curve, ends: tuple[State, State], reached: Reached,
        training: BendTraining, device: torch.device, dtype: torch.dtype | None,
    ) -> None:  # fmt: skip
        self.model = private_copy(model)[0].to(device).train()
        if dtype is not None:  # `Module.to(dtype)` would drop the imaginary part of complex weights
            self.model = self.model.double() if dtype is torch.float64 else self.model.float()
        self.observe, self.kind, self.device, self.training = observe, kind, device, training

        def own(state: State) -> dict[str, Tensor]:
            return {
                name: tensor.to(device, dtype if tensor.is_floating_point() else None, copy=True)
                for name, tensor in state.items()
            }

        self.first, self.second, self.bend, self.velocity = map(own, (*ends, reached.bend, reached.velocity))
        self.moved = {
            name: parameter for name, parameter in self.model.named_parameters()
            if parameter.requires_grad and parameter.is_floating_point()
        }  # fmt: skip
        if not self.moved:
            raise NotRetried("model: no parameter requires gradients, so no curve can be trained; train some")
        with torch.no_grad():
            for name, tensor in self.model.state_dict(keep_vars=True).items():
                if name in self.bend:
                    tensor.copy_(self.bend[name])
        if not self.velocity:
            self.velocity = {name: torch.zeros_like(self.bend[name]) for name in self.moved}

    def step(self, batch: Batch, t: float, rate: float) -> float:
        """Move the bend against the gradient of the batch's loss at φ(t), and return that loss."""
        shares = curve_shares(self.kind, np.array([t]))[0].tolist()
        with torch.no_grad():
            for name, parameter in self.moved.items():
                ends = shares[0] * self.first[name] + shares[1] * self.second[name]
                parameter.copy_(ends + shares[2] * self.bend[name])
        here = map_tensors(lambda tensor: tensor.to(self.device), batch)
        loss = _mean_loss(self.model, self.observe, here)
        gradients = torch.autograd.grad(loss, list(self.moved.values()), allow_unused=True, materialize_grads=True)
        for (name, parameter), gradient in zip(self.moved.items(), gradients, strict=True):
            slope = shares[2] * (gradient + self.training.weight_decay * parameter.detach())
            self.velocity[name].mul_(self.training.momentum).add_(slope)
            self.bend[name].sub_(rate * self.velocity[name])
        return float(loss.detach())

    def reached(self) -> Reached:
        """The state after the last step, on the CPU."""
        bend, velocity = (
            {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
            for state in (self.bend, self.velocity)
        )
        return Reached(bend, velocity)


def _spread(count: int, generator: torch.Generator) -> list[float]:
    """`count` values of t, each uniform on [0, 1] and together spread evenly, to reduce the noise in the bend.

    Values are drawn in equal parts of [0, 1], in random order, as pairs of t and 1 − t.
    """
    pairs = -(-count // 2)
    parts = torch.randperm(pairs, generator=generator)
    below = (parts + torch.rand(pairs, generator=generator, dtype=torch.float64)) / (2 * pairs)
    first = torch.where(torch.rand(pairs, generator=generator) < 0.5, below, 1 - below)
    return torch.stack([first, 1 - first], dim=1).flatten()[:count].tolist()


def _batches(samples: Samples, batch_size: int, generator: torch.Generator) -> Iterator[Callable[[], Batch]]:
    """Functions that make batches of the samples in random order; batches that the data cuts are shuffled whole."""
    rows = samples.rows
    if rows is None:
        edges = samples.edges(batch_size)
        for k in torch.randperm(len(edges), generator=generator).tolist():
            yield partial(samples.batch, *edges[k])
        return
    order = torch.randperm(samples.length, generator=generator)
    for begin in range(0, samples.length, batch_size):
        yield partial(map_tensors, partial(_pick, order[begin : begin + batch_size]), rows)


def _pick(places: Tensor, tensor: Tensor) -> Tensor:
    return tensor[places.to(tensor.device)]


def _mean_loss(model: nn.Module, observe: Observe, batch: Batch) -> Tensor:
    """Σwℓ/Σw of a batch; of a loss of several terms Σλ·mean."""
    with kept_alive():
        values = observe(model, batch)
    if isinstance(observe, Combination):
        parts = [observe.factors[name] * values[name].mean() for name in observe.factors if name in values]
        loss = torch.stack(parts).sum()
    else:
        weights = values.get(WEIGHT)
        loss = values["loss"].mean() if weights is None else (weights * values["loss"]).sum() / weights.sum()
    if not loss.requires_grad:
        raise NotRetried(
            "observe: the loss has no graph of gradients, so no curve can be trained; compute it without no_grad, "
            "detach, item or numpy"
        )
    return loss


# ----------------------------------------------------------------------------------------------------
# The bend of a curve between two networks, trained so that the loss along the whole curve is low.

STRETCH = 64  # steps of one work item: between two items signals are handled, and a worker may be lost


@dataclass(frozen=True)
class Bend:
    """A trained curve between two networks.

    Attributes:
        first, second: the networks at its ends, w₁ and w₂.
        bend: θ, as the weights of a network; its buffers are those of the middle of the line.
        losses: the mean loss of each epoch of the training, at random t, the model in training mode.
    """

    kind: Curve
    first: State
    second: State
    bend: State
    losses: tuple[float, ...]

    def at(self, t: float) -> dict[str, Tensor]:
        """The network φ(t) on the curve; at 0 and 1 exactly the ends."""
        return point_on(self.kind, (self.first, self.second, self.bend), t)


def point_on(kind: Curve, networks: tuple[State, State, State], t: float) -> dict[str, Tensor]:
    """φ(t) in the types of w₁, buffers by the same shares; integers stay those of w₁, at t = 1 those of w₂.

    Args:
        networks: w₁, w₂ and the bend.
    """
    shares = curve_shares(kind, np.array([t]))[0].tolist()
    if t in (0.0, 1.0):
        return {name: tensor.clone() for name, tensor in networks[int(t)].items()}
    return {name: _mix([network[name] for network in networks], shares) for name in networks[0]}


def _mix(tensors: list[Tensor], shares: list[float]) -> Tensor:
    first = tensors[0]
    if not first.is_floating_point() or all(torch.equal(first, other) for other in tensors[1:]):
        return first.clone()
    # Rounded once, from float64.
    parts = [share * tensor.double() for share, tensor in zip(shares, tensors, strict=True) if share]
    return torch.stack(parts).sum(0).to(first.dtype)


@dataclass(frozen=True)
class BendProgress:
    """The progress of a training: the state before the next epoch.

    Attributes:
        losses: of the finished epochs.
    """

    reached: Reached
    losses: tuple[float, ...] = ()


@dataclass(frozen=True)
class EpochHooks:
    """The start of a training, and its hooks at the end of each epoch.

    Attributes:
        known: the progress of an earlier call with the same arguments, which is continued to the same bits.
        keep: is called with the progress after each epoch whose loss is finite.
        on_epoch: is called with the number of each epoch, from 1, and its mean loss.
    """

    known: BendProgress | None = None
    keep: Callable[[BendProgress], None] = field(default=lambda progress: None)
    on_epoch: Callable[[int, float], None] = field(default=lambda epoch, loss: None)


def train_bend(
    model: nn.Module, samples: Samples, observe: Observe, first: State, second: State, kind: Curve = "bezier",
    training: BendTraining | None = None, *, device: str | torch.device = "cpu", start: State | None = None,
    on_epoch: Callable[[int, float], None] = lambda epoch, loss: None, stop: Callable[[], bool] = lambda: False,
) -> Bend:  # fmt: skip
    """Train the bend θ of a curve φ between two networks in this process: min over θ of E L(φ(t)), t uniform on [0, 1].

    At every step the weights are set to φ(t). By the chain rule, the gradient of θ is the gradient of the batch's loss
    there times the share of θ in φ(t): 2t(1−t) for a Bezier curve. Each epoch spreads its t evenly over [0, 1]. The
    model is in training mode.
    Garipov et al. 2018, "Loss surfaces, mode connectivity, and fast ensembling of DNNs", section 3.

    Args:
        model: is copied.
        samples: of the training loss.
        first, second: w₁ and w₂, states of the model.
        start: θ at the beginning; default: the middle of the line.
        on_epoch: is called with the number of each epoch, from 1, and its mean loss.
        stop: is called every few steps; if it returns true, `Interrupted` is raised.

    Raises:
        JobError: the loss becomes infinite or NaN, or has no gradient.
    """
    plan, place = training or BendTraining(), torch.device(device)

    def carry_out(asked: StepsOfBend) -> Stepped:
        if stop():
            raise Interrupted("interrupted; the bend is not kept: the same call trains it anew")
        return take_steps(model, samples, observe, asked, (first, second), asked.reached, place)

    found = _train_epochs(
        first, second, kind, plan, steps_per_epoch(samples, plan), carry_out, EpochHooks(on_epoch=on_epoch), start
    )
    return replace(found, bend=_with_second_names(model, found.bend))


def _with_second_names(model: nn.Module, bend: State) -> State:
    """The bend with tied weights under all their names in a state dict of the model."""
    own = {id(parameter): name for name, parameter in model.named_parameters()}
    tied = {name: own[id(tensor)] for name, tensor in model.state_dict(keep_vars=True).items() if id(tensor) in own}
    return {name: bend[tied.get(name, name)] for name in bend}


def train_by(
    executor: Executor, setting: EvaluationSetting, samples: Samples, first: State, second: State, kind: Curve,
    training: BendTraining, along: EpochHooks,
) -> Bend:  # fmt: skip
    """Train the same bend by an executor; `STRETCH` steps are one work item.

    Each step needs the bend of the previous one, and batch normalisation needs its whole batch: so one process takes
    the steps of a stretch, and more processes would not help. Any process gives the same bits.

    Args:
        setting: its plan gives the arithmetic.
        samples: those of the executor.

    Raises:
        JobError: as `train_bend`.
        Interrupted: continue from the progress that `along` has kept.
    """
    ends = executor.share((dict(first), dict(second)))

    def carry_out(asked: StepsOfBend) -> Stepped:
        (answer,) = executor.ask(setting, [asked.about(ends, executor.share(asked.reached))])
        return answer

    return _train_epochs(first, second, kind, training, steps_per_epoch(samples, training), carry_out, along)


def _train_epochs(
    first: State, second: State, kind: Curve, training: BendTraining, steps: int,
    carry_out: Callable[[StepsOfBend], Stepped], along: EpochHooks, start: State | None = None,
) -> Bend:  # fmt: skip
    progress = along.known
    if progress is None:
        middle = {name: _mix([first[name], second[name]], [0.5, 0.5]) for name in first}
        progress = BendProgress(Reached(dict(start or middle)))
    for epoch in range(len(progress.losses), training.epochs):
        reached, losses = progress.reached, list[float]()
        for begin in range(0, steps, STRETCH):
            stepped = carry_out(StepsOfBend(kind, training, epoch, begin, min(begin + STRETCH, steps), reached))
            reached, losses = stepped.reached, [*losses, *stepped.losses]
        loss = sum(losses) / steps
        if not (math.isfinite(loss) and reached.is_finite()):
            raise JobError(
                f"learning_rate: the loss on the curve is not finite in epoch {epoch + 1}; take one below "
                f"{training.learning_rate:g}"
            )
        progress = BendProgress(reached, (*progress.losses, loss))
        along.keep(progress)
        along.on_epoch(epoch + 1, loss)
    return Bend(kind, first, second, progress.reached.bend, progress.losses)
