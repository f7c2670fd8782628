"""Weight matching: permuted copies are found exactly, a small layer against brute force, and functions that stay."""

from __future__ import annotations

import itertools
import sys

import numpy as np
import pytest
import torch

from landscape.analysis.connect.matching import apply, match_weights, refuse_other_outputs, table_of
from landscape.core.errors import JobError, LandscapeError
from landscape.recipes.lenet import LeNet5
from landscape.recipes.resnet import ResNet


def mlp() -> torch.nn.Module:
    layers = [torch.nn.Linear(7, 9), torch.nn.ReLU(), torch.nn.Linear(9, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers, torch.nn.Dropout(), torch.nn.Linear(8, 3))


def convolutional() -> torch.nn.Module:
    layers = [torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.MaxPool2d(2), torch.nn.Flatten()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(4 * 9, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))


NETWORKS = {
    "mlp": (mlp, (6, 7)),
    "convolutional": (convolutional, (6, 1, 8, 8)),
    "lenet": (LeNet5, (4, 1, 32, 32)),
    "resnet": (lambda: ResNet(8), (4, 3, 32, 32)),
    "plain resnet": (lambda: ResNet(14, shortcuts=False), (4, 3, 32, 32)),
}


def made(name: str, seed: int) -> tuple[torch.nn.Module, torch.Tensor]:
    torch.manual_seed(seed)
    build, shape = NETWORKS[name]
    model = build().eval()
    for module in model.modules():
        if isinstance(module, (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d)):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
            module.weight.data.uniform_(0.5, 2)
    return model, torch.randn(shape)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_permuted_copy_is_found_exactly(name):
    model, inputs = made(name, 0)
    table, rng, state = table_of(model), np.random.default_rng(1), dict(model.state_dict())
    shuffled = {unit: rng.permutation(count) for unit, count in table.sizes.items()}
    other = apply(table, shuffled, state)
    assert any(not torch.equal(other[key], state[key]) for key in state)
    refuse_other_outputs(model, state, other, lambda net: net(inputs))  # every permutation leaves the function alone
    found = match_weights(model, state, other, outputs=lambda net: net(inputs))
    for unit, order in shuffled.items():
        assert np.array_equal(order[found.permutations[unit]], np.arange(len(order))), unit
    # The barrier of the line between equal bytes is 0.
    assert all(torch.equal(found.weights[key], state[key]) for key in state)
    assert found.after == pytest.approx(sum(float(state[key].double().square().sum()) for key in table.axes
                                            if not key.endswith(("running_mean", "running_var"))))  # fmt: skip


def test_every_unit_of_every_layer_but_the_last_may_move():
    sizes = table_of(ResNet(20)).sizes
    assert sizes == {
        "stage1": 16, "stage2": 16, "stage3": 32,
        **{f"layer{stage}.{k}.conv1": 16 << stage - 1 for stage in (1, 2, 3) for k in range(3)},
    }  # fmt: skip
    assert table_of(LeNet5()).sizes == {"conv1": 6, "conv2": 16, "fc1": 120, "fc2": 84}
    assert table_of(mlp()).sizes == {"0": 9, "2": 8}


def test_six_units_are_placed_as_the_best_of_all_720_orders():
    for seed in range(5):
        torch.manual_seed(seed)
        build = lambda: torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, 3))  # noqa: E731
        first, second = (build().state_dict() for _ in range(2))
        table = table_of(build())

        def product(order, table=table, first=first, second=second):
            moved = apply(table, {"0": np.array(order)}, second)
            return sum(float((first[name].double() * moved[name].double()).sum()) for name in table.axes)

        best = max(itertools.permutations(range(6)), key=product)
        found = match_weights(build(), first, second, seed=seed)
        assert found.permutations["0"].tolist() == list(best)
        # Biases of the last layer are no part of the table's choice, but of the product.
        assert found.after == pytest.approx(product(best))
        assert found.after >= found.before == pytest.approx(product(range(6)))


def test_a_users_table_serves_and_a_wrong_one_is_refused():
    class Own(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encode, self.mix = torch.nn.Conv2d(1, 5, 3), torch.nn.Linear(5, 5)
            self.read = torch.nn.Linear(5 * 4, 2)

        def forward(self, images):
            hidden = torch.relu(self.encode(images)).movedim(1, -1)
            return self.read((hidden + self.mix(hidden)).movedim(-1, 1).flatten(1))

    torch.manual_seed(0)
    model, images = Own(), torch.randn(3, 1, 4, 4)
    table = {
        "encode.weight": ["P", None, None, None], "encode.bias": ["P"], "mix.weight": ["P", "P"], "mix.bias": ["P"],
        "read.weight": [None, "P"],
    }  # fmt: skip
    state = dict(model.state_dict())
    order = torch.tensor([3, 0, 4, 1, 2])
    other = {
        **state, "encode.weight": state["encode.weight"][order], "encode.bias": state["encode.bias"][order],
        "mix.weight": state["mix.weight"][order][:, order], "mix.bias": state["mix.bias"][order],
        "read.weight": state["read.weight"].view(2, 5, 4)[:, order].flatten(1),
    }  # fmt: skip
    found = match_weights(model, state, other, table, outputs=lambda net: net(images))
    assert all(torch.equal(found.weights[name], state[name]) for name in state)
    short = {name: axes for name, axes in table.items() if name != "encode.bias"}
    with pytest.raises(JobError, match="must compute what it did"):
        match_weights(model, state, other, short, outputs=lambda net: net(images))
    for wrong, words in (
        ({"encode.weights": ["P"]}, "the model has no such tensor"),
        ({"encode.weight": ["P"]}, "the model has 4 axes there"),
        ({"encode.bias": ["P"], "read.bias": ["P"]}, "'encode.bias' has 5 entries of 'P', which has 2 units elsewhere"),
    ):
        with pytest.raises(JobError, match=words):
            match_weights(model, state, other, wrong)
    with pytest.raises(JobError, match="table: cannot be read off Own"):
        match_weights(model, state, other)


def test_layers_that_cannot_be_read_off_are_named():
    for layers, words in (
        ([torch.nn.Linear(3, 4), torch.nn.Softmax(1), torch.nn.Linear(4, 2)], "a Softmax, layer '1'"),
        ([torch.nn.Conv2d(2, 4, 3), torch.nn.Conv2d(4, 4, 3, groups=2)], "layer '1', whose inputs"),
        ([torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2)], "layer '0', which normalises other than the units"),
    ):
        with pytest.raises(JobError, match=words):
            table_of(torch.nn.Sequential(*layers))


def test_without_scipy_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    model, _ = made("mlp", 0)
    with pytest.raises(LandscapeError, match=r"loss-landscape-cluster\[match\]"):
        match_weights(model, model.state_dict(), model.state_dict())
