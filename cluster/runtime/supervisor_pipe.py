"""The pipe over which a child reports to its supervisor. In a process without a supervisor nothing is reported."""

from __future__ import annotations

import contextlib
import os

# The reports, one a line. From ORDERLY on a signal is answered by an orderly end, from ABRUPT on no more.
ORDERLY, ABRUPT = "orderly", "abrupt"
HERE = "here"  # user code computes in this process
PACKED = "packed"  # the job is a packed problem, and no user code runs
RAY = "ray"  # a private Ray is about to start; if it dies, the job can go on from the store with a new one
ATTACHED = "attached"  # a cluster is attached to
NO_RAY = "no-ray"  # there is neither a private Ray nor a cluster any more
LOST = "lost"  # followed by why the private Ray is gone
CONTEXT = "context"  # followed by the fields that every event has from now on, as quoted JSON
END = "end"  # followed by the exit code

_pipe: int | None = None
ray_lost = False  # LOST has been reported: the supervisor says so to the user, and goes on
avoid_here = False  # an earlier process died while it computed this job by itself


def attach(pipe: int, here_failed: bool) -> None:
    """Report over this pipe from now on.

    Args:
        here_failed: an earlier process died while user code computed in it.
    """
    global _pipe, avoid_here
    _pipe, avoid_here = pipe, here_failed


def supervised() -> bool:
    """Whether this process has a supervisor."""
    return _pipe is not None


def tell(*words: object) -> None:
    """Report to the supervisor: one of the words above, and what follows it."""
    global ray_lost
    ray_lost = ray_lost or words[0] == LOST
    if _pipe is not None:
        with contextlib.suppress(OSError):
            os.write(_pipe, (" ".join(map(str, words)) + "\n").encode())
