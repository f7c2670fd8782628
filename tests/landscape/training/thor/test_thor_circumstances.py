"""THOR where trainings differ: resumed, scaled, frozen, tied, evaluated in between, copied, refused; and its hooks."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import weakref

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad
from torch.nn import functional as F
from torch.nn.utils import prune
from torch.utils.checkpoint import checkpoint_sequential

from landscape import JobError
from landscape.training.thor.optimizer import THOR

IMAGES, LABELS = torch.randn(8, 2, 5, 5, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 4


def network(dtype=torch.float64):
    torch.manual_seed(1)
    layers = [nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(inplace=True), nn.Flatten(), nn.LayerNorm(27)]
    return nn.Sequential(*layers, nn.Linear(27, 4)).to(dtype)


def loss_of(model):
    weight = next(model.parameters())
    return F.cross_entropy(model(IMAGES.to(weight.dtype)).to(torch.float32), LABELS)


def steps(model, optimizer, count=1):
    for _ in range(count):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
    return weights(model)


def weights(model):
    return torch.cat([each.detach().flatten() for each in model.parameters()])


def told(caplog):
    return [record.getMessage() for record in caplog.records]


# Going on


@pytest.mark.long
@pytest.mark.parametrize(
    ("taken", "dtype", "refresh"),
    [
        (1, torch.float64, "thor_stop"),
        (4, torch.bfloat16, "thor_stop"),
        (4, torch.float64, "thor"),
        (4, torch.float32, "thor_nt"),
        (3, torch.float32, "frequency"),
    ],
)
def test_a_resumed_training_has_the_same_bits(taken, dtype, refresh):
    options = {"lr": 0.02, "refresh": refresh, "frequency": 2, "growth": 2, "longest": 3, "average": 0.5}
    model = network(dtype)
    optimizer = THOR(model, **options)
    steps(model, optimizer, taken)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    expected = steps(model, optimizer, 6)
    other = network(dtype)
    resumed = THOR(other, **options)
    kept = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
    other.load_state_dict(kept["model"])
    resumed.load_state_dict(kept["optimizer"])
    assert torch.equal(steps(other, resumed, 6), expected)
    assert str(resumed.state_dict()) == str(optimizer.state_dict())


def test_the_state_of_another_model_or_optimizer_is_refused():
    optimizer = THOR(network(), 0.1)
    with pytest.raises(JobError, match="of a THOR"):
        optimizer.load_state_dict(torch.optim.SGD(network().parameters(), 0.1).state_dict())
    with pytest.raises(JobError, match="2 such layers, not 1"):
        optimizer.load_state_dict(THOR(nn.Linear(3, 2), 0.1).state_dict())
    with pytest.raises(JobError, match=r"0 must have factors of \[18, 3\] in blocks of \[128, 128\].*of \[16, 16\]"):
        optimizer.load_state_dict(THOR(network(), 0.1, split_dim=16).state_dict())


# Precision


def test_a_scaled_loss_takes_the_same_steps():
    found = []
    for scale in (1.0, 128.0):
        model = network()
        optimizer = THOR(model, 0.1, loss_scale=scale, frequency=2)
        for _ in range(4):
            optimizer.zero_grad()
            (loss_of(model) * scale).backward()
            optimizer.step()
        found.append(weights(model))
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("unscales", [False, True])
def test_a_grad_scaler_takes_the_same_steps_and_skips_overflows(unscales, caplog):
    model, plain = network(), network()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    optimizer = THOR(model, 0.1, frequency=2, **({"loss_scale": scaler} if unscales else {}))
    for number in range(6):
        before = weights(model)
        optimizer.zero_grad()
        loss = loss_of(model) * (torch.inf if number in (0, 3) else 1.0)
        scaler.scale(loss).backward()
        if unscales:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        assert torch.equal(weights(model), before) == (number in (0, 3))
    expected = steps(plain, THOR(plain, 0.1, frequency=2), 4)
    torch.testing.assert_close(weights(model), expected, rtol=1e-10, atol=1e-10)
    assert optimizer.state_dict()["thor"]["steps"] == 4
    assert told(caplog) == []  # an overflow is how a GradScaler finds its scale


def test_gradients_unscaled_by_hand_need_the_scaler():
    model, scaler = network(), torch.amp.GradScaler("cpu")
    optimizer = THOR(model, 0.1)
    scaler.scale(loss_of(model)).backward()
    scaler.unscale_(optimizer)
    with pytest.raises(JobError, match="loss_scale: must be the GradScaler"):
        scaler.step(optimizer)


def test_steps_that_are_not_finite_are_skipped(caplog):
    model = network()
    optimizer = THOR(model, 0.1)
    before = steps(model, optimizer)
    for _ in range(2):
        optimizer.zero_grad()
        (loss_of(model) * torch.nan).backward()
        optimizer.step()
    assert torch.equal(weights(model), before)
    assert told(caplog) == ["THOR skips step 1, whose gradients are not finite (1 in a row)"]
    assert not torch.equal(steps(model, optimizer), before)


def test_factors_are_in_float32_at_least():
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        model = network(dtype)
        optimizer = THOR(model, 0.01)
        assert bool(steps(model, optimizer, 2).isfinite().all())
        expected = torch.float64 if dtype == torch.float64 else torch.float32
        assert {block.dtype for layer in optimizer.layers for block in layer.inverse.a} == {expected}


def test_under_autocast_factors_are_close_to_those_of_float32():
    found = []
    for enabled in (False, True):
        model = network(torch.float32)
        optimizer = THOR(model, 0.1)
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            loss = loss_of(model)
        loss.backward()
        optimizer.step()
        found.append(optimizer.layers[1].inverse.a[0])
    torch.testing.assert_close(*found, rtol=0.05, atol=0.05)


def test_a_singular_factor_gets_more_damping():
    model = nn.Linear(40, 3, bias=False)
    optimizer = THOR(model, 1e-3, damping=1e-16)
    model(torch.ones(4, 40)).square().mean().backward()
    before = weights(model)
    optimizer.step()
    assert optimizer.layers[0].inverse is not None
    assert bool(weights(model).isfinite().all())
    assert not torch.equal(weights(model), before)


def test_factors_that_are_not_finite_leave_their_layer_first_order(caplog):
    model = nn.Sequential(nn.Linear(2, 3, bias=False), nn.Linear(3, 1, bias=False))
    optimizer = THOR(model, 1e-25, momentum=0.0, frequency=2)
    given, before = torch.full((4, 2), 1e25), model[0].weight.detach().clone()  # whose square is none in float32
    (model(given) * 1e-25).mean().backward()
    gradient = model[0].weight.grad.clone()
    optimizer.step()
    assert torch.equal(model[0].weight, before - 1e-25 * gradient)
    assert told(caplog) == ["THOR trains first order up to the next refresh, as factors are not finite: 0, 1"]


# Parts of models


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.words, self.middle, self.head = nn.Embedding(4, 3), nn.Linear(3, 3), nn.Linear(3, 4, bias=False)
        self.head.weight = self.words.weight

    def forward(self, given):
        return self.head(torch.tanh(self.middle(self.words(given))))


def test_what_is_not_supported_is_trained_first_order_and_named_in_a_line(caplog):
    class Own(nn.Linear):
        def forward(self, given):
            return super().forward(given) * 2

    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3, 3))
            self.grouped, self.up = nn.Conv1d(2, 2, 1, groups=2), nn.ConvTranspose1d(2, 2, 1)
            self.norm, self.own, self.last = nn.BatchNorm1d(2), Own(3, 3), nn.Linear(3, 4)

        def forward(self, given):
            given = self.own(self.norm(self.up(self.grouped(given)))) @ self.scale
            return self.last(given.mean(1))

    torch.manual_seed(0)
    model = Mixed()
    optimizer = THOR(model, 0.1, momentum=0.0)
    parts = ["scale (Mixed)", *(f"{name}.{key}" for name in ("grouped", "up", "own") for key in ("weight", "bias"))]
    (line,) = told(caplog)
    assert line.startswith("THOR trains first order: ")
    assert all(part in line for part in parts)
    assert "norm" not in line
    assert "last" not in line
    F.cross_entropy(model(torch.randn(6, 2, 3)), torch.arange(6) % 4).backward()
    expected = model.up.weight.detach() - 0.1 * model.up.weight.grad
    optimizer.step()
    torch.testing.assert_close(model.up.weight.detach(), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
def test_parameters_that_a_weight_is_made_of_are_first_order_and_named(caplog):
    for prepared, parts in (
        (nn.utils.weight_norm, "0.weight_g (Linear), 0.weight_v (Linear)"),
        (lambda layer: prune.l1_unstructured(layer, "weight", 0.5), "0.weight_orig (Linear)"),
    ):
        caplog.clear()
        model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
        prepared(model[0])
        optimizer = THOR(model, 0.1)
        assert [layer.name for layer in optimizer.layers] == ["1"]
        assert told(caplog) == [f"THOR trains first order: {parts}"]


def test_a_model_that_is_one_layer_is_named_by_its_type(caplog):
    model = nn.Linear(2, 1, bias=False)
    optimizer = THOR(model, 0.1)
    F.linear(torch.ones(1, 2), model.weight).sum().backward()
    optimizer.step()
    assert told(caplog) == ["THOR trains first order what is not called in training mode: Linear"]


def test_a_weight_that_layers_of_two_kinds_share_is_first_order(caplog):
    model = Tied()
    optimizer = THOR(model, 0.1, momentum=0.0)
    assert told(caplog) == ["THOR trains first order: words.weight = head.weight (shared)"]
    given = torch.arange(8) % 4
    F.cross_entropy(model(given), LABELS).backward()
    expected = model.words.weight.detach() - 0.1 * model.words.weight.grad
    optimizer.step()
    assert torch.equal(model.words.weight, expected)
    assert optimizer.layers[0].inverse is not None


def test_layers_of_a_kind_that_share_a_weight_are_one_layer(caplog):
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(3, 3), nn.Linear(3, 3)
            self.two.weight = self.one.weight

        def forward(self, given):
            return self.two(torch.tanh(self.one(given)))

    model = Shared()
    optimizer = THOR(model, 0.1)
    model(torch.randn(4, 3)).square().mean().backward()
    pending = optimizer.layers[0].pending
    assert (len(optimizer.layers), pending.samples, pending.rows) == (1, 4, 8)
    assert told(caplog) == []


def test_layers_that_are_not_called_are_named_once(caplog):
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 3))
    optimizer = THOR(model, 0.1, frequency=1)
    for _ in range(3):
        optimizer.zero_grad()
        F.linear(model[0](torch.ones(2, 3)), model[1].weight).sum().backward()
        optimizer.step()
    assert told(caplog) == ["THOR trains first order what is not called in training mode: 1"]


def test_frozen_layers_stay_and_can_be_thawed(caplog):
    model = network()
    model[0].weight.requires_grad_(False)
    optimizer = THOR(model, 0.1, frequency=2)
    before = model[0].weight.detach().clone()
    steps(model, optimizer, 2)
    assert torch.equal(model[0].weight, before)
    model[0].weight.requires_grad_(True)
    steps(model, optimizer, 1)
    assert optimizer.layers[0].inverse is not None
    assert told(caplog) == []


def test_evaluation_between_steps_changes_nothing():
    found = []
    for evaluates in (False, True):
        model = network()
        optimizer = THOR(model, 0.1, frequency=1)
        for _ in range(3):
            optimizer.zero_grad()
            loss_of(model).backward()
            if evaluates:
                with torch.no_grad():
                    copy.deepcopy(model)(IMAGES.double())
                model.eval()
                torch.autograd.grad(loss_of(model), model[0].weight)
                model.train()
            optimizer.step()
        found.append(weights(model))
    assert torch.equal(*found)


def test_a_model_without_matrices_is_refused():
    for model in (nn.Sequential(nn.BatchNorm1d(3)), nn.ConvTranspose2d(2, 2, 3)):
        with pytest.raises(JobError, match=r"model: must have a Linear, Conv1d, Conv2d or Embedding layer"):
            THOR(model, 0.1)
    with pytest.raises(JobError, match="model: 0 must be without `sparse`"):
        THOR(nn.Sequential(nn.Embedding(3, 2, sparse=True)), 0.1)
    with pytest.raises(JobError, match=r"model: 0.weight must have a shape"):
        THOR(nn.Sequential(nn.LazyLinear(2)), 0.1)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"lr": -1.0}, "lr: must be at least 0"),
        ({"damping": 0.0}, "damping: must be above 0"),
        ({"momentum": 1.0}, "momentum: must be from 0 to below 1"),
        ({"weight_decay": torch.nan}, "weight_decay: must be at least 0"),
        ({"refresh": "thor_halt"}, "refresh: unknown 'thor_halt'.*thor_stop"),
        ({"frequency": 0}, "frequency: must be a whole number from 1 on, not 0"),
        ({"split_dim": 2.5}, r"split_dim: must be a whole number from 1 on, not 2\.5"),
        ({"growth": 0.5}, "growth: must be at least 1"),
        ({"growth": 2.0}, "longest: must be given with growth"),
        ({"average": 1.0}, "average: must be from 0 to below 1"),
        ({"clip": 0.0}, "clip: must be above 0"),
        ({"loss_scale": 0.0}, "loss_scale: must be above 0"),
        ({"loss_scale": True}, "loss_scale: must be a number, not True"),
        ({"loss_scale": 10**400}, "loss_scale: must be finite, not a number of 1329 bits"),
        ({"lr": 10**400}, "lr: must be finite, not a number of 1329 bits"),
        ({"lr": "0.1"}, "lr: must be a number, not '0.1'"),
        ({"damping": lambda step: None}, "damping: must be a number, not None"),
        ({"clip": "1"}, "clip: must be a number, not '1'"),
        ({"loss_scale": None}, "loss_scale: must be a number or a GradScaler, not None"),
    ],
)
def test_options_out_of_range_are_refused(option, message):
    with pytest.raises(JobError, match=message):
        THOR(network(), **{"lr": 0.1, **option})


def test_a_damping_that_falls_to_nothing_is_refused():
    model = network()
    optimizer = THOR(model, 0.1, damping=lambda step: 1.0 - step)
    steps(model, optimizer)
    with pytest.raises(JobError, match="damping: must be above 0"):
        steps(model, optimizer)


def test_a_learning_rate_that_is_no_number_leaves_the_weights():
    model = network()
    optimizer = THOR(model, 0.1)
    before = steps(model, optimizer)
    optimizer.param_groups[0]["lr"] = torch.nan
    with pytest.raises(JobError, match="lr: must be at least 0, and finite, not nan"):
        steps(model, optimizer)
    assert torch.equal(weights(model), before)


def test_parameters_in_place_of_a_model_are_refused():
    with pytest.raises(JobError, match=r"model: must be a torch.nn.Module, not a list"):
        THOR(list(network().parameters()), 0.1)


@pytest.mark.parametrize("copied", [copy.deepcopy, pickle.dumps])
def test_an_optimizer_cannot_be_copied(copied):
    with pytest.raises(JobError, match="THOR: cannot be copied or pickled"):
        copied(THOR(network(), 0.1))


def test_a_state_without_its_layers_is_refused():
    optimizer = THOR(network(), 0.1)
    state = optimizer.state_dict()
    del state["thor"]["layers"]
    with pytest.raises(JobError, match="optimizer: must be the whole state of a THOR; it lacks layers"):
        optimizer.load_state_dict(state)


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_empty_layers_are_left_out_and_complex_ones_first_order(caplog):
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.none, self.waves, self.last = nn.Linear(0, 3), nn.Linear(3, 3, dtype=torch.cfloat), nn.Linear(3, 2)

        def forward(self, given):
            return self.last(self.waves((given + self.none(given[:, :0])).cfloat()).abs())

    model = Odd()
    optimizer = THOR(model, 0.1)
    assert [layer.name for layer in optimizer.layers] == ["last"]
    assert told(caplog) == ["THOR trains first order: waves.weight (Linear), waves.bias (Linear)"]
    model(torch.randn(4, 3)).sum().backward()
    optimizer.step()
    assert all(bool(each.isfinite().all()) for each in model.parameters())


# Other ways to run a model


def test_gradients_of_each_sample_by_vmap_are_trained_first_order(caplog):
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    optimizer, values = THOR(model, 0.1, momentum=0.0), {name: each.detach() for name, each in model.named_parameters()}

    def loss(values, given):
        return torch.func.functional_call(model, values, (given[None],)).square().mean()

    each = torch.vmap(torch.func.grad(loss), (None, 0))(values, torch.randn(5, 3))
    for name, parameter in model.named_parameters():
        parameter.grad = each[name].mean(0)
    expected = weights(model) - 0.1 * torch.cat([part.mean(0).flatten() for part in each.values()])
    optimizer.step()
    torch.testing.assert_close(weights(model), expected)
    assert told(caplog) == ["THOR trains first order what is not called in training mode: 0, 2"]


def test_an_output_that_a_hook_replaced_by_a_tuple_is_trained_first_order():
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    model[0].register_forward_hook(lambda module, given, output: (output, output))
    optimizer = THOR(model, 0.1)
    model[1](model[0](torch.ones(2, 3))[0]).sum().backward()
    optimizer.step()
    assert [layer.inverse is not None for layer in optimizer.layers] == [False, True]


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_checkpointed_activations_give_the_same_steps(reentrant):
    expected = steps(*_with_thor(network()), 3)
    model = network()
    optimizer = THOR(model, 0.1, frequency=2)
    for _ in range(3):
        optimizer.zero_grad()
        given = IMAGES.double().requires_grad_()
        F.cross_entropy(checkpoint_sequential(model, 2, given, use_reentrant=reentrant).float(), LABELS).backward()
        optimizer.step()
    torch.testing.assert_close(weights(model), expected, rtol=1e-12, atol=1e-12)


def test_calls_with_other_weights_gather_nothing():
    model = nn.Sequential(nn.Flatten(), nn.Linear(50, 3), nn.LayerNorm(3), nn.Linear(3, 4))
    optimizer = THOR(model, 0.1)
    others = {name: value.detach() * 2 for name, value in model.named_parameters()}

    def loss(weights):
        return F.cross_entropy(functional_call(model, weights, (IMAGES,)), LABELS)

    found = grad(loss)(others)
    assert found.keys() == others.keys()
    loss({name: value.requires_grad_() for name, value in others.items()}).backward()
    assert all(layer.pending is None for layer in optimizer.layers)
    assert [norm.pending for norm in optimizer.norms] == [0]


def _with_thor(model):
    return model, THOR(model, 0.1, frequency=2)


# Hooks


def hooks(model):
    return sum(len(module._forward_hooks) for module in model.modules())


def test_no_hook_outlives_the_optimizer():
    model = network()
    optimizer = THOR(model, 0.1)
    assert hooks(model) == 3
    steps(model, optimizer)
    gone = weakref.ref(optimizer)
    del optimizer
    gc.collect()
    assert gone() is None
    assert hooks(model) == 0


def test_a_closed_optimizer_steps_with_the_inverses_that_it_has():
    model = network()
    optimizer = THOR(model, 0.1, frequency=1)
    steps(model, optimizer)
    optimizer.close()
    optimizer.close()
    inverse, before = optimizer.layers[0].inverse, weights(model)
    assert hooks(model) == 0
    assert not torch.equal(steps(model, optimizer), before)
    assert optimizer.layers[0].inverse is inverse


def test_what_hooks_keep_is_freed_after_the_step():
    model = network()
    optimizer = THOR(model, 0.1)
    given = IMAGES.double().clone()
    kept = weakref.ref(given)
    loss = model(given).square().mean()
    del given
    loss.backward()
    optimizer.step()
    del loss
    gc.collect()
    assert kept() is None
    assert all(layer.pending is None for layer in optimizer.layers)


def test_copies_and_pickles_of_a_model_belong_to_no_optimizer():
    model = network()
    optimizer = THOR(model, 0.1)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        loss_of(other).backward()
        assert all(layer.pending is None for layer in optimizer.layers)
        assert torch.equal(weights(other), weights(model))


def test_gradients_that_are_set_to_none_take_their_statistics_along():
    model, other = network(), network()
    optimizer, expected = THOR(model, 0.1), steps(other, THOR(other, 0.1))
    (loss_of(model) * 7).backward()
    assert torch.equal(steps(model, optimizer), expected)


def test_statistics_are_gathered_on_steps_that_need_them_alone():
    model = network()
    optimizer = THOR(model, 0.1, frequency=3)
    found = []
    for _ in range(5):
        optimizer.zero_grad()
        loss_of(model).backward()
        found.append(optimizer.layers[0].pending is not None)
        optimizer.step()
    assert found == [True, False, False, True, False]
