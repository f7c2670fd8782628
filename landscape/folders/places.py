"""The places that a job names: paths relative to its folder, and URLs."""

from __future__ import annotations

from pathlib import Path

from landscape.errors import JobError, shown


def locate(path: str, folder: Path) -> str:
    """`path` as an absolute path, relative ones taken from `folder`; a URL stays as it is."""
    if "://" in path and not path.startswith("file://"):
        return path
    try:
        return str((folder / Path(path.removeprefix("file://")).expanduser()).absolute())
    except RuntimeError:
        raise JobError(f"run: {shown(path)} names a home folder that is not known; write the path out") from None
