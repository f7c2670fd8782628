"""What THOR counts where a graph has several backward passes, and where a model or its trained parameters change."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from landscape import JobError
from landscape.training.thor.optimizer import THOR

DATA = torch.randn(8, 2, 5, 5, generator=torch.Generator().manual_seed(0)).double()
LABELS = torch.arange(8) % 4


def network():
    torch.manual_seed(1)
    layers = [nn.Conv2d(2, 3, 3), nn.Tanh(), nn.Flatten(), nn.LayerNorm(27), nn.Linear(27, 4)]
    return nn.Sequential(*layers).double()


def weights(model):
    return torch.cat([each.detach().flatten() for each in model.parameters()])


def told(caplog):
    return [record.getMessage() for record in caplog.records]


def losses(model):
    output = model(DATA)
    return F.cross_entropy(output, LABELS), output.square().mean()


def stepped(backward, steps=3):
    """The weights after some steps with the gradients that `backward` leaves."""
    model = network()
    optimizer = THOR(model, 0.05, frequency=1)
    for _ in range(steps):
        optimizer.zero_grad()
        backward(model, optimizer)
        optimizer.step()
    return weights(model)


def together(model, optimizer):
    sum(losses(model)).backward()


def one_after_another(model, optimizer):
    first, second = losses(model)
    first.backward(retain_graph=True)
    second.backward()


def forgotten_between(model, optimizer):
    loss = sum(losses(model))
    loss.backward(retain_graph=True)
    optimizer.zero_grad()
    loss.backward()


def after_gradients_for_inputs(model, optimizer):
    given = DATA.clone().requires_grad_()
    output = model(given)
    torch.autograd.grad(output.square().sum(), given, create_graph=True)
    (F.cross_entropy(output, LABELS) + output.square().mean()).backward()


def after_another_layers_gradient(model, optimizer):
    first, second = losses(model)
    (first * 3).backward(inputs=[model[3].weight], retain_graph=True)
    model[3].weight.grad = None
    (first + second).backward()


@pytest.mark.parametrize(
    "backward",
    [one_after_another, forgotten_between, after_gradients_for_inputs, after_another_layers_gradient],
)
def test_a_use_counts_once_with_the_sum_of_its_gradients(backward):
    torch.testing.assert_close(stepped(backward), stepped(together), rtol=1e-10, atol=1e-12)


def test_inputs_are_freed_by_the_backward_pass():
    model = nn.Linear(3, 2).double()
    optimizer = THOR(model, 0.1)
    numbers = np.ones((4, 3))
    kept = weakref.ref(numbers)
    loss = model(torch.from_numpy(numbers)).sum()
    del numbers
    loss.backward()  # what follows in training keeps the loss: it is shown, and averaged
    assert kept() is None
    assert optimizer.layers[0].pending.samples == 4


def test_parameters_that_are_added_get_factors():
    model = network()
    optimizer = THOR(model, 0.05, frequency=1, params=model[4].parameters())
    together(model, optimizer)
    optimizer.step()
    inverse = optimizer.layers[0].inverse
    with pytest.raises(JobError, match="lr: must be at least 0"):
        optimizer.add_param_group({"params": model[0].parameters(), "lr": -1.0})
    optimizer.add_param_group({"params": model[0].parameters(), "lr": 0.01})
    assert [layer.name for layer in optimizer.layers] == ["0", "4"]
    assert [layer.inverse for layer in optimizer.layers] == [None, inverse]
    before = model[0].weight.detach().clone()
    together(model, optimizer)
    optimizer.step()
    assert optimizer.layers[0].inverse is not None
    assert not torch.equal(model[0].weight, before)
    assert sum(len(module._forward_hooks) for module in model.modules()) == 2
    optimizer.close()
    optimizer.add_param_group({"params": model[3].parameters()})
    assert sum(len(module._forward_hooks) for module in model.modules()) == 0


def test_two_optimizers_train_parts_of_a_model():
    model = network()
    parts = [THOR(model, 0.05, frequency=1, params=model[part].parameters()) for part in (slice(0, 3), slice(3, 5))]
    for _ in range(3):
        for optimizer in parts:
            optimizer.zero_grad()
        together(model, None)
        for optimizer in parts:
            optimizer.step()
    assert torch.equal(weights(model), stepped(together))


def test_weights_that_were_replaced_are_named_once(caplog):
    model = network()
    optimizer = THOR(model, 0.05, frequency=1)
    model[0].weight = nn.Parameter(model[0].weight.detach().clone())
    model[4] = nn.Linear(27, 4).double()
    for _ in range(2):
        together(model, optimizer)
        optimizer.step()
    line = "THOR does not train weights that replaced those it was made for: 0, 4; make THOR anew"
    assert told(caplog) == [line]


def test_a_model_may_change_its_precision_between_steps():
    model = network().float()
    optimizer = THOR(model, 0.05, frequency=2)
    for dtype in (torch.float32, torch.float64, torch.float64):
        model.to(dtype)
        optimizer.zero_grad()
        F.cross_entropy(model(DATA.to(dtype)), LABELS).backward()
        optimizer.step()
    assert bool(weights(model).isfinite().all())
    assert optimizer.layers[0].inverse.a[0].dtype == torch.float64


def test_batches_without_samples_change_no_factors(caplog):
    model = network()
    optimizer = THOR(model, 0.05, frequency=1)
    together(model, optimizer)
    optimizer.step()
    inverses = [layer.inverse for layer in optimizer.layers]
    optimizer.zero_grad()
    model(DATA[:0]).sum().backward()
    optimizer.step()
    assert [layer.inverse for layer in optimizer.layers] == inverses
    assert told(caplog) == []


def test_inverses_that_no_step_can_be_taken_with_are_made_anew(caplog):
    model = nn.Linear(2, 1, bias=False)
    optimizer = THOR(model, 1e9, damping=1e-70)
    for size in (0.0, 1e10, 1e10):  # inputs of nothing have the inverse 1/√λ
        before = weights(model)
        optimizer.zero_grad()
        model(torch.tensor([[size, 0.0], [0.0, size]])).sum().backward()
        optimizer.step()
        assert bool(weights(model).isfinite().all())
    assert told(caplog) == ["THOR skips step 1, whose gradients are not finite (1 in a row)"]
    assert not torch.equal(weights(model), before)
