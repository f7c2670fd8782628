"""ResNet-50 v1.5 on photographs in folders as ImageNet has them, train/class/*.jpeg and val: training and callback.

python -m landscape.recipes.imagefolder --data imagenet/ --run runs/resnet50
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from landscape.core.errors import JobError, nearest, quoted
from landscape.core.files import Place
from landscape.core.validation import check_whole
from landscape.problem.terms import Problem
from landscape.recipes.command import image_problem, main_of, problem_of_run
from landscape.recipes.data import REMEMBERED, DataPlace
from landscape.recipes.images import (
    SIDE,
    EvaluatedImages,
    ImageListing,
    Photographs,
    Unreadable,
    explain_lost_decoders,
    list_images,
)
from landscape.recipes.options import epochs_in_words, for_every_optimizer, make_settings, takes_loop_options
from landscape.recipes.resnet50 import ResNet50
from landscape.recipes.training import Trained, fit, training_of
from landscape.training.distributed import smallest_share, steps_in
from landscape.training.thor.optimizer import SCHEDULES, Schedule
from landscape.training.training import Training

log = logging.getLogger("landscape")

Split = Literal["train", "val"]

PLACE = DataPlace("the folder with train/class/*.jpeg and val/class/*.jpeg", "LANDSCAPE_IMAGES", in_common=False)
PROBLEM = "landscape.recipes.imagefolder:problem"
INTERVALS = (tuple(range(1, 26)), tuple(range(26, 41)))  # the tutorial's for ResNet-50
SHARE = 32  # images on each card in the published trainings
BATCH_SIZE = 8 * SHARE
SMALLEST_SIDE = 32


# How ResNet-50 is trained: the published rates of THOR and of SGD replace options that are None.
DEFAULT = "gpu-8"  # of THOR's trainings
REFRESHES = 6  # of THOR's factors in an epoch: every 834 steps of 5,004
# Goyal et al. (2017), by which SGD comes to 76.3 %: 0.1 for 256 images, scaled with the batch, warmed up for 5 epochs.
EPOCHS, MILESTONES, WARMUP = 90, (30, 60, 80), 5

# The options with each optimiser. One that is None follows from the number of epochs, and of steps in each.
SGD: Mapping[str, Any] = {
    "learning_rate": 0.1, "base_batch": 256, "weight_decay": 1e-4,
    "schedule": "steps", "milestones": None, "warmup_epochs": None,
}  # fmt: skip
THOR: Mapping[str, Any] = {
    "learning_rate": None, "schedule": None, "damping": None, "frequency": None, "factors": None, "weight_decay": 5e-4,
}  # fmt: skip
OF_OPTIMIZERS = {"thor": THOR, "momentum": SGD, "sgd": SGD}
# Descriptions of the options that are None.
THOR_IN_WORDS = {
    "epochs": f"{SCHEDULES[DEFAULT].epochs} as published",
    "learning_rate": f"{SCHEDULES[DEFAULT].lr_init} falling as published",
    "schedule": "the published one",
    "damping": f"{SCHEDULES[DEFAULT].damping(0)} falling as published",
    "frequency": "a sixth of an epoch",
    "factors": f"'{SCHEDULES[DEFAULT].factors}', which the published rates are for",
}
SGD_IN_WORDS = {
    "milestones": f"after {', '.join(map(str, MILESTONES))} of {EPOCHS} epochs",
    "warmup_epochs": f"{WARMUP} of {EPOCHS} epochs",
}


@dataclass(frozen=True)
class OverEpochs:
    """A published schedule of THOR, stretched or squeezed to another number of epochs."""

    published: Schedule
    epochs: int

    def learning_rate(self, epoch: float) -> float:
        """The learning rate after `epoch` epochs of this training."""
        return self.published.learning_rate(epoch * self.published.epochs / self.epochs)

    def damping(self, epoch: float) -> float:
        """The damping after `epoch` epochs of this training."""
        return self.published.damping(epoch * self.published.epochs / self.epochs)


def with_published(
    epochs: int | None, options: Mapping[str, Any], published: str, steps: int
) -> tuple[int, Mapping[str, Any]]:
    """The number of epochs, and the options with published values in place of None.

    Raises:
        JobError: there is no published training of this name.
    """
    if published not in SCHEDULES:
        raise JobError(f"published: unknown {quoted(published)}; {nearest(published, SCHEDULES)}")
    if epochs is not None:
        check_whole("epochs", epochs, 1)
    known: dict[str, Any]
    if options["optimizer"] == "thor":
        of_thor = SCHEDULES[published]
        epochs = of_thor.epochs if epochs is None else epochs
        rate = options["learning_rate"] or of_thor.lr_init
        over = OverEpochs(replace(of_thor, lr_init=rate), epochs)
        known = {"learning_rate": rate, "schedule": over.learning_rate, "damping": over.damping,
                 "frequency": max(1, steps // REFRESHES), "factors": of_thor.factors}  # fmt: skip
    else:
        epochs = EPOCHS if epochs is None else epochs
        share = epochs / EPOCHS
        milestones = tuple(share * milestone for milestone in MILESTONES) if options["schedule"] == "steps" else ()
        known = {"milestones": milestones, "warmup_epochs": WARMUP * share}
    left_open = {name: value for name, value in known.items() if options[name] is None}
    return epochs, {**options, **left_open}


def published_in_words() -> dict[str, dict[str, str]]:
    """Descriptions of the options that are None, by the option's name and the optimiser's."""
    words = {name: {"thor": text} for name, text in THOR_IN_WORDS.items()}
    words |= {name: dict.fromkeys(("momentum", "sgd"), text) for name, text in SGD_IN_WORDS.items()}
    words["epochs"] |= dict.fromkeys(("momentum", "sgd", "adagrad", "adam"), str(EPOCHS))
    return words


@takes_loop_options(
    optimizer="thor", batch_size=BATCH_SIZE, learning_rate=0.1, label_smoothing=0.1, loss_scale=128.0, device="auto",
    num_samples=512, of_optimizers=OF_OPTIMIZERS, only_with={"published": ("thor",)},
    in_words=published_in_words()
    | {"data": for_every_optimizer(PLACE.order), "intervals": for_every_optimizer(epochs_in_words(INTERVALS))},
)  # fmt: skip
def train(
    run: Place | Training,
    data: str | Path | None = None,
    epochs: int | None = None,
    *,
    published: str = DEFAULT,
    side: int = SIDE,
    channels: int = 64,
    zero_gamma: bool = False,
    decoders: int = 4,
    unreadable: Unreadable = "refuse",
    **options: Any,
) -> Trained:
    """Train ResNet-50 with the collector at the epochs of `intervals`; accuracy is taken on the images of `val`.

    With `optimizer` "thor", the default, it uses THOR's published learning rates and dampings, and the factors that
    they were tuned for, refreshed six times an epoch; with "momentum" or "sgd" it uses the rates of Goyal et al.
    (2017). Either schedule is scaled to `epochs`, and an option that is given replaces the published value. A second
    call after an interruption resumes from the last checkpoint.

    Args:
        run: the run's folder or URL, or a `Training`.
        data: the folder with train/class/*.jpeg and val/class/*.jpeg; default: see `DataPlace`.
        epochs: default: those of the published training, 40 with THOR and 90 with SGD.
        published: which of THOR's trainings: a name in `landscape.training.thor.optimizer.SCHEDULES`.
        side: of the network's input in pixels; images are resized to 256/224 of it in evaluation.
        channels: of the network's first stage; 64 are ResNet-50's.
        zero_gamma: begin with every bottleneck passing its input on, see `ResNet50`.
        decoders: processes of each rank that decode images; as many others are for evaluation, idle in between.
        unreadable: whether an image that cannot be read ends the training ("refuse"), or is counted and another taken
            for it ("skip", see `ImageLoader`).
        options: those of `Settings` and `RecipeOptions`; the default `intervals` are the tutorial's, and end with it.

    Raises:
        NotFoundError: a folder of the data is missing.
        JobError: the folders are not laid out in classes, or the run holds another trajectory.
        UnreadableImage: an image cannot be read, and unreadable ones are refused.
    """
    training = training_of(run, seed=options["seed"], device=options["device"], overwrite=options["overwrite"])
    path = PLACE.for_training(data, training.run, overwrite=options["overwrite"])
    check_whole("side", side, SMALLEST_SIDE)
    check_whole("batch_size", options["batch_size"], 1)
    listings = read_folders(path)
    images, classes = len(listings[0]), len(listings[0].classes)
    _refuse_lone_pixels(images, options["batch_size"], training.world, side)
    epochs, chosen = with_published(epochs, options, published, steps_in(images, options["batch_size"]))
    if training.rank == 0:
        tell_untuned(options, chosen, published, training.world)
    network: dict[str, Any] = {"channels": channels, "zero_gamma": zero_gamma, "classes": classes}
    settings = make_settings(training, epochs, chosen, INTERVALS, **network, side=side, images=images)
    trained, held_out = (
        Photographs(listing, side, seed=training.seed, device=training.device, decoders=decoders, unreadable=unreadable)
        for listing in listings
    )
    with explain_lost_decoders():
        result = fit(
            training, partial(ResNet50, **network), trained, held_out, settings, threads=None, problem=PROBLEM,
            report=options["report"], recorded={REMEMBERED: path},
        )  # fmt: skip
    _tell_skipped(training, trained, held_out)
    return result


def tell_untuned(options: Mapping[str, Any], chosen: Mapping[str, Any], published: str, ranks: int) -> None:
    """Warn of published rates or dampings whose factors are not those that they were tuned for.

    Args:
        options: as they were given; None is what was published.
        chosen: the result of `with_published`.
    """
    if chosen["optimizer"] != "thor" or None not in (options["learning_rate"], options["damping"]):
        return
    tuned_for, share = SCHEDULES[published].factors, chosen["batch_size"] / ranks
    if chosen["factors"] != tuned_for:
        log.warning("published: %r has rates for factors %r, not for %r", published, tuned_for, chosen["factors"])
    elif tuned_for != "exact" and share != SHARE:
        log.warning("published: %r has rates for %d images on each rank, on which its factors depend, not for %g",
                    published, SHARE, share)  # fmt: skip


def _tell_skipped(training: Training, trained: Photographs, held_out: Photographs) -> None:
    if trained.skipped or held_out.skipped:
        log.warning("rank %d skipped %d unreadable images of training and %d of evaluation",
                    training.rank, trained.skipped, held_out.skipped)  # fmt: skip


def read_folders(data: str | Path) -> tuple[ImageListing, ImageListing]:
    """The images of `data`/train and of `data`/val, which has the same classes.

    Raises:
        NotFoundError: one of the folders is missing.
        JobError: they are not laid out in classes, a class has no images, or `val` has other classes.
    """
    trained = list_images(Path(data) / "train")
    held_out = list_images(Path(data) / "val", trained.classes)
    for listing in (trained, held_out):
        if listing.ignored:
            log.warning("%d files in %s are no images and are left out", listing.ignored, quoted(listing.root))
    return trained, held_out


def _refuse_lone_pixels(images: int, batch_size: int, ranks: int, side: int) -> None:
    """Refuse a share of one image if the last stage makes it one pixel: batch norm needs several values a channel.

    Raises:
        JobError: a rank has such a share.
    """
    if side == SMALLEST_SIDE and smallest_share(images, batch_size, ranks) == 1:
        raise JobError(
            f"batch_size: must leave no rank one image alone at side {side}, not {batch_size} of {images} images on "
            f"{ranks} rank{'s' if ranks > 1 else ''}; choose another batch_size, or side {side + 1}"
        )


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
        raise JobError(f"split: unknown {quoted(split)}; {nearest(split, get_args(Split))}")
    check_whole("side", side, SMALLEST_SIDE)
    listing = list_images(Path(data) / split)
    build = partial(ResNet50, len(listing.classes), channels=channels)
    return image_problem(build, EvaluatedImages(listing, side), weights, seed, ("accuracy", "top5"))


def problem() -> Problem:
    """The callback `landscape.recipes.imagefolder:problem`: the images that the job's run was trained on.

    Image size and channels are those that `train` recorded in the run. LANDSCAPE_IMAGES names another folder with train
    and val, LANDSCAPE_WEIGHTS a file of weights.
    """
    return problem_of_run(make_problem, PLACE)


main = main_of(__doc__, train)

if __name__ == "__main__":
    main()
