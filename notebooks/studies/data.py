"""Which images a study has: MNIST and CIFAR-10 from the folder LANDSCAPE_DATA, else scikit-learn's digits."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from landscape.core.errors import NotFoundError
from landscape.recipes.cifar10 import read_cifar10, transform
from landscape.recipes.data import COMMON_VARIABLE, Images, SampleDraws, Transform, as_stored, read_mnist
from landscape.recipes.digits import read_digits
from landscape.recipes.mnist import Scaling, network_input
from studies.settings import choose

SPLIT_SEED = 0
SCALING: Scaling = "resize"
HELD_OUT = 2000  # of MNIST's 10,000 test images, where the folder has no others
MOST_HELD_OUT, FEW_HELD_OUT = 2048, 64
DIGITS = "scikit-learn's digits"


@dataclass(frozen=True)
class StudyData:
    """The images of a study.

    Attributes:
        name: of the data set, as outputs say it.
        slug: of the data set, as folders are named.
        note: what is particular about this part of it; empty where nothing is.
        training, held_out: images as `transform` takes them, and labels.
        transform: makes the network's input, augmented while training where that is usual.
    """

    name: str
    slug: str
    note: str
    training: Images = field(repr=False)
    held_out: Images = field(repr=False)
    transform: Transform = field(repr=False, default=as_stored)

    @property
    def channels(self) -> int:
        """1 of grey images, 3 of coloured ones."""
        return int(self.training[0].shape[1])

    def inputs(self) -> Images:
        """The training images as the network takes them, not augmented, and their labels."""
        return self.transform(self.training[0], None), self.training[1]

    def __str__(self) -> str:
        counts = f"{len(self.training[1]):,} images to train on, {len(self.held_out[1]):,} held out"
        return f"data: {self.name}, {counts}" + (f" ({self.note})" if self.note else "")


def handwriting(most: int | None = None) -> StudyData:
    """Grey digits of 32 × 32: MNIST where LANDSCAPE_DATA has it, else scikit-learn's.

    Args:
        most: training images that are taken, the first ones; default: all.
    """
    folder = _folder()
    if folder is None:
        training, held_out = _digits()
        return StudyData(DIGITS, "digits", f"{COMMON_VARIABLE} is not set", _first(training, most), held_out)
    try:
        training, note = network_input(read_mnist(folder, "train"), SCALING), ""
        held_out = network_input(read_mnist(folder, "test"), SCALING)
    except NotFoundError:
        images, labels = network_input(read_mnist(folder, "test"), SCALING)
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(SPLIT_SEED))
        held, kept = order[:HELD_OUT], order[HELD_OUT:]
        training, held_out = (images[kept], labels[kept]), (images[held], labels[held])
        note = "of its 10,000 test images: the folder has no others"
    return StudyData("MNIST", "mnist", note, _first(training, most), held_out)


def photographs(most: int | None = None, *, halved: bool = False) -> StudyData:
    """Coloured images of 32 × 32: CIFAR-10 where LANDSCAPE_DATA has it, else scikit-learn's digits in three channels.

    Args:
        most: training images that are taken, the first ones; default: all.
        halved: reduce them to 16 × 16, the mean of each four pixels, so that a network costs a quarter.

    Raises:
        NotFoundError: the folder has neither the binary version nor npz files of CIFAR-10.
    """
    folder = _folder()
    if folder is None:
        training, held_out = _digits()
        note = f"{COMMON_VARIABLE} is not set; the same grey in three channels"
        whole = StudyData(DIGITS, "digits", note, _coloured(_first(training, most)), _coloured(held_out))
    else:
        training, held_out = _read_cifar10(folder)
        images = _first(training, most), _first(held_out, MOST_HELD_OUT)
        whole = StudyData("CIFAR-10", "cifar10", "", *images, transform)
    return _halved(whole) if halved else whole


def _halved(data: StudyData) -> StudyData:
    def half(images: Tensor, draws: SampleDraws | None) -> Tensor:
        return nn.functional.avg_pool2d(data.transform(images, draws), 2)

    note = "; ".join(filter(None, (data.note, "reduced to 16 × 16")))
    return replace(data, note=note, transform=half)


def _folder() -> Path | None:
    named = os.environ.get(COMMON_VARIABLE)
    return Path(named) if named else None


def _digits() -> tuple[Images, Images]:
    """Scikit-learn's, in a small study few of those that are held out."""
    training, held_out = read_digits()
    return training, _first(held_out, choose(None, FEW_HELD_OUT))


def _read_cifar10(folder: Path) -> tuple[Images, Images]:
    try:
        return read_cifar10(folder, "train"), read_cifar10(folder, "test")
    except NotFoundError as error:
        raise NotFoundError(f"{error}; or unset {COMMON_VARIABLE}") from None


def _first(images: Images, most: int | None) -> Images:
    return images[0][:most], images[1][:most]


def _coloured(images: Images) -> Images:
    return images[0].expand(-1, 3, -1, -1).contiguous(), images[1]
