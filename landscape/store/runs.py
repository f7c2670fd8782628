"""The landscapes of a run: their names and places, a change of names under way, and whether the run can be written."""

from __future__ import annotations

import errno
import json
from dataclasses import asdict, dataclass, replace
from typing import Any

from zarr.abc.store import Store

from landscape.core.errors import JobError, LandscapeError, NotFoundError, flat, quoted
from landscape.core.files import Folder, Place
from landscape.core.folders import open_folder
from landscape.store.chunk_io import DurableStore
from landscape.store.documents import FOLDER, LEVELS, Documents, LandscapeSummary, is_same
from landscape.surface.record import Record

# ----------------------------------------------------------------------------------------------------
# The journal of a change of names in a run: one file, which every reader obeys until the change is done.
#
# A landscape is removed or renamed for all readers at the moment when this file appears, whole. The deleting and moving
# of files that follows may be interrupted at any moment; whoever writes the run next finishes it.

JOURNAL = f"{FOLDER}/.moving"


@dataclass(frozen=True)
class Move:
    """A landscape that is removed, or gets another name.

    Attributes:
        source: its old name, which no landscape has any more.
        target: its new name; a landscape that had this name is replaced. None where the landscape is removed.
        position: its new position in its job; None where that stays.
    """

    source: str
    target: str | None = None
    position: int | None = None


def read_move(folder: Folder) -> Move | None:
    """The change under way in a run; None where there is none, or the file is malformed."""
    try:
        entries = json.loads(folder.read(JOURNAL) or b"null")
        source, target, position = (entries[name] for name in ("source", "target", "position"))
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    whole = _is_name(source) and (target is None or (_is_name(target) and target != source))
    return Move(source, target, position if type(position) is int else None) if whole else None


def _is_name(name: object) -> bool:
    """Whether a name leads to a folder directly below that of the landscapes."""
    return isinstance(name, str) and name not in ("", ".", "..") and not set(name) & set("/\\\0")


def write_move(folder: Folder, move: Move) -> None:
    """Begin a change: when this returns, it holds for every reader, even after a power cut."""
    folder.write(JOURNAL, json.dumps(asdict(move)).encode())


def end_move(folder: Folder) -> None:
    """Delete the journal of a change that is done."""
    folder.delete(JOURNAL)
    folder.sync_names(FOLDER)


def place_of(documents: Documents, move: Move | None, name: str) -> str | None:
    """The folder of the landscape of a name while a change is under way; None where there is no such landscape."""
    if move is None or name not in (move.source, move.target):
        return name
    if name == move.source:
        return None
    # Its own document is moved last.
    return move.source if documents.exists(move.source) else name


def names_after(names: list[str], move: Move | None) -> list[str]:
    """The names of the landscapes, given those of the folders; hidden folders are being made, and are left out."""
    shown = {name for name in names if not name.startswith(".")}
    if move is not None:
        shown = (shown | {move.target or move.source}) - {move.source}
    return sorted(shown)


# ----------------------------------------------------------------------------------------------------

MOST_LANDSCAPES = 100_000
TRIES = 5  # to read a run while another process changes names


def open_zarr(run: Place, *, read_only: bool) -> Store:
    """The Zarr store of a run's landscapes, which need not exist yet."""
    place = open_folder(run).place(FOLDER)
    if "://" not in place:
        return DurableStore(place, read_only=read_only)
    from landscape.store.chunk_io import open_remote

    return open_remote(place, read_only=read_only)


@dataclass(frozen=True)
class Survey:
    """The landscapes of a run that can be read, in the order of their job, and why the others cannot."""

    readable: dict[str, LandscapeSummary]
    unreadable: dict[str, str]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the landscapes that can be read, in the order of their job."""
        return tuple(self.readable)


def survey(run: Place) -> Survey:
    """The landscapes of a run. One that a killed driver left half made is neither readable nor unreadable.

    Raises:
        LandscapeError: the run has too many landscapes, or a file lies where their folder should be.
    """
    return survey_folder(open_folder(run))


def survey_folder(folder: Folder) -> Survey:
    """The same of a run whose folder is open."""
    for _ in range(TRIES):
        move = read_move(folder)
        found = _survey(folder, names_after(folder.folders(FOLDER), move))
        if read_move(folder) == move:  # else some names are of before the change, and some of after it
            break
    return found


def _survey(folder: Folder, names: list[str]) -> Survey:
    documents = Documents(folder)
    if len(names) > MOST_LANDSCAPES:
        raise LandscapeError(
            f"run {quoted(folder.name, 300)} holds more than {MOST_LANDSCAPES} landscapes; look at fewer"
        )
    if not names and FOLDER in folder.names(""):
        raise LandscapeError(f"{quoted(folder.place(FOLDER), 300)} must be a folder, not a file; move it away")
    looks = dict(zip(names, folder.map(lambda name: _look_at(folder, documents, name), names), strict=True))
    readable = {name: look for name, look in looks.items() if isinstance(look, LandscapeSummary)}
    return Survey(
        {name: readable[name] for name in sorted(readable, key=lambda name: (_position(readable[name]), name))},
        {name: look for name, look in looks.items() if isinstance(look, str)},
    )


def _look_at(folder: Folder, documents: Documents, name: str) -> LandscapeSummary | str | None:
    """What a landscape's document says, or why it cannot be read; None where there is no document yet."""
    try:
        return describe(folder, documents, name)
    except LandscapeError as error:
        return str(error)


def _position(landscape: LandscapeSummary) -> int:
    """The position of a landscape in the job that began it; an imported one has none, and comes first."""
    position = landscape.record.position
    return -1 if position is None else position


def describe(folder: Folder, documents: Documents, name: str, level: int = 0) -> LandscapeSummary | None:
    """What the documents of a landscape, or of a level of it, say; None where there is none, or a half-made one.

    A change of names that is under way counts as done.

    Raises:
        LandscapeError: what lies there cannot be read.
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
            # Check this before reading the root's copy, which may describe an earlier landscape of this name.
            if is_free(folder, at_level(path, level)):
                return None
            break
        path = place_of(documents, move, name)
    described = documents.landscape(at_level(path or name, level))
    if move is None or move.target != name:
        return described
    return replace(described, record=rename_record(described.record, name, move.position), path=path or "")


def rename_record(record: Record, name: str, position: int | None) -> Record:
    """The record of a landscape under this name, also in the job that it keeps.

    Args:
        position: its new position in the job; None where that stays.
    """
    changes: dict[str, Any] = {"name": name} if record.states("name") else {}
    if record.job is not None and len(record.job.landscapes) == 1:
        changes["job"] = {**record.job.whole, "landscapes": [{**record.job.landscapes[0], "name": name}]}
    if position is not None:
        changes["position"] = position
    return record.changed(**changes)


def is_there(run: Place, name: str) -> bool:
    """Whether there is a landscape of this name, readable or not."""
    folder = open_folder(run)
    try:
        return describe(folder, Documents(folder), name) is not None
    except LandscapeError:
        return True


def at_level(path: str, level: int) -> str:
    """The path in the store of a level of a landscape; level 0 is the landscape itself."""
    return f"{path}/{LEVELS}/{level}" if level else path


def refuse_moved(folder: Folder, name: str, path: str, record: Record, level: int = 0) -> None:
    """Refuse what was read of a landscape if another one may have taken its place meanwhile.

    Args:
        path, record: its place in the store and its record when it was opened.

    Raises:
        LandscapeError: it was removed, got another name, or was replaced by another one.
    """
    now = describe(folder, Documents(folder), name, level)
    same = now is not None and is_same(dict(now.record.attributes), dict(record.attributes))
    if now is None or not same or at_level(now.path or name, level) != path:
        raise LandscapeError(
            f"landscape {quoted(name)} was removed, renamed or replaced while it was read; open the run again"
        )


def root_problems(run: Place) -> list[str]:
    """What is wrong with the root's document, which other readers of Zarr open first, a sentence each."""
    folder = open_folder(run)
    return Documents(folder).root_problems() if folder.folders(FOLDER) else []


def landscape_names(run: Place) -> list[str]:
    """The landscapes of a run that can be read, finished or not, in the order of their job."""
    return list(survey(run).names)


def refuse_outside(run: Place, name: str) -> None:
    """Refuse a name that would lead out of the run: callers may pass any text.

    Raises:
        NotFoundError: the name has a slash, or is `.`, `..` or empty.
    """
    if set(name) & set("/\\\0") or name in ("", ".", ".."):
        raise NotFoundError(f"landscape {quoted(name)} is not in run {quoted(str(run), 300)}; name one without '/'")


# -- half-made landscapes ------------------------------------------------------------------------------------------


def mark_path(name: str) -> str:
    """The path of the mark that a landscape is being made: written before its first file, deleted after its last."""
    above, _, last = f"{FOLDER}/{name}".rpartition("/")
    return f"{above}/.making-{last}"


def mark(folder: Folder, name: str) -> None:
    """Mark a landscape as being made."""
    folder.write(mark_path(name), json.dumps({"making": name}).encode())


def unmark(folder: Folder, name: str) -> None:
    """Delete the mark that a landscape is being made, where there is one."""
    if folder.read(mark_path(name)) is not None:
        folder.delete(mark_path(name))


def is_free(run: Place, name: str) -> bool:
    """Whether a landscape of this name can be made: nothing lies there, or only what a killed driver left half made.

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
    """Remove the half-made landscape that a killed driver left.

    Raises:
        LandscapeError: what lies there may be something else; it stays.
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
        JobError: the folder, or the one it would be made in, does not exist or takes no files.
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
