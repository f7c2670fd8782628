"""Carry out the requests of a search with one evaluator: measure points, time candidates, check them with float32."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, NoReturn

import numpy as np
import torch

from landscape.core.devices import cores, free_bytes, is_out_of_memory
from landscape.core.errors import Interrupted, JobError, one_line
from landscape.core.grid import Floats, Grid
from landscape.core.plan import Plan, in_float32
from landscape.core.system import end_with_parent
from landscape.evaluation.evaluator import Evaluator, key_of
from landscape.evaluation.feed import SamplesChanged
from landscape.evaluation.tuning.protocol import (
    AgreeingCandidate,
    Candidate,
    CheckAgreement,
    Conclude,
    ExamineModel,
    Facts,
    FailedRequest,
    Keep,
    KeptChoices,
    Measure,
    MeasuredCost,
    Ready,
    SetUp,
    Slice,
    Time,
    Timed,
    TuningRequest,
)
from landscape.evaluation.values import Values

# ----------------------------------------------------------------------------------------------------
# How far values of a lower precision are from those in float32, and how far those of a candidate may be.

TOLERANCE = 1e-5  # relative, of the mean loss
LARGEST_LOSS = 0.02  # relative, of a low precision at one point, that is granted at the others
FLIPS = 2.0  # samples whose class may tip over by rounding


log = logging.getLogger("landscape")


def allowed_error(reference: Values, exact: Values, samples: int) -> dict[str, Floats]:
    """How far a candidate may be from float32 at each point, by observable: [points] each.

    It is the sum of rounding, of a few samples whose class may change by it, and of twice the error of the plain
    evaluation in its precision. That error may be small at a point by chance, so that at least twice the largest
    relative error of all points is allowed, up to `LARGEST_LOSS`.
    """
    allowed = {}
    for name, mean in exact.mean.items():
        size = np.nan_to_num(np.abs(mean), posinf=0.0)
        tipping = 0.0 if name == "loss" else FLIPS / samples * np.maximum(1.0, size)
        lost = np.nan_to_num(np.abs(reference.mean[name] - mean), posinf=0.0)
        worst = min(LARGEST_LOSS, float((lost / np.maximum(size, 1e-12)).max()))
        allowed[name] = TOLERANCE * size + 1e-7 + tipping + 2.0 * np.maximum(lost, worst * size)
    return allowed


def exact_values(evaluator: Evaluator, points: Floats) -> Values | None:
    """What a candidate is compared with where another precision tells how far its values may be; None where none does.

    Where activations are quantised, rounding takes some of them to the next level, by other engines others. How much
    that changes the values is seen by those in float64.
    """
    plan = evaluator.plan
    if plan.precision not in ("float32", "float64"):
        return values_in_float32(evaluator, points)
    if plan.precision == "float32" and plan.quantise is not None and plan.quantise.activations:
        return _values_with(replace(in_float32(plan), precision="float64"), evaluator, points)
    return None


def values_in_float32(evaluator: Evaluator, points: Floats) -> Values | None:
    """The values with all weights in float32; None where these do not fit the device beside the evaluator."""
    return _values_with(in_float32(evaluator.plan), evaluator, points)


def _values_with(plan: Plan, evaluator: Evaluator, points: Floats) -> Values | None:
    try:
        return evaluator.twin(plan).evaluate(points)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
    return None


def precision_error(evaluator: Evaluator, points: Floats) -> dict[str, float | int | None] | None:
    """What the plan's precision costs against float32: max |Δ| of the mean loss over the points, and max |Δ|/|L|.

    Where weights are held in bfloat16 their rounding is part of it, as those in float32 are not rounded.

    Returns:
        None in float32 and float64, and where the device has no room for the weights in float32.
    """
    if evaluator.plan.precision in ("float32", "float64"):
        return None
    values = values_in_float32(evaluator, points)
    if values is None:
        log.info("precision: what %s costs is not known: the device has no room for the weights in float32 beside it",
                 evaluator.plan.precision)  # fmt: skip
        return None
    exact = values.mean["loss"]
    error = np.abs(evaluator.evaluate(points).mean["loss"] - exact)
    relative = error / np.maximum(np.abs(exact), np.finfo(np.float64).tiny)
    return {
        "max_abs_error": _finite(error.max()), "max_rel_error": _finite(relative.max()), "points": len(points),
    }  # fmt: skip


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


# ----------------------------------------------------------------------------------------------------

WARM_UPS = 2  # at the second point an evaluator learns which outputs stay the same
NEIGHBOURS = 4  # points computed together, which tells the cost of each from the cost that they share


class Trials:
    """An evaluator and a second one beside it, for two candidates at a time; the samples are in memory once.

    Args:
        evaluator: may be in any state until `Conclude`, which sets it to the chosen plan.
        grid: of the landscape; the candidates are checked at its middle and two of its corners.
        kept: where choices are kept.
    """

    def __init__(self, evaluator: Evaluator, grid: Grid, kept: KeptChoices) -> None:
        self.evaluator, self._grid, self._kept = evaluator, grid, kept
        self._points = probe_points(grid)
        self._twin: Evaluator | None = None
        self._ready: dict[Candidate, Evaluator] = {}

    def beside(self, evaluator: Evaluator) -> Trials:
        """Trials with the evaluator of another process, which keep no choices."""
        return Trials(evaluator, self._grid, KeptChoices(None))

    def answer(self, request: TuningRequest) -> Any:
        """The answer to a request; `FailedRequest` where it raises, as nothing that is tried may end a job.

        Raises:
            JobError: the model cannot be measured at all.
            SamplesChanged: user code has written to the samples.
            Interrupted: the job is to end.
        """
        if isinstance(request, Measure):
            return self._measure(request)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what an engine thinks of the model
                return self._do(request)
        except (Interrupted, SamplesChanged):
            raise
        except Exception as error:
            return FailedRequest(_failure(error))

    def _do(self, request: TuningRequest) -> Any:
        match request:
            case ExamineModel():
                return self._facts()
            case SetUp():
                return self._set_up(request)
            case Time():
                return Timed(self._seconds_of(request.one, request.turn))
            case CheckAgreement():
                return self._check(request)
            case Keep():
                return self._kept.write(request.key, request.record, request.dropped)
            case Conclude():
                return self._conclude(request)
        raise AssertionError(request)

    # -- what there is ----------------------------------------------------------------------------------------

    def _measure(self, request: Measure) -> MeasuredCost | FailedRequest:
        """What a point costs, with a batch that fits the memory; `FailedRequest` where user code raises."""
        evaluator, asked = self.evaluator, self.evaluator.plan
        try:
            seconds = evaluator.within_memory(lambda: measure_point(evaluator, self._grid))
        except Exception as error:
            if isinstance(error, (Interrupted, JobError)) or is_out_of_memory(error):
                raise
            return FailedRequest(one_line(error)[:200])
        plan = evaluator.plan_with_fitting_batches()
        fits = evaluator.batch_size == asked.batch_size
        warning = f"batch_size: {asked.batch_size} does not fit the memory; {evaluator.batch_size} is used"
        if request.scope.engine is not None:
            return MeasuredCost(plan, seconds, evaluator.samples, warning="" if fits else warning)
        key = key_of(evaluator, asked, request.scope)
        return MeasuredCost(plan, seconds, evaluator.samples, key, self._kept.read(key), "" if fits else warning)

    def _facts(self) -> Facts:
        evaluator = self.evaluator
        return Facts(
            evaluator.possible_options(), evaluator.samples, evaluator.batches, self._points.shape[1],
            sum(1 for _ in evaluator.evaluated_model.modules()), evaluator.weights.parameters, evaluator.resident,
            evaluator.held_samples.cuts is not None,
        )  # fmt: skip

    # -- timing -----------------------------------------------------------------------------------------------

    def _set_up(self, request: SetUp) -> Ready:
        for one, other in ((request.beside, request.one), (request.one, request.beside)):
            if one.candidate not in self._ready:
                self._ready = {k: ready for k, ready in self._ready.items() if k == other.candidate}
                evaluator = self._free_one(one.candidate)
                for turn in range(WARM_UPS):
                    self._time(evaluator, one.count, turn)
                self._ready[one.candidate] = evaluator
        return Ready()

    def _free_one(self, candidate: Candidate) -> Evaluator:
        """One of the two evaluators that is not in use, set to the candidate."""
        engine, size = candidate.engine, candidate.batch_size
        used = list(self._ready.values())
        if self.evaluator in used:
            if self._twin is None:
                plan = replace(self.evaluator.plan, engine=engine, batch_size=size)
                self._twin = self.evaluator.twin(plan)
                return self._twin
            free = self._twin
        else:
            free = self.evaluator
        free.use(engine, size)
        return free

    def _seconds_of(self, one: Slice, turn: int) -> float:
        """Seconds per point; where the points of a row share something, a point's part of it among them."""
        evaluator = self._ready[one.candidate]
        seconds = self._time(evaluator, one.count, turn)
        if not one.candidate.engine.shares_rows:
            return seconds
        together = self._time(evaluator, one.count, turn, NEIGHBOURS)
        own = max(0.0, NEIGHBOURS * together - seconds) / (NEIGHBOURS - 1)
        return own + max(0.0, seconds - own) / one.row

    def _time(self, evaluator: Evaluator, count: int, turn: int, neighbours: int = 1) -> float:
        evaluator.on_point()
        return evaluator.time_batches(count, self._points[turn % len(self._points)].tolist(), neighbours)

    # -- checking ---------------------------------------------------------------------------------------------

    def _check(self, request: CheckAgreement) -> AgreeingCandidate:
        self._forget()
        points, evaluator = self._points, self.evaluator
        if any(each.engine.shares_rows for each in request.candidates):
            points = np.concatenate([points, neighbours_of(points)])
        first = request.first
        evaluator.use(first.engine, first.batch_size)
        reference = evaluator.evaluate(points)
        exact = exact_values(evaluator, points) or reference
        allowed = allowed_error(reference, exact, evaluator.samples)
        refused: list[str] = []
        for candidate in request.candidates:
            reason = self._off(candidate, points, exact, allowed)
            if not reason:
                # Evaluated once more, as the first time it may have compiled or captured. A stack of points costs the
                # same however many of them are wanted.
                seconds = evaluator.evaluate(self._points[:1]).seconds / candidate.engine.points
                return AgreeingCandidate(candidate, seconds, tuple(refused))
            refused.append(reason)
        return AgreeingCandidate(None, refused=tuple(refused))

    def _off(self, candidate: Candidate, points: Floats, exact: Values, allowed: Mapping[str, Floats]) -> str:
        """Why a candidate cannot be used; empty where it can."""
        try:
            self.evaluator.use(candidate.engine, candidate.batch_size)
            values = self.evaluator.evaluate(points)
        except (Interrupted, SamplesChanged):
            raise
        except Exception as error:
            return _failure(error)
        for name, expected in exact.mean.items():
            off = ~np.isclose(values.mean[name], expected, rtol=0, atol=allowed[name], equal_nan=True)
            if off.any():
                worst = np.abs(values.mean[name] - expected)[off].max()
                return f"is off by {worst:.2g} in {name}"
        return ""

    def _conclude(self, request: Conclude) -> dict[str, float | int | None] | None:
        self._forget()
        plan, evaluator = request.plan, self.evaluator
        if evaluator.plan != plan:
            evaluator.use(plan.engine, plan.batch_size)
        return precision_error(evaluator, self._points)

    def _forget(self) -> None:
        """Let go of the candidates that are set up, so that one evaluator has the memory of the device for itself."""
        self._ready.clear()
        self._twin = None


def _failure(error: Exception) -> str:
    return f"fails: {one_line(error)[:200]}"


def measure_point(evaluator: Evaluator, grid: Grid) -> float:
    """Seconds per point, from one real point in the middle of the grid after a warm-up beside it."""
    points = np.array([[axis[len(axis) // 2 - before] for axis in grid.coordinates] for before in (1, 0)])
    evaluator.evaluate(points[:1])
    return evaluator.evaluate(points[1:]).seconds


def probe_points(grid: Grid) -> Floats:
    """The middle of the grid and its two far corners: [3, axes]."""
    return np.array([[axis[place(len(axis))] for axis in grid.coordinates] for place in _PLACES])


_PLACES: Sequence[Any] = (lambda count: count // 2, lambda count: 0, lambda count: count - 1)


def neighbours_of(points: Floats) -> Floats:
    """For each point another one of its row, with the last coordinate of the point before it: [P, axes]."""
    return np.concatenate([points[:, :-1], np.roll(points, 1, axis=0)[:, -1:]], axis=1)


# ----------------------------------------------------------------------------------------------------
# Carry out a search's requests in this process and in forked ones at once, so that no core is idle while it times.
#
# A batch that fits the cache of an idle machine may not fit the part of it that each of many workers has. Threads would
# not do: they share the interpreter's lock, torch's random generator and the state of user code, which workers do not.

PATIENCE_SECONDS = 10.0
SHARE_OF_MEMORY = 0.5


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

    def ask(self, request: TuningRequest) -> list[Any]:
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
