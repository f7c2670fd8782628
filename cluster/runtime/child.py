"""The child that does a command's work, and the pipes between it and the process that supervises it."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType
from typing import NoReturn
from urllib.parse import unquote

from cluster.runtime import supervisor_pipe
from cluster.runtime.logs import bind, log_to
from cluster.runtime.signal_pipe import STOPS, note_signal
from cluster.runtime.streams import forgiving, leave_stderr_to
from landscape.core.errors import FAILED, INTERRUPTED
from landscape.core.system import end_with_parent


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
            case [supervisor_pipe.ORDERLY]:
                self.orderly = True
            case [supervisor_pipe.ABRUPT]:
                self.orderly = False
            case [supervisor_pipe.HERE]:
                self.here = True
            case [supervisor_pipe.PACKED]:
                self.packed = True
            case [supervisor_pipe.RAY]:
                self.ray, self.here = True, False  # what was measured here is done
            case [supervisor_pipe.ATTACHED]:
                self.attached = True
            case [supervisor_pipe.NO_RAY]:
                self.ray = self.attached = False
            case [supervisor_pipe.LOST, *why]:
                self.lost = " ".join(why)
            case [supervisor_pipe.CONTEXT, fields]:
                bind(**json.loads(unquote(fields)))
            case [supervisor_pipe.END, code]:
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
    supervisor_pipe.attach(writer, here_failed)
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
    supervisor_pipe.tell(supervisor_pipe.END, code)
    gc.freeze()  # Python's end would walk all that torch has made, to free what goes with the process anyway
    raise SystemExit(code)


def interrupt_once(number: int, frame: FrameType | None) -> None:
    """The signal handler of a child: it obeys the first signal alone.

    The supervisor counts signals, and may pass on one that the child has received too.
    """
    for each in STOPS:
        signal.signal(each, note_signal)
    raise KeyboardInterrupt
