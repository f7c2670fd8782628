"""Writing an export as a whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from landscape.core import files
from landscape.core.errors import LandscapeError, shown


@contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """A temporary path beside `path` to write to; it takes `path`'s name when the block ends without an error.

    Raises:
        LandscapeError: the folder cannot be written, or the disk is full; then nothing is left behind.
    """
    target = Path(path)
    try:
        with files.whole_file(target) as temporary:
            yield temporary
    except OSError as error:
        raise LandscapeError(
            f"{shown(str(target))} cannot be written: {error.strerror or error}; name another folder"
        ) from error
