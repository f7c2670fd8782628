"""Carry out a search's requests in this process and in forked ones at once, so that no core is idle while it times.

A batch that fits the cache of an idle machine may not fit the part of it that each of many workers has. Threads would
not do: they share the interpreter's lock, torch's random generator and the state of user code, which workers do not.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import time
import warnings
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, NoReturn

import torch

from landscape.core.devices import cores, free_bytes
from landscape.core.system import end_with_parent
from landscape.evaluation.tuning.questions import Request
from landscape.evaluation.tuning.trials import Trials

PATIENCE_SECONDS = 10.0
SHARE_OF_MEMORY = 0.5

log = logging.getLogger("landscape")


class Peers:
    """This process and the forked ones beside it; to be closed.

    Args:
        trials: of this process; each fork makes its own of the same evaluator, with one thread.
        count: how many to fork, when everyone is asked for the first time; default: one per idle core that has the
            memory, none where processes cannot be forked or a GPU computes.
        patience: seconds beyond three times those of this process until another one is taken for hung.
    """

    def __init__(self, trials: Trials, count: int | None = None, patience: float = PATIENCE_SECONDS) -> None:
        self._trials, self._count, self.patience = trials, count, patience
        self._forked: dict[int, Connection] = {}  # the pipe to each process
        self._has_forked = False

    @property
    def forked(self) -> list[int]:
        """The processes beside this one."""
        return list(self._forked)

    def __enter__(self) -> Peers:
        return self

    def __exit__(self, *cause: object) -> None:
        for pid in self.forked:
            self._part(pid)

    def ask(self, request: Request) -> list[Any]:
        """The answer of this process, then those of the others where all are asked; a process that hangs is ended."""
        if not request.everyone:
            return [self._trials.answer(request)]
        if not self._has_forked:
            self._has_forked = True
            self._fork(idle_cores(self._trials) if self._count is None else self._count)
        for pid, pipe in list(self._forked.items()):
            try:
                pipe.send(request)
            except OSError:
                self._part(pid)
        start = time.monotonic()
        own = self._trials.answer(request)
        now = time.monotonic()
        return [own, *self._answers(now + self.patience + 3.0 * (now - start))]

    def _answers(self, end: float) -> list[Any]:
        answers = []
        for pid, pipe in list(self._forked.items()):
            try:
                if pipe.poll(max(0.0, end - time.monotonic())):
                    answers.append(pipe.recv())
                    continue
            except (EOFError, OSError):
                pass
            self._part(pid)
        return answers

    def _part(self, pid: int) -> None:
        self._forked.pop(pid).close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)

    def _fork(self, count: int) -> None:
        own = os.getpid()
        for _ in range(count):
            here, there = Pipe()
            try:
                with warnings.catch_warnings():
                    # The warning is that locks of other threads are held for ever in a fork. This one calls torch and
                    # the user's `observe` alone, and is ended where it hangs.
                    warnings.simplefilter("ignore", DeprecationWarning)
                    pid = os.fork()
            except OSError as error:
                log.info("engine: only %d cores compute while it is chosen: %s", 1 + len(self._forked), error.strerror)
                return
            if not pid:
                here.close()
                _serve(self._trials, there, [*self._forked.values()], own)
            there.close()
            self._forked[pid] = here


def idle_cores(trials: Trials) -> int:
    """How many processes of this one's size the idle cores and the free memory suffice for; 0 beside a GPU."""
    evaluator = trials.evaluator
    if evaluator.device.type != "cpu" or sys.platform != "linux":
        return 0
    import resource

    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    room = int(SHARE_OF_MEMORY * free_bytes(evaluator.device) / max(1, size))
    return max(0, min(cores() - evaluator.plan.threads, room))


def _serve(trials: Trials, pipe: Connection, others: list[Connection], parent: int) -> NoReturn:
    """Answer requests in a forked process until the pipe is closed, and end it without any clean-up."""
    try:
        _settle(others, parent)
        evaluator = trials.evaluator
        mine = trials.beside(evaluator.twin(replace(evaluator.plan, threads=1)))
        while True:
            pipe.send(mine.answer(pipe.recv()))
    except BaseException:  # the pipe is closed, or user code asks to exit, which this process's parent reports
        pass
    finally:
        os._exit(0)


def _settle(others: list[Connection], parent: int) -> None:
    """Drop what was inherited from the parent: handlers of signals, output, pipes, log; and end when it ends."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN if number == signal.SIGINT else signal.SIG_DFL)
    end_with_parent()
    if os.getppid() != parent:
        os._exit(0)  # the parent has ended meanwhile
    for each in others:
        each.close()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - until the process ends
    logging.disable()
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # where memory runs out, the kernel is to end this process and not its parent
    # The parent's threads are not there in a fork, and OpenMP would wait for them.
    torch.set_num_threads(1)
