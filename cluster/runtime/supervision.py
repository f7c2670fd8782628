"""The process that a user starts: it forks one that works, passes signals on, and starts it anew where Ray ends it.

Ray's core ends the process that is attached to it when its raylet or its head dies, and it aborts at a SIGTERM while it
starts. So a child does the work. Two small processes stand before it, neither of which loads Ray: the one that the user
started, and the *keeper*. The keeper starts the child, decides what to do when it ends, and ends everything that it
leaves running, even where the user's process was killed.
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
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
from typing import NamedTuple, NoReturn

from cluster.runtime import logs
from cluster.runtime.console import leave_stderr_to, open_lossy
from cluster.runtime.logs import LONGEST_LINE, as_json, bind, log_to, write_remark, write_remark_lines
from landscape.core.errors import FAILED, INTERRUPTED, UNREACHABLE
from landscape.core.system import adopt_orphans, end_with_parent

STOPS = (signal.SIGINT, signal.SIGTERM)
LEAVE_SECONDS = 5.0  # in which the processes that the child has started may end by themselves, after an orderly end
ABRUPT_SECONDS = 5.0  # from a signal to SIGKILL where nothing is written yet, as user code may block
ORDERLY_SECONDS = 20.0  # the same where a job is stopped in an orderly way; Slurm and Kubernetes grant 30
ONE_SIGNAL_SECONDS = 0.1  # in which a signal that comes twice is one: `timeout` and Slurm send it to the group as well
RESTARTS = 3  # of a private Ray, until a session has lasted STEADY_SECONDS
STEADY_SECONDS = 600.0  # a private Ray that has lasted for so long may be started anew as often as at first


def can_supervise() -> bool:
    """Whether this process is only the command, and may fork; a process with threads, torch or Ray must not."""
    alone = threading.current_thread() is threading.main_thread() and threading.active_count() == 1
    return hasattr(os, "fork") and alone and not {"torch", "ray"} & set(sys.modules)


def supervise(work: Callable[[], int]) -> int:
    """Do the work in a forked process, and start it again where that helps; returns the exit code of the command."""
    adopt_orphans()  # so that the orphans of the work become children of this process
    with read_signals() as wakeup:
        reader, orders = os.pipe()
        sys.stderr.flush()
        keeper = os.fork()
        if keeper == 0:
            os.close(orders)
            code = _keep(work, reader)
            sys.stderr.flush()
            os._exit(code)
        os.close(reader)
        while (status := reap(keeper)) is None:
            select.select([wakeup], [], [])
            for number in signals_in(wakeup):
                with contextlib.suppress(BrokenPipeError):
                    os.write(orders, bytes([number]))
    if not os.WIFEXITED(status):
        end_descendants(0.0)
        write_remark("the process was killed; what is done is kept: the same command goes on", "error", logging.ERROR)
        return FAILED
    return os.WEXITSTATUS(status)


def _keep(work: Callable[[], int], orders: int) -> int:
    """What the keeper does: let a child do the work, end everything that it leaves running, return the exit code."""
    adopt_orphans()
    os.set_blocking(orders, False)
    restarts, here_failed = 0, False
    with read_signals() as wakeup:
        while True:
            outputs = ChildOutputs(Pipe(*os.pipe()), Pipe(*os.pipe())) if as_json() else None
            child = fork_child(work, here_failed, outputs)
            relays = relay_output(child, outputs) if outputs else ()
            ended = watch(child, orders, wakeup)
            end_descendants(LEAVE_SECONDS if ended.report.code is not None and not ended.stopped else 0.0)
            finish_relaying(relays, orders)
            child.close()
            if ended.seconds > STEADY_SECONDS:
                restarts = 0
            decision = judge(ended, restarts)
            if outputs is None and ended.report.code is None and sys.stderr.isatty():
                print("\x1b[?25h", end="", file=sys.stderr, flush=True)  # a progress bar hides the cursor
            if decision.code is not None:
                if decision.text:
                    write_remark(decision.text, "error", logging.ERROR, code=decision.code)
                return decision.code
            write_remark(decision.text, "start-anew", logging.WARNING)
            restarts += not decision.here_failed
            here_failed = here_failed or decision.here_failed


# ----------------------------------------------------------------------------------------------------
# What to do when the child of a command has ended: return an exit code, or start it anew.


@dataclass
class ChildReport:
    """What a child has reported of itself, by `logs.tell`.

    Attributes:
        orderly: whether a signal stops it in an orderly way.
        here: whether user code computes in it.
        packed: whether it computes a packed problem, and no user code.
        ray: whether it has a private Ray; if that dies, the job can go on from the store with a new one.
        attached: whether it is attached to a cluster.
        lost: why its private Ray is gone; None where it is not.
        code: the exit code with which it ends; None until it reports it.
    """

    orderly: bool = False
    here: bool = False
    packed: bool = False
    ray: bool = False
    attached: bool = False
    lost: str | None = None
    code: int | None = None


@dataclass(frozen=True)
class Ended:
    """How a child ended, and what it had reported.

    Attributes:
        signal: the number of the signal that killed it; 0 for none.
        stopped: whether it was asked to end.
        seconds: how long it lived.
    """

    report: ChildReport
    signal: int = 0
    stopped: bool = False
    seconds: float = 0.0


@dataclass(frozen=True)
class Decision:
    """What to do when a child has ended.

    Attributes:
        code: the exit code of the command; None to start the work anew.
        text: a message for the user; '' for none.
        here_failed: whether user code ended the process, so that the new one leaves computing to workers.
    """

    code: int | None
    text: str = ""
    here_failed: bool = False


def judge(ended: Ended, restarts: int) -> Decision:
    """What to do when the child of a command has ended.

    Args:
        restarts: how often a private Ray has been started anew before.
    """
    report = ended.report
    if report.code is not None and report.lost is None and not (ended.stopped and report.code in (FAILED, UNREACHABLE)):
        return Decision(report.code)
    if ended.stopped:
        return Decision(INTERRUPTED, "interrupted; the same command goes on")
    if report.lost is not None or (report.ray and ended.signal != signal.SIGKILL):
        why = report.lost or "it took this process along"
        if restarts < RESTARTS:
            again = f"starting it anew ({restarts + 1} of {RESTARTS})"
            return Decision(None, f"the private Ray has failed ({why}); {again}")
        return Decision(
            UNREACHABLE,
            f"address: the private Ray has failed {RESTARTS + 1} times ({why}); what is done is kept: the same command "
            "goes on, and with --debug shows what Ray says",
        )
    if report.attached and not ended.signal:
        return Decision(
            UNREACHABLE,
            "address: lost the cluster; finished tiles are saved. Run the same command once it is back",
        )
    how = f"by {signal.Signals(ended.signal).name}" if ended.signal else "from inside (os._exit?)"
    if report.here:
        text = f"the process that computed here was ended {how}; going on with Ray's workers, which outlive that"
        return Decision(None, text, here_failed=True)
    if ended.signal == signal.SIGKILL:
        cause = "; is there memory enough?"
    elif report.packed:
        cause = (
            " while it computed a packed problem, which runs no user code: torch crashed at one of its operations; "
            "do not run a file again whose sender you do not know, and report it"
        )
    else:
        cause = "; user code may have crashed it"
    return Decision(FAILED, f"the process was ended {how}{cause}; what is done is kept: the same command goes on")


# ----------------------------------------------------------------------------------------------------
# The child, and the pipes between it and the keeper.


class Pipe(NamedTuple):
    """The two descriptors of a pipe."""

    reader: int
    writer: int


class ChildOutputs(NamedTuple):
    """Pipes for what a child logs and prints, so that only the keeper writes to stderr, in whole lines."""

    logged: Pipe
    printed: Pipe


@dataclass
class Child:
    """The process that works, and the pipe of its reports; the keeper's main thread and its relays read the pipe."""

    pid: int
    pipe: int
    report: ChildReport = field(default_factory=ChildReport)
    open: bool = True  # whether more reports may come
    _begun: bytes = b""  # a report that has come in part
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def listen(self) -> None:
        """Take in everything that it has reported by now."""
        with self._lock, contextlib.suppress(BlockingIOError):
            while self.open:
                data = os.read(self.pipe, 4096)
                self.open = bool(data)  # else nobody can write to the pipe any more
                *lines, self._begun = (self._begun + data).split(b"\n")
                for line in lines:
                    report = json.loads(line)
                    bind(**report.pop("context", {}))
                    vars(self.report).update(report)

    def close(self) -> None:
        """Close the pipe of its reports."""
        with self._lock:
            self.open = False
            os.close(self.pipe)


def fork_child(work: Callable[[], int], here_failed: bool, outputs: ChildOutputs | None) -> Child:
    """Start the work in a child process.

    Args:
        here_failed: whether an earlier child died while user code computed in it.
        outputs: the pipes for what is logged and printed; None where both go to stderr.
    """
    pipe, parent = Pipe(*os.pipe()), os.getpid()
    sys.stderr.flush()
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)  # until the child has handlers of its own
    pid = os.fork()
    if pid == 0:
        os.close(pipe.reader)
        _be_child(work, pipe.writer, parent, here_failed, outputs)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    os.close(pipe.writer)
    os.set_blocking(pipe.reader, False)
    return Child(pid, pipe.reader)


def _be_child(
    work: Callable[[], int], writer: int, parent: int, here_failed: bool, outputs: ChildOutputs | None
) -> NoReturn:
    """What the forked process does: the work, and then a last report with the exit code."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number in STOPS:
        signal.signal(number, interrupt_once)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    end_with_parent()
    if os.getppid() != parent:
        os._exit(FAILED)  # it died before it could be watched
    logs.attach(writer, here_failed)
    if outputs is not None:
        for output in outputs:
            os.close(output.reader)
        log_to(open_lossy(outputs.logged.writer))
        leave_stderr_to(outputs.printed.writer)
    try:
        code = work()
    except KeyboardInterrupt:
        code = INTERRUPTED
    for number in STOPS:
        signal.signal(number, note_signal)  # an interruption while Python itself ends would show as a traceback
    logs.tell(code=code)
    gc.freeze()  # else Python would free everything that torch has made, one by one, which ends with the process anyway
    raise SystemExit(code)


def interrupt_once(number: int, frame: FrameType | None) -> None:
    """The signal handler of a child, which obeys only the first signal.

    The keeper counts signals, and may pass on one that the child has received already.
    """
    for stop in STOPS:
        signal.signal(stop, note_signal)
    raise KeyboardInterrupt


def relay_output(child: Child, outputs: ChildOutputs) -> tuple[threading.Thread, ...]:
    """Write the child's log events to stderr, and what it and its processes print as further events.

    Two threads do it, so it must be called after the fork. They are returned: the one for log events comes first.
    """

    def relay(reader: int, event: str, longest: int) -> None:
        with open(reader, encoding="utf-8", errors="backslashreplace", newline="\n") as lines:
            while line := lines.readline(longest):
                child.listen()  # first take in the fields that its events have from now on
                if child.report.code is not None:
                    signal.raise_signal(signal.SIGCHLD)  # this may be its last report, for which the main thread waits
                write_remark_lines(line, event)

    threads = (
        # A line of the log that is no event was cut off when its writer ended.
        threading.Thread(target=relay, args=(outputs.logged.reader, "log", -1), daemon=True),
        threading.Thread(target=relay, args=(outputs.printed.reader, "print", LONGEST_LINE), daemon=True),
    )
    for output in outputs:
        os.close(output.writer)
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)  # the new threads inherit this: the main thread handles signals
    for thread in threads:
        thread.start()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    return threads


def finish_relaying(relays: tuple[threading.Thread, ...], orders: int) -> None:
    """Wait until everything that an ended child has left in its pipes is written.

    No event is lost, however slowly stderr is read, unless a signal says not to wait. The wait for prints is short, as
    a process that outlives the child may hold their pipe open.
    """
    for events in relays[:1]:
        while events.is_alive() and not select.select([orders], [], [], 0.0)[0]:
            events.join(0.1)
    for thread in relays:
        thread.join(LEAVE_SECONDS)


# ----------------------------------------------------------------------------------------------------
# Waiting for a child to end, and stopping it when a signal says so.


@dataclass
class ChildStop:
    """The stop of a child: the first signal asks it to end; a second one, or the deadline, kills it.

    Attributes:
        at: when the last signal came, in seconds of the monotonic clock.
        count: how many signals came.
        deadline: when the child will be killed; None where it will not.
    """

    pid: int
    at: float = -1e9
    count: int = 0
    killed: bool = False
    deadline: float | None = None

    def hear(self, number: int, report: ChildReport) -> None:
        """Pass on a signal, or kill the child if it had one before."""
        now = time.monotonic()
        if now - self.at < ONE_SIGNAL_SECONDS:
            return
        self.at, self.count = now, self.count + 1
        if self.count > 1 or report.code is not None:  # after its last report it ignores signals
            self.kill()
        else:
            send_signal(self.pid, number)
            self.deadline = now + (ORDERLY_SECONDS if report.orderly else ABRUPT_SECONDS)

    def kill(self) -> None:
        """Kill the child at once."""
        self.killed, self.deadline = True, None
        send_signal(self.pid, signal.SIGKILL)


def watch(child: Child, orders: int, wakeup: int) -> Ended:
    """Wait until the child ends; stop it when an order says so, or when the process that gives orders was killed.

    Args:
        orders: a descriptor from which the numbers of signals for the child are read.
        wakeup: a descriptor that is readable after a signal to this process, such as the end of a child.
    """
    report, stop, began = child.report, ChildStop(child.pid), time.monotonic()
    while (status := reap(child.pid)) is None:
        timeout = None if stop.deadline is None else max(0.0, stop.deadline - time.monotonic())
        ready, _, _ = select.select([wakeup, orders, *([child.pipe] if child.open else [])], [], [], timeout)
        child.listen()
        signals_in(wakeup)  # the child has received those too: they come from the terminal, or as orders
        if orders in ready:
            for number in signals_in(orders) or b"\0":
                if number in STOPS:
                    stop.hear(number, report)
                elif number == 0:  # the process that the user started was killed
                    end_descendants(0.0)
                    os._exit(FAILED)
        if report.code is not None and stop.deadline is None and not stop.killed:
            # After its last report only the end of Python remains, where Ray would wait for processes that are dead.
            stop.deadline = time.monotonic() + (LEAVE_SECONDS if report.lost is None else 0.0)
        if stop.deadline is not None and time.monotonic() >= stop.deadline:
            stop.kill()
    child.listen()
    killed = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    return Ended(report, killed, stop.count > 0, time.monotonic() - began)


# ----------------------------------------------------------------------------------------------------
# Signals, read as numbers from a descriptor that `select` waits for; and processes, ended and collected.


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


def send_signal(pid: int, number: int) -> None:
    """Send a signal to a process that may have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def reap(pid: int) -> int | None:
    """Collect all children that have ended, adopted orphans too; returns the wait status of `pid`, if it is one."""
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
    """End the processes that the child has left running.

    Args:
        patience: seconds in which they may end by themselves.
    """
    end = time.monotonic() + patience
    while (pids := descendants(os.getpid())) and time.monotonic() < end + LEAVE_SECONDS:
        if time.monotonic() >= end:
            for pid in pids:
                send_signal(pid, signal.SIGKILL)
        time.sleep(0.02)
        reap(0)


def descendants(pid: int) -> list[int]:
    """The living processes below one, where the system shows them under /proc."""
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
