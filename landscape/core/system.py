"""This process and its machine: the memory that is free, its limits, other processes, and who runs it."""

from __future__ import annotations

import ctypes
import getpass
import os
import resource
import signal
import sys
from pathlib import Path


def free_host_bytes() -> int:
    """The bytes that can be had without swapping; a container, a Slurm job or `ulimit -v` may have set a limit."""
    return min([_free_of_machine(), *_limits_of_control_groups(), *_left_of_address_space()])


def _free_of_machine() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _limits_of_control_groups() -> list[int]:
    """The bytes that each control group of this process may use, of those groups that have a limit."""
    root = Path("/sys/fs/cgroup")
    limits: list[int] = []
    try:
        own = root / Path("/proc/self/cgroup").read_text().splitlines()[-1].rpartition(":")[2].lstrip("/")
    except (OSError, IndexError):
        return []
    for folder in {own, *own.parents, root}:
        if folder.is_relative_to(root):
            limits += _number_in(folder / "memory.max")
    return limits


def _number_in(file: Path) -> list[int]:
    try:
        return [int(file.read_text())]
    except (OSError, ValueError):  # there is no such file, or it says "max": no limit
        return []


def _left_of_address_space() -> list[int]:
    """The bytes by which this process may still grow, where it has such a limit."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return []
    try:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return [limit]
    return [max(0, limit - used)]


# ----------------------------------------------------------------------------------------------------
# Other processes of this machine: whether one is alive, and which of them end together.

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


SENT_FROM = "LANDSCAPE_SENT_FROM"  # set for the driver of a job that was sent: HOST:FOLDER of where it was sent from


def sent_from() -> tuple[str, str] | None:
    """The host and the folder that this process's job was sent from; None for a job that was not sent."""
    host, colon, folder = os.environ.get(SENT_FROM, "").partition(":")
    return (host, folder) if colon else None


def user_name() -> str:
    """Who runs this process: LOGNAME or USER of the environment, or else the account; its number without a name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may give a process a number that no account has
        return str(os.getuid())
