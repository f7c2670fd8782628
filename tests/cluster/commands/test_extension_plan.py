"""What `landscape extend --plan` says of several steps: each costs what it costs once those before it are done."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import Quadratic, make_job, observe_quadratic, quadratic_samples, wandering, write_trajectory
from torch import nn

from cluster.commands.app import command
from cluster.commands.planning import extension_text, plan_extension
from landscape import JobError, Problem, extend, refine, run
from landscape.compute.extend import More

MORE = More(num_samples=37, observables=("root",), ranges=((-2.0, 1.0), (-1.0, 1.0)))


def problem(*more: str, most: int = 40) -> Callable[[], Problem]:
    def observe(model: Quadratic, batch: Any) -> dict[str, Any]:
        if len(batch) > most:
            raise MemoryError
        loss = observe_quadratic(model, batch)["loss"]
        return {"loss": loss, **{name: loss.sqrt() for name in more}}

    return lambda: Problem(Quadratic(), quadratic_samples(40), observe)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    write_trajectory(tmp_path, wandering(Quadratic(), 3))
    spec = {"name": "a", "trajectory": "all", "size": [5, 3], "range": [-1, 1]}
    run(make_job(tmp_path, problem(), [spec], num_samples=20, batch_size=8))
    return tmp_path


def test_every_step_costs_what_it_does_when_its_turn_has_come(place):
    steps = list(MORE.one_by_one())
    planned = plan_extension(str(place), "a", steps, problem("root"), workers=1)
    costs = [(step["adds"], step["points"], step["samples"]) for step in planned["steps"]]
    assert costs == [
        ("--observable root", 15, 20), ("--samples 37", 15 + 2 * 3, 37 - 16), ("--range=-2,1,-1,1", 21 - 15, 37)
    ]  # fmt: skip
    seconds = [step["seconds"] for step in planned["steps"]]
    assert planned["seconds_of_all_steps"] == sum(seconds)
    assert seconds[1] / seconds[2] == pytest.approx(21 * 21 / (6 * 37))
    lines = extension_text(planned).splitlines()
    assert lines[0] == "step 1 of 3: --observable root"
    assert [line.split(": about ")[0] for line in lines[-3:]] == [
        "step 2 of 3: --samples 37: 21 points are evaluated, on 21 samples each",
        "step 3 of 3: --range=-2,1,-1,1: 6 points are evaluated, on 37 samples each",
        "all 3 steps",
    ]
    for number, step in enumerate(steps):
        (alone,) = plan_extension(str(place), "a", [step], problem("root"), workers=1)["steps"]
        assert (alone["adds"], alone["points"], alone["samples"]) == costs[number]
        extend(
            place, "a", num_samples=step.num_samples, observables=step.observables, ranges=step.ranges,
            problem=problem("root"),
        )  # fmt: skip


def test_the_samples_of_a_later_step_are_those_of_every_term(tmp_path):
    """A term that has used up its points gets no more; the others are evaluated beyond their complete blocks."""

    def square(model: nn.Module, points: Any) -> Any:
        return model(points)[:, 0] ** 2

    def terms() -> Problem:
        torch.manual_seed(0)
        sets = {"inside": (torch.randn(40, 2), square), "edge": (torch.randn(6, 2), square)}
        return Problem.terms(nn.Linear(2, 1), sets)

    run(make_job(tmp_path, terms, [{"name": "a", "size": [5, 3], "range": [-1, 1]}], num_samples=20, batch_size=8))
    steps = [More(ranges=((-2.0, 1.0), (-1.0, 1.0))), More(num_samples=37)]
    planned = plan_extension(str(tmp_path), "a", steps, terms, workers=1)
    (wider, more), seconds = planned["steps"], [step["seconds"] for step in planned["steps"]]
    assert (wider["points"], wider["samples"]) == (6, {"inside": 20, "edge": 6})
    assert (more["points"], more["samples"]) == (21, {"inside": 37 - 16, "edge": 0})
    assert seconds[1] / seconds[0] == pytest.approx(21 * 21 / (6 * 26))
    assert "step 2 of 2: --samples 37: 21 points are evaluated, on 21 of inside, 0 of edge each" in extension_text(
        planned
    )


def test_batches_that_do_not_fit_are_told_by_the_plan_too(place):
    with pytest.raises(JobError, match=r"batch_size: 8, .* does not fit the memory here"):
        plan_extension(str(place), "a", [More(num_samples=37)], problem(most=4))


def test_the_command_plans_every_step_and_writes_nothing(place, capsys, monkeypatch, logging_as_it_was):
    (place / "planned_problem.py").write_text(
        "from small_models import Quadratic, observe_quadratic, quadratic_samples\n"
        "from landscape import Problem\n\n\n"
        "def problem():\n    return Problem(Quadratic(), quadratic_samples(40), observe_quadratic)\n"
    )
    before = sorted((path, path.stat().st_mtime_ns) for path in place.rglob("landscapes.zarr/**/*"))
    words = ["extend", str(place), "a", "--samples", "37", "--range=-2,1,-1,1", "--plan", "--json"]
    words += ["--problem", "planned_problem:problem", "--folder", str(place)]
    monkeypatch.setattr(sys, "argv", ["landscape", *words])
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert command() == 0
    planned = json.loads(capsys.readouterr().out)
    assert [step["points"] for step in planned["steps"]] == [21, 6]
    assert sorted((path, path.stat().st_mtime_ns) for path in place.rglob("landscapes.zarr/**/*")) == before


def test_the_levels_of_a_refinement_are_planned_too(place):
    refine(place, "a", problem=problem())
    planned = plan_extension(str(place), "a", [More(num_samples=37)], problem(), workers=1)
    finer = 9 * 5 - 15
    assert [(level["level"], level["size"], level["points"]) for level in planned["levels"]] == [(1, [9, 5], finer)]
    assert [(step["points"], step["samples"]) for step in planned["steps"]] == [(15 + 2 * 3 + finer, 37 - 16)]
    assert planned["levels"][0]["seconds"] / planned["seconds_of_all_steps"] == pytest.approx(finer / (21 + finer))
    lines = [line.split(": about ")[0].split(", about ")[0] for line in extension_text(planned).splitlines()]
    assert lines[-2:] == ["level 1: 30 points of 9 x 5", "with its levels"]
    more = plan_extension(
        str(place), "a", list(More(num_samples=37, observables=("root",)).one_by_one()), problem("root")
    )
    assert [step["points"] for step in more["steps"]] == [15 + finer, 15 + 2 * 3 + finer]
