"""One driver per run: on this machine a lock that dies with its owner, in an object store one that must be renewed."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from landscape.errors import LandscapeError, shown
from landscape.folders import Folder, open_folder
from landscape.lease import CARD, lease, lease_seconds


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
    owner = Path(folder.place(CARD))
    lock = FileLock(folder.place("driver.lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise LandscapeError(
            f"run: {shown(run)} is being written by {_describe(owner)}; wait for it or stop it first"
        ) from None
    try:
        owner.write_text(json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "started": time.time()}))
        yield
    finally:
        owner.unlink(missing_ok=True)
        lock.release()


def _describe(owner: Path) -> str:
    try:
        found = json.loads(owner.read_text())
        return f"process {found['pid']} on {found['host']}"
    except (OSError, ValueError, KeyError):
        return "another driver"


def driver_alive(run: str) -> bool:
    """Whether the driver that writes this run lives, as far as this machine can tell."""
    folder: Any = open_folder(run)
    if "://" in folder.name:
        return _renewed(folder)
    try:
        owner = json.loads(folder.read(CARD) or "{}")
        if owner["host"] != socket.gethostname():
            return True  # another machine's: only the lock itself could tell
        os.kill(owner["pid"], 0)
    except PermissionError:
        return True  # it lives, and is somebody else's
    except (OSError, ValueError, KeyError):
        return False
    return True


def _renewed(folder: Any) -> bool:
    """Whether the lock in an object store was put within its lease; the two clocks may differ by less than that."""
    found = folder.read_tagged(CARD)
    return found is not None and (datetime.now(UTC) - found[2]).total_seconds() < lease_seconds(found[0])
