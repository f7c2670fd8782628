"""Axes that weights in bfloat16 cannot resolve: refused below 0.03 of the weights, warned of below 0.1."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file
from small_models import make_job
from torch import nn

from landscape import JobError, Problem
from landscape.compute.prepare import prepare
from landscape.model.parameters import norm


def model_of(dtype=torch.bfloat16) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(2)
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).to(dtype)


def problem_of(model: nn.Module) -> Problem:
    return Problem(model, torch.ones(4, 6), lambda m, batch: {"loss": m(batch).float().square().sum(1)})


def prepared(folder, model=None, precision="bfloat16", **spec):
    landscape = {"name": "a", "directions": [{"kind": "random"}], "size": 3} | spec
    return prepare(make_job(folder, lambda: problem_of(model or model_of()), [landscape], precision=precision))


@pytest.mark.parametrize(
    "range, size, start",
    [
        ([-1, 1], 3, ""),
        ([-0.1, 0.1], 3, ""),
        ([-0.05, 0.1], 3, ""),  # the farther end counts
        ([-0.08, 0.08], 3, "range: alpha of landscape 'a' moves the weights by 0.08 of their norm: below 0.1"),
        ([-0.03, 0.03], 3, "range: alpha of landscape 'a' moves the weights by 0.03 of their norm: below 0.1"),
        ([-0.1, 0.1], 51, "size: neighbouring points on alpha of landscape 'a' differ by 0.004 of the weights'"),
    ],
)
@pytest.mark.parametrize("normalise", ["filter", "layer"])
def test_ranges_that_may_show_the_rounding_are_told(tmp_path, range, size, start, normalise):
    directions = [{"kind": "random", "normalise": normalise}]
    found = prepared(tmp_path, range=range, size=size, directions=directions).warnings
    assert len(found) == bool(start)
    assert all(warning.startswith(start) for warning in found)


def test_a_range_below_what_bfloat16_resolves_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(
        JobError, match=r"range: alpha of landscape 'a' moves the weights by 0\.02 .*float32"
    ) as refused:
        prepared(tmp_path / "run", range=[-0.01, 0.02])
    assert "widen the range" in str(refused.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("dtype, precision", [(torch.float32, "bfloat16"), (torch.bfloat16, "float32")])
def test_weights_in_float32_have_no_such_bound(tmp_path, dtype, precision):
    found = prepared(tmp_path, model_of(dtype), precision, range=[-0.001, 0.001])
    assert not any(warning.startswith("range") for warning in found.warnings)
    assert not found.landscapes[0].plan.rounds_weights


def test_every_axis_is_asked(tmp_path):
    with pytest.raises(JobError, match="beta of landscape"):
        prepared(tmp_path, directions=[{"kind": "random"}] * 2, range=[[-1, 1], [-0.01, 0.01]])


@pytest.mark.parametrize("share", [0.01, 0.05, 0.5])
def test_other_directions_count_by_how_far_they_move_the_weights(tmp_path, share):
    model = model_of()
    state = {name: each.detach().float() for name, each in model.named_parameters()}
    generator = torch.Generator().manual_seed(0)
    step = {name: torch.randn(each.shape, generator=generator) for name, each in state.items()}
    scale = share * norm(state) / norm(step)
    target = {name: (each + scale * step[name]).bfloat16() for name, each in state.items()}
    save_file(target, tmp_path / "target.safetensors")
    directions = [{"kind": "towards", "target": str(tmp_path / "target.safetensors")}]
    spec = {"directions": directions, "range": [0, 1]}
    if share < 0.03:
        with pytest.raises(JobError, match=r"moves the weights by 0\.01"):
            prepared(tmp_path / "run", model, **spec)
    else:
        assert len(prepared(tmp_path / "run", model, **spec).warnings) == (share < 0.1)


def test_what_is_held_in_float32_is_left_out_of_account(tmp_path):
    model = nn.Sequential(nn.Linear(6, 8).bfloat16(), nn.Linear(8, 2))
    directions = [{"kind": "file", "path": str(tmp_path / "d.safetensors")}]
    still = {name: torch.zeros(each.shape) for name, each in model.named_parameters()}
    save_file(still | {"1.weight": 1e-4 * torch.ones(2, 8)}, tmp_path / "d.safetensors")
    found = prepared(tmp_path / "run", model, directions=directions)
    assert found.landscapes[0].plan.rounds_weights
    assert found.warnings == ()


def test_a_range_beyond_float32_is_refused_and_float64_has_it(tmp_path):
    model = model_of(torch.float32)
    with pytest.raises(JobError, match=r"range: must be within ±3.4e\+38, which float32 can hold, not 1e\+300"):
        prepared(tmp_path, model, "float32", range=[-1e300, 1])
    assert prepared(tmp_path, model, "float64", range=[-1e300, 1]).landscapes[0].grid.coordinates[0][0] == -1e300
