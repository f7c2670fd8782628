"""Other processes of this machine: whether one is alive, and which of them end together."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_DEATH_SIGNAL, _SUBREAPER = 1, 36  # the options PR_SET_PDEATHSIG and PR_SET_CHILD_SUBREAPER of Linux's prctl


def is_alive(pid: int) -> bool:
    """Whether a process with this number is running; it may be a later one that was given the same number."""
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True  # it belongs to another user
    except (OSError, OverflowError):
        return False
    return True


def end_with_parent() -> None:
    """Have this process killed when the one that started it ends (Linux only).

    The parent may have ended just before this call, so the caller asks afterwards whether it is still alive.
    """
    _prctl(_DEATH_SIGNAL, signal.SIGKILL)


def adopt_orphans() -> None:
    """Make this process the parent of its descendants whose own parents end (Linux only)."""
    _prctl(_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    """Set an option of this process; systems other than Linux have none, so orphans are left to themselves there."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
