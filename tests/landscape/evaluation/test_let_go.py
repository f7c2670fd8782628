"""What an evaluator leaves behind: no memory that outlives its last reference, and the calls of layers as they were."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import nn

from landscape.core.grid import Grid
from landscape.core.plan import Engine, Plan
from landscape.evaluation.evaluator import Evaluator
from landscape.evaluation.tuning.choices import KeptChoices
from landscape.evaluation.tuning.trials import Trials

POINTS = np.linspace(-1, 1, 5)[:, None]


def observe(model, batch):
    inputs, classes = batch
    return {"loss": nn.functional.cross_entropy(model(inputs), classes, reduction="none")}


def make(model: nn.Module, moved: list[str] | None = None) -> Evaluator:
    generator = torch.Generator().manual_seed(0)
    samples = torch.randn(32, 4, generator=generator), torch.randint(0, 2, (32,), generator=generator)
    origin = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    direction = {name: torch.randn(origin[name].shape, generator=generator) for name in moved or origin}
    return Evaluator(model, samples, observe, Plan(16, 1, "cpu"), torch.device("cpu"), origin, [direction])


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Only references count, as on a device whose memory is wanted at once."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("engine", ["eager", "eager+superposed", "vmap:2"])
def test_an_evaluator_ends_with_its_last_reference(engine):
    evaluator = make(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)))
    evaluator.use(Engine.parse(engine))
    evaluator.evaluate(POINTS)
    reference = weakref.ref(evaluator)
    del evaluator
    assert reference() is None


@pytest.mark.usefixtures("no_collector")
def test_the_trials_of_a_search_end_with_their_last_reference():
    trials = Trials(make(nn.Linear(4, 2)), Grid(("alpha",), (POINTS[:, 0],)), KeptChoices(None))
    reference = weakref.ref(trials)
    del trials
    assert reference() is None


class Tied(nn.Module):
    """Two layers of which the second calls the first one's forward, by the user's own hand."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(4), nn.LayerNorm(4)
        self.linear, self.last = nn.Linear(4, 4), nn.Linear(4, 2)
        with torch.no_grad():
            self.first.weight.mul_(3)
            self.second.weight.mul_(5)
        self.second.forward = self.first.forward

    def forward(self, inputs):
        return self.last(self.second(self.linear(inputs)))


def test_a_layer_that_calls_another_ones_forward_does_so_at_every_point():
    model = Tied()
    evaluator = make(model, ["linear.weight", "last.weight"])
    values = [evaluator.evaluate(POINTS).mean["loss"] for _ in range(3)]
    inputs, classes = evaluator.held_samples.rows
    with torch.no_grad():
        plain = observe(model, (inputs, classes))["loss"].mean().item()
    assert values[0][2] == pytest.approx(plain, rel=1e-6)
    for again in values[1:]:
        np.testing.assert_array_equal(again, values[0])
