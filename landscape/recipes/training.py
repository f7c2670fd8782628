"""The training that the recipes share: with the collector, on any number of ranks, and resumable to the same bits."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from landscape.core.errors import JobError, LandscapeError, shown
from landscape.core.files import Place
from landscape.core.folders import open_folder
from landscape.core.random_state import kept_draws
from landscape.model.snapshots import read_trajectory
from landscape.recipes.former import take_over
from landscape.recipes.loop import Loop
from landscape.recipes.settings import UNDECIDING, Settings, listed_intervals, make_optimizer, warn_of
from landscape.recipes.sources import Arrays, Draws, Images, Source, Transform, as_stored
from landscape.training import distributed
from landscape.training.distributed import steps_in
from landscape.training.training import Training

__all__ = [
    "Arrays",
    "Draws",
    "Images",
    "Report",
    "Settings",
    "Source",
    "Trained",
    "Transform",
    "as_stored",
    "evaluate",
    "fit",
    "listed_intervals",
    "print_epoch",
    "seeded",
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
    """A training of one process in this run; where `run` is a `Training` already, that.

    Args:
        seed: None for 0, or for that of the training.

    Raises:
        JobError: the training has another seed.
    """
    if not isinstance(run, Training):
        return Training(run, seed=seed or 0, device=device, overwrite=overwrite)
    if seed is not None and seed != run.seed:
        raise JobError(f"seed: must be that of the training, {run.seed}, not {shown(seed)}; give it to the training")
    return run


def fit(
    training: Training,
    build: Callable[[], nn.Module],
    data: Source,
    held_out: Source,
    settings: Settings,
    *,
    threads: int | None = 1,
    problem: str | None = None,
    report: Report | None = None,
    told: Mapping[str, Any] = MappingProxyType({}),
) -> Trained:
    """Train `build()` with the collector attached, or go on where an earlier call with the same settings stopped.

    A checkpoint is kept after every epoch, and every `checkpoint_steps` steps. Initial weights, order of samples,
    augmentation and dropout follow from the seed; an interrupted training ends like an uninterrupted one.

    Args:
        data, held_out: what is trained on, and what accuracy and loss are taken on after each epoch.
        threads: how many a CPU uses, since its rounding depends on that; None leaves it as it is.
        problem: the callback of the run's landscapes, which the run remembers.
        report: called after every epoch with its number and metrics, on rank 0.
        told: what the run also tells the callback, as `settings.network`, and what may be another when it goes on.

    Raises:
        JobError: the run holds a trajectory that these settings did not make, or the training has another seed.
    """
    training_of(training, seed=settings.seed)
    with _reproducible(threads), kept_draws():
        steps_per_epoch = steps_in(len(data), settings.batch_size)
        distributed.on_first(lambda: take_over(open_folder(training.run), steps_per_epoch, training.overwrite))
        model = seeded(build, settings.seed).to(training.device)
        optimizer = make_optimizer(model, settings, steps_per_epoch)
        state = SettingsOf(training, settings.with_default_steps(steps_per_epoch))
        kept = {"settings": state, "model": model, "optimizer": optimizer}
        progress = training.resume(**kept).get("progress", {})
        asked, settings = settings, state.settings
        done, metrics = int(progress.get("epoch", 0)), progress.get("metrics", {})
        if progress and not distributed.on_first(lambda: _is_whole(training, settings)):
            training.begin_anew()
            return fit(
                training, build, data, held_out, asked, threads=threads, problem=problem, report=report, told=told
            )
        is_done = done >= settings.epochs
        if not is_done or not distributed.on_first(lambda: _has_end(training, settings)):
            if training.is_first and not is_done:
                warn_of(settings, steps_per_epoch)
            collector = training.collector(
                model, optimizer, network={**settings.network, **told}, problem=problem, watch=settings.watch,
                watch_every=settings.watch_every, **settings.collect,
            )  # fmt: skip
            if is_done:
                training.end()  # an earlier version kept no end, or a user has deleted it
        if not is_done:
            network = training.prepare(model)
            loop = Loop(training, network, optimizer, collector, data, settings, kept, progress)
        with _closing(optimizer):
            for epoch in range(done, settings.epochs):
                pace = loop.train(epoch, int(progress.get("batch", 0)) if epoch == done else 0)
                accuracy, loss = evaluate(model, held_out, training)
                metrics = loop.end_epoch(epoch, accuracy, loss, pace)
                if report and training.is_first:
                    report(epoch + 1, metrics)
        return Trained(metrics["accuracy"], metrics["loss"], model.eval())


@contextmanager
def _closing(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Take the hooks of an optimiser that has some off the model when the block ends."""
    try:
        yield
    finally:
        close = getattr(optimizer, "close", None)
        if close is not None:
            close()


def seeded(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """A model whose initial weights follow from `seed`; the global generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()


def evaluate(model: nn.Module, data: Source, training: Training | None = None) -> tuple[float, float]:
    """Accuracy, from 0 to 1, and mean cross-entropy over all of the data; `model` is left in eval mode.

    Args:
        training: whose ranks each take a part, with the buffers of rank 0; None computes all of it here.

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
            count += len(targets)
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
    """A fixed number of CPU threads and deterministic cuDNN kernels within the block; then both as they were."""
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
    """The settings as a state: to load others than these is refused, before anything else is loaded.

    Intervals that nobody gave become those that the training was begun with.
    """

    def __init__(self, training: Training, settings: Settings) -> None:
        self._run, self.settings = open_folder(training.run).name, settings

    def state_dict(self) -> dict[str, Any]:
        """The settings, plain."""
        return self.settings.plain()

    def load_state_dict(self, begun: Mapping[str, Any]) -> None:
        """Compare.

        Raises:
            JobError: names the setting that was changed.
        """
        self.settings = self.settings.with_intervals_of(begun)
        for name, value in self.settings.plain().items():
            before = begun.get(name, Settings.default_of(name))  # a version without the setting did as its default does
            if name not in UNDECIDING and before != value:
                raise JobError(
                    f"{name}: training in run {shown(self._run)} was begun with {shown(before)}, "
                    f"not {shown(value)}; change it back, name another run, or overwrite this one"
                )


def _is_whole(training: Training, settings: Settings) -> bool:
    """Whether every snapshot that was due by now is there; a user may have deleted some."""
    if not settings.collect:
        return True
    done = _done(training, settings)
    listed = {number for interval in settings.collect["intervals"] for number in interval if number <= done}
    return listed <= set(read_trajectory(training.run).numbers)


def _has_end(training: Training, settings: Settings) -> bool:
    """Whether there is a snapshot of the weights that the training has now."""
    if not settings.collect:
        return True
    done = _done(training, settings)
    return done in read_trajectory(training.run).numbers


def _done(training: Training, settings: Settings) -> int:
    """How many epochs are done, or steps where snapshots count these."""
    return training.epochs_done if settings.collect.get("unit", "step") == "epoch" else training.steps_done


def print_epoch(epoch: int, metrics: Mapping[str, float]) -> None:
    """A line of progress on stderr."""
    print(f"epoch {epoch}: held-out accuracy {metrics['accuracy']:.2%}, loss {metrics['loss']:.4f}", file=sys.stderr)
