"""SIGINT and SIGTERM as a flag: the first asks for an orderly end, the second ends at once."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from cluster.runtime.logs import write_remark
from cluster.runtime.supervisor_pipe import ABRUPT, ORDERLY, supervised, tell
from landscape.core.errors import INTERRUPTED


@contextlib.contextmanager
def graceful_stop() -> Iterator[Callable[[], bool]]:
    """Within the block, the yielded function says whether a signal has come; afterwards signals act as before.

    Enter it after `ray.init`, which installs a SIGTERM handler of its own. Outside the main thread, where Python
    allows no handlers, nothing is installed.
    """
    received: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        if received:
            if supervised():
                return  # the supervisor counts signals, and this one may have come twice
            os._exit(INTERRUPTED)
        received.append(number)
        with contextlib.suppress(RuntimeError):  # raised where the signal came while a line was being written
            write_remark("stopping; again to stop at once", "stopping")

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    tell(ORDERLY)
    try:
        yield lambda: bool(received)
    finally:
        tell(ABRUPT)
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
