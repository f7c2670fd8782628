"""A network that every rewrite of an engine changes, and evaluators of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from small_models import image_samples
from torch import fx, nn
from torch.nn import functional as F

from landscape.core.plan import Engine, default_plan
from landscape.evaluation.engines.base import tidy
from landscape.evaluation.evaluator import Evaluator
from landscape.evaluation.running_model import REWRITES
from landscape.job.directions.random import random_direction
from landscape.model.parameters import describe_parameters, state_of
from landscape.problem.terms import Problem

CPU = torch.device("cpu")
POINTS = np.array([[0.0, 0.0], [0.5, -0.3], [-1.0, 1.0], [0.5, 0.7], [0.1, 0.2]])


def drawn(model, seed):
    return dict(random_direction(state_of(model), describe_parameters(model), seed, ignore=()))


def evaluator(
    problem, samples, engine="eager", batch_size=8, directions=None, precision="float32", batch_norm="eval",
    quantise=None,
):  # fmt: skip
    count = len(samples[0] if isinstance(samples, tuple) else samples)
    plan = default_plan(count, "cpu", precision, batch_norm, 0, batch_size, None)
    found = [drawn(problem.model, 1), drawn(problem.model, 2)] if directions is None else directions
    planned = replace(plan, engine=Engine.parse(engine), quantise=quantise)
    return Evaluator(problem.model, samples, problem.observe, planned, CPU, state_of(problem.model), found)


class Pooled(nn.Module):
    """Two convolutions with batch norm, overlapping and padded max-pooling, a shared and a twice-read layer."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.first, self.norm = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.second, self.other = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4, affine=False)
        self.head = nn.Linear(4, 3)
        for norm in (self.norm, self.other):
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2)

    def forward(self, x):
        x = F.max_pool2d(torch.relu(self.norm(self.first(x))), 3, 2, 1)
        y = self.second(x)
        return self.head((torch.relu(self.other(y)) + y).mean((2, 3)))


def pooled_problem():
    samples = image_samples(21)
    return Problem.supervised(Pooled().eval(), samples), samples


def rewritten(model, *names, taken=frozenset()):
    """The graph of a model's operations with these rewrites installed in it, and the last one of them."""
    graph = fx.symbolic_trace(model)
    installed = [rewrite.install(None, graph, taken) for name, rewrite in REWRITES.items() if name in names]
    tidy(graph)
    return graph, installed[-1]
