"""The two-layer convolutional network with dropout that landscape articles train on MNIST: training and callback.

python -m landscape.recipes.cnn --data mnist/ --run runs/cnn
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from landscape.core.errors import JobError, quoted
from landscape.core.files import Place
from landscape.core.validation import is_number
from landscape.problem.terms import Problem
from landscape.recipes.command import image_problem, main_of, problem_of_run
from landscape.recipes.data import MNIST, MNIST_DEVIATION, MNIST_INTERVALS, MNIST_MEAN, Images, Split, read_mnist
from landscape.recipes.lenet import OF_OPTIMIZERS
from landscape.recipes.options import ImageRecipe, takes_loop_options
from landscape.recipes.training import Trained
from landscape.training.training import Training

RECIPE = ImageRecipe(MNIST, "landscape.recipes.cnn:problem", MNIST_INTERVALS)
SMALLEST = 4  # pixels a side: two poolings leave one


class CNN(nn.Module):
    """Grey images [N, 1, side, side] → logits [N, classes]; 3,274,634 parameters for MNIST's 28×28 and 10 classes.

    A 5×5 convolution with 32 channels, another with 64, each followed by ReLU and 2×2 max-pooling, 1,024 dense units
    with ReLU and dropout, and the output. The convolutions keep the size of the image by padding.

    Args:
        side: of the images in pixels; 28 are MNIST's, 32 those of `landscape.recipes.digits`.
        dropout: the share of the dense units that are left out in training.

    Raises:
        JobError: side is below 4, or dropout is not from 0 to below 1.
    """

    def __init__(self, classes: int = 10, *, side: int = 28, dropout: float = 0.5) -> None:
        super().__init__()
        if side < SMALLEST:
            raise JobError(f"side: must be at least {SMALLEST}, not {side}")
        if not is_number(dropout) or not 0 <= dropout < 1:
            raise JobError(f"dropout: must be from 0 to below 1, not {quoted(dropout)}")
        self.conv1 = nn.Conv2d(1, 32, 5, padding=2)
        self.conv2 = nn.Conv2d(32, 64, 5, padding=2)
        self.fc1 = nn.Linear(64 * (side // 4) ** 2, 1024)
        self.dropout = nn.Dropout(dropout)
        self.fc2 = nn.Linear(1024, classes)

    def forward(self, images: Tensor) -> Tensor:
        """The logits [N, classes] of images [N, 1, side, side]."""
        hidden = nn.functional.max_pool2d(torch.relu(self.conv1(images)), 2)
        hidden = nn.functional.max_pool2d(torch.relu(self.conv2(hidden)), 2).flatten(1)
        return self.fc2(self.dropout(torch.relu(self.fc1(hidden))))  # type: ignore[no-any-return]


@takes_loop_options(
    in_words=RECIPE.in_words, of_optimizers=OF_OPTIMIZERS, batch_size=64, learning_rate=0.01, schedule="constant"
)  # fmt: skip
def train(
    run: Place | Training,
    data: str | Path | None = None,
    epochs: int = 10,
    *,
    dropout: float = 0.5,
    split: Split = "train",
    **options: Any,
) -> Trained:
    """Train the network on MNIST, with the collector at the epochs of `intervals`; accuracy is of the test images.

    By default as an article does: SGD with momentum 0.9, batches of 64, a constant rate of 0.01. A second call after
    an interruption resumes from the last checkpoint.

    Args:
        run: the run's folder or URL, or a `Training`.
        data: the folder with MNIST's idx files; default: see `DataPlace`.
        dropout: the share of the dense units that are left out at each step.
        split: the images to train on.
        options: those of `Settings` and `RecipeOptions`; the default `intervals` are the tutorial's, and end with it.

    Raises:
        NotFoundError: a file of the data is missing.
        JobError: the files are not MNIST's, or the run holds another trajectory.
    """
    build = partial(CNN, dropout=dropout)
    return RECIPE.train(run, data, epochs, options, build, read_inputs, split=split, dropout=dropout)


def read_inputs(folder: str | Path, split: Split) -> Images:
    """The images of one split as the network takes them, float32 [N, 1, 28, 28], and their labels."""
    return network_input(read_mnist(folder, split))


def network_input(images: Images) -> Images:
    """uint8 [N, 28, 28] → normalised float32 [N, 1, 28, 28], with the labels."""
    return (images[0].unsqueeze(1).to(torch.float32) / 255 - MNIST_MEAN) / MNIST_DEVIATION, images[1]


def make_problem(
    data: str | Path, weights: str | Path | None = None, *, split: Split = "train", seed: int = 0
) -> Problem:
    """The landscape's problem: cross-entropy and accuracy over the images of `split`, without dropout.

    Args:
        weights: a file with the weights that are the origin unless the job names a snapshot; default: the initial
            weights of `seed`.
    """
    return image_problem(CNN, read_inputs(data, split), weights, seed)


def problem() -> Problem:
    """The callback `landscape.recipes.cnn:problem`: the images that the job's run was trained on.

    LANDSCAPE_MNIST names another folder, LANDSCAPE_WEIGHTS a file of weights.
    """
    return problem_of_run(make_problem, MNIST)


main = main_of(__doc__, train)

if __name__ == "__main__":
    main()
