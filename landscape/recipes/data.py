"""The data of recipes: where they lie, their labels, and batches of them with random draws for augmentation."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from landscape.core.errors import JobError, NotFoundError, quoted
from landscape.core.files import Place
from landscape.model.run_files import read_network
from landscape.problem.network import network_options

COMMON_VARIABLE = "LANDSCAPE_DATA"
REMEMBERED = "data"  # among what a run records of its network and data
log = logging.getLogger("landscape")


@dataclass(frozen=True)
class DataPlace:
    """How the data of a recipe are found.

    The environment comes before what a run remembers, since it speaks of this machine, where the run may have come from
    another. LANDSCAPE_DATA, which speaks of all recipes, comes after.

    Args:
        what: they are, for messages: "the folder with …".
        variable: the environment variable that names them.
        in_common: whether the folder LANDSCAPE_DATA may hold them.
    """

    what: str
    variable: str
    in_common: bool = True

    def for_training(self, given: str | Path | None, run: Place, *, overwrite: bool = False) -> str:
        """The absolute path of the data to train on.

        Args:
            run: may remember the data of its training; where it goes on with others, a line says so.
            overwrite: whether the run begins anew, whatever it remembers.

        Raises:
            JobError: no data are named.
            NotFoundError: the path that the run remembers is not there, and nothing else names any.
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
            NotFoundError: the path that the run remembers is not there, and nothing else names any.
        """
        path = os.environ.get(self.variable) or self._remembered_or_common(_as_path(network_options()))
        if not path:
            raise JobError(
                f"problem: the environment variable {self._variables} must name {self.what}, and the run remembers "
                "none; set it, or call make_problem(data=…) in a callback of your own"
            )
        return path

    def _remembered_or_common(self, remembered: str | None, remedy: str = "") -> str | None:
        """What the run remembers, if it is there, else LANDSCAPE_DATA."""
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
# Batches, and random draws.

Images = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class SampleDraws:
    """Random numbers of samples. Each follows from the seed, the epoch and the sample's number in the data alone.

    So the batch that a sample is in, the rank that computes it and an interruption change nothing, and no state of a
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
            state = _mixed(state ^ part)
        high = state >> np.uint64(32)
        return torch.from_numpy((high * np.uint64(bound) >> np.uint64(32)).astype(np.int64))


def _words(number: int) -> NDArray[np.uint64]:
    return np.array([number % 2**64], np.uint64)


def _mixed(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A step of SplitMix64 (Steele, Lea and Flood 2014), which changes half of the bits wherever one differs."""
    state = state + np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


Transform = Callable[[Tensor, SampleDraws | None], Tensor]


def as_stored(images: Tensor, draws: SampleDraws | None) -> Tensor:
    """The transform for images that are the network's input already."""
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
            epoch: whose augmentation the samples get; None for evaluation, without.
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
