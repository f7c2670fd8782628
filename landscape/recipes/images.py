"""Photographs in a folder of classes: listed, cropped as ImageNet's are, and decoded ahead by worker processes.

The number of processes changes no pixel: an image's crop depends only on the seed, the epoch and its number.
"""

from __future__ import annotations

import logging
import math
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from landscape.core.errors import JobError, LandscapeError, NotFoundError, message_of, nearest, quoted
from landscape.core.validation import check_whole

if TYPE_CHECKING:
    from PIL.Image import Image

log = logging.getLogger("landscape")


SIDE = 224  # of the network's input
RESIZED = 256  # the shorter side of an image in evaluation, before its middle is cut out
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


def crop_draws(seed: int, epoch: int, number: int) -> Draw:
    """Uniform draws for the image of this number in this epoch, which depend only on the three arguments.

    So any worker process, on any rank, after any interruption, changes the same image in the same way.
    """
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence((seed % 2**64, epoch, number)))).random


def random_crop(width: int, height: int, draw: Draw) -> Crop:
    """A crop of 8 % to 100 % of the area with a ratio of sides from 3:4 to 4:3, mirrored or not (Szegedy et al. 2015).

    The area is uniform, the ratio uniform in its logarithm. If ten such rectangles do not fit into the image, the crop
    is the largest rectangle in the middle that the ratios allow.
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
    """The middle 224×224 of an image whose shorter side is resized to 256 pixels.

    The crop is the rectangle of the original image that becomes this middle.

    Args:
        side: of the network's input; the shorter side is resized to 256/224 of it.
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
    """uint8 [..., 3, H, W] → float32: (pixel in [0, 1] − mean) / standard deviation, ImageNet's for each colour."""
    mean, deviation = (torch.tensor(values, device=images.device).view(3, 1, 1) for values in (MEAN, DEVIATION))
    return (images.to(torch.float32) / 255 - mean) / deviation


# ----------------------------------------------------------------------------------------------------
# Decoding by Pillow.

ORIENTATION = 0x0112  # of EXIF: how to turn or mirror the pixels so that the picture is upright
ON_THEIR_SIDE = range(5, 9)
REDUCING_GAP = 2  # a JPEG that is decoded smaller keeps at least so many pixels a side for each pixel of the result

Choose = Callable[[int, int], Crop]


class UnreadableImage(LandscapeError):
    """An image that cannot be decoded; the message names its path."""


def read_crop(path: str | Path, side: int, choose: Choose) -> np.ndarray:
    """Read an image, turn it upright and resize the crop that `choose` takes of it: uint8 [3, side, side].

    Resizing is bilinear, over all pixels that a pixel of the result covers. If a JPEG's crop is at least four times as
    large as `side`, the JPEG is decoded at a half, a quarter or an eighth of its size, and at least at 2·`side`.

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
        # Decoders warn of large images and of damaged metadata; if an image cannot be used, they raise an error.
        with warnings.catch_warnings(action="ignore"), Image.open(path) as image:
            # Pillow turns a TIFF by itself.
            orientation = 1 if image.format == "TIFF" else image.getexif().get(ORIENTATION, 1)
            width, height = reversed(image.size) if orientation in ON_THEIR_SIDE else image.size
            crop = choose(width, height)
            scale = _decode_reduced(image, min(crop.width, crop.height) / side)
            return _resize_crop(_turn_upright(_to_colours(image), orientation), crop, scale, side)
    except MemoryError:
        raise
    except UnidentifiedImageError:
        reason = "it is of no known format" if Path(path).stat().st_size else "it is empty"
        raise UnreadableImage(f"image {quoted(str(path))} cannot be read: {reason}") from None
    except Exception as error:  # decoders raise errors of any type for damaged bytes
        reason = error.strerror if isinstance(error, OSError) and error.strerror else message_of(error)
        raise UnreadableImage(f"image {quoted(str(path))} cannot be read: {reason}") from None


def _decode_reduced(image: Image, spare: float) -> float:
    """Make Pillow decode a JPEG at a fraction of its size if its crop has `spare` times the pixels of the result.

    The decoder then omits the high frequencies of each block of pixels, which resizing would average away.

    Returns:
        The fraction: 1, 1/2, 1/4 or 1/8.
    """
    for divisor in (8, 4, 2):
        if spare >= REDUCING_GAP * divisor and min(image.size) >= divisor:
            width = image.width
            drafted = image.draft(None, (image.width // divisor, image.height // divisor))
            return 1.0 if drafted is None else drafted[1][2] / width
    return 1.0


def _to_colours(image: Image) -> Image:
    """The image in red, green and blue, without transparency."""
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


def _turn_upright(image: Image, orientation: int) -> Image:
    """The image turned and mirrored as EXIF says."""
    from PIL.Image import Transpose

    turns = {
        2: Transpose.FLIP_LEFT_RIGHT, 3: Transpose.ROTATE_180, 4: Transpose.FLIP_TOP_BOTTOM, 5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_270, 7: Transpose.TRANSVERSE, 8: Transpose.ROTATE_90,
    }  # fmt: skip
    return image.transpose(turns[orientation]) if orientation in turns else image


def _resize_crop(image: Image, crop: Crop, scale: float, side: int) -> np.ndarray:
    """The crop at side × side pixels, uint8 [3, side, side].

    Args:
        scale: pixels of `image` for each pixel of the crop.
    """
    from PIL.Image import Resampling

    right, bottom = crop.left + crop.width, crop.top + crop.height
    box = (
        crop.left * scale, crop.top * scale, min(right * scale, image.width), min(bottom * scale, image.height)
    )  # fmt: skip
    pixels = np.asarray(image.resize((side, side), Resampling.BILINEAR, box=box))
    return np.ascontiguousarray((pixels[:, ::-1] if crop.mirrored else pixels).transpose(2, 0, 1))


# ----------------------------------------------------------------------------------------------------
# The images of a folder of classes, root/class/image.jpeg.

SUFFIXES = frozenset((".jpeg", ".jpg", ".png", ".bmp", ".ppm", ".pgm", ".tif", ".tiff", ".webp", ".gif"))
NAMED = 5  # classes that a message names


@dataclass(frozen=True)
class ImageListing:
    """The images of one folder, in the order of their classes and then of their names.

    Attributes:
        root: the folder.
        classes: their names; the label of an image is the index of its class.
        names: the paths relative to root, in one array. Worker processes share it; a list of strings would be copied
            into each process, since counting references writes to it.
        ends: int64 [N], where each path ends in `names`.
        labels: int64 [N].
        ignored: the number of other files.
    """

    root: str
    classes: tuple[str, ...]
    names: bytes
    ends: NDArray[np.int64]
    labels: NDArray[np.int64]
    ignored: int

    def __len__(self) -> int:
        return len(self.labels)

    def path(self, number: int) -> str:
        """Where the image of this number lies."""
        start = int(self.ends[number - 1]) if number else 0
        return os.path.join(self.root, os.fsdecode(self.names[start : int(self.ends[number])]))


def list_images(root: str | Path, classes: Sequence[str] | None = None) -> ImageListing:
    """The images below `root`: each folder in it is a class, whose images may lie in folders of their own.

    Files of other kinds, and those whose names begin with a dot, are no images. A folder is read once, even if several
    links lead to it, so that links in a circle end.

    Args:
        classes: the expected classes, such as those of training for a folder of validation; default: any.

    Raises:
        NotFoundError: there is no such folder.
        JobError: the folder has no classes, a class has no images, or the classes are not the expected ones.
    """
    place = str(root)
    if not os.path.isdir(place):
        raise NotFoundError(f"data: {quoted(place)} is no folder; name one with a folder of images for each class")
    entries = _entries(place)
    folders = [entry.name for entry in entries if _is_folder(entry)]
    if not folders:
        raise JobError(f"data: {quoted(place)} must hold a folder of images for each class, and holds no folder")
    if classes is not None:
        _refuse_other_classes(place, folders, classes)
    names: list[bytes] = []
    labels: list[int] = []
    ignored = len(entries) - len(folders)
    for label, folder in enumerate(folders):
        files = list(_files_below(place, folder, {_identity(place)}))
        images = sorted(os.fsencode(file) for file in files if os.path.splitext(file)[1].lower() in SUFFIXES)
        if not images:
            raise JobError(
                f"data: class {quoted(folder)} of {quoted(place)} must hold images, and holds {len(files)} other "
                "files; add its images, or remove the folder"
            )
        names += images
        labels += [label] * len(images)
        ignored += len(files) - len(images)
    ends = np.cumsum([len(name) for name in names], dtype=np.int64)
    return ImageListing(place, tuple(folders), b"".join(names), ends, np.array(labels, np.int64), ignored)


def _files_below(root: str, folder: str, read: set[tuple[int, int]]) -> Iterator[str]:
    """The paths, relative to `root`, of all files below `folder`, through links too."""
    identity = _identity(os.path.join(root, folder))
    if identity in read:
        return
    read.add(identity)
    for entry in _entries(os.path.join(root, folder)):
        path = os.path.join(folder, entry.name)
        if _is_folder(entry):
            yield from _files_below(root, path, read)
        else:
            yield path  # also a broken link: it is an image that cannot be read


def _identity(folder: str) -> tuple[int, int]:
    status = os.stat(folder)
    return status.st_dev, status.st_ino


def _entries(folder: str) -> list[os.DirEntry[str]]:
    """A folder's entries by name. The listing itself tells folders from files; a call for each would take minutes."""
    try:
        with os.scandir(folder) as entries:
            return sorted((entry for entry in entries if not entry.name.startswith(".")), key=lambda entry: entry.name)
    except OSError as error:
        raise JobError(f"data: {quoted(folder)} cannot be listed: {error.strerror}") from None


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _refuse_other_classes(root: str, folders: Sequence[str], classes: Sequence[str]) -> None:
    missing, unknown = sorted(set(classes) - set(folders)), sorted(set(folders) - set(classes))
    if missing or unknown:
        parts = [f"{kind} {_several(names)}" for kind, names in (("lacks", missing), ("adds", unknown)) if names]
        raise JobError(
            f"data: {quoted(root)} must hold the {len(classes)} classes of training: it {' and '.join(parts)}"
        )


def _several(names: Sequence[str]) -> str:
    return ", ".join(map(quoted, names[:NAMED])) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")


Asked = tuple[int | None, tuple[int, ...]]  # an epoch, or None for evaluation, and the numbers of images
Unreadable = Literal["refuse", "skip"]

AHEAD = 2  # batches that each worker process has ready
TOLD = 10  # unreadable images that are logged by name; the others are only counted
SEARCHED = 100  # images in a row, of which one must be readable


class Batch(NamedTuple):
    """Images, uint8 [N, 3, side, side], and their labels, int64 [N].

    Attributes:
        unreadable: the number of each image that could not be read, and why.
        in_vain: whether an unreadable image has no replacement.
    """

    images: Tensor
    labels: Tensor
    unreadable: tuple[tuple[int, str], ...] = ()
    in_vain: bool = False


class ImageLoader:
    """Reads batches of images by their numbers, in the order asked for.

    An image's crop depends only on the seed, the epoch and its number in the listing, so neither the number of worker
    processes nor the share of a rank changes a pixel.

    An image that cannot be read is refused, or skipped and counted. In training a skipped image is replaced by the next
    readable one of the listing, cropped by the draws of the skipped one. So every batch keeps its size, and every rank
    its share. In evaluation a skipped image is left out of its batch.

    Args:
        listing: the images.
        side: of the crops, in pixels.
        seed: of the crops of training.
        decoders: worker processes; 0 decodes in this one.
        pinned: put the batches into pinned memory, from which a GPU copies without the CPU.
        unreadable: "refuse" or "skip".

    Attributes:
        skipped: the numbers of the images that were unreadable until now.

    Raises:
        JobError: one of the arguments is not usable.
    """

    def __init__(
        self,
        listing: ImageListing,
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
            raise JobError(f"unreadable: unknown {quoted(unreadable)}; {nearest(unreadable, get_args(Unreadable))}")
        self.listing, self.skipped = listing, set[int]()
        self._refuses = unreadable == "refuse"
        self._asked = _Asked()
        # Workers stay alive between epochs. Without a generator of its own the loader would draw from the global one.
        options: dict[str, Any] = {"persistent_workers": True, "prefetch_factor": AHEAD} if decoders else {}
        self._loader: DataLoader[Batch] = DataLoader(
            _Reader(listing, side, seed, self._refuses), sampler=self._asked, batch_size=None, num_workers=decoders,
            pin_memory=pinned, collate_fn=_as_it_is, generator=torch.Generator(), **options,
        )  # fmt: skip

    def batches(self, numbers: Iterable[Tensor], epoch: int | None = None) -> Iterator[Batch]:
        """A batch for each tensor of numbers of images, with the crops of training in this epoch, or of evaluation.

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
def explain_lost_decoders() -> Iterator[None]:
    """Explain the error of a killed decoder, which torch raises anywhere in this process.

    Raises:
        LandscapeError: a worker process ended.
    """
    try:
        yield
    except RuntimeError as error:
        if not str(error).startswith("DataLoader worker"):
            raise
        raise LandscapeError(
            "decoders: a process that decodes images was killed, perhaps since memory ran out; give the command again "
            "with fewer decoders or more memory: it resumes from the last checkpoint"
        ) from None


class _Asked:
    """A sampler whose batches are set before each pass, since a loader keeps its first sampler."""

    def __init__(self) -> None:
        self.batches: list[Asked] = []

    def __iter__(self) -> Iterator[Asked]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


class _Found(NamedTuple):
    """An image and its number, or None if none was readable, and the unreadable images before it."""

    image: np.ndarray | None
    number: int
    unreadable: tuple[tuple[int, str], ...]


class _Reader(Dataset[Batch]):
    """Reads a whole batch at a time.

    Unreadable images are returned as values: the loader would turn a worker's exception into a traceback.
    """

    def __init__(self, listing: ImageListing, side: int, seed: int, refuses: bool) -> None:
        self._listing, self._side, self._seed, self._refuses = listing, side, seed, refuses

    def __getitem__(self, asked: Asked) -> Batch:
        epoch, numbers = asked
        searched = 1 if epoch is None or self._refuses else min(SEARCHED, len(self._listing))
        results = [self._first_readable(number, epoch, searched) for number in numbers]
        images = [result.image for result in results if result.image is not None]
        labels = self._listing.labels[[result.number for result in results if result.image is not None]]
        pixels = np.stack(images) if images else np.empty((0, 3, self._side, self._side), np.uint8)
        unreadable = tuple(file for result in results for file in result.unreadable)
        in_vain = epoch is not None and len(images) < len(results)
        return Batch(torch.from_numpy(pixels), torch.from_numpy(labels), unreadable, in_vain)

    def _first_readable(self, number: int, epoch: int | None, searched: int) -> _Found:
        """The image of this number, or the next readable one among `searched` images, with the crop of this number."""
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
        return partial(random_crop, draw=crop_draws(self._seed, epoch, number))


def _as_it_is(batch: Any) -> Any:
    return batch


class EvaluatedImages(Dataset[tuple[Tensor, Tensor]]):
    """The middle of each image as the network takes it, float32 [3, side, side], and its label: a landscape's data.

    Raises:
        UnreadableImage: an image that is asked for cannot be read.
    """

    def __init__(self, listing: ImageListing, side: int = SIDE) -> None:
        self.listing, self._side = listing, side

    def __len__(self) -> int:
        return len(self.listing)

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        image = read_crop(self.listing.path(number), self._side, partial(central_crop, side=self._side))
        return normalise(torch.from_numpy(image)), torch.tensor(int(self.listing.labels[number]))


# ----------------------------------------------------------------------------------------------------
# Images as the training loop takes them: normalised, on a device.

EVALUATED = 128  # images at a time, since no gradient needs more: a thousand photographs are a gigabyte


class Photographs:
    """A `SampleSource` of the images of a listing.

    Args:
        device: holds the batches.
        decoders: processes that decode ahead; 0 decodes in this one.
        unreadable: "refuse", or "skip" as `ImageLoader` says.
    """

    def __init__(
        self,
        listing: ImageListing,
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
        """The number of images that were unreadable until now, on this rank."""
        return len(self._loader.skipped)

    def batches(self, numbers: Iterable[Tensor], epoch: int | None) -> Iterator[tuple[Tensor, Tensor]]:
        """See `SampleSource`; batches of an evaluation are divided into parts of at most 128 images."""
        if epoch is None:
            numbers = (part for batch in numbers for part in torch.split(batch, EVALUATED))
        for batch in self._loader.batches(numbers, epoch):
            images = batch.images.to(self._device, non_blocking=True)
            yield normalise(images), batch.labels.to(self._device, non_blocking=True)
