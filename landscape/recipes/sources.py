"""Where the loop gets its batches from: tensors in memory, or what reads them from elsewhere; and random draws."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Images = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Draws:
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
            >>> Draws(0, 3, torch.tensor([7, 8])).integers(0, 9).tolist() == [
            ...     int(Draws(0, 3, torch.tensor([number])).integers(0, 9)) for number in (7, 8)
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


Transform = Callable[[Tensor, Draws | None], Tensor]


def as_stored(images: Tensor, draws: Draws | None) -> Tensor:
    """The transform for images that are the network's input already."""
    return images


class Source(Protocol):
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
    """A `Source` of images in memory.

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
        """See `Source`."""
        for batch in numbers:
            draws = None if epoch is None else Draws(self._seed, epoch, batch)
            index = batch.to(self.labels.device)
            yield self._transform(self.images[index], draws), self.labels[index]
