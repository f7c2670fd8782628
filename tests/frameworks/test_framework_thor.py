"""THOR's factors beside curvlinops' KFAC, and its steps with a compiled model."""

from __future__ import annotations

import pytest
import torch
from curvlinops import KFACLinearOperator
from torch import nn
from torch.nn import functional as F

from landscape.training.thor.optimizer import THOR

pytestmark = pytest.mark.frameworks
COUNT, DAMPING = 12, 0.01


def network():
    torch.manual_seed(0)
    layers = [nn.Conv2d(2, 3, 3, padding=1, bias=False), nn.Tanh(), nn.Flatten(), nn.Linear(75, 4, bias=False)]
    return nn.Sequential(*layers).double()


def data():
    return torch.randn(COUNT, 2, 5, 5).double(), torch.arange(COUNT) % 4


def test_the_fisher_blocks_are_those_of_curvlinops():
    """Its `empirical` type takes the gradients of the labels too, and for shared weights `expand` is THOR's.

    Its blocks are of the mean loss and undamped; THOR adds √λ to either factor, so that here both are compared before.
    """
    model, (images, labels) = network(), data()
    optimizer = THOR(model, 0.0, damping=DAMPING, split_dim=1000)
    F.cross_entropy(model(images), labels).backward()
    optimizer.step()
    theirs = KFACLinearOperator(
        model, nn.CrossEntropyLoss(), list(model.parameters()), [(images, labels)], fisher_type="empirical",
        kfac_approx="expand", separate_weight_and_bias=True,
    )  # fmt: skip
    dense, start = (theirs @ torch.eye(theirs.shape[1]).double()).detach(), 0
    for layer in optimizer.layers:
        root = DAMPING**0.5
        (a,), (g,) = (tuple(block[0] for block in side) for side in (layer.inverse.a, layer.inverse.g))
        factors = [side.inverse() - root * torch.eye(len(side)).double() for side in (g, a)]
        stop = start + layer.weight.numel()
        block = dense[start:stop, start:stop]
        difference = torch.kron(*factors) - block
        assert float(difference.norm()) <= 1e-8 * float(block.norm()), layer.name
        start = stop


def test_a_compiled_model_takes_the_same_steps():
    found = []
    for compiles in (False, True):
        model, (images, labels) = network(), data()
        trained = torch.compile(model, backend="aot_eager") if compiles else model
        optimizer = THOR(trained, 0.1, frequency=2)
        for _ in range(4):
            optimizer.zero_grad()
            F.cross_entropy(trained(images), labels).backward()
            optimizer.step()
        found.append(torch.cat([each.detach().flatten() for each in model.parameters()]))
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-12)
