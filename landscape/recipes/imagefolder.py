"""ResNet-50 v1.5 on photographs in folders as ImageNet has them, train/class/*.jpeg and val: training and callback.

python -m landscape.recipes.imagefolder --data imagenet/ --run runs/resnet50
"""

from __future__ import annotations

import argparse
import logging
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Unpack, get_args

from torch import nn

from landscape.arguments import check_whole
from landscape.errors import JobError, nearest, shown
from landscape.folders import Place
from landscape.optim.schedules import SCHEDULES, Schedule
from landscape.problem.problem import Problem
from landscape.recipes.command import (
    data_for_training,
    data_from_environment,
    initial_or_given,
    main_of,
    options_of_run,
    weights_from_environment,
)
from landscape.recipes.images.crops import SIDE
from landscape.recipes.images.listing import Listing, list_images
from landscape.recipes.images.loading import EvaluatedImages, Unreadable, naming_lost_decoders
from landscape.recipes.images.source import Photographs
from landscape.recipes.options import LoopOptions, settings_of, takes_loop_options
from landscape.recipes.resnet50 import ResNet50
from landscape.recipes.settings import Settings
from landscape.recipes.training import Trained, fit, seeded, training_of
from landscape.training import Training
from landscape.training.shares import steps_in

Split = Literal["train", "val"]

DATA_VARIABLE = "LANDSCAPE_IMAGES"
DATA = "the folder with train/class/*.jpeg and val/class/*.jpeg"
PROBLEM = "landscape.recipes.imagefolder:problem"
INTERVALS = (tuple(range(1, 26)), tuple(range(26, 41)))  # the tutorial's for ResNet-50
BATCH_SIZE = 256  # 32 on each of 8 cards
SMALLEST_SIDE = 32
REFRESHES = 6  # of THOR's factors in an epoch: every 834 steps of 5,004
log = logging.getLogger("landscape")


@dataclass(frozen=True)
class OverEpochs:
    """A published schedule of THOR, stretched or squeezed to another number of epochs."""

    published: Schedule
    epochs: int

    def learning_rate(self, epoch: float) -> float:
        """After some epochs of this training."""
        return self.published.learning_rate(epoch * self.published.epochs / self.epochs)

    def damping(self, epoch: float) -> float:
        """After some epochs of this training."""
        return self.published.damping(epoch * self.published.epochs / self.epochs)


# Goyal et al. (2017), by which SGD comes to 76.3 %: 0.1 for 256 images, scaled with the batch, warmed up for 5 epochs.
SGD_EPOCHS = 90
SGD: dict[str, Any] = {
    "learning_rate": 0.1, "weight_decay": 1e-4, "schedule": "steps", "milestones": (30.0, 60.0, 80.0),
    "warmup_epochs": 5.0, "base_batch": 256,
}  # fmt: skip
OF_OTHERS = {"learning_rate": 1e-3}  # of Adam and Adagrad nothing is published here
LEFT_OPEN = ("learning_rate", "weight_decay", "schedule", "milestones", "warmup_epochs", "base_batch", "damping",
             "frequency")  # fmt: skip
UNUSED = {each.name: each.default for each in fields(Settings) if each.name in LEFT_OPEN} | OF_OTHERS


@takes_loop_options(
    optimizer="thor", batch_size=BATCH_SIZE, label_smoothing=0.1, loss_scale=128.0, device="auto", num_samples=512,
    **dict.fromkeys(LEFT_OPEN, None),
)  # fmt: skip
def train(
    run: Place | Training,
    data: str | Path | None = None,
    epochs: int | None = None,
    *,
    published: str = "gpu-8",
    side: int = SIDE,
    channels: int = 64,
    zero_gamma: bool = False,
    decoders: int = 4,
    unreadable: Unreadable = "refuse",
    **options: Unpack[LoopOptions],
) -> Trained:
    """Train ResNet-50 with the collector at the epochs of `intervals`; accuracy is taken on the images of `val`.

    With `optimizer` "thor", the default, by THOR's published learning rates and dampings, its factors refreshed six
    times an epoch; with "momentum" or "sgd" by the rates of Goyal et al. (2017). Either is stretched or squeezed to
    `epochs`, and an option that is given takes the place of what is published. Called again after an interruption it
    goes on from the last checkpoint.

    Args:
        run: the run's folder or URL, or a `Training`.
        data: the folder with train/class/*.jpeg and val/class/*.jpeg; default: what LANDSCAPE_IMAGES names.
        epochs: default: those of the published training, 40 with THOR and 90 with SGD.
        published: which of THOR's trainings: a name in `landscape.optim.schedules.SCHEDULES`.
        side: of the network's input in pixels; images are resized to 256/224 of it in evaluation.
        channels: of the network's first stage; 64 are ResNet-50's.
        zero_gamma: begin with every bottleneck passing its input on, see `ResNet50`.
        decoders: processes of each rank that decode images; as many others are for evaluation, idle in between.
        unreadable: whether an image that cannot be read ends the training ("refuse"), or is counted and another taken
            for it ("skip", see `ImageLoader`).
        options: those of `LoopOptions`; the default `intervals` are the tutorial's, as far as training reaches them.

    Raises:
        NotFoundError: a folder of the data is missing.
        JobError: the folders are not laid out in classes, or the run holds another trajectory.
        UnreadableImage: an image cannot be read, and unreadable ones are refused.
    """
    data = data_for_training(data, DATA_VARIABLE, DATA)
    training = training_of(run, seed=options["seed"], device=options["device"], overwrite=options["overwrite"])
    check_whole("side", side, SMALLEST_SIDE)
    listings = read_folders(data)
    steps = steps_in(len(listings[0]), max(1, options["batch_size"]))  # the settings refuse what is below 1
    epochs, chosen = with_published(epochs, options, published, steps)
    network = {
        "side": side, "channels": channels, "zero_gamma": zero_gamma, "classes": len(listings[0].classes),
        "images": len(listings[0]),
    }  # fmt: skip
    settings = settings_of(training, epochs, chosen, INTERVALS, **network)
    trained, held_out = (
        Photographs(listing, side, seed=training.seed, device=training.device, decoders=decoders, unreadable=unreadable)
        for listing in listings
    )
    build = partial(ResNet50, len(listings[0].classes), channels=channels, zero_gamma=zero_gamma)
    with naming_lost_decoders():
        result = fit(
            training, build, trained, held_out, settings, threads=None, problem=PROBLEM, report=options["report"]
        )  # fmt: skip
    if trained.skipped or held_out.skipped:
        log.warning("rank %d skipped %d unreadable images of training and %d of evaluation",
                    training.rank, trained.skipped, held_out.skipped)  # fmt: skip
    return result


def with_published(epochs: int | None, options: LoopOptions, published: str, steps: int) -> tuple[int, LoopOptions]:
    """The number of epochs, and the options with the published ones in place of those that are None.

    Args:
        steps: in an epoch.

    Raises:
        JobError: nothing is published under this name.
    """
    if published not in SCHEDULES:
        raise JobError(f"published: unknown {shown(published)}; {nearest(published, SCHEDULES)}")
    own = {name: options[name] for name in LEFT_OPEN if options[name] is not None}  # type: ignore[literal-required]
    of_thor = SCHEDULES[published]
    if options["optimizer"] == "thor":
        epochs = of_thor.epochs if epochs is None else epochs
        of_thor = replace(of_thor, lr_init=own.get("learning_rate", of_thor.lr_init))
        over = OverEpochs(of_thor, epochs)
        known = {"learning_rate": of_thor.lr_init, "weight_decay": 5e-4, "schedule": over.learning_rate,
                 "damping": over.damping, "frequency": max(1, steps // REFRESHES)}  # fmt: skip
    elif options["optimizer"] in ("momentum", "sgd"):
        epochs = SGD_EPOCHS if epochs is None else epochs
        share = epochs / SGD_EPOCHS
        known = SGD | {"milestones": tuple(share * each for each in SGD["milestones"]), "warmup_epochs": 5 * share}
    else:
        epochs, known = SGD_EPOCHS if epochs is None else epochs, {}
    return epochs, {**options, **UNUSED, **known, **own}  # type: ignore[typeddict-item]


def read_folders(data: str | Path) -> tuple[Listing, Listing]:
    """The images of `data`/train and of `data`/val, which has the same classes.

    Raises:
        NotFoundError: one of the folders is missing.
        JobError: they are not laid out in classes, a class has no images, or `val` has other classes.
    """
    trained = list_images(Path(data) / "train")
    held_out = list_images(Path(data) / "val", trained.classes)
    for listing in (trained, held_out):
        if listing.ignored:
            log.warning("%d files in %s are no images and are left out", listing.ignored, shown(listing.root))
    return trained, held_out


def make_problem(
    data: str | Path,
    weights: str | Path | None = None,
    *,
    split: Split = "train",
    side: int = SIDE,
    channels: int = 64,
    seed: int = 0,
) -> Problem:
    """The landscape's problem: cross-entropy and accuracy over the images of `split`, the middle of each.

    Args:
        weights: a file with the weights that are the origin unless the job names a snapshot; default: the initial
            weights of `seed`.
        side: of the network's input in pixels.
        channels: of the network's first stage.
    """
    if split not in get_args(Split):
        raise JobError(f"split: unknown {shown(split)}; {nearest(split, get_args(Split))}")
    check_whole("side", side, SMALLEST_SIDE)
    listing = list_images(Path(data) / split)
    model = initial_or_given(seeded(partial(ResNet50, len(listing.classes), channels=channels), seed), weights)
    images = EvaluatedImages(listing, side)
    return Problem.supervised(model, images, nn.functional.cross_entropy, ("accuracy", "top5"))


def problem() -> Problem:
    """The callback `landscape.recipes.imagefolder:problem`: LANDSCAPE_IMAGES names the folder with train and val.

    Image size and channels are those that `train` recorded in the job's run. LANDSCAPE_WEIGHTS names a file of weights.
    """
    data = data_from_environment(DATA_VARIABLE, DATA)
    return make_problem(data, weights_from_environment(), **options_of_run(make_problem))


def _extend(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--optimizer", default="thor", help="thor, momentum, sgd, adam or adagrad")
    parser.add_argument("--batch-size", type=int, default=BATCH_SIZE)
    parser.add_argument("--side", type=int, default=SIDE, help="of the network's input in pixels")
    parser.add_argument("--channels", type=int, default=64, help="of the network's first stage")
    parser.add_argument("--decoders", type=int, default=4, help="processes that decode images")
    parser.add_argument("--unreadable", choices=get_args(Unreadable), default="refuse")


main = main_of(__doc__, train, data="folder with train/class/*.jpeg and val/class/*.jpeg", extend=_extend)

if __name__ == "__main__":
    main()
