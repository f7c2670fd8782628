"""Models that change what they hold while they compute: evaluators of them, and their losses by hand."""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import nn

from landscape.core.plan import Plan
from landscape.evaluation.evaluator import Evaluator
from landscape.model.parameters import state_of

CPU = torch.device("cpu")


def evaluator(model, samples, observe, directions=(), **fields) -> Evaluator:
    plan = Plan.from_record({"batch_size": 4, "threads": 1, "device": "cpu"} | fields)
    return Evaluator(model, samples, observe, plan, CPU, state_of(model), list(directions))


def observe_squares(model, batch):
    return {"loss": model(batch).square().sum(1)}


def vectors(count: int = 10) -> torch.Tensor:
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(3))


def along(model: nn.Module, *names: str, seed: int = 1) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(tensor.shape, generator=generator)
        for name, tensor in model.named_parameters()
        if name in names
    }


def by_hand(model: nn.Module, direction, points, observe, samples, batch_size: int = 4) -> list[float]:
    """Each point on a deep copy of its own, over batches of that size, the rest last; float32 as the evaluation."""
    found = []
    for (coordinate,) in points.tolist():
        moved = copy.deepcopy(model).eval().requires_grad_(False)
        with torch.no_grad():
            for name, parameter in moved.named_parameters():
                if name in direction:
                    parameter.add_(direction[name], alpha=coordinate)
            pieces = [observe(moved, batch)["loss"].double() for batch in samples.clone().split(batch_size)]
        found.append(float(torch.cat(pieces).mean()))
    return found


POINTS = np.array([[-1.0], [0.0], [0.5], [2.0]])
