"""THOR's steps where their values are known: limits, closed forms, other ways to the same gradient, the trace rule."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR

from landscape.core.errors import JobError
from landscape.training.thor.optimizer import SCHEDULES, THOR


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def network(bias=True):
    torch.manual_seed(1)
    layers = [nn.Conv2d(2, 3, 3, bias=bias), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(27, 4, bias=bias)]
    return nn.Sequential(*layers).double()


def batch(count=8):
    return torch.randn(count, 2, 5, 5).double(), torch.arange(count) % 4


def weights(model):
    return torch.cat([each.detach().flatten() for each in model.parameters()])


def trained(optimizer, model, steps, gradients):
    """The weights after some steps, each with the gradients that `gradients` leaves."""
    for _ in range(steps):
        optimizer.zero_grad()
        gradients(model)
        optimizer.step()
    return weights(model)


def backward(data, criterion=F.cross_entropy):
    return lambda model: criterion(model(data[0]), data[1]).backward()


def assert_same(one, other, relative=1e-12):
    assert float((one - other).norm()) <= relative * float(other.norm())


def test_without_curvature_momentum_and_decay_are_those_of_sgd():
    damping, data = 1e14, batch()
    model, plain = network(bias=False), network(bias=False)
    thor = THOR(model, 0.1 * damping, damping=damping, weight_decay=0.01 / damping)
    sgd = torch.optim.SGD(plain.parameters(), 0.1, momentum=0.9, weight_decay=0.01)
    assert_same(trained(thor, model, 5, backward(data)), trained(sgd, plain, 5, backward(data)), 1e-6)


def test_what_is_trained_first_order_may_have_a_learning_rate_of_its_own():
    before = [nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Flatten()]
    model, data = nn.Sequential(*before, nn.Linear(27, 27), nn.LayerNorm(27), nn.Linear(27, 4)).double(), batch()
    preconditioned = {f"{number}.weight" for number in (0, 3, 4, 5)} | {"4.bias"}
    moved = {}
    for first_order in (1, 20):
        one = copy.deepcopy(model)
        thor = THOR(one, 0.01, weight_decay=0.1, first_order=first_order)
        trained(thor, one, 1, backward(data))
        thor.close()
        moved[first_order] = {
            name: after.detach() - before.detach()
            for (name, before), after in zip(model.named_parameters(), one.parameters(), strict=True)
        }
    for name, step in moved[1].items():
        assert_same(moved[20][name], step if name in preconditioned else 20 * step, 1e-9)
    with pytest.raises(JobError, match=r"^first_order: must be above 0, and finite, not 0$"):
        THOR(model, 0.01, first_order=0)


def test_clipping_shortens_the_whole_step():
    data, taken = batch(), []
    for clip in (None, 1e-3):
        model = network()
        before = weights(model)
        taken.append(before - trained(THOR(model, 1.0, clip=clip, momentum=0.0), model, 1, backward(data)))
    assert float(taken[1].norm()) == pytest.approx(1e-3)
    assert_same(taken[1] / taken[1].norm(), taken[0] / taken[0].norm())


def test_blocks_as_wide_as_the_factors_are_no_split():
    data, found = batch(), []
    for width in (27, 1_000_000):
        model = network()
        found.append(trained(THOR(model, 0.1, split_dim=width), model, 3, backward(data)))
    assert torch.equal(*found)


def test_copies_of_the_samples_change_nothing():
    (images, labels), found = batch(), []
    for copies in (1, 3):
        model = network()
        data = images.repeat(copies, 1, 1, 1), labels.repeat(copies)
        found.append(trained(THOR(model, 0.1, frequency=2), model, 5, backward(data)))
    assert_same(*found)


def test_accumulated_gradients_are_those_of_the_whole_batch():
    (images, labels), found = batch(), []

    def parts(model):
        for chosen in (slice(0, 5), slice(5, 8)):
            share = len(labels[chosen]) / len(labels)
            (F.cross_entropy(model(images[chosen]), labels[chosen]) * share).backward()

    for gradients in (backward((images, labels)), parts):
        model = network()
        found.append(trained(THOR(model, 0.1, frequency=2), model, 5, gradients))
    assert_same(*found)


def test_gradients_may_be_set_to_none_between_the_first_forward_and_backward_pass():
    (images, labels), found = batch(), []
    for late in (False, True):
        model = network()
        optimizer = THOR(model, 0.1, frequency=2)
        for _ in range(3):
            if not late:
                optimizer.zero_grad()
            for chosen in (slice(0, 5), slice(5, 8)):
                loss = F.cross_entropy(model(images[chosen]), labels[chosen]) * len(labels[chosen]) / len(labels)
                if late and chosen.start == 0:
                    optimizer.zero_grad()
                loss.backward()
            optimizer.step()
        found.append(weights(model))
    assert torch.equal(*found)


def test_uses_of_a_layer_in_one_pass_are_positions_of_the_same_samples():
    class Twice(nn.Module):
        def __init__(self, apart):
            super().__init__()
            torch.manual_seed(1)
            self.first, self.last, self.apart = nn.Linear(3, 4), nn.Linear(8, 4), apart

        def forward(self, given):
            used = torch.stack([self.first(each) for each in given.unbind(1)], 1) if self.apart else self.first(given)
            return self.last(torch.tanh(used).flatten(1))

    data, found = (torch.randn(6, 2, 3).double(), torch.arange(6) % 4), []
    for apart in (True, False):
        model = Twice(apart).double()
        found.append(trained(THOR(model, 0.1), model, 3, backward(data)))
    assert_same(*found)


def pairs(inputs, others):
    """Every input with every one of the others: what belongs to them is independent in such a batch."""
    first, second = torch.meshgrid(torch.arange(len(inputs)), torch.arange(len(others)), indexing="ij")
    return inputs[first.flatten()], others[second.flatten()]


def step_of(model, loss, damping):
    weight = next(model.parameters())
    before = weight.detach().clone()
    optimizer = THOR(model, 1.0, damping=damping, momentum=0.0)
    loss(model).backward()
    gradient = weight.grad.clone()
    optimizer.step()
    return (before - weight.detach()).flatten(), gradient.flatten()


def test_squared_loss_of_a_linear_layer_has_the_fisher_of_all_its_samples():
    inputs, residuals = torch.randn(5, 3).double(), torch.randn(4, 2).double()
    model = nn.Linear(3, 2, bias=False).double()
    given, errors = pairs(inputs, residuals)
    target = (model(given) - errors).detach()
    step, gradient = step_of(model, lambda each: 0.5 * (each(given) - target).square().sum(1).mean(), 1e-24)
    own = torch.einsum("no,ni->noi", errors, given).flatten(1)  # each sample's gradient
    fisher = own.T @ own / len(own)
    assert_same(step, torch.linalg.solve(fisher, gradient), 1e-8)


def test_a_softmax_layer_has_the_curvature_of_the_divergence_from_itself():
    """With equal probabilities the Fisher is A ⊗ (diag p − ppᵀ), exactly, and all classes once are its expectation."""
    inputs, classes = torch.randn(5, 3).double(), 4
    model = nn.Linear(3, classes, bias=False).double()
    nn.init.zeros_(model.weight)
    given, target = pairs(inputs, torch.arange(classes))
    damping, width = 0.01, 1e-3

    def divergence(weight):
        log_p = F.log_softmax(given @ weight.view(classes, 3).T, 1)
        return -(log_p / classes).sum(1).mean() - math.log(classes)

    units = torch.eye(classes * 3).double() * width
    differences = [
        [
            (divergence(a + b) - divergence(a - b) - divergence(b - a) + divergence(-a - b)) / (4 * width**2)
            for b in units
        ]
        for a in units
    ]
    fisher = torch.tensor(differences)
    a = inputs.T @ inputs / len(inputs)
    g = torch.eye(classes).double() / classes - torch.full((classes, classes), 1 / classes**2).double()
    assert_same(torch.kron(g, a), fisher, 1e-5)
    damped = torch.kron(g + math.sqrt(damping) * torch.eye(classes), a + math.sqrt(damping) * torch.eye(3))
    optimizer = THOR(model, 1.0, damping=damping, momentum=0.0)
    for labels in (target, target.sort().values):  # the first gradient is nothing, the second one is stepped along
        optimizer.zero_grad()
        F.cross_entropy(model(given), labels).backward()
        gradient = model.weight.grad.flatten().clone()
        optimizer.step()
    assert float(gradient.norm()) > 0.01
    assert_same(-model.weight.detach().flatten(), torch.linalg.solve(damped, gradient), 1e-8)


# λ = 0.25: tr = (x² + 0.5)(1 + 0.5) for the input x and a gradient of 1 for each sample.
INPUTS = [1.0, 1.001, 1.02, 1.02, 2.0]
# Changes against the trace of the inverse in use: 0.0013, 0.0269, 0 and 1.92 where the second one keeps it.
EXPECTED = {
    "frequency": ([1.0, 1.001, 1.02, 1.02, 2.0], False),
    "thor_nt": ([1.0, 1.001, 1.02, 1.02, 2.0], False),
    "thor": ([1.0, 1.0, 1.02, 1.02, 2.0], False),
    "thor_stop": ([1.0, 1.0, 1.02, 1.02, 1.02], True),  # frozen at the fourth look
}


@pytest.mark.parametrize("refresh", EXPECTED)
def test_layers_are_refreshed_as_the_traces_say_by_hand(refresh):
    model = nn.Linear(1, 1, bias=False).double()
    optimizer = THOR(model, 0.0, damping=0.25, refresh=refresh, frequency=1)
    in_use, expected = [], EXPECTED[refresh]
    for value in INPUTS:
        optimizer.zero_grad()
        model(torch.full((4, 1), value, dtype=torch.float64)).mean().backward()
        optimizer.step()
        inverse = float(optimizer.layers[0].inverse.a[0])
        in_use.append(math.sqrt(1 / inverse - 0.5))
    assert in_use == pytest.approx(expected[0], rel=1e-12)
    assert optimizer.layers[0].frozen == expected[1]


def test_a_moving_average_mixes_older_factors_in():
    model = nn.Linear(1, 1, bias=False).double()
    optimizer = THOR(model, 0.0, damping=0.25, frequency=1, average=0.75)
    for value, mean in ((1.0, 1.0), (3.0, 3.0)):  # 0.75·1 + 0.25·9
        optimizer.zero_grad()
        model(torch.full((2, 1), value, dtype=torch.float64)).mean().backward()
        optimizer.step()
        assert float(optimizer.layers[0].inverse.a[0]) == pytest.approx(1 / (mean + 0.5))


def test_inverses_are_stale_between_refreshes():
    data, model = batch(), network()
    optimizer, seen = THOR(model, 0.1, frequency=3), []
    for _ in range(7):
        trained(optimizer, model, 1, backward(data))
        seen.append(optimizer.layers[0].inverse)
    assert [seen[k] is seen[k - 1] for k in range(1, 7)] == [True, True, False, True, True, False]


def test_learning_rate_and_damping_follow_their_schedules():
    schedule, model, data = SCHEDULES["ascend-8"], network(), batch()
    optimizer = THOR(model, schedule.lr_init, damping=schedule.damping_at(2))
    scheduler = LambdaLR(optimizer, schedule.factor_at(2))
    found = []
    for _ in range(3):
        trained(optimizer, model, 1, backward(data))
        found.append((optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["damping"]))
        scheduler.step()
    for step, (rate, damping) in enumerate(found):
        assert rate == pytest.approx(0.05803 * (1 - step / 2 / 53) ** 4.0839)
        assert damping == pytest.approx(0.03 * 0.50036 ** (step / 20))


def test_groups_have_learning_rates_dampings_and_decays_of_their_own():
    data, found = batch(), []
    for own in ({}, {"lr": 0.2, "damping": 0.5, "weight_decay": 0.1}):
        model = network()
        before = weights(model)
        groups = [{"params": model[0].parameters(), **own}, {"params": model[3].parameters()}]
        moved = before - trained(THOR(model, 0.1, params=groups, momentum=0.0), model, 1, backward(data))
        found.append(moved)
    first = sum(each.numel() for each in network()[0].parameters())
    assert torch.equal(found[0][first:], found[1][first:])
    bias = slice(first - 3, first)  # of the convolution: the plain gradient, decayed
    decayed = 2 * (found[0][bias] + 0.1 * 0.1 * weights(network())[bias])
    assert_same(found[1][bias], decayed)


def test_layer_norms_are_divided_by_their_squared_gradients():
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4)).double()
    optimizer = THOR(model, 1.0, damping=0.04, momentum=0.0, frequency=2)
    given, target = torch.randn(6, 5, 3).double(), torch.randn(6, 5, 4).double()
    for count in (6, 4):  # the second step is as stale as any: its N is that of the refresh
        before = {name: value.detach().clone() for name, value in model[1].named_parameters()}
        optimizer.zero_grad()
        F.mse_loss(model(given[:count]), target[:count]).backward()
        gradients = {name: value.grad.clone() for name, value in model[1].named_parameters()}
        optimizer.step()
        for name, value in model[1].named_parameters():
            expected = gradients[name] / (gradients[name] ** 2 / 6 + 0.2)
            assert_same(before[name] - value.detach(), expected)


def test_a_closure_gives_the_loss_and_the_same_step():
    data, found = batch(), []
    for uses_closure in (False, True):
        model = network()
        optimizer = THOR(model, 0.1)

        def closure(model=model, optimizer=optimizer):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(data[0]), data[1])
            loss.backward()
            return loss

        if uses_closure:
            assert optimizer.step(closure).item() > 0
        else:
            closure()
            assert optimizer.step() is None
        found.append(weights(model))
    assert torch.equal(*found)
