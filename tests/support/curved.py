"""Small networks whose Hessian is known otherwise, and operators on it."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import torch
from small_models import make_job
from torch import Tensor, nn
from torch.func import functional_call, hessian

from landscape import Problem
from landscape.compute.executor import EvaluationSetting, LocalExecutor
from landscape.compute.hessian import HessianOperator
from landscape.compute.prepare import prepare

LINE = {"name": "line", "size": 3, "directions": [{"kind": "random"}]}


def mlp(widths: tuple[int, ...] = (5, 12, 8, 4), activation: type[nn.Module] = nn.Tanh, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        pairs = itertools.pairwise(widths)
        layers = [module for a, b in pairs for module in (nn.Linear(a, b), activation())]
        return nn.Sequential(*layers[:-1]).double()


def labelled(count: int = 17, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 5, generator=generator, dtype=torch.float64)
    return x, torch.randint(0, 4, (count,), generator=generator)


def operator_of(folder: Path, problem: Problem, method: Any = "autograd", **fields: Any) -> HessianOperator:
    """The operator of all samples at the problem's weights, in this process."""
    options = {"precision": "float64", "batch_size": 7, "num_samples": 17, **fields}
    prepared = prepare(make_job(folder, lambda: problem, [LINE], **options))
    (landscape,) = prepared.landscapes
    setting = EvaluationSetting(landscape.origin, (), landscape.plan)
    executor = LocalExecutor(prepared, landscape)
    return HessianOperator(executor, setting, problem, prepared.samples, method=method)


def dense_hessian(model: nn.Module, data: tuple[Tensor, Tensor], least_dimensions: int = 0) -> Tensor:
    """∇² of the mean cross-entropy as a matrix, by torch.func; over parameters of so many dimensions or more."""
    parameters = {name: each for name, each in model.named_parameters() if each.dim() >= least_dimensions}
    names, sizes = list(parameters), [each.numel() for each in parameters.values()]

    def loss(values: dict[str, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(functional_call(model, values, data[0]), data[1])

    found = hessian(loss)({name: each.detach() for name, each in parameters.items()})
    rows = [
        torch.cat([found[a][b].reshape(sizes[i], sizes[j]) for j, b in enumerate(names)], 1)
        for i, a in enumerate(names)
    ]
    return torch.cat(rows)
