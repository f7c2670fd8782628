"""Refinement by a box: the bytes of the finer grid, whatever interrupts it, and what a refined landscape allows."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray
from small_models import Quadratic, make_job, quadratic_samples, wandering, write_trajectory
from torch import Tensor, nn

from landscape import Problem, open_run, refine, rename_landscape, run
from landscape.compute.serial import run as run_serially
from landscape.core.errors import Interrupted, JobError, NotFoundError
from landscape.job.job import Job
from landscape.store.landscape import LandscapeStore
from landscape.store.levels import Finer
from landscape.store.results import Run

LANDSCAPE = {"name": "a", "size": [9, 11], "range": [[-1, 1], [-0.5, 1]]}
BOX = [(-0.3, 0.2), (0.0, 0.5)]
EVALUATED: list[int] = []


def observe(model: nn.Module, batch: Tensor) -> dict[str, Tensor]:
    EVALUATED.append(len(batch))
    return {"loss": model(batch)}


def problem() -> Problem:
    return Problem(Quadratic(), quadratic_samples(20), observe)


def job(folder: Path, spec: dict[str, Any], **fields: Any) -> Job:
    return make_job(folder, problem, [spec], **{"num_samples": 20, "batch_size": 20, **fields})


@pytest.fixture(scope="module")
def coarse(tmp_path_factory) -> Path:
    return Path(run(job(tmp_path_factory.mktemp("coarse"), LANDSCAPE)).path)


@pytest.fixture(scope="module")
def fine(tmp_path_factory) -> Run:
    return run(job(tmp_path_factory.mktemp("fine"), {**LANDSCAPE, "size": [33, 41]}))


@pytest.fixture
def place(coarse, tmp_path) -> Path:
    shutil.copytree(coarse, tmp_path / "run")
    return tmp_path / "run"


def level_bytes(place: Path) -> dict[str, bytes]:
    """Every chunk of the levels of a landscape."""
    levels = place / "landscapes.zarr" / "a" / "levels"
    return {str(path.relative_to(levels)): path.read_bytes() for path in levels.rglob("c/**/*") if path.is_file()}


def stopping_after(tasks: int, chosen: Callable[[Job], Run] = run_serially) -> Callable[[Job], Run]:
    """What computes a job and is interrupted after so many tasks."""

    def compute(asked: Job) -> Run:
        left = [tasks]

        def observer(progress: Any) -> None:
            left[0] -= 1

        return run_serially(asked, observer, lambda: left[0] <= 0)

    return compute


def test_the_points_of_every_level_are_those_of_the_finer_grid(place, fine):
    EVALUATED.clear()
    surface = refine(place, "a", factor=4, box=BOX, problem=problem)["a"]
    uniform = fine["a"]
    new = 0
    for number, level in enumerate(surface.levels, 1):
        step = 4 >> number
        held = level.status != 0
        new += int(held.sum())
        for name, values in uniform.observables.items():
            assert np.array_equal(level[name][held], values[::step, ::step][held]), name
        assert not held[::2, ::2].any()
        for axis, finest in zip(level.axes, uniform.axes, strict=True):
            assert np.array_equal(axis.coordinates, finest.coordinates[::step])
    assert new == 200 + 288
    beside = 2 * 7  # of each level: the first look, in three, a measured point, the origin, and the one reproduced
    assert len(EVALUATED) <= new + beside
    merged = surface.merged()
    known = merged.interpolated == 0
    assert known.sum() == 99 + new
    assert np.array_equal(merged.loss[known], uniform.loss[known])
    inside = np.ix_((merged.beta >= 0) & (merged.beta <= 0.5), (merged.alpha >= -0.3) & (merged.alpha <= 0.2))
    assert known[inside].all()


def test_the_whole_grid_is_that_of_the_finer_job(place, fine):
    merged = refine(place, "a", factor=4, problem=problem)["a"].merged()
    assert merged.interpolated.max() == 0
    assert all(np.array_equal(merged[name], values) for name, values in fine["a"].observables.items())


def test_an_interruption_and_another_order_give_the_same_bytes(place, coarse, tmp_path):
    shutil.copytree(coarse, tmp_path / "stopped")
    with pytest.raises(Interrupted):
        refine(tmp_path / "stopped", "a", factor=4, box=BOX, problem=problem, compute=stopping_after(3))
    half = LandscapeStore.open(str(tmp_path / "stopped"), "a").levels()[0]
    assert 0 < half.counts()[0] < half.arrays.points
    refine(tmp_path / "stopped", "a", factor=4, box=BOX, problem=problem)
    refine(place, "a", factor=4, box=BOX, problem=problem)
    assert level_bytes(tmp_path / "stopped") == level_bytes(place)
    assert not half.levels()


def test_a_second_box_adds_blocks_and_computes_no_point_again(place, fine):
    refine(place, "a", box=[(-1, -0.9), (-0.5, -0.4)], problem=problem)
    before = level_bytes(place)
    EVALUATED.clear()
    refine(place, "a", box=[(-0.95, -0.9), (-0.5, -0.4)], problem=problem)
    assert (level_bytes(place), EVALUATED) == (before, [])
    surface = refine(place, "a", box=[(0.8, 1), (0.9, 1)], problem=problem)["a"]
    assert before.items() < level_bytes(place).items()
    held = surface.at(1).status != 0
    assert np.array_equal(surface.at(1).loss[held], fine["a"].loss[::2, ::2][held])
    assert len(surface.levels) == 1
    # The box touches the last points of both axes: these are evaluated as well.
    merged = surface.merged()
    assert (merged.interpolated[np.ix_(merged.beta >= 0.9, merged.alpha >= 0.8)] == 0).all()
    # A damaged chunk is computed again by the same command.
    chunk = place / "landscapes.zarr" / "a" / "levels" / "1" / "loss" / "c" / "0" / "0"
    chunk.write_bytes(b"nothing")
    refine(place, "a", box=[(0.8, 1), (0.9, 1)], problem=problem)
    assert before.items() < level_bytes(place).items()


NOISE = 4e-16
ENDS = [  # blocks end at 0 along alpha and at 0.1 and 0.7 along beta
    [(-0.5, 0.0), (0.1, 0.7)],
    [(-0.5 - NOISE, 0.0 - NOISE), (0.1 + NOISE, 0.7 - NOISE)],
    [(-0.6, -0.01), (-0.5 - NOISE, 0.101)],
    [(0.51, 1.0 + NOISE), (0.15, 0.69)],
]


@pytest.mark.parametrize("box", ENDS)
def test_every_point_of_the_box_is_evaluated_its_ends_included(place, box):
    merged = refine(place, "a", box=box, problem=problem)["a"].merged()
    near = [
        (axis >= low - 1e-9) & (axis <= high + 1e-9)
        for axis, (low, high) in zip((merged.alpha, merged.beta), box, strict=True)
    ]
    assert (merged.interpolated[np.ix_(near[1], near[0])] == 0).all()


@pytest.mark.parametrize("lost", ["truncated", "deleted"])
def test_the_job_mends_the_levels_of_a_refinement_that_it_does_not_ask_for(place, lost, caplog):
    refine(place, "a", factor=4, box=BOX, problem=problem)
    before = level_bytes(place)
    for number in (1, 2):
        chunk = next((place / "landscapes.zarr" / "a" / "levels" / str(number) / "loss" / "c").rglob("[0-9]*/[0-9]*"))
        chunk.unlink() if lost == "deleted" else chunk.write_bytes(chunk.read_bytes()[:9])
    run(job(place, LANDSCAPE))
    assert level_bytes(place) == before
    told = [message for message in caplog.messages if message.endswith("is damaged and computed again")]
    assert [message.split(" chunk ")[0] for message in told] == [
        f"landscape 'a': levels/{number}/loss" for number in (1, 2)
    ]
    EVALUATED.clear()
    run(job(place, LANDSCAPE))
    assert len(EVALUATED) <= 6, "nothing is left to mend"


def test_the_job_goes_on_with_a_refinement_that_was_interrupted(place, coarse, tmp_path):
    shutil.copytree(coarse, tmp_path / "stopped")
    with pytest.raises(Interrupted):
        refine(tmp_path / "stopped", "a", box=BOX, problem=problem, compute=stopping_after(1))
    run(job(tmp_path / "stopped", LANDSCAPE))
    refine(place, "a", box=BOX, problem=problem)
    assert level_bytes(tmp_path / "stopped") == level_bytes(place)


def test_what_cannot_be_asked_for_twice_names_what_can():
    def told(factor, box, axes=2):
        return Finer(factor, box).held_already("a", axes)

    done = "already: nothing is left to do"
    assert told(2, None) == f"landscape 'a' is finer by 2 everywhere {done}; for more, give factor 4"
    job = "give its job `refine:`, which goes to a sixteenth where the values ask for it"
    assert told(4, None) == f"landscape 'a' is finer by 4 everywhere {done}; {job}"
    assert told(4, BOX) == f"landscape 'a' is finer by 4 in this box {done}; choose another box, or {job}"
    assert told(4, None, axes=3).endswith(f"{done}, and is not made finer than that")


def test_a_level_opens_in_xarray_as_it_is(place):
    refine(place, "a", box=BOX, problem=problem)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        level = xarray.open_zarr(place / "landscapes.zarr", group="a/levels/1")
        own = xarray.open_zarr(place / "landscapes.zarr", group="a")
    assert dict(level.sizes)["alpha"] == 17
    assert int((level.status > 0).sum()) == 200
    assert level.attrs["level"]["stride"] == 2
    assert own.loss.shape == (11, 9)


def test_a_line_is_refined_too(tmp_path):
    line = {"name": "a", "size": 9, "range": [-1, 1], "directions": [{"kind": "random", "seed": 1}]}
    run(job(tmp_path / "run", line))
    run(job(tmp_path / "fine", {**line, "size": 33}))
    merged = refine(tmp_path / "run", "a", factor=4, box=[(-0.5, 0)], problem=problem)["a"].merged()
    known = merged.interpolated == 0
    assert np.array_equal(merged.loss[known], open_run(tmp_path / "fine")["a"].loss[known])
    assert known.sum() == 9 + 4 + 4  # half a block of level 1, which is all of the line, and one of level 2


def test_a_refined_landscape_keeps_its_path_and_its_fitted_axes(tmp_path):
    write_trajectory(tmp_path, wandering(Quadratic(), 3))
    spec = {"name": "a", "trajectory": [1, 2, 3], "size": [5, 7]}
    before = run(job(tmp_path, spec))["a"]
    surface = refine(tmp_path, "a", problem=problem)["a"]
    assert np.array_equal(surface.at(1).alpha[::2], before.alpha)
    assert surface.at(1).path is None
    assert surface.merged().path is not None
    assert run(job(tmp_path, spec))["a"].levels


def test_it_is_renamed_and_removed_with_its_levels(place):
    refine(place, "a", box=BOX, problem=problem)
    levels = level_bytes(place)
    rename_landscape(place, "a", "b")
    surface = open_run(place)["b"]
    assert surface.levels[0].record.name == "b"
    assert surface.levels[0].record.job.landscapes[0]["name"] == "b"
    rename_landscape(place, "b", "a")
    assert level_bytes(place) == levels
    refine(place, "a", factor=4, box=BOX, problem=problem)
    assert len(open_run(place)["a"].levels) == 2


REFUSED = [
    ({"factor": 3}, "factor: must be 2 or 4, not 3; a level halves the steps"),
    ({"box": [(-2, 0), (0, 0.5)]}, "box: must lie in the landscape, -1 to 1 along alpha, not -2 to 0"),
    ({"box": [(0, 0), (0, 0.5)]}, "box: must have a width along each axis, not 0 to 0 along alpha; low end first"),
    ({"box": [(0, 0.5)]}, "box: must be LOW,HIGH for each of 2 axes, not for 1"),
    ({"box": [(0, float("nan")), (0, 1)]}, "box: must be pairs of finite numbers"),
]


@pytest.mark.parametrize(("asked", "told"), REFUSED)
def test_what_cannot_be_done_is_refused_and_nothing_written(place, asked, told):
    with pytest.raises(JobError) as caught:
        refine(place, "a", problem=problem, **asked)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (place / "landscapes.zarr" / "a" / "levels").exists()


def test_a_landscape_that_is_not_there_leaves_no_lock(tmp_path):
    with pytest.raises(NotFoundError, match="landscape 'a' is not in run"):
        refine(tmp_path, "a", problem=problem)
    assert list(tmp_path.iterdir()) == []


def test_a_landscape_that_is_not_complete_is_refused(tmp_path):
    with pytest.raises(Interrupted):
        stopping_after(2)(job(tmp_path, LANDSCAPE, tile=3))
    with pytest.raises(JobError, match="'a' cannot be refined: it is not complete; run its own job first"):
        refine(tmp_path, "a", problem=problem)


def test_another_problem_is_refused(place):
    def other() -> Problem:
        return Problem(Quadratic(), quadratic_samples(20) + 1, observe)

    with pytest.raises(JobError, match="'a' cannot be refined: it was computed with another job; changed: samples"):
        refine(place, "a", problem=other)
    assert not (place / "landscapes.zarr" / "a" / "levels").exists()
