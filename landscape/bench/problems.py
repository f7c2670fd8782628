"""Problems to measure with where no job is at hand: common shapes of model, random weights, synthetic data.

A forward pass costs the same whatever the weights and the pixels are, so speed can be measured with these; their
landscapes mean nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from landscape.core.errors import JobError, nearest, quoted
from landscape.job.job import Job
from landscape.problem.terms import Problem
from landscape.recipes.gpt import BYTES, CONTEXT, NextByte
from landscape.recipes.lenet import LeNet5
from landscape.recipes.resnet import ResNet
from landscape.recipes.resnet50 import ResNet50

Data = tuple[Tensor, Tensor]
SEED = 0
TOKENS, WORDS = 64, 1000


class Transformer(nn.Module):
    """A causal language model: tokens [N, T] → [N, words, T]; 3.4 million parameters."""

    def __init__(self, width: int = 256, layers: int = 4) -> None:
        super().__init__()
        self.embedding, self.position = nn.Embedding(WORDS, width), nn.Parameter(torch.randn(TOKENS, width) / 10)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, WORDS, bias=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(TOKENS))

    def forward(self, tokens: Tensor) -> Tensor:
        """The logits [N, words, T] of the next token after each of the tokens [N, T]."""
        # Told that it is causal, torch does not read the mask on the host in every pass.
        hidden = self.layers(self.embedding(tokens) + self.position, mask=self.mask, is_causal=True)
        return self.head(hidden).transpose(1, 2)  # type: ignore[no-any-return]


class UNet(nn.Module):
    """[N, 1, 64, 64] → [N, 2, 64, 64], two classes per pixel, a transposed convolution on the way up."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.down1, self.down2 = _double(1, width), _double(width, 2 * width)
        self.bottom = _double(2 * width, 4 * width)
        self.up2, self.join2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, 2), _double(4 * width, 2 * width)
        self.up1, self.join1 = nn.ConvTranspose2d(2 * width, width, 2, 2), _double(2 * width, width)
        self.head = nn.Conv2d(width, 2, 1)

    def forward(self, images: Tensor) -> Tensor:
        """The logits [N, 2, 64, 64] of each pixel of images [N, 1, 64, 64]."""
        fine = self.down1(images)
        coarse = self.down2(nn.functional.max_pool2d(fine, 2))
        hidden = self.bottom(nn.functional.max_pool2d(coarse, 2))
        hidden = self.join2(torch.cat([self.up2(hidden), coarse], 1))
        hidden = self.join1(torch.cat([self.up1(hidden), fine], 1))
        return self.head(hidden)  # type: ignore[no-any-return]


def _double(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
        nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
    )  # fmt: skip


class ControlFlow(nn.Module):
    """How often its middle layer is applied depends on the data, which no trace can follow."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(64, width), nn.Linear(width, width), nn.Linear(width, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        """The logits [N, 10] of inputs [N, 64]."""
        hidden = relu(self.first(inputs))
        for _ in range(6):
            hidden = relu(self.middle(hidden))
            if float(hidden.mean()) < 0.01:
                break
        return self.last(hidden)  # type: ignore[no-any-return]


def _mlp(sizes: tuple[int, ...]) -> nn.Module:
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _classes(count: int, shape: tuple[int, ...], classes: int = 10) -> Data:
    return torch.randn(count, *shape), torch.randint(0, classes, (count,))


def _sentences(count: int, words: int = WORDS, length: int = TOKENS) -> Data:
    text = torch.randint(0, words, (count, length + 1))
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()


def _masks(count: int) -> Data:
    return torch.randn(count, 1, 64, 64), torch.randint(0, 2, (count, 64, 64))


@dataclass(frozen=True)
class SyntheticModel:
    """A model with random weights, its synthetic data, and how many samples a point takes where none are given."""

    model: Callable[[], nn.Module]
    data: Callable[[int], Data]
    samples: int = 2048


SYNTHETIC_MODELS = {
    "lenet": SyntheticModel(LeNet5, partial(_classes, shape=(1, 32, 32))),
    "resnet20": SyntheticModel(partial(ResNet, 20), partial(_classes, shape=(3, 32, 32))),
    "resnet56": SyntheticModel(partial(ResNet, 56), partial(_classes, shape=(3, 32, 32))),
    "resnet50": SyntheticModel(ResNet50, partial(_classes, shape=(3, 224, 224), classes=1000), 256),
    "mlp": SyntheticModel(partial(_mlp, (784, 1888, 1888, 10)), partial(_classes, shape=(784,)), 64),
    "transformer": SyntheticModel(Transformer, _sentences, 256),
    "gpt": SyntheticModel(NextByte, partial(_sentences, words=BYTES, length=CONTEXT), 256),
    "unet": SyntheticModel(UNet, _masks, 256),
    "control-flow": SyntheticModel(ControlFlow, partial(_classes, shape=(64,))),
    "tiny": SyntheticModel(partial(_mlp, (8, 8, 3)), partial(_classes, shape=(8,), classes=3), 16),
}


def synthetic_problem(name: str, samples: int) -> Problem:
    """The supervised problem of one of `SYNTHETIC_MODELS`, the same weights and data at every call."""
    entry = SYNTHETIC_MODELS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        return Problem.supervised(entry.model().eval(), entry.data(samples))


def tiny() -> Problem:
    """The callback `landscape.bench.problems:tiny`: a point costs next to nothing, what is left is the system."""
    return synthetic_problem("tiny", SYNTHETIC_MODELS["tiny"].samples)


def synthetic_job(name: str, run: str, samples: int | None = None, size: int = 40, **fields: object) -> Job:
    """A job of a synthetic model along two filter-normalised random directions, `size` points on each axis.

    Args:
        samples: samples a point; default: those of the model's line in `SYNTHETIC_MODELS`.
        fields: other fields of the job.

    Raises:
        JobError: there is no model of this name.
    """
    if name not in SYNTHETIC_MODELS:
        raise JobError(f"recipe: unknown {quoted(name)}; {nearest(name, SYNTHETIC_MODELS)}")
    count = samples or SYNTHETIC_MODELS[name].samples
    landscapes = [{"name": "bench", "size": size}]
    problem = partial(synthetic_problem, name, count)
    return Job(run=run, problem=problem, num_samples=count, landscapes=landscapes, **fields)
