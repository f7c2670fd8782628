"""The training that the recipes share: with the collector, on any number of ranks; it resumes to the same bits."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from landscape.core.errors import JobError, LandscapeError, quoted
from landscape.core.files import Place
from landscape.core.folders import open_folder
from landscape.core.random_state import kept_draws
from landscape.model.snapshots import read_trajectory
from landscape.recipes.data import Arrays, Images, SampleDraws, SampleSource, Transform, as_stored
from landscape.recipes.settings import (
    PRECISIONS,
    UNDECIDING,
    Settings,
    listed_intervals,
    make_optimizer,
    schedule_of,
    warn_of,
)
from landscape.training import distributed
from landscape.training.collector import TrajectoryCollector
from landscape.training.distributed import Share, epoch_order, shares, steps_in
from landscape.training.thor.optimizer import THOR
from landscape.training.training import Training

log = logging.getLogger("landscape")


def outputs_of(network: nn.Module, inputs: Tensor, precision: str) -> Tensor:
    """The network's outputs, with products in this precision; weights, gradients and losses keep theirs."""
    dtype = PRECISIONS[precision]
    if dtype is None:
        return network(inputs)  # type: ignore[no-any-return]
    with torch.autocast(inputs.device.type, dtype):
        return network(inputs).float()  # type: ignore[no-any-return]


class ScaledSteps:
    """Backward passes of a loss times `scale`, and steps by its gradients over `scale`.

    Float16 holds no gradient below 6·10⁻⁸; times 128 it does. A step with a gradient that is not finite is skipped, as
    THOR does by itself. Ranks agree, since gradients are averaged before.

    Args:
        scale: constant; 1 leaves loss, gradients and steps unchanged.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, scale: float) -> None:
        self._optimizer, self._scale, self._skipped = optimizer, scale, 0

    def step(self, loss: Tensor) -> None:
        """Take the step for this loss."""
        self._optimizer.zero_grad()
        (loss if self._scale == 1 else loss * self._scale).backward()  # type: ignore[no-untyped-call]
        if self._scale == 1 or isinstance(self._optimizer, THOR) or self._divide_gradients():
            self._optimizer.step()

    def _divide_gradients(self) -> bool:
        """Divide the gradients by the scale; whether they are finite."""
        groups = self._optimizer.param_groups
        gradients = [parameter.grad for group in groups for parameter in group["params"] if parameter.grad is not None]
        finite = bool(nn.utils.get_total_norm(gradients).isfinite())
        if finite:
            for gradient in gradients:
                gradient.div_(self._scale)
        else:
            self._skipped += 1
            if self._skipped == 1 or self._skipped % 100 == 0:
                log.warning(
                    "%d steps left out, as a gradient was not finite; a smaller loss_scale may help", self._skipped
                )
        return finite


class Loop:
    """Trains on one rank.

    Args:
        network: the model as the training has prepared it.
        kept: the objects whose states a checkpoint holds in addition to the progress, by name.
        progress: of the checkpoint to resume from; empty for a new training.
    """

    def __init__(
        self,
        training: Training,
        network: nn.Module,
        optimizer: torch.optim.Optimizer,
        collector: TrajectoryCollector,
        data: SampleSource,
        settings: Settings,
        kept: dict[str, Any],
        progress: dict[str, Any],
    ) -> None:
        self._training, self._network, self._optimizer = training, network, optimizer
        self._collector, self._data, self._settings, self._kept = collector, data, settings, kept
        self._rate, self._steps = schedule_of(settings), ScaledSteps(optimizer, settings.loss_scale)
        self._seconds = float(progress.get("seconds", 0.0))  # of training, without evaluation and checkpoints
        self._metrics = dict(progress.get("metrics", {}))
        # Of the steps since accuracy was last recorded; rank 0 has those of all ranks.
        self._right = torch.tensor(int(progress.get("right", 0)) if training.is_first else 0, device=training.device)
        self._seen = int(progress.get("seen", 0))
        self._has_warned = False

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
        """Record the end of an epoch with the held-out accuracy and loss, and keep a checkpoint; return the metrics.

        After the last epoch the weights are kept as a snapshot, even if no interval lists it.
        """
        pace = {"samples_per_second": round(samples_per_second, 1)} if samples_per_second else {}
        self._collector.end_epoch(held_out_accuracy=accuracy, held_out_loss=loss, **pace)
        self._metrics = {"epoch": epoch + 1, "accuracy": accuracy, "loss": loss}
        if epoch + 1 == self._settings.epochs:
            self._training.end()  # before the checkpoint that says that the training is finished
        self.keep(epoch + 1, 0)
        return self._metrics

    def keep(self, epoch: int, batch: int) -> None:
        """Keep a checkpoint after `epoch` epochs and `batch` batches of the next one."""
        right = int(self._training.sum(self._right))
        progress = {"epoch": epoch, "batch": batch, "seconds": self._seconds, "metrics": self._metrics}
        self._training.keep(**self._kept, progress=progress | {"right": right, "seen": self._seen})

    def _batches(self, epoch: int, start: int) -> Iterator[tuple[Share, Tensor, Tensor]]:
        """This rank's shares, each with its samples; a source may read them ahead."""
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
        self._seen += share.samples * (targets.numel() // max(1, len(targets)))  # of a sequence, every token
        return float(self._training.mean(loss))

    def _record(self, loss: float) -> None:
        metrics: dict[str, float] = {"seconds": round(self._seconds, 4)}
        if (self._training.steps_done + 1) % self._settings.log_every == 0:
            metrics["accuracy"] = int(self._training.sum(self._right)) / self._seen
            self._right.zero_()
            self._seen = 0
        self._collector.step(loss, **metrics)
        if not math.isfinite(loss) and not self._has_warned:
            self._has_warned = True
            if self._training.is_first:
                log.warning(
                    "the loss of step %d is not finite; a smaller learning_rate may help", self._training.steps_done
                )


__all__ = [
    "Arrays",
    "Images",
    "Report",
    "SampleDraws",
    "SampleSource",
    "Settings",
    "Trained",
    "Transform",
    "as_stored",
    "build_seeded",
    "evaluate",
    "fit",
    "listed_intervals",
    "print_epoch",
    "training_of",
]

EVALUATION_BATCH = 1024

Report = Callable[[int, Mapping[str, float]], None]


@dataclass(frozen=True)
class Trained:
    """The outcome: held-out accuracy and loss after the last epoch, and the model in eval mode."""

    accuracy: float
    loss: float
    model: nn.Module


def training_of(
    run: Place | Training, *, seed: int | None = None, device: str = "cpu", overwrite: bool = False
) -> Training:
    """`run` itself if it is a `Training`, else a training of one process in this run.

    Args:
        seed: None for 0, or for the seed of the training.

    Raises:
        JobError: the training has another seed.
    """
    if not isinstance(run, Training):
        return Training(run, seed=seed or 0, device=device, overwrite=overwrite)
    if seed is not None and seed != run.seed:
        raise JobError(f"seed: must be that of the training, {run.seed}, not {quoted(seed)}; give it to the training")
    return run


def fit(
    training: Training,
    build: Callable[[], nn.Module],
    data: SampleSource,
    held_out: SampleSource,
    settings: Settings,
    *,
    threads: int | None = 1,
    problem: str | None = None,
    report: Report | None = None,
    recorded: Mapping[str, Any] = MappingProxyType({}),
) -> Trained:
    """Train `build()` with the collector attached, or resume where an earlier call with the same settings stopped.

    All random numbers follow from the seed, and an interrupted training ends like an uninterrupted one.

    Args:
        data, held_out: the samples to train on, and those for accuracy and loss after each epoch.
        threads: the number of CPU threads, on which the rounding depends; None leaves it unchanged.
        problem: the callback of the run's landscapes, which the run remembers.
        report: called after every epoch with its number and metrics, on rank 0.
        recorded: for the callback, in addition to `settings.network`; it may change when the training resumes.

    Raises:
        JobError: the run holds a trajectory that these settings did not make, or the training has another seed.
    """
    training_of(training, seed=settings.seed)
    with _reproducible(threads), kept_draws():
        steps_per_epoch = steps_in(len(data), settings.batch_size)
        model = build_seeded(build, settings.seed).to(training.device)
        optimizer = make_optimizer(model, settings, steps_per_epoch)
        state = SettingsOf(training, settings.with_default_steps(steps_per_epoch))
        kept = {"settings": state, "model": model, "optimizer": optimizer}
        progress = training.resume(**kept).get("progress", {})
        requested, settings = settings, state.settings
        done, metrics = int(progress.get("epoch", 0)), progress.get("metrics", {})
        if progress and not distributed.on_first(lambda: _is_whole(training, settings)):
            training.begin_anew()
            return fit(
                training, build, data, held_out, requested, threads=threads, problem=problem, report=report,
                recorded=recorded,
            )  # fmt: skip
        is_done = done >= settings.epochs
        if not is_done or not distributed.on_first(lambda: _has_end(training, settings)):
            if training.is_first and not is_done:
                warn_of(settings, steps_per_epoch)
            collector = _collector_of(training, model, optimizer, settings, {**settings.network, **recorded}, problem)
            if is_done:
                training.end()  # the last snapshot has been deleted
        if not is_done:
            network = training.prepare(model)
            loop = Loop(training, network, optimizer, collector, data, settings, kept, progress)
        with _remove_hooks(optimizer):
            for epoch in range(done, settings.epochs):
                pace = loop.train(epoch, int(progress.get("batch", 0)) if epoch == done else 0)
                accuracy, loss = evaluate(model, held_out, training)
                metrics = loop.end_epoch(epoch, accuracy, loss, pace)
                if report and training.is_first:
                    report(epoch + 1, metrics)
        return Trained(metrics["accuracy"], metrics["loss"], model.eval())


def _collector_of(
    training: Training, model: nn.Module, optimizer: torch.optim.Optimizer, settings: Settings,
    network: Mapping[str, Any], problem: str | None,
) -> TrajectoryCollector:  # fmt: skip
    return training.collector(
        model, optimizer, network=network, problem=problem, watch=settings.watch, watch_every=settings.watch_every,
        **settings.collect,
    )  # fmt: skip


@contextmanager
def _remove_hooks(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """When the block ends, remove the hooks of the optimiser from the model, if it has any."""
    try:
        yield
    finally:
        close = getattr(optimizer, "close", None)
        if close is not None:
            close()


def build_seeded(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """A model whose initial weights follow from `seed`; the global generator keeps its state."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()


def evaluate(model: nn.Module, data: SampleSource, training: Training | None = None) -> tuple[float, float]:
    """Accuracy, from 0 to 1, and mean cross-entropy over all of the data; `model` is left in eval mode.

    Args:
        training: each of its ranks takes a part, with the buffers of rank 0; None computes all here.

    Raises:
        LandscapeError: all of the data were skipped as unreadable.
    """
    numbers = torch.arange(len(data))
    if training is not None:
        training.share_buffers(model)
        numbers = numbers.tensor_split(training.world)[training.rank]
    right, count, total = 0, 0, 0.0
    model.eval()
    with torch.inference_mode():
        for inputs, targets in data.batches(_in_parts(numbers), None):
            outputs = model(inputs)
            total += float(nn.functional.cross_entropy(outputs, targets, reduction="sum"))
            right += int((outputs.argmax(1) == targets).sum())
            count += targets.numel()
    if training is not None and training.world > 1:
        right, count = (int(number) for number in training.sum(torch.tensor([right, count])))
        total = float(training.sum(torch.tensor(total, dtype=torch.float64)))
    if not count:
        raise LandscapeError("data: none of the held-out images can be read; mend them")
    return right / count, total / count


def _in_parts(numbers: Tensor) -> list[Tensor]:
    return [numbers[start : start + EVALUATION_BATCH] for start in range(0, len(numbers), EVALUATION_BATCH)]


@contextmanager
def _reproducible(threads: int | None) -> Iterator[None]:
    """Within the block: a fixed number of CPU threads and deterministic cuDNN kernels."""
    cudnn: Any = torch.backends.cudnn
    before = (torch.get_num_threads(), cudnn.deterministic, cudnn.benchmark)
    torch.set_num_threads(threads or before[0])
    cudnn.deterministic, cudnn.benchmark = True, False
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        cudnn.deterministic, cudnn.benchmark = before[1:]


class SettingsOf:
    """The settings as a state: loading refuses other settings, before anything else is loaded.

    Default intervals become those with which the training was begun.
    """

    def __init__(self, training: Training, settings: Settings) -> None:
        self._run, self.settings = open_folder(training.run).name, settings

    def state_dict(self) -> dict[str, Any]:
        """The settings as plain values."""
        return self.settings.plain()

    def load_state_dict(self, begun: Mapping[str, Any]) -> None:
        """Compare `begun`, the settings of the checkpoint, with these.

        Raises:
            JobError: a setting was changed; names it.
        """
        self.settings = self.settings.with_intervals_of(begun)
        for name, value in self.settings.plain().items():
            before = begun.get(name, Settings.default_of(name))  # a version without the setting worked like its default
            if name not in UNDECIDING and before != value:
                raise JobError(
                    f"{name}: training in run {quoted(self._run)} was begun with {quoted(before)}, "
                    f"not {quoted(value)}; change it back, name another run, or overwrite this one"
                )


def _is_whole(training: Training, settings: Settings) -> bool:
    """Whether every snapshot that should exist by now does; a user may have deleted some."""
    if not settings.collect:
        return True
    done = _done(training, settings)
    listed = {number for interval in settings.collect["intervals"] for number in interval if number <= done}
    return listed <= set(read_trajectory(training.run).numbers)


def _has_end(training: Training, settings: Settings) -> bool:
    """Whether there is a snapshot of the current weights."""
    if not settings.collect:
        return True
    done = _done(training, settings)
    return done in read_trajectory(training.run).numbers


def _done(training: Training, settings: Settings) -> int:
    """The number of epochs done, or of steps if snapshots count these."""
    return training.epochs_done if settings.collect.get("unit", "step") == "epoch" else training.steps_done


def print_epoch(epoch: int, metrics: Mapping[str, float]) -> None:
    """A line of progress on stderr."""
    print(f"epoch {epoch}: held-out accuracy {metrics['accuracy']:.2%}, loss {metrics['loss']:.4f}", file=sys.stderr)
