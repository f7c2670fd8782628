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
import sys
import threading
from collections.abc import Callable

from cluster.runtime.child import ChildPipes, Pipe, fork_child
from cluster.runtime.descendants import LEAVE_SECONDS, end_descendants, reap
from cluster.runtime.judging import Decision, judge
from cluster.runtime.logs import as_json, write_remark
from cluster.runtime.relaying import finish_relaying, relay_output
from cluster.runtime.signal_pipe import read_signals, signals_in
from cluster.runtime.watching import watch
from landscape.core.errors import FAILED
from landscape.core.system import adopt_orphans

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
