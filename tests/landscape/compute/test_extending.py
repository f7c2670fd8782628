"""Extensions: more samples, observables and points give the bytes of asking for them at once, and evaluate no more."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from extended_scene import (
    EVALUATED,
    LANDSCAPE,
    compute,
    computed,
    observe,
    observe_more,
    observe_weighted,
    problem_of,
)
from small_models import Quadratic, chunks_of, make_job, quadratic_samples, wandering, write_trajectory
from torch import Tensor, nn

from landscape import Problem, extend, open_run, run
from landscape.compute.extend import More, extension_job, steps_left
from landscape.core.errors import Interrupted, JobError, NotFoundError
from landscape.store.landscape import LandscapeStore


@pytest.mark.parametrize(
    "few, many, function", [(16, 32, observe_more), (20, 53, observe), (20, 53, observe_weighted), (5, 9, observe)]
)
def test_more_samples_give_the_bytes_of_all_samples_at_once(tmp_path, few, many, function):
    at_once = computed(tmp_path / "once", many, batch_size=min(8, few), function=function)
    extended = computed(tmp_path / "extended", few, batch_size=min(8, few), function=function)
    EVALUATED.clear()
    surface = extend(extended, "a", num_samples=many, problem=problem_of(function))["a"]
    assert chunks_of(extended) == chunks_of(at_once)
    assert list(open_run(extended)) == ["a"]
    assert surface.record.num_samples == many
    assert surface.record.identity.whole == open_run(at_once)["a"].record.identity.whole
    new = many - few // min(8, few) * min(8, few)
    beside = 12 * many  # the first look, the measured points, the origin and the point that is reproduced
    assert sum(EVALUATED) <= 20 * new + beside


def test_four_times_as_many_samples_take_three_quarters_of_the_evaluations(tmp_path):
    def problem() -> Problem:
        return Problem(Quadratic(), quadratic_samples(256), observe)

    spec = {"name": "a", "size": 9, "range": [-1, 1]}
    fields = {"batch_size": 32, "tile": 9}
    run(make_job(tmp_path / "once", problem, [spec], num_samples=256, **fields))
    EVALUATED.clear()
    run(make_job(tmp_path / "run", problem, [spec], num_samples=64, **fields))
    first = sum(EVALUATED)
    EVALUATED.clear()
    extend(tmp_path / "run", "a", num_samples=256, problem=problem)
    assert chunks_of(tmp_path / "run") == chunks_of(tmp_path / "once")
    beside = 6 * 256  # measured points, the origin, and the point that is reproduced
    assert 0.75 * 9**2 * 256 <= sum(EVALUATED) <= 0.75 * 9**2 * 256 + beside
    assert first <= 0.25 * 9**2 * 256 + beside


@pytest.mark.parametrize("ranges", [[(-2, 2), (-1, 1.5)], [(-1, 1.5), (-0.5, 1)], [(-1, 1), (-2, 1)]])
def test_a_wider_range_gives_the_bytes_of_asking_for_it_at_once(tmp_path, ranges):
    sizes = [round((high - low) / 0.5) + 1 for low, high in ranges]
    wider = {**LANDSCAPE, "range": [list(limits) for limits in ranges], "size": sizes}
    at_once = computed(tmp_path / "once", spec=wider)
    extended = computed(tmp_path / "extended")
    EVALUATED.clear()
    surface = extend(extended, "a", ranges=ranges, problem=problem_of())["a"]
    assert chunks_of(extended) == chunks_of(at_once)
    assert surface.loss.shape == tuple(reversed(sizes))
    points = len(EVALUATED) / 3  # batches of a point
    assert points <= np.prod(sizes) - 20 + 8
    # The job that asks for it at once goes on with it, and has nothing to do.
    EVALUATED.clear()
    compute(extended, spec=wider)
    assert sum(EVALUATED) < 20 * 20


def test_one_more_observable_keeps_the_values_that_are_there(tmp_path):
    at_once = computed(tmp_path / "once", function=observe_more)
    extended = computed(tmp_path / "extended")
    before = chunks_of(extended)
    surface = extend(extended, "a", observables=["root"], problem=problem_of(observe_more))["a"]
    assert chunks_of(extended) == chunks_of(at_once)
    assert {"loss", "root"} <= set(surface.observables)
    for file, data in chunks_of(extended).items():
        if not file.startswith("moments"):
            assert before.get(file, data) == data


def test_all_of_it_in_one_call(tmp_path):
    spec = {**LANDSCAPE, "range": [[-1.5, 1], [-0.5, 2]], "size": [6, 6]}
    at_once = computed(tmp_path / "once", 41, spec=spec, function=observe_more)
    extended = computed(tmp_path / "extended")
    ranges = [(-1.5, 1.0), (-0.5, 2.0)]
    extend(extended, "a", num_samples=41, observables=["root"], ranges=ranges, problem=problem_of(observe_more))
    assert chunks_of(extended) == chunks_of(at_once)


def test_the_path_is_extended_too(tmp_path):
    spec = {"name": "a", "trajectory": "all", "size": [4, 3]}
    at_once, extended = tmp_path / "once", tmp_path / "extended"
    for folder, samples in ((at_once, 53), (extended, 20)):
        write_trajectory(folder, wandering(Quadratic(), 4))
        compute(folder, samples, spec)
    extend(extended, "a", num_samples=53, problem=problem_of())
    assert chunks_of(extended) == chunks_of(at_once)
    with pytest.raises(JobError, match="range"):
        extend(extended, "a", ranges=[(-100, 100)], problem=problem_of())


def test_an_interrupted_extension_goes_on_and_the_landscape_stays_meanwhile(tmp_path):
    at_once, extended = computed(tmp_path / "once", 53), computed(tmp_path / "extended")
    before, asked = chunks_of(extended), iter(range(1000))

    def stopped(job):
        return run(job, stop=lambda: next(asked) > 12)

    with pytest.raises(Interrupted):
        extend(extended, "a", num_samples=53, problem=problem_of(), compute=stopped)
    assert chunks_of(extended) == before
    assert sorted(open_run(extended)) == ["a", "a.extending"]
    with pytest.raises(JobError, match=r"another extension of landscape 'a' is under way \(num_samples 53 to 60\)"):
        extend(extended, "a", num_samples=60, problem=problem_of())
    extend(extended, "a", num_samples=53, problem=problem_of())
    assert chunks_of(extended) == chunks_of(at_once)


def test_a_process_that_computes_other_values_extends_nothing(tmp_path):
    def other(model: nn.Module, batch: Tensor) -> dict[str, Tensor]:
        return {"loss": 1.001 * model(batch)}

    extended = computed(tmp_path)
    before = chunks_of(extended)
    with pytest.raises(JobError, match="cannot be extended here"):
        extend(extended, "a", num_samples=53, problem=problem_of(other))
    with pytest.raises(JobError, match="by other code"):
        extend(extended, "a", ranges=[(-2, 1), (-0.5, 1)], problem=problem_of(other))
    assert chunks_of(extended) == before


def test_an_extension_killed_while_it_takes_the_place_of_its_landscape_is_finished(tmp_path, monkeypatch):
    at_once, extended = computed(tmp_path / "once", 53), computed(tmp_path / "extended")

    def killed(run):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("landscape.store.commit.finish_move", killed)
        with pytest.raises(KeyboardInterrupt):
            extend(extended, "a", num_samples=53, problem=problem_of())
    assert open_run(extended)["a"].record.num_samples == 53
    extend(extended, "a", num_samples=53, problem=problem_of())
    assert chunks_of(extended) == chunks_of(at_once)
    assert list(open_run(extended)) == ["a"]


def test_a_damaged_landscape_is_not_extended(tmp_path):
    folder = computed(tmp_path)
    chunk = folder / "landscapes.zarr" / "a" / "moments" / "c" / "0" / "0" / "0"
    chunk.write_bytes(chunk.read_bytes()[:-1])
    with pytest.raises(JobError, match="a chunk of it is damaged; run its own job first"):
        extend(folder, "a", num_samples=53, problem=problem_of())
    compute(folder)
    extend(folder, "a", num_samples=53, problem=problem_of())
    assert chunks_of(folder) == chunks_of(computed(tmp_path / "once", 53))


def test_what_a_landscape_has_already_is_done(tmp_path):
    folder = computed(tmp_path)
    before = chunks_of(folder)
    for more in ({"num_samples": 20}, {"observables": ["loss"]}, {"num_samples": 20, "observables": ["loss"]}):
        assert list(extend(folder, "a", problem=problem_of(), **more)) == ["a"]
    assert chunks_of(folder) == before


def test_extensions_that_cannot_be_made_are_refused_in_words(tmp_path):
    folder = computed(tmp_path / "run")

    def refused(match: str, error: type[Exception] = JobError, name: str = "a", **more: Any) -> None:
        with pytest.raises(error, match=match) as caught:
            extend(folder, name, problem=problem_of(), **more)
        assert str(caught.value).count("\n") <= 1

    refused("needs at least one of")
    refused("is not in run", NotFoundError, name="b", num_samples=30)
    refused("must be more than the 20 of landscape 'a', not 10", num_samples=10)
    refused("must be at most the 97 samples", num_samples=98)
    refused("observe returns no top5, only loss", observables=["top5"])
    refused(r"wider than \[-1, 1\] along alpha by whole steps of 0.5, not \[-1.2, 1\]", ranges=[(-1.2, 1), (-0.5, 1)])
    refused(r"wider than \[-0.5, 1\] along beta", ranges=[(-1, 1), (-0.75, 1)])
    refused("one for all axes or one per axis", ranges=[(-1, 1)] * 3)
    assert sorted(open_run(folder)) == ["a"]
    with pytest.raises(JobError, match="observe returns root by now"):
        extend(folder, "a", num_samples=30, problem=problem_of(observe_more))
    asked = iter(range(100))
    with pytest.raises(Interrupted):
        run(
            make_job(tmp_path / "half", problem_of(), [LANDSCAPE], num_samples=20, tile=1),
            stop=lambda: next(asked) > 20,
        )
    with pytest.raises(JobError, match="it is not complete"):
        extend(tmp_path / "half", "a", num_samples=30, problem=problem_of())
    batch = computed(tmp_path / "batch", batch_norm="batch")
    with pytest.raises(JobError, match="batch_norm: batch"):
        extend(batch, "a", num_samples=30, problem=problem_of())


def test_a_refused_job_names_the_command_that_extends(tmp_path):
    folder = computed(tmp_path / "run")
    with pytest.raises(JobError, match=r"keep its values by `landscape extend .*run a --samples 53`"):
        compute(folder, 53)
    wider = {**LANDSCAPE, "range": [[-2, 1], [-0.5, 1.5]], "size": [7, 5]}
    with pytest.raises(JobError, match=r"extend .* a --range=-2,1,-0.5,1.5`"):
        compute(folder, spec=wider)
    with pytest.raises(JobError) as caught:
        compute(folder, seed=4)
    assert "extend" not in str(caught.value)


def test_the_job_of_an_extension_can_be_planned(tmp_path):
    folder = computed(tmp_path)
    step = steps_left(folder, "a", More(num_samples=53))[0]
    job = extension_job(folder, "a", step, problem_of())
    assert (job.num_samples, job.extends, job.landscapes[0].name) == (53, "a", "a.extending")


def test_indices_of_the_samples_are_kept(tmp_path):
    store = LandscapeStore.open(computed(tmp_path), "a")
    index = store.arrays.values("sample_index")
    generator = torch.Generator().manual_seed(3)
    np.testing.assert_array_equal(index, torch.randperm(97, generator=generator)[:20])
