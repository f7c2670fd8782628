"""Weights that the forward pass puts elsewhere, submodules that change or draw: values depend on the point alone."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from changing import POINTS, along, by_hand, evaluator, observe_squares, vectors
from torch import nn
from torch.nn import functional as F

from landscape.model.parameters import state_of


class Margin(nn.Module):
    """Logits are cosines: a linear layer, then a matrix whose rows a subclass's `normalise` scales to length one."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(6)
        self.body = nn.Linear(4, 3)
        self.body.weight.data = torch.randn(3, 4, generator=generator)
        self.body.bias.data.zero_()
        self.weight = nn.Parameter(torch.randn(5, 3, generator=generator))

    def forward(self, x):
        self.normalise()
        return F.normalize(self.body(x)) @ self.weight.T

    def normalise(self):
        pass


def data_pointed_elsewhere(self):
    self.weight.data = F.normalize(self.weight.data)


def data_transposed_in_its_place(self):
    self.weight.data = F.normalize(self.weight.data).T.contiguous().T


def parameter_assigned(self):
    self.weight = nn.Parameter(F.normalize(self.weight), requires_grad=False)


def parameter_replaced_by_a_tensor(self):
    weight = F.normalize(self.weight)
    if "weight" in self._parameters:
        del self.weight
    self.weight = weight


def written_in_place(self):
    self.weight.copy_(F.normalize(self.weight))


def written_through_data(self):
    for weight in (self.weight, self.body.weight):
        weight.data.div_(weight.data.norm(dim=1, keepdim=True))


def taken_to_half_precision_and_back(self):
    self.weight.data = F.normalize(self.weight.data).half().float()


def layer_pointed_elsewhere(self):
    self.body.weight.data = F.normalize(self.body.weight.data)


def model_taken_to_double_precision(self):
    self.double()
    self.weight.data = F.normalize(self.weight.data)
    self.float()


NORMALISATIONS = [
    data_pointed_elsewhere, data_transposed_in_its_place, parameter_assigned, parameter_replaced_by_a_tensor,
    written_in_place, written_through_data, taken_to_half_precision_and_back, layer_pointed_elsewhere,
    model_taken_to_double_precision,
]  # fmt: skip


@pytest.mark.parametrize("engine", ["eager", "eager+channels_last"])
@pytest.mark.parametrize("normalise", NORMALISATIONS, ids=lambda each: each.__name__)
def test_weights_that_a_forward_pass_puts_elsewhere_move_all_the_same(normalise, engine):
    model, samples = type("Arc", (Margin,), {"normalise": normalise})(), vectors()
    direction = along(model, "weight", "body.weight")
    expected = by_hand(model, direction, POINTS, observe_squares, samples)
    made = evaluator(model, samples, observe_squares, [direction], engine=engine)
    np.testing.assert_allclose(made.evaluate(POINTS).mean["loss"], expected, rtol=2e-6)
    np.testing.assert_allclose(made.evaluate(POINTS[::-1].copy()).mean["loss"], expected[::-1], rtol=2e-6)
    assert len(set(expected)) == len(expected)
    assert state_of(model).keys() == {"weight", "body.weight", "body.bias"}


@pytest.mark.parametrize("normalise", NORMALISATIONS, ids=lambda each: each.__name__)
def test_layers_are_not_superposed_where_weights_are_put_elsewhere(normalise):
    model = type("Arc", (Margin,), {"normalise": normalise})()
    with pytest.raises(ValueError, match="observe changes what the model holds"):
        evaluator(model, vectors(), observe_squares, [along(model, "weight", "body.weight")], engine="eager+superposed")


class Stem(nn.Module):
    """A submodule that does not move, and so may be computed once; but it changes what `change` says."""

    def __init__(self, change) -> None:
        super().__init__()
        self.layer, self.change = nn.Linear(4, 4), change
        self.calls = 0

    def forward(self, x):
        return self.layer(x) + self.change(self)


def counts(stem):
    stem.calls += 1
    return 0.1 * stem.calls


def writes_a_weight(stem):
    return stem.layer.bias.mul_(1.1)[0]


def draws_with_numpy(stem):
    return float(np.random.rand())  # noqa: NPY002


def draws_with_python(stem):
    return random.random()


@pytest.mark.parametrize("change", [counts, writes_a_weight, draws_with_numpy, draws_with_python])
def test_a_submodule_that_changes_or_draws_is_not_computed_once_for_all_points(change):
    torch.manual_seed(3)
    model = nn.Sequential(Stem(change), nn.Linear(4, 3))

    def observe(model, batch):
        # What is drawn after the submodule's, and what it holds, are those of a pass in which it was called.
        after = random.random() + np.random.rand() + model[0].calls  # noqa: NPY002
        return {"loss": model(batch).square().sum(1) + random.random() + after}

    direction, samples = along(model, "1.weight"), vectors(12)
    each = [evaluator(model, samples, observe, [direction]).evaluate(point[None]).mean["loss"][0] for point in POINTS]
    made = evaluator(model, samples, observe, [direction])
    for _ in range(3):
        np.testing.assert_array_equal(made.evaluate(POINTS).mean["loss"], each)
    assert made.rewrites["reuse"].modules == 0


def test_values_that_observe_writes_to_the_same_memory_for_every_batch_are_those_of_their_batch():
    model, samples = nn.Linear(4, 3), vectors(12)
    memory = torch.empty(4, dtype=torch.float64)
    direction = along(model, "weight")

    def observe(given, batch):
        return {"loss": torch.sum(given(batch).double().square(), 1, out=memory)}

    expected = evaluator(model, samples, observe_squares, [direction]).evaluate(POINTS).mean["loss"]
    found = evaluator(model, samples, observe, [direction]).evaluate(POINTS).mean["loss"]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
