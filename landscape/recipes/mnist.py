"""LeNet-5 on MNIST, read from its idx files in a folder: training and callback.

python -m landscape.recipes.mnist --data mnist/ --run runs/mnist
"""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from landscape.core.errors import JobError, NotFoundError, nearest, quoted
from landscape.core.files import Place
from landscape.problem.terms import Problem
from landscape.recipes.command import image_problem, main_of, problem_of_run
from landscape.recipes.data import DataPlace, class_numbers
from landscape.recipes.lenet import OF_OPTIMIZERS, SIDE, LeNet5
from landscape.recipes.options import ImageRecipe, takes_loop_options
from landscape.recipes.training import Images, Trained
from landscape.training.training import Training

Scaling = Literal["pad", "resize"]
Split = Literal["train", "test"]

PLACE = DataPlace("the folder with MNIST's files", "LANDSCAPE_MNIST")
INTERVALS = ((1, 2, 3), (7, 8, 9, 10))  # those of MindSpore's tutorial
RECIPE = ImageRecipe(PLACE, "landscape.recipes.mnist:problem", INTERVALS)
PIXELS, CLASSES = 28, 10
MEAN, DEVIATION = 0.1307, 0.3081
FILE_STEMS: dict[str, str] = {"train": "train", "test": "t10k"}
IDX_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_mnist(folder: str | Path, split: Split = "train") -> Images:
    """The images, uint8 [N, 28, 28], and labels, int64 [N], of one split.

    Args:
        folder: holds MNIST's four idx files, or the two of this split, gzipped or not.

    Raises:
        NotFoundError: a file is not there.
        JobError: a file is no idx file, images and labels differ in number, or they are of another kind than MNIST's.
    """
    if split not in FILE_STEMS:
        raise JobError(f"split: unknown {quoted(split)}; {nearest(split, FILE_STEMS)}")
    stem = FILE_STEMS[split]
    images = read_idx(_find(Path(folder), f"{stem}-images-idx3-ubyte"))
    labels = read_idx(_find(Path(folder), f"{stem}-labels-idx1-ubyte"))
    if images.ndim != 3 or labels.shape != images.shape[:1]:
        raise JobError(
            f"data: {quoted(str(folder))} must hold N images and N labels, not {images.shape} and {labels.shape}"
        )
    if images.dtype != np.uint8 or images.shape[1:] != (PIXELS, PIXELS) or not len(images):
        raise JobError(
            f"data: {quoted(str(folder))} must hold uint8 images of 28×28, not {images.dtype} {images.shape}; "
            "name the folder that has MNIST's files"
        )
    return torch.from_numpy(images), class_numbers(labels, CLASSES, folder)


def _find(folder: Path, name: str) -> Path:
    """The file under one of its usual names, compressed or not."""
    spellings = [spelling + end for spelling in (name, name.replace("-idx", ".idx")) for end in ("", ".gz")]
    for spelling in spellings:
        if (folder / spelling).is_file():
            return folder / spelling
    raise NotFoundError(
        f"data: {quoted(str(folder))} has no file {name} or {name}.gz; name the folder that has MNIST's files"
    )


def read_idx(path: Path) -> np.ndarray:
    """The array in an idx file, raw or gzipped: two zero bytes, type, number of dimensions, sizes, values.

    Raises:
        JobError: the file is of another format, or shorter or longer than its header says.
    """
    try:
        content = path.read_bytes()
        content = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
    except (OSError, EOFError, zlib.error) as error:
        raise JobError(f"data: {quoted(str(path))} cannot be read: {error}") from None
    header = 4 + 4 * content[3] if len(content) >= 4 else 4
    if len(content) < header or content[:2] != b"\0\0" or content[2] not in IDX_TYPES:
        raise JobError(f"data: {quoted(str(path))} is no idx file: it begins with {content[:4].hex() or 'nothing'}")
    kind = np.dtype(IDX_TYPES[content[2]])
    shape = tuple(int(size) for size in np.frombuffer(content[4:header], ">u4"))
    expected = header + math.prod(shape) * kind.itemsize
    if len(content) != expected:
        raise JobError(f"data: {quoted(str(path))} must have {expected} bytes for shape {shape}, not {len(content)}")
    return np.frombuffer(content, kind, offset=header).reshape(shape).astype(kind.newbyteorder("="))


def scale(images: Tensor, scaling: Scaling = "resize") -> Tensor:
    """uint8 [N, 28, 28] → normalised float32 [N, 1, 32, 32]: "pad" adds 2 black pixels around, "resize" is bilinear.

    Raises:
        JobError: another scaling.
    """
    if scaling not in get_args(Scaling):
        raise JobError(f"scaling: unknown {quoted(scaling)}; {nearest(scaling, get_args(Scaling))}")
    values = images.unsqueeze(1).to(torch.float32) / 255
    if scaling == "pad":
        margin = (SIDE - images.shape[-1]) // 2
        values = nn.functional.pad(values, (margin,) * 4)
    else:
        values = nn.functional.interpolate(values, size=(SIDE, SIDE), mode="bilinear")
    return (values - MEAN) / DEVIATION


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
    **options: Any,
) -> Trained:
    """Train LeNet-5 with the collector at the epochs of `intervals`; accuracy is taken on the test images.

    Called again after an interruption it goes on from the last checkpoint, to the same bits.

    Args:
        run: the run's folder or URL, or a `Training`.
        data: the folder with MNIST's idx files, .gz or not; default: see `DataPlace`.
        split: the images to train on.
        scaling: how 28×28 becomes 32×32, see `scale`.
        options: those of `Settings` and `RecipeOptions`; the default `intervals` are the tutorial's, and end with it.

    Raises:
        NotFoundError: a file of the data is missing.
        JobError: the files are not MNIST's, or the run holds another trajectory.
    """

    def read(path: str, part: Split) -> Images:
        return network_input(read_mnist(path, part), scaling)

    return RECIPE.train(run, data, epochs, options, LeNet5, read, split=split, scaling=scaling)


def network_input(images: Images, scaling: Scaling) -> Images:
    """Images of MNIST's size as the network takes them, with their labels."""
    return scale(images[0], scaling), images[1]


def make_problem(
    data: str | Path,
    weights: str | Path | None = None,
    *,
    scaling: Scaling = "resize",
    split: Split = "train",
    seed: int = 0,
) -> Problem:
    """The landscape's problem: cross-entropy and accuracy over the images of `split`.

    Args:
        weights: a file with the weights that are the origin unless the job names a snapshot; default: the initial
            weights of `seed`.
    """
    return image_problem(LeNet5, network_input(read_mnist(data, split), scaling), weights, seed)


def problem() -> Problem:
    """The callback `landscape.recipes.mnist:problem`: the images that the job's run was trained on, scaled as then.

    LANDSCAPE_MNIST names another folder, LANDSCAPE_WEIGHTS a file of weights.
    """
    return problem_of_run(make_problem, PLACE)


main = main_of(__doc__, train)

if __name__ == "__main__":
    main()
