"""Small problems whose landscapes are known otherwise, and readings of a run that bypass the code under test."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from landscape import Job, Problem
from landscape.model.snapshots import write_snapshot

# Calls of `observe` beside those of the grid and the path: the first look; two that count what a sample costs and three
# that are timed before a landscape is made; and the origin and the point that a process reproduces before its first
# tile. At these two the user's own model is evaluated as well where the landscape is new. All but the first look and
# the counting are points, before which a job can be stopped.
LOOK, COUNTED, MEASURED, WITNESS, OWN_MODEL = 3, 2, 3, 2, 2


def combine(
    origin: Mapping[str, Tensor], directions: Sequence[Mapping[str, Tensor]], coordinates: Sequence[float]
) -> dict[str, Tensor]:
    """The point θ = θ₀ + Σₖ cₖ·dₖ, in the type of θ₀; tensors in no direction are those of θ₀."""
    point = dict(origin)
    for coordinate, direction in zip(coordinates, directions, strict=True):
        for name, tensor in direction.items():
            point[name] = torch.add(point[name], tensor.to(point[name].dtype), alpha=coordinate)
    return point


class Quadratic(nn.Module):
    """Per-sample loss ½·Σⱼ aⱼ·(θⱼ − xᵢⱼ)², θ spread over a matrix, a vector and a scalar."""

    def __init__(self, dtype: torch.dtype = torch.float32, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.matrix = nn.Parameter(torch.randn(4, 3, generator=generator, dtype=dtype))
        self.vector = nn.Parameter(torch.randn(5, generator=generator, dtype=dtype))
        self.scalar = nn.Parameter(torch.randn((), generator=generator, dtype=dtype))
        self.register_buffer("curvature", torch.linspace(0.5, 2.0, 18, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        theta = torch.cat([self.matrix.reshape(-1), self.vector, self.scalar.reshape(1)])
        return 0.5 * (self.curvature * (theta - x) ** 2).sum(1)


def observe_quadratic(model: nn.Module, batch: Any) -> dict[str, Tensor]:
    return {"loss": model(batch)}


def quadratic_samples(count: int = 23, dtype: torch.dtype = torch.float32, seed: int = 5) -> Tensor:
    return torch.randn(count, 18, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def train_quadratic(collector: Any, model: Quadratic, epochs: Iterable[int]) -> None:
    """Epochs of plain gradient descent, told to a `TrajectoryCollector`.

    Not by torch.optim, which takes two seconds to import what it needs, in every process.
    """
    for epoch in epochs:
        for batch in quadratic_samples(seed=epoch).split(12):
            loss = model(batch).mean()
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            with torch.no_grad():
                for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                    parameter -= 0.1 * gradient
            collector.step(loss)
        collector.end_epoch()


def quadratic_problem(dtype: torch.dtype = torch.float32, count: int = 23) -> Problem:
    return Problem(Quadratic(dtype), quadratic_samples(count, dtype), observe_quadratic)


def quadratic_loss(theta: np.ndarray, samples: np.ndarray, curvature: np.ndarray) -> float:
    """The closed form of the mean loss, by centring: ½·Σⱼ aⱼ·((θⱼ − x̄ⱼ)² + varⱼ)."""
    return float(0.5 * (curvature * ((theta - samples.mean(0)) ** 2 + samples.var(0))).sum())


class ConvNet(nn.Module):
    """Convolution, batch normalisation, dropout and a linear layer, three classes, 1×6×6 inputs."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.conv = nn.Conv2d(1, 4, 3, bias=False)
            self.bn = nn.BatchNorm2d(4)
            self.dropout = nn.Dropout(0.5)
            self.linear = nn.Linear(4 * 16, 3)
            nn.init.uniform_(self.bn.weight, 0.5, 1.5)
            nn.init.normal_(self.bn.bias)
            self.bn.running_mean.normal_(0, 0.3)
            self.bn.running_var.uniform_(0.5, 2.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.dropout(torch.relu(self.bn(self.conv(x))).flatten(1)))


def image_samples(count: int = 29, seed: int = 3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(count, 1, 6, 6, generator=generator),
        torch.randint(0, 3, (count,), generator=generator),
    )


def conv_problem(count: int = 29, seed: int = 0) -> Problem:
    return Problem.supervised(ConvNet(seed), image_samples(count))


def make_job(run: Path, problem: Any, landscapes: Sequence[Mapping[str, Any]], **fields: Any) -> Job:
    return Job(run=str(run), problem=problem, landscapes=list(landscapes), **fields)


def write_trajectory(run: Path, states: Mapping[int, Mapping[str, Tensor]], unit: str = "epoch") -> None:
    for number, state in states.items():
        write_snapshot(Path(run), unit, number, {name: tensor.contiguous() for name, tensor in state.items()})


def wandering(model: nn.Module, count: int, scale: float = 0.1, seed: int = 11) -> dict[int, dict[str, Tensor]]:
    """Snapshots 1 … count of a random walk from the model's weights; buffers walk too, variances stay positive."""
    generator = torch.Generator().manual_seed(seed)
    state = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    found = {}
    for number in range(1, count + 1):
        for name, tensor in state.items():
            if tensor.is_floating_point():
                step = scale * torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)
                state[name] = tensor + (step.abs() if name.endswith("var") else step)
        found[number] = dict(state)
    return found


# Readings of a run straight from its files, without the package's store.


def chunks_of(run: Path, name: str = "a") -> dict[str, bytes]:
    """The bytes of every chunk of a landscape on disk, by its path below the landscape."""
    place = run / "landscapes.zarr" / name
    return {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("c/**/*") if path.is_file()}


def raw_chunk(run: Path, name: str, array: str, index: Sequence[int]) -> Path:
    return Path(run) / "landscapes.zarr" / name / array / "c" / "/".join(map(str, index))


def raw_directions(run: Path, name: str) -> list[dict[str, np.ndarray]]:
    """The stored directions from the raw bytes: little-endian float32 rows, each chunk ending in a CRC32C."""
    folder = Path(run) / "landscapes.zarr" / name / "directions"
    attributes = json.loads((folder / "zarr.json").read_text())["attributes"]
    found = []
    for path in sorted((folder / "c").iterdir(), key=lambda each: int(each.name)):
        vector = np.frombuffer((path / "0").read_bytes()[:-4], "<f4")
        found.append(
            {
                place["name"]: vector[place["offset"] : place["offset"] + int(np.prod(place["shape"]))].reshape(
                    place["shape"]
                )
                for place in attributes["layout"]
            }
        )
    return found


def flat(tensors: Mapping[str, Any], names: Sequence[str]) -> np.ndarray:
    """One float64 vector of the named tensors, in this order."""
    return np.concatenate([np.asarray(tensors[name], np.float64).reshape(-1) for name in names])


class Counter:
    """Wraps `observe` and counts its calls; raises or returns what `fault` says of the model."""

    def __init__(self, observe: Any, fault: Any = None) -> None:
        self.observe, self.fault, self.calls = observe, fault, 0

    def __call__(self, model: nn.Module, batch: Any) -> Any:
        self.calls += 1
        if self.fault is not None:
            self.fault(model)
        return self.observe(model, batch)


def plan_on_disk(folder: Path, name: str = "plane") -> tuple[dict[str, Any], dict[str, Any]]:
    """The plan of a landscape and all its attributes, read as JSON."""
    attributes = json.loads((folder / "landscapes.zarr" / name / "zarr.json").read_text())["attributes"]
    return attributes["plan"], attributes
