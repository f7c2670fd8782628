"""Signals of the supervising processes, read as numbers from a descriptor that `select` waits for."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Iterator
from types import FrameType

STOPS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def read_signals() -> Iterator[int]:
    """Within the block, the numbers of signals, SIGCHLD included, can be read from the yielded descriptor."""
    reader, wakeup = os.pipe()
    for descriptor in (reader, wakeup):
        os.set_blocking(descriptor, False)
    before = {number: signal.signal(number, note_signal) for number in (*STOPS, signal.SIGCHLD)}
    signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
    own = os.getpid()
    try:
        yield reader
    finally:
        if os.getpid() == own:  # a process forked within the block has installed handlers of its own
            signal.set_wakeup_fd(-1)
            for number, handler in before.items():
                signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        os.close(reader)
        os.close(wakeup)


def note_signal(number: int, frame: FrameType | None) -> None:
    """A handler that does nothing: Python has written the number to the wakeup descriptor."""


def signals_in(descriptor: int) -> bytes:
    """The numbers of the signals that have come in; empty where there are none, and at the end of the pipe."""
    try:
        return os.read(descriptor, 512)
    except BlockingIOError:
        return b""


def is_closed(pipe: int) -> bool:
    """Whether nobody can write to a pipe any more, so that `select` would return at once, again and again."""
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    return any(event & select.POLLHUP and not event & select.POLLIN for _, event in poll.poll(0))
