"""Batches of the images of a folder, decoded ahead by worker processes, which decide nothing about their contents."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from landscape.core.errors import JobError, LandscapeError, nearest, shown
from landscape.core.validation import check_whole
from landscape.recipes.crops import SIDE, central_crop, draws_of, normalise, random_crop
from landscape.recipes.decoding import Choose, UnreadableImage, read_crop
from landscape.recipes.listing import Listing

Asked = tuple[int | None, tuple[int, ...]]  # an epoch, or None for evaluation, and numbers of images
Unreadable = Literal["refuse", "skip"]

AHEAD = 2  # batches that each worker process has ready
TOLD = 10  # unreadable images that are named; the others are counted
SEARCHED = 100  # images in a row, of which one must be readable
log = logging.getLogger("landscape")


class Batch(NamedTuple):
    """Images, uint8 [N, 3, side, side], and their labels, int64 [N].

    Attributes:
        unreadable: the number of each image that could not be read, and why.
        in_vain: whether no image was found to stand in for one of them.
    """

    images: Tensor
    labels: Tensor
    unreadable: tuple[tuple[int, str], ...] = ()
    in_vain: bool = False


class ImageLoader:
    """Reads batches of images by their numbers, in the order asked for.

    An image's crop follows from the seed, the epoch and its number in the listing alone, so neither the number of
    worker processes nor the share of a rank changes a pixel.

    An image that cannot be read is refused, or skipped and counted. In training another one stands in for a skipped
    one: the next readable of the listing, cropped by the draws of the one that it replaces. Thus every batch has
    its size, and every rank its share. In evaluation a skipped image is left out of its batch.

    Args:
        listing: the images.
        side: of the crops, in pixels.
        seed: that the crops of training follow from.
        decoders: worker processes; 0 decodes in this one.
        pinned: put the batches into memory that a GPU copies from by itself.
        unreadable: "refuse" or "skip".

    Attributes:
        skipped: the numbers of the images that were unreadable until now.

    Raises:
        JobError: one of the arguments is not usable.
    """

    def __init__(
        self,
        listing: Listing,
        side: int = SIDE,
        *,
        seed: int = 0,
        decoders: int = 0,
        pinned: bool = False,
        unreadable: Unreadable = "refuse",
    ) -> None:
        for name, value, least in (("side", side, 1), ("decoders", decoders, 0)):
            check_whole(name, value, least)
        if unreadable not in get_args(Unreadable):
            raise JobError(f"unreadable: unknown {shown(unreadable)}; {nearest(unreadable, get_args(Unreadable))}")
        self.listing, self.skipped = listing, set[int]()
        self._refuses = unreadable == "refuse"
        self._asked = _Asked()
        # Workers live on from epoch to epoch. Without a generator of its own the loader would draw from the global one.
        options: dict[str, Any] = {"persistent_workers": True, "prefetch_factor": AHEAD} if decoders else {}
        self._loader: DataLoader[Batch] = DataLoader(
            _Reader(listing, side, seed, self._refuses), sampler=self._asked, batch_size=None, num_workers=decoders,
            pin_memory=pinned, collate_fn=_as_it_is, generator=torch.Generator(), **options,
        )  # fmt: skip

    def batches(self, numbers: Iterable[Tensor], epoch: int | None = None) -> Iterator[Batch]:
        """A batch for each tensor of numbers of images, in training's crops of this epoch, or in evaluation's.

        Args:
            numbers: int64 [N] each.
            epoch: None for evaluation: the middle of each image.

        Raises:
            UnreadableImage: an image cannot be read, and unreadable ones are refused.
        """
        self._asked.batches = [(epoch, tuple(batch.tolist())) for batch in numbers]
        for batch in self._loader:
            for number, reason in batch.unreadable:
                self._note(number, reason)
            if batch.in_vain:
                before = min(SEARCHED, len(self.listing)) - 1
                raise UnreadableImage(f"{batch.unreadable[-1][1]}; nor can the {before} before it; mend the folder")
            yield batch

    def _note(self, number: int, reason: str) -> None:
        if self._refuses:
            raise UnreadableImage(f"{reason}; mend or remove it, or let unreadable images be skipped: unreadable=skip")
        if number not in self.skipped:
            self.skipped.add(number)
            if len(self.skipped) <= TOLD:
                end = "; further ones are counted only" if len(self.skipped) == TOLD else ""
                log.warning("%s: skipped%s", reason, end)


@contextmanager
def naming_lost_decoders() -> Iterator[None]:
    """Say what ended where a worker process is killed: torch raises that wherever this process happens to be.

    Raises:
        LandscapeError: a worker process ended.
    """
    try:
        yield
    except RuntimeError as error:
        if not str(error).startswith("DataLoader worker"):
            raise
        raise LandscapeError(
            "decoders: a process that decodes images was killed, as happens where memory runs out; begin again, which "
            "goes on from the last checkpoint, with fewer decoders or more memory"
        ) from None


class _Asked:
    """The batches that the loader shall read next: it takes its sampler when it is made, and has it for good."""

    def __init__(self) -> None:
        self.batches: list[Asked] = []

    def __iter__(self) -> Iterator[Asked]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


class _Found(NamedTuple):
    """An image and its number, or None where none was readable, and what was unreadable on the way."""

    image: np.ndarray | None
    number: int
    unreadable: tuple[tuple[int, str], ...]


class _Reader(Dataset[Batch]):
    """Reads a whole batch at a time.

    What cannot be read is told as a value: of a worker's exception the loader would make a traceback.
    """

    def __init__(self, listing: Listing, side: int, seed: int, refuses: bool) -> None:
        self._listing, self._side, self._seed, self._refuses = listing, side, seed, refuses

    def __getitem__(self, asked: Asked) -> Batch:
        epoch, numbers = asked
        searched = 1 if epoch is None or self._refuses else min(SEARCHED, len(self._listing))
        found = [self._first_readable(number, epoch, searched) for number in numbers]
        images = [each.image for each in found if each.image is not None]
        labels = self._listing.labels[[each.number for each in found if each.image is not None]]
        pixels = np.stack(images) if images else np.empty((0, 3, self._side, self._side), np.uint8)
        unreadable = tuple(each for one in found for each in one.unreadable)
        in_vain = epoch is not None and len(images) < len(found)
        return Batch(torch.from_numpy(pixels), torch.from_numpy(labels), unreadable, in_vain)

    def _first_readable(self, number: int, epoch: int | None, searched: int) -> _Found:
        """The image of this number, or the next readable of as many as are searched, in the crop of this number."""
        unreadable: list[tuple[int, str]] = []
        for place in range(number, number + searched):
            place %= len(self._listing)
            try:
                image = read_crop(self._listing.path(place), self._side, self._crop(number, epoch))
            except UnreadableImage as error:
                unreadable.append((place, str(error)))
            else:
                return _Found(image, place, tuple(unreadable))
        return _Found(None, number, tuple(unreadable))

    def _crop(self, number: int, epoch: int | None) -> Choose:
        if epoch is None:
            return partial(central_crop, side=self._side)
        return partial(random_crop, draw=draws_of(self._seed, epoch, number))


def _as_it_is(batch: Any) -> Any:
    return batch


class EvaluatedImages(Dataset[tuple[Tensor, Tensor]]):
    """The middle of each image as the network takes it, float32 [3, side, side], and its label: a landscape's data.

    Raises:
        UnreadableImage: an image that is asked for cannot be read.
    """

    def __init__(self, listing: Listing, side: int = SIDE) -> None:
        self.listing, self._side = listing, side

    def __len__(self) -> int:
        return len(self.listing)

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        image = read_crop(self.listing.path(number), self._side, partial(central_crop, side=self._side))
        return normalise(torch.from_numpy(image)), torch.tensor(int(self.listing.labels[number]))
