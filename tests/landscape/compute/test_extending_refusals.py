"""Extensions that are asked for wrongly, names that are long, and jobs that are given again after an extension."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from extended_scene import LANDSCAPE, compute, computed, problem_of
from small_models import (
    Quadratic,
    chunks_of,
    make_job,
    observe_quadratic,
    quadratic_samples,
    wandering,
    write_trajectory,
)
from torch import Tensor

from landscape import Job, Problem, extend, import_surface, open_run, run
from landscape.compute.extend import More, wider_sizes
from landscape.compute.prepare import prepare
from landscape.core.errors import JobError, NotFoundError
from landscape.core.grid import Grid
from landscape.store.landscape import LandscapeStore

problem = problem_of()


def refusal(call: Callable[[], Any]) -> str:
    with pytest.raises(JobError) as caught:
        call()
    assert str(caught.value).count("\n") <= 1
    return str(caught.value)


@pytest.mark.parametrize(
    "wrong", [{"num_samples": value} for value in (0, -5, True, "30", 30.5, float("nan"))]
    + [{"observables": value} for value in ("accuracy", [5], [""])]
    + [
        {"ranges": value}
        for value in ([], 5, "ab", [(2, -2)], [(0, 0)], [(-2, 1, 3)], [(-2, "x")], [(float("nan"), 1)], [(-2, 10**400)])
    ],
)  # fmt: skip
def test_what_is_no_extension_is_refused_by_name(wrong):
    assert refusal(lambda: More(**wrong)).startswith(f"{next(iter(wrong))}: must be ")


def test_a_landscape_that_is_not_there_leaves_no_lock(tmp_path):
    place = computed(tmp_path)
    before = sorted(place.rglob("*"))
    with pytest.raises(NotFoundError):
        extend(place, "b", num_samples=30, problem=problem)
    assert "at least one of" in refusal(lambda: extend(place, "a", problem=problem))
    assert sorted(place.rglob("*")) == before


def test_axes_along_eigenvectors_of_the_samples_take_no_more_of_them(tmp_path):
    spec = {"name": "a", "size": 3, "directions": [{"kind": "eigen"}]}
    place = computed(tmp_path, spec=spec)
    told = refusal(lambda: extend(place, "a", num_samples=30, problem=problem))
    assert told.startswith("num_samples: landscape 'a' has axes of kind eigen, which are others for more samples")
    told = refusal(lambda: compute(place, 30, spec=spec))
    assert "num_samples 20 to 30" in told
    assert "landscape extend" not in told


def test_an_imported_surface_is_refused_for_what_it_is(tmp_path):
    np.savez(tmp_path / "bowl.npz", x=np.arange(3.0), loss=np.arange(3.0))
    import_surface(tmp_path / "bowl.npz", tmp_path / "run")
    told = refusal(lambda: extend(tmp_path / "run", "bowl", num_samples=30))
    assert told.startswith(
        "landscape 'bowl' cannot be extended: it was imported from 'bowl.npz', and no job computed it"
    )


def test_a_job_from_before_an_extension_takes_what_its_run_has_and_says_so(tmp_path, caplog):
    folder = computed(tmp_path)
    extend(folder, "a", num_samples=53, problem=problem)
    extend(folder, "a", ranges=[(-2, 1), (-0.5, 1)], problem=problem)
    before = chunks_of(folder)
    caplog.clear()
    compute(folder)
    told = "landscape 'a' holds more than the job asks for, and is taken as it is: "
    grid = "size: [7, 4], range: [[-2.0, 1.0], [-0.5, 1.0]]"
    assert caplog.messages == [f"{told}num_samples: 53, {grid}"]
    caplog.clear()
    compute(folder, 53)
    assert caplog.messages == [f"{told}{grid}"]
    # It mends what is damaged, also with the job from before.
    chunk = folder / "landscapes.zarr" / "a" / "loss" / "c" / "0" / "0"
    chunk.write_bytes(chunk.read_bytes()[:-1])
    compute(folder)
    assert chunks_of(folder) == before
    # What is no part of what the run has is refused as ever.
    assert "coordinates" in refusal(lambda: compute(folder, 20, {**LANDSCAPE, "size": [9, 4]}))
    assert "seed 3 to 4" in refusal(lambda: compute(folder, 20, seed=4))
    assert "landscape extend" in refusal(lambda: compute(folder, 60))


def test_a_job_of_several_landscapes_of_which_one_was_extended_keeps_both(tmp_path, caplog):
    def both() -> Job:
        return make_job(tmp_path, problem, [LANDSCAPE, {**LANDSCAPE, "name": "b"}], num_samples=20, batch_size=8)

    run(both())
    extend(tmp_path, "a", num_samples=53, problem=problem)
    before = chunks_of(tmp_path), chunks_of(tmp_path, "b")
    for name in "ab":
        chunk = tmp_path / "landscapes.zarr" / name / "loss" / "c" / "0" / "0"
        chunk.write_bytes(chunk.read_bytes()[:-1])
    run(both())
    assert (chunks_of(tmp_path), chunks_of(tmp_path, "b")) == before
    caplog.clear()
    prepared = prepare(both())
    assert [(each.name, prepared.samples.length) for each in prepared.landscapes] == [("b", 20)]
    assert caplog.messages == ["landscape 'a' is left out here: it has 53 samples, and the others 20"]
    extend(tmp_path, "b", num_samples=53, problem=problem)
    assert [each.name for each in prepare(both()).landscapes] == ["a", "b"]


def test_fewer_samples_than_the_data_had_are_refused(tmp_path):
    run(make_job(tmp_path, problem, [LANDSCAPE]))
    assert "write num_samples: 97 in the job" in refusal(
        lambda: run(make_job(tmp_path, problem, [LANDSCAPE], num_samples=50))
    )


def test_the_command_that_is_named_is_one_that_extends(tmp_path):
    folder = computed(tmp_path / "my run")

    def told(given: Callable[[], Problem] = problem, spec: dict[str, Any] | None = None, **fields: Any) -> str:
        fields = {"num_samples": 20, "batch_size": 8, "seed": 3, **fields}
        return refusal(lambda: run(make_job(folder, given, [spec or LANDSCAPE], **fields)))

    def more(model: Quadratic, batch: Tensor) -> dict[str, Tensor]:
        values = observe_quadratic(model, batch)
        return {**values, "root": values["loss"].sqrt(), "half": values["loss"] / 2}

    assert f"`landscape extend '{folder}' a --samples 53`" in told(num_samples=53)
    named = told(lambda: Problem(Quadratic(), quadratic_samples(97), more), num_samples=53)
    assert "a --samples 53 --observable half --observable root`" in named
    other_data = told(lambda: Problem(Quadratic(), 1 + quadratic_samples(97), observe_quadratic))
    assert "samples (other data)" in other_data
    half_a_step = told(spec={**LANDSCAPE, "range": [[-1.25, 1.25], [-0.5, 1]], "size": [6, 4]})
    for refused in (other_data, half_a_step, told(num_samples=53, batch_norm="batch")):
        assert "landscape extend" not in refused
    batch_norm = computed(tmp_path / "batch", batch_norm="batch")
    assert "landscape extend" not in refusal(lambda: compute(batch_norm, 53, batch_norm="batch"))


def test_more_samples_than_the_data_had_are_not_there_already(tmp_path):
    def few() -> Problem:
        return Problem(Quadratic(), quadratic_samples(30), observe_quadratic)

    run(Job(run=str(tmp_path), problem=few, landscapes=[LANDSCAPE], batch_size=8))
    assert open_run(tmp_path)["a"].record.num_samples == 30
    default = Job.model_fields["num_samples"].default
    told = refusal(lambda: extend(tmp_path, "a", num_samples=default, problem=few))
    assert "must be at most the 30 samples" in told


def test_a_batch_size_that_was_asked_for_is_no_change_after_an_extension(tmp_path):
    folder = computed(tmp_path, batch_size=64)
    extend(folder, "a", num_samples=53, problem=problem)
    store = LandscapeStore.open(folder, "a")
    assert (store.job.batch_size, store.record.plan.batch_size) == (64, 20)
    compute(folder, 53, batch_size=64)


def test_a_landscape_of_the_longest_name_is_extended(tmp_path):
    name = "n" * 100
    folder = computed(tmp_path, spec={**LANDSCAPE, "name": name})
    opened = extend(folder, name, num_samples=30, problem=problem)
    assert list(opened) == [name]
    assert opened[name].record.num_samples == 30


def test_a_function_without_a_name_is_asked_for(tmp_path):
    run(make_job(tmp_path, lambda: problem(), [LANDSCAPE], num_samples=20))
    assert "cannot be found by its name" in refusal(lambda: extend(tmp_path, "a", num_samples=30))


def test_the_range_that_is_proposed_can_be_taken(tmp_path):
    spec = {"name": "a", "directions": [{"kind": "random"}], "size": 4, "range": [-1, 1]}  # steps of 2/3
    folder = computed(tmp_path, spec=spec)
    told = refusal(lambda: extend(folder, "a", ranges=[(-2, 1)], problem=problem))
    assert told.endswith("not [-2, 1]; such as [-3, 1]")
    extended = extend(folder, "a", ranges=[(-3, 1)], problem=problem)["a"]
    np.testing.assert_allclose(extended.alpha, np.linspace(-3, 1, 7), atol=1e-15)


def test_every_digit_of_a_range_is_in_the_command_that_is_named(tmp_path):
    spec = {"name": "a", "directions": [{"kind": "random"}], "size": 5, "range": [-0.12345678, 0.12345678]}
    folder = computed(tmp_path, spec=spec)
    wider = {**spec, "size": 9, "range": [-0.24691356, 0.24691356]}
    assert "--range=-0.24691356,0.24691356" in refusal(lambda: compute(folder, spec=wider))


def test_axes_that_were_fitted_take_more_samples(tmp_path):
    write_trajectory(tmp_path, wandering(Quadratic(), 4))
    folder = compute(tmp_path, spec={"name": "a", "trajectory": "all", "size": [4, 3]})
    before = open_run(folder)["a"]
    after = extend(folder, "a", num_samples=30, problem=problem)["a"]
    for one, other in ((before.alpha, after.alpha), (before.beta, after.beta)):
        np.testing.assert_array_equal(one, other)


def test_coordinates_that_no_range_has_are_not_continued():
    fitted = Grid(("alpha",), (np.arange(-3, 5) * 0.1,))
    told = refusal(lambda: wider_sizes("a", fitted, [(-1, 1)]))
    assert "its coordinates were fitted" in told
    low, *_, high = fitted.coordinates[0]
    assert wider_sizes("a", fitted, [(low, high)]) == [8]


def attributes_changed(folder: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    document = folder / "landscapes.zarr" / "a" / "zarr.json"
    content = json.loads(document.read_text())
    change(content["attributes"])
    document.write_text(json.dumps(content))
    return folder


def observe_two(model: Quadratic, batch: Tensor) -> dict[str, Tensor]:
    losses = model(batch)
    return {"loss": losses, "far": (losses > 4).double()}


def test_moments_of_something_else_are_not_added_to(tmp_path):
    """Else the losses along the path would be those of another observable."""
    write_trajectory(tmp_path, wandering(Quadratic(), 3))
    spec = {"name": "a", "trajectory": "all", "size": [4, 3], "range": [-1, 1]}

    def two() -> Problem:
        return Problem(Quadratic(), quadratic_samples(97), observe_two)

    run(make_job(tmp_path, two, [spec], num_samples=20, batch_size=8))
    attributes_changed(tmp_path, lambda record: record.update(moment_rows=["far", "loss", "loss-rise"]))
    told = refusal(lambda: extend(tmp_path, "a", num_samples=53, problem=two))
    assert "it keeps moments of far, loss, loss-rise, not of loss, far, loss-rise" in told


def test_a_record_without_its_job_is_refused(tmp_path):
    folder = attributes_changed(computed(tmp_path), lambda record: record["job"].update(landscapes=[]))
    assert "its record holds no job" in refusal(lambda: extend(folder, "a", num_samples=53, problem=problem))


def test_terms_that_weigh_otherwise_by_now_are_not_added_to(tmp_path):
    def weighing(factor: float) -> Callable[[], Problem]:
        points = quadratic_samples(40)
        terms = {"inside": (points, observe_inside, 1.0), "edge": (points[:13], observe_inside, factor)}
        return lambda: Problem.terms(Quadratic(), terms)

    run(make_job(tmp_path, weighing(3.0), [LANDSCAPE], num_samples=20, batch_size=8))
    told = refusal(lambda: extend(tmp_path, "a", num_samples=40, problem=weighing(4.0)))
    assert "where its terms with the weights of now make" in told
    assert extend(tmp_path, "a", num_samples=40, problem=weighing(3.0))["a"].record.num_samples == 40


def observe_inside(model: Quadratic, points: Tensor) -> Tensor:
    return model(points)


def test_a_callback_of_a_script_is_found_in_it_and_asked_for_elsewhere(tmp_path, monkeypatch):
    def of_script() -> Problem:
        return problem()

    of_script.__module__, of_script.__qualname__ = "__main__", "of_script"
    monkeypatch.setattr(sys.modules["__main__"], "of_script", of_script, raising=False)
    run(make_job(tmp_path, of_script, [LANDSCAPE], num_samples=20))
    assert extend(tmp_path, "a", num_samples=30)["a"].record.num_samples == 30
    monkeypatch.delattr(sys.modules["__main__"], "of_script")
    told = refusal(lambda: extend(tmp_path, "a", num_samples=40))
    assert "give --problem FILE:of_script (in Python `problem=`), where FILE.py is that script" in told
