"""One driver per run: on this machine a lock that dies with its owner, in an object store one that must be renewed."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from landscape.core.base import Folder
from landscape.core.errors import JobError, LandscapeError, flat, shown
from landscape.core.folders import open_folder
from landscape.core.lease import CARD, lease, lease_seconds
from landscape.core.processes import is_alive

LOCK = "driver.lock"
# One training at a time writes a run, beside the one driver that computes landscapes of it.
TRAINING_LOCK, TRAINING_CARD = "training.lock", "training.json"
LONGEST_CARD = 1 << 16
ASKING_SECONDS = 0.5


@contextlib.contextmanager
def run_lock(run: str) -> Iterator[None]:
    """Hold the run's lock while the block runs.

    On this machine the operating system frees it when the process ends, however it ends; in an object store it runs
    out when it is no longer renewed.

    Raises:
        JobError: the run cannot be a folder.
        LandscapeError: another driver that is alive holds it; says which.
    """
    folder = open_folder(run)
    with lease(folder) if "://" in folder.name else _file_lock(run, folder, LOCK, CARD):
        yield


@contextlib.contextmanager
def training_lock(run: str) -> Iterator[bytes]:
    """Hold the run's lock against other trainings while the block runs; landscapes may be computed meanwhile.

    Yields:
        What the file that describes this process says, which whoever sees the run's folder finds there.

    Raises:
        JobError: the run cannot be a folder.
        LandscapeError: another training that is alive holds it; says which.
    """
    folder = open_folder(run)
    with (
        lease(folder, TRAINING_CARD) if "://" in folder.name else _file_lock(run, folder, TRAINING_LOCK, TRAINING_CARD)
    ):
        yield folder.read(TRAINING_CARD) or b""


@contextlib.contextmanager
def _file_lock(run: str, folder: Folder, path: str, card: str) -> Iterator[None]:
    try:
        folder.make()
    except (FileExistsError, NotADirectoryError, FileNotFoundError) as error:
        reason = error.strerror or "no folder can be made there"
        raise JobError(f"run: must be a folder, not {shown(run)} ({reason}); name another place") from None
    owner, place = Path(folder.place(card)), Path(folder.place(path))
    if place.is_symlink():
        raise LandscapeError(f"run: {shown(str(place), 300)} is a link, which is not followed; remove it")
    lock = FileLock(place)
    try:
        # A process that looks whether a driver lives holds the lock for an instant.
        lock.acquire(timeout=ASKING_SECONDS)
    except Timeout:
        raise LandscapeError(
            f"run: {shown(run)} is being written by {_describe(folder, card)}; wait for it or stop it first"
        ) from None
    try:
        owner.unlink(missing_ok=True)  # the file may be a link, through which another file would be overwritten
        with open(owner, "x") as file:
            file.write(json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "started": time.time()}))
        yield
    finally:
        owner.unlink(missing_ok=True)
        lock.release()


def _describe(folder: Folder, path: str) -> str:
    owner = _owner(folder, path)
    return f"process {owner['pid']} on {flat(owner['host'], 100)}" if owner else "another driver"


def _owner(folder: Folder, path: str) -> dict[str, Any]:
    """What the file that describes a run's owner says; empty where there is none that can be read."""
    if Path(folder.place(path)).is_symlink():
        return {}
    try:
        card = json.loads(folder.read_range(path, 0, LONGEST_CARD))
    except (OSError, ValueError, RecursionError):
        return {}
    well_formed = isinstance(card, dict) and type(card.get("pid")) is int and isinstance(card.get("host"), str)
    return card if well_formed else {}


def driver_alive(run: str) -> bool:
    """Whether the driver that writes this run lives, as the lock says, which the operating system releases at its end.

    Where the file system has no locks, the process id in the file beside it decides, if it is one of this machine's.
    """
    return _is_alive(run, LOCK, CARD)


def training_alive(run: str) -> bool:
    """Whether a training that writes this run lives, by the same signs."""
    return _is_alive(run, TRAINING_LOCK, TRAINING_CARD)


def _is_alive(run: str, path: str, card: str) -> bool:
    folder: Any = open_folder(run)
    if "://" in folder.name:
        return _renewed(folder, card)
    held = _is_held(Path(folder.place(path)))
    return _is_running(_owner(folder, card)) if held is None else held


def _is_held(lock: Path) -> bool | None:
    """Whether a process holds a file's lock; None where that cannot be told. Needs no right to write."""
    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return True if error.errno in (errno.EWOULDBLOCK, errno.EACCES) else None
    else:
        return False
    finally:
        os.close(descriptor)


def _is_running(owner: dict[str, Any]) -> bool:
    if not owner:
        return False
    if owner["host"] != socket.gethostname():
        return True  # of a process on another machine only the lock itself could tell
    return is_alive(owner["pid"])


def _renewed(folder: Any, path: str) -> bool:
    """Whether the lock in an object store was put within its lease; the two clocks may differ by less than that."""
    lock = folder.read_tagged(path)
    return lock is not None and (datetime.now(UTC) - lock[2]).total_seconds() < lease_seconds(lock[0])
