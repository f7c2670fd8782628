"""Which part of an image the network sees, and its colours as numbers: pure functions, for training and evaluation."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

SIDE, RESIZED = (
    224,
    256,
)  # of the network's input; of an image's shorter side in evaluation, before the middle is cut out
AREA, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
TRIES = 10
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's red, green and blue

Draw = Callable[[], float]  # uniform in [0, 1)


@dataclass(frozen=True)
class Crop:
    """A rectangle of an image in pixels, from its upper left corner on, and whether it is mirrored left to right."""

    left: float
    top: float
    width: float
    height: float
    mirrored: bool = False


def draws_of(seed: int, epoch: int, number: int) -> Draw:
    """Uniform draws for the image of this number in this epoch, which follow from the three alone.

    So the same image is changed in the same way by any worker process, on any rank, after any interruption.
    """
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence((seed % 2**64, epoch, number)))).random


def random_crop(width: int, height: int, draw: Draw) -> Crop:
    """A crop of 8 % to 100 % of the area with a ratio of sides from 3:4 to 4:3, mirrored or not (Szegedy et al. 2015).

    The area is uniform, the ratio uniform in its logarithm. Where ten such rectangles do not fit into the image the
    middle is taken, as much of it as the ratios allow.
    """
    for _ in range(TRIES):
        area = width * height * _between(*AREA, draw())
        ratio = math.exp(_between(math.log(RATIO[0]), math.log(RATIO[1]), draw()))
        wide, high = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        left, top = draw(), draw()
        if 0 < wide <= width and 0 < high <= height:
            left, top = math.floor(left * (width - wide + 1)), math.floor(top * (height - high + 1))
            return Crop(left, top, wide, high, draw() < 0.5)
    wide = min(width, max(1, round(height * RATIO[1])))
    high = min(height, max(1, round(width / RATIO[0])))
    return Crop((width - wide) // 2, (height - high) // 2, wide, high, draw() < 0.5)


def central_crop(width: int, height: int, side: int = SIDE) -> Crop:
    """The middle of an image that is resized to 256 pixels along its shorter side, cut to 224×224.

    Both steps are one here: the crop is the rectangle of the original that they come to.

    Args:
        side: of the network's input, where it is not 224; the shorter side is then 256/224 of it.
    """
    shorter = round(side * RESIZED / SIDE)
    resized = [shorter if edge == min(width, height) else int(shorter * edge / min(width, height))
               for edge in (width, height)]  # fmt: skip
    left, top = (round((edge - side) / 2) for edge in resized)
    across, down = width / resized[0], height / resized[1]
    return Crop(left * across, top * down, side * across, side * down)


def _between(low: float, high: float, share: float) -> float:
    return low + (high - low) * share


def normalise(images: Tensor) -> Tensor:
    """uint8 [..., 3, H, W] → float32: pixels in [0, 1], less ImageNet's mean of each colour, over its deviation."""
    mean, deviation = (torch.tensor(values, device=images.device).view(3, 1, 1) for values in (MEAN, DEVIATION))
    return (images.to(torch.float32) / 255 - mean) / deviation
