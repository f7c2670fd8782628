"""What a child logs and prints, written to stderr by the process that supervises it."""

from __future__ import annotations

import os
import select
import signal
import threading

from cluster.runtime.child import Child, ChildPipes
from cluster.runtime.descendants import LEAVE_SECONDS
from cluster.runtime.logs import LONGEST_LINE, write_remark_lines
from cluster.runtime.signal_pipe import STOPS


def relay_output(child: Child, pipes: ChildPipes) -> tuple[threading.Thread, threading.Thread]:
    """Write the child's log events to stderr, and what it and its processes print as further events.

    Called after the fork, as it starts two threads, which are returned: of the events, and of the prints.
    """

    def write_events() -> None:
        with open(pipes.logged.reader, encoding="utf-8", errors="backslashreplace", newline="\n") as lines:
            for line in lines:
                write_remark_lines(line, "log")  # a line that is no event was cut off when its writer ended

    def tell_prints() -> None:
        with open(pipes.printed.reader, encoding="utf-8", errors="backslashreplace", newline="\n") as lines:
            while line := lines.readline(LONGEST_LINE):
                child.listen()  # first take in the fields that its events have from now on
                if child.report.code is not None:
                    signal.raise_signal(signal.SIGCHLD)  # this may be its last report, for which the main thread waits
                write_remark_lines(line, "print")

    for pipe in (pipes.logged, pipes.printed):
        os.close(pipe.writer)
    threads = (threading.Thread(target=write_events, daemon=True), threading.Thread(target=tell_prints, daemon=True))
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)  # the new threads inherit this: the main thread handles signals
    for thread in threads:
        thread.start()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    return threads


def finish_relaying(events: threading.Thread, prints: threading.Thread, orders: int) -> None:
    """Wait until everything that an ended child has left in its pipes is written.

    However slowly stderr is read, no event is lost, unless a signal says not to wait. Prints are waited for only for
    a while, as a process that outlives the child may hold their pipe open.
    """
    while events.is_alive() and not select.select([orders], [], [], 0.0)[0]:
        events.join(0.1)
    for thread in (events, prints):
        thread.join(LEAVE_SECONDS)
