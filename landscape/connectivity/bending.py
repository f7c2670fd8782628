"""The bend of a curve between two networks, trained so that the loss along the whole curve is low."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from landscape.curves import Curve, curve_shares
from landscape.draws import fixed_seeds
from landscape.errors import Interrupted, JobError
from landscape.evaluation.private import private_copy
from landscape.parameters import State
from landscape.problem.batches import Batch, map_tensors
from landscape.problem.names import WEIGHT
from landscape.problem.observables import Combination, Observe
from landscape.problem.samples import Samples
from landscape.problem.user_code import kept_alive

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
        """The network φ(t) on the curve; at 0 and 1 the bytes of the ends."""
        return point_on(self.kind, (self.first, self.second, self.bend), t)


def point_on(kind: Curve, networks: tuple[State, State, State], t: float) -> dict[str, Tensor]:
    """φ(t) in the types of w₁, buffers by the same shares; what is no real number stays that of w₁, at t = 1 of w₂.

    Args:
        networks: w₁, w₂ and the bend.
    """
    shares = curve_shares(kind, np.array([t]))[0].tolist()
    if t in (0.0, 1.0):
        return {name: tensor.clone() for name, tensor in networks[int(t)].items()}
    return {name: _mixed([network[name] for network in networks], shares) for name in networks[0]}


def _mixed(tensors: list[Tensor], shares: list[float]) -> Tensor:
    first = tensors[0]
    if not first.is_floating_point() or all(torch.equal(first, other) for other in tensors[1:]):
        return first.clone()
    # Rounded once, from float64.
    parts = [share * tensor.double() for share, tensor in zip(shares, tensors, strict=True) if share]
    return torch.stack(parts).sum(0).to(first.dtype)


def train_bend(
    model: nn.Module, samples: Samples, observe: Observe, first: State, second: State, kind: Curve = "bezier",
    training: Training | None = None, *, device: str | torch.device = "cpu", start: State | None = None,
    on_epoch: Callable[[int, float], None] = lambda epoch, loss: None, stop: Callable[[], bool] = lambda: False,
) -> Bend:  # fmt: skip
    """Train the bend θ of a curve φ between two networks: min over θ of E L(φ(t)), t uniform on [0, 1].

    At every step the weights are set to φ(t), and the gradient of the batch's loss there times the share that θ has in
    φ(t), by the chain rule, is that of θ: 2t(1−t) for a Bezier curve. Each epoch spreads its t evenly over [0, 1].
    The model is in training mode.
    Garipov et al. 2018, "Loss surfaces, mode connectivity, and fast ensembling of DNNs", section 3.

    Args:
        model: is copied.
        samples: of the training loss.
        first, second: w₁ and w₂, states of the model.
        start: θ at the beginning; default: the middle of the line.
        on_epoch: is told the number of each epoch, from 1, and its mean loss.
        stop: is asked before each step; when true, `Interrupted` is raised.

    Raises:
        JobError: the loss becomes infinite or NaN, or has no gradient.
    """
    plan = training or Training()
    middle = {name: _mixed([first[name], second[name]], [0.5, 0.5]) for name in first}
    curve = _MovingCurve(model, observe, kind, (first, second, start or middle), plan, torch.device(device))
    losses = []
    generator = torch.Generator().manual_seed(plan.seed)
    with fixed_seeds(plan.seed), torch.enable_grad():
        for epoch in range(plan.epochs):
            batches = list(_batches(samples, plan.batch_size, generator))
            total = 0.0
            for step, (batch, t) in enumerate(zip(batches, _spread(len(batches), generator), strict=True)):
                if stop():
                    raise Interrupted("interrupted; the bend is not kept: the same command trains it anew")
                total += curve.step(batch, t, plan.rate((epoch + step / len(batches)) / plan.epochs))
            losses.append(total / len(batches))
            if not (math.isfinite(losses[-1]) and curve.is_finite()):
                raise JobError(
                    f"learning_rate: the loss on the curve is not finite in epoch {epoch + 1}; take one below "
                    f"{plan.learning_rate:g}"
                )
            on_epoch(epoch + 1, losses[-1])
    found = {name: tensor.detach().cpu().contiguous() for name, tensor in curve.bend.items()}
    return Bend(kind, first, second, found, tuple(losses))


class _MovingCurve:
    """A copy of the model whose weights are set to points of the curve, and the bend that follows their gradients."""

    def __init__(
        self, model: nn.Module, observe: Observe, kind: Curve, networks: tuple[State, State, State],
        training: Training, device: torch.device,
    ) -> None:  # fmt: skip
        self.model = private_copy(model)[0].to(device).train()
        self.observe, self.kind, self.device, self.decay = observe, kind, device, training.weight_decay
        self.first, self.second, self.bend = (
            {name: tensor.to(device).clone() for name, tensor in network.items()} for network in networks
        )
        self.moved = {
            name: parameter for name, parameter in self.model.named_parameters()
            if parameter.requires_grad and parameter.is_floating_point()
        }  # fmt: skip
        if not self.moved:
            raise JobError("model: no parameter requires gradients, so no curve can be trained; train some")
        with torch.no_grad():
            for name, tensor in self.model.state_dict(keep_vars=True).items():
                if name in self.bend:
                    tensor.copy_(self.bend[name])
        followed = [self.bend[name] for name in self.moved]
        self.optimizer = torch.optim.SGD(followed, training.learning_rate, momentum=training.momentum)

    def step(self, batch: Batch, t: float, rate: float) -> float:
        """Move the bend against the gradient of the batch's loss at φ(t), and return that loss."""
        shares = curve_shares(self.kind, np.array([t]))[0].tolist()
        with torch.no_grad():
            for name, parameter in self.moved.items():
                ends = shares[0] * self.first[name] + shares[1] * self.second[name]
                parameter.copy_(ends + shares[2] * self.bend[name])
        here = batch if self.device.type == "cpu" else map_tensors(lambda tensor: tensor.to(self.device), batch)
        loss = _mean_loss(self.model, self.observe, here)
        gradients = torch.autograd.grad(loss, list(self.moved.values()), allow_unused=True, materialize_grads=True)
        for (name, parameter), gradient in zip(self.moved.items(), gradients, strict=True):
            self.bend[name].grad = shares[2] * (gradient + self.decay * parameter.detach())
        self.optimizer.param_groups[0]["lr"] = rate
        self.optimizer.step()
        return float(loss.detach())

    def is_finite(self) -> bool:
        """Whether the bend is."""
        return all(bool(self.bend[name].isfinite().all()) for name in self.moved)


def _spread(count: int, generator: torch.Generator) -> list[float]:
    """`count` values of t, each uniform on [0, 1], that together are spread evenly, to take less noise into the bend.

    One at random in each of equal parts, in random order; each is followed by 1 − t, or follows it.
    """
    pairs = -(-count // 2)
    parts = torch.randperm(pairs, generator=generator)
    below = (parts + torch.rand(pairs, generator=generator, dtype=torch.float64)) / (2 * pairs)
    first = torch.where(torch.rand(pairs, generator=generator) < 0.5, below, 1 - below)
    return torch.stack([first, 1 - first], dim=1).flatten()[:count].tolist()


def settings_of(training: Training) -> dict[str, Any]:
    """The settings as plain values, as they are recorded with a bend."""
    return asdict(training)


def _batches(samples: Samples, batch_size: int, generator: torch.Generator) -> Iterator[Batch]:
    """The samples in random order; where only consecutive ones make a batch, those batches in random order."""
    rows = samples.rows
    if rows is None:
        edges = samples.edges(batch_size)
        for k in torch.randperm(len(edges), generator=generator).tolist():
            yield samples.batch(*edges[k])
        return
    order = torch.randperm(samples.length, generator=generator)
    for begin in range(0, samples.length, batch_size):
        yield map_tensors(partial(_chosen, order[begin : begin + batch_size]), rows)


def _chosen(places: Tensor, tensor: Tensor) -> Tensor:
    return tensor[places]


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
        raise JobError(
            "observe: the loss has no graph of gradients, so no curve can be trained; compute it without no_grad, "
            "detach, item or numpy"
        )
    return loss
