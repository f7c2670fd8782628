"""Another trajectory in place of the one that a run holds: a crash at any moment leaves the one or the other.

What is new is written beside, into a folder of its own. Then one whole write of run.json says that the snapshots and
the history there are the run's: before it the run is as it was, from it on every reader sees the new. Only then is the
old deleted and the new put at its usual place, and at last run.json written again without that word. Each of these
steps may be done twice, so whoever writes to the run next ends what a crash has left.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from landscape.errors import LandscapeError, shown
from landscape.folders import Folder
from landscape.folders.files import PARTIAL, left_by_the_dead
from landscape.trajectory.run_files import (
    FOLDER,
    HISTORY_FILE,
    REPLACING,
    SNAPSHOT_FORMAT,
    SNAPSHOT_NAME,
    STAGED,
    contents,
    read_info,
    refusing_disk_errors,
    write_info,
)

OWN_STEMS = ("run", "history", "checkpoint")  # of what is written right in the folder of a run, besides `driver`
HEAD = 4096  # bytes of a snapshot that tell its format


@contextlib.contextmanager
def staging(folder: Folder) -> Iterator[str]:
    """The name of a folder to write into what will replace the trajectory; it goes when the block ends."""
    name = f".{FOLDER}-{os.getpid()}-{secrets.token_hex(4)}{PARTIAL}"
    try:
        yield name
    finally:
        # A replacement that was decided and could not be ended lives there; where that is not known, it stays as well.
        with contextlib.suppress(LandscapeError, OSError):
            if not any(path.startswith(f"{name}/") for path in _named(read_info(folder).get(REPLACING))):
                folder.delete_below(name)


def _named(replacing: Any) -> list[str]:
    return [] if replacing is None else [*replacing["snapshots"], *filter(None, [replacing["history"]])]


def replace(folder: Folder, info: Mapping[str, Any], snapshots: Sequence[str], history: str | None) -> None:
    """Make these the run's snapshots, history and run.json, and nothing else.

    Args:
        snapshots: their paths in the run: staged, or of those that it holds already.
        history: the path of a staged one, HISTORY_FILE to keep what is there, or None for none.

    Raises:
        LandscapeError: the disk is full or rights are missing; or what was staged has been removed by another process.
    """
    chosen = {"snapshots": list(snapshots), "history": history}
    if _missing(folder, chosen):
        raise LandscapeError(
            f"run {shown(folder.name)}: what was to replace its trajectory was removed by another process; do it again"
        )
    write_info(folder, {**info, REPLACING: chosen})
    finish(folder)


def _missing(folder: Folder, chosen: Any) -> bool:
    paths = [path.rpartition("/") for path in _named(chosen)]
    there = {below: folder.names(below) for below in {below for below, _, _ in paths if below}}
    return any(below and name not in there[below] for below, _, name in paths)


def finish(folder: Folder) -> None:
    """End a replacement that was decided and cut off, if there is one.

    Raises:
        LandscapeError: the disk is full or rights are missing; or what replaces is gone.
    """
    info = read_info(folder)
    if REPLACING not in info:
        return
    chosen = contents(folder, info)
    if _missing(folder, info[REPLACING]):
        raise LandscapeError(
            f"run {shown(folder.name)}: files that its run.json names under {REPLACING!r} are gone; restore them, or "
            "delete run.json and import or collect again"
        )
    with refusing_disk_errors(folder.name):
        _move(folder, chosen.snapshots, chosen.history)
        write_info(folder, {key: value for key, value in info.items() if key != REPLACING})
        for staged in {path.rpartition("/")[0] for path in _named(info[REPLACING])} - {"", FOLDER}:
            folder.delete_below(staged)


def _move(folder: Folder, snapshots: Sequence[str], history: str | None) -> None:
    """The old away, then the new to its usual place: whatever is not synced yet counts nowhere."""
    names = {path.rpartition("/")[2] for path in snapshots}
    for name in folder.names(FOLDER):
        if SNAPSHOT_NAME.fullmatch(name) and name not in names:
            folder.delete(f"{FOLDER}/{name}")
    folder.sync_names(FOLDER)
    for path in snapshots:
        if not path.startswith(f"{FOLDER}/"):
            folder.copy(path, f"{FOLDER}/{path.rpartition('/')[2]}")
    if history is None:
        folder.delete(HISTORY_FILE)
        folder.sync_names("")
    elif history != HISTORY_FILE:
        folder.copy(history, HISTORY_FILE)


def remove_leftovers(folder: Folder) -> None:
    """Delete what processes that are no more left half written, known by the exact names that are given to it."""
    with refusing_disk_errors(folder.name):
        used = {path.rpartition("/")[0] for path in _named(read_info(folder).get(REPLACING))}
        for name in folder.folders(""):
            # A process number says nothing of what was written to an object store from elsewhere.
            if STAGED.fullmatch(name) and name not in used and ("://" in folder.name or _is_left(name)):
                folder.delete_below(name)
        for name in folder.names(""):
            if (left_by_the_dead(name) or "").partition(".")[0] in OWN_STEMS:
                folder.delete(name)
        for name in folder.names(FOLDER):
            stem = left_by_the_dead(name)
            if (stem and SNAPSHOT_NAME.fullmatch(f"{stem}.safetensors")) or _is_cut_off(folder, name):
                folder.delete(f"{FOLDER}/{name}")


def _is_left(staged: str) -> bool:
    match = STAGED.fullmatch(staged)
    return match is not None and left_by_the_dead(f".{FOLDER}-{match[1]}{PARTIAL}") is not None


def _is_cut_off(folder: Folder, name: str) -> bool:
    """Whether it is the temporary file of safetensors, with a snapshot in it that was cut off: its head tells."""
    if not (name.startswith(".tmp") and len(name) == len(".tmp") + 6):
        return False
    head = folder.read_range(f"{FOLDER}/{name}", 0, HEAD)
    return not head or SNAPSHOT_FORMAT.encode() in head
