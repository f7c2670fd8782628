"""The checks of a landscape on trained networks, and what they cost beside the grid.

python tests/measure/trust.py vgg|bytes|tanh --out DIR [--data cifar10.npz] [--size 41] [--samples 512] [--trained]

The network is trained with the collector first, a few minutes at most; then its random plane is computed, serially, and
checked. To reach on networks that no threshold was set with: no ✗, each ! explained; at most 10 % of the evaluations of
a plane of 41 × 41 points, and 25 % of its seconds. These are of the processor: other programs leave them as they are.
"""

from __future__ import annotations

import argparse
import math
import pydoc_data.topics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from landscape import Job, Problem, TrajectoryCollector, run
from landscape.analysis.checks.table import check_landscape, keep_checks
from landscape.recipes.cifar10 import normalise, read_cifar10

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data" / "cifar10-train-10000.npz"
CONTEXT, WIDTH, IMAGES = 64, 64, 4000
Rows = tuple[Tensor, ...]


def vgg() -> nn.Module:
    """Six convolutions with batch norm, three pools and one linear layer: 73 thousand parameters."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 16), (16, 16), (16, 32), (32, 32), (32, 64), (64, 64)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
        layers += [nn.MaxPool2d(2)] if inputs == outputs else []
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


class Bytes(nn.Module):
    """A transformer of two layers that predicts the next byte."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        layer = nn.TransformerEncoderLayer(
            WIDTH, 4, 4 * WIDTH, activation="gelu", batch_first=True, norm_first=True, dropout=0.0
        )
        self.layers = nn.TransformerEncoder(layer, 2, nn.LayerNorm(WIDTH), enable_nested_tensor=False)
        self.out = nn.Linear(WIDTH, 256)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the next byte."""
        length = tokens.shape[1]
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        states = self.bytes(tokens) + self.places(torch.arange(length))
        return self.out(self.layers(states, mask=later, is_causal=True))


def sequences() -> Rows:
    """The help on Python's own topics as rows of bytes."""
    text = "\n".join(pydoc_data.topics.topics.values()).encode()
    tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    return (tokens[: len(tokens) // CONTEXT * CONTEXT].view(-1, CONTEXT),)


def next_byte(model: nn.Module, rows: Rows) -> Tensor:
    """The mean cross entropy of the next byte."""
    return nn.functional.cross_entropy(model(rows[0][:, :-1]).flatten(0, 1), rows[0][:, 1:].flatten())


def of_class(model: nn.Module, rows: Rows) -> Tensor:
    """The mean cross entropy of the classes."""
    return nn.functional.cross_entropy(model(rows[0]), rows[1])


def tanh() -> nn.Module:
    """A perceptron with two hidden layers."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10)
    )  # fmt: skip


def small_digits() -> Rows:
    """The handwritten digits of scikit-learn, 8 × 8 pixels."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)


def photographs(file: Path) -> Rows:
    """Some of CIFAR-10's images as the network takes them, and their labels."""
    images, labels = read_cifar10(file)
    return normalise(images[:IMAGES]), labels[:IMAGES]


def train(
    folder: Path, model: nn.Module, rows: Rows, loss_of: Callable[[nn.Module, Rows], Tensor], epochs: int, rate: float
) -> None:
    """Train by AdamW in batches of 64, the rate falling to zero; the collector keeps the last weights and the log."""
    optimizer = torch.optim.AdamW(model.parameters(), rate)
    steps = math.ceil(len(rows[0]) / 64)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=epochs * steps)
    collector = TrajectoryCollector(folder, model, optimizer, unit="epoch", intervals=[[1, 2, epochs]], overwrite=True)
    for epoch in range(epochs):
        for places in torch.randperm(len(rows[0])).split(64):
            loss = loss_of(model.train(), tuple(each[places] for each in rows))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            collector.step(loss)
        collector.end_epoch()
        print(f"epoch {epoch + 1}: {float(loss):.3f}", flush=True)


def main() -> None:
    """Train, compute, check, and say what it cost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", choices=("vgg", "bytes", "tanh"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path, default=SHARED)
    parser.add_argument("--size", type=int, default=41)
    parser.add_argument("--samples", type=int, default=512)
    parser.add_argument("--trained", action="store_true", help="take the weights that an earlier call left in --out")
    given = parser.parse_args()
    torch.manual_seed(0)
    folder = given.out / given.network
    model: nn.Module
    if given.network == "bytes":
        model, rows, loss_of, epochs, rate = Bytes(), sequences(), next_byte, 4, 3e-3
    elif given.network == "vgg":
        model, rows, loss_of, epochs, rate = vgg(), photographs(given.data), of_class, 4, 3e-3
    else:
        model, rows, loss_of, epochs, rate = tanh(), small_digits(), of_class, 30, 3e-3
    if not given.trained:
        train(folder, model, rows, loss_of, epochs, rate)

    def problem() -> Problem:
        if given.network == "bytes":
            return Problem.causal_lm(model, rows[0])
        return Problem.supervised(model, (rows[0], rows[1]), metrics=["accuracy"])

    name = f"plane-{given.size}"
    landscape = {"name": name, "origin": "last", "size": given.size, "range": [-0.5, 0.5]}
    begin = time.process_time()
    run(Job(run=str(folder), problem=problem, num_samples=given.samples, landscapes=[landscape]))
    between = time.process_time()
    found = check_landscape(folder, name, problem=problem)
    spent, grid = time.process_time() - between, between - begin
    keep_checks(folder, name, found)
    print(found.text(name))
    print(f"{sum(each.numel() for each in model.parameters()):,} parameters")
    print(f"evaluations: {found.evaluations} of {given.size**2}, {found.evaluations / given.size**2:.1%}")
    print(f"seconds of the processor: {spent:.1f} of {grid:.1f}, {spent / grid:.1%}")


if __name__ == "__main__":
    main()
