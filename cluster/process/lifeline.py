"""What a supervised process tells the one that supervises it, over a pipe; nothing where nobody does."""

from __future__ import annotations

import contextlib
import os

# What may be told, one a line. ORDERLY: a signal is answered by an orderly end; ABRUPT: no more.
ORDERLY, ABRUPT = "orderly", "abrupt"
HERE = "here"  # user code computes in this process
RAY = "ray"  # a private Ray of this command's own is about to start, and the job goes on from the store without it
ATTACHED = "attached"  # a cluster is attached to
NO_RAY = "no-ray"  # no longer either
LOST = "lost"  # followed by why that Ray is gone
CONTEXT = "context"  # followed by the fields that every event has from now on, as quoted JSON
END = "end"  # followed by the exit code

_pipe: int | None = None
ray_lost = False  # has been told: who supervises says it, and goes on
avoid_here = False  # an earlier process died while it computed this job by itself


def attach(pipe: int, here_failed: bool) -> None:
    """Tell whoever reads this pipe from now on."""
    global _pipe, avoid_here
    _pipe, avoid_here = pipe, here_failed


def supervised() -> bool:
    return _pipe is not None


def tell(*words: object) -> None:
    global ray_lost
    ray_lost = ray_lost or words[0] == LOST
    if _pipe is not None:
        with contextlib.suppress(OSError):
            os.write(_pipe, (" ".join(map(str, words)) + "\n").encode())
