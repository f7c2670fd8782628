"""Commands in processes of their own, and what a run has committed while they compute."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

from landscape.store.results import open_run
from landscape.surface.surface import OK

CLI = (sys.executable, "-W", "ignore", "-m", "cluster")
# `trouble` of a job with minutes of work left until a file is there.
HELD = """
    def trouble(x, y):
        held(25, "hurry", 2.0)
"""


def command(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Give a command and wait for its end."""
    return subprocess.run(
        [*CLI, *map(str, words)], env=os.environ | environment, capture_output=True, text=True, check=False, timeout=200
    )


def committed(run: str) -> int:
    """The points of the run's plane that are computed."""
    try:
        return int((open_run(run)["plane"].status == OK).sum())
    except LookupError:
        return 0


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
