"""Waiting for a child to end, and stopping it where that is ordered."""

from __future__ import annotations

import os
import select
import signal
import time
from dataclasses import dataclass

from cluster.runtime.child import Child, ChildReport
from cluster.runtime.descendants import LEAVE_SECONDS, end_descendants, reap, send_signal
from cluster.runtime.judging import Ended
from cluster.runtime.signal_pipe import STOPS, is_closed, signals_in
from landscape.core.errors import FAILED

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
