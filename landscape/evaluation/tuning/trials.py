"""Carry out the requests of a search: measure points, time candidates beside other processes, check their values."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from typing import Any, NoReturn

import numpy as np
import torch
from torch import nn

from landscape import __version__
from landscape.core.devices import cores, free_bytes, is_out_of_memory, processor_name
from landscape.core.errors import Interrupted, JobError, one_line
from landscape.core.grid import Floats, Grid
from landscape.core.plan import Plan, in_float32
from landscape.core.system import end_with_parent
from landscape.core.text import digest, finite_or_none
from landscape.evaluation.evaluator import Evaluator
from landscape.evaluation.feed import SamplesChanged
from landscape.evaluation.reduction import Values
from landscape.evaluation.tuning.choices import (
    Candidate,
    KeptChoices,
    Limits,
    Tuned,
    TunedChoice,
    TuningRecord,
    TuningScope,
)
from landscape.evaluation.tuning.search import Facts, Failed, MeasuredCost, Search, Slice, TuningRequest, budget_of
from landscape.problem.batches import Samples, dense_tensors_in, tensors_of

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


@dataclass(frozen=True)
class Outlook:
    """What `tune` will do: use a kept choice, or search for at most so many seconds."""

    kept: TunedChoice | None
    search_seconds: float


def outlook(
    evaluator: Evaluator, plan: Plan, scope: TuningScope, seconds_per_point: float, kept: KeptChoices
) -> Outlook:
    """What a job that leaves the engine open will do.

    Args:
        plan: the first plan.
        seconds_per_point: as measured now; a kept earlier measurement takes precedence.
    """
    record = kept.read(key_of(evaluator, plan, scope)) or TuningRecord(seconds_per_point)
    budget = budget_of(record.seconds_per_point, scope.points, Limits())
    choice = record.choice_for(budget) if budget else None
    return Outlook(choice, 0.0 if choice else budget)


# ----------------------------------------------------------------------------------------------------
# The requests of a search, carried out with one evaluator.

WARM_UPS = 2  # at the second point an evaluator finds which outputs stay the same
NEIGHBOURS = 4  # points computed together, to separate the cost of each from their shared cost


class Trials:
    """An evaluator and a second one beside it, for two candidates at a time; the samples are in memory once.

    A `TuningRequest` names its public methods.

    Args:
        evaluator: may be in any state until `conclude` sets it to the chosen plan.
        grid: of the landscape; candidates are checked at its middle and two of its corners.
        kept: the records of earlier choices.
    """

    def __init__(self, evaluator: Evaluator, grid: Grid, kept: KeptChoices) -> None:
        self.evaluator, self.grid, self._kept = evaluator, grid, kept
        self._points = probe_points(grid)
        self._twin: Evaluator | None = None
        self._ready: dict[Candidate, Evaluator] = {}

    def answer(self, request: TuningRequest) -> Any:
        """The answer to a request; `Failed` if it raises, as no failure of a candidate may end a job.

        Raises:
            JobError: the model cannot be measured at all.
            SamplesChanged: user code has written to the samples.
            Interrupted: the job was told to stop.
        """
        method = getattr(self, request.method)
        if request.method == "measure":
            return method(*request.arguments)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # an engine's warnings about the model
                return method(*request.arguments)
        except (Interrupted, SamplesChanged):
            raise
        except Exception as error:
            return Failed(_failure(error))

    # -- what there is ----------------------------------------------------------------------------------------

    def measure(self, scope: TuningScope) -> MeasuredCost | Failed:
        """The cost of a point, with a batch that fits the memory; `Failed` if user code raises."""
        evaluator, planned = self.evaluator, self.evaluator.plan
        try:
            seconds = evaluator.within_memory(lambda: measure_point(evaluator, self.grid))
        except Exception as error:
            if isinstance(error, (Interrupted, JobError)) or is_out_of_memory(error):
                raise
            return Failed(one_line(error)[:200])
        plan, warning = evaluator.plan_with_fitting_batches(), ""
        if plan.batch_size != planned.batch_size:
            warning = f"batch_size: {planned.batch_size} does not fit the memory; {plan.batch_size} is used"
        cost = MeasuredCost(plan, seconds, evaluator.samples, warning=warning)
        if scope.engine is not None:
            return cost
        key = key_of(evaluator, planned, scope)
        return replace(cost, key=key, record=self._kept.read(key))

    def examine(self) -> Facts:
        """The facts that decide which candidates there are."""
        evaluator = self.evaluator
        return Facts(
            evaluator.possible_options(), evaluator.samples, evaluator.batches, self._points.shape[1],
            sum(1 for _ in evaluator.evaluated_model.modules()), evaluator.weights.parameters, evaluator.resident,
            evaluator.held_samples.cuts is not None,
        )  # fmt: skip

    def keep(self, *record: Any) -> TuningRecord:
        """Keep a choice, see `KeptChoices.write`; returns the record, perhaps with another process's choice."""
        return self._kept.write(*record)

    # -- timing -----------------------------------------------------------------------------------------------

    def set_up(self, part: Slice, beside: Slice) -> None:
        """Set up and warm up a candidate, keeping `beside` set up."""
        for one, other in ((beside, part), (part, beside)):
            if one.candidate not in self._ready:
                self._ready = {k: ready for k, ready in self._ready.items() if k == other.candidate}
                evaluator = self._free_one(one.candidate)
                for turn in range(WARM_UPS):
                    self._time(evaluator, one.count, turn)
                self._ready[one.candidate] = evaluator

    def _free_one(self, candidate: Candidate) -> Evaluator:
        """An evaluator that is not in use, set to the candidate."""
        free = self.evaluator
        if self.evaluator in self._ready.values():
            if self._twin is None:
                self._twin = self.evaluator.twin(replace(self.evaluator.plan, **vars(candidate)))
                return self._twin
            free = self._twin
        free.use(candidate.engine, candidate.batch_size)
        return free

    def time(self, part: Slice, turn: int) -> float:
        """Seconds per point of a candidate that is set up.

        They include the point's part of the shared cost of its row.
        """
        evaluator = self._ready[part.candidate]
        seconds = self._time(evaluator, part.count, turn)
        if not part.candidate.engine.shares_rows:
            return seconds
        together = self._time(evaluator, part.count, turn, NEIGHBOURS)
        own = max(0.0, NEIGHBOURS * together - seconds) / (NEIGHBOURS - 1)
        return own + max(0.0, seconds - own) / part.row

    def _time(self, evaluator: Evaluator, count: int, turn: int, neighbours: int = 1) -> float:
        evaluator.on_point()
        return evaluator.time_batches(count, self._points[turn % len(self._points)].tolist(), neighbours)

    # -- checking ---------------------------------------------------------------------------------------------

    def check(self, first: Candidate, candidates: Sequence[Candidate]) -> tuple[list[str], float]:
        """Find the first candidate whose values agree with float32 as well as those of `first`.

        Returns:
            Why each candidate before it cannot be used (all candidates if none agrees), and its seconds per point.
        """
        self._let_go()
        points, evaluator = self._points, self.evaluator
        if any(candidate.engine.shares_rows for candidate in candidates):
            points = np.concatenate([points, neighbours_of(points)])
        evaluator.use(first.engine, first.batch_size)
        reference = evaluator.evaluate(points)
        exact = exact_values(evaluator, points) or reference
        allowed = allowed_error(reference, exact, evaluator.samples)
        refused: list[str] = []
        for candidate in candidates:
            reason = self._disagreement(candidate, points, exact, allowed)
            if not reason:
                # Evaluated again, as the first time may include compiling or capturing. A stack of points costs the
                # same for any number of them.
                return refused, evaluator.evaluate(self._points[:1]).seconds / candidate.engine.points
            refused.append(reason)
        return refused, 0.0

    def _disagreement(
        self, candidate: Candidate, points: Floats, exact: Values, allowed: Mapping[str, Floats]
    ) -> str:  # fmt: skip
        """Why a candidate cannot be used; empty if it can."""
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

    def conclude(self, plan: Plan) -> dict[str, float | int | None] | None:
        """Set the evaluator to the chosen plan; returns its `precision_error`."""
        self._let_go()
        if self.evaluator.plan != plan:
            self.evaluator.use(plan.engine, plan.batch_size)
        return precision_error(self.evaluator, self._points)

    def _let_go(self) -> None:
        """Drop the candidates that are set up, so one evaluator has the device's memory to itself."""
        self._ready.clear()
        self._twin = None


def _failure(error: Exception) -> str:
    return f"fails: {one_line(error)[:200]}"


def measure_point(evaluator: Evaluator, grid: Grid) -> float:
    """Seconds per point, from the middle point of the grid, after a warm-up at its neighbour."""
    points = np.array([[axis[len(axis) // 2 - before] for axis in grid.coordinates] for before in (1, 0)])
    evaluator.evaluate(points[:1])
    return evaluator.evaluate(points[1:]).seconds


def probe_points(grid: Grid) -> Floats:
    """The middle of the grid and its two far corners: [3, axes]."""
    middle = [len(axis) // 2 for axis in grid.coordinates]
    return np.array(
        [
            [axis[place] for axis, place in zip(grid.coordinates, places, strict=True)]
            for places in (middle, [0] * len(middle), [-1] * len(middle))
        ]
    )


def neighbours_of(points: Floats) -> Floats:
    """For each point another point of its row, with the last coordinate of the point before it: [P, axes]."""
    return np.concatenate([points[:, :-1], np.roll(points, 1, axis=0)[:, -1:]], axis=1)


# ----------------------------------------------------------------------------------------------------
# Other processes that compute beside this one, so that no core is idle while a search measures time.
#
# A batch that fits the cache of an idle machine may not fit one worker's share of it. Threads would be no substitute:
# unlike workers, they share the interpreter's lock, torch's random generator and the state of user code.

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


# ----------------------------------------------------------------------------------------------------
# The error of a lower precision against float32, and the error that a candidate is allowed.

TOLERANCE = 1e-5  # relative, of the mean loss
LARGEST_LOSS = 0.02  # the largest relative error of a low precision at one point that is allowed at the others too
FLIPS = 2.0  # samples whose class may flip by rounding


def allowed_error(reference: Values, exact: Values, samples: int) -> dict[str, Floats]:
    """The allowed error of a candidate against float32 at each point, by observable: [points] each.

    It is the sum of rounding, of a few samples whose class may change by rounding, and of twice the error of the plain
    evaluation in its precision. That error may be small at one point by chance, so at least twice the largest relative
    error of all points is allowed, up to `LARGEST_LOSS`.
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
    """The values in a higher precision that bound a candidate's error; None if no such precision applies.

    Rounding takes some quantised activations to the next level, other ones with another engine. Values in float64 show
    how much that changes the result.
    """
    plan = in_float32(evaluator.plan)
    if evaluator.plan.precision not in ("float32", "float64"):
        return _values_by(plan, evaluator, points)
    if evaluator.plan.precision == "float32" and plan.quantise is not None and plan.quantise.activations:
        return _values_by(replace(plan, precision="float64"), evaluator, points)
    return None


def _values_by(plan: Plan, evaluator: Evaluator, points: Floats) -> Values | None:
    """The values by another plan; None if it does not fit the device beside the evaluator."""
    try:
        return evaluator.twin(plan).evaluate(points)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
    return None


def precision_error(evaluator: Evaluator, points: Floats) -> dict[str, float | int | None] | None:
    """The error of the plan's precision against float32: max |Δ| of the mean loss over the points, and max |Δ|/|L|.

    It includes the rounding of weights that are held in bfloat16.

    Returns:
        None in float32 and float64, and if the device has no room for the weights in float32.
    """
    if evaluator.plan.precision in ("float32", "float64"):
        return None
    values = _values_by(in_float32(evaluator.plan), evaluator, points)
    if values is None:
        log.info("precision: what %s costs is not known: the device has no room for the weights in float32 beside it",
                 evaluator.plan.precision)  # fmt: skip
        return None
    exact = values.mean["loss"]
    error = np.abs(evaluator.evaluate(points).mean["loss"] - exact)
    relative = error / np.maximum(np.abs(exact), np.finfo(np.float64).tiny)
    return {
        "max_abs_error": finite_or_none(error.max()), "max_rel_error": finite_or_none(relative.max()),
        "points": len(points),
    }  # fmt: skip


# ----------------------------------------------------------------------------------------------------
# The key of a choice: machine, versions, arithmetic, model structure, shapes of the samples.
#
# Weights, the values of the samples and the number of workers are not in the key: they do not change which engine is
# the fastest.

FEW = 8  # samples
SCHEME = 1  # raise it when the search itself changes
_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")  # of a function in a module's repr; differs between processes


def key_of(evaluator: Evaluator, plan: Plan, scope: TuningScope) -> str:
    """The key of a choice, in hexadecimal.

    Args:
        plan: the first plan, before its batches were made to fit the memory.
    """
    arithmetic = plan.record() | {
        "seed": None,
        "batch_size": None if scope.may_choose_batch_size else plan.batch_size,
    }
    return digest(
        {
            "scheme": SCHEME,
            "versions": [__version__, torch.__version__],
            "machine": machine_of(evaluator.device),
            "arithmetic": arithmetic,
            "row": scope.row,
            "model": module_structure(evaluator.model),
            "observe": getattr(evaluator.observe, "__qualname__", type(evaluator.observe).__qualname__),
            "samples": shapes_of(evaluator.held_samples),
            "moved": [sorted(direction) for direction in evaluator.directions],
        }
    )


def machine_of(device: torch.device) -> dict[str, Any]:
    """The processor, the cores that this process may use, and the GPU if it computes."""
    parts: dict[str, Any] = {"processor": processor_name(torch.device("cpu")), "cores": cores()}
    if device.type == "cuda":
        gpu = torch.cuda.get_device_properties(device)
        parts["gpu"] = [gpu.name, gpu.total_memory]
    return parts


def module_structure(model: nn.Module) -> list[Any]:
    """The model's modules in order: name, type, `extra_repr`, and the shapes of their own tensors."""
    return [
        [
            name,
            type(module).__qualname__,
            _shown(module),
            *(_own(tensors) for tensors in (module._parameters, module._buffers)),
        ]
        for name, module in model.named_modules()
    ]


def _own(tensors: dict[str, Any]) -> list[Any]:
    return [[name, list(tensor.shape), str(tensor.dtype)] for name, tensor in tensors.items() if tensor is not None]


def _shown(module: nn.Module) -> str:
    try:
        return _ADDRESS.sub("", str(module.extra_repr()))
    except Exception:  # user code; the key works without it
        return ""


def shapes_of(samples: Samples) -> list[Any]:
    """The shape and type of every tensor of the samples, in order; for samples that are no rows, of a small batch."""
    if samples.rows is None:
        small = samples.few(FEW)
        tensors = dense_tensors_in(small.batch(*small.edges(FEW)[0]))
        return [samples.length, [[list(tensor.shape), str(tensor.dtype)] for tensor in tensors]]
    # The type in which floating-point samples are held depends on free memory, so it is left out.
    return [
        [list(tensor.shape), "float" if tensor.is_floating_point() else str(tensor.dtype)]
        for tensor in tensors_of(samples.rows)
    ]
