"""Small problems whose sharpness is known in closed form, and what measures are asked of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from small_models import make_job
from torch import Tensor, nn

from landscape import Problem
from landscape.analysis.measures.lines import LineOrigin
from landscape.analysis.measures.worst import Slope
from landscape.compute.executor import EvaluationSetting, LocalExecutor
from landscape.compute.prepare import prepare
from landscape.compute.prepared import PreparedJob
from landscape.model.parameters import ParameterInfo, describe_parameters

LINE = {"name": "line", "size": 3, "directions": [{"kind": "random"}]}


class Bowl(nn.Module):
    """ℓᵢ = ½(θ − cᵢ)ᵀA(θ − cᵢ) with A = diag(curvatures); θ a matrix, and a second matrix that does nothing."""

    def __init__(self, curvatures: Tensor, theta: Tensor) -> None:
        super().__init__()
        self.bowl = nn.Module()
        self.bowl.weight = nn.Parameter(theta.double().reshape(2, -1))
        self.idle = nn.Linear(2, 2).double()
        self.register_buffer("curvatures", curvatures.double())

    def forward(self, centres: Tensor) -> Tensor:
        return 0.5 * (self.curvatures * (self.bowl.weight.reshape(-1) - centres) ** 2).sum(1)


def bowl(curvatures: list[float], theta: list[float], count: int = 32, seed: int = 3) -> Problem:
    """A bowl whose centres have the mean 0: the gradient at θ is Aθ."""
    centres = torch.randn(count, len(theta), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    centres -= centres.mean(0)
    return Problem(Bowl(torch.tensor(curvatures), torch.tensor(theta)), centres, observe)


def observe(model: nn.Module, batch: Any) -> dict[str, Tensor]:
    return {"loss": model(batch)}


def relu_net(scale: float = 1.0, seed: int = 4) -> Problem:
    """Two layers without biases, the first times `scale` and the second divided by it: one function for all scales."""
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 6, bias=False), nn.ReLU(), nn.Linear(6, 2, bias=False)).double()
    with torch.no_grad():
        for layer, factor in ((model[0], scale), (model[2], 1 / scale)):
            layer.weight.copy_(factor * torch.randn(layer.weight.shape, generator=generator, dtype=torch.float64))
    x = torch.randn(32, 3, generator=generator, dtype=torch.float64)
    return Problem.supervised(model, (x, (x[:, 0] > 0).long()), metrics=["accuracy"])


@dataclass(frozen=True)
class Scene:
    """What measures are asked of, at a problem's own weights."""

    prepared: PreparedJob
    base: LineOrigin
    slope: Slope

    @property
    def infos(self) -> tuple[ParameterInfo, ...]:
        return describe_parameters(self.prepared.problem.model)


def scene_of(folder: Path, problem: Problem, **fields: Any) -> Scene:
    options: Mapping[str, Any] = {"precision": "float64", "batch_size": 8, "num_samples": 32, **fields}
    prepared = prepare(make_job(folder, lambda: problem, [LINE], **options))
    (landscape,) = prepared.landscapes
    executor = LocalExecutor(prepared, landscape)
    base = LineOrigin.of(executor, landscape.plan, landscape.origin, prepared.problem)
    setting = EvaluationSetting(landscape.origin, (), landscape.plan)
    return Scene(prepared, base, Slope(executor, setting, prepared.problem, prepared.samples))
