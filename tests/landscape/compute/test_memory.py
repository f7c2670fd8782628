"""What a plan says of memory is what the weights take: counted while they are set."""

from __future__ import annotations

import pytest
import torch
from live_bytes import LiveBytes
from pooled import CPU
from torch import nn

from landscape.compute.memory import H100, bytes_of_landscape, device_bytes, seconds_of_point
from landscape.core.plan import Plan
from landscape.evaluation.evaluator import Evaluator
from landscape.job.directions.random import random_direction
from landscape.model.parameters import describe_parameters, state_of


@pytest.mark.parametrize(
    "origin_in, dtype", [("device", torch.bfloat16), (None, torch.bfloat16), ("device", torch.float32)]
)
@pytest.mark.parametrize("held", [True, False])
def test_a_plan_counts_the_bytes_that_are_held(origin_in, dtype, held, monkeypatch):
    for module in ("landscape.model.parameters", "landscape.evaluation.weights", "landscape.compute.memory"):
        monkeypatch.setattr(f"{module}.LARGE", 0)
    model = nn.Sequential(nn.Linear(400, 500, bias=False), nn.Linear(500, 400, bias=False)).to(dtype)
    origin, infos = state_of(model), describe_parameters(model)
    axes = [random_direction(origin, infos, seed) for seed in (1, 2)]
    axes = [dict(axis) for axis in axes] if held else axes
    plan = Plan(2, 1, "cpu", "bfloat16" if dtype is torch.bfloat16 else "float32", bfloat16_weights=True)
    said = bytes_of_landscape(model, plan, axes, origin_in, 1)
    given = [*origin.values(), *model.parameters(), *(tensor for axis in axes if held for tensor in axis.values())]
    with LiveBytes(given) as live:
        samples = torch.ones(2, 400)
        evaluator = Evaluator(model, samples, observe, plan, CPU, origin, axes, origin_in=origin_in)
        evaluator.weights.set_point([0.5, 0.5])
    assert 0 <= live.now - said.held < 1 << 20  # the buffer of a piece, and words that are kept to draw another
    assert live.peak <= said.held + said.staging + (1 << 20)


def observe(model, batch):
    return {"loss": model(batch).float().square().sum(1)}


def test_seven_billion_weights_take_fourteen_gigabytes():
    assert device_bytes(7 * 10**9, 2, origin_on_device=False).held == 14 * 10**9
    assert device_bytes(7 * 10**9, 4, held_axes=2).held == 112 * 10**9
    eighth = device_bytes(7 * 10**9, 2, ranks=8, block=202 * 10**6)
    assert (eighth.weights, eighth.gathered) == (1_750_000_000, 808_000_000)


def test_a_point_takes_the_longer_of_computing_and_gathering():
    found = seconds_of_point(10**9, 2, 1000, H100, ranks=4, batches=10, gathers=True)
    assert found["point"] == found["setting"] + max(found["forward"], found["gathering"])
    assert seconds_of_point(10**9, 2, 1000, H100)["gathering"] == 0
