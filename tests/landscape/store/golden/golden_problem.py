"""The problem of the golden runs: a small network with a convolution, a batch norm and biases, on seeded numbers.

Never change it: the runs beside it were computed of it, and later versions must open them.
"""

from __future__ import annotations

import torch
from torch import nn

from landscape import Problem

SAMPLES, CLASSES = 48, 3


def network() -> nn.Sequential:
    """Weights and running statistics from a generator of its own, so that nobody else's draws matter."""
    model = nn.Sequential(
        nn.Conv1d(1, 4, 3), nn.BatchNorm1d(4), nn.ReLU(), nn.Flatten(),
        nn.Linear(24, 6), nn.Tanh(), nn.Linear(6, CLASSES),
    )  # fmt: skip
    generator = torch.Generator().manual_seed(20261121)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 2)
        model[1].running_mean.copy_(torch.randn(4, generator=generator) / 10)
        model[1].running_var.copy_(torch.rand(4, generator=generator) + 0.5)
    return model


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(SAMPLES, 1, 8, generator=generator)
    return inputs, torch.randint(0, CLASSES, (SAMPLES,), generator=generator)


def problem() -> Problem:
    return Problem.supervised(network(), data())
