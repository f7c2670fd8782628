"""The places that a job names: paths relative to its folder, and URLs; and what figures call runs there."""

from __future__ import annotations

import os.path
from collections.abc import Sequence
from pathlib import Path

from landscape.core.errors import JobError, shown


def locate(path: str, folder: Path) -> str:
    """`path` as an absolute path, relative ones taken from `folder`; a URL stays as it is."""
    if "://" in path and not path.startswith("file://"):
        return path
    try:
        return str((folder / Path(path.removeprefix("file://")).expanduser()).absolute())
    except RuntimeError:
        raise JobError(f"run: {shown(path)} names a home folder that is not known; write the path out") from None


def real_place(place: str) -> str:
    """A folder without links, `.` and `..`, by which two names of one run are told; a URL as it is."""
    return place if "://" in place else os.path.realpath(place)


def run_labels(paths: Sequence[str]) -> list[str]:
    """The shortest ends of the paths that tell different paths apart, of at least one part.

    >>> run_labels(["runs/a/sgd", "runs/b/sgd", "runs/adam", "runs/adam/"])
    ['a/sgd', 'b/sgd', 'adam', 'adam']
    """
    parts = [path.replace("\\", "/").rstrip("/").split("/") for path in paths]
    labels = []
    for own in parts:
        others = [other for other in parts if other != own]
        length = next((n for n in range(1, len(own)) if all(other[-n:] != own[-n:] for other in others)), len(own))
        labels.append("/".join(own[-length:]))
    return labels
