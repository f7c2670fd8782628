"""What tells two contents of files and chunks apart, without reading them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from hashlib import blake2b

from landscape.core.files import Folder
from landscape.core.grid import Index
from landscape.store import ChunkChanges


def file_stamp(folder: Folder, path: str) -> tuple[int, ...] | None:
    """What tells two contents of a local file apart; None where it is not there, and in an object store."""
    if "://" in folder.name:
        return None
    try:
        status = os.stat(folder.place(path))
    except OSError:
        return None
    return (status.st_mtime_ns, status.st_size, status.st_ino)


class NotedChunks:
    """A number that differs between two contents of some chunks; `total` does not depend on the order of noting."""

    def __init__(self) -> None:
        self._noted: dict[tuple[str, Index], int] = {}
        self.total = 0

    def note(self, array: str, chunks: Iterable[Index], changes: ChunkChanges) -> None:
        """Take these chunks of an array as they are now."""
        for index in chunks:
            stamp = repr((array, index, changes.present.get(index))).encode()
            number = int.from_bytes(blake2b(stamp, digest_size=8).digest())
            self.total = (self.total + number - self._noted.get((array, index), 0)) % (1 << 64)
            self._noted[array, index] = number
