"""`range: auto`: how far axes run, against closed forms; what is recorded of it, resumed, extended and refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from small_models import chunks_of, make_job
from torch import Tensor, nn

from cluster.runtime.status import run_status, status_text
from landscape import Problem, Surface, extend, open_run, run
from landscape.compute import serial
from landscape.compute.auto_range import distance_of, find_range, finder_of, number_of, search, target_of
from landscape.compute.executor import LocalExecutor, local_executors
from landscape.compute.planning import plan_job, plan_text
from landscape.compute.prepare import prepare
from landscape.core.errors import Interrupted, JobError
from landscape.job.job import Job
from landscape.views.prepare.words import caption

TARGET = 0.1  # where the loss at the origin is 0
NO_NUMBERS = "range: must be given in numbers, not auto, as the loss "
LEAVE_OUT = "axes, or given in numbers, not auto; left out, it reaches"


class Place(nn.Module):
    """Three weights, which are the coordinates of a space: the axes move one each."""

    def __init__(self) -> None:
        super().__init__()
        self.at = nn.Parameter(torch.zeros(3, dtype=torch.float64))


def bowl(at: Tensor) -> Tensor:
    """A paraboloid of curvatures 1, 10 and 1000."""
    return 0.5 * (at[0] ** 2 + 10 * at[1] ** 2 + 1000 * at[2] ** 2)


def rounded_up(distance: float) -> float:
    """To two digits."""
    power = 10.0 ** (math.floor(math.log10(distance)) - 1)
    return float(f"{math.ceil(distance / power) * power:.6g}")


def radius(curvature: float, target: float = TARGET) -> float:
    return rounded_up(math.sqrt(2 * target / curvature))


def problem_of(loss: Callable[[Tensor], Tensor]) -> Callable[[], Problem]:
    def observe(model: nn.Module, batch: Tensor) -> dict[str, Tensor]:
        return {"loss": loss(model.at) + 0 * batch}

    return lambda: Problem(Place(), torch.zeros(4, dtype=torch.float64), observe)


@pytest.fixture(scope="module")
def axes(tmp_path_factory) -> list[dict[str, str]]:
    """Axes that move one of the three weights each."""
    place = tmp_path_factory.mktemp("axes")
    for axis in range(3):
        save_file({"at": torch.eye(3)[axis].clone()}, place / f"{axis}.safetensors")
    return [{"kind": "file", "path": str(place / f"{axis}.safetensors")} for axis in range(3)]


@pytest.fixture
def make(axes, tmp_path) -> Callable[..., Job]:
    """A job over the first axes of a loss, in the test's folder or one below."""

    def make_one(
        loss: Callable[[Tensor], Tensor] = bowl, count: int = 2, below: str = "", tile: int = 3, **spec: Any
    ) -> Job:
        landscape = {"name": "a", "directions": axes[:count], "range": "auto", "size": 5, **spec}
        fields = {"num_samples": 4, "batch_size": 2, "precision": "float64", "engine": "eager", "tile": tile}
        return make_job(tmp_path / below, problem_of(loss), [landscape], **fields)

    return make_one


def ends(surface: Surface) -> list[tuple[float, float]]:
    return [(float(axis.coordinates[0]), float(axis.coordinates[-1])) for axis in surface.axes]


# -- the search ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("curvature", [1e-3, 0.2, 1.0, 3.7, 1e5])
@pytest.mark.parametrize("start", [0.013, 1.0, 7.3])
def test_an_axis_runs_to_the_first_distance_of_two_digits_that_reaches_the_target(curvature, start):
    asked, one = [], search(start, 1e3, TARGET)
    found, distance = None, next(one)
    while found is None:
        asked.append(distance)
        try:
            distance = one.send(0.5 * curvature * distance**2)
        except StopIteration as ended:
            found = ended.value
    assert (found.radius, found.end) == (radius(curvature), "target")
    assert found.change == 0.5 * curvature * found.radius**2 >= TARGET
    assert len(asked) == len(set(asked)) <= 8 + abs(math.log2(found.radius / start))


def test_distances_of_two_digits_are_numbered_one_after_another():
    numbers = range(-500, 500)
    distances = [distance_of(number) for number in numbers]
    assert [number_of(distance) for distance in distances] == list(numbers)
    assert [float(f"{distance:.2g}") for distance in distances] == distances == sorted(distances)


def test_the_target_is_a_third_of_guessing_or_the_loss_itself():
    assert target_of(5.0, math.log(10)) == (math.log(10) / 3, "guessing")
    assert target_of(5.0, None) == (5.0, "origin")
    assert target_of(0.01, None) == target_of(0.01, 0.0) == (0.1, "least")


# -- landscapes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3])
def test_each_axis_of_a_paraboloid_runs_to_its_own_radius(make, tmp_path, count, caplog):
    caplog.set_level("INFO", logger="landscape")
    surface = run(make(count=count, size=3))["a"]
    radii = [radius(curvature) for curvature in (1, 10, 1000)[:count]]
    assert ends(surface) == [(-each, each) for each in radii]
    found = surface.record.found_range
    assert (found.target, found.rule) == (TARGET, "least")
    assert [(each.radius, each.end) for each in found.axes] == [(each, "target") for each in radii]
    along = ", ".join(("alpha ±0.45", "beta ±0.15", "gamma ±0.015")[:count])
    assert f"range of landscape a: {along}, found by {found.evaluations} evaluations" in caplog.messages
    assert f", range found: {along}, loss at" in status_text(run_status(str(tmp_path)))
    text = caption(surface, "loss")
    assert "Range: found, where the loss along an axis has changed by 0.1 (the least change that is looked for)" in text


def test_the_bytes_are_those_of_the_range_written_by_hand(make, tmp_path):
    common = {"count": 1, "size": 9, "refine": {"tolerance": 0.01}}
    found = run(make(below="found", **common))["a"]
    by_hand = run(make(below="hand", **common, range=[list(each) for each in ends(found)]))["a"]
    assert chunks_of(tmp_path / "found") == chunks_of(tmp_path / "hand")
    assert len(found.levels) == len(by_hand.levels) > 0
    assert found.record.digest == by_hand.record.digest
    assert by_hand.record.found_range is None
    assert not any("found" in part for part in caption(by_hand, "loss"))


def test_a_landscape_on_disk_keeps_the_range_that_was_found(make, tmp_path):
    job = make()
    run(job)
    before, asked = chunks_of(tmp_path), []

    def never(*given):
        asked.append(given)

    (again,) = prepare(job, finder=never).landscapes
    assert not asked
    assert [float(axis[-1]) for axis in again.grid.coordinates] == [radius(1), radius(10)]
    run(job)
    by_hand = make(range=[[-radius(1), radius(1)], [-radius(10), radius(10)]])
    run(by_hand)
    assert chunks_of(tmp_path) == before
    assert open_run(tmp_path)["a"].record.found_range is not None


def test_an_interrupted_landscape_goes_on_with_the_range_that_was_found(make, tmp_path):
    job, asked = make(tile=1), []

    def stop() -> bool:
        asked.append((tmp_path / "landscapes.zarr" / "a" / "zarr.json").exists())
        return sum(asked) > 8

    with pytest.raises(Interrupted):
        serial.run(job, stop=stop)
    status = open_run(tmp_path)["a"].status
    assert 0 < (status == 0).sum() < status.size
    run(job)
    whole = make(below="whole", tile=1)
    run(whole)
    assert chunks_of(tmp_path) == chunks_of(tmp_path / "whole")


def test_an_extension_starts_from_the_range_that_was_found(make, tmp_path):
    run(make(count=1))
    wide = 2 * radius(1)
    surface = extend(tmp_path, "a", ranges=[(-wide, wide)], problem=problem_of(bowl))["a"]
    assert "range found" not in status_text(run_status(str(tmp_path)))
    assert ends(surface) == [(-wide, wide)]
    assert not any("found" in part for part in caption(surface, "loss"))
    assert ends(run(make(count=1))["a"]) == [(-wide, wide)]  # the job from before takes what its run has


def test_a_range_by_hand_is_not_taken_for_one_that_was_found(make):
    run(make(range=[-1, 1]))
    with pytest.raises(JobError, match=r"changed: coordinates \(axis 1: \[5, -1.0, 1.0\] to \[5, 'auto'\]"):
        run(make())


class Backwards(LocalExecutor):
    """Answers the last question first, as workers may."""

    def ask(self, setting, questions):
        return super().ask(setting, list(reversed(questions)))[::-1]


def test_the_order_of_the_answers_changes_nothing(make):
    def find(prepared, starts, farthest):
        return find_range(Backwards(prepared, prepared.landscapes[0]), prepared, starts, farthest)

    job = make(count=3)
    finders = (find, finder_of(local_executors()))
    one, other = (prepare(job, finder=finder).landscapes[0].record.found_range for finder in finders)
    assert one == other


def test_eigenvectors_begin_where_their_parabola_reaches(make):
    directions = [{"kind": "eigen", "rank": 1}, {"kind": "eigen", "rank": -1}]
    surface = run(make(directions=directions))["a"]
    assert ends(surface) == [(-radius(1000), radius(1000)), (-radius(1), radius(1))]
    assert surface.record.found_range.evaluations < 1 + 4 * 10  # from a thousandth of the weights, as the loss is zero


def test_classifiers_run_to_a_third_of_guessing(tmp_path):
    def problem() -> Problem:
        torch.manual_seed(0)
        model = nn.Linear(4, 3)
        inputs = torch.randn(30, 4)
        return Problem.supervised(model, (inputs, model(inputs).argmax(1)), nn.functional.cross_entropy)

    surface = run(make_job(tmp_path, problem, [{"name": "a", "size": 5, "range": "auto"}], num_samples=30))["a"]
    found = surface.record.found_range
    assert found.rule == "guessing"
    assert 0.9 * math.log(3) < 3 * found.target <= math.log(3)
    for line, each in zip((surface.loss[2, :], surface.loss[:, 2]), found.axes, strict=True):
        assert max(abs(line[[0, -1]] - line[2])) == pytest.approx(each.change, rel=1e-6)
        assert each.change >= found.target


# -- where the target is not reached -------------------------------------------------------------------------------


def test_an_axis_ends_where_nothing_farther_is_tried(make, caplog):
    surface = run(make(lambda at: 0.05 * torch.tanh(at[0] ** 2) + at[1] ** 2, count=2))["a"]
    first, second = surface.record.found_range.axes
    assert (first.radius, first.end) == (4.0, "farthest")  # of weights that are zero
    assert (second.radius, second.end) == (radius(2), "target")
    assert "the loss along alpha has changed by 0.05 at 4, not by 0.1, and nothing farther is tried" in caplog.text
    (text,) = (part for part in caption(surface, "loss") if "found" in part)
    assert text.endswith("; along alpha only by 0.05, as far as it was looked at")


def test_an_axis_ends_before_the_loss_is_no_longer_finite(make, caplog):
    surface = run(make(lambda at: torch.where(at[0].abs() > 0.21, torch.nan, at[0] ** 2), count=1))["a"]
    (axis,) = surface.record.found_range.axes
    assert (axis.radius, axis.end) == (0.21, "finite")
    assert np.isfinite(surface.loss).all()
    assert "the loss along alpha is not finite beyond 0.21" in caplog.text
    assert any("beyond which it is not finite" in part for part in caption(surface, "loss"))


def test_a_loss_that_is_infinite_on_one_side_only_counts(make):
    surface = run(make(lambda at: torch.where(at[0] < -0.2, torch.inf, at[0] ** 2), count=1))["a"]
    assert ends(surface) == [(-0.2, 0.2)]


def test_a_way_down_counts_as_a_change(make):
    surface = run(make(lambda at: 1 - 0.5 * at[0] ** 2, count=1))["a"]
    assert ends(surface) == [(-radius(1, 1.0), radius(1, 1.0))]


@pytest.mark.parametrize(
    ("loss", "text"),
    [
        (lambda at: 0 * at[0] + 3, "is flat along alpha: at ±4 it is what it is at 0"),
        (lambda at: at[0] ** 2 + torch.nan, "at the origin is nan"),
        (lambda at: torch.where(at[0] == 0, 0.0, torch.nan), "along alpha changes by inf as close as "),
    ],
)
def test_a_loss_without_a_range_is_refused_and_nothing_stays(make, tmp_path, loss, text):
    with pytest.raises(JobError) as error:
        run(make(loss))
    assert str(error.value).startswith(NO_NUMBERS + text)
    assert "\n" not in str(error.value)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"trajectory": "all", "directions": None}, f"along PCA {LEAVE_OUT} the path"),
        ({"plane": ["a", "b", "c"], "directions": None}, f"along plane {LEAVE_OUT} its networks"),
        ({"directions": [{"kind": "towards", "target": "first"}]}, f"along towards {LEAVE_OUT} both ends of the line"),
        ({"range": "wide"}, "must be a pair [low, high], one pair per axis, or auto, not 'wide'"),
        ({"range": ["auto", [-1, 1]]}, "must hold two numbers, not ['auto', [-1, 1]]"),
    ],
)
def test_axes_that_reach_to_something_else_have_no_auto(make, spec, text):
    with pytest.raises(JobError) as error:
        make(**spec)
    assert text in str(error.value)


# -- the plan ------------------------------------------------------------------------------------------------------


def test_plan_says_that_the_range_will_be_found_and_what_that_costs(make, tmp_path):
    planned = plan_job(make())
    (each,) = planned["landscapes"]
    assert each["range_evaluations"] == 33
    assert planned["seconds"] == pytest.approx((25 + 33 + 2) * planned["seconds_per_point"] / planned["workers"])
    text = plan_text(planned)
    assert "  alpha: as far as the loss changes visibly, " in text
    assert "  range: found first, by bisection: about 33 evaluations" in text
    assert not tmp_path.joinpath("landscapes.zarr").exists()
    run(make())
    text = plan_text(plan_job(make()))
    assert f"  alpha: -{radius(1)} to {radius(1)}, " in text
    assert "bisection" not in text
