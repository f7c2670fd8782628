"""Landscapes of a run are removed, renamed or noted on, under the run's lock: no driver writes them meanwhile."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from landscape.core.errors import LandscapeError
from landscape.core.lock import driver_alive, run_lock
from landscape.store import LandscapeStore, write_error
from landscape.store.rename import begun_extension, removable, remove_stored, rename_stored
from landscape.store.results import open_run


def remove_landscape(run: str | Path, name: str) -> None:
    """Remove a landscape from a run, with all its values, and an extension of it that is begun.

    Nothing brings it back but computing it again.

    Readers find it whole, or not at all. Killed in the middle, it is gone for all readers, and what is left of its
    files is removed by the same call, or by the next job of the run.

    Raises:
        NotFoundError: there is no such run or landscape.
        LandscapeError: a driver writes the run, the landscape cannot be read, or files lie in it that this software did
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
    """Remove landscapes from a run, each with its extension where one is begun; none where one cannot be removed.

    Args:
        confirmed: is asked with the run's path and the names before anything is removed; no lock is held meanwhile.

    Returns:
        The names of what was removed; none where it was not confirmed.

    Raises:
        NotFoundError, LandscapeError: as `remove_landscape` has them.
    """
    path = open_run(run).path
    _refuse_driven(path)
    extensions = [begun_extension(path, name) for name in names]
    wanted = list(dict.fromkeys([*names, *(name for name in extensions if name is not None)]))
    for name in wanted:
        removable(path, name)
    if not confirmed(path, wanted):
        return []
    with writing(path):
        for name in wanted:
            removable(path, name)
        for name in wanted:
            remove_stored(path, name)
    return wanted


def rename_landscape(run: str | Path, name: str, new: str) -> None:
    """Give a landscape of a run another name, also in its record and in the job that it keeps.

    At every moment readers find it whole under one of the two names. A job goes on with it where its `name:` is the
    new one; under the old name it would begin another landscape.

    Raises:
        NotFoundError: there is no such run or landscape.
        JobError: the new name is taken, differs from another one in case alone, or is none that a landscape can have.
        LandscapeError: a driver writes the run, the landscape is being extended or cannot be read, or files lie in it
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


def _refuse_driven(run: str) -> None:
    """Refuse where a driver writes the run, before anybody is asked.

    Raises:
        LandscapeError: names the driver.
    """
    if driver_alive(run):
        with run_lock(run):
            pass


@contextlib.contextmanager
def writing(run: str) -> Iterator[None]:
    """Hold the run's lock while the block runs; an error of the disk in it is told in one line.

    Raises:
        LandscapeError: a driver writes the run, or the disk takes nothing.
    """
    try:
        with run_lock(run):
            yield
    except LandscapeError:
        raise
    except OSError as error:
        raise write_error(run, error) from error


def keep_with_landscape(run: str, name: str, **entries: Any) -> None:
    """Keep what was found of a landscape in its document, beside what it is identified by.

    Args:
        entries: of its record.

    Raises:
        LandscapeError: a driver writes the run, or the disk takes nothing.
    """
    with writing(run):
        store = LandscapeStore.open(run, name, write=True)
        store.update_attributes(**entries)
        store.consolidate()
