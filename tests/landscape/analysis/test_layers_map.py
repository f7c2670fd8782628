"""`layers: true`: at every point the layer that breaks first, as inspecting the point says; whatever interrupts it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from exponential import Exponential
from small_models import make_job, wandering, write_trajectory
from torch import nn

from landscape import Job, JobError, Problem, extend, open_run, refine, run
from landscape.analysis.inspection import inspect
from landscape.compute.planning import plan_job, plan_text
from landscape.core.errors import Interrupted
from landscape.views.draw.figure import figure

MAP = {"name": "map", "layers": {"statistics": ["abs_mean", "zeros"]}, "size": [5, 4], "range": [[-40, 40], [-40, 2]]}


def problem() -> Problem:
    generator = torch.Generator().manual_seed(1)
    inputs, targets = torch.randn(23, 6, generator=generator), torch.randint(0, 3, (23,), generator=generator)
    return Problem.supervised(Exponential(), (inputs, targets), nn.CrossEntropyLoss(), [])


def job_of(folder: Path, *landscapes, **fields) -> Job:
    options = {"num_samples": 23, "batch_size": 9, "tile": 2, "engine": "eager", **fields}
    return make_job(folder, problem, landscapes or [MAP], **options)


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in open_run(folder)["map"].observables.items()}


@pytest.fixture(scope="module")
def computed(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("layers")
    run(job_of(folder))
    return folder


def test_each_point_says_what_inspecting_it_says(computed):
    surface = open_run(computed)["map"]
    record = surface.record.layers
    assert record.layers[:5] == ("fc1", "relu()", "fc2", "exp()", "fc3")
    assert record.weights[:2] == ("fc1.weight", "fc1.bias")
    broken = set()
    for row, column in list(np.ndindex(surface.loss.shape))[2::3]:
        found = inspect(computed, "map", at=(surface.alpha[column], surface.beta[row]), problem=problem)
        layers = [None, *record.names]
        first = (found.findings or (None,))[0]
        expected = (None, None) if first is None else (first.layer, first.rule)
        told = layers[int(surface["first_layer"][row, column])]
        rule = [None, *record.rules][int(surface["first_rule"][row, column])]
        assert (told, rule) == expected
        broken.add(told)
        for place, layer in enumerate(found.here.layers, 1):
            assert surface[f"layer_{place}_zeros"][row, column] == layer.statistics.share(layer.statistics.zeros)
            magnitude = surface[f"layer_{place}_abs_mean"][row, column]
            np.testing.assert_equal(magnitude, layer.statistics.magnitude)
    assert {None, "exp()"} <= broken
    assert np.isnan(surface.stderr("first_layer")).all()
    assert np.isfinite(surface["first_layer"]).all()


def test_an_interrupted_map_goes_on_to_the_same_bytes(computed, tmp_path):
    job, stop = job_of(tmp_path), iter([False] * 40 + [True] * 99)
    with pytest.raises(Interrupted):
        run(job, stop=lambda: next(stop))
    done = (open_run(tmp_path)["map"].status > 0).sum()
    assert 0 < done < 20
    run(job)
    assert bytes_of(tmp_path) == bytes_of(computed)


def test_a_refined_map_has_the_points_of_the_finer_one(computed, tmp_path):
    square = {**MAP, "size": 3, "range": [-30, 30], "layers": True}
    run(job_of(tmp_path / "a", square))
    refine(tmp_path / "a", "map", box=[(-30, 0), (-30, 0)], problem=problem)
    merged = open_run(tmp_path / "a")["map"].merged()
    fine = run(job_of(tmp_path / "b", {**square, "size": 5}))["map"]
    evaluated = merged.interpolated == 0
    assert evaluated.sum() > 9
    np.testing.assert_array_equal(merged["first_layer"][evaluated], fine["first_layer"][evaluated])


def test_a_wider_map_keeps_its_points_and_more_samples_are_refused(tmp_path):
    square = {**MAP, "size": 3, "range": [-20, 20], "layers": True}
    run(job_of(tmp_path / "a", square, num_samples=20))
    with pytest.raises(JobError, match="cannot be extended by samples: its layers would all be computed again"):
        extend(tmp_path / "a", "map", num_samples=23, problem=problem)
    extend(tmp_path / "a", "map", ranges=[(-40, 40), (-20, 20)], problem=problem)
    wide = run(job_of(tmp_path / "b", {**square, "size": [5, 3], "range": [[-40, 40], [-20, 20]]}, num_samples=20))[
        "map"
    ]
    for name in ("loss", "first_layer", "first_rule"):
        np.testing.assert_array_equal(open_run(tmp_path / "a")["map"][name], wide[name])


def test_a_path_has_no_layers_and_is_evaluated_as_ever(tmp_path):
    write_trajectory(tmp_path, wandering(Exponential(), 4))
    surface = run(job_of(tmp_path, {"name": "map", "trajectory": "all", "layers": True, "size": 3}))["map"]
    assert np.isfinite(surface.path.loss).all()
    assert (surface["first_layer"] >= 0).all()


def test_the_plan_tells_the_cost(tmp_path):
    plan = plan_job(job_of(tmp_path))
    (landscape,) = plan["landscapes"]
    assert landscape["layers"]["layers"] == 7
    assert landscape["layers"]["observables"] == 2 + 2 * 7
    assert "7 layers and operations watched at each point" in plan_text(plan)


def test_other_rules_are_another_landscape(computed):
    with pytest.raises(JobError, match="changed: layers"):
        run(job_of(computed, {**MAP, "layers": True}))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (3, "must be true, false or"),
        ({"rules": ["tensor_overflo"]}, "unknown rule 'tensor_overflo'; did you mean 'tensor_overflow'"),
        ({"rules": ["gradients"]}, "must name rules of weights or outputs"),
        ({"statistics": ["median"]}, "must be of min, max, mean, spread, abs_mean, zeros, not_finite, not 'median'"),
        ({"rule": []}, "rule"),
        ({"rules": [{"relu_zeros": 0.5}]}, "unknown rule {'relu_zeros': 0.5}"),
        ({"rules": {"relu_zeros": "x"}}, "relu_zeros: must be a finite number of at least 0"),
        ({"statistics": 3}, "must list some of min, max"),
    ],
)
def test_what_asks_for_no_layers_is_refused_by_name(value, message):
    with pytest.raises(JobError, match=r"layers") as caught:
        Job(run="runs/x", problem="a:b", landscapes=[{"name": "map", "layers": value}])
    assert message in str(caught.value)
    assert str(caught.value).count("\n") <= 1


def test_a_job_is_the_same_after_it_was_written():
    job = Job(run="runs/x", problem="a:b", landscapes=[MAP])
    again = Job(**json.loads(job.model_dump_json()))
    assert again.landscapes == job.landscapes
    assert Job(run="runs/x", problem="a:b", landscapes=[{**MAP, "layers": False}]).landscapes[0].layers is None


def test_observables_of_that_name_are_refused(tmp_path):
    def observe(model, batch):
        return {"loss": model(batch[0]).sum(1), "first_rule": model(batch[0]).sum(1)}

    taken = make_job(tmp_path, lambda: Problem(Exponential(), problem().data, observe), [MAP], num_samples=23)
    with pytest.raises(JobError, match="layers: 'first_rule' is what observe returns already"):
        run(taken)


def test_a_map_is_drawn_with_the_names_of_layers_and_rules(computed):
    surface = open_run(computed)["map"]
    for observable, name in (("first_layer", "exp()"), ("first_rule", "tensor_overflow")):
        for kind in ("topographic", "contour"):
            drawn = figure(surface, kind, observable=observable)
            (field,) = [trace for trace in drawn.data if trace.type == "heatmap"]
            assert name in field.colorbar.ticktext
            assert "none" in field.colorbar.ticktext
            assert name in {text for row in field.text for text in row}
