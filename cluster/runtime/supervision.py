"""The process that a user starts: it forks the one that works, passes signals on, and starts anew what Ray took down.

Ray's core ends the process that is attached to it when its raylet or its head dies, and answers a SIGTERM at its
start by aborting. So the work is done by a child; this process stays small, loads no Ray, and always has the last
word: what a user sees, the exit code, and that nothing is left running.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from cluster.runtime.child import (
    LEAVE_SECONDS,
    STOPS,
    Child,
    ChildPipes,
    ChildReport,
    Pipe,
    end_descendants,
    fork_child,
    is_closed,
    read_signals,
    reap,
    send_signal,
    signals_in,
)
from cluster.runtime.logs import LONGEST_LINE, as_json, write_remark, write_remark_lines
from landscape.core.errors import FAILED, INTERRUPTED, UNREACHABLE
from landscape.core.system import adopt_orphans

# ----------------------------------------------------------------------------------------------------
# What becomes of a command whose child has ended: an exit code, or a new start.

RESTARTS = 3  # of a private Ray, until a session has lasted STEADY_SECONDS


@dataclass(frozen=True)
class Ended:
    """How a child ended, and what it had reported.

    Attributes:
        signal: the number of the signal that killed it; 0 for none.
        stopped: it was asked to end.
        seconds: how long it lived.
    """

    report: ChildReport
    signal: int = 0
    stopped: bool = False
    seconds: float = 0.0


@dataclass(frozen=True)
class Decision:
    """What is done about an end.

    Attributes:
        code: the exit code of the command; None to start the work anew.
        text: what the user is told; '' for nothing.
        here_failed: user code ended the process, so the new one leaves computing to workers.
    """

    code: int | None
    text: str = ""
    here_failed: bool = False


def judge(ended: Ended, restarts: int) -> Decision:
    """What becomes of a command whose child has ended.

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
            return Decision(
                None, f"the private Ray has failed ({why}); starting it anew ({restarts + 1} of {RESTARTS})"
            )
        return Decision(
            UNREACHABLE,
            f"address: the private Ray has failed {RESTARTS + 1} times ({why}); what is done is kept: the same command "
            "goes on, and with --debug shows what Ray says",
        )
    if report.attached and not ended.signal:
        return Decision(
            UNREACHABLE,
            "address: the cluster answers no more; what is done is kept: the same command goes on once it does",
        )
    how = f"by {signal.Signals(ended.signal).name}" if ended.signal else "from inside (os._exit?)"
    if report.here:
        return Decision(
            None, f"the process that computed here was ended {how}; going on with Ray's workers, which outlive that",
            here_failed=True,
        )  # fmt: skip
    kept = "what is done is kept: the same command goes on"
    if ended.signal == signal.SIGKILL:
        return Decision(FAILED, f"the process was ended {how}; is there memory enough?; {kept}")
    if report.packed:
        return Decision(
            FAILED,
            f"the process was ended {how} while it computed a packed problem, which runs no user code: torch crashed "
            f"at one of its operations; do not run a file again whose sender you do not know, and report it; {kept}",
        )
    return Decision(FAILED, f"the process was ended {how}; user code may have crashed it; {kept}")


# ----------------------------------------------------------------------------------------------------
# What a child logs and prints, written to stderr by the process that supervises it.


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


# ----------------------------------------------------------------------------------------------------
# Waiting for a child to end, and stopping it where that is ordered.

ABRUPT_SECONDS = 5.0  # from a signal to SIGKILL where nothing is written yet: user code may block
ORDERLY_SECONDS = 20.0  # the same where a job is stopped in an orderly way; Slurm and Kubernetes grant 30
ONE_SIGNAL_SECONDS = 0.1  # `timeout` and Slurm send one signal to the process and to its group


@dataclass
class ChildStop:
    """The stop of a child: the first signal asks it to end; a second one, or the deadline, kills it.

    Attributes:
        at: when the last signal came, in seconds of the monotonic clock.
        count: how many signals came.
        deadline: when it is killed; None where it is not to be.
    """

    pid: int
    at: float = -1e9
    count: int = 0
    killed: bool = False
    deadline: float | None = None

    def hear(self, number: int, report: ChildReport) -> None:
        """Pass on a signal, or kill the child where it has had its chance."""
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
    """Wait until the child ends; stop it where that is ordered, and where the process that gives orders was killed.

    Args:
        orders: a descriptor from which the numbers of signals for the child are read.
        wakeup: a descriptor that is readable after a signal to this process, such as the end of a child.
    """
    report, stop, began = child.report, ChildStop(child.pid), time.monotonic()
    while (status := reap(child.pid)) is None:
        left = None if stop.deadline is None else max(0.0, stop.deadline - time.monotonic())
        ready, _, _ = select.select(
            [wakeup, orders] if is_closed(child.pipe) else [wakeup, orders, child.pipe], [], [], left
        )
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
            # After its last report only the end of Python remains, in which Ray would wait for processes that are dead.
            stop.deadline = time.monotonic() + (LEAVE_SECONDS if report.lost is None else 0.0)
        if stop.deadline is not None and time.monotonic() >= stop.deadline:
            stop.kill()
    child.listen()
    killed = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    return Ended(report, killed, stop.count > 0, time.monotonic() - began)


# ----------------------------------------------------------------------------------------------------

STEADY_SECONDS = 600.0  # a private Ray that has lasted so long may be started anew as often as at first


def can_supervise() -> bool:
    """Whether this process is the command alone, and may fork: a program with threads, or with torch, must not."""
    alone = threading.current_thread() is threading.main_thread() and threading.active_count() == 1
    return hasattr(os, "fork") and alone and not {"torch", "ray"} & set(sys.modules)


def supervise(work: Callable[[], int]) -> int:
    """Do the work in a forked process, and start it again there where that helps.

    A third process, the keeper, stands between this one and the child. Where this one is killed, the keeper ends the
    child and all that the work has started.

    Returns:
        The exit code of the command.
    """
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
        status = _pass_on(keeper, orders, wakeup)
    if not os.WIFEXITED(status):
        end_descendants(0.0)
        write_remark("the process was killed; what is done is kept: the same command goes on", "error", logging.ERROR)
        return FAILED
    return os.WEXITSTATUS(status)


def _pass_on(keeper: int, orders: int, wakeup: int) -> int:
    """Pass every signal on to the keeper until it ends; returns its wait status."""
    while (status := reap(keeper)) is None:
        select.select([wakeup], [], [])
        for number in signals_in(wakeup):
            with contextlib.suppress(BrokenPipeError):
                os.write(orders, bytes([number]))
    return status


def _keep(work: Callable[[], int], orders: int) -> int:
    """What the keeper does: has the work done, ends all that it leaves running, and returns the exit code."""
    adopt_orphans()
    os.set_blocking(orders, False)
    restarts, here_failed = 0, False
    with read_signals() as wakeup:
        while True:
            pipes = ChildPipes(Pipe.new(), Pipe.new()) if as_json() else None
            child = fork_child(work, here_failed, pipes)
            relays = relay_output(child, pipes) if pipes else None
            ended = watch(child, orders, wakeup)
            end_descendants(LEAVE_SECONDS if ended.report.code is not None and not ended.stopped else 0.0)
            if relays is not None:
                finish_relaying(*relays, orders)
            child.close()
            if ended.seconds > STEADY_SECONDS:
                restarts = 0
            decision = judge(ended, restarts)
            if pipes is None and ended.report.code is None and sys.stderr.isatty():
                print("\x1b[?25h", end="", file=sys.stderr, flush=True)  # a progress bar hides the cursor
            if decision.text:
                _say(decision)
            if decision.code is not None:
                return decision.code
            restarts += not decision.here_failed
            here_failed = here_failed or decision.here_failed


def _say(decision: Decision) -> None:
    if decision.code is None:
        write_remark(decision.text, "start-anew", logging.WARNING)
    else:
        write_remark(decision.text, "error", logging.ERROR, code=decision.code)
