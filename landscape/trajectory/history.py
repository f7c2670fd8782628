"""The history of a training: one JSON object per recorded step and per epoch's end, a line each."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from landscape.errors import LandscapeError, shown
from landscape.folders import Folder, Place, open_folder
from landscape.trajectory.run_files import HISTORY_FILE, contents, read_info, refusing_disk_errors

log = logging.getLogger("landscape")


@dataclass(frozen=True)
class Lines:
    """A history's whole file, its lines as they stand with what they say, and the numbers of those that say nothing.

    What follows the last newline belongs to none: a crash, or a writer at work, leaves it torn.
    """

    data: bytes
    readable: tuple[tuple[bytes, dict[str, Any]], ...]
    damaged: tuple[int, ...]


def read_lines(run: Place) -> Lines:
    """The history that counts in this run."""
    folder = open_folder(run)
    path = contents(folder, read_info(folder)).history
    try:
        data = (folder.read(path) if path else None) or b""
    except OSError as error:
        raise LandscapeError(f"{shown(folder.place(HISTORY_FILE))} cannot be read: {error.strerror}") from None
    readable, damaged = [], []
    for number, line in enumerate(data.split(b"\n")[:-1], 1):
        found = _parsed(line)
        if found is None:
            damaged.append(number)
        else:
            readable.append((line + b"\n", found))
    return Lines(data, tuple(readable), tuple(damaged))


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def read_history(run: Place) -> list[dict[str, Any]]:
    """The recorded steps and epochs, in order; empty where there are none. Lines that are damaged are left out."""
    lines = read_lines(run)
    if lines.damaged:
        _warn(open_folder(run).place(HISTORY_FILE), lines.damaged)
    return [each for _, each in lines.readable]


@lru_cache(maxsize=256)  # a page that is open reads the same lines again and again
def _warn(place: str, damaged: tuple[int, ...]) -> None:
    more = f" and {len(damaged) - 5} more" if len(damaged) > 5 else ""
    numbers = ", ".join(map(str, damaged[:5]))
    log.warning(
        "history %s: line%s %s%s cannot be read and is left out; the lines after it are kept",
        shown(place), "s" if len(damaged) > 1 else "", numbers, more,
    )  # fmt: skip


def keep_beside(folder: Folder, data: bytes, reason: str) -> str:
    """Put a history at history.jsonl.REASON-DIGEST, where nothing overwrites it; returns that name."""
    name = f"{HISTORY_FILE}.{reason}-{hashlib.sha256(data).hexdigest()[:8]}"
    with refusing_disk_errors(folder.place(name)):
        folder.write(name, data)
    return name


def kept_beside(folder: Folder, reason: str) -> list[str]:
    """The names of the histories that were kept for this reason."""
    name = re.compile(rf"{re.escape(HISTORY_FILE)}\.{reason}-[0-9a-f]{{8}}")
    return [each for each in folder.names("") if name.fullmatch(each)]


class History:
    """The history of a run that is being trained; lines survive as `Log` says."""

    def __init__(self, run: Place) -> None:
        self._folder = open_folder(run)
        self._log = self._folder.log(HISTORY_FILE)

    def append(self, line: Mapping[str, Any]) -> None:
        with refusing_disk_errors(self._folder.name):
            self._log.add(history_line(line).encode())

    def sync(self) -> None:
        with refusing_disk_errors(self._folder.name):
            self._log.sync()


def history_line(line: Mapping[str, Any]) -> str:
    return json.dumps(line, allow_nan=False) + "\n"


def finite(value: Any) -> float | int | None:
    """A number for JSON, which has no NaN and no infinity: those become None."""
    return value if isinstance(value, int) or math.isfinite(value) else None
