"""Runs with small landscapes, `landscape view` over them, and Chromium to look at its page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from browser_page import Look, find_chromium, serving
from playwright.sync_api import Browser, sync_playwright
from torch import Tensor, nn

from landscape import Job, Problem, TrajectoryCollector, refine, run
from landscape.analysis.checks.table import keep_checks
from landscape.surface.record_entries import Check, Checks

CHECKS = Checks(
    points=125,
    results=(
        Check(number="1", name="centre", state="holds", text="the centre is your model"),
        Check(number="6", name="resolution", state="reservation", text="off by 6 %", remedy="size: 81 gives 0.4 %"),
    ),
)
FLAGS = ["--no-sandbox", "--enable-unsafe-swiftshader", "--use-angle=swiftshader"]


def observe(model: nn.Module, batch: Tensor) -> dict[str, Tensor]:
    """Squared errors, which are not finite far from the minimum where the samples are large."""
    error = ((model(batch) - 1) ** 2).mean(1)
    return {"loss": torch.where(error > 40, torch.inf, error), "accuracy": (error < 1).float()}


def compute(folder: Path, seed: int) -> None:
    """A training of five epochs, its landscapes, and others of one, two and three axes."""
    torch.manual_seed(seed)
    model, samples = nn.Linear(3, 2), torch.randn(16, 3)
    watch = {"weight_change_too_large": 1e-9}  # which fires whenever anything moves
    collector = TrajectoryCollector(folder, model, unit="epoch", intervals=[[1, 2, 3], [3, 4, 5]], watch=watch)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.2)
    for _ in range(5):
        loss = observe(model, samples)["loss"].mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        collector.step(loss.item(), accuracy=0.5)
        collector.end_epoch()
    landscapes = [
        {"name": "epochs-1-3", "trajectory": [1, 2, 3], "size": [13, 11]},
        {"name": "epochs-3-5", "trajectory": [3, 4, 5], "size": 9},
        plane(seed),
        {"name": "line", "directions": [{"kind": "random"}], "size": 21},
        {"name": "cube", "directions": [{"kind": "random", "seed": k} for k in (1, 2, 3)], "size": 5},
    ]
    evaluate(folder, Problem(model, samples, observe), landscapes)
    keep_checks(folder, "cube", CHECKS)


def plane(seed: int) -> dict[str, Any]:
    """A landscape of two axes whose corners are not finite."""
    directions = [{"kind": "random", "seed": k} for k in (seed, 9)]
    return {"name": "plane", "size": [11, 9], "range": [-3, 3], "directions": directions}


def evaluate(folder: Path, problem: Problem, landscapes: list[dict[str, Any]]) -> None:
    """Compute landscapes of a problem, serially."""
    fields = {"engine": "eager", "batch_size": 16, "num_samples": 16, "tile": 8}
    run(Job(run=str(folder), problem=lambda: problem, landscapes=landscapes, **fields))


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two finished runs, which no test changes."""
    folder = tmp_path_factory.mktemp("runs")
    compute(folder / "net", 0)
    compute(folder / "team" / "other", 1)
    return folder


def plane_problem() -> Problem:
    torch.manual_seed(0)
    return Problem(nn.Linear(3, 2), torch.randn(16, 3), observe)


@pytest.fixture
def one_plane(tmp_path: Path) -> Path:
    """A folder with one run of one landscape."""
    evaluate(tmp_path / "runs" / "net", plane_problem(), [plane(0)])
    return tmp_path / "runs"


@pytest.fixture
def refined_plane(one_plane: Path) -> Path:
    """The same, finer below and left of the origin."""
    refine(one_plane / "net", "plane", box=[(-2, -1), (-2, -1)], problem=plane_problem)
    return one_plane


@pytest.fixture(scope="module")
def served(runs: Path) -> Iterator[str]:
    """The address of the page over the finished runs."""
    with serving(runs) as address:
        yield address


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """The system's Chromium, without a window; it draws in three dimensions in software.

    While it runs, this thread has a loop of events, in which tests of other modules could start none of theirs.
    """
    path = find_chromium()
    if path is None:
        pytest.skip("no Chromium or Chrome on this machine")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def look(chromium: Browser, served: str) -> Iterator[Look]:
    """The page over the finished runs in a fresh profile; the console and foreign requests are checked at the end."""
    with Look.open(chromium, served) as opened:
        yield opened
