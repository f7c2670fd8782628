"""One training of a recipe, epoch by epoch: steps, what the history gets of them, and what a checkpoint keeps."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from landscape.recipes.precision import ScaledSteps, outputs_of
from landscape.recipes.settings import Settings, schedule_of
from landscape.recipes.sources import Source
from landscape.training.collector import TrajectoryCollector
from landscape.training.distributed import Share, epoch_order, shares, steps_in
from landscape.training.training import Training

log = logging.getLogger("landscape")


class Loop:
    """Trains on one rank.

    Args:
        network: what the training has prepared of the model.
        kept: what is kept at each checkpoint beside the progress, by name.
        progress: of the checkpoint to go on from; empty for a new training.
    """

    def __init__(
        self,
        training: Training,
        network: nn.Module,
        optimizer: torch.optim.Optimizer,
        collector: TrajectoryCollector,
        data: Source,
        settings: Settings,
        kept: dict[str, Any],
        progress: dict[str, Any],
    ) -> None:
        self._training, self._network, self._optimizer = training, network, optimizer
        self._collector, self._data, self._settings, self._kept = collector, data, settings, kept
        self._rate, self._steps = schedule_of(settings), ScaledSteps(optimizer, settings.loss_scale)
        self._seconds = float(progress.get("seconds", 0.0))  # of training; evaluation and checkpoints left out
        self._metrics = dict(progress.get("metrics", {}))
        # Of the steps since accuracy was recorded last. What is known of all ranks is rank 0's.
        self._right = torch.tensor(int(progress.get("right", 0)) if training.is_first else 0, device=training.device)
        self._seen = int(progress.get("seen", 0))
        self._is_loss_lost = False

    def train(self, epoch: int, start: int = 0) -> float:
        """Take the steps of one epoch, from batch number `start` on.

        Returns:
            Samples per second, over all ranks.
        """
        before, samples = self._seconds, 0
        self._network.train()
        began = time.perf_counter()
        for share, inputs, targets in self._batches(epoch, start):
            loss = self._step(share, inputs, targets, epoch)
            began, self._seconds = time.perf_counter(), self._seconds + time.perf_counter() - began
            samples += share.samples
            self._record(loss)
            every = self._settings.checkpoint_steps
            if every and self._training.steps_done % every == 0:
                self.keep(epoch, share.number + 1)
                began = time.perf_counter()
        return samples / (self._seconds - before) if samples else 0.0

    def end_epoch(self, epoch: int, accuracy: float, loss: float, samples_per_second: float) -> dict[str, Any]:
        """Record the end of an epoch with what was held out, and keep a checkpoint; return its metrics.

        After the last epoch the weights are kept as a snapshot, whether an interval lists it or not.
        """
        pace = {"samples_per_second": round(samples_per_second, 1)} if samples_per_second else {}
        self._collector.end_epoch(held_out_accuracy=accuracy, held_out_loss=loss, **pace)
        self._metrics = {"epoch": epoch + 1, "accuracy": accuracy, "loss": loss}
        if epoch + 1 == self._settings.epochs:
            self._training.end()  # before the checkpoint that says that all is done
        self.keep(epoch + 1, 0)
        return self._metrics

    def keep(self, epoch: int, batch: int) -> None:
        """Keep a checkpoint, after that many epochs, and batches of the next one."""
        right = int(self._training.sum(self._right))
        progress = {"epoch": epoch, "batch": batch, "seconds": self._seconds, "metrics": self._metrics}
        self._training.keep(**self._kept, progress=progress | {"right": right, "seen": self._seen})

    def _batches(self, epoch: int, start: int) -> Iterator[tuple[Share, Tensor, Tensor]]:
        """This rank's shares, each with its samples, which a source may read ahead."""
        training, size, count = self._training, self._settings.batch_size, len(self._data)
        coming = shares(epoch_order(count, training.seed, epoch), size, training.rank, training.world, start)
        samples = self._data.batches((share.index for share in coming), epoch)
        given = training.batches(count, size, epoch, start=start)
        for share, (inputs, targets) in zip(given, samples, strict=True):
            yield share, inputs, targets

    def _step(self, share: Share, inputs: Tensor, targets: Tensor, epoch: int) -> float:
        """Take one step, and return the mean loss of the whole batch."""
        rate = self._rate(epoch + share.number / steps_in(len(self._data), self._settings.batch_size))
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        outputs = outputs_of(self._network, inputs, self._settings.precision)
        smoothing = self._settings.label_smoothing
        loss = nn.functional.cross_entropy(outputs, targets, label_smoothing=smoothing) * share.weight
        self._steps.step(loss)
        if self._training.is_first or share.samples >= self._training.world:  # else rank 0 has the whole batch
            self._right += (outputs.detach().argmax(1) == targets).sum()
        self._seen += share.samples
        return float(self._training.mean(loss))

    def _record(self, loss: float) -> None:
        metrics: dict[str, float] = {"seconds": round(self._seconds, 4)}
        if (self._training.steps_done + 1) % self._settings.log_every == 0:
            metrics["accuracy"] = int(self._training.sum(self._right)) / self._seen
            self._right.zero_()
            self._seen = 0
        self._collector.step(loss, **metrics)
        if not math.isfinite(loss) and not self._is_loss_lost:
            self._is_loss_lost = True
            if self._training.is_first:
                log.warning(
                    "the loss of step %d is not finite; a smaller learning_rate may help", self._training.steps_done
                )
