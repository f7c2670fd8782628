"""One driver per run: a lock that dies with its owner."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from landscape.errors import LandscapeError
from landscape.files import make_folder


@contextlib.contextmanager
def run_lock(run: str) -> Iterator[None]:
    """Hold the run's lock; the operating system frees it when this process ends, however it ends.

    Raises:
        LandscapeError: another driver that is alive holds it; says which.
    """
    folder = Path(run)
    make_folder(folder)
    owner = folder / "driver.json"
    lock = FileLock(str(folder / "driver.lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise LandscapeError(
            f"run: {run!r} is being written by {_describe(owner)}; wait for it or stop it first"
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
