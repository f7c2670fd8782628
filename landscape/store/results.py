"""A run opened for reading, and its landscapes removed, renamed, replaced or annotated."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from landscape.core.errors import JobError, LandscapeError, NotFoundError, StoreError, flat, quoted
from landscape.core.files import PARTIAL, Folder, Place
from landscape.core.folders import open_folder
from landscape.core.grid import AXIS_NAMES
from landscape.core.lock import (
    LOCK,
    MEASURING_LOCK,
    TRAINING_LOCK,
    driver_alive,
    living_measurement,
    measuring_lock,
    run_lock,
    training_alive,
    training_lock,
)
from landscape.core.text import digest
from landscape.core.validation import LONGEST_LANDSCAPE_NAME, landscape_name
from landscape.job.reading import read_job
from landscape.model.history import read_history
from landscape.model.packed_snapshots import logged_beyond
from landscape.model.run_files import (
    CHECKPOINTS,
    INFO_FILE,
    LAUNCH_FILE,
    REPLACING,
    read_info,
    read_measures,
)
from landscape.model.run_files import (
    FOLDER as TRAJECTORY,
)
from landscape.model.run_files import (
    STAGED as STAGED_TRAJECTORY,
)
from landscape.model.snapshots import Trajectory, read_trajectory
from landscape.store.chunk_io import DurableStore
from landscape.store.commit import finish_move, move_landscape
from landscape.store.documents import FOLDER, LEVELS, METADATA, ROUNDS, Documents
from landscape.store.format import with_stderr
from landscape.store.landscape import LandscapeStore
from landscape.store.packed_run import run_at
from landscape.store.runs import (
    CARDS,
    OWN_FILES,
    OWN_PATH,
    Move,
    RunContents,
    contents_of,
    describe,
    is_free,
    landscape_names,
    open_zarr,
    read_move,
    survey,
    write_error,
)
from landscape.surface.record import Record
from landscape.surface.surface import RISE_STDERR, Surface


class Run(Mapping[str, Surface]):
    """A run opened for reading: its landscapes by name, and the files of its training."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __repr__(self) -> str:
        return f"Run({quoted(self.path)}, landscapes={list(self)})"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """This run in a notebook: its landscapes with small pictures, and text."""
        from landscape.views.notebook import run_bundle

        return run_bundle(self)

    def __iter__(self) -> Iterator[str]:
        return iter(landscape_names(self.path))

    def __contains__(self, name: object) -> bool:
        # `Mapping` would read the whole surface. A landscape that cannot be read is not in the run.
        return any(name == readable for readable in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __getitem__(self, name: str) -> Surface:
        surface = replace(LandscapeStore.open(self.path, name).read_surface(), run=self.path)
        number = surface.record.origin_step
        later = self._logged_beyond(number) if number is not None else ""
        if not later or later == surface.record.went_on_to:
            return surface
        return replace(surface, attributes=surface.record.changed(went_on_to=later).attributes)

    def _logged_beyond(self, number: int) -> str:
        """The end of training, such as `epoch 12`, if it is beyond a snapshot of this run; else empty."""
        with contextlib.suppress(LandscapeError):
            trajectory = self.trajectory
            return logged_beyond(trajectory, trajectory.snapshot(number))
        return ""

    @property
    def unreadable(self) -> dict[str, str]:
        """The landscapes whose metadata cannot be read, with the reasons."""
        return survey(self.path).unreadable

    @property
    def info(self) -> dict[str, Any]:
        """The description of the training, from `run.json`."""
        return read_info(self.path)

    @property
    def history(self) -> list[dict[str, Any]]:
        """The training history, one dict per recorded step."""
        return read_history(self.path)

    @property
    def measures(self) -> dict[str, Any]:
        """The measures of the run, from `measures.json`; empty if there is no such file."""
        return read_measures(self.path)

    @property
    def trajectory(self) -> Trajectory:
        """The snapshots that training left, in order."""
        return read_trajectory(self.path)


def open_run(path: str | Path) -> Run:
    """Open a run, or a packed one, for reading, also while a job writes it; this needs no lock.

    Raises:
        NotFoundError: there is no such folder, or nothing at that URL. For a job file the message names the job's run.
        JobError: the packed run is damaged.

    Example:
        >>> import torch
        >>> from landscape import Job, Problem, run
        >>> def problem():
        ...     return Problem.supervised(torch.nn.Linear(2, 2), (torch.ones(8, 2), torch.zeros(8).long()))
        >>> _ = run(Job(run="runs/mine", problem=problem, num_samples=8, landscapes=[{"name": "minimum", "size": 3}]))
        >>> opened = open_run("runs/mine")
        >>> list(opened), opened["minimum"].loss.shape
        (['minimum'], (3, 3))
    """
    if (folder := open_folder(run_at(path))).exists():
        return Run(folder.name)
    if os.path.isfile(path):
        raise NotFoundError(f"run: must be a folder or URL, not the file {quoted(str(path))}; {_run_named_in(path)}")
    raise NotFoundError(f"run {quoted(str(path))} does not exist; `landscape run JOB` makes one")


def _run_named_in(file: str | Path) -> str:
    """The remedy if a file is given for a run: the run of the job in the file."""
    try:
        return f"the run of this job is {quoted(read_job(file).run_path, 300)}"
    except LandscapeError:
        return "name the run that a job has written"


# ----------------------------------------------------------------------------------------------------
# Landscapes removed, renamed and replaced, by a caller that holds the run's lock.

STAGED, EXTENDING = ".staged-", ".extending"


def staged_name(name: str) -> str:
    """The name of an imported landscape until it is whole; readers skip such names, and no job can have one."""
    return f"{STAGED}{name}"


def extension_name(name: str) -> str:
    """The name of an extension while it is computed: NAME.extending; a long NAME is cut and gets its digest appended.

    >>> extension_name("plane"), len(extension_name(100 * "a"))
    ('plane.extending', 100)
    """
    longest = LONGEST_LANDSCAPE_NAME - len(EXTENDING)
    return (name if len(name) <= longest else f"{name[: longest - 9]}-{digest(name)[:8]}") + EXTENDING


def begun_extension(run: Place, name: str) -> str | None:
    """The name of the unfinished extension of a landscape; None if there is none."""
    folder, extension = open_folder(run), extension_name(name)
    return extension if folder.folders(f"{FOLDER}/{extension}") else None


def removable(run: Place, name: str) -> Record | None:
    """The record of a landscape that may be removed; None if it is half made or half removed.

    Raises:
        NotFoundError: there is none of that name.
        LandscapeError: the landscape cannot be read, or holds a file that this software did not write.
    """
    folder, path = open_folder(run), f"{FOLDER}/{name}"
    store = LandscapeStore.find(folder, name)
    if store is None:
        if folder.folders(path) or folder.names(path) or read_move(folder) == Move(name):
            return None
        LandscapeStore.open(folder.name, name)  # raises, and lists the existing names
        raise AssertionError
    _refuse_foreign(folder, store)
    return store.record


def remove_stored(run: Place, name: str) -> None:
    """Remove a landscape, also a half-removed one, and an unfinished import under its name.

    Raises:
        NotFoundError, LandscapeError: as in `removable`.
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
    """Rename a landscape, also in its record and in the job there.

    Raises:
        NotFoundError, LandscapeError: as in `removable`; LandscapeError also if the landscape is being extended.
        JobError: the new name is taken, or no valid name.
    """
    folder = open_folder(run)
    if finish_move(folder) == Move(name, new):
        return
    refuse_taken(folder, new)
    if removable(folder, name) is None:
        raise LandscapeError(f"landscape {quoted(name)} is half made; run its job again, or remove it")
    if extension := begun_extension(folder, name):
        raise LandscapeError(
            f"landscape {quoted(name)} is being extended; give that command again first, or remove {quoted(extension)}"
        )
    LandscapeStore.open(folder, name, write=True)  # mends documents that were read from the root's copies
    move_landscape(folder, Move(name, new))


def refuse_taken(run: Place, new: str) -> None:
    """Refuse a name that no landscape can have, or that is taken.

    Raises:
        JobError: names the broken rule, or the file or landscape with that name.
    """
    try:
        landscape_name(new)
    except ValueError as error:
        raise JobError(f"name: {error}") from None
    folder = open_folder(run)
    for other in (*folder.folders(FOLDER), *folder.names(FOLDER)):
        if other.lower() == new.lower() and not (other == new and is_free(folder, new)):
            case = "" if other == new else f", which differs from {quoted(new)} in case alone"
            raise JobError(f"name: {quoted(other)} is in the run already{case}; choose another name, or remove that")


def replace_landscape(run: Place, staged: str, name: str) -> None:
    """Replace the landscape `name` by the landscape `staged`, which takes its name and its position.

    At every moment, readers find one whole landscape of that name, the old or the new one; a read during the change is
    refused. If this process is killed, the next process that opens a landscape of the run for writing finishes the
    change. Partial files of killed processes in `staged` are deleted.

    Raises:
        NotFoundError: there is no landscape `staged`.
        LandscapeError: one of the two cannot be read, or `name` holds a file that this software did not write.
    """
    folder = open_folder(run)
    LandscapeStore.open(folder.name, staged, write=True)  # finishes an earlier change, and mends documents
    before = describe(folder, Documents(folder), name)
    if before is not None:
        removable(folder, name)
    elif not is_free(folder, name):
        raise LandscapeError(
            f"landscape {quoted(name)}: what lies there is no landscape of this software; move it away"
        )
    _delete_partial(folder, f"{FOLDER}/{staged}")
    move_landscape(folder, Move(staged, name, before.record.position if before else None))


def _delete_partial(folder: Folder, path: str) -> None:
    """Delete the partial files of killed processes below a folder; under the lock, no other process writes there."""
    for file in folder.stamps(path):
        if PARTIAL in file.rpartition("/")[2]:
            folder.delete(f"{path}/{file}")


def _refuse_foreign(folder: Folder, landscape: LandscapeStore) -> None:
    """Refuse a landscape with files that this software did not write.

    Raises:
        LandscapeError: names such a file.
        OSError: the landscape is a link.
    """
    path, documents = f"{FOLDER}/{landscape.path}", Documents(folder)
    store = open_zarr(folder, read_only=True)
    if isinstance(store, DurableStore):
        store.refuse_elsewhere(f"{landscape.path}/{METADATA}")
    observables = landscape.record.observables
    ours = {"status", "directions", LEVELS, ROUNDS, RISE_STDERR, *with_stderr(observables), *AXIS_NAMES}
    files = dict.fromkeys([*folder.names(path), *folder.stamps(path)])  # the names have links, too
    foreign = [file for file in files if not OWN_PATH.fullmatch(file) and PARTIAL not in file.rpartition("/")[2]]
    for name in folder.folders(path):
        is_ours = name in ours or name.startswith("path_")
        if not is_ours and not documents.has(landscape.path, name):
            foreign.append(name)
    if foreign:
        raise LandscapeError(
            f"landscape {quoted(landscape.name)}: {quoted(folder.place(f'{path}/{foreign[0]}'), 300)} was not written "
            "by this software; move it away first"
        )


# ----------------------------------------------------------------------------------------------------
# The same operations for users: each call takes the run's lock, so that no driver writes meanwhile.


def remove_landscape(run: str | Path, name: str) -> None:
    """Remove a landscape from a run, with all its values, and its unfinished extension.

    Only computing it again brings it back.

    Readers find it whole, or not at all. If the process is killed meanwhile, the landscape is gone for all readers, and
    the same call, or the next job of the run, removes its remaining files.

    Raises:
        NotFoundError: there is no such run or landscape.
        LandscapeError: a driver writes the run, the landscape cannot be read, or it holds files that this software did
            not write.

    Example:
        >>> import torch
        >>> from landscape import Job, Problem, open_run, run
        >>> def problem():
        ...     return Problem.supervised(torch.nn.Linear(2, 2), (torch.ones(8, 2), torch.zeros(8).long()))
        >>> landscapes = [{"name": name, "size": 3} for name in ("rough", "fine")]
        >>> _ = run(Job(run="runs/tidy", problem=problem, num_samples=8, tile=3, landscapes=landscapes))
        >>> remove_landscape("runs/tidy", "rough")
        >>> list(open_run("runs/tidy"))
        ['fine']
    """
    remove_landscapes(run, [name])


def remove_landscapes(
    run: str | Path, names: Sequence[str], confirmed: Callable[[str, list[str]], bool] = lambda run, names: True
) -> list[str]:
    """Remove landscapes from a run, each with its unfinished extension: all of them, or none if one cannot be removed.

    Args:
        confirmed: called with the run's path and the names before anything is removed; no lock is held meanwhile.

    Returns:
        The names of the removed landscapes; empty if `confirmed` returned False.

    Raises:
        NotFoundError, LandscapeError: as in `remove_landscape`.
    """
    path = open_run(run).path
    refuse_driven(path)
    extensions = [begun_extension(path, name) for name in names]
    removed = list(dict.fromkeys([*names, *(name for name in extensions if name is not None)]))
    for name in removed:
        removable(path, name)
    if not confirmed(path, removed):
        return []
    with writing(path):
        for name in removed:
            removable(path, name)
        for name in removed:
            remove_stored(path, name)
    return removed


def remove_run(
    run: str | Path,
    parts: Sequence[str] = (),
    confirmed: Callable[[str, RunContents], bool] = lambda run, contents: True,
) -> RunContents | None:
    """Remove a run, all that this software wrote there; or only its trajectory or checkpoints.

    Files of others, and links, are left where they are, with their folders. Each landscape is there for readers whole,
    or not at all. If the process is killed meanwhile, the same call goes on.

    Args:
        parts: `trajectory`, `checkpoints`, or both; default: the whole run.
        confirmed: called with the run's path and what would be removed; no lock is held meanwhile.

    Returns:
        What was removed, and the foreign files that are left; None if `confirmed` returned False.

    Raises:
        NotFoundError: there is no such run.
        JobError: an unknown part.
        LandscapeError: a driver or a training writes the run, a command measures it, a service answers for it, a
            landscape cannot be read, or it holds files that this software did not write; nothing is removed then. Also
            if the disk refuses in the middle.

    Example:
        >>> import torch
        >>> from landscape import Job, Problem, remove_run, run
        >>> def problem():
        ...     return Problem.supervised(torch.nn.Linear(2, 2), (torch.ones(8, 2), torch.zeros(8).long()))
        >>> landscapes = [{"name": "rough", "size": 3}]
        >>> _ = run(Job(run="runs/old", problem=problem, num_samples=8, tile=3, landscapes=landscapes))
        >>> remove_run("runs/old").landscapes
        ('rough',)
    """
    if unknown := sorted(set(parts) - {TRAJECTORY, CHECKPOINTS}):
        raise JobError(f"parts: must be {TRAJECTORY} or {CHECKPOINTS}, not {quoted(unknown[0])}")
    path = open_run(run).path
    contents_of(path)  # refuses what is no run before a lock is put there
    refuse_driven(path)
    _refuse_used(path)
    try:
        contents = _removable_contents(path, parts)
    except OSError as error:  # one of its landscapes is a link
        raise write_error(path, error) from error
    if not contents.landscapes and not any(contents.files.values()):
        return contents
    if not confirmed(path, contents):
        return None
    with writing(path), training_lock(path), measuring_lock(path):
        present = _removable_contents(path, parts)  # with the files of these locks
        _refuse_later(path, contents, present)
        _remove_contents(path, present)
    if not parts:
        _delete_empty_folders(path)
    return contents


def _remove_contents(run: str, contents: RunContents) -> None:
    """Remove landscapes, then files; a LandscapeError says where the disk refuses that in the middle."""
    try:
        for name in contents.landscapes:
            remove_stored(run, name)
        _delete_files(open_folder(run), list(chain(*contents.files.values())))
    except StoreError:
        raise
    except OSError as error:
        raise LandscapeError(
            f"run: {quoted(run, 300)} is removed in part: {flat(error.strerror or str(error))}: "
            f"{quoted(str(error.filename or run), 300)}; mend that, then give the same command again for the rest"
        ) from error


def _refuse_later(run: str, confirmed: RunContents, present: RunContents) -> None:
    """Refuse to remove what came into a run while the user was asked; the LandscapeError names it."""
    shown, there = ([*one.landscapes, *chain(*one.files.values())] for one in (confirmed, present))
    if later := [name for name in there if name not in (*shown, *LOCKS, *CARDS)]:
        raise LandscapeError(f"run: {quoted(run)} has {quoted(later[0])} only now; give the command again to see it")


def _refuse_used(run: str) -> None:
    """Refuse a run that is trained or measured, or for which a service on this machine answers.

    Raises:
        LandscapeError: names the process.
    """
    for is_used, lock in ((training_alive, training_lock), (living_measurement, measuring_lock)):
        if is_used(run):
            with lock(run):
                pass
    try:
        from landscape.core.http import services_of
    except ImportError:  # without the packages of a service there is none
        return
    if served := services_of(run):
        raise LandscapeError(
            f"run: {quoted(run)} is served by process {served[0].pid} on {served[0].host}; stop it first"
        )


def _removable_contents(run: str, parts: Sequence[str]) -> RunContents:
    """What a removal of the whole run, or of these parts of it, takes away.

    Raises:
        LandscapeError: one of the landscapes cannot be removed, or the trajectory is being replaced.
    """
    contents = contents_of(run)
    if not parts:
        for name in contents.landscapes:
            removable(run, name)
        return contents
    if TRAJECTORY in parts and REPLACING in read_info(run):
        raise LandscapeError(
            f"run: the trajectory of {quoted(run)} is being replaced; give the command that was broken off again first"
        )
    return RunContents((), {part: contents.files[part] for part in parts}, ())


LOCKS = (LOCK, TRAINING_LOCK, MEASURING_LOCK)


def _delete_files(folder: Folder, paths: Sequence[str]) -> None:
    """Delete files; those by which a folder is known as a run last, so that a removal can be repeated until then."""
    last = [path for path in (INFO_FILE, LAUNCH_FILE, f"{FOLDER}/{METADATA}", *LOCKS) if path in paths]
    first = [path for path in paths if path not in (*last, *CARDS)]
    folder.map(folder.delete, first)
    for above in {path.rpartition("/")[0] for path in first}:
        folder.sync_names(above)
    for path in last:
        folder.delete(path)
    folder.sync_names("")


def _delete_empty_folders(run: str) -> None:
    """Delete the folders that a removed run leaves empty, itself included; an object store has none."""
    if "://" in run:
        return
    for name in [*OWN_FILES, *filter(STAGED_TRAJECTORY.fullmatch, open_folder(run).folders(""))]:
        if name and not os.path.islink(os.path.join(run, name)):
            for above, _, _ in os.walk(os.path.join(run, name), topdown=False):
                with contextlib.suppress(OSError):  # not empty
                    os.rmdir(above)
    with contextlib.suppress(OSError):
        os.rmdir(run)


def rename_landscape(run: str | Path, name: str, new: str) -> None:
    """Rename a landscape of a run, also in its record and in the job there.

    At every moment, readers find it whole under one of the two names. A job continues it if its `name:` is the new one;
    with the old name, the job would begin another landscape.

    Raises:
        NotFoundError: there is no such run or landscape.
        JobError: the new name is taken, differs from another one in case alone, or is no valid name.
        LandscapeError: a driver writes the run, the landscape is being extended or cannot be read, or it holds files
            that this software did not write.

    Example:
        >>> import torch
        >>> from landscape import Job, Problem, open_run, run
        >>> def problem():
        ...     return Problem.supervised(torch.nn.Linear(2, 2), (torch.ones(8, 2), torch.zeros(8).long()))
        >>> landscapes = [{"name": "minimum", "size": 3}]
        >>> _ = run(Job(run="runs/renamed", problem=problem, num_samples=8, tile=3, landscapes=landscapes))
        >>> rename_landscape("runs/renamed", "minimum", "epoch-20")
        >>> list(open_run("runs/renamed"))
        ['epoch-20']
    """
    path = open_run(run).path
    with writing(path):
        rename_stored(path, name, new)


def refuse_driven(run: str) -> None:
    """Refuse a run that a driver writes, before the user is asked to confirm.

    Raises:
        LandscapeError: names the driver.
    """
    if driver_alive(run):
        with run_lock(run):
            pass


@contextlib.contextmanager
def writing(run: str) -> Iterator[None]:
    """Hold the run's lock while the block runs, and turn errors of the disk into a message of one line.

    Raises:
        LandscapeError: a driver writes the run, or the disk cannot be written.
    """
    try:
        with run_lock(run):
            yield
    except LandscapeError:
        raise
    except OSError as error:
        raise write_error(run, error) from error


def keep_with_landscape(run: str, name: str, **entries: Any) -> None:
    """Store results about a landscape in its document.

    Args:
        entries: fields of its record, which are no part of its identity.

    Raises:
        LandscapeError: a driver writes the run, or the disk cannot be written.
    """
    with writing(run):
        store = LandscapeStore.open(run, name, write=True)
        store.update_attributes(**entries)
        store.consolidate()
