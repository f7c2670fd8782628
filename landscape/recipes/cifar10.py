"""ResNet-(6n+2) on CIFAR-10, read from its binary version or an npz file: training and callback.

python -m landscape.recipes.cifar10 --data cifar-10-batches-bin/ --run runs/resnet20
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from landscape.core.errors import JobError, NotFoundError, message_of, nearest, quoted
from landscape.core.files import Place
from landscape.problem.terms import Problem
from landscape.recipes.command import image_problem, main_of, problem_of_run
from landscape.recipes.data import DataPlace, class_numbers
from landscape.recipes.images import normalise
from landscape.recipes.options import ImageRecipe, takes_loop_options
from landscape.recipes.resnet import ResNet
from landscape.recipes.training import Images, SampleDraws, Trained
from landscape.training.training import Training

Split = Literal["train", "test"]

PLACE = DataPlace("the folder of CIFAR-10's binary version, or an npz file", "LANDSCAPE_CIFAR10")
INTERVALS = (tuple(range(1, 26)), tuple(range(26, 41)))  # the tutorial's: falling fast, then among local optima
RECIPE = ImageRecipe(PLACE, "landscape.recipes.cifar10:problem", INTERVALS, threads=None)
SIDE, MARGIN, CLASSES = 32, 4, 10
DAMAGED = (OSError, EOFError, ValueError, NotImplementedError, zipfile.BadZipFile, zlib.error)  # as numpy reads it
RECORD = 1 + 3 * SIDE * SIDE
FOLDER_OF_THE_ARCHIVE = "cifar-10-batches-bin"
FILE_PATTERNS = {"train": "data_batch_*.bin", "test": "test_batch.bin"}
NPZ_PATTERNS = {"train": "cifar10-train*.npz", "test": "cifar10-test*.npz"}
NPZ_NAMES = {
    "train": (("x_train", "y_train"), ("images", "labels")),
    "test": (("x_test", "y_test"), ("images", "labels")),
}


def read_cifar10(path: str | Path, split: Split = "train") -> Images:
    """Images, uint8 [N, 3, 32, 32], and labels, int64 [N].

    Args:
        path: a folder with data_batch_*.bin and test_batch.bin, or with cifar10-train*.npz and cifar10-test*.npz, of
            which the first is taken; or an npz file. That holds x_train, y_train, x_test and y_test, or images and
            labels, which then serve as either split.

    Raises:
        NotFoundError: there is no such file.
        JobError: the file does not hold CIFAR-10's images.
    """
    if split not in FILE_PATTERNS:
        raise JobError(f"split: unknown {quoted(split)}; {nearest(split, FILE_PATTERNS)}")
    place = Path(path)
    binaries, npz = _find(place, split)
    images, labels = _read_binaries(binaries) if npz is None else _read_npz(npz, split)
    if images.dtype != np.uint8 or images.shape != (len(labels), 3, SIDE, SIDE) or not len(labels):
        raise JobError(
            f"data: {quoted(str(path))} must hold uint8 images of 32×32×3 and a label each, not {images.dtype} "
            f"{images.shape} and {len(labels)} labels"
        )
    return torch.from_numpy(images), class_numbers(labels, CLASSES, place)


def _find(place: Path, split: Split) -> tuple[list[Path], Path | None]:
    """The files of the binary version, or an npz file."""
    if place.is_file():
        return [], place
    binary, npz = FILE_PATTERNS[split], NPZ_PATTERNS[split]
    binaries = sorted(place.glob(binary)) or sorted((place / FOLDER_OF_THE_ARCHIVE).glob(binary))
    archives = sorted(place.glob(npz))
    if not (binaries or archives):
        raise NotFoundError(
            f"data: {quoted(str(place))} has no {binary} or {npz}; name the folder of CIFAR-10's binary version, or an "
            "npz file"
        )
    return binaries, None if binaries else archives[0]


def _read_binaries(files: Sequence[Path]) -> tuple[np.ndarray, np.ndarray]:
    """Records of one label byte and 3,072 bytes of red, green and blue planes."""
    contents = [np.fromfile(file, np.uint8) for file in files]
    for file, content in zip(files, contents, strict=True):
        if len(content) == 0 or len(content) % RECORD:
            raise JobError(f"data: {quoted(str(file))} must hold records of {RECORD} bytes, not {len(content)} bytes")
    records = np.concatenate(contents).reshape(-1, RECORD)
    return np.ascontiguousarray(records[:, 1:]).reshape(-1, 3, SIDE, SIDE), records[:, 0]


def _read_npz(file: Path, split: Split) -> tuple[np.ndarray, np.ndarray]:
    if not zipfile.is_zipfile(file):
        raise JobError(f"data: {quoted(str(file))} is no npz file, or is cut off; numpy.savez makes one")
    try:
        with np.load(file, allow_pickle=False) as arrays:
            names = next((pair for pair in NPZ_NAMES[split] if set(pair) <= set(arrays.files)), None)
            if names is None:
                wanted = " or ".join(" and ".join(pair) for pair in NPZ_NAMES[split])
                raise JobError(
                    f"data: {quoted(str(file))} must hold {wanted}, not {', '.join(arrays.files) or 'nothing'}"
                )
            images, labels = arrays[names[0]], arrays[names[1]].reshape(-1)
    except JobError:
        raise
    except DAMAGED as error:
        raise JobError(f"data: {quoted(str(file))} cannot be read: {message_of(error)}; create it again") from None
    if images.ndim == 4 and images.shape[-1] == 3:
        images = np.ascontiguousarray(images.transpose(0, 3, 1, 2))
    return images, labels


def augment(images: Tensor, draws: SampleDraws) -> Tensor:
    """The images [N, 3, 32, 32], each shifted by up to 4 pixels with black at the edge, and mirrored or not."""
    count, rows = len(images), torch.arange(SIDE, device=images.device)
    drawn = [draws.integers(purpose, bound) for purpose, bound in enumerate((2 * MARGIN + 1, 2 * MARGIN + 1, 2))]
    shifts = torch.stack(drawn[:2]).unsqueeze(2).to(images.device)
    mirrored = drawn[2].unsqueeze(1).to(images.device) == 1
    padded = nn.functional.pad(images, (MARGIN,) * 4)
    columns = torch.where(mirrored, rows.flip(0), rows) + shifts[1]
    image = torch.arange(count, device=images.device).view(-1, 1, 1)
    return padded[image, :, (rows + shifts[0]).unsqueeze(2), columns.unsqueeze(1)].permute(0, 3, 1, 2)


def transform(images: Tensor, draws: SampleDraws | None) -> Tensor:
    """The network's input; augmented while training."""
    return normalise(images if draws is None else augment(images, draws))


class NormalisedImages(Dataset[tuple[Tensor, Tensor]]):
    """Images, each normalised when it is read: all normalised images would take 600 MB."""

    def __init__(self, images: Images) -> None:
        self.images, self.labels = images

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return normalise(self.images[index]), self.labels[index]


# THOR's follow from trials with ResNet-20, for 10 epochs on 8,000 of the images: docs/bench.md.
@takes_loop_options(
    in_words=RECIPE.in_words, batch_size=128, learning_rate=0.1, weight_decay=1e-4, device="auto",
    of_optimizers={
        "thor": {"learning_rate": 0.002, "first_order": 25.0, "damping": 0.001, "frequency": 20, "balance": True,
                 "weight_decay": 5e-4}
    },
)  # fmt: skip
def train(
    run: Place | Training,
    data: str | Path | None = None,
    epochs: int = 40,
    *,
    depth: int = 20,
    width: int = 1,
    shortcuts: bool = True,
    split: Split = "train",
    **options: Any,
) -> Trained:
    """Train a ResNet with the collector at the epochs of `intervals`; accuracy is taken on the test images.

    A second call after an interruption resumes from the last checkpoint.

    Args:
        run: the run's folder or URL, or a `Training`.
        data: the folder of CIFAR-10's binary version, or an npz file (`read_cifar10`); default: see `DataPlace`.
        depth: 6n+2 layers.
        width: multiplies the channels.
        shortcuts: False takes the skip connections away.
        split: the images to train on.
        options: those of `Settings` and `RecipeOptions`; the default `intervals` are the tutorial's, and end with it.

    Raises:
        NotFoundError: a file of the data is missing.
        JobError: the files are not CIFAR-10's, or the run holds another trajectory.
    """
    network: dict[str, Any] = {"depth": depth, "width": width, "shortcuts": shortcuts}
    build = partial(ResNet, **network)
    return RECIPE.train(
        run, data, epochs, options, build, read_cifar10, split=split, transform=transform, **network
    )  # fmt: skip


def make_problem(
    data: str | Path,
    weights: str | Path | None = None,
    *,
    depth: int = 20,
    width: int = 1,
    shortcuts: bool = True,
    split: Split = "train",
    seed: int = 0,
) -> Problem:
    """The landscape's problem: cross-entropy and accuracy over the images of `split`, without augmentation.

    Args:
        weights: a file with the weights that are the origin unless the job names a snapshot; default: the initial
            weights of `seed`.
    """
    build = partial(ResNet, depth, width, shortcuts=shortcuts)
    return image_problem(build, NormalisedImages(read_cifar10(data, split)), weights, seed)


def problem() -> Problem:
    """The callback `landscape.recipes.cifar10:problem`: the images that the job's run was trained on.

    The network has the depth, the width and the shortcuts that `train` recorded in the run; if nothing is recorded, it
    is a ResNet-20. LANDSCAPE_CIFAR10 names another folder or npz file, LANDSCAPE_WEIGHTS a file of weights.
    """
    return problem_of_run(make_problem, PLACE)


main = main_of(__doc__, train)

if __name__ == "__main__":
    main()
