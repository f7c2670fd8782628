"""The training loop that the recipes share: with the collector, and resumable to the same bits."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from landscape.collector import TrajectoryCollector
from landscape.errors import JobError, StoreError, shown
from landscape.folders import open_folder
from landscape.trajectory.run_files import writing
from landscape.trajectory.snapshots import read_trajectory

CHECKPOINT_FILE = "checkpoint.pt"
EVALUATION_BATCH = 1024

Images = tuple[Tensor, Tensor]
Transform = Callable[[Tensor, torch.Generator | None], Tensor]
Report = Callable[[int, Mapping[str, float]], None]


def as_stored(images: Tensor, generator: torch.Generator | None) -> Tensor:
    """The transform for images that are the network's input already."""
    return images


@dataclass(frozen=True)
class Settings:
    """How to train: SGD with momentum, the learning rate falling to `final` of itself along half a cosine.

    `collect` holds the options of `TrajectoryCollector`, `network` those that model and data were made with. Each of
    them changes the result, so a run that was begun with other settings is refused.
    """

    epochs: int
    batch_size: int
    learning_rate: float
    momentum: float = 0.9
    weight_decay: float = 0.0
    final: float = 0.0
    seed: int = 0
    collect: Mapping[str, Any] = field(default_factory=dict)
    network: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Trained:
    """The outcome: held-out accuracy and loss after the last epoch, and the model in eval mode."""

    accuracy: float
    loss: float
    model: nn.Module


def fit(
    run: str | Path,
    build: Callable[[], nn.Module],
    training: Images,
    held_out: Images,
    settings: Settings,
    *,
    transform: Transform = as_stored,
    device: str = "cpu",
    threads: int | None = 1,
    overwrite: bool = False,
    report: Report | None = None,
) -> Trained:
    """Train `build()` with the collector attached, or go on where an earlier call with the same settings stopped.

    Weights, optimiser and epoch are checkpointed after every epoch; initial weights, order of samples and
    augmentation follow from the seed and the epoch alone. So an interrupted training ends like an uninterrupted one.

    Args:
        training, held_out: images and labels, of the same length.
        transform: makes the network's input of stored images; its second argument is a generator in training and None
            in evaluation.
        threads: how many a CPU uses, since its rounding depends on that; None leaves it as it is.
        overwrite: begin anew, whatever the run holds.
        report: called after every epoch with its number and metrics.

    Raises:
        JobError: the run holds a trajectory that these settings did not make.
    """
    with _reproducible(threads):
        model = seeded(build, settings.seed).to(device)
        optimizer = _optimizer(model, settings)
        metrics = _begin_or_go_on(run, model, optimizer, settings, overwrite)
        done = int(metrics["epoch"])
        if done < settings.epochs:
            training = (training[0].to(device), training[1].to(device))
            start: dict[str, Any] = {"start_epoch": done, "start_step": done * steps_per_epoch(training, settings)}
            collector = TrajectoryCollector(run, model, optimizer, **settings.collect, **start, overwrite=not done)
        for epoch in range(done, settings.epochs):
            for loss in _train_epoch(model, optimizer, training, settings, epoch, transform):
                collector.step(loss)
            accuracy, held_out_loss = evaluate(model, held_out, transform, device)
            collector.end_epoch(held_out_accuracy=accuracy, held_out_loss=held_out_loss)
            metrics = {"epoch": epoch + 1, "accuracy": accuracy, "loss": held_out_loss}
            _save_checkpoint(run, model, optimizer, settings, metrics)
            if report:
                report(epoch + 1, metrics)
        return Trained(metrics["accuracy"], metrics["loss"], model.eval())


def _train_epoch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    training: Images,
    settings: Settings,
    epoch: int,
    transform: Transform,
) -> Iterator[Tensor]:
    """The losses of one epoch's steps, each yielded when its step is done."""
    inputs, targets = training
    generator = torch.Generator().manual_seed(settings.seed * 1_000_003 + epoch)
    order = torch.randperm(len(targets), generator=generator)
    steps = steps_per_epoch(training, settings)
    model.train()
    for k in range(steps):
        _set_learning_rate(optimizer, settings, (epoch + k / steps) / settings.epochs)
        index = order[k * settings.batch_size : (k + 1) * settings.batch_size].to(targets.device)
        loss = nn.functional.cross_entropy(model(transform(inputs[index], generator)), targets[index])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        yield loss.detach()


def steps_per_epoch(training: Images, settings: Settings) -> int:
    """The number of batches in an epoch; the last one may be smaller than the others."""
    return math.ceil(len(training[1]) / settings.batch_size)


def seeded(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """A model whose initial weights follow from `seed`; the global generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()


def evaluate(
    model: nn.Module, images: Images, transform: Transform, device: str | torch.device = "cpu"
) -> tuple[float, float]:
    """Accuracy, from 0 to 1, and mean cross-entropy over all images; `model` is left in eval mode."""
    right, total = 0, 0.0
    model.eval()
    with torch.inference_mode():
        for start in range(0, len(images[1]), EVALUATION_BATCH):
            inputs, targets = (part[start : start + EVALUATION_BATCH].to(device) for part in images)
            outputs = model(transform(inputs, None))
            total += float(nn.functional.cross_entropy(outputs, targets, reduction="sum"))
            right += int((outputs.argmax(1) == targets).sum())
    return right / len(images[1]), total / len(images[1])


def check_settings(settings: Settings) -> Settings:
    """The settings as given.

    Raises:
        JobError: epochs, batch size or learning rate is impossible.
    """
    for name in ("epochs", "batch_size"):
        value = getattr(settings, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise JobError(f"{name}: must be a whole number from 1 on, not {shown(value)}")
    if not (math.isfinite(settings.learning_rate) and settings.learning_rate > 0):
        raise JobError(f"learning_rate: must be a positive number, not {shown(settings.learning_rate)}")
    return settings


def listed_intervals(epochs: int, intervals: Sequence[Sequence[int]]) -> list[list[int]]:
    """Those of the default `intervals` that training reaches; where it reaches none, one over all its epochs.

    Raises:
        JobError: fewer than 2 epochs, which make no trajectory.
    """
    if epochs < 2:
        raise JobError(f"epochs: must be at least 2 for a trajectory landscape, not {epochs}; or give intervals")
    return [list(interval) for interval in intervals if max(interval) <= epochs] or [list(range(epochs + 1))]


def _optimizer(model: nn.Module, settings: Settings) -> torch.optim.Optimizer:
    return torch.optim.SGD(
        model.parameters(), settings.learning_rate, momentum=settings.momentum, weight_decay=settings.weight_decay
    )


def _set_learning_rate(optimizer: torch.optim.Optimizer, settings: Settings, progress: float) -> None:
    falling = 0.5 * (1 + math.cos(math.pi * progress))
    for group in optimizer.param_groups:
        group["lr"] = settings.learning_rate * (settings.final + (1 - settings.final) * falling)


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


def _begin_or_go_on(
    run: str | Path, model: nn.Module, optimizer: torch.optim.Optimizer, settings: Settings, overwrite: bool
) -> dict[str, Any]:
    """Load the checkpoint into model and optimiser, or write the first one where there is none; return its metrics.

    Raises:
        JobError: the checkpoint is of other settings, or the run holds a trajectory without one.
    """
    saved = None if overwrite else _read_checkpoint(run)
    if saved is None and not overwrite and read_trajectory(run).snapshots:
        raise JobError(
            f"run: {shown(str(run))} holds a trajectory that this training did not make; "
            "name another run, or overwrite it"
        )
    if saved is not None:
        _refuse_other_settings(run, saved["settings"], _plain(settings))
    if saved is None or not _is_whole(run, settings, int(saved["metrics"]["epoch"])):
        _save_checkpoint(run, model, optimizer, settings, {"epoch": 0})
        return {"epoch": 0}
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return dict(saved["metrics"])


def _refuse_other_settings(run: str | Path, begun: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    for name, value in asked.items():
        if begun.get(name) != value:
            raise JobError(
                f"{name}: training in run {shown(str(run))} was begun with {shown(begun.get(name))}, "
                f"not {shown(value)}; change it back, name another run, or overwrite this one"
            )


def _is_whole(run: str | Path, settings: Settings, done: int) -> bool:
    """Whether every snapshot that `done` epochs leave is there; a user may have deleted some."""
    listed = {number for interval in settings.collect["intervals"] for number in interval if number <= done}
    return listed <= set(read_trajectory(run).numbers)


def _plain(settings: Settings) -> dict[str, Any]:
    return asdict(settings)


def _save_checkpoint(
    run: str | Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    settings: Settings,
    metrics: Mapping[str, Any],
) -> None:
    saved = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "settings": _plain(settings),
        "metrics": dict(metrics),
    }
    with writing(run, CHECKPOINT_FILE) as temporary:
        torch.save(saved, temporary)


def _read_checkpoint(run: str | Path) -> dict[str, Any] | None:
    folder = open_folder(run)
    if CHECKPOINT_FILE not in folder.names(""):
        return None
    try:
        with folder.fetched(CHECKPOINT_FILE) as path:
            return dict(torch.load(path, map_location="cpu", weights_only=True))
    except StoreError:
        raise
    except Exception as error:
        place = folder.place(CHECKPOINT_FILE)
        raise JobError(f"checkpoint {shown(place)} cannot be read: {error}; delete it to train anew") from None


def print_epoch(epoch: int, metrics: Mapping[str, float]) -> None:
    """A line of progress on stderr."""
    print(f"epoch {epoch}: held-out accuracy {metrics['accuracy']:.2%}, loss {metrics['loss']:.4f}", file=sys.stderr)
