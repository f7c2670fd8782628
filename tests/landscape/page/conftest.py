"""Runs with tiny landscapes, computed once, and the page over them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from page_client import Client, asking
from torch import Tensor, nn

from landscape import Job, Problem, TrajectoryCollector, run
from landscape.core.http import Guard
from landscape.page.server import make_app
from landscape.store.status import open_place

GUARD = Guard("the-token")
COOKIE = f"{GUARD.cookie}=the-token"


def observe(model: nn.Module, batch: Tensor) -> dict[str, Tensor]:
    error = ((model(batch) - 1) ** 2).mean(1)
    return {"loss": error, "accuracy": (error < 1).float()}


def compute(folder: Path) -> None:
    """A training of three epochs, and landscapes of one, two and three axes."""
    torch.manual_seed(0)
    model, samples = nn.Linear(3, 2), torch.randn(8, 3)
    collector = TrajectoryCollector(folder, model, unit="epoch", intervals=[[1, 2, 3]])
    for k in range(3):
        with torch.no_grad():
            model.weight.mul_(0.8)
            model.bias.add_(0.1 * k)
        collector.step(1.0 / (k + 1))
        collector.end_epoch()
    landscapes = [
        {"name": "minimum", "size": [5, 4]},
        {"name": "path", "trajectory": [1, 2, 3], "size": 5},
        {"name": "line", "directions": [{"kind": "random"}], "size": 6},
        {"name": "cube", "directions": [{"kind": "random", "seed": seed} for seed in (1, 2, 3)], "size": 3},
    ]
    problem = Problem(model, samples, observe)
    fields = {"engine": "eager", "batch_size": 8, "num_samples": 8, "tile": 2}
    run(Job(run=str(folder), problem=lambda: problem, landscapes=landscapes, **fields))


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one finished run, `net`, which no test changes."""
    runs = tmp_path_factory.mktemp("runs")
    compute(runs / "net")
    return runs


@pytest.fixture
def runs(finished: Path, tmp_path: Path) -> Path:
    """A copy of the folder with the finished run."""
    return shutil.copytree(finished, tmp_path / "runs")


@pytest.fixture(scope="module")
def client(finished: Path) -> Iterator[Client]:
    """The page over the finished run."""
    with asking(make_app([open_place(str(finished))], GUARD), COOKIE) as asked:
        yield asked


@pytest.fixture(scope="module")
def net(client: Client) -> str:
    """The identifier of the finished run."""
    while (answer := client.json("/api/runs"))["scanning"]:
        pass
    return str(answer["runs"][0]["id"])
