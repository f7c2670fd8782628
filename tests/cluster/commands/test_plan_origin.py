"""What `plan` says of a landscape whose grid has no point at the origin, and what it proposes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from landscape import Job, Problem, TrajectoryCollector, run
from landscape.compute.axes_and_paths import origin_remedy
from landscape.compute.planning import plan_job, plan_text
from landscape.core.grid import Grid, axis_coordinates


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


@pytest.mark.parametrize("size", [13, 14, 15])
def test_a_plan_says_where_no_point_is_at_the_target_of_a_line(tmp_path, size):
    """The size that it proposes holds both ends."""
    target = tmp_path / "other.safetensors"
    save_file({name: -each for name, each in problem().model.state_dict().items()}, target)
    directions = [{"kind": "towards", "target": str(target)}]
    said = plan_job(job_of(tmp_path, size=size, range=[-0.2, 1.2], directions=directions))
    (line,) = said["landscapes"]
    remedy = None if size == 15 else "`size: 15` has one there"
    assert (line["origin_remedy"], line["target_remedy"]) == (remedy, remedy)
    told = f"  no point of the grid is at 1, so its barrier is not known; {remedy}"
    assert (told in plan_text(said).splitlines()) is (size != 15)
    (only,) = plan_job(job_of(tmp_path, size=11, range=[0, 1.2], directions=directions))["landscapes"]
    assert (only["origin_remedy"], only["target_remedy"]) == (None, "`size: 13` has one there")
    (far,) = plan_job(job_of(tmp_path, size=5, range=[-0.17, 1.2], directions=directions))["landscapes"]
    assert far["target_remedy"] == "without `range`, a `size` of 4 or more has one there"
    assert plan_job(job_of(tmp_path, size=5, directions=directions))["landscapes"][0]["target_remedy"] is None
    (short,) = plan_job(job_of(tmp_path, size=5, range=[0, 0.9], directions=directions))["landscapes"]
    assert short["target_remedy"] is None, "a line that ends before its target has no barrier"
    (plane,) = plan_job(job_of(tmp_path, size=4, range=[-0.2, 1.2], directions=[*directions, {"kind": "random"}]))[
        "landscapes"
    ]
    assert plane["target_remedy"] is None


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
