"""Small networks with a fault each, and the layer and the rule that say where it is."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from landscape import Problem

SAMPLES = 12


class MLP(nn.Module):
    """Three linear layers; `between` comes after the first, an operation and no module."""

    def __init__(self, between: Callable[[Tensor], Tensor] = torch.relu, last: nn.Module | None = None) -> None:
        super().__init__()
        self.fc1, self.fc2, self.act2, self.fc3 = (
            nn.Linear(6, 10),
            nn.Linear(10, 10),
            last or nn.ReLU(),
            nn.Linear(10, 3),
        )
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        return self.fc3(self.act2(self.fc2(self.between(self.fc1(x)))))


class CNN(nn.Module):
    """Two convolutions with batch normalisation, a functional ReLU after the second."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True))
        self.conv2, self.head = nn.Conv2d(4, 4, 3), nn.Linear(4 * 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(functional.relu(self.conv2(self.features(x))).flatten(1))


class Attention(nn.Module):
    """One head of causal attention, its softmax an operation."""

    def __init__(self, width: int, hidden: int = 0, plain: bool = False) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.hidden, self.plain = hidden, plain

    def forward(self, x: Tensor) -> Tensor:
        scores = self.q(x) @ self.k(x).transpose(1, 2) / math.sqrt(x.shape[2])
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        mask[: self.hidden] = True
        scores = scores.masked_fill(mask, -math.inf)
        if self.plain:
            weights = (scores + 100).exp()
            return weights / weights.sum(-1, keepdim=True) @ self.v(x)
        return scores.softmax(-1) @ self.v(x)


class Transformer(nn.Module):
    """A block of a transformer over tokens."""

    def __init__(self, **attention: Any) -> None:
        super().__init__()
        self.embed, self.attn, self.norm = nn.Embedding(7, 8), Attention(8, **attention), nn.LayerNorm(8)
        self.up, self.down, self.head = nn.Linear(8, 16), nn.Linear(16, 8), nn.Linear(8, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        x = self.norm(x + self.attn(x))
        x = x + self.down(functional.gelu(self.up(x)))
        return self.head(x[:, -1])


class RNN(nn.Module):
    """A cell that is called once for each token, and a recurrent layer of torch's after it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.cell = nn.Embedding(7, 6), nn.Linear(12, 6)
        self.rnn, self.head = nn.LSTM(6, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        state, states = torch.zeros(len(tokens), 6), []
        for x in self.embed(tokens).unbind(1):
            state = self.cell(torch.cat([x, state], 1))
            states.append(state)
        return self.head(self.rnn(torch.stack(states, 1))[1][0][-1])


@dataclass(frozen=True)
class Fault:
    """A network with a fault, and what says so first."""

    make: Callable[[], nn.Module]
    layer: str
    rule: str
    plant: Callable[[Any], object] = lambda model: None
    criterion: Callable[..., Tensor] = nn.functional.cross_entropy
    gradients: bool = False
    zero_input: bool = False  # of the first sample


def set_to(name: str, value: float, part: slice = slice(None)) -> Callable[[nn.Module], None]:
    """Sets a tensor of a model, or some of its first dimension, to one value."""

    def plant(model: nn.Module) -> None:
        model.state_dict()[name][part] = value

    return plant


def times(factor: float, *names: str) -> Callable[[nn.Module], None]:
    """Multiplies tensors of a model."""

    def plant(model: nn.Module) -> None:
        for name in names:
            model.state_dict()[name].mul_(factor)

    return plant


def _without_epsilon(model: Any) -> None:
    model.norm.eps = 0.0
    model.embed.weight.data.zero_().add_(1.0)
    for each in (model.attn.q, model.attn.k, model.attn.v):
        each.weight.data.zero_().add_(0.1)
        each.bias.data.zero_()


def _deep() -> nn.Module:
    layers = [layer for _ in range(14) for layer in (nn.Linear(6, 6), nn.Sigmoid())]
    return nn.Sequential(*layers, nn.Linear(6, 3))


def _negative_log(outputs: Tensor, targets: Tensor) -> Tensor:
    return -torch.log(outputs[:, 0] * 0)


def half(x: Tensor) -> Tensor:
    """An activation that is computed in float16."""
    return (x.half() * 60000).float()


def brain(x: Tensor) -> Tensor:
    """An activation that is computed in bfloat16."""
    return x.abs().bfloat16().add(100).exp().float()


FAULTS: dict[str, Fault] = {
    "NaN weight": Fault(MLP, "fc2.weight", "weight_overflow", set_to("fc2.weight", math.nan, slice(1))),
    "Inf bias": Fault(MLP, "fc2.bias", "weight_overflow", set_to("fc2.bias", math.inf, slice(1))),
    "NaN kernel": Fault(CNN, "conv2.weight", "weight_overflow", set_to("conv2.weight", math.nan)),
    "-Inf embedding": Fault(RNN, "embed.weight", "weight_overflow", set_to("embed.weight", -math.inf, slice(2))),
    "NaN variance": Fault(CNN, "features.1.running_var", "weight_overflow", set_to("features.1.running_var", math.nan)),
    "NaN recurrent weight": Fault(RNN, "rnn.weight_hh_l0", "weight_overflow", set_to("rnn.weight_hh_l0", math.nan)),
    "NaN query": Fault(Transformer, "attn.q.weight", "weight_overflow", set_to("attn.q.weight", math.nan)),
    "dead ReLU": Fault(MLP, "act2", "relu_zeros", set_to("fc2.bias", -50)),
    "dead functional ReLU": Fault(CNN, "relu()", "relu_zeros", set_to("conv2.bias", -60)),
    "dead ReLU in place": Fault(CNN, "features.2", "relu_zeros", set_to("features.1.bias", -60)),
    "saturated sigmoid": Fault(lambda: MLP(last=nn.Sigmoid()), "act2", "sigmoid_saturated", set_to("fc2.bias", 50)),
    "saturated functional sigmoid": Fault(
        lambda: MLP(torch.sigmoid), "sigmoid()", "sigmoid_saturated", set_to("fc1.bias", -50)
    ),
    "saturated tanh": Fault(lambda: MLP(last=nn.Tanh()), "act2", "tanh_saturated", set_to("fc2.bias", 50)),
    "saturated functional tanh": Fault(lambda: MLP(torch.tanh), "tanh()", "tanh_saturated", set_to("fc1.bias", -50)),
    "exploding weights": Fault(MLP, "fc2.weight", "weight_too_large", times(1e6, "fc2.weight")),
    "exploding outputs": Fault(lambda: MLP(lambda x: x * 1e6), "mul()", "tensor_too_large"),
    "exploding recurrence": Fault(RNN, "cell #3", "tensor_too_large", times(80.0, "cell.weight")),
    "embedding out of scale": Fault(Transformer, "embed.weight", "weight_too_large", times(1e4, "embed.weight")),
    "vanishing weights": Fault(MLP, "fc2.weight", "weight_too_small", times(1e-10, "fc2.weight", "fc2.bias")),
    "vanishing outputs": Fault(lambda: MLP(lambda x: x * 1e-9), "mul()", "tensor_too_small"),
    "layer of zeros": Fault(CNN, "conv2.weight", "weight_all_zero", times(0.0, "conv2.weight", "conv2.bias")),
    "zeros from an operation": Fault(lambda: MLP(lambda x: x * 0), "mul()", "tensor_all_zero"),
    "zeros of an embedding": Fault(RNN, "embed.weight", "weight_all_zero", times(0.0, "embed.weight")),
    "overflow in float16": Fault(lambda: MLP(half), "mul()", "tensor_overflow", times(9.0, "fc1.weight")),
    "overflow in bfloat16": Fault(lambda: MLP(brain), "exp()", "tensor_overflow"),
    "overflow of a power": Fault(lambda: MLP(lambda x: (x + 9) ** 99), "pow()", "tensor_overflow"),
    "zero variance in running statistics": Fault(
        CNN, "features.1.running_var", "weight_all_zero", set_to("features.1.running_var", 0)
    ),
    "zero variance in a layer norm": Fault(Transformer, "norm", "tensor_overflow", _without_epsilon),
    "log of a negative": Fault(lambda: MLP(torch.log), "log()", "tensor_overflow"),
    "root of a negative": Fault(lambda: MLP(torch.sqrt), "sqrt()", "tensor_overflow"),
    "division by zero": Fault(lambda: MLP(lambda x: x / (x > 0).float()), "div()", "tensor_overflow"),
    "zero over its norm": Fault(
        lambda: MLP(lambda x: x / x.norm(dim=1, keepdim=True)),
        "div()",
        "tensor_overflow",
        times(0.0, "fc1.bias"),
        zero_input=True,
    ),
    "arc beyond one": Fault(lambda: MLP(lambda x: (9 * x).acos()), "acos()", "tensor_overflow"),
    "rows of -Inf in attention": Fault(lambda: Transformer(hidden=2), "attn.softmax()", "tensor_overflow"),
    "softmax without its maximum": Fault(lambda: Transformer(plain=True), "attn.exp()", "tensor_overflow"),
    "log of zero in the loss": Fault(MLP, "observe.log()", "tensor_overflow", criterion=_negative_log),
    "vanishing gradient": Fault(_deep, "0.weight", "gradient_vanishing", gradients=True),
    "exploding gradient": Fault(
        lambda: MLP(lambda x: (x * (x > 0).float()).sqrt()), "fc1.weight", "gradient_exploding", gradients=True
    ),
    "gradient out of scale": Fault(
        MLP,
        "fc1.weight",
        "gradient_too_large",
        gradients=True,
        criterion=lambda outputs, targets: 1e5 * functional.cross_entropy(outputs, targets, reduction="none"),
    ),
}


def inputs_of(model: nn.Module, seed: int = 0) -> Tensor:
    """Samples that a network of this file takes."""
    generator = torch.Generator().manual_seed(seed)
    if isinstance(model, CNN):
        return torch.randn(SAMPLES, 1, 6, 6, generator=generator)
    if isinstance(model, (Transformer, RNN)):
        return torch.randint(0, 7, (SAMPLES, 6), generator=generator)
    return torch.randn(SAMPLES, 6, generator=generator)


def problem_of(fault: Fault, seed: int = 0) -> Problem:
    """The problem of a network with its fault."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = fault.make()
    with torch.no_grad():
        fault.plant(model)
    inputs = inputs_of(model, seed)
    if fault.zero_input:
        inputs[0] = 0
    targets = torch.randint(0, 3, (SAMPLES,), generator=torch.Generator().manual_seed(seed))
    return Problem.supervised(model, (inputs, targets), fault.criterion, [])
