"""Packed runs: a run with its values in one file, which readers open as they open a folder.

    landscapes.zarr/…, run.json, history.jsonl, trajectory/…, measures…    the files of the run, as they are
    packed/0f1e2d….landscape                                               the problems, for points beside the grid
    manifest.json                                                          digests, and whose problem is which

A reader copies the members into a temporary folder, which ends with its process. Names are checked by `MEMBERS`, and
contents by their digests, before anything is read from them. The problems are portable ones, so nothing of the sender's
code is executed, and `callback_place.py` looks up no other callback for such a run.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import re
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

from landscape.core.errors import LandscapeError, quoted
from landscape.core.files import UNPACKED, temporary_folder
from landscape.core.text import bytes_text
from landscape.model.packed_file import MANIFEST, RUN_FORMAT, SUFFIX, Archive, FileKind, format_of
from landscape.model.run_files import FOLDER as TRAJECTORY
from landscape.model.run_files import MEASURES_FOLDER
from landscape.store.documents import FOLDER, LEVELS, ROUNDS
from landscape.store.landscape import LandscapeStore
from landscape.store.runs import COPIES, OWN_FILES, landscape_names

# The files of a run that travel: neither checkpoints, which only their training needs, nor locks, logs and bases.
PARTS = (FOLDER, TRAJECTORY, MEASURES_FOLDER)
_IN_RUN = r"(run|measures|launch)\.json|history\.jsonl"
_BELOW = "|".join(f"{part}/({OWN_FILES[part]})" for part in (TRAJECTORY, MEASURES_FOLDER, COPIES))
_PART = rf"({LEVELS}|{ROUNDS})"
_IN_LANDSCAPE = rf"({_PART}/\d+/)?([^/]+/c(/\d+)*|([^/]+/)?zarr\.json)|{_PART}/zarr\.json"
# No part of a name begins with a dot: neither '..' nor the marks of unfinished files.
MEMBERS = re.compile(
    rf"(?!.*(/\.|[\\\x00-\x1f]))({_IN_RUN}|{_BELOW}|{FOLDER}/zarr\.json|{FOLDER}/\w[\w.-]{{0,99}}/({_IN_LANDSCAPE}))",
    re.ASCII | re.DOTALL,
)
RUN_FILE = FileKind(RUN_FORMAT, 1, "packed run", "landscape pack RUN --with-results -o FILE", MEMBERS, 200_000)
PROBLEMS = "problems"  # the key of the manifest for the record of the packed problem of each landscape


def is_packed_run(place: str | Path) -> bool:
    """Whether a place is the file of a packed run."""
    if not str(place).endswith(SUFFIX) or not os.path.isfile(place):
        return False
    with open(place, "rb") as opened:
        return format_of(opened) == RUN_FORMAT


def run_at(place: str | Path) -> str | Path:
    """The place of a run; for a packed run, its temporary copy, which lives as long as this process.

    Raises:
        JobError: the file is damaged, or holds what no packed run does.
        LandscapeError: there is no room for the copy.
    """
    if not is_packed_run(place):
        return place
    status = os.stat(place)
    return _copy_of(os.path.realpath(place), status.st_mtime_ns, status.st_size)


@cache
def _copy_of(file: str, changed: int, size: int) -> str:
    """The copy of a file, made once per content of the file in this process."""
    kept = ExitStack()
    folder = kept.enter_context(temporary_folder()) / Path(file).stem
    try:
        _unpack(Archive(file, RUN_FILE), folder)
    except BaseException as error:
        kept.close()
        if isinstance(error, OSError):
            raise LandscapeError(
                f"{quoted(file, 100)} cannot be opened: its {bytes_text(size)} are copied to {folder.parent.parent}, "
                f"and {error.strerror}; set TMPDIR to a folder with room"
            ) from None
        raise
    atexit.register(kept.close)
    return str(folder)


def _unpack(archive: Archive, folder: Path) -> None:
    """Copy the members into a new folder, and note with each landscape which packed problem is its own."""
    folder.mkdir()
    for name in archive.names:
        if name == MANIFEST:
            continue
        target = folder / name
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with open(target, "xb") as opened:
                archive.copy(name, opened)
        except (FileExistsError, NotADirectoryError, IsADirectoryError):
            raise archive.damaged(f"{quoted(name)} is a file and a folder at once") from None
    problems: Any = archive.manifest.get(PROBLEMS)
    named = problems if isinstance(problems, dict) else {}
    for name in landscape_names(str(folder)):
        if name in named:
            store = LandscapeStore.open(str(folder), name, write=True)
            store.update_attributes(packed=named[name])
            store.consolidate()
    (folder / UNPACKED).write_text(hashlib.sha256(archive.bytes_of(MANIFEST)).hexdigest())
