"""A log in an object store, where no object can be added to: it is put anew as a whole from time to time."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass

from landscape.core.base import Folder, Log

LOG_SECONDS = 30.0


@dataclass
class _Lines:
    """The content of a log, apart from the log itself: it is still put when the log is garbage-collected."""

    folder: Folder
    path: str
    data: bytearray
    dirty: bool = False

    def put(self) -> None:
        """Put all lines, where some were added since the last time."""
        if self.dirty:
            self.folder.write(self.path, bytes(self.data))
            self.dirty = False


class ObjectLog(Log):
    """An object cannot be added to: lines are kept here, and all of them put when synced, or after a while.

    What a crash loses is what was added in the last `LOG_SECONDS`, or while the last twenty puts took, if longer.
    """

    def __init__(self, folder: Folder, path: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._wait = clock, LOG_SECONDS
        self._lines = _Lines(folder, path, bytearray(folder.read(path) or b""))
        self._put = clock()
        weakref.finalize(self, self._lines.put)  # a process that ends in an orderly way loses no line

    def add(self, line: bytes) -> None:
        """Keep one line, newline included, and put all of them where the last time was long ago."""
        self._lines.data += line
        self._lines.dirty = True
        if self._clock() - self._put >= self._wait:
            self.sync()

    def sync(self) -> None:
        """Put all lines now, and wait 20 times as long as that took before the next put."""
        began = self._clock()
        self._lines.put()
        self._put = self._clock()
        self._wait = max(LOG_SECONDS, 20 * (self._put - began))
