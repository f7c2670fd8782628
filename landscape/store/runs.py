"""The landscapes of a run: their names and places, a change of names under way, and whether the run can be written."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from zarr.abc.store import Store

from landscape.core.errors import JobError, LandscapeError, NotFoundError, flat, quoted
from landscape.core.files import PARTIAL, Folder, Place
from landscape.core.folders import open_folder
from landscape.core.lock import CARD, LOCK, MEASURING_CARD, TRAINING_CARD
from landscape.model.run_files import (
    CHECKPOINTS,
    INFO_FILE,
    LAUNCH_FILE,
    SNAPSHOT_NAME,
)
from landscape.model.run_files import (
    FOLDER as TRAJECTORY,
)
from landscape.model.run_files import (
    NAME as CHECKPOINT_NAME,
)
from landscape.model.run_files import (
    STAGED as STAGED_TRAJECTORY,
)
from landscape.store.chunk_io import DurableStore
from landscape.store.documents import FOLDER, LEVELS, ROUNDS, Documents, LandscapeSummary, is_same
from landscape.surface.record import Record

# ----------------------------------------------------------------------------------------------------
# The journal of a change of names in a run: one file, which every reader obeys until the change is done.
#
# A landscape is removed or renamed for all readers at the moment when this file appears. The files are deleted and
# moved afterwards; if that is interrupted, the next process that writes the run finishes it.

JOURNAL = f"{FOLDER}/.moving"


@dataclass(frozen=True)
class Move:
    """The removal or the renaming of a landscape.

    Attributes:
        source: its old name, which no landscape has any more.
        target: its new name; a landscape that had this name is replaced. None if the landscape is removed.
        position: its new position in its job; None if that stays.
    """

    source: str
    target: str | None = None
    position: int | None = None


def read_move(folder: Folder) -> Move | None:
    """The change of names under way in a run; None if there is none, or the file is malformed."""
    try:
        entries = json.loads(folder.read(JOURNAL) or b"null")
        source, target, position = (entries[name] for name in ("source", "target", "position"))
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    whole = _is_name(source) and (target is None or (_is_name(target) and target != source))
    return Move(source, target, position if type(position) is int else None) if whole else None


def _is_name(name: object) -> bool:
    """Whether a name is that of a folder directly below the folder of the landscapes."""
    return isinstance(name, str) and name not in ("", ".", "..") and not set(name) & set("/\\\0")


def write_move(folder: Folder, move: Move) -> None:
    """Begin a change: when this returns, every reader sees it, even after a power cut."""
    folder.write(JOURNAL, json.dumps(asdict(move)).encode())


def end_move(folder: Folder) -> None:
    """Delete the journal of a change that is done."""
    folder.delete(JOURNAL)
    folder.sync_names(FOLDER)


def place_of(documents: Documents, move: Move | None, name: str) -> str | None:
    """The folder of a landscape by its name while a change is under way; None if there is no such landscape."""
    if move is None or name not in (move.source, move.target):
        return name
    if name == move.source:
        return None
    # The document is moved last.
    return move.source if documents.exists(move.source) else name


def names_after(names: list[str], move: Move | None) -> list[str]:
    """The names of the landscapes, from the names of the folders and a change under way; without hidden folders."""
    visible = {name for name in names if not name.startswith(".")}
    if move is not None:
        visible = (visible | {move.target or move.source}) - {move.source}
    return sorted(visible)


# ----------------------------------------------------------------------------------------------------

MOST_LANDSCAPES = 100_000
TRIES = 5  # of reading a run while another process changes names


def open_zarr(run: Place, *, read_only: bool) -> Store:
    """The Zarr store of a run's landscapes, which need not exist yet."""
    place = open_folder(run).place(FOLDER)
    if "://" not in place:
        return DurableStore(place, read_only=read_only)
    from landscape.store.chunk_io import open_remote

    return open_remote(place, read_only=read_only)


@dataclass(frozen=True)
class Survey:
    """The readable landscapes of a run, in the order of their job, and the reasons why others are unreadable."""

    readable: dict[str, LandscapeSummary]
    unreadable: dict[str, str]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the readable landscapes, in the order of their job."""
        return tuple(self.readable)


def survey(run: Place) -> Survey:
    """The landscapes of a run. A half-made one of a killed driver is neither readable nor unreadable.

    Raises:
        LandscapeError: the run has too many landscapes, or a file lies where their folder should be.
    """
    return survey_folder(open_folder(run))


def survey_folder(folder: Folder) -> Survey:
    """The landscapes of a run whose folder is open, as `survey` returns them."""
    for _ in range(TRIES):
        move = read_move(folder)
        result = _survey(folder, names_after(folder.folders(FOLDER), move))
        if read_move(folder) == move:  # else some names are from before the change, and some from after it
            break
    return result


def _survey(folder: Folder, names: list[str]) -> Survey:
    documents = Documents(folder)
    if len(names) > MOST_LANDSCAPES:
        raise LandscapeError(
            f"run {quoted(folder.name, 300)} holds more than {MOST_LANDSCAPES} landscapes; look at fewer"
        )
    if not names and FOLDER in folder.names(""):
        raise LandscapeError(f"{quoted(folder.place(FOLDER), 300)} must be a folder, not a file; move it away")
    results = dict(zip(names, folder.map(lambda name: _describe_or_why(folder, documents, name), names), strict=True))
    readable = {name: result for name, result in results.items() if isinstance(result, LandscapeSummary)}
    return Survey(
        {name: readable[name] for name in sorted(readable, key=lambda name: (_position(readable[name]), name))},
        {name: result for name, result in results.items() if isinstance(result, str)},
    )


def _describe_or_why(folder: Folder, documents: Documents, name: str) -> LandscapeSummary | str | None:
    """The content of a landscape's document, or why it cannot be read; None if there is no document yet."""
    try:
        return describe(folder, documents, name)
    except LandscapeError as error:
        return str(error)


def _position(landscape: LandscapeSummary) -> int:
    """The position of a landscape in the job that began it; landscapes without one come first."""
    position = landscape.record.position
    return -1 if position is None else position


def describe(folder: Folder, documents: Documents, name: str, level: int = 0) -> LandscapeSummary | None:
    """The content of the document of a landscape, or of one of its levels; None if there is none, or a half-made one.

    A change of names that is under way counts as done.

    Raises:
        LandscapeError: the document cannot be read.
    """
    move = read_move(folder)
    path = place_of(documents, move, name)
    for _ in range(TRIES):
        if path is None:
            return None
        if documents.is_whole(at_level(path, level)):
            break
        before, move = move, read_move(folder)
        if move == before:
            # Check this before reading the root's copy, which may be that of an earlier landscape with this name.
            if is_free(folder, at_level(path, level)):
                return None
            break
        path = place_of(documents, move, name)
    summary = documents.landscape(at_level(path or name, level))
    if move is None or move.target != name:
        return summary
    return replace(summary, record=rename_record(summary.record, name, move.position), path=path or "")


def rename_record(record: Record, name: str, position: int | None) -> Record:
    """The record with another name of the landscape, also in the job there.

    Args:
        position: its new position in the job; None if that stays.
    """
    changes: dict[str, Any] = {"name": name} if record.states("name") else {}
    if record.job is not None and len(record.job.landscapes) == 1:
        changes["job"] = {**record.job.whole, "landscapes": [{**record.job.landscapes[0], "name": name}]}
    if position is not None:
        changes["position"] = position
    return record.changed(**changes)


def is_there(run: Place, name: str) -> bool:
    """Whether a landscape of this name exists, readable or not."""
    folder = open_folder(run)
    try:
        return describe(folder, Documents(folder), name) is not None
    except LandscapeError:
        return True


def at_level(path: str, level: int) -> str:
    """The path in the store of a level of a landscape; level 0 is the landscape itself."""
    return f"{path}/{LEVELS}/{level}" if level else path


def refuse_moved(folder: Folder, name: str, path: str, record: Record, level: int = 0) -> None:
    """Refuse the values read from a landscape if another one may have taken its place meanwhile.

    Args:
        path, record: its path in the store and its record when it was opened.

    Raises:
        LandscapeError: the landscape was removed, renamed or replaced.
    """
    now = describe(folder, Documents(folder), name, level)
    same = now is not None and is_same(dict(now.record.attributes), dict(record.attributes))
    if now is None or not same or at_level(now.path or name, level) != path:
        raise LandscapeError(
            f"landscape {quoted(name)} was removed, renamed or replaced while it was read; open the run again"
        )


def root_problems(run: Place) -> list[str]:
    """The faults of the root's document, which other readers of Zarr open first, a sentence each."""
    folder = open_folder(run)
    return Documents(folder).root_problems() if folder.folders(FOLDER) else []


def landscape_names(run: Place) -> list[str]:
    """The names of the readable landscapes of a run, finished or not, in the order of their job."""
    return list(survey(run).names)


def refuse_outside(run: Place, name: str) -> None:
    """Refuse a name that would lead out of the run, since callers may pass any text.

    Raises:
        NotFoundError: the name has a slash, or is `.`, `..` or empty.
    """
    if set(name) & set("/\\\0") or name in ("", ".", ".."):
        raise NotFoundError(f"landscape {quoted(name)} is not in run {quoted(str(run), 300)}; name one without '/'")


# -- half-made landscapes ------------------------------------------------------------------------------------------


def mark_path(name: str) -> str:
    """The path of the mark of a landscape that is being made: written before its first file, deleted after its last."""
    above, _, last = f"{FOLDER}/{name}".rpartition("/")
    return f"{above}/.making-{last}"


def mark(folder: Folder, name: str) -> None:
    """Mark a landscape as being made."""
    folder.write(mark_path(name), json.dumps({"making": name}).encode())


def unmark(folder: Folder, name: str) -> None:
    """Delete the mark of a landscape that is being made, if there is one."""
    if folder.read(mark_path(name)) is not None:
        folder.delete(mark_path(name))


def is_free(run: Place, name: str) -> bool:
    """Whether a landscape of this name can be made: its folder is empty, or holds a half-made landscape.

    A landscape is half made if it has the mark, its document has no attributes yet, and no tile is committed. Anything
    else may be a whole landscape that lost a file, or a user's own data, and is never removed.
    """
    folder, path = open_folder(run), f"{FOLDER}/{name}"
    if name in folder.names(FOLDER):
        return False
    below = folder.folders(path)
    if not below and not folder.names(path):
        return True
    if folder.read(mark_path(name)) is None or folder.folders(f"{path}/status/c") or folder.names(f"{path}/status/c"):
        return False
    try:
        return not Documents(folder).is_whole(name)
    except JobError:  # a newer version of this software wrote it
        return False


def remove_half_made(run: Place, name: str) -> None:
    """Remove the half-made landscape of a killed driver.

    Raises:
        LandscapeError: the folder may hold something else; nothing is removed.
    """
    folder = open_folder(run)
    path = f"{FOLDER}/{name}"
    if not is_free(folder, name):
        raise LandscapeError(
            f"landscape {quoted(name)}: {quoted(folder.place(path), 300)} is not empty, and nothing says that this "
            "software left it half made; move it away, or give the landscape another name"
        )
    folder.delete_below(path)


def refuse_unwritable(run: Place) -> None:
    """Refuse a run that cannot be written, before a job computes anything.

    Raises:
        JobError: the folder, or the one that it would be made in, cannot be written.
        StoreError: the object store does not answer, or refuses.
    """
    open_folder(run).refuse_unwritable()


def write_error(run: str, error: OSError) -> LandscapeError:
    """The error of a failed write, with its remedy."""
    reason = flat(error.strerror or str(error))
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ELOOP) and error.filename:
        reason += f": {quoted(str(error.filename2 or error.filename), 300)}"
    if error.errno == errno.ENOENT:
        return LandscapeError(
            f"run {quoted(run, 300)} cannot be written: {reason}; put back what was moved or deleted, or give the same "
            "command again to compute it anew"
        )
    return LandscapeError(
        f"run {quoted(run, 300)} cannot be written: {reason}; what was committed is intact: "
        "make room or mend the rights, then give the same command again"
    )


# ----------------------------------------------------------------------------------------------------
# What lies in a run, as far as the names of files tell.


@dataclass(frozen=True)
class RunContents:
    """What lies in a run.

    Attributes:
        landscapes: the names of its landscapes, also of half-made ones and unfinished imports.
        files: the paths of the other files that this software wrote, by the part of the run: trajectory, checkpoints,
            others.
        foreign: the names or paths of everything else, which is never removed: other files, and links.
    """

    landscapes: tuple[str, ...]
    files: Mapping[str, Sequence[str]]
    foreign: tuple[str, ...]


# The files beside the landscapes, by the folder that they lie in; '' is the run itself.
OTHERS = "others"
COPIES = "packed"  # the folder of packed copies of problems
NETWORKS = "networks"  # the folder of weights that a call from Python gave as tensors
OWN_FILES = {
    "": r"(run|measures|launch|driver|training|measuring)\.json|history\.jsonl|(driver|training|measuring)\.lock",
    TRAJECTORY: SNAPSHOT_NAME.pattern,
    CHECKPOINTS: rf"{CHECKPOINT_NAME.pattern}|begun",
    "logs": r"rank-\d+\.log",
    "measures": r"[0-9a-f]+\.npz",
    "curvature": r"[^/]+/[^/]+/(loss|step-\d{5,})",
    COPIES: r"[0-9a-f]+\.landscape",
    NETWORKS: r"[0-9a-f]+/[\w.-]+\.safetensors",
    "served": r"[^/]+\.points|\.lock",
    FOLDER: r"zarr\.json|\.making-[^/]+|\.moving",
}
# The path of a file in a landscape, or in one of its levels: a chunk of an array, a document of Zarr, or a mark.
_PART = rf"({LEVELS}|{ROUNDS})/"
OWN_PATH = re.compile(rf"({_PART}\d+/)?[^/]+/c(/\d+)*|({_PART}(\d+/)?)?([^/]+/)?(zarr\.json|\.making-\d+)")
CARDS = (CARD, TRAINING_CARD, MEASURING_CARD)  # end with the locks that they describe
MARKS = {INFO_FILE, LAUNCH_FILE, FOLDER, LOCK}  # a folder that holds one of these is a run


def contents_of(run: Place) -> RunContents:
    """What lies in a run, from the names of its files alone. Links are not followed.

    Raises:
        NotFoundError: the folder is no run.
    """
    folder = open_folder(run)
    names, below = folder.names(""), folder.folders("")
    if not {*names, *below} & MARKS:
        raise NotFoundError(
            f"run: {quoted(folder.name, 300)} is no run: it has neither {INFO_FILE} nor {FOLDER}; `landscape list "
            "FOLDER` lists the runs of a folder"
        )
    own: dict[str, list[str]] = {TRAJECTORY: [], CHECKPOINTS: [], OTHERS: []}
    foreign: list[str] = []

    def is_link(path: str) -> bool:
        return "://" not in folder.name and os.path.islink(folder.place(path))

    def sort_in(above: str, name: str) -> None:
        path, last = f"{above}/{name}" if above else name, name.rpartition("/")[2]
        known = re.fullmatch(OWN_FILES[above], name) or (last.startswith(".") and PARTIAL in last)
        (own.get(above, own[OTHERS]) if known and not is_link(path) else foreign).append(path)

    for name in names:
        sort_in("", name)

    landscapes: list[str] = []
    for above in below:
        if STAGED_TRAJECTORY.fullmatch(above) and not is_link(above):
            own[OTHERS] += [f"{above}/{path}" for path in folder.stamps(above)]
        elif above not in OWN_FILES or is_link(above):
            foreign.append(f"{above}/")
        elif above == FOLDER:
            landscapes = [name for name in folder.folders(FOLDER) if not is_link(f"{FOLDER}/{name}")]
            foreign += [f"{FOLDER}/{name}/" for name in folder.folders(FOLDER) if name not in landscapes]
            for name in folder.names(FOLDER):
                sort_in(FOLDER, name)
        else:
            for name in folder.stamps(above):
                sort_in(above, name)
    return RunContents(tuple(landscapes), own, tuple(foreign))
