"""Puts another trajectory in place of the one that a run holds: a crash at any moment leaves one or the other.

It goes in four steps:

1. The new files are written into a folder of their own beside the trajectory.
2. One whole write of run.json names them as the snapshots and the history that count. Before it the run is as it was;
   from it on every reader sees the new ones.
3. The old files are deleted, and the new ones are copied to their usual places.
4. run.json is written again without those names, and the folder beside is deleted.

Steps 3 and 4 may be done twice, so whoever writes to the run next finishes what a crash has left undone.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from landscape.core.errors import LandscapeError, shown
from landscape.core.files import PARTIAL, Folder, left_by_the_dead
from landscape.model.run_files import (
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

# Temporary files right in the folder of a run are named after these, apart from the driver's own.
OWN_STEMS = ("run", "history", "checkpoint", "launch")
HEAD = 4096  # bytes at the beginning of a snapshot that hold the name of its format


@contextlib.contextmanager
def staging(folder: Folder) -> Iterator[str]:
    """The name of a folder to write the new files into; it is deleted when the block ends.

    It stays where run.json names files in it, since `finish` needs these, and where run.json cannot be read.
    """
    name = f".{FOLDER}-{os.getpid()}-{secrets.token_hex(4)}{PARTIAL}"
    try:
        yield name
    finally:
        with contextlib.suppress(LandscapeError, OSError):
            if not any(path.startswith(f"{name}/") for path in _paths(read_info(folder).get(REPLACING))):
                folder.delete_below(name)


def _paths(replacing: Any) -> list[str]:
    """The paths that run.json names under `REPLACING`; none where it has no such entry."""
    return [] if replacing is None else [*replacing["snapshots"], *filter(None, [replacing["history"]])]


def replace(folder: Folder, info: Mapping[str, Any], snapshots: Sequence[str], history: str | None) -> None:
    """Make these the run's snapshots, history and run.json, and nothing else.

    Args:
        folder: the run.
        info: the contents of the new run.json.
        snapshots: the paths of the snapshots in the run: staged ones, or some that it holds already.
        history: the path of a staged history, HISTORY_FILE to keep the one that is there, or None for none.

    Raises:
        LandscapeError: the disk is full or rights are missing; or another process has removed what was staged.
    """
    named = {"snapshots": list(snapshots), "history": history}
    if _is_any_missing(folder, named):
        raise LandscapeError(
            f"run {shown(folder.name)}: another process has removed the files that were to replace its trajectory; "
            "do it again"
        )
    write_info(folder, {**info, REPLACING: named})
    finish(folder)


def _is_any_missing(folder: Folder, replacing: Any) -> bool:
    """Whether a file that is named below a folder is not there; HISTORY_FILE itself may be absent."""
    paths = [path.rpartition("/") for path in _paths(replacing)]
    names = {below: folder.names(below) for below in {below for below, _, _ in paths if below}}
    return any(below and name not in names[below] for below, _, name in paths)


def finish(folder: Folder) -> None:
    """Finish a replacement that run.json names and that was cut off, if there is one.

    Raises:
        LandscapeError: the disk is full or rights are missing; or the new files are gone.
    """
    info = read_info(folder)
    if REPLACING not in info:
        return
    new = contents(folder, info)
    if _is_any_missing(folder, info[REPLACING]):
        raise LandscapeError(
            f"run {shown(folder.name)}: files that its run.json names under {REPLACING!r} are gone; restore them, or "
            "delete run.json and import or collect again"
        )
    with refusing_disk_errors(folder.name):
        _move(folder, new.snapshots, new.history)
        write_info(folder, {key: value for key, value in info.items() if key != REPLACING})
        for staged in {path.rpartition("/")[0] for path in _paths(info[REPLACING])} - {"", FOLDER}:
            folder.delete_below(staged)


def _move(folder: Folder, snapshots: Sequence[str], history: str | None) -> None:
    """Delete the old files, then copy the new ones to their usual places.

    As long as run.json names the new files, only they count. Afterwards every snapshot in the folder counts, so the
    deletions are synced before that: no old file may come back with a power cut.
    """
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
    """Delete the temporary files that processes which have ended left behind, known by their exact names.

    Raises:
        LandscapeError: rights are missing.
    """
    with refusing_disk_errors(folder.name):
        used = {path.rpartition("/")[0] for path in _paths(read_info(folder).get(REPLACING))}
        for name in folder.folders(""):
            # In an object store the writer may be on another machine, where its process number says nothing here.
            if STAGED.fullmatch(name) and name not in used and ("://" in folder.name or _is_abandoned(name)):
                folder.delete_below(name)
        for name in folder.names(""):
            if (left_by_the_dead(name) or "").partition(".")[0] in OWN_STEMS:
                folder.delete(name)
        for name in folder.names(FOLDER):
            stem = left_by_the_dead(name)
            if (stem and SNAPSHOT_NAME.fullmatch(f"{stem}.safetensors")) or _is_cut_off(folder, name):
                folder.delete(f"{FOLDER}/{name}")


def _is_abandoned(staged: str) -> bool:
    """Whether the process that a staging folder is named after has ended."""
    match = STAGED.fullmatch(staged)
    return match is not None and left_by_the_dead(f".{FOLDER}-{match[1]}{PARTIAL}") is not None


def _is_cut_off(folder: Folder, name: str) -> bool:
    """Whether this is a temporary file of safetensors' own that holds the beginning of a snapshot, or nothing."""
    if not (name.startswith(".tmp") and len(name) == len(".tmp") + 6):
        return False
    head = folder.read_range(f"{FOLDER}/{name}", 0, HEAD)
    return not head or SNAPSHOT_FORMAT.encode() in head
