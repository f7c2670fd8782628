"""The entry point of the `landscape` command, which obeys signals before it imports anything large."""

from __future__ import annotations

import gc
import os
import signal
import sys
from typing import NoReturn

from landscape.core.errors import INTERRUPTED

COLLECT_AFTER = (100_000, 20, 100)  # objects, and collections of the younger generations, before the next collection


def main() -> NoReturn:
    """Run the command. Codes: 0 done, 1 failed, 2 bad usage, 3 not found, 4 partial, 5 no cluster, 130 interrupted."""
    # Imports make half a million objects, none of which is garbage.
    gc.set_threshold(*COLLECT_AFTER)
    # Until the supervisor runs, nothing has begun, and there is nothing to report.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(INTERRUPTED))
    from cluster.runtime.console import open_standard, own_descriptors

    open_standard()
    from cluster.runtime.logs import begin
    from cluster.runtime.supervision import can_supervise, supervise

    if not can_supervise():
        sys.exit(_command())
    own_descriptors()
    begin(sys.argv[1:])
    code = supervise(_command)
    # Python restores the default signal handlers before it ends; this process has nothing to clean up, and skips that.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    sys.stderr.flush()
    os._exit(code)


def _command() -> int:
    from cluster.commands.app import command

    return command()
