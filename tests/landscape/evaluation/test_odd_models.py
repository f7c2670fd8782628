"""Models that keep things of their own have the same bytes in one tile and in tiles of one point."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from small_models import make_job
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from landscape import Problem, run

SAMPLES = torch.randn(10, 4, generator=torch.Generator().manual_seed(1))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.last = nn.Linear(4, 2)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)))


class CumulativeNorm(Model):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4, momentum=None)

    def forward(self, x):
        self.norm.train()(self.first(x))
        return self.last(self.norm.eval()(self.first(x)))


class SpectralNorm(Model):
    def __init__(self):
        super().__init__()
        self.first = parametrizations.spectral_norm(self.first)

    def forward(self, x):
        self.train()  # takes a step of the power iteration at every call
        return super().forward(x)


class WeightNorm(Model):
    def __init__(self):
        super().__init__()
        self.first = parametrizations.weight_norm(self.first)


class Recurrent(Model):
    def __init__(self):
        super().__init__()
        self.lstm, self.state = nn.LSTM(2, 4, batch_first=True), None

    def forward(self, x):
        self.lstm.flatten_parameters()
        fits = self.state is not None and self.state[0].shape[1] == len(x)
        found, self.state = self.lstm(x.view(-1, 2, 2), self.state if fits else None)
        return self.last(found[:, -1])


class TiedWithBuffer(Model):
    def __init__(self):
        super().__init__()
        self.second = nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        found = self.second(torch.tanh(self.first(x)))
        self.mean = 0.9 * self.mean + found.mean(0)
        return self.last(found + self.mean)


class LazyBuffer(Model):
    def forward(self, x):
        found = self.first(x)
        if "centre" not in self._buffers:
            self.register_buffer("centre", found.mean(0))
        self.centre.add_(found.mean(0))
        return self.last(found - self.centre)


class MovingAverage(Model):
    def __init__(self):
        super().__init__()
        self.shadow, self.calls = {k: v.detach().clone() for k, v in self.first.named_parameters()}, 0

    def forward(self, x):
        self.calls += 1
        for name, tensor in self.first.named_parameters():
            self.shadow[name] = 0.9 * self.shadow[name] + 0.1 * tensor
        return self.last(F.linear(x, **self.shadow)) * self.calls


class DropoutByHand(Model):
    def __init__(self):
        super().__init__()
        self.own, self.rolls = torch.Generator().manual_seed(4), np.random.RandomState(1)

    def forward(self, x):
        found = super().forward(x)
        kept = (torch.rand(found.shape) > 0.3) & (torch.rand(found.shape, generator=self.own) > 0.3)
        return found * kept * np.random.rand() * random.random() * self.rolls.rand()  # noqa: NPY002 - as users draw


class KeepsActivations(Model):
    def __init__(self):
        super().__init__()
        self.seen, self.nested = [], {"means": [[torch.zeros(1)]]}

    def forward(self, x):
        found = super().forward(x)
        self.seen.append(found.mean())
        self.nested["means"][0][0] = self.nested["means"][0][0] + found.mean()
        return found + sum(self.seen) + self.nested["means"][0][0]


class LayerInAList(Model):
    def __init__(self):
        super().__init__()
        self.unregistered = [nn.Linear(4, 4)]

    def forward(self, x):
        self.unregistered[0].weight.mul_(1.1)
        return super().forward(self.unregistered[0](x))


MODELS = [
    CumulativeNorm, SpectralNorm, WeightNorm, Recurrent, TiedWithBuffer, LazyBuffer, MovingAverage, DropoutByHand,
    KeepsActivations, LayerInAList,
]  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("kind", MODELS)
def test_the_values_are_the_same_in_every_tile_shape(tmp_path, kind):
    found = []
    for tile in (1, 4):
        with torch.random.fork_rng():
            torch.manual_seed(3)
            model = kind()
        problem = Problem(model, SAMPLES, lambda model, batch: {"loss": model(batch).square().sum(1)})
        job = make_job(
            tmp_path / str(tile), lambda of=problem: of, [{"name": "p", "size": 4}], num_samples=10, tile=tile,
            batch_size=4, engine="eager",
        )  # fmt: skip
        torch.rand(tile), np.random.rand(tile), random.random()  # noqa: NPY002
        found.append(run(job)["p"])
    one_by_one, whole = found
    assert np.isfinite(whole.loss).all()
    assert len(np.unique(whole.loss)) > 10
    for name in ("loss", "loss_stderr"):
        assert one_by_one[name].tobytes() == whole[name].tobytes()
    assert one_by_one.rise_stderr.tobytes() == whole.rise_stderr.tobytes()


class FromQuantisedFile(Model):
    """As transformers has a model that it read from a file of quantised weights: it refuses to be cast."""

    def float(self, *_):
        raise ValueError("`.float()` is not supported for quantized model")

    double = float


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_a_model_that_refuses_to_be_cast_is_computed_in_the_type_of_the_job(tmp_path, precision):
    def computed(kind: type[Model]) -> np.ndarray:
        torch.manual_seed(0)
        model = kind()
        problem = lambda: Problem(model, SAMPLES, lambda model, x: {"loss": model(x).square().mean(1)})  # noqa: E731
        job = make_job(
            tmp_path / kind.__name__, problem, [{"name": "a", "size": 3}], precision=precision, num_samples=10, tile=3
        )
        return run(job)["a"].loss

    np.testing.assert_array_equal(computed(FromQuantisedFile), computed(Model))
