"""Thirty and more planted faults, each named with its layer; none in networks that are healthy."""

from __future__ import annotations

import pytest
import torch
from planted_faults import CNN, FAULTS, MLP, RNN, Fault, Transformer, problem_of
from torch import nn

from landscape.core.plan import default_plan
from landscape.evaluation.evaluator import Evaluator
from landscape.evaluation.layers import LayersSeen, layers_at
from landscape.model.layer_rules import DEFAULTS
from landscape.model.parameters import targets_of
from landscape.problem.terms import Problem
from landscape.recipes.cnn import CNN as RecipeCNN
from landscape.recipes.lenet import LeNet5
from landscape.recipes.resnet import ResNet
from landscape.recipes.resnet50 import ResNet50


def seen_at_origin(problem: Problem, *, gradients: bool = False, batch_size: int = 8) -> LayersSeen:
    inputs = problem.data[0]
    origin = {name: tensor.detach().clone() for name, tensor in targets_of(problem.model).items()}
    plan = default_plan(len(inputs), "cpu", "float32", "eval", 0, batch_size, 1)
    evaluator = Evaluator(problem.model, problem.data, problem.observe, plan, torch.device("cpu"), origin, ())
    return layers_at(evaluator, (), gradients=gradients)


def fired(seen: LayersSeen) -> list[tuple[str, str]]:
    return [(found.layer, found.rule) for found in seen.findings(DEFAULTS)]


def test_there_are_thirty_kinds_of_faults():
    assert len(FAULTS) >= 30


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_named_with_its_layer(name):
    fault = FAULTS[name]
    assert fired(seen_at_origin(problem_of(fault), gradients=fault.gradients))[:1] == [(fault.layer, fault.rule)]


@pytest.mark.parametrize("make", [MLP, CNN, RNN, Transformer])
def test_nothing_fires_on_the_same_networks_without_a_fault(make):
    assert fired(seen_at_origin(problem_of(Fault(make, "", "")), gradients=True)) == []


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (LeNet5, (1, 32, 32)),
        (RecipeCNN, (1, 28, 28)),
        (lambda: ResNet(8), (3, 32, 32)),
        (lambda: ResNet50(10, channels=8), (3, 64, 64)),
    ],
    ids=["lenet", "cnn", "resnet", "resnet50"],
)
def test_nothing_fires_on_the_networks_of_the_recipes(make, shape):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = make()
        inputs, targets = torch.randn(16, *shape), torch.randint(0, 10, (16,))
        optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
        assert fired(seen_at_origin(Problem.supervised(model, (inputs, targets)), gradients=True)) == []
        model.train()
        for _ in range(3):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
    assert fired(seen_at_origin(Problem.supervised(model.eval(), (inputs, targets)), gradients=True)) == []
