"""Which landscapes of a run may be removed, get another name or be replaced, and doing so; under the run's lock."""

from __future__ import annotations

from landscape.core.digests import digest
from landscape.core.errors import JobError, LandscapeError, shown
from landscape.core.files import PARTIAL, Folder, Place
from landscape.core.folders import open_folder
from landscape.core.grid import AXIS_NAMES
from landscape.core.validation import LONGEST_LANDSCAPE_NAME, landscape_name
from landscape.store.documents import FOLDER, LEVELS, METADATA, Documents
from landscape.store.durable import DurableStore
from landscape.store.format import with_stderr
from landscape.store.journal import Move, read_move
from landscape.store.landscape import LandscapeStore
from landscape.store.moving import finish_move, move_landscape
from landscape.store.runs import describe, is_free, open_zarr
from landscape.surface.record import Record
from landscape.surface.surface import RISE_STDERR

STAGED, EXTENDING = ".staged-", ".extending"


def staged_name(name: str) -> str:
    """The name under which an imported landscape is written, until it is whole.

    Survey and page leave names out that begin with a dot, and no job can have them.
    """
    return f"{STAGED}{name}"


def extension_name(name: str) -> str:
    """The name under which an extension is computed: NAME.extending, a long NAME cut and followed by its digest.

    >>> extension_name("plane"), len(extension_name(100 * "a"))
    ('plane.extending', 100)
    """
    longest = LONGEST_LANDSCAPE_NAME - len(EXTENDING)
    return (name if len(name) <= longest else f"{name[: longest - 9]}-{digest(name)[:8]}") + EXTENDING


def begun_extension(run: Place, name: str) -> str | None:
    """The name of the extension of a landscape that is begun and not complete; None where there is none."""
    folder, extension = open_folder(run), extension_name(name)
    return extension if folder.folders(f"{FOLDER}/{extension}") else None


def removable(run: Place, name: str) -> Record | None:
    """The record of a landscape that may be removed; None where it is half made, or half removed.

    Raises:
        NotFoundError: there is none of that name.
        LandscapeError: it cannot be read, or something lies in it that this software did not write.
    """
    folder, path = open_folder(run), f"{FOLDER}/{name}"
    found = LandscapeStore.find(folder, name)
    if found is None:
        if folder.folders(path) or folder.names(path) or read_move(folder) == Move(name):
            return None
        LandscapeStore.open(folder.name, name)  # raises, and lists the names that there are
        raise AssertionError
    _refuse_foreign(folder, found)
    return found.record


def remove_stored(run: Place, name: str) -> None:
    """Remove a landscape, and what an import had begun to write in its place. One half removed is removed to the end.

    Raises:
        NotFoundError, LandscapeError: as `removable` has them.
    """
    folder = open_folder(run)
    finished = finish_move(folder)
    if finished is not None and finished == Move(name):
        return
    removable(folder, name)
    if folder.folders(f"{FOLDER}/{staged_name(name)}"):
        move_landscape(folder, Move(staged_name(name)))
    move_landscape(folder, Move(name))


def rename_stored(run: Place, name: str, new: str) -> None:
    """Give a landscape another name, also in its record and the job that it keeps.

    Raises:
        NotFoundError, LandscapeError: as `removable` has them.
        LandscapeError: it is being extended.
        JobError: the new name is taken, or is none.
    """
    folder = open_folder(run)
    finish_move(folder)
    refuse_taken(folder, new)
    if removable(folder, name) is None:
        raise LandscapeError(f"landscape {shown(name)} is half made; run its job again, or remove it")
    if extension := begun_extension(folder, name):
        raise LandscapeError(
            f"landscape {shown(name)} is being extended; give that command again first, or remove {shown(extension)}"
        )
    LandscapeStore.open(folder, name, write=True)  # mends its documents, for which the root's copies may stand in
    move_landscape(folder, Move(name, new))


def refuse_taken(run: Place, new: str) -> None:
    """Refuse a name for a landscape that is none, or that is taken.

    Raises:
        JobError: says which rule is broken, or what has the name.
    """
    try:
        landscape_name(new)
    except ValueError as error:
        raise JobError(f"name: {error}") from None
    folder = open_folder(run)
    for other in (*folder.folders(FOLDER), *folder.names(FOLDER)):
        if other.lower() == new.lower() and not (other == new and is_free(folder, new)):
            alike = "" if other == new else f", which differs from {shown(new)} in case alone"
            raise JobError(f"name: {shown(other)} is in the run already{alike}; choose another name, or remove that")


def replace_landscape(run: Place, staged: str, name: str) -> None:
    """Have the landscape `staged` take the place of the landscape `name`, its name and its position.

    At every moment readers find one whole landscape of that name: the one before, or the one that takes its place.
    What is read of one while the other takes its place is refused. Killed in the middle, it is done to the end by
    whoever opens a landscape of the run for writing next; `staged` is then gone, and `name` is the new one. Files that
    processes were writing to `staged` when they were killed are not taken along.

    Raises:
        NotFoundError: there is no landscape `staged`.
        LandscapeError: one of the two cannot be read, or something lies in `name` that this software did not write.
    """
    folder = open_folder(run)
    LandscapeStore.open(folder.name, staged, write=True)  # also finishes a change, and mends
    before = describe(folder, Documents(folder), name)
    if before is not None:
        removable(folder, name)
    elif not is_free(folder, name):
        raise LandscapeError(f"landscape {shown(name)}: what lies there is no landscape of this software; move it away")
    _delete_partial(folder, f"{FOLDER}/{staged}")
    move_landscape(folder, Move(staged, name, before.record.position if before else None))


def _delete_partial(folder: Folder, path: str) -> None:
    """Delete the files below a folder that a killed process was writing; nobody else writes there under the lock."""
    for file in folder.stamps(path):
        if _is_partial(file.rpartition("/")[2]):
            folder.delete(f"{path}/{file}")


def _is_partial(name: str) -> bool:
    """Whether a file is one that is written before it takes its name: by this software, or by Zarr."""
    return PARTIAL in name


def _refuse_foreign(folder: Folder, landscape: LandscapeStore) -> None:
    """Refuse to take along what this software did not write.

    Raises:
        LandscapeError: names it.
        OSError: the landscape is a link.
    """
    path, documents = f"{FOLDER}/{landscape.path}", Documents(folder)
    store = open_zarr(folder, read_only=True)
    if isinstance(store, DurableStore):
        store.refuse_elsewhere(f"{landscape.path}/{METADATA}")
    observables = landscape.record.observables
    ours = {"status", "directions", LEVELS, RISE_STDERR, *with_stderr(observables), *AXIS_NAMES}
    foreign = [name for name in folder.names(path) if name != METADATA and not _is_partial(name)]
    for name in folder.folders(path):
        known = name in ours or name.startswith("path_")
        if not known and not documents.has(landscape.path, name):
            foreign.append(name)
    if foreign:
        raise LandscapeError(
            f"landscape {shown(landscape.name)}: {shown(folder.place(f'{path}/{foreign[0]}'), 300)} was not written by "
            "this software; move it away first"
        )
