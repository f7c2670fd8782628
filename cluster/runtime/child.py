"""The child that does a command's work, and the pipes between it and the process that supervises it."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import NoReturn
from urllib.parse import unquote

from cluster.runtime import logs
from cluster.runtime.console import forgiving, leave_stderr_to
from cluster.runtime.logs import bind, log_to
from landscape.core.errors import FAILED, INTERRUPTED
from landscape.core.system import end_with_parent

# ----------------------------------------------------------------------------------------------------
# Signals of the supervising processes, read as numbers from a descriptor that `select` waits for.

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


# ----------------------------------------------------------------------------------------------------


@dataclass
class ChildReport:
    """What a child has reported of itself over its pipe; `supervisor_pipe` names the reports.

    Attributes:
        orderly: a signal stops it in an orderly way.
        here: user code computes in it.
        packed: it computes a packed problem, and no user code.
        ray: it has a private Ray.
        attached: it is attached to a cluster.
        lost: why its private Ray is gone; None where it is not.
        code: the exit code with which it ends; None until it says so.
    """

    orderly: bool = False
    here: bool = False
    packed: bool = False
    ray: bool = False
    attached: bool = False
    lost: str | None = None
    code: int | None = None
    _rest: bytes = b""

    def read(self, pipe: int) -> None:
        """Take in what the pipe holds; does not wait for more."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(pipe, 4096):
                *lines, self._rest = (self._rest + data).split(b"\n")
                for line in lines:
                    self._take(line.decode().split())

    def _take(self, words: list[str]) -> None:
        match words:
            case [logs.ORDERLY]:
                self.orderly = True
            case [logs.ABRUPT]:
                self.orderly = False
            case [logs.HERE]:
                self.here = True
            case [logs.PACKED]:
                self.packed = True
            case [logs.RAY]:
                self.ray, self.here = True, False  # what was measured here is done
            case [logs.ATTACHED]:
                self.attached = True
            case [logs.NO_RAY]:
                self.ray = self.attached = False
            case [logs.LOST, *why]:
                self.lost = " ".join(why)
            case [logs.CONTEXT, fields]:
                bind(**json.loads(unquote(fields)))
            case [logs.END, code]:
                self.code = int(code)


@dataclass
class Child:
    """The process that works, and the pipe of its reports, which two threads of the supervisor read."""

    pid: int
    pipe: int
    report: ChildReport = field(default_factory=ChildReport)
    _listening: threading.Lock = field(default_factory=threading.Lock)
    _open: bool = True

    def listen(self) -> None:
        """Take in all that it has reported by now."""
        with self._listening:
            if self._open:
                self.report.read(self.pipe)

    def close(self) -> None:
        """Close the pipe of its reports."""
        with self._listening:
            self._open = False
            os.close(self.pipe)


@dataclass(frozen=True)
class Pipe:
    """The two descriptors of a pipe."""

    reader: int
    writer: int

    @staticmethod
    def new() -> Pipe:
        """A pipe of this process."""
        return Pipe(*os.pipe())


@dataclass(frozen=True)
class ChildPipes:
    """Pipes that take what a child logs and prints: the supervisor alone writes to stderr, in whole lines."""

    logged: Pipe
    printed: Pipe


def fork_child(work: Callable[[], int], here_failed: bool, pipes: ChildPipes | None) -> Child:
    """Start the work in a child process.

    Args:
        here_failed: an earlier child died while user code computed in it.
        pipes: take what is logged and printed; None where stderr takes both.
    """
    pipe, writer = os.pipe()
    parent = os.getpid()
    sys.stderr.flush()
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)  # until the child has handlers of its own
    pid = os.fork()
    if pid == 0:
        os.close(pipe)
        _be_child(work, writer, parent, here_failed, pipes)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    os.close(writer)
    os.set_blocking(pipe, False)
    return Child(pid, pipe)


def _be_child(
    work: Callable[[], int], writer: int, parent: int, here_failed: bool, pipes: ChildPipes | None
) -> NoReturn:
    """What the forked process does: the work, then a last report, the exit code."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number in STOPS:
        signal.signal(number, interrupt_once)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    end_with_parent()
    if os.getppid() != parent:
        os._exit(FAILED)  # it died before it could be watched
    logs.attach(writer, here_failed)
    if pipes is not None:
        for one in (pipes.logged, pipes.printed):
            os.close(one.reader)
        log_to(forgiving(pipes.logged.writer))
        leave_stderr_to(pipes.printed.writer)
    try:
        code = work()
    except KeyboardInterrupt:
        code = INTERRUPTED
    for number in STOPS:
        signal.signal(number, note_signal)  # an interruption while Python itself ends would show as a traceback
    logs.tell(logs.END, code)
    gc.freeze()  # Python's end would walk all that torch has made, to free what goes with the process anyway
    raise SystemExit(code)


def interrupt_once(number: int, frame: FrameType | None) -> None:
    """The signal handler of a child: it obeys the first signal alone.

    The supervisor counts signals, and may pass on one that the child has received too.
    """
    for each in STOPS:
        signal.signal(each, note_signal)
    raise KeyboardInterrupt


# ----------------------------------------------------------------------------------------------------
# The processes that this one has started, and those that they have started: which live, and how they are ended.

LEAVE_SECONDS = 5.0  # in which what the child has started may end by itself, after an orderly end


def send_signal(pid: int, number: int) -> None:
    """Send a signal to a process that may have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def reap(pid: int) -> int | None:
    """Collect every child that has ended, adopted orphans too; the wait status of this one if it is among them."""
    wait_status = None
    with contextlib.suppress(ChildProcessError):
        while True:
            ended, status = os.waitpid(-1, os.WNOHANG)
            if ended == 0:
                break
            if ended == pid:
                wait_status = status
    return wait_status


def end_descendants(patience: float) -> None:
    """End what the child has left running.

    Args:
        patience: seconds in which it may end by itself.
    """
    end = time.monotonic() + patience
    while (left := descendants(os.getpid())) and time.monotonic() < end + LEAVE_SECONDS:
        if time.monotonic() >= end:
            for pid in left:
                send_signal(pid, signal.SIGKILL)
        time.sleep(0.02)
        reap(0)


def descendants(pid: int) -> list[int]:
    """The living processes below this one, where the system shows them under /proc."""
    parents: dict[int, int] = {}
    for place in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            name, _, fields = place.read_text().rpartition(")")
            state, parent = fields.split()[:2]
            if state not in "ZX":
                parents[int(name.split()[0])] = int(parent)
    below, generation = list[int](), {pid}
    while generation := {child for child, parent in parents.items() if parent in generation}:
        below += sorted(generation)
    return below
