"""Which images a folder of classes holds: root/class/image.jpeg, the classes sorted by name."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from landscape.errors import JobError, NotFoundError, shown

SUFFIXES = frozenset((".jpeg", ".jpg", ".png", ".bmp", ".ppm", ".pgm", ".tif", ".tiff", ".webp", ".gif"))
NAMED = 5  # classes that a message names


@dataclass(frozen=True)
class Listing:
    """The images of one folder, in the order of their classes and then of their names.

    Attributes:
        root: the folder.
        classes: their names; the label of an image is the place of its class here.
        names: bytes [N], the paths relative to root. Worker processes share an array; of a list of strings each would
            come to hold a copy, since counting references writes to them.
        labels: int64 [N].
        ignored: how many other files there were.
    """

    root: str
    classes: tuple[str, ...]
    names: np.ndarray
    labels: np.ndarray
    ignored: int

    def __len__(self) -> int:
        return len(self.labels)

    def path(self, number: int) -> str:
        """Where the image of this number lies."""
        return os.path.join(self.root, os.fsdecode(bytes(self.names[number])))


def list_images(root: str | Path, classes: Sequence[str] | None = None) -> Listing:
    """The images below `root`: each folder in it is a class, its images may lie in folders of their own.

    Files of other kinds, and whatever begins with a dot, are no images. A folder is read once however many links lead
    to it, so that links in a circle end.

    Args:
        classes: the classes that there must be, those of training for a folder of validation; default: what there is.

    Raises:
        NotFoundError: there is no such folder.
        JobError: the folder has no classes, a class has no images, or the classes are not those that there must be.
    """
    place = Path(root)
    if not place.is_dir():
        raise NotFoundError(f"data: {shown(str(root))} is no folder; name one with a folder of images for each class")
    folders = sorted(name for name in _entries(place) if not name.startswith(".") and (place / name).is_dir())
    if not folders:
        raise JobError(f"data: {shown(str(root))} must hold a folder of images for each class, and holds no folder")
    if classes is not None:
        _refuse_other_classes(place, folders, classes)
    names: list[bytes] = []
    labels: list[int] = []
    ignored = sum(not name.startswith(".") for name in _entries(place)) - len(folders)
    for label, folder in enumerate(folders):
        files = list(_files_below(place / folder, {_identity(place)}))
        images = sorted(os.fsencode(file.relative_to(place)) for file in files if file.suffix.lower() in SUFFIXES)
        if not images:
            raise JobError(
                f"data: class {shown(folder)} of {shown(str(root))} must hold images, and holds {len(files)} other "
                "files; add its images, or remove the folder"
            )
        names += images
        labels += [label] * len(images)
        ignored += len(files) - len(images)
    return Listing(str(root), tuple(folders), np.array(names), np.array(labels, np.int64), ignored)


def _files_below(folder: Path, read: set[tuple[int, int]]) -> Iterator[Path]:
    """Every file below `folder`, also those that links lead to; `read` are the folders that were read before."""
    identity = _identity(folder)
    if identity in read:
        return
    read.add(identity)
    for name in sorted(_entries(folder)):
        place = folder / name
        if name.startswith("."):
            continue
        if place.is_dir():
            yield from _files_below(place, read)
        else:
            yield place  # a link that leads nowhere too: it is an image that cannot be read


def _identity(folder: Path) -> tuple[int, int]:
    status = folder.stat()
    return status.st_dev, status.st_ino


def _entries(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError as error:
        raise JobError(f"data: {shown(str(folder))} cannot be listed: {error.strerror}") from None


def _refuse_other_classes(root: Path, folders: Sequence[str], classes: Sequence[str]) -> None:
    missing, unknown = sorted(set(classes) - set(folders)), sorted(set(folders) - set(classes))
    if missing or unknown:
        parts = [f"{kind} {_several(names)}" for kind, names in (("lacks", missing), ("adds", unknown)) if names]
        raise JobError(
            f"data: {shown(str(root))} must hold the {len(classes)} classes of training: it {' and '.join(parts)}"
        )


def _several(names: Sequence[str]) -> str:
    return ", ".join(map(shown, names[:NAMED])) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
