"""`refine:` of a job: the blocks that the values ask for, whatever interrupts it, within budget and above the noise."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from small_models import make_job
from torch import Tensor, nn

from landscape import Problem, Surface, open_run, run
from landscape.core.errors import Interrupted, JobError
from landscape.core.grid import tile_counts
from landscape.job.job import Job
from landscape.surface.refinement import blocks_of_tiles, from_stretches, grow_blocks, parents_of, spread

FINEST = np.linspace(-1, 1, 513)


class Plane(nn.Module):
    """Two weights, which are the coordinates of a plane: the axes move one each."""

    def __init__(self) -> None:
        super().__init__()
        self.at = nn.Parameter(torch.zeros(2, dtype=torch.float64))


def canyon(x: Tensor, y: Tensor) -> Tensor:
    """A bowl with a narrow wall across it."""
    return x**2 + y**2 + torch.exp(-(((x - 0.6 * y + 0.1) / 0.08) ** 2))


def bowl(x: Tensor, y: Tensor) -> Tensor:
    return x**2 + y**2


def problem_of(loss: Callable[[Tensor, Tensor], Tensor], noise: float = 0.0) -> Callable[[], Problem]:
    """The loss over two samples, which are `noise` apart from it to either side."""

    def observe(model: nn.Module, batch: Tensor) -> dict[str, Tensor]:
        return {"loss": loss(*model.at) + noise * batch}

    return lambda: Problem(Plane(), torch.tensor([-1.0, 1.0], dtype=torch.float64), observe)


@pytest.fixture(scope="module")
def directions(tmp_path_factory) -> list[dict[str, str]]:
    """Axes that move one of the two weights each."""
    place = tmp_path_factory.mktemp("axes")
    for axis in (0, 1):
        save_file({"at": torch.eye(2)[axis].clone()}, place / f"{axis}.safetensors")
    return [{"kind": "file", "path": str(place / f"{axis}.safetensors")} for axis in (0, 1)]


# The tiles are given: else their shape would follow from how quick this machine is just now, and the chunks from that.
FIELDS = {"num_samples": 2, "batch_size": 2, "precision": "float64", "engine": "eager", "tile": 8}


@pytest.fixture
def make(directions) -> Callable[..., Job]:
    """A job over the plane of a loss."""

    def make_one(folder: Path, problem: Callable[[], Problem], **spec: Any) -> Job:
        landscape = {"name": "a", "directions": directions, "range": [-1, 1], "size": 17, **spec}
        return make_job(folder, problem, [landscape], **FIELDS)

    return make_one


def known(surface: Surface) -> int:
    return surface.status.size + sum(int((level.status > 0).sum()) for level in surface.levels)


def truth(loss: Callable[[Tensor, Tensor], Tensor], surface: Surface) -> np.ndarray:
    beta, alpha = np.meshgrid(surface.beta, surface.alpha, indexing="ij")
    return loss(torch.from_numpy(alpha), torch.from_numpy(beta)).numpy()


def files_of(place: Path) -> dict[str, bytes]:
    """Every chunk of a landscape and of its levels."""
    root = place / "landscapes.zarr" / "a"
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("c/**/*") if path.is_file()}


def blocks_of(place: Path) -> list[tuple[Any, ...]]:
    levels = open_run(place)["a"].levels
    return [(each.record.level.blocks, each.record.level.eta, each.record.level.chosen_by) for each in levels]


@pytest.fixture(scope="module")
def refined(tmp_path_factory, directions) -> Path:
    """A canyon refined to three levels at most by its budget."""
    landscape = {"name": "a", "directions": directions, "range": [-1, 1], "size": 17}
    landscape["refine"] = {"tolerance": "1%", "points": 1200}
    return Path(run(make_job(tmp_path_factory.mktemp("canyon"), problem_of(canyon), [landscape], **FIELDS)).path)


@pytest.mark.faults
@pytest.mark.long
def test_a_narrow_canyon_takes_a_third_of_the_points_at_the_same_largest_error(tmp_path, make):
    surface = run(make(tmp_path, problem_of(canyon), size=9, refine={"tolerance": "1%"}))["a"]
    merged = surface.merged()
    even = truth(canyon, merged)
    assert even.shape == (129, 129)
    assert known(surface) <= 0.35 * even.size
    finest = truth(canyon, replace(merged, axes=tuple(replace(axis, coordinates=FINEST) for axis in merged.axes)))
    assert np.abs(spread(spread(merged.loss)) - finest).max() <= np.abs(spread(spread(even)) - finest).max()


def test_a_smooth_bowl_stops_at_the_first_level(tmp_path, make):
    surface = run(make(tmp_path, problem_of(bowl), refine={}))["a"]
    assert len(surface.levels) <= 1
    merged = surface.merged()
    assert np.abs(merged.loss - truth(bowl, merged)).max() < 0.01 * np.subtract(*np.percentile(surface.loss, [95, 5]))


def test_the_budget_is_kept_and_the_largest_errors_come_first(refined):
    surface = open_run(refined)["a"]
    assert 1200 - 250 < known(surface) <= 1200
    last = surface.levels[-1].record.level
    assert last.rule == {"tolerance": 0.01, "points": 1200}
    assert min(last.eta) >= 0
    assert all(level.record.level.chosen_by for level in surface.levels)


def test_neighbours_differ_by_one_level_at_most(refined):
    levels = open_run(refined)["a"].levels
    held = [_blocks(level) for level in levels]
    for coarser, finer, level in zip(held, held[1:], levels, strict=False):
        assert (coarser | ~parents_of(grow_blocks(finer), level.loss.shape)).all()


def _blocks(level: Surface) -> np.ndarray:
    shape = level.loss.shape
    tiles = from_stretches(level.record.level.blocks, tile_counts(shape, (8, 8)))
    return blocks_of_tiles(tiles, shape)


@pytest.mark.faults
def test_an_interruption_gives_the_same_blocks_and_bytes(refined, tmp_path, make):
    asked = make(tmp_path, problem_of(canyon), refine={"tolerance": "1%", "points": 1200})
    interruptions = 0
    for tasks in (3, 5, 7, 9, 1000):
        left = [tasks]

        def count(progress: Any, left: list[int] = left) -> None:
            left[0] -= 1

        try:
            run(asked, count, lambda left=left: left[0] <= 0)
        except Interrupted:
            interruptions += 1
    assert interruptions >= 3
    assert blocks_of(tmp_path) == blocks_of(refined)
    assert files_of(tmp_path) == files_of(refined)
    before = files_of(tmp_path)
    run(asked)
    assert files_of(tmp_path) == before


def test_a_finished_landscape_is_refined_once_its_job_asks_for_it(tmp_path, make):
    surface = run(make(tmp_path, problem_of(canyon)))["a"]
    assert not surface.levels
    assert run(make(tmp_path, problem_of(canyon), refine={"points": 400}))["a"].levels


def test_noise_within_its_standard_errors_refines_nothing(tmp_path, make, caplog):
    def noisy() -> Problem:
        def observe(model: nn.Module, batch: Tensor) -> dict[str, Tensor]:
            x, y = (float(value) for value in model.at)
            noise = np.sin(12.9898 * x + 78.233 * y) * 43758.5453 % 1  # the same at every visit
            return {"loss": 1 + 0.01 * noise + (0.01 + abs(x) + abs(y)) * batch}

        return Problem(Plane(), torch.tensor([-1.0, 1.0], dtype=torch.float64), observe)

    with caplog.at_level(logging.WARNING):
        surface = run(make(tmp_path, noisy, refine={"tolerance": 0.001}))["a"]
    assert not surface.levels
    assert "below two standard errors of its rise" in caplog.text


REFUSED = [
    ({"tolerance": "200%"}, "refine.tolerance: must be a share of the relief between 0 and 1, such as 1% or 0.01"),
    ({"tolerance": 0}, "refine.tolerance: must be a share of the relief"),
    ({"tolerance": "a"}, "refine.tolerance: must be a share of the relief"),
    ({"points": 0}, "refine.points: must be"),
    ({"tolerence": 0.1}, "refine.tolerence: "),
]


@pytest.mark.parametrize(("refine", "told"), REFUSED)
def test_what_cannot_be_asked_for_is_refused(tmp_path, make, refine, told):
    with pytest.raises(JobError) as caught:
        make(tmp_path, problem_of(bowl), refine=refine)
    assert told in str(caught.value)


def test_three_axes_are_not_refined_by_a_job(tmp_path):
    spec = {"name": "a", "size": 3, "refine": {}, "directions": [{"kind": "random"}] * 3}
    with pytest.raises(JobError, match="refine must be left out over three axes"):
        make_job(tmp_path, problem_of(bowl), [spec])
