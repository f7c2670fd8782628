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

from landscape.errors import LandscapeError, flat, shown
from landscape.folders import Folder, open_folder
from landscape.folders.lease import CARD, lease, lease_seconds
from landscape.processes import is_alive

LOCK = "driver.lock"
LONGEST_CARD = 1 << 16
ASKING_SECONDS = 0.5


@contextlib.contextmanager
def run_lock(run: str) -> Iterator[None]:
    """Hold the run's lock while the block runs.

    On this machine the operating system frees it when the process ends, however it ends; in an object store it runs
    out when it is no longer renewed.

    Raises:
        LandscapeError: another driver that is alive holds it; says which.
    """
    folder = open_folder(run)
    with lease(folder) if "://" in folder.name else _file_lock(run, folder):
        yield


@contextlib.contextmanager
def _file_lock(run: str, folder: Folder) -> Iterator[None]:
    folder.make()
    owner, place = Path(folder.place(CARD)), Path(folder.place(LOCK))
    if place.is_symlink():
        raise LandscapeError(f"run: {shown(str(place), 300)} is a link, which is not followed; remove it")
    lock = FileLock(place)
    try:
        # A process that looks whether a driver lives holds the lock for an instant.
        lock.acquire(timeout=ASKING_SECONDS)
    except Timeout:
        raise LandscapeError(
            f"run: {shown(run)} is being written by {_describe(folder)}; wait for it or stop it first"
        ) from None
    try:
        owner.unlink(missing_ok=True)  # the file may be a link, through which another file would be overwritten
        with open(owner, "x") as file:
            file.write(json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "started": time.time()}))
        yield
    finally:
        owner.unlink(missing_ok=True)
        lock.release()


def _describe(folder: Folder) -> str:
    owner = _owner(folder)
    return f"process {owner['pid']} on {flat(owner['host'], 100)}" if owner else "another driver"


def _owner(folder: Folder) -> dict[str, Any]:
    """What the file that describes a run's owner says; empty where there is none that can be read."""
    if Path(folder.place(CARD)).is_symlink():
        return {}
    try:
        card = json.loads(folder.read_range(CARD, 0, LONGEST_CARD))
    except (OSError, ValueError, RecursionError):
        return {}
    well_formed = isinstance(card, dict) and type(card.get("pid")) is int and isinstance(card.get("host"), str)
    return card if well_formed else {}


def driver_alive(run: str) -> bool:
    """Whether the driver that writes this run lives, as the lock says, which the operating system releases at its end.

    Where the file system has no locks, the process id in the file beside it decides, if it is one of this machine's.
    """
    folder: Any = open_folder(run)
    if "://" in folder.name:
        return _renewed(folder)
    held = _is_held(Path(folder.place(LOCK)))
    return _is_running(_owner(folder)) if held is None else held


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


def _renewed(folder: Any) -> bool:
    """Whether the lock in an object store was put within its lease; the two clocks may differ by less than that."""
    lock = folder.read_tagged(CARD)
    return lock is not None and (datetime.now(UTC) - lock[2]).total_seconds() < lease_seconds(lock[0])
