"""LeNet-5 on scikit-learn's 1,797 real handwritten digits, which need no download: training and callback.

python -m landscape.recipes.digits --run runs/digits
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from landscape.core.errors import LandscapeError
from landscape.core.files import Place
from landscape.problem.terms import Problem
from landscape.recipes.command import image_problem, main_of, weights_from_environment
from landscape.recipes.lenet import OF_OPTIMIZERS, SIDE, LeNet5
from landscape.recipes.options import epochs_in_words, for_every_optimizer, make_settings, takes_loop_options
from landscape.recipes.training import Arrays, Images, Trained, fit, training_of
from landscape.training.training import Training

PROBLEM = "landscape.recipes.digits:problem"
INTERVALS = ((0, 1, 2, 3), (7, 8, 9, 10))
HELD_OUT = 360
SPLIT_SEED = 0
MEAN, DEVIATION = 0.3056, 0.3237  # of the training digits at 32×32, pixels in [0, 1]


def read_digits() -> tuple[Images, Images]:
    """Training (1,437) and held-out (360) digits, always the same ones: float32 [N, 1, 32, 32] and labels int64 [N].

    Raises:
        LandscapeError: scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise LandscapeError(
            "the digits come with scikit-learn, which is not installed: pip install 'loss-landscape-cluster[recipes]'"
        ) from None
    data = load_digits()
    images = enlarge(torch.from_numpy(data.images).to(torch.float32))
    targets = torch.from_numpy(data.target).to(torch.int64)
    order = torch.randperm(len(targets), generator=torch.Generator().manual_seed(SPLIT_SEED))
    training, held_out = order[HELD_OUT:].sort().values, order[:HELD_OUT].sort().values
    return (images[training], targets[training]), (images[held_out], targets[held_out])


def enlarge(images: Tensor) -> Tensor:
    """[N, 8, 8] grey values from 0 to 16 → normalised [N, 1, 32, 32], bilinear."""
    scaled = nn.functional.interpolate(images.unsqueeze(1) / 16, size=(SIDE, SIDE), mode="bilinear")
    return (scaled - MEAN) / DEVIATION


@takes_loop_options(
    in_words={"intervals": for_every_optimizer(epochs_in_words(INTERVALS))}, of_optimizers=OF_OPTIMIZERS, batch_size=16,
    learning_rate=0.01, final=0.2, num_samples=1024,
)  # fmt: skip
def train(run: Place | Training, epochs: int = 10, **options: Any) -> Trained:
    """Train LeNet-5 with the collector at the epochs of `intervals`; seconds on one CPU core.

    A second call after an interruption resumes from the last checkpoint, and ends with the same bits; after a finished
    training it returns at once.

    Args:
        run: the run's folder or URL, or a `Training`.
        options: those of `Settings` and `RecipeOptions`; the default `intervals` are `INTERVALS`, moved to end with it.

    Raises:
        JobError: the run holds another trajectory, or was begun with other settings.
    """
    training = training_of(run, seed=options["seed"], device=options["device"], overwrite=options["overwrite"])
    settings = make_settings(training, epochs, options, INTERVALS)
    data, held_out = (Arrays(images, device=training.device) for images in read_digits())
    return fit(training, LeNet5, data, held_out, settings, problem=PROBLEM, report=options["report"])


def make_problem(weights: str | Path | None = None, seed: int = 0) -> Problem:
    """The landscape's problem: cross-entropy and accuracy over the 1,437 training digits.

    Args:
        weights: a file with the weights that are the origin unless the job names a snapshot; default: the initial
            weights of `seed`.
    """
    return image_problem(LeNet5, read_digits()[0], weights, seed)


def problem() -> Problem:
    """The callback `landscape.recipes.digits:problem`; LANDSCAPE_WEIGHTS names a file of weights, if set."""
    return make_problem(weights_from_environment())


main = main_of(__doc__, train)

if __name__ == "__main__":
    main()
