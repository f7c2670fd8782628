"""The data of recipes: their place, MNIST's files, labels, and batches with random draws for augmentation."""

from __future__ import annotations

import gzip
import logging
import math
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from landscape.core.errors import JobError, NotFoundError, nearest, quoted
from landscape.core.files import Place
from landscape.model.run_files import read_network
from landscape.problem.network import network_options

COMMON_VARIABLE = "LANDSCAPE_DATA"
REMEMBERED = "data"  # the key of the data's place in the run's record
log = logging.getLogger("landscape")


@dataclass(frozen=True)
class DataPlace:
    """How the data of a recipe are found.

    The recipe's own environment variable takes precedence over the path that a run remembers: the run may come from
    another machine. LANDSCAPE_DATA, which all recipes share, comes last.

    Args:
        what: a description of the data for messages: "the folder with …".
        variable: the environment variable that names their place.
        in_common: whether the folder LANDSCAPE_DATA may hold them.
    """

    what: str
    variable: str
    in_common: bool = True

    def for_training(self, given: str | Path | None, run: Place, *, overwrite: bool = False) -> str:
        """The absolute path of the data to train on.

        Args:
            run: may remember the data of its training; if it resumes with others, a warning is logged.
            overwrite: whether the run starts over and its remembered data are ignored.

        Raises:
            JobError: no data are named.
            NotFoundError: the path that the run remembers does not exist, and no variable names the data.
        """
        remembered = None if overwrite else _remembered_by(run)
        named = given or os.environ.get(self.variable)
        path = named or self._remembered_or_common(remembered, "give data, or ")
        if not path:
            raise JobError(f"data: must name {self.what}; give it, or set the environment variable {self._variables}")
        path = os.path.abspath(path)
        if named and remembered and path != remembered:
            log.warning("data: the run was trained on %s, and is now on %s", quoted(remembered), quoted(path))
        return path

    def for_callback(self) -> str:
        """The path of the data of a job's run, for its callback, which takes no arguments.

        Raises:
            JobError: no data are named.
            NotFoundError: the path that the run remembers does not exist, and no variable names the data.
        """
        path = os.environ.get(self.variable) or self._remembered_or_common(_as_path(network_options()))
        if not path:
            raise JobError(
                f"problem: the environment variable {self._variables} must name {self.what}, and the run remembers "
                "none; set it, or call make_problem(data=…) in a callback of your own"
            )
        return path

    def _remembered_or_common(self, remembered: str | None, remedy: str = "") -> str | None:
        """The path that the run remembers, if it exists, else LANDSCAPE_DATA."""
        if remembered and os.path.exists(remembered):
            return remembered
        common = os.environ.get(COMMON_VARIABLE) if self.in_common else None
        if remembered and not common:
            raise NotFoundError(
                f"data: {quoted(remembered)}, on which the run was trained, is not on this machine; "
                f"{remedy}set the environment variable {self.variable} to {self.what}"
            )
        if remembered:
            log.warning(
                "data: %s, on which the run was trained, is not on this machine; taken from %s, which is %s",
                quoted(remembered), COMMON_VARIABLE, quoted(str(common)),
            )  # fmt: skip
        return common

    @property
    def order(self) -> str:
        """Where a training looks for its data, in words."""
        common = f", else {COMMON_VARIABLE}" if self.in_common else ""
        return f"what {self.variable} names, else what the run was trained on before{common}"

    @property
    def _variables(self) -> str:
        return f"{self.variable} or {COMMON_VARIABLE}" if self.in_common else self.variable


def _remembered_by(run: Place) -> str | None:
    return _as_path(read_network(run))


def _as_path(recorded: dict[str, object]) -> str | None:
    path = recorded.get(REMEMBERED)
    return path if isinstance(path, str) else None


def class_numbers(labels: np.ndarray, classes: int, place: str | Path) -> Tensor:
    """Labels as int64 [N].

    Raises:
        JobError: one of them is no whole number from 0 to `classes` − 1.
    """
    numeric = np.issubdtype(labels.dtype, np.integer) or np.issubdtype(labels.dtype, np.floating)
    wrong = labels[:0] if numeric else labels[:1]
    if numeric:
        wrong = labels[~((labels >= 0) & (labels < classes) & (labels == np.floor(labels)))]
    if len(wrong):
        raise JobError(
            f"data: {quoted(str(place))} must hold labels that are whole numbers from 0 to {classes - 1}, "
            f"not {quoted(wrong[0].item())}; leave out what is of other classes"
        )
    return torch.from_numpy(labels.astype(np.int64))


# ----------------------------------------------------------------------------------------------------
# MNIST, which two recipes train on, from its idx files.

Images = tuple[Tensor, Tensor]
Split = Literal["train", "test"]

MNIST = DataPlace("the folder with MNIST's files", "LANDSCAPE_MNIST")
MNIST_SIDE, MNIST_CLASSES = 28, 10
MNIST_MEAN, MNIST_DEVIATION = 0.1307, 0.3081
MNIST_INTERVALS = ((1, 2, 3), (7, 8, 9, 10))  # those of MindSpore's tutorial
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
    if images.dtype != np.uint8 or images.shape[1:] != (MNIST_SIDE, MNIST_SIDE) or not len(images):
        raise JobError(
            f"data: {quoted(str(folder))} must hold uint8 images of 28×28, not {images.dtype} {images.shape}; "
            "name the folder that has MNIST's files"
        )
    return torch.from_numpy(images), class_numbers(labels, MNIST_CLASSES, folder)


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


# ----------------------------------------------------------------------------------------------------
# Batches, and random draws.


@dataclass(frozen=True)
class SampleDraws:
    """Random numbers of samples, which depend only on the seed, the epoch and the sample's number in the data.

    So they do not depend on the sample's batch, on the rank that computes it, or on an interruption, and no state of a
    generator needs to be kept.

    Args:
        numbers: int64 [N], on the CPU.
    """

    seed: int
    epoch: int
    numbers: Tensor

    def integers(self, purpose: int, bound: int) -> Tensor:
        """Whole numbers from 0 to `bound` − 1, int64 [N] on the CPU; another `purpose` gives others.

        Example:
            >>> SampleDraws(0, 3, torch.tensor([7, 8])).integers(0, 9).tolist() == [
            ...     int(SampleDraws(0, 3, torch.tensor([number])).integers(0, 9)) for number in (7, 8)
            ... ]
            True
        """
        state = np.zeros(len(self.numbers), np.uint64)
        for part in (_words(self.seed), _words(self.epoch), self.numbers.numpy().astype(np.uint64), _words(purpose)):
            state = _mix(state ^ part)
        high = state >> np.uint64(32)
        return torch.from_numpy((high * np.uint64(bound) >> np.uint64(32)).astype(np.int64))


def _words(number: int) -> NDArray[np.uint64]:
    return np.array([number % 2**64], np.uint64)


def _mix(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A step of SplitMix64 (Steele, Lea and Flood 2014): if one input bit differs, about half of the output bits do."""
    state = state + np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


Transform = Callable[[Tensor, SampleDraws | None], Tensor]


def as_stored(images: Tensor, draws: SampleDraws | None) -> Tensor:
    """The transform for images that are already the network's input."""
    return images


class SampleSource(Protocol):
    """Samples by their numbers, from 0."""

    def __len__(self) -> int:
        """The number of samples."""
        ...

    def batches(self, numbers: Iterable[Tensor], epoch: int | None) -> Iterator[Images]:
        """The network's inputs and the targets of each batch, on the device that trains.

        Args:
            numbers: the samples of each batch, int64 on the CPU.
            epoch: decides the augmentation of the samples; None for evaluation, without augmentation.
        """
        ...


class Arrays:
    """A `SampleSource` of images in memory.

    Args:
        images: images and labels, of the same length; they are moved to the device.
        transform: makes the network's input of stored images; its second argument is None in evaluation.
    """

    def __init__(
        self, images: Images, transform: Transform = as_stored, seed: int = 0, device: torch.device | str = "cpu"
    ) -> None:
        self.images, self.labels = images[0].to(device), images[1].to(device)
        self._transform, self._seed = transform, seed

    def __len__(self) -> int:
        return len(self.labels)

    def batches(self, numbers: Iterable[Tensor], epoch: int | None) -> Iterator[Images]:
        """See `SampleSource`."""
        for batch in numbers:
            draws = None if epoch is None else SampleDraws(self._seed, epoch, batch)
            index = batch.to(self.labels.device)
            yield self._transform(self.images[index], draws), self.labels[index]
