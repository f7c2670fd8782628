"""A folder of images as the training loop and a landscape take them: normalised, on a device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from landscape.recipes.crops import SIDE, normalise
from landscape.recipes.images import ImageLoader, Unreadable
from landscape.recipes.listing import Listing

EVALUATED = 128  # images at a time, where no gradient asks for more: a thousand photographs are a gigabyte


class Photographs:
    """A `Source` of the images of a listing.

    Args:
        device: where the batches shall be.
        decoders: processes that decode ahead; 0 decodes in this one.
        unreadable: "refuse", or "skip" as `ImageLoader` says.
    """

    def __init__(
        self,
        listing: Listing,
        side: int = SIDE,
        *,
        seed: int = 0,
        device: torch.device | str = "cpu",
        decoders: int = 0,
        unreadable: Unreadable = "refuse",
    ) -> None:
        self._device = torch.device(device)
        pinned = self._device.type == "cuda"
        self._loader = ImageLoader(
            listing, side, seed=seed, decoders=decoders, pinned=pinned, unreadable=unreadable
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self._loader.listing)

    @property
    def skipped(self) -> int:
        """How many images of the listing were unreadable until now, on this rank."""
        return len(self._loader.skipped)

    def batches(self, numbers: Iterable[Tensor], epoch: int | None) -> Iterator[tuple[Tensor, Tensor]]:
        """See `landscape.recipes.sources.Source`; batches of an evaluation come in parts of 128 images at most."""
        if epoch is None:
            numbers = (part for batch in numbers for part in torch.split(batch, EVALUATED))
        for batch in self._loader.batches(numbers, epoch):
            images = batch.images.to(self._device, non_blocking=True)
            yield normalise(images), batch.labels.to(self._device, non_blocking=True)
