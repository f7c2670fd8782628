"""Steps of the training of a bend: stochastic gradient descent on the loss at places of a curve, as questions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from landscape.compute.executor import Question, Shared, Station
from landscape.core.errors import JobError, NotRetried
from landscape.core.random_state import fixed_seeds
from landscape.core.validation import WEIGHT
from landscape.evaluation.engines.base import arithmetic
from landscape.evaluation.model_state import private_copy
from landscape.model.parameters import State
from landscape.problem.batches import Batch, map_tensors
from landscape.problem.samples import Samples
from landscape.problem.sources import seed_of
from landscape.problem.supervised import Combination, Observe
from landscape.problem.user_code import in_words, kept_alive
from landscape.surface.barriers import Curve, curve_shares

CONSTANT, LOWEST, AT_LOWEST = 0.5, 0.01, 0.9  # of the training: Garipov et al. 2018, appendix A.2


@dataclass(frozen=True)
class Training:
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
        """The learning rate when this share of the training is over.

        >>> [round(Training(learning_rate=1.0).rate(share), 4) for share in (0.0, 0.5, 0.7, 0.9, 1.0)]
        [1.0, 1.0, 0.505, 0.01, 0.01]
        """
        falling = (progress - CONSTANT) / (AT_LOWEST - CONSTANT)
        return self.learning_rate * (1 - (1 - LOWEST) * min(max(falling, 0.0), 1.0))


@dataclass(frozen=True)
class Reached:
    """What a step begins with.

    Attributes:
        bend: θ, as the weights of a network.
        velocity: of the gradient descent, per parameter that moves; none before the first step.
    """

    bend: dict[str, Tensor]
    velocity: dict[str, Tensor] = field(default_factory=dict)

    def is_finite(self) -> bool:
        """Whether the numbers that move are."""
        return all(bool(self.bend[name].isfinite().all()) for name in self.velocity)


@dataclass(frozen=True)
class Stepped:
    """Where a stretch of steps ended, and the loss at each step."""

    reached: Reached
    losses: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class StepsOfBend(Question[Stepped]):
    """A stretch of the steps of one epoch.

    Random numbers of the model and what it writes to itself begin anew with each stretch, so that the answer depends on
    the question alone.

    Attributes:
        begin, end: the steps of the epoch.
        reached: what the first of them begins with; that which is shared takes its place.
    """

    kind: Curve
    training: Training
    epoch: int
    begin: int
    end: int
    reached: Reached
    ends: Shared[tuple[State, State]] | None = None
    shared: Shared[Reached] | None = None

    @property
    def label(self) -> str:
        """What messages call it."""
        return f"steps {self.begin + 1} to {self.end} of epoch {self.epoch + 1} of the curve"

    def about(self, ends: Shared[tuple[State, State]], reached: Shared[Reached]) -> StepsOfBend:
        """The question as it travels."""
        return replace(self, reached=Reached({}), ends=ends, shared=reached)

    def answer(self, station: Station) -> Stepped:
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
    """Carry out a stretch of steps here.

    Args:
        dtype: float32 or float64, of the model; default: as it is.
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


def steps_per_epoch(samples: Samples, training: Training) -> int:
    """How many batches the samples make."""
    if samples.rows is None:
        return len(samples.edges(training.batch_size))
    return -(-samples.length // training.batch_size)


def _is_of_one(samples: Samples, training: Training, step: int) -> bool:
    """Whether the batch of a step of an epoch holds a single sample."""
    return samples.rows is not None and min(training.batch_size, samples.length - step * training.batch_size) == 1


class _MovingCurve:
    """A copy of the model whose weights are set to points of the curve, and the bend that follows their gradients."""

    def __init__(
        self, model: nn.Module, observe: Observe, kind: Curve, ends: tuple[State, State], reached: Reached,
        training: Training, device: torch.device, dtype: torch.dtype | None,
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
        """Where the last step ended, on the CPU."""
        bend, velocity = (
            {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
            for state in (self.bend, self.velocity)
        )
        return Reached(bend, velocity)


def _spread(count: int, generator: torch.Generator) -> list[float]:
    """`count` values of t, each uniform on [0, 1], that together are spread evenly, to take less noise into the bend.

    One at random in each of equal parts, in random order; each is followed by 1 − t, or follows it.
    """
    pairs = -(-count // 2)
    parts = torch.randperm(pairs, generator=generator)
    below = (parts + torch.rand(pairs, generator=generator, dtype=torch.float64)) / (2 * pairs)
    first = torch.where(torch.rand(pairs, generator=generator) < 0.5, below, 1 - below)
    return torch.stack([first, 1 - first], dim=1).flatten()[:count].tolist()


def _batches(samples: Samples, batch_size: int, generator: torch.Generator) -> Iterator[Callable[[], Batch]]:
    """What gives each batch of the samples in random order; of those that the data cuts, the batches in that order."""
    rows = samples.rows
    if rows is None:
        edges = samples.edges(batch_size)
        for k in torch.randperm(len(edges), generator=generator).tolist():
            yield partial(samples.batch, *edges[k])
        return
    order = torch.randperm(samples.length, generator=generator)
    for begin in range(0, samples.length, batch_size):
        yield partial(map_tensors, partial(_chosen, order[begin : begin + batch_size]), rows)


def _chosen(places: Tensor, tensor: Tensor) -> Tensor:
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
