"""Half precision and a scaled loss: the same steps, but for rounding; none by gradients that are not finite."""

import logging

import pytest
import torch
from torch import nn

from landscape.core.errors import JobError
from landscape.recipes.settings import PRECISIONS, Settings
from landscape.recipes.training import ScaledSteps, outputs_of
from landscape.training.thor.optimizer import THOR

INPUTS = torch.linspace(-1, 1, 24).reshape(8, 3)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))


def weights(model):
    return torch.cat([each.detach().flatten() for each in model.parameters()])


OPTIMIZERS = {
    "momentum": lambda model, scale: torch.optim.SGD(model.parameters(), 0.1, momentum=0.9),
    "adam": lambda model, scale: torch.optim.Adam(model.parameters(), 0.1),
    "thor": lambda model, scale: THOR(model, 0.1, frequency=2, loss_scale=scale),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("scale", [1.0, 128.0, 100.0])
def test_a_scaled_loss_takes_the_same_steps(name, scale):
    plain, scaled = net(), net()
    plain_optimizer = OPTIMIZERS[name](plain, 1.0)
    scaled_steps = ScaledSteps(OPTIMIZERS[name](scaled, scale), scale)
    for _ in range(4):
        plain_optimizer.zero_grad()
        plain(INPUTS).square().mean().backward()
        plain_optimizer.step()
        scaled_steps.step(scaled(INPUTS).square().mean())
    if scale == 1 or (scale == 128 and name != "thor"):  # a power of two rounds nothing
        assert torch.equal(weights(scaled), weights(plain))
    assert torch.allclose(weights(scaled), weights(plain), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_by_gradients_that_are_not_finite_is_left_out(name, caplog):
    model = net()
    before = weights(model)
    steps = ScaledSteps(OPTIMIZERS[name](model, 2.0), 2.0)
    with caplog.at_level(logging.WARNING, "landscape"):
        for _ in range(2):
            steps.step(model(INPUTS).sum() * float("inf"))
    assert torch.equal(weights(model), before)
    assert len(caplog.records) == 1
    steps.step(model(INPUTS).square().mean())
    assert not torch.equal(weights(model), before)
    assert weights(model).isfinite().all()


@pytest.mark.parametrize("precision", PRECISIONS)
def test_half_precision_keeps_outputs_and_gradients_in_single(precision):
    model = net()
    outputs = outputs_of(model, INPUTS, precision)
    assert outputs.dtype == torch.float32
    assert torch.allclose(outputs, model(INPUTS), atol=0.02)
    assert torch.equal(outputs, model(INPUTS)) == (precision == "float32")
    outputs.sum().backward()
    assert all(each.grad.dtype == torch.float32 for each in model.parameters())
    assert outputs_of(net().double(), INPUTS.double(), "float32").dtype == torch.float64


@pytest.mark.parametrize(("name", "value"), [("precision", "half"), ("loss_scale", 0.0), ("loss_scale", float("inf"))])
def test_settings_that_there_are_not(name, value):
    with pytest.raises(JobError, match=f"^{name}: "):
        Settings(1, 1, 0.1, **{name: value})
