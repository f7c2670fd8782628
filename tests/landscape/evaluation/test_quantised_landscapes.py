"""Quantised landscapes from the job to the disk: values, planes shared with `like`, refusals, what is recorded."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from small_models import conv_problem, make_job, quadratic_problem
from torch import nn

from landscape import JobError, Problem, extend, open_run, run
from landscape.analysis.measures.requested import job_of_file, job_of_run
from landscape.compute.prepare import prepare
from landscape.core.errors import Interrupted
from landscape.core.plan import Plan
from landscape.core.text import digest
from landscape.job.job import Job
from landscape.model.parameters import describe_parameters, filter_unview, filter_view, state_of
from landscape.views.prepare.words import caption

FLOAT = {"name": "float", "size": 5, "range": [-0.5, 0.5]}
SMALL = {"name": "small", "like": "float", "quantise": {"bits": 3}}


def rounded_loss(problem: Problem, state, bits: int) -> float:
    """The mean loss of a copy of the model with its weights rounded, per output channel, by torch's own operator."""
    model, most = copy.deepcopy(problem.model).eval(), 2 ** (bits - 1) - 1
    for info in describe_parameters(problem.model):
        if info.role == "weight" and len(info.shape) > 1:
            rows = filter_view(state[info.name], info)
            scales, zeros = rows.abs().amax(1) / most, torch.zeros(len(rows), dtype=torch.int32)
            rows = torch.fake_quantize_per_channel_affine(rows, scales, zeros, 0, -most, most)
            state = {**state, info.name: filter_unview(rows, info)}
    model.load_state_dict(state)
    with torch.no_grad():
        return float(problem.observe(model, problem.data)["loss"].double().mean())


def test_every_point_is_that_of_the_network_with_rounded_weights(tmp_path):
    problem = conv_problem()
    done = run(make_job(tmp_path / "run", lambda: problem, [FLOAT, SMALL], num_samples=29, seed=3, batch_size=29))
    plain, small = done["float"], done["small"]
    for one, other in zip(plain.axes, small.axes, strict=True):
        assert one.record.digest == other.record.digest
        np.testing.assert_array_equal(one.coordinates, other.coordinates)
    prepared = prepare(make_job(tmp_path / "other", lambda: problem, [FLOAT], num_samples=29, seed=3))
    axes = [each.tensors for each in prepared.landscapes[0].directions]
    for i, j in ((0, 0), (2, 2), (1, 4)):
        a, b = float(small.alpha[j]), float(small.beta[i])
        state = {
            name: tensor + a * axes[0].get(name, 0) + b * axes[1].get(name, 0)
            for name, tensor in state_of(problem.model).items()
        }
        assert small.loss[i, j] == pytest.approx(rounded_loss(problem, state, 3), rel=2e-6)
    assert not np.allclose(plain.loss, small.loss, rtol=1e-3)
    assert small.origin_loss == small.loss[2, 2]


def test_a_landscape_that_is_not_quantised_has_the_digest_that_it_had(tmp_path):
    job = make_job(tmp_path / "run", quadratic_problem, [FLOAT], num_samples=23)
    (plain,) = prepare(job).landscapes
    assert "quantise" not in plain.identity
    assert "quantise" not in plain.plan.record()
    assert plain.record.digest == digest(plain.identity)
    none = prepare(job.replace(landscapes=[{**FLOAT, "quantise": False}])).landscapes[0]
    assert none.record.digest == plain.record.digest
    other = prepare(job.replace(landscapes=[{**FLOAT, "quantise": {"bits": 8}}])).landscapes[0]
    assert other.record.digest != plain.record.digest
    assert Plan.from_record(other.plan.record()) == other.plan


def test_what_is_rounded_is_recorded_and_told(tmp_path):
    asked = {"bits": 4, "activations": "calibrated", "scale": "origin"}
    run(make_job(tmp_path / "run", conv_problem, [{**FLOAT, "quantise": asked}], num_samples=29))
    surface = open_run(tmp_path / "run")["float"]
    words = "weights rounded to 4 bits per channel and activations per tensor, scales of the origin"
    assert surface.record.rounding_in_words == words
    assert words in " ".join(caption(surface, "loss"))
    names = [info.name for info in describe_parameters(conv_problem().model) if info.role == "weight"]
    assert list(surface.record.rounded) == names


def test_another_rounding_is_another_landscape(tmp_path):
    job = make_job(tmp_path / "run", conv_problem, [{**FLOAT, "quantise": {"bits": 4}}], num_samples=29)
    run(job)
    for changed in ({"bits": 5}, {"bits": 4, "scheme": "per-tensor"}, {"bits": 4, "scale": "origin"}, False):
        with pytest.raises(JobError, match="changed: quantise bits=4"):
            prepare(job.replace(landscapes=[{**FLOAT, "quantise": changed}]))
    run(job)


def test_an_interruption_changes_no_bit(tmp_path):
    landscapes = [{**FLOAT, "size": 3}, {**SMALL, "quantise": {"bits": 3, "activations": "calibrated"}}]
    whole = run(make_job(tmp_path / "whole", conv_problem, landscapes, num_samples=29, tile=2))
    job = make_job(tmp_path / "cut", conv_problem, landscapes, num_samples=29, tile=2)
    for calls in (12, 10, 8):
        left = iter(range(calls))
        with pytest.raises(Interrupted):
            run(job, stop=lambda left=left: next(left, None) is None)
    run(job)
    cut = open_run(tmp_path / "cut")
    for name in ("float", "small"):
        np.testing.assert_array_equal(cut[name].loss, whole[name].loss)


def test_the_jobs_quantise_is_the_default_of_its_landscapes(tmp_path):
    landscapes = [{**FLOAT, "quantise": False}, {"name": "two", "like": "float"}, {**SMALL, "name": "three"}]
    job = make_job(tmp_path / "run", conv_problem, landscapes, num_samples=29, quantise={"bits": 2})
    found = {each.name: each.plan.quantise for each in prepare(job).landscapes}
    assert found["float"] is None
    assert (found["two"].bits, found["three"].bits) == (2, 3)
    (implied,) = prepare(
        make_job(tmp_path / "other", conv_problem, [], num_samples=29, quantise={"bits": 2})
    ).landscapes
    assert implied.plan.quantise.bits == 2


def test_an_engine_for_rounded_numbers_is_said_to_do_nothing_where_nothing_is_rounded(tmp_path):
    landscapes = [FLOAT, {"name": "small", "like": "float", "quantise": {"bits": 8, "activations": "calibrated"}}]
    job = make_job(tmp_path / "run", conv_problem, landscapes, num_samples=9, engine="eager+folded+int8")
    assert [each for each in prepare(job).warnings if each.startswith("engine")] == [
        "engine: float is computed by eager+folded in place of eager+folded+int8: int8 does nothing where not both "
        "weights and activations are quantised to 8 bits"
    ]
    assert not prepare(job.replace(engine="eager+folded")).warnings


def test_layers_are_asked_of_each_landscape_by_itself():
    landscapes = [{**FLOAT, "layers": True}, {**SMALL, "name": "without"}, {**SMALL, "name": "with", "layers": True}]
    found = Job(run="runs/x", problem="a:b", landscapes=landscapes).landscapes
    assert [each.layers is not None for each in found] == [True, False, True]


def test_a_landscape_is_like_one_of_the_run_on_disk(tmp_path):
    auto, fields = {"name": "float", "size": [3, 5], "range": "auto"}, {"num_samples": 29, "engine": "eager"}
    done = run(make_job(tmp_path / "run", conv_problem, [auto], **fields))
    later = run(make_job(tmp_path / "run", conv_problem, [SMALL, {"name": "again", "like": "small"}], **fields))
    for one, other in zip(done["float"].axes, later["small"].axes, strict=True):
        np.testing.assert_array_equal(one.coordinates, other.coordinates)
        assert one.record.digest == other.record.digest
    np.testing.assert_array_equal(later["again"].loss, done["float"].loss)


def test_a_range_that_is_found_is_that_of_the_network_before_it_is_rounded(tmp_path):
    landscapes = [{"name": "float", "size": 3, "range": "auto"}, {**SMALL, "quantise": {"bits": 1}}]
    done = run(make_job(tmp_path / "run", conv_problem, landscapes, num_samples=29))
    for one, other in zip(done["float"].axes, done["small"].axes, strict=True):
        np.testing.assert_array_equal(one.coordinates, other.coordinates)


def _no_matrix() -> Problem:
    class Bent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(4)

        def forward(self, x):
            return self.norm(x)

    return Problem.supervised(Bent(), (torch.randn(9, 4), torch.arange(9) % 4), nn.CrossEntropyLoss())


class _Product(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(4, 4))

    def forward(self, x):
        return x @ self.matrix


def _no_layer() -> Problem:
    return Problem.supervised(_Product(), (torch.randn(9, 4), torch.arange(9) % 4), nn.CrossEntropyLoss())


REFUSED = {
    "nothing to round": (_no_matrix, [{"name": "a", "quantise": {"bits": 4}}], {}, "must have weights to round"),
    "no layers": (
        _no_layer, [{"name": "a", "quantise": {"bits": 4, "activations": "calibrated"}}], {},
        "quantise.activations: the model must have linear layers or convolutions",
    ),
    "an engine that cannot": (
        conv_problem, [{"name": "a", "quantise": {"bits": 4}}], {"engine": "eager+superposed"},
        "engine: must do without superposed where anything is quantised",
    ),
    "like what is not there": (
        conv_problem, [FLOAT, {"name": "b", "like": "flaot"}], {}, "like: must name a landscape .* 'flaot'; .*float",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_quantised_is_refused_before_anything_is_written(case, tmp_path):
    problem, landscapes, fields, match = REFUSED[case]
    with pytest.raises(JobError, match=match):
        run(make_job(tmp_path / "run", problem, landscapes, num_samples=9, **fields))
    assert not (tmp_path / "run").exists()


WRONG = [
    ({"quantise": {"bits": 0}}, "landscapes.0.quantise.bits: must be at least 1, not 0"),
    ({"quantise": {"bits": 40}}, "landscapes.0.quantise.bits: must be at most 16, not 40"),
    ({"quantise": {"bits": True}}, "landscapes.0.quantise.bits: must be a whole number, not True"),
    ({"quantise": {"bits": 2.5}}, "landscapes.0.quantise.bits: must be a whole number, not 2.5"),
    ({"quantise": {"bits": 4, "scheme": "rows"}}, "quantise.scheme: must be 'per-channel' or 'per-tensor', not 'rows'"),
    ({"quantise": {"bits": 4, "scale": "x"}}, "quantise.scale: must be 'point' or 'origin', not 'x'"),
    ({"quantise": {"bits": 4, "activations": True}}, "quantise.activations: must be 'calibrated', not True"),
    ({"quantise": {"bits": 4, "weights": "no"}}, "quantise.weights: must be true or false, not 'no'"),
    ({"quantise": {"bits": 4, "weights": False}}, "must round weights or activations, not neither"),
    ({"quantise": {"bits": 4, "bit": 4}}, "quantise.bit: unknown key 'bit'"),
    ({"quantise": True}, "quantise: must be false, or such as"),
    ({"quantise": 4}, "quantise: must be false, or such as"),
    ({"quantise": {"bits": 4}, "convexity": True}, "convexity must be left out where weights are rounded"),
    ({"like": "x"}, "like must not lead back to itself: x is like x"),
    ({"like": "y", "size": 5}, "like and size exclude each other"),
]


@pytest.mark.parametrize(("fields", "message"), WRONG, ids=lambda value: str(value)[:40])
def test_what_is_written_wrongly_is_refused_in_one_line(fields, message):
    with pytest.raises(JobError) as refused:
        Job(run="r", problem="a:b", landscapes=[{"name": "x", **fields}])
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_circle_is_refused_and_a_map_of_a_job_that_rounds():
    circle = [{"name": "a", "like": "b"}, {"name": "b", "like": "c"}, {"name": "c", "like": "a"}]
    with pytest.raises(JobError, match="a is like b is like c is like a"):
        Job(run="r", problem="a:b", landscapes=circle)
    with pytest.raises(JobError, match="give the landscape `quantise: false`"):
        Job(run="r", problem="a:b", quantise={"bits": 4}, landscapes=[{"name": "a", "convexity": True}])


def test_more_samples_and_points_give_the_bits_of_asking_at_once(tmp_path):
    landscapes = [{**FLOAT, "size": 3, "quantise": {"bits": 3}}]
    job = make_job(tmp_path / "run", conv_problem, landscapes, num_samples=16, batch_size=8)
    run(job)
    extend(tmp_path / "run", "float", num_samples=29, problem=conv_problem)
    at_once = run(make_job(tmp_path / "once", conv_problem, landscapes, num_samples=29, batch_size=8))
    np.testing.assert_array_equal(open_run(tmp_path / "run")["float"].loss, at_once["float"].loss)
    assert open_run(tmp_path / "run")["float"].record.rounding_in_words == "weights rounded to 3 bits per channel"


def test_more_samples_of_calibrated_activations_are_refused(tmp_path):
    landscapes = [{**FLOAT, "quantise": {"bits": 8, "activations": "calibrated"}}]
    run(make_job(tmp_path / "run", conv_problem, landscapes, num_samples=16, batch_size=8))
    with pytest.raises(JobError, match="num_samples: landscape 'float' has activations calibrated over its samples"):
        extend(tmp_path / "run", "float", num_samples=29, problem=conv_problem)


def test_measures_are_of_the_network_before_it_is_rounded(tmp_path):
    job = make_job(tmp_path / "run", conv_problem, [{**FLOAT, "quantise": {"bits": 2}}], quantise={"bits": 3})
    assert prepare(job_of_file(job.replace(num_samples=29))).landscapes[0].plan.quantise is None
    run(job.replace(num_samples=29))
    assert prepare(job_of_run(job.run_path, conv_problem)).landscapes[0].plan.quantise is None
