"""The process that a user starts: it forks the one that works, passes signals on, and starts anew what Ray took down.

Ray's core ends the process that is attached to it when its raylet or its head dies, and answers a SIGTERM at its
start by aborting. So the work is done by a child; this process stays small, knows no Ray, and always has the last
word: what a user sees, the exit code, and that nothing is left running.
"""

from __future__ import annotations

import contextlib
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
from urllib.parse import unquote

from cluster.process import lifeline
from cluster.process.logs import LONGEST_LINE, as_json, bind, log_to, say, say_lines
from cluster.process.streams import forgiving, leave_stderr_to
from landscape.errors import FAILED, INTERRUPTED, UNREACHABLE
from landscape.processes import adopt_orphans, end_with_parent

RESTARTS = 3  # of a private Ray, until a session has lasted STEADY_SECONDS
STEADY_SECONDS = 600.0
ABRUPT_SECONDS = 5.0  # from a signal to the end where nothing is written yet: user code may block
ORDERLY_SECONDS = 20.0  # and where a job is stopped in order; Slurm and Kubernetes grant 30
LEAVE_SECONDS = 5.0  # for what the child started to end by itself, after an end in order
ONE_SIGNAL_SECONDS = 0.1  # `timeout` and Slurm send it to the process and to its group
STOPS = (signal.SIGINT, signal.SIGTERM)


@dataclass
class Told:
    """What a child has said of itself."""

    orderly: bool = False
    here: bool = False
    ray: bool = False
    attached: bool = False
    lost: str | None = None  # why its Ray has gone
    code: int | None = None  # of its end
    _rest: bytes = b""

    def read(self, pipe: int) -> None:
        with contextlib.suppress(BlockingIOError):
            while data := os.read(pipe, 4096):
                *lines, self._rest = (self._rest + data).split(b"\n")
                for each in lines:
                    self._take(each.decode().split())

    def _take(self, words: list[str]) -> None:
        match words:
            case [lifeline.ORDERLY]:
                self.orderly = True
            case [lifeline.ABRUPT]:
                self.orderly = False
            case [lifeline.HERE]:
                self.here = True
            case [lifeline.RAY]:
                self.ray, self.here = True, False  # what was measured here is done
            case [lifeline.ATTACHED]:
                self.attached = True
            case [lifeline.NO_RAY]:
                self.ray = self.attached = False
            case [lifeline.LOST, *why]:
                self.lost = " ".join(why)
            case [lifeline.CONTEXT, fields]:
                bind(**json.loads(unquote(fields)))
            case [lifeline.END, code]:
                self.code = int(code)


@dataclass
class Child:
    """A process that works, and the pipe over which it tells of itself; two threads listen."""

    pid: int
    pipe: int
    told: Told = field(default_factory=Told)
    _listening: threading.Lock = field(default_factory=threading.Lock)
    _open: bool = True

    def listen(self) -> None:
        """Take in all that it has told by now."""
        with self._listening:
            if self._open:
                self.told.read(self.pipe)

    def close(self) -> None:
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
        return Pipe(*os.pipe())


@dataclass(frozen=True)
class Spoken:
    """What a child logs and what is printed past its log: one process alone writes whole lines to stderr."""

    logged: Pipe
    printed: Pipe


@dataclass(frozen=True)
class Ended:
    """How a child ended: by its own word, or without one."""

    told: Told
    signal: int = 0  # that killed it
    stopped: bool = False  # it was asked to
    seconds: float = 0.0


@dataclass(frozen=True)
class Verdict:
    """The exit code, or None to start anew; and what is said."""

    code: int | None
    text: str = ""
    here_failed: bool = False


def judge(ended: Ended, restarts: int) -> Verdict:
    """What becomes of the command whose child ended so, after so many restarts of a Ray."""
    told = ended.told
    if told.code is not None and told.lost is None and not (ended.stopped and told.code in (FAILED, UNREACHABLE)):
        return Verdict(told.code)
    if ended.stopped:
        return Verdict(INTERRUPTED, "interrupted; the same command goes on")
    if told.lost is not None or (told.ray and ended.signal != signal.SIGKILL):
        why = told.lost or "it took this process along"
        if restarts < RESTARTS:
            return Verdict(None, f"the private Ray has failed ({why}); starting it anew ({restarts + 1} of {RESTARTS})")
        return Verdict(
            UNREACHABLE,
            f"address: the private Ray has failed {RESTARTS + 1} times ({why}); what is done is kept: the same command "
            "goes on, and with --debug shows what Ray says",
        )
    if told.attached and not ended.signal:
        return Verdict(
            UNREACHABLE,
            "address: the cluster answers no more; what is done is kept: the same command goes on once it does",
        )
    how = f"by {signal.Signals(ended.signal).name}" if ended.signal else "from inside (os._exit?)"
    if told.here:
        return Verdict(
            None, f"the process that computed here was ended {how}; going on with Ray's workers, which outlive that",
            here_failed=True,
        )  # fmt: skip
    memory = "; is there memory enough?" if ended.signal == signal.SIGKILL else "; user code may have crashed it"
    return Verdict(FAILED, f"the process was ended {how}{memory}; what is done is kept: the same command goes on")


def can_supervise() -> bool:
    """Whether this process is the command alone: one that has threads, or torch, is a program that cannot be forked."""
    alone = threading.current_thread() is threading.main_thread() and threading.active_count() == 1
    return hasattr(os, "fork") and alone and not {"torch", "ray"} & set(sys.modules)


def supervise(work: Callable[[], int]) -> int:
    """The exit code of the work, which runs in a forked process and may be begun again there.

    Between the two a keeper looks after what the work starts: where this process is killed, so is all of that.
    """
    adopt_orphans()  # so that orphans stay in sight
    with _signals() as wakeup:
        reader, orders = os.pipe()
        sys.stderr.flush()
        keeper = os.fork()
        if keeper == 0:
            os.close(orders)
            code = _keep(work, reader)
            sys.stderr.flush()
            os._exit(code)
        os.close(reader)
        status = _pass_on(keeper, orders, wakeup)
    if not os.WIFEXITED(status):
        _end_descendants(0.0)
        say("the process was killed; what is done is kept: the same command goes on", "error", logging.ERROR)
        return FAILED
    return os.WEXITSTATUS(status)


def _pass_on(keeper: int, orders: int, wakeup: int) -> int:
    """Give the keeper every signal until it ends; returns its status."""
    while (status := _reap(keeper)) is None:
        select.select([wakeup], [], [])
        for number in _heard(wakeup):
            with contextlib.suppress(BrokenPipeError):
                os.write(orders, bytes([number]))
    return status


def _keep(work: Callable[[], int], orders: int) -> int:
    """The exit code of the work; ends all that it leaves running."""
    adopt_orphans()
    os.set_blocking(orders, False)
    restarts, here_failed = 0, False
    with _signals() as wakeup:
        while True:
            spoken = Spoken(Pipe.new(), Pipe.new()) if as_json() else None
            child = _fork(work, here_failed, spoken)
            relays = _relay(child, spoken) if spoken else None
            ended = _watch(child, orders, wakeup)
            _end_descendants(LEAVE_SECONDS if ended.told.code is not None and not ended.stopped else 0.0)
            if relays is not None:
                _hear_out(*relays, orders)
            child.close()
            if ended.seconds > STEADY_SECONDS:
                restarts = 0
            verdict = judge(ended, restarts)
            if spoken is None and ended.told.code is None and sys.stderr.isatty():
                print("\x1b[?25h", end="", file=sys.stderr, flush=True)  # a progress bar hides the cursor
            if verdict.text:
                _say(verdict)
            if verdict.code is not None:
                return verdict.code
            restarts += not verdict.here_failed
            here_failed = here_failed or verdict.here_failed


def _relay(child: Child, spoken: Spoken) -> tuple[threading.Thread, threading.Thread]:
    """Write the child's events, and tell as events what it and its processes print; to be begun after the fork."""

    def write_events() -> None:
        with open(spoken.logged.reader, encoding="utf-8", errors="backslashreplace", newline="\n") as lines:
            for line in lines:
                say_lines(line, "log")  # a line that is none was cut off by its writer's end

    def tell_prints() -> None:
        with open(spoken.printed.reader, encoding="utf-8", errors="backslashreplace", newline="\n") as lines:
            while line := lines.readline(LONGEST_LINE):
                child.listen()  # what it has bound before it printed
                if child.told.code is not None:
                    signal.raise_signal(signal.SIGCHLD)  # the last word may have been meant for the main thread
                say_lines(line, "print")

    for each in (spoken.logged, spoken.printed):
        os.close(each.writer)
    threads = (threading.Thread(target=write_events, daemon=True), threading.Thread(target=tell_prints, daemon=True))
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)  # which the new threads inherit: signals are the main one's
    for thread in threads:
        thread.start()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    return threads


def _hear_out(events: threading.Thread, prints: threading.Thread, orders: int) -> None:
    """Wait until what a child that has ended has left in its pipes is written.

    Where whoever reads stderr is slow no event is lost before a signal says not to wait; a pipe of prints may be held
    open by a process that has got away.
    """
    while events.is_alive() and not select.select([orders], [], [], 0.0)[0]:
        events.join(0.1)
    for each in (events, prints):
        each.join(LEAVE_SECONDS)


def _say(verdict: Verdict) -> None:
    if verdict.code is None:
        say(verdict.text, "start-anew", logging.WARNING)
    else:
        say(verdict.text, "error", logging.ERROR, code=verdict.code)


# -- signals -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _signals() -> Iterator[int]:
    """Within the block signals and ended children are read, as their numbers, from the descriptor that is yielded."""
    heard, wakeup = os.pipe()
    for each in (heard, wakeup):
        os.set_blocking(each, False)
    before = {number: signal.signal(number, _noted) for number in (*STOPS, signal.SIGCHLD)}
    signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
    own = os.getpid()
    try:
        yield heard
    finally:
        if os.getpid() == own:  # what was forked within the block leaves with handlers of its own
            signal.set_wakeup_fd(-1)
            for number, handler in before.items():
                signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        os.close(heard)
        os.close(wakeup)


def _noted(number: int, frame: FrameType | None) -> None:
    """Python has written the number to the wakeup descriptor."""


@dataclass
class _Stop:
    """The signals that a child was sent: the first asks, the second and the end of its time end it."""

    pid: int
    at: float = -1e9
    count: int = 0
    killed: bool = False
    deadline: float | None = None
    signals: list[int] = field(default_factory=list)

    def hear(self, number: int, told: Told) -> None:
        now = time.monotonic()
        if now - self.at < ONE_SIGNAL_SECONDS:
            return
        self.at, self.count = now, self.count + 1
        if self.count > 1 or told.code is not None:  # after its last word it is deaf, and nothing can be lost
            self.kill()
        else:
            _kill(self.pid, number)
            self.deadline = now + (ORDERLY_SECONDS if told.orderly else ABRUPT_SECONDS)

    def kill(self) -> None:
        self.killed, self.deadline = True, None
        _kill(self.pid, signal.SIGKILL)


def _watch(child: Child, orders: int, wakeup: int) -> Ended:
    """Wait until the child ends; stop it where that is ordered, and where nobody is left to order it."""
    told, stop, began = child.told, _Stop(child.pid), time.monotonic()
    while (status := _reap(child.pid)) is None:
        left = None if stop.deadline is None else max(0.0, stop.deadline - time.monotonic())
        ready, _, _ = select.select(
            [wakeup, orders] if _closed(child.pipe) else [wakeup, orders, child.pipe], [], [], left
        )
        child.listen()
        _heard(wakeup)  # signals to this process come from the terminal, which all have heard, or as orders
        if orders in ready:
            for number in _heard(orders) or b"\0":
                if number in STOPS:
                    stop.hear(number, told)
                elif number == 0:  # the process that the user started was killed
                    _end_descendants(0.0)
                    os._exit(FAILED)
        if told.code is not None and stop.deadline is None and not stop.killed:
            # It has said its last word; what remains is Python's end, where Ray would wait for the dead.
            stop.deadline = time.monotonic() + (LEAVE_SECONDS if told.lost is None else 0.0)
        if stop.deadline is not None and time.monotonic() >= stop.deadline:
            stop.kill()
    child.listen()
    killed = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    return Ended(told, killed, stop.count > 0, time.monotonic() - began)


def _heard(descriptor: int) -> bytes:
    """The numbers of signals that have come in; none at its end."""
    try:
        return os.read(descriptor, 512)
    except BlockingIOError:
        return b""


def _closed(pipe: int) -> bool:
    """Whether nobody can write any more: select would return at once, again and again."""
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    return any(event & select.POLLHUP and not event & select.POLLIN for _, event in poll.poll(0))


def _kill(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _reap(pid: int) -> int | None:
    """Bury every child that has ended, orphans of the worker too; the status of this one if it is among them."""
    found = None
    with contextlib.suppress(ChildProcessError):
        while True:
            ended, status = os.waitpid(-1, os.WNOHANG)
            if ended == 0:
                break
            if ended == pid:
                found = status
    return found


# -- processes ---------------------------------------------------------------------------------------------------


def _fork(work: Callable[[], int], here_failed: bool, spoken: Spoken | None) -> Child:
    """Start the work in a child.

    Args:
        spoken: the pipes that take what is logged and printed; none where stderr takes both.
    """
    pipe, writer = os.pipe()
    parent = os.getpid()
    sys.stderr.flush()
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)  # until the child has handlers of its own
    pid = os.fork()
    if pid == 0:
        os.close(pipe)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number in STOPS:
            signal.signal(number, interrupt_once)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
        end_with_parent()
        if os.getppid() != parent:
            os._exit(FAILED)  # it died before it could be watched
        lifeline.attach(writer, here_failed)
        if spoken is not None:
            for each in (spoken.logged, spoken.printed):
                os.close(each.reader)
            log_to(forgiving(spoken.logged.writer))
            leave_stderr_to(spoken.printed.writer)
        try:
            code = work()
        except KeyboardInterrupt:
            code = INTERRUPTED
        for number in STOPS:
            signal.signal(number, _noted)  # raised amid Python's own end an interruption would show as a traceback
        lifeline.tell(lifeline.END, code)
        raise SystemExit(code)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    os.close(writer)
    os.set_blocking(pipe, False)
    return Child(pid, pipe)


def interrupt_once(number: int, frame: FrameType | None) -> None:
    """The handler of a supervised process: the supervisor counts signals, and may pass on what the process also got."""
    for each in STOPS:
        signal.signal(each, _noted)
    raise KeyboardInterrupt


def _end_descendants(patience: float) -> None:
    """End what the child has left running; after an end in order it may first end by itself."""
    end = time.monotonic() + patience
    while (left := descendants(os.getpid())) and time.monotonic() < end + LEAVE_SECONDS:
        if time.monotonic() >= end:
            for each in left:
                _kill(each, signal.SIGKILL)
        time.sleep(0.02)
        _reap(0)


def descendants(pid: int) -> list[int]:
    """The living processes below this one, where the system shows them under /proc."""
    parents: dict[int, int] = {}
    for place in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            name, _, fields = place.read_text().rpartition(")")
            state, parent = fields.split()[:2]
            if state not in "ZX":
                parents[int(name.split()[0])] = int(parent)
    found, last = [], {pid}
    while last := {each for each, parent in parents.items() if parent in last}:
        found += sorted(last)
    return found
