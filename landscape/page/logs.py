"""The last lines of a run's logs, one file per rank. Links are not followed, since a log may come from anywhere."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

from landscape.core.errors import capped, printable

FOLDER = "logs"
MOST_LOGS = 64
LINES = 50
TAIL_BYTES = 64 << 10
LONGEST_LINE = 2000  # characters


class LogTails:
    """The ends of a run's logs, and which of them are new. A run in an object store has none that grow."""

    def __init__(self, run: str) -> None:
        self._folder = None if "://" in run else Path(run, FOLDER)
        self._told: dict[str, tuple[int, int]] = {}
        self._first = True

    def all(self) -> list[dict[str, Any]]:
        """The last lines of every log, by name."""
        return [{"name": name, "lines": lines} for name in self._names() if (lines := self._tail(name)) is not None]

    def news(self) -> list[dict[str, Any]]:
        """The last lines of the logs that have grown since the last call; at the first call none."""
        first, self._first = self._first, False
        found: list[dict[str, Any]] = []
        for name in self._names():
            stamp = self._stamp(name)
            if stamp is not None and self._told.get(name) != stamp:
                self._told[name] = stamp
                lines = None if first else self._tail(name)
                found += [{"name": name, "lines": lines}] if lines is not None else []
        return found

    def _names(self) -> list[str]:
        if self._folder is None or self._folder.is_symlink():
            return []
        try:
            names = sorted(name for name in os.listdir(self._folder) if name.endswith((".log", ".txt")))
        except OSError:
            return []
        return names[:MOST_LOGS]

    def _stamp(self, name: str) -> tuple[int, int] | None:
        assert self._folder is not None
        try:
            status = os.lstat(self._folder / name)
        except OSError:
            return None
        return (status.st_mtime_ns, status.st_size) if stat.S_ISREG(status.st_mode) else None

    def _tail(self, name: str) -> list[str] | None:
        """The last lines; None where it is no plain file, or cannot be read."""
        assert self._folder is not None
        try:
            descriptor = os.open(self._folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                return None
            file.seek(max(0, status.st_size - TAIL_BYTES))
            data = file.read(TAIL_BYTES)
        lines = data.decode("utf-8", "replace").splitlines()
        if status.st_size > TAIL_BYTES:
            lines = lines[1:]  # its beginning is cut off
        return [printable(capped(line, LONGEST_LINE)) for line in lines[-LINES:]]
