"""A training as a user writes it, of a model that the project does not know: tied weights, dropout, a schedule."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from landscape.model.parameters import state_digest
from landscape.training.training import Training

EPOCHS, BATCH, WORDS = 2, 10, 7
STEPS = 6  # of both epochs
GENERATOR = torch.Generator().manual_seed(5)
TEXT = torch.randint(0, WORDS, (26, 4), generator=GENERATOR)
TARGETS = torch.randint(0, WORDS, (26,), generator=GENERATOR)


class Words(nn.Module):
    """Embeddings that serve as the last layer too."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 3)
        self.norm, self.dropout = nn.BatchNorm1d(3), nn.Dropout(0.2)
        self.out = nn.Linear(3, WORDS)
        self.out.weight = self.embed.weight

    def forward(self, text: Tensor) -> Tensor:
        return self.out(self.dropout(self.norm(self.embed(text).mean(1))))


def train(training: Training, *, every: int = 2, after: Callable[[int], object] = lambda step: None) -> Words:
    """Checkpoints every so many steps and at the end of each epoch; `after` is called after each step."""
    torch.manual_seed(training.seed)
    model = Words()
    optimizer = torch.optim.AdamW(model.parameters(), 0.05)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)
    network = training.prepare(model)
    done = training.resume(model=model, optimizer=optimizer, schedule=schedule)
    collector = training.collector(model, optimizer, unit="step", intervals=[[0, 2, 3], [4, 5, 6]])
    noise = done.get("noise", 0.0)

    def keep(epoch: int, batch: int) -> None:
        training.keep(model=model, optimizer=optimizer, schedule=schedule, epoch=epoch, batch=batch, noise=noise)

    for epoch in range(done.get("epoch", 0), EPOCHS):
        start = done.get("batch", 0) if epoch == done.get("epoch", 0) else 0
        for share in training.batches(len(TEXT), BATCH, epoch, start=start):
            loss = nn.functional.cross_entropy(network(TEXT[share.index]), TARGETS[share.index]) * share.weight
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            noise += random.random() + float(np.random.rand())  # noqa: NPY002
            collector.step(training.mean(loss), noise=noise)
            if training.steps_done % every == 0:
                keep(epoch, share.number + 1)
            after(training.steps_done)
        collector.end_epoch()
        keep(epoch + 1, 0)
    return model


def digest_of_training(run: Path) -> str:
    """A training of one process in this run, up to its end."""
    return state_digest(train(Training(run)).state_dict())
