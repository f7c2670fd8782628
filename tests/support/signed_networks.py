"""Eight small networks whose smallest Hessian eigenvalue is negative, zero or positive, for tests of its sign."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from landscape import Problem

COUNT = 24  # samples
Observe = Callable[[nn.Module, Any], dict[str, Tensor]]


class Attention(nn.Module):
    """A language model of one layer: embedding, one head of causal attention, the next token."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 6)
        self.query, self.key, self.value = (nn.Linear(6, 6, bias=False) for _ in range(3))
        self.head = nn.Linear(6, 7)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        scores = self.query(x) @ self.key(x).transpose(-1, -2) / 6**0.5
        ahead = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool).triu(1)
        return self.head(x + scores.masked_fill(ahead, -torch.inf).softmax(-1) @ self.value(x))


class LowRank(nn.Module):
    """W·x + B·A·x, where B begins at zero: the Hessian along A alone is then zero."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(8, 8)
        self.a, self.b = nn.Parameter(0.3 * torch.randn(2, 8)), nn.Parameter(torch.zeros(8, 2))
        self.head = nn.Linear(8, 3)
        for frozen in (*self.base.parameters(), *self.head.parameters()):
            frozen.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.base(x) + x @ self.a.T @ self.b.T))


def layered(widths: Iterable[int], activation: Callable[[], nn.Module], last: Iterable[nn.Module] = ()) -> nn.Module:
    pairs = list(itertools.pairwise(widths))
    return nn.Sequential(*(part for a, b in pairs for part in (nn.Linear(a, b), activation())))[:-1].extend(last)


def classified(model: nn.Module, batch: Any) -> dict[str, Tensor]:
    inputs, labels = batch
    return {"loss": nn.functional.cross_entropy(model(inputs), labels, reduction="none")}


def squared(model: nn.Module, batch: Any) -> dict[str, Tensor]:
    inputs, targets = batch
    return {"loss": (model(inputs) - targets).square().sum(1)}


def next_token(model: nn.Module, batch: Any) -> dict[str, Tensor]:
    tokens = batch[0]
    scores = model(tokens[:, :-1]).transpose(1, 2)
    return {"loss": nn.functional.cross_entropy(scores, tokens[:, 1:], reduction="none").mean(1)}


def burgers(model: nn.Module, batch: Any) -> dict[str, Tensor]:
    """The squared residual of u_t + u·u_x = 0.01·u_xx, and of u(0, x) = −sin(πx)."""
    with torch.enable_grad():
        points = batch[0].clone().requires_grad_()
        u = model(points)
        first = torch.autograd.grad(u.sum(), points, create_graph=True)[0]
        second = torch.autograd.grad(first[:, 1].sum(), points, create_graph=True)[0]
        residual = first[:, 0] + u[:, 0] * first[:, 1] - 0.01 * second[:, 1]
    at_start = points * torch.tensor([0.0, 1.0], dtype=points.dtype)
    start = model(at_start)[:, 0] + torch.sin(torch.pi * points[:, 1])
    return {"loss": residual.square() + 10 * start.square()}


def _labelled(classes: int, *shape: int) -> tuple[Tensor, ...]:
    draw = torch.Generator().manual_seed(1)
    return torch.randn(COUNT, *shape, generator=draw), torch.randint(0, classes, (COUNT,), generator=draw)


def _points() -> tuple[Tensor, ...]:
    draw = torch.Generator().manual_seed(1)
    return (torch.rand(COUNT, 2, generator=draw) * torch.tensor([1.0, 2.0]) - torch.tensor([0.0, 1.0]),)


def _with_dead_units() -> nn.Module:
    model = layered((5, 16, 8, 4), nn.ReLU)
    with torch.no_grad():
        model[0].bias[:6] = -50.0
    return model


def _with_batch_norm() -> nn.Module:
    model = layered((5, 12, 4), lambda: nn.Sequential(nn.BatchNorm1d(12), nn.Tanh()))
    model(_labelled(4, 5)[0])  # running statistics
    return model.eval()


def _convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.Tanh(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 2), nn.Tanh(), nn.Flatten(), nn.Linear(6, 3)
    )


def _regression() -> tuple[Tensor, ...]:
    """Of inputs of rank 5 among 12: the Hessian has 14 zero eigenvalues, and none below."""
    x = _labelled(2, 5)[0]
    return torch.cat([x, x + x.roll(1, 1), torch.zeros(COUNT, 2)], 1), torch.sin(x[:, :2])


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Tensor, ...]], Observe]] = {
    "classifier": (lambda: layered((5, 10, 8, 4), nn.Tanh), lambda: _labelled(4, 5), classified),
    "burgers": (lambda: layered((2, 12, 12, 1), nn.Tanh), _points, burgers),
    "convolution": (_convolutional, lambda: _labelled(3, 1, 7, 7), classified),
    "regression": (lambda: nn.Linear(12, 2), _regression, squared),
    "attention": (Attention, lambda: (_labelled(7, 6)[1][:, None].repeat(1, 6).cumsum(1) % 7,), next_token),
    "batch norm": (_with_batch_norm, lambda: _labelled(4, 5), classified),
    "dead units": (_with_dead_units, lambda: _labelled(4, 5), classified),
    "low rank": (LowRank, lambda: _labelled(3, 8), classified),
}


@cache
def network(name: str, epochs: int) -> tuple[nn.Module, tuple[Tensor, ...], Observe]:
    """A network of that kind after so many steps of training, its samples and what it observes."""
    make, samples, observe = NETWORKS[name]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model, data = make(), samples()
    trained = [each for each in model.parameters() if each.requires_grad]
    optimiser = torch.optim.Adam(trained, lr=0.01)
    for _ in range(epochs):
        optimiser.zero_grad()
        observe(model, data)["loss"].mean().backward()
        optimiser.step()
    return model, data, observe


def problem_of(name: str, epochs: int) -> Problem:
    model, data, observe = network(name, epochs)
    return Problem(model, data, observe)


def dense_hessian(model: nn.Module, data: tuple[Tensor, ...], observe: Observe) -> Tensor:
    """∇² of the mean loss over the matrices as a matrix [P, P], row by row in float64."""
    model = copy.deepcopy(model).double()
    data = tuple(each.double() if each.is_floating_point() else each for each in data)
    weights = [each for each in model.parameters() if each.dim() > 1 and each.requires_grad]
    loss = observe(model, data)["loss"].mean()
    slopes = torch.autograd.grad(loss, weights, create_graph=True)
    flat = torch.cat([each.reshape(-1) for each in slopes])
    rows = [
        torch.cat(
            [
                each.reshape(-1)
                for each in torch.autograd.grad(entry, weights, retain_graph=True, materialize_grads=True)
            ]
        )
        for entry in flat
    ]
    found = torch.stack(rows).detach()
    return (found + found.T) / 2
