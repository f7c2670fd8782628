"""Weights and samples that are not finite, or no real floating-point numbers: refused or told in a line."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from safetensors.torch import save_file
from small_models import make_job, raw_directions, write_trajectory
from torch import nn

from landscape import JobError, Problem, run
from landscape.compute.prepare import prepare
from landscape.job.directions.plane import towards_direction
from landscape.problem.batches import not_finite

SAMPLES = torch.randn(12, 3, generator=torch.Generator().manual_seed(1))
SPEC = {"name": "a", "size": 5}


def squares(model, batch):
    return {"loss": model(batch).float().square().sum(1)}


def linear(**fields) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(2)
        return nn.Linear(3, 4, **fields)


# -- not finite ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_an_origin_that_is_not_finite_is_refused_and_names_where_it_is_from(tmp_path, value):
    model = linear()
    bad = copy.deepcopy(model)
    bad.weight.data[1, 2] = value
    write_trajectory(tmp_path, {3: bad.state_dict()})
    save_file(dict(bad.state_dict()), tmp_path / "bad.safetensors")
    held = r"must be finite, not NaN or infinity in weight \(1 of 12 values\)"
    for problem, origin, named in [(bad, "problem", "problem"), (model, 3, "epoch 3"), (model, "last", "epoch 3")]:
        job = make_job(tmp_path, lambda of=problem: Problem(of, SAMPLES, squares), [SPEC | {"origin": origin}])
        with pytest.raises(JobError, match=f"^origin: {named}: {held}"):
            prepare(job)
    spec = SPEC | {"origin": str(tmp_path / "bad.safetensors")}
    with pytest.raises(JobError, match=rf"^origin: .*bad.safetensors: {held}"):
        prepare(make_job(tmp_path, lambda: Problem(model, SAMPLES, squares), [spec]))


def test_a_target_that_is_not_finite_is_refused():
    with pytest.raises(JobError, match="directions: the target must be finite; weight holds"):
        towards_direction({"weight": torch.ones(2)}, {"weight": torch.tensor([1.0, math.nan])})


def test_a_mask_of_infinities_is_no_fault_and_does_not_move():
    mask = torch.tensor([0.0, -math.inf])
    found = towards_direction({"w": torch.ones(2), "mask": mask}, {"w": torch.zeros(2), "mask": mask.clone()})
    assert list(found) == ["w"]

    class Masked(nn.Linear):
        def __init__(self) -> None:
            super().__init__(3, 4)
            self.register_buffer("mask", torch.tensor([0, 0, 0, -math.inf]))

        def forward(self, x):
            return torch.softmax(super().forward(x) + self.mask, 1)

    model = Masked()
    assert prepare(make_job("unused", lambda: Problem(model, SAMPLES, squares), [SPEC])).warnings == ()


@pytest.mark.parametrize("field, name", [(0, r"inputs \(field 0\)"), (1, r"targets \(field 1\)")])
def test_samples_that_are_not_finite_are_told_with_field_and_count(tmp_path, field, name):
    data = SAMPLES.clone(), torch.randn(12, 4)
    data[field][2:5, 1] = math.nan
    data[field][4, 2] = math.inf
    problem = Problem(linear(), data, lambda m, b: {"loss": (m(b[0]) - b[1]).square().sum(1)})
    (warning, *_) = prepare(make_job(tmp_path, lambda: problem, [SPEC], num_samples=12)).warnings
    assert warning.startswith("data: ")
    assert name.replace("\\", "") in warning
    assert "in 3 of the 12 samples" in warning


def test_fields_are_named_whatever_the_batches_are_made_of():
    bad, good = torch.tensor([[1.0], [math.nan]]), torch.zeros(2, 1)
    assert not_finite({"x": bad, "y": good, "n": torch.ones(2, dtype=torch.int64)}) == {"x": 1}
    assert not_finite((good, good, bad)) == {"field 2": 1}
    assert not_finite(bad) == {"samples": 1}
    assert not_finite([good, {"deep": bad}]) == {"targets (field 1)": 1}
    assert not_finite((torch.zeros(0, 3), good)) == {}


# -- other types ---------------------------------------------------------------------------------------------


class Odd(nn.Module):
    """A linear layer beside a parameter of another type."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.body = linear()
        self.odd = nn.Parameter(torch.ones(4).to(dtype), requires_grad=dtype.is_complex)

    def forward(self, x):
        odd = self.odd.abs() if self.odd.is_complex() else self.odd
        return self.body(x) * odd


@pytest.mark.parametrize("dtype", [torch.complex64, torch.int8, torch.bool])
def test_weights_of_other_types_stay_as_they_are_and_that_is_told(tmp_path, dtype):
    model = Odd(dtype)
    other = copy.deepcopy(model)
    other.body.weight.data.add_(1)
    other.odd.data = (torch.zeros(4) if dtype is torch.bool else torch.full((4,), 3.0)).to(dtype)
    save_file(dict(other.state_dict()), tmp_path / "other.safetensors")
    spec = {
        "name": "line",
        "directions": [{"kind": "towards", "target": str(tmp_path / "other.safetensors")}],
        "size": 3,
    }
    job = make_job(tmp_path, lambda: Problem(model, SAMPLES, squares), [SPEC, spec | {"range": [0, 1]}])
    (warning,) = prepare(job).warnings
    assert warning.startswith(f"model: odd ({str(dtype).removeprefix('torch.')}) stay as they are")
    found = run(job)["line"]
    model.body.weight.data.add_(1)
    with torch.no_grad():
        assert found.loss[-1] == pytest.approx(float(squares(model, SAMPLES)["loss"].double().mean()), rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.int8])
def test_a_direction_of_a_file_that_would_move_them_is_refused(tmp_path, dtype):
    model = Odd(dtype)
    save_file({name: torch.ones(each.shape) for name, each in model.named_parameters()}, tmp_path / "d.safetensors")
    spec = {"name": "a", "directions": [{"kind": "file", "path": str(tmp_path / "d.safetensors")}], "size": 3}
    with pytest.raises(JobError, match="odd"):
        prepare(make_job(tmp_path, lambda: Problem(model, SAMPLES, squares), [spec]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_weights_are_rounded_once_where_they_lie_and_never_at_a_point(tmp_path, dtype):
    model = linear().to(dtype)
    job = make_job(tmp_path, lambda: Problem(model, SAMPLES, squares), [SPEC], num_samples=12)
    (warning,) = prepare(job).warnings
    assert warning.startswith(f"model: weight, bias ({str(dtype).removeprefix('torch.')}) are taken to the type")
    found = run(job)["a"]
    first, second = raw_directions(tmp_path, "a")
    for row, beta in enumerate(found.beta):
        for column, alpha in enumerate(found.alpha):
            exact = {name: each.detach().double().numpy() for name, each in model.named_parameters()}
            for coordinate, direction in ((alpha, first), (beta, second)):
                exact = {name: each + coordinate * direction[name] for name, each in exact.items()}
            outputs = SAMPLES.double().numpy() @ exact["weight"].T + exact["bias"]
            assert found.loss[row, column] == pytest.approx((outputs**2).sum(1).mean(), rel=2e-6)
    assert {each.dtype for each in model.parameters()} == {dtype}


def test_packed_layers_are_told():
    kind = type("Linear", (nn.Identity,), {"__module__": "torch.ao.nn.quantized.dynamic.modules.linear"})
    model = nn.Sequential(linear(), nn.ReLU(), kind())
    (warning,) = prepare(make_job("unused", lambda: Problem(model, SAMPLES, squares), [SPEC])).warnings
    assert warning.startswith("model: 2 hold quantised weights, which stay as they are")


def test_axes_of_weights_that_are_all_zero_are_zero_and_at_right_angles(tmp_path):
    model = linear()
    for parameter in model.parameters():
        parameter.data.zero_()
    (landscape,) = prepare(make_job(tmp_path, lambda: Problem(model, SAMPLES, squares), [SPEC])).landscapes
    assert landscape.record.cosine == ((0.0, 0.0), (0.0, 0.0))
