"""Other processes of this machine: whether one lives, and who ends with whom."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_DEATH_SIGNAL, _SUBREAPER = 1, 36  # of Linux's prctl


def is_alive(pid: int) -> bool:
    """Whether there is a process of this number; it may be another one than it was."""
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True  # another user's
    except (OSError, OverflowError):
        return False
    return True


def end_with_parent() -> None:
    """This process is killed when the one that forked it ends, from now on: ask afterwards whether it still lives."""
    _prctl(_DEATH_SIGNAL, signal.SIGKILL)


def adopt_orphans() -> None:
    """What descends from this process stays below it when those between end."""
    _prctl(_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    """Linux alone has it; elsewhere a killed process leaves those below it to themselves."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
