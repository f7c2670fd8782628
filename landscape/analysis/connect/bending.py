"""The bend of a curve between two networks, trained so that the loss along the whole curve is low."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor, nn

from landscape.analysis.connect.curve import Reached, Stepped, StepsOfBend, Training, steps_per_epoch, take_steps
from landscape.compute.executor import Calculator, Setting
from landscape.core.errors import Interrupted, JobError
from landscape.model.parameters import State
from landscape.problem.samples import Samples
from landscape.problem.supervised import Observe
from landscape.surface.barriers import Curve, curve_shares

STRETCH = 64  # steps that one question asks for: between two of them a signal is heard, and a worker may be lost


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


@dataclass(frozen=True)
class Progress:
    """How far a training is: what the next epoch begins with.

    Attributes:
        losses: of the epochs that are done.
    """

    reached: Reached
    losses: tuple[float, ...] = ()


@dataclass(frozen=True)
class Along:
    """What a training does at the end of each epoch, and what it begins with.

    Attributes:
        known: where an earlier call with the same arguments was; goes on to the same bits.
        keep: is given the progress after each epoch whose loss is finite.
        on_epoch: is told the number of each epoch, from 1, and its mean loss.
    """

    known: Progress | None = None
    keep: Callable[[Progress], None] = field(default=lambda progress: None)
    on_epoch: Callable[[int, float], None] = field(default=lambda epoch, loss: None)


def train_bend(
    model: nn.Module, samples: Samples, observe: Observe, first: State, second: State, kind: Curve = "bezier",
    training: Training | None = None, *, device: str | torch.device = "cpu", start: State | None = None,
    on_epoch: Callable[[int, float], None] = lambda epoch, loss: None, stop: Callable[[], bool] = lambda: False,
) -> Bend:  # fmt: skip
    """Train the bend θ of a curve φ between two networks in this process: min over θ of E L(φ(t)), t uniform on [0, 1].

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
        stop: is asked every few steps; when true, `Interrupted` is raised.

    Raises:
        JobError: the loss becomes infinite or NaN, or has no gradient.
    """
    plan, place = training or Training(), torch.device(device)

    def carry_out(asked: StepsOfBend) -> Stepped:
        if stop():
            raise Interrupted("interrupted; the bend is not kept: the same call trains it anew")
        return take_steps(model, samples, observe, asked, (first, second), asked.reached, place)

    found = _trained(
        first, second, kind, plan, steps_per_epoch(samples, plan), carry_out, Along(on_epoch=on_epoch), start
    )
    return replace(found, bend=_with_second_names(model, found.bend))


def _with_second_names(model: nn.Module, bend: State) -> State:
    """The bend with tied weights the same under all names that a state dict of the model gives them."""
    own = {id(parameter): name for name, parameter in model.named_parameters()}
    tied = {name: own[id(tensor)] for name, tensor in model.state_dict(keep_vars=True).items() if id(tensor) in own}
    return {name: bend[tied.get(name, name)] for name in bend}


def train_by(
    calculator: Calculator, setting: Setting, samples: Samples, first: State, second: State, kind: Curve,
    training: Training, along: Along,
) -> Bend:  # fmt: skip
    """The same bend, its steps carried out by whoever answers for a calculator: `STRETCH` of them are a question.

    Each step needs the bend that the one before has left, and batch normalisation the whole of its batch: so one
    process takes the steps of a stretch, and further ones would have nothing to do. Any of them gives the same bits.

    Args:
        setting: its plan says with which arithmetic.
        samples: those of the calculator.

    Raises:
        JobError: as `train_bend`.
        Interrupted: what `along` was given is where to go on from.
    """
    ends = calculator.share((dict(first), dict(second)))

    def carry_out(asked: StepsOfBend) -> Stepped:
        (answer,) = calculator.ask(setting, [asked.about(ends, calculator.share(asked.reached))])
        return answer

    return _trained(first, second, kind, training, steps_per_epoch(samples, training), carry_out, along)


def _trained(
    first: State, second: State, kind: Curve, training: Training, steps: int,
    carry_out: Callable[[StepsOfBend], Stepped], along: Along, start: State | None = None,
) -> Bend:  # fmt: skip
    progress = along.known
    if progress is None:
        middle = {name: _mixed([first[name], second[name]], [0.5, 0.5]) for name in first}
        progress = Progress(Reached(dict(start or middle)))
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
        progress = Progress(reached, (*progress.losses, loss))
        along.keep(progress)
        along.on_epoch(epoch + 1, loss)
    return Bend(kind, first, second, progress.reached.bend, progress.losses)
