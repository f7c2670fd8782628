"""Random directions whose numbers are rounded to bfloat16: another direction, drawn anew from its seed as any other."""

from __future__ import annotations

import pytest
import torch
from small_models import conv_problem, make_job, raw_directions
from torch import nn

from landscape import JobError, run
from landscape.job.directions.kinds import seeded
from landscape.job.directions.random import RandomDirection, random_direction
from landscape.model.parameters import describe_parameters, direction_digest, state_of


@pytest.mark.parametrize("normalise", ["filter", "layer", "model", "none"])
def test_the_numbers_are_those_of_float32_rounded_once(normalise):
    model = nn.Linear(64, 50)
    origin, infos = state_of(model), describe_parameters(model)
    plain = random_direction(origin, infos, 3, normalise)
    rounded = random_direction(origin, infos, 3, normalise, numbers="bfloat16")
    assert list(plain) == list(rounded)
    for name, tensor in rounded.items():
        assert tensor.dtype is torch.float32
        assert torch.equal(tensor, plain[name].bfloat16().float())
        assert not torch.equal(tensor, plain[name])


def test_a_filter_keeps_its_norm_to_the_rounding():
    model = nn.Linear(256, 50, bias=False)
    direction = random_direction(state_of(model), describe_parameters(model), 1, numbers="bfloat16")
    ratios = direction["weight"].norm(dim=1) / model.weight.detach().norm(dim=1)
    assert float((ratios - 1).abs().max()) < 1e-3


def test_jobs_and_records_without_it_stay_as_they_were():
    plain, rounded = RandomDirection(seed=1), RandomDirection(seed=1, numbers="bfloat16")
    assert "numbers" not in plain.model_dump()
    assert "numbers" not in plain.model_dump(mode="json")
    assert rounded.model_dump(mode="json")["numbers"] == "bfloat16"
    assert RandomDirection(**plain.model_dump()) == plain
    assert RandomDirection(**rounded.model_dump()) == rounded
    assert seeded(plain.model_dump(mode="json")) == plain
    with pytest.raises(JobError, match="numbers: must be 'float32' or 'bfloat16', not 'float16'"):
        RandomDirection(numbers="float16")


def test_a_landscape_says_which_it_has_and_goes_on_with_it(tmp_path):
    def job(numbers):
        directions = [{"kind": "random", "seed": 1} | numbers]
        spec = {"name": "a", "directions": directions, "size": 3}
        return make_job(tmp_path, conv_problem, [spec], num_samples=8)

    run(job({"numbers": "bfloat16"}))
    (stored,) = raw_directions(tmp_path, "a")
    tensors = {name: torch.tensor(each) for name, each in stored.items()}
    assert all(torch.equal(each, each.bfloat16().float()) for each in tensors.values())
    model = conv_problem().model
    drawn = random_direction(state_of(model), describe_parameters(model), 1, numbers="bfloat16")
    assert direction_digest(tensors) == direction_digest(drawn)
    run(job({"numbers": "bfloat16"}))
    with pytest.raises(JobError, match=r"directions \(axis 1: .*\)"):
        run(job({}))
