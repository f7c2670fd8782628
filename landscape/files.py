"""Files that appear whole or not at all, and stay after a power cut."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

PARTIAL = ".partial"


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` to write to; it takes `path`'s name when the block ends without an error.

    The temporary name ends like `path`, as some writers choose their format by it, and begins with a dot.
    """
    # A link that lies there by that name already would lead the writing elsewhere.
    temporary = path.with_name(f".{path.stem[:80]}-{os.getpid()}-{uuid.uuid4().hex[:8]}{PARTIAL}{path.suffix}")
    make_folder(path.parent)
    try:
        open(temporary, "xb").close()
        mode = temporary.stat().st_mode
        yield temporary
        temporary.chmod(mode)  # safetensors makes its files readable for their owner alone
        fsync(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    fsync(path.parent)


def open_plain(path: Path) -> BinaryIO:
    """A file open for reading that is one: a pipe or a device would be waited for.

    Raises:
        OSError: it is a folder, or something else; or it cannot be opened.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        kind = IsADirectoryError if stat.S_ISDIR(mode) else OSError
        code = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
        raise kind(code, "is a folder" if stat.S_ISDIR(mode) else "is no file", str(path))
    return open(descriptor, "rb")


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
