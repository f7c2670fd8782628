"""The search in this process, with others that compute beside it, so that no core is idle while it measures time.

A batch that fits the cache of an idle machine may not fit one worker's share of it. Threads would be no substitute:
unlike workers, they share the interpreter's lock, torch's random generator and the state of user code.
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
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from typing import Any, NoReturn

import torch

from landscape.core.devices import cores, free_bytes
from landscape.core.grid import Grid
from landscape.core.system import end_with_parent
from landscape.evaluation.evaluator import Evaluator
from landscape.evaluation.tuning.choices import KeptChoices, Limits, Tuned, TuningScope
from landscape.evaluation.tuning.search import Search, TuningRequest
from landscape.evaluation.tuning.trials import Trials

log = logging.getLogger("landscape")


def tune(
    evaluator: Evaluator,
    grid: Grid,
    scope: TuningScope,
    *,
    kept: KeptChoices | None = None,
    limits: Limits | None = None,
    load_processes: int | None = None,
) -> Tuned:
    """Measure a point, then search for a faster engine; sets the evaluator to the returned plan.

    The choice is made once, before any value is stored, and recorded: other engines round differently. A batch that
    does not fit the memory is halved first. If user code raises at the measured points, nothing is chosen, and the
    error is reported when the tiles of these points are computed.

    Args:
        kept: the records of earlier choices; default: none.
        limits: how long a search may take.
        load_processes: how many processes compute beside this one during timing; default: one per idle core.
    """
    trials = Trials(evaluator, grid, kept or KeptChoices(None))
    with LoadProcesses(trials, load_processes) as processes:
        return Search(evaluator.plan, scope, processes.ask, limits).run()


PATIENCE_SECONDS = 10.0
SHARE_OF_MEMORY = 0.5


class LoadProcesses:
    """This process and forked ones beside it, which answer the requests of a search; a context manager.

    Args:
        trials: of this process; each fork makes its own from the same evaluator, with one thread.
        count: how many to fork at the first request to everyone; default: one per idle core with enough memory, none
            if processes cannot be forked or a GPU computes.
        patience: a process is considered hung this many seconds after three times the time of this one.
    """

    def __init__(self, trials: Trials, count: int | None = None, patience: float = PATIENCE_SECONDS) -> None:
        self._trials, self._count, self.patience = trials, count, patience
        self._forked: dict[ForkProcess, Connection] | None = None  # the pipe to each; None until all are asked

    @property
    def pids(self) -> list[int | None]:
        """The processes beside this one."""
        return [process.pid for process in self._forked or ()]

    def __enter__(self) -> LoadProcesses:
        return self

    def __exit__(self, *cause: object) -> None:
        for process in list(self._forked or ()):
            self._end(process)

    def ask(self, request: TuningRequest) -> list[Any]:
        """The answer of this process, then those of the others if all are asked; kills a process that hangs."""
        if not request.everyone:
            return [self._trials.answer(request)]
        if self._forked is None:
            self._forked = {}
            self._fork(idle_cores(self._trials.evaluator) if self._count is None else self._count)
        for process, pipe in list(self._forked.items()):
            try:
                pipe.send(request)
            except OSError:
                self._end(process)
        start = time.monotonic()
        answers = [self._trials.answer(request)]
        now = time.monotonic()
        end = now + self.patience + 3.0 * (now - start)
        for process, pipe in list(self._forked.items()):
            try:
                if pipe.poll(max(0.0, end - time.monotonic())):
                    answers.append(pipe.recv())
                    continue
            except (EOFError, OSError):
                pass
            self._end(process)
        return answers

    def _end(self, process: ForkProcess) -> None:
        assert self._forked is not None
        self._forked.pop(process).close()
        process.kill()
        process.join()

    def _fork(self, count: int) -> None:
        assert self._forked is not None
        for _ in range(count):
            here, there = Pipe()
            others = [here, *self._forked.values()]
            process = get_context("fork").Process(target=_serve, args=(self._trials, there, others, os.getpid()))
            try:
                with warnings.catch_warnings():
                    # The warning: a fork inherits locks of other threads that nobody will release. This fork calls
                    # only torch and the user's `observe`, and is killed if it hangs.
                    warnings.simplefilter("ignore", DeprecationWarning)
                    process.start()
            except OSError as error:
                log.info("engine: only %d cores compute while it is chosen: %s", 1 + len(self._forked), error.strerror)
                return
            there.close()
            self._forked[process] = here


def idle_cores(evaluator: Evaluator) -> int:
    """How many processes like this one the idle cores and the free memory have room for; 0 with a GPU."""
    if evaluator.device.type != "cpu" or sys.platform != "linux":
        return 0
    import resource

    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    room = int(SHARE_OF_MEMORY * free_bytes(evaluator.device) / max(1, size))
    return max(0, min(cores() - evaluator.plan.threads, room))


def _serve(trials: Trials, pipe: Connection, others: list[Connection], parent: int) -> NoReturn:
    """Answer requests in a forked process until the pipe is closed, and exit without clean-up."""
    try:
        _detach(others, parent)
        twin = trials.evaluator.twin(replace(trials.evaluator.plan, threads=1))
        own = Trials(twin, trials.grid, KeptChoices(None))
        while True:
            pipe.send(own.answer(pipe.recv()))
    except BaseException:  # the pipe is closed, or user code calls exit, which the parent reports
        pass
    finally:
        os._exit(0)


def _detach(others: list[Connection], parent: int) -> None:
    """Drop inherited signal handlers, output, pipes and log; and exit when the parent does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    end_with_parent()
    if os.getppid() != parent:
        os._exit(0)  # the parent has exited meanwhile
    for pipe in others:
        pipe.close()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - until the process ends
    logging.disable()
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # if memory runs out, the kernel should kill this process, not its parent
    # A fork lacks the parent's threads, and OpenMP would wait for them.
    torch.set_num_threads(1)
