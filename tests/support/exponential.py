"""A network whose third operation overflows far from the origin."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Exponential(nn.Module):
    """Its third operation overflows far from the origin."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.fc1, self.fc2, self.fc3 = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc3(torch.exp(self.fc2(torch.relu(self.fc1(x)))))
