"""Points per second on batches that a collate function makes, over those on the same numbers as rectangular tensors.

    python tests/measure/ragged.py [cpu|cuda:0]

Every sample has one length, so that both compute the same; the ratio is what any structure costs. Each line is the
median ratio of pairs that are measured in turns, in one process.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from landscape.core.plan import Plan
from landscape.evaluation.evaluator import Evaluator
from landscape.model.parameters import state_of
from landscape.problem.selection import select_samples

SAMPLES, LENGTH, WIDTH, ROUNDS, POINTS = 1024, 32, 16, 9, 4


@dataclass
class Sequences:
    """A batch of a class of the user's."""

    tokens: Tensor
    classes: Tensor


def model(hidden: int) -> nn.Module:
    """A network over every token, of this width."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(WIDTH, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, 3)
    )


def loss(network: nn.Module, tokens: Tensor, classes: Tensor) -> dict[str, Tensor]:
    """Of every sequence, its tokens averaged."""
    return {"loss": nn.functional.cross_entropy(network(tokens).mean(1), classes, reduction="none")}


def observe(network: nn.Module, batch: object) -> dict[str, Tensor]:
    """Of any of the batches that are measured."""
    if isinstance(batch, Sequences):
        return loss(network, batch.tokens, batch.classes)
    if isinstance(batch, dict):
        return loss(network, batch["tokens"], batch["classes"])
    tokens, classes = batch  # type: ignore[misc]
    return loss(network, tokens, classes)


def padded(items: list[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    """As padding makes it."""
    tokens = nn.utils.rnn.pad_sequence([tokens for tokens, _ in items], batch_first=True)
    return {"tokens": tokens, "classes": torch.stack([label for _, label in items])}


def objects(items: list[tuple[Tensor, Tensor]]) -> Sequences:
    """As an object."""
    return Sequences(**padded(items))


def evaluator(collate: Callable[..., object] | None, hidden: int, batch_size: int, device: torch.device) -> Evaluator:
    """The same numbers as rows (None), or collated."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randn(SAMPLES, LENGTH, WIDTH, generator=generator)
    classes = torch.randint(0, 3, (SAMPLES,), generator=generator)
    data = (tokens, classes) if collate is None else DataLoader(TensorDataset(tokens, classes), collate_fn=collate)
    network = model(hidden)
    axes = [{name: torch.randn_like(each) for name, each in network.named_parameters()} for _ in range(2)]
    plan = Plan(batch_size=batch_size, threads=1, device=device.type)
    samples = select_samples(data, SAMPLES, 0).samples
    return Evaluator(network, samples, observe, plan, device, state_of(network), axes)


def seconds(measured: Evaluator) -> float:
    """Of some points."""
    clock = time.process_time if measured.device.type == "cpu" else time.perf_counter  # others may use the processor
    start = clock()
    measured.evaluate(np.full((POINTS, 2), 0.1))
    return clock() - start


def main() -> None:
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cpu")
    torch.set_num_threads(1)
    print(f"{'width':>6} {'batch':>6} {'batches are':>12} {'points/s':>9} {'of rows':>8}")
    for hidden in (16, 128):
        for batch_size in (16, 128):
            rows = evaluator(None, hidden, batch_size, device)
            for collate in (padded, objects):
                other = evaluator(collate, hidden, batch_size, device)
                seconds(rows), seconds(other)
                pairs = [(seconds(rows), seconds(other)) for _ in range(ROUNDS)]
                ratio = median(one / two for one, two in pairs)
                speed = POINTS / median(two for _, two in pairs)
                print(f"{hidden:6} {batch_size:6} {collate.__name__:>12} {speed:9.1f} {ratio:8.2f}", flush=True)


if __name__ == "__main__":
    main()
