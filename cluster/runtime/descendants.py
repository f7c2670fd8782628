"""The processes that this one has started, and those that they have started: which live, and how they are ended."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

LEAVE_SECONDS = 5.0  # in which what the child has started may end by itself, after an orderly end


def send_signal(pid: int, number: int) -> None:
    """Send a signal to a process that may have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def reap(pid: int) -> int | None:
    """Collect every child that has ended, adopted orphans too; the wait status of this one if it is among them."""
    wait_status = None
    with contextlib.suppress(ChildProcessError):
        while True:
            ended, status = os.waitpid(-1, os.WNOHANG)
            if ended == 0:
                break
            if ended == pid:
                wait_status = status
    return wait_status


def end_descendants(patience: float) -> None:
    """End what the child has left running.

    Args:
        patience: seconds in which it may end by itself.
    """
    end = time.monotonic() + patience
    while (left := descendants(os.getpid())) and time.monotonic() < end + LEAVE_SECONDS:
        if time.monotonic() >= end:
            for pid in left:
                send_signal(pid, signal.SIGKILL)
        time.sleep(0.02)
        reap(0)


def descendants(pid: int) -> list[int]:
    """The living processes below this one, where the system shows them under /proc."""
    parents: dict[int, int] = {}
    for place in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            name, _, fields = place.read_text().rpartition(")")
            state, parent = fields.split()[:2]
            if state not in "ZX":
                parents[int(name.split()[0])] = int(parent)
    below, generation = list[int](), {pid}
    while generation := {child for child, parent in parents.items() if parent in generation}:
        below += sorted(generation)
    return below
