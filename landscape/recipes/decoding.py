"""A crop of an image file as pixels, by Pillow: upright, red, green and blue, whatever the file holds."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from landscape.core.errors import LandscapeError, message_of, shown
from landscape.recipes.crops import Crop

if TYPE_CHECKING:
    from PIL.Image import Image

ORIENTATION = 0x0112  # of EXIF: what must be done to the pixels for the picture to be upright
ON_THEIR_SIDE = range(5, 9)
REDUCING_GAP = 2  # a JPEG that is decoded smaller keeps at least so many pixels for each one that is wanted

Choose = Callable[[int, int], Crop]


class UnreadableImage(LandscapeError):
    """An image that cannot be decoded; the message names its path."""


def read_crop(path: str | Path, side: int, choose: Choose) -> np.ndarray:
    """The crop that `choose` takes of the upright image of this width and height, resized: uint8 [3, side, side].

    Resizing is bilinear, over all the pixels that one of the result covers. A JPEG of which the crop is at least four
    times as large as `side` is decoded at a half, a quarter or an eighth of its size, and at least at 2·`side`.

    Raises:
        UnreadableImage: the file is missing, damaged, of no known format, or has more than 179 million pixels,
            half a gigabyte, which Pillow takes for a decompression bomb.
        LandscapeError: Pillow is not installed.
    """
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise LandscapeError(
            "images are decoded by Pillow, which is not installed: pip install 'loss-landscape-cluster[images]'"
        ) from None
    try:
        # Decoders warn of large images and of damaged metadata. What makes an image useless is an error.
        with warnings.catch_warnings(action="ignore"), Image.open(path) as image:
            # Pillow turns a TIFF by itself.
            orientation = 1 if image.format == "TIFF" else image.getexif().get(ORIENTATION, 1)
            width, height = reversed(image.size) if orientation in ON_THEIR_SIDE else image.size
            crop = choose(width, height)
            scale = _decode_reduced(image, min(crop.width, crop.height) / side)
            return _resized(_upright(_in_colours(image), orientation), crop, scale, side)
    except MemoryError:
        raise
    except UnidentifiedImageError:
        reason = "it is of no known format" if Path(path).stat().st_size else "it is empty"
        raise UnreadableImage(f"image {shown(str(path))} cannot be read: {reason}") from None
    except Exception as error:  # decoders raise whatever they like at bytes that are wrong
        reason = error.strerror if isinstance(error, OSError) and error.strerror else message_of(error)
        raise UnreadableImage(f"image {shown(str(path))} cannot be read: {reason}") from None


def _decode_reduced(image: Image, spare: float) -> float:
    """Have a JPEG decoded at a fraction of its size where its crop has `spare` times the pixels that are wanted.

    The decoder then leaves out the high frequencies of each block of pixels, which resizing would average away.

    Returns:
        The fraction: 1, 1/2, 1/4 or 1/8.
    """
    for divisor in (8, 4, 2):
        if spare >= REDUCING_GAP * divisor and min(image.size) >= divisor:
            width = image.width
            drafted = image.draft(None, (image.width // divisor, image.height // divisor))
            return 1.0 if drafted is None else drafted[1][2] / width
    return 1.0


def _in_colours(image: Image) -> Image:
    """The image in red, green and blue; transparency is left away.

    Raises:
        ValueError: grey values that are not of 1, 8 or 16 bits.
    """
    from PIL import Image

    image.load()
    if image.mode.startswith("I"):
        grey = np.asarray(image)
        if grey.min() < 0 or grey.max() > 0xFFFF:
            raise ValueError("its grey values have more than 16 bits")
        return Image.fromarray((grey >> 8).astype(np.uint8)).convert("RGB")  # Pillow's conversion would cut off at 255
    if image.mode == "F":
        raise ValueError("its grey values are floating-point numbers")
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    return image.convert("RGB")


def _upright(image: Image, orientation: int) -> Image:
    """The image turned and mirrored as EXIF says."""
    from PIL.Image import Transpose

    turns = {
        2: Transpose.FLIP_LEFT_RIGHT, 3: Transpose.ROTATE_180, 4: Transpose.FLIP_TOP_BOTTOM, 5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_270, 7: Transpose.TRANSVERSE, 8: Transpose.ROTATE_90,
    }  # fmt: skip
    return image.transpose(turns[orientation]) if orientation in turns else image


def _resized(image: Image, crop: Crop, scale: float, side: int) -> np.ndarray:
    """The crop at side × side pixels, uint8 [3, side, side].

    Args:
        scale: how many pixels of `image` one of the crop's is.
    """
    from PIL.Image import Resampling

    right, bottom = crop.left + crop.width, crop.top + crop.height
    box = (
        crop.left * scale, crop.top * scale, min(right * scale, image.width), min(bottom * scale, image.height)
    )  # fmt: skip
    pixels = np.asarray(image.resize((side, side), Resampling.BILINEAR, box=box))
    return np.ascontiguousarray((pixels[:, ::-1] if crop.mirrored else pixels).transpose(2, 0, 1))
