"""Writing files so that they appear whole or not at all, and stay after a power cut."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from landscape.core.processes import is_alive

PARTIAL = ".partial"
_PARTIAL_NAME = re.compile(rf"\.(.+?)-([1-9]\d*)(?:-[0-9a-f]{{8}})?{re.escape(PARTIAL)}(?:\.[^.]*)?")


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` to write to; it takes `path`'s name when the block ends without an error."""
    temporary = partial_path(path)
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
    """A regular file, open for reading. A pipe or a device is refused, since reading it may never end.

    Raises:
        OSError: it is no regular file, or cannot be opened.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        kind = IsADirectoryError if stat.S_ISDIR(mode) else OSError
        code = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
        raise kind(code, "is a folder" if stat.S_ISDIR(mode) else "is no file", str(path))
    return open(descriptor, "rb")


def partial_path(path: Path) -> Path:
    """A name beside `path` to write a file under, until it is whole.

    It is hidden, holds the number of this process, and keeps the suffix, by which some writers choose a format.
    """
    # The random part prevents that a link laid there under that name beforehand leads the writing elsewhere.
    return path.with_name(f".{path.stem[:80]}-{os.getpid()}-{uuid.uuid4().hex[:8]}{PARTIAL}{path.suffix}")


def left_by_the_dead(name: str) -> str | None:
    """The stem of the file that a process which has ended was writing under this partial name; None for other names.

    A name with the number of this very process is an earlier process's: in a container each driver has the same one.
    """
    match = _PARTIAL_NAME.fullmatch(name)
    if match is None:
        return None
    pid = int(match[2])
    return match[1] if pid == os.getpid() or not is_alive(pid) else None


def folder_of_user(variable: str, below_home: str, environment: Mapping[str, str]) -> Path | None:
    """This package's folder in one of those that the XDG specification names; None for a user without a home."""
    base = Path(environment.get(variable, ""))
    try:
        # The specification has relative paths ignored.
        return (base if base.is_absolute() else Path.home() / below_home) / "landscape"
    except RuntimeError:
        return None


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
