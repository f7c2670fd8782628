"""The files of a run beside its landscapes: their names, whole-or-nothing writes, and which of them count.

    <run>/run.json                             what was trained, with which options
    <run>/history.jsonl                        one line per recorded step and per epoch
    <run>/trajectory/epoch-00003.safetensors   parameters and buffers of one epoch or step

Nothing else in the project knows these names. While a trajectory is being replaced, run.json alone says which snapshots
and which history count (`replacement`). A run may lie in an object store as well: `landscape.folders` hides which.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from safetensors import SafetensorError

from landscape.errors import LandscapeError, message_of, shown
from landscape.folders import Folder, Place, open_folder
from landscape.folders.files import PARTIAL

SNAPSHOT_FORMAT = "landscape-snapshot-1"
INFO_FILE, HISTORY_FILE, FOLDER = "run.json", "history.jsonl", "trajectory"
REPLACING = "replacing"  # the key of run.json that says what counts instead
SNAPSHOT_NAME = re.compile(r"(epoch|step)-(\d{5,15})\.safetensors")
HISTORY_NAME = re.compile(re.escape(HISTORY_FILE))
STAGED = re.compile(rf"\.{FOLDER}-(\d+)-[0-9a-f]{{8}}{re.escape(PARTIAL)}")


@dataclass(frozen=True)
class Contents:
    """The paths, relative to the run, of its snapshots and of its history; None where it has none."""

    snapshots: tuple[str, ...]
    history: str | None


def read_info(run: Place) -> dict[str, Any]:
    """The contents of run.json; empty where there is none."""
    folder = open_folder(run)
    place = shown(folder.place(INFO_FILE))
    try:
        data = folder.read(INFO_FILE)
        found = {} if data is None else json.loads(data)
    except OSError as error:
        reason = error.strerror or message_of(error)
        raise LandscapeError(f"{place} cannot be read: {reason}; restore it or move it away") from None
    except (ValueError, RecursionError):
        raise LandscapeError(
            f"{place} cannot be read: it is empty, no JSON, or nested too deeply; restore it or delete it"
        ) from None
    if not isinstance(found, dict):
        raise LandscapeError(f"{place} must hold one JSON object; restore it or delete it")
    return found


def write_info(run: Place, info: Mapping[str, Any]) -> None:
    with writing(run, INFO_FILE) as temporary:
        temporary.write_text(json.dumps(info, indent=2, allow_nan=False, ensure_ascii=False) + "\n")


def contents(run: Place, info: Mapping[str, Any]) -> Contents:
    """What counts in a run whose run.json says `info`.

    Raises:
        LandscapeError: run.json names files that are no snapshots or history of this run.
    """
    folder = open_folder(run)
    if REPLACING in info:
        return _replacing(info[REPLACING], folder)
    names = filter(SNAPSHOT_NAME.fullmatch, folder.names(FOLDER))
    return Contents(tuple(f"{FOLDER}/{name}" for name in names), HISTORY_FILE)


def _replacing(found: Any, folder: Folder) -> Contents:
    snapshots, history = (found.get("snapshots"), found.get("history")) if isinstance(found, dict) else (None, None)
    own_history = history in (None, HISTORY_FILE) or _is_ours(history, HISTORY_NAME)
    if own_history and isinstance(snapshots, list) and all(_is_ours(path, SNAPSHOT_NAME) for path in snapshots):
        return Contents(tuple(snapshots), history)
    place = shown(folder.place(INFO_FILE))
    raise LandscapeError(f"{place} says of {REPLACING!r} what no snapshots and history are; restore it or delete it")


def _is_ours(path: Any, name: re.Pattern[str]) -> bool:
    below, _, last = path.rpartition("/") if isinstance(path, str) else ("", "", "")
    return (below == FOLDER or STAGED.fullmatch(below) is not None) and name.fullmatch(last) is not None


@contextlib.contextmanager
def writing(run: Place, path: str) -> Iterator[Any]:
    """A temporary file to fill, which then takes its place: readers and crashes see all of it or nothing."""
    folder = open_folder(run)
    with refusing_disk_errors(folder.place(path)), folder.whole(path) as temporary:
        yield temporary


@contextlib.contextmanager
def refusing_disk_errors(place: str) -> Iterator[None]:
    """Turn a full disk or missing rights into one line with its remedy."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or message_of(error) or type(error).__name__
        raise LandscapeError(
            f"{shown(place)} cannot be written: {reason}; what was collected is intact: make room or mend the rights"
        ) from None
