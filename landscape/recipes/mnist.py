"""LeNet-5 on MNIST, read from its idx files in a folder: training and callback.

python -m landscape.recipes.mnist --data mnist/ --run runs/mnist
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from landscape.core.errors import JobError, nearest, quoted
from landscape.core.files import Place
from landscape.core.validation import check_whole
from landscape.problem.terms import Problem
from landscape.recipes.command import image_problem, main_of, problem_of_run
from landscape.recipes.data import MNIST, MNIST_DEVIATION, MNIST_INTERVALS, MNIST_MEAN, Images, Split, read_mnist
from landscape.recipes.lenet import OF_OPTIMIZERS, SIDE, LeNet5
from landscape.recipes.options import ImageRecipe, takes_loop_options
from landscape.recipes.training import Trained
from landscape.training.training import Training

Scaling = Literal["pad", "resize", "resize-uint8"]

RECIPE = ImageRecipe(MNIST, "landscape.recipes.mnist:problem", MNIST_INTERVALS)


def scale(images: Tensor, scaling: Scaling = "resize") -> Tensor:
    """uint8 [N, 28, 28] → normalised float32 [N, 1, 32, 32].

    "pad" adds 2 black pixels around; "resize" is bilinear; "resize-uint8" is bilinear with pixels rounded to uint8, to
    the bit as OpenCV and MindSpore's `vision.Resize` do it.

    Raises:
        JobError: another scaling.
    """
    if scaling not in get_args(Scaling):
        raise JobError(f"scaling: unknown {quoted(scaling)}; {nearest(scaling, get_args(Scaling))}")
    if scaling == "resize-uint8":
        images = _resize_uint8(images, SIDE)
    values = images.unsqueeze(1).to(torch.float32) / 255
    if scaling == "pad":
        margin = (SIDE - images.shape[-1]) // 2
        values = nn.functional.pad(values, (margin,) * 4)
    elif scaling == "resize":
        values = nn.functional.interpolate(values, size=(SIDE, SIDE), mode="bilinear")
    return (values - MNIST_MEAN) / MNIST_DEVIATION


BITS = 11  # of OpenCV's fixed-point weights


def _resize_uint8(images: Tensor, side: int) -> Tensor:
    """uint8 [N, H, W] → uint8 [N, side, side], bilinear as OpenCV's vectorised code: 11-bit weights, sums cut off."""
    left, right, before, after = _taps(images.shape[-1], side)
    pixels = images.to(torch.int32)
    rows = (pixels[..., left] * before + pixels[..., right] * after) >> 4
    top, bottom, before, after = _taps(images.shape[-2], side)
    sums = ((rows[..., top, :] * before[:, None]) >> 16) + ((rows[..., bottom, :] * after[:, None]) >> 16)
    return ((sums + 2) >> 2).clamp(0, 255).to(torch.uint8)


def _taps(size: int, side: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """For each of `side` pixels its two neighbours among `size`, and their weights, which add up to 2¹¹.

    At a border both are the outermost pixel: as each product is cut off, its weights in a column are still two.
    """
    places = ((torch.arange(side, dtype=torch.float64) + 0.5) * (size / side) - 0.5).to(torch.float32)
    first = places.floor()
    share = places - first
    weights = ((1 << BITS) * torch.stack([1 - share, share])).round().to(torch.int32)
    near, far = ((first.long() + step).clamp(0, size - 1) for step in (0, 1))
    return near, far, weights[0], weights[1]


@takes_loop_options(
    in_words=RECIPE.in_words, of_optimizers=OF_OPTIMIZERS, batch_size=32, learning_rate=0.01, schedule="constant"
)  # fmt: skip
def train(
    run: Place | Training,
    data: str | Path | None = None,
    epochs: int = 10,
    *,
    scaling: Scaling = "resize",
    split: Split = "train",
    conv_bias: bool = True,
    **options: Any,
) -> Trained:
    """Train LeNet-5 with the collector at the epochs of `intervals`; accuracy is taken on the test images.

    A second call after an interruption resumes from the last checkpoint, and ends with the same bits.

    Args:
        run: the run's folder or URL, or a `Training`.
        data: the folder with MNIST's idx files, .gz or not; default: see `DataPlace`.
        split: the images to train on.
        scaling: how 28×28 becomes 32×32, see `scale`.
        conv_bias: whether convolutions have biases; MindSpore's have none by default.
        options: those of `Settings` and `RecipeOptions`; the default `intervals` are the tutorial's, and end with it.

    Raises:
        NotFoundError: a file of the data is missing.
        JobError: the files are not MNIST's, or the run holds another trajectory.
    """

    def read(path: str, part: Split) -> Images:
        return network_input(read_mnist(path, part), scaling)

    build = partial(LeNet5, conv_bias=conv_bias)
    # Recorded only where it differs, so that trainings begun before it was an option go on.
    network: dict[str, Any] = {"scaling": scaling} | ({} if conv_bias else {"conv_bias": False})
    return RECIPE.train(run, data, epochs, options, build, read, split=split, **network)


def network_input(images: Images, scaling: Scaling) -> Images:
    """Images of MNIST's size as the network takes them, with their labels."""
    return scale(images[0], scaling), images[1]


def make_problem(
    data: str | Path,
    weights: str | Path | None = None,
    *,
    scaling: Scaling = "resize",
    split: Split = "train",
    conv_bias: bool = True,
    first: int | None = None,
    seed: int = 0,
) -> Problem:
    """The landscape's problem: cross-entropy and accuracy over the images of `split`.

    Args:
        weights: a file with the weights that are the origin unless the job names a snapshot; default: the initial
            weights of `seed`.
        scaling, conv_bias: see `train`.
        first: so many images from the beginning of the split, as MindSpore's SummaryLandscape takes them; default: all.
    """
    images = network_input(_first_of(read_mnist(data, split), first), scaling)
    return image_problem(partial(LeNet5, conv_bias=conv_bias), images, weights, seed)


def _first_of(images: Images, count: int | None) -> Images:
    if count is None:
        return images
    check_whole("first", count, 1)
    return images[0][:count], images[1][:count]


def problem() -> Problem:
    """The callback `landscape.recipes.mnist:problem`: the images that the job's run was trained on, scaled as then.

    LANDSCAPE_MNIST names another folder, LANDSCAPE_WEIGHTS a file of weights.
    """
    return problem_of_run(make_problem, MNIST)


main = main_of(__doc__, train)

if __name__ == "__main__":
    main()
