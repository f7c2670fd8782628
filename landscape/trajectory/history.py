"""The history of a training: one JSON object per recorded step and per epoch's end, each on a line of its own."""

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

from landscape.errors import JobError, LandscapeError, shown
from landscape.folders import Folder, Place, open_folder
from landscape.trajectory.run_files import (
    HISTORY_FILE,
    MOST_DIGITS,
    contents,
    read_info,
    refusing_disk_errors,
    whole_number,
)

log = logging.getLogger("landscape")


@dataclass(frozen=True)
class HistoryLines:
    """A history file, taken apart.

    Text after the last newline belongs to no line: a crash, or a writer that is still at work, leaves it incomplete.

    Args:
        data: the whole file.
        readable: each line that can be parsed, as it stands (newline included) and as the object that it holds.
        damaged: the numbers, from 1, of the lines that cannot be parsed.
    """

    data: bytes
    readable: tuple[tuple[bytes, dict[str, Any]], ...]
    damaged: tuple[int, ...]


def read_lines(run: Place) -> HistoryLines:
    """The lines of the history that counts in this run; empty where there is no history.

    Raises:
        LandscapeError: the file, or run.json, cannot be read.
    """
    data = _history_data(open_folder(run))
    readable, damaged = [], []
    for number, text in enumerate(data.split(b"\n")[:-1], 1):
        line = _parsed(text)
        if line is None:
            damaged.append(number)
        else:
            readable.append((text + b"\n", line))
    return HistoryLines(data, tuple(readable), tuple(damaged))


def _history_data(folder: Folder) -> bytes:
    """The file of the history that counts; empty where there is none."""
    path = contents(folder, read_info(folder)).history
    try:
        return (folder.read(path) if path else None) or b""
    except OSError as error:
        raise LandscapeError(f"{shown(folder.place(HISTORY_FILE))} cannot be read: {error.strerror}") from None


def _parsed(text: bytes) -> dict[str, Any] | None:
    """The JSON object on a line; None where the line holds none."""
    try:
        # Only a long line can hold a number that no floating-point number reaches, which nothing could draw.
        value = json.loads(text) if len(text) <= MOST_DIGITS else json.loads(text, parse_int=whole_number)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def read_history(run: Place) -> list[dict[str, Any]]:
    """The recorded steps and epochs, in order; empty where there are none.

    Damaged lines are left out, with a warning that names them.

    Raises:
        LandscapeError: the file, or run.json, cannot be read.
    """
    lines = read_lines(run)
    if lines.damaged:
        _warn(open_folder(run).place(HISTORY_FILE), lines.damaged)
    return [line for _, line in lines.readable]


def read_last_lines(run: Place, count: int) -> list[dict[str, Any]]:
    """The last lines of the history, at most so many; without those that cannot be read.

    Raises:
        LandscapeError: the file, or run.json, cannot be read.
    """
    texts = _history_data(open_folder(run)).split(b"\n")[:-1]
    parsed = map(_parsed, texts[-count:])
    return [line for line in parsed if line is not None]


@lru_cache(maxsize=256)  # an open page reads the same lines again and again, and should warn once
def _warn(place: str, damaged: tuple[int, ...]) -> None:
    more = f" and {len(damaged) - 5} more" if len(damaged) > 5 else ""
    numbers = ", ".join(map(str, damaged[:5]))
    log.warning(
        "history %s: line%s %s%s cannot be read and %s left out; the other lines are kept",
        shown(place), "s" if len(damaged) > 1 else "", numbers, more, "are" if len(damaged) > 1 else "is",
    )  # fmt: skip


def keep_beside(folder: Folder, data: bytes, reason: str) -> str:
    """Copy a history to `history.jsonl.<reason>-<digest>`, where nothing overwrites it, and return that name."""
    name = f"{HISTORY_FILE}.{reason}-{hashlib.sha256(data).hexdigest()[:8]}"
    with refusing_disk_errors(folder.place(name)):
        folder.write(name, data)
    return name


def kept_beside(folder: Folder, reason: str) -> list[str]:
    """The names of the copies that `keep_beside` wrote for this reason."""
    pattern = re.compile(rf"{re.escape(HISTORY_FILE)}\.{reason}-[0-9a-f]{{8}}")
    return [name for name in folder.names("") if pattern.fullmatch(name)]


class HistoryWriter:
    """Appends to the history of a run that is being trained.

    `folders.Log` says when an appended line is safe from a crash.
    """

    def __init__(self, run: Place) -> None:
        self._folder = open_folder(run)
        self._log = self._folder.log(HISTORY_FILE)

    def append(self, line: Mapping[str, Any]) -> None:
        """Add one recorded step or epoch.

        Raises:
            LandscapeError: the disk is full, or rights are missing.
        """
        with refusing_disk_errors(self._folder.name):
            self._log.add(history_line(line).encode())

    def sync(self) -> None:
        """Make every line appended so far survive a crash of this process and a power cut.

        Raises:
            LandscapeError: the disk is full, or rights are missing.
        """
        with refusing_disk_errors(self._folder.name):
            self._log.sync()


def history_line(line: Mapping[str, Any]) -> str:
    """A line of the history as text, newline included."""
    return json.dumps(line, allow_nan=False) + "\n"


def recorded_number(name: str, value: Any) -> float | int | None:
    """A loss or metric as the history holds it: a number; None where it is None, NaN or infinite.

    Example:
        >>> recorded_number("loss", 0.5), recorded_number("loss", float("nan"))
        (0.5, None)

    Raises:
        JobError: the value is not one number; the message begins with `name`.
    """
    if value is None:
        return None
    if getattr(value, "numel", lambda: 1)() != 1 or isinstance(value, (str, bytes)):
        shape = f"an array of shape {tuple(value.shape)}" if hasattr(value, "shape") else repr(value)
        raise JobError(f"{name}: must be one number, not {shape}; take its mean")
    try:
        number = value.item() if hasattr(value, "item") else value
        return finite(number if isinstance(number, int) else float(number))
    except (TypeError, ValueError):
        raise JobError(f"{name}: must be one number, not {type(value).__name__}") from None


def finite(value: Any) -> float | int | None:
    """A number for JSON, which has no NaN and no infinity: these become None."""
    return value if isinstance(value, int) or math.isfinite(value) else None
