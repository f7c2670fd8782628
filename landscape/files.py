"""Files that appear whole or not at all, and stay after a power cut."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

PARTIAL = ".partial"


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` to write to; it takes `path`'s name when the block ends without an error.

    The temporary name ends like `path`, as some writers choose their format by it, and begins with a dot.
    """
    temporary = path.with_name(f".{path.stem[:80]}-{os.getpid()}{PARTIAL}{path.suffix}")
    make_folder(path.parent)
    try:
        temporary.touch()
        mode = temporary.stat().st_mode
        yield temporary
        temporary.chmod(mode)  # safetensors makes its files readable for their owner alone
        fsync(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    fsync(path.parent)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it that are missing, each with its name on the disk."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    fsync(folder.parent)


def fsync(place: Path) -> None:
    """Have a file's data, or a folder's names, on the disk before this returns."""
    descriptor = os.open(place, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
