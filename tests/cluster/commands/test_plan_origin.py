"""What `plan` says of a landscape whose grid has no point at the origin, and what it proposes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cluster.planning import plan_job, plan_text
from landscape import Job, Problem, TrajectoryCollector, run
from landscape.grid import Grid, axis_coordinates
from landscape.preparation.origin_point import origin_remedy


def problem() -> Problem:
    torch.manual_seed(0)
    return Problem.supervised(torch.nn.Linear(4, 3), (torch.randn(16, 4), torch.randint(0, 3, (16,))))


def job_of(folder, **landscape) -> Job:
    landscapes = [{"name": "plane", **landscape}] if landscape else []
    return Job(run=str(folder / "run"), problem=problem, num_samples=16, landscapes=landscapes)


def grid_of(*axes) -> Grid:
    return Grid(("alpha", "beta", "gamma")[: len(axes)], tuple(axis_coordinates(*each) for each in axes))


@pytest.mark.long
@pytest.mark.parametrize(
    ("axes", "remedy"),
    [
        ([(41, -1, 1)], None),
        ([(3, -1, 1), (5, -0.3, 0.3), (15, -0.2, 1.2)], None),
        ([(40, -1, 1)], "`size: 41` has one there"),
        ([(41, -0.2, 1.2)], "`size: 43` has one there"),
        ([(40, -1, 1), (41, -1, 1)], "`size: 41` has one there"),
        ([(4, -1, 1), (7, -1, 1), (6, -1, 1)], "`size: [5, 7, 7]` has one there"),
        ([(65536, -1, 1)], "a `range` with 0 in its middle and an odd `size` have one there"),
        ([(41, 0.5, 1)], "`range` must hold 0 for that, and alpha does not"),
        ([(41, -1, 1), (41, -2, -1)], "`range` must hold 0 for that, and beta does not"),
        ([(41, -0.123, 1)], "a `range` with 0 in its middle and an odd `size` have one there"),
    ],
)
def test_the_remedy_names_the_next_size_or_the_range(axes, remedy):
    assert origin_remedy(grid_of(*axes)) == remedy
    if remedy and "`size: " in remedy and len(axes) == 1:
        size = int(remedy.split()[1].strip("`"))
        assert 0.0 in axis_coordinates(size, *axes[0][1:])


def test_a_plan_says_where_no_point_is_at_the_origin(tmp_path):
    said = plan_job(job_of(tmp_path, size=[4, 5]))
    assert said["landscapes"][0]["origin_on_grid"] is False
    assert said["landscapes"][0]["origin_remedy"] == "`size: 5` has one there"
    assert "  no point of the grid is at the origin; `size: 5` has one there" in plan_text(said).splitlines()
    fine = plan_job(job_of(tmp_path, size=5))
    assert (fine["landscapes"][0]["origin_on_grid"], fine["landscapes"][0]["origin_remedy"]) == (True, None)
    assert "at the origin" not in plan_text(fine)


def test_a_plan_tells_the_passes_of_the_users_own_model_or_why_there_are_none(tmp_path):
    told = "  compared with your own model first, at the centre and at one point beside it: 2 forward passes"
    said = plan_job(job_of(tmp_path, size=5))
    assert said["landscapes"][0]["own_model"] == {"evaluations": 2, "why_not": ""}
    assert told in plan_text(said).splitlines()
    assert said["seconds"] == pytest.approx((25 + 2) * said["seconds_per_point"] / said["workers"])
    quantised = plan_job(job_of(tmp_path, size=5, quantise={"bits": 4}))
    assert quantised["landscapes"][0]["own_model"]["evaluations"] == 0
    assert "weights rounded to 4 bits" in quantised["landscapes"][0]["own_model"]["why_not"]
    assert told not in plan_text(quantised)
    run(job_of(tmp_path, size=5))
    assert told not in plan_text(plan_job(job_of(tmp_path, size=5)))


def test_a_landscape_that_is_begun_keeps_its_grid(tmp_path):
    run(job_of(tmp_path, size=[4, 5]))
    (said,) = plan_job(job_of(tmp_path, size=[4, 5]))["landscapes"]
    assert (said["origin_on_grid"], said["origin_remedy"]) == (False, None)


def test_the_size_that_the_collector_takes_from_the_tutorial_is_no_remark(tmp_path):
    model = problem().model
    collector = TrajectoryCollector(tmp_path / "run", model, unit="step", intervals=[[1, 2, 3]])
    for _ in range(3):
        with torch.no_grad():
            for each in model.parameters():
                each += torch.randn_like(each)
        collector.step(1.0)
    path, result = plan_job(job_of(tmp_path))["landscapes"]
    assert path["origin_on_grid"] is True
    assert (result["axes"][0]["size"], result["origin_on_grid"], result["origin_remedy"]) == (40, False, None)
    assert np.isclose(result["axes"][0]["low"], -1)
