"""Which images a folder of classes holds: root/class/image.jpeg, the classes sorted by name."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from landscape.core.errors import JobError, NotFoundError, shown

SUFFIXES = frozenset((".jpeg", ".jpg", ".png", ".bmp", ".ppm", ".pgm", ".tif", ".tiff", ".webp", ".gif"))
NAMED = 5  # classes that a message names


@dataclass(frozen=True)
class Listing:
    """The images of one folder, in the order of their classes and then of their names.

    Attributes:
        root: the folder.
        classes: their names; the label of an image is the place of its class here.
        names: the paths relative to root, one after another. Worker processes share them; of a list of strings each
            process would come to hold a copy, since counting references writes to them.
        ends: int64 [N], where each path ends in `names`.
        labels: int64 [N].
        ignored: how many other files there were.
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
    place = str(root)
    if not os.path.isdir(place):
        raise NotFoundError(f"data: {shown(place)} is no folder; name one with a folder of images for each class")
    entries = _entries(place)
    folders = [entry.name for entry in entries if _is_folder(entry)]
    if not folders:
        raise JobError(f"data: {shown(place)} must hold a folder of images for each class, and holds no folder")
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
                f"data: class {shown(folder)} of {shown(place)} must hold images, and holds {len(files)} other "
                "files; add its images, or remove the folder"
            )
        names += images
        labels += [label] * len(images)
        ignored += len(files) - len(images)
    ends = np.cumsum([len(name) for name in names], dtype=np.int64)
    return Listing(place, tuple(folders), b"".join(names), ends, np.array(labels, np.int64), ignored)


def _files_below(root: str, folder: str, read: set[tuple[int, int]]) -> Iterator[str]:
    """The paths, relative to `root`, of all files below `folder`, and of those that links lead to.

    Args:
        read: the folders that were read before.
    """
    identity = _identity(os.path.join(root, folder))
    if identity in read:
        return
    read.add(identity)
    for entry in _entries(os.path.join(root, folder)):
        path = os.path.join(folder, entry.name)
        if _is_folder(entry):
            yield from _files_below(root, path, read)
        else:
            yield path  # a link that leads nowhere too: it is an image that cannot be read


def _identity(folder: str) -> tuple[int, int]:
    status = os.stat(folder)
    return status.st_dev, status.st_ino


def _entries(folder: str) -> list[os.DirEntry[str]]:
    """What a folder holds, by name; its listing tells folders from files, where a look at each would take minutes."""
    try:
        with os.scandir(folder) as entries:
            return sorted((each for each in entries if not each.name.startswith(".")), key=lambda each: each.name)
    except OSError as error:
        raise JobError(f"data: {shown(folder)} cannot be listed: {error.strerror}") from None


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
            f"data: {shown(root)} must hold the {len(classes)} classes of training: it {' and '.join(parts)}"
        )


def _several(names: Sequence[str]) -> str:
    return ", ".join(map(shown, names[:NAMED])) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
