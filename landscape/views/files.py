"""Writing a file whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from landscape.errors import LandscapeError


@contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """A temporary path beside `path` to write to; it takes `path`'s name when the block ends without an error.

    Raises:
        LandscapeError: the folder cannot be written, or the disk is full; then nothing is left behind.
    """
    target = Path(path)
    temporary = target.with_name(f".{target.stem[:80]}-{secrets.token_hex(6)}{target.suffix}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except OSError as error:
        raise LandscapeError(
            f"{str(target)!r} cannot be written: {error.strerror or error}; name another folder"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
