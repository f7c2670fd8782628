"""Carry out the requests of a search: set the first engine, measure points, time candidates, check their values."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from landscape import __version__
from landscape.core.devices import cores, is_out_of_memory, processor_name
from landscape.core.errors import Interrupted, JobError, one_line
from landscape.core.grid import Floats, Grid
from landscape.core.plan import OPTIONS, Engine, Plan, in_float32
from landscape.core.text import digest, finite_or_none
from landscape.evaluation.evaluator import Evaluator
from landscape.evaluation.feed import SamplesChanged
from landscape.evaluation.reduction import Values
from landscape.evaluation.tuning.choices import (
    Candidate,
    KeptChoices,
    Limits,
    Trial,
    TunedChoice,
    TuningRecord,
    TuningScope,
)
from landscape.evaluation.tuning.default_engine import default_candidate
from landscape.evaluation.tuning.search import Facts, Failed, MeasuredCost, Slice, TuningRequest, budget_of, row_points
from landscape.problem.batches import Samples, dense_tensors_in, tensors_of

log = logging.getLogger("landscape")


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
    choice = record.choice_for(budget)
    return Outlook(choice, 0.0 if choice else budget)


# ----------------------------------------------------------------------------------------------------
# The requests of a search, carried out with one evaluator.

WARM_UPS = 2  # at the second point an evaluator finds which outputs stay the same
SECONDS_TO_MEASURE = 0.01  # about how long the batches take from which the cost of a point is known
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
        self._points, self._middle = probe_points(grid), middle_points(grid)
        self._rows = outer_rows(grid)
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
        """Set the evaluator to the first engine, in a batch that fits the memory, and measure what a point costs.

        That engine is the job's, else the one that rules give; if it fails or its values are wrong, the same without
        rewrites that share rows, else plain `eager`.

        Returns:
            `Failed` if user code raises.
        """
        evaluator, planned = self.evaluator, self.evaluator.plan
        refused, asked = None, planned.batch_size
        try:
            for wanted in self._first(scope):
                reason = evaluator.within_memory(partial(self.adopt, wanted))
                if not reason:
                    asked = wanted.batch_size
                    break
                refused = refused or Trial(wanted.engine, wanted.batch_size, refused=reason)
            is_warm = evaluator.plan.engine not in (planned.engine, Engine())  # it was compared with plain eager
            seconds = evaluator.within_memory(lambda: self._seconds_of_point(scope, is_warm=is_warm))
        except Exception as error:
            if isinstance(error, (Interrupted, JobError)) or is_out_of_memory(error):
                raise
            return Failed(one_line(error)[:200])
        plan, warning = evaluator.plan_with_fitting_batches(), ""
        if plan.batch_size != asked:
            warning = f"batch_size: {asked} does not fit the memory; {plan.batch_size} is used"
        cost = MeasuredCost(plan, seconds, evaluator.samples, warning=warning, refused=refused)
        if scope.engine is not None:
            return cost
        key = key_of(evaluator, planned, scope)
        return replace(cost, key=key, record=self._kept.read(key))

    def _first(self, scope: TuningScope) -> list[Candidate]:
        """The engine and batch size that the job asks for, else those that rules give: the first that works is used."""
        evaluator, size = self.evaluator, self.evaluator.plan.batch_size
        if scope.engine is not None:
            return [Candidate(scope.engine, size)]
        samples = evaluator.held_samples
        first = default_candidate(
            evaluator.target, samples.length, scope.points, has_rows=samples.rows is not None and samples.cuts is None,
            may_choose_batch_size=scope.may_choose_batch_size, same_moved=scope.same_moved,
        )  # fmt: skip
        alone = [name for name, option in OPTIONS.items() if option.shares_rows and name in first.engine.options]
        return [first, *([replace(first, engine=first.engine.without(*alone))] if alone else [])]

    def _seconds_of_point(self, scope: TuningScope, *, is_warm: bool) -> float:
        """Seconds of a point over all samples, from as many batches as take SECONDS_TO_MEASURE.

        If they decide nothing, one batch shows that it fits the memory. All batches are evaluated where they differ.

        Args:
            is_warm: whether the engine has evaluated a batch before.
        """
        evaluator = self.evaluator
        before, middle = self._middle
        count = 1 if evaluator.has_equal_batches else evaluator.batches
        if not scope.needs_cost:
            return self._time(evaluator, count, middle) * evaluator.batches / count
        if "reuse" in evaluator.rewrites or not is_warm:
            for point in (before, middle):  # at the second point an evaluator finds which outputs stay the same
                self._time(evaluator, count, point)
        seconds = self._time(evaluator, count, middle)
        fitting = int(min(evaluator.batches, SECONDS_TO_MEASURE / max(seconds, 1e-9)))
        if fitting > count and not evaluator.is_over_processes:  # whose clocks differ
            count, seconds = fitting, self._time(evaluator, fitting, middle)
        timed = min(count * evaluator.batch_size, evaluator.samples) if evaluator.has_equal_batches else None
        share = count / evaluator.batches if timed is None else timed / evaluator.samples
        if evaluator.plan.engine.shares_rows:
            row = scope.row or row_points(seconds / share, len(middle))
            seconds = self._share_of_row(evaluator, count, middle, seconds, row)
        passes = 2 if evaluator.plan.statistics.recalibrated else 1  # which is not timed
        return passes * seconds / share

    def adopt(self, candidate: Candidate) -> str:
        """Set the evaluator to a candidate if its values on some batches agree with plain `eager`; else as it was.

        In batches that were made to fit the memory, the candidate's are no larger.

        Returns:
            Why it cannot be used; empty if it can.

        Raises:
            Exception: the memory does not suffice, or user code raises in plain `eager`, to which the evaluator is set.
        """
        evaluator, before = self.evaluator, Candidate(self.evaluator.plan.engine, self.evaluator.plan.batch_size)
        if evaluator.batch_size < before.batch_size:
            candidate = replace(candidate, batch_size=min(candidate.batch_size, evaluator.batch_size))
        if candidate == before:
            return ""
        reason = ""
        if before != Candidate(Engine(), candidate.batch_size):
            reason = self._difference_of_batches(candidate.batch_size)
        if not reason and candidate.engine != Engine():
            reason = self._difference_of(candidate)
        if reason:
            evaluator.use(before.engine, before.batch_size)
        return reason

    def _difference_of_batches(self, batch_size: int) -> str:
        """Set the evaluator to `eager` in other batches; how it differs on the same samples, or an empty text.

        Losses may depend on the other samples of a batch, and random numbers on its size.
        """
        evaluator, point = self.evaluator, self._middle[:1]
        samples = min(max(evaluator.batch_size, batch_size), evaluator.samples)
        expected, _ = evaluator.observe_batches(-(-samples // evaluator.batch_size), point)
        evaluator.use(Engine(), batch_size)
        found, _ = evaluator.observe_batches(-(-samples // batch_size), point)
        return difference_on_batch(found, expected, evaluator.plan, samples)

    def _difference_of(self, candidate: Candidate) -> str:
        """How a candidate, to which the evaluator is set, differs from `eager`, to which it is set now; else empty.

        The first two batches and the last one are compared: user code may do something else from the second one on,
        and where a batch is smaller.
        """
        evaluator, size = self.evaluator, candidate.batch_size
        expected = self._on_some_batches()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # an engine's warnings about the model
                evaluator.use(candidate.engine, size)
                found = self._on_some_batches()
                if candidate.engine.shares_rows:  # it raises if what it takes to be shared differs for any sample
                    first, *others = self._rows
                    evaluator.observe_batches(evaluator.batches, first)
                    for row in others:
                        evaluator.observe_batches(1, row)
        except (Interrupted, SamplesChanged):
            raise
        except Exception as error:
            if is_out_of_memory(error):
                raise
            return _failure(error)
        samples = min(size, evaluator.samples)
        differences = (
            difference_on_batch(*of_batches, evaluator.plan, samples)
            for of_batches in zip(found, expected, strict=True)
        )
        return next(filter(None, differences), "")

    def _on_some_batches(self) -> list[list[dict[str, float]]]:
        """The mean observables beside the middle over the first two batches, and over the last one."""
        evaluator, point = self.evaluator, self._middle[:1]
        parts = [(2, 0), (1, evaluator.batches - 1)] if evaluator.batches > 2 else [(evaluator.batches, 0)]
        return [evaluator.observe_batches(count, point, first)[0] for count, first in parts]

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
                    self._time(evaluator, one.count, self._point(turn))
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
        seconds = self._time(evaluator, part.count, self._point(turn))
        if not part.candidate.engine.shares_rows:
            return seconds
        return self._share_of_row(evaluator, part.count, self._point(turn), seconds, part.row)

    def _share_of_row(
        self, evaluator: Evaluator, count: int, point: Sequence[float], seconds: float, row: int
    ) -> float:
        """Seconds of one of `row` points that share a row's cost, given those of a point by itself."""
        together = self._time(evaluator, count, point, NEIGHBOURS)
        own = max(0.0, NEIGHBOURS * together - seconds) / (NEIGHBOURS - 1)
        return own + max(0.0, seconds - own) / row

    def _point(self, turn: int) -> list[float]:
        return self._points[turn % len(self._points)].tolist()  # type: ignore[no-any-return]

    def _time(self, evaluator: Evaluator, count: int, point: Sequence[float], neighbours: int = 1) -> float:
        """Seconds per point; `neighbours` are computed together if the engine shares rows."""
        engine = evaluator.plan.engine
        return evaluator.observe_batches(count, [point] * (neighbours if engine.shares_rows else engine.points))[1]

    # -- checking ---------------------------------------------------------------------------------------------

    def check(self, first: Candidate, candidates: Sequence[Candidate]) -> tuple[list[str], float]:
        """Find the first candidate whose values agree with float32 as well as those of plain `eager`.

        Args:
            first: the candidate that is used if none does; `eager` has its batches.

        Returns:
            Why each candidate before it cannot be used (all candidates if none agrees), and its seconds per point.
        """
        self._let_go()
        points, evaluator = self._points, self.evaluator
        if any(candidate.engine.shares_rows for candidate in candidates):
            points = np.concatenate([points, neighbours_of(points)])
        evaluator.use(Engine(), first.batch_size)
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


def middle_points(grid: Grid) -> list[list[float]]:
    """The middle point of the grid, after its neighbour along all axes: [2][axes]."""
    return [[float(axis[len(axis) // 2 - before]) for axis in grid.coordinates] for before in (1, 0)]


def outer_rows(grid: Grid) -> list[list[list[float]]]:
    """The ends of the grid's first row and of its last: [rows][2][axes]."""
    *first, last = ([float(axis[0]), float(axis[-1])] for axis in grid.coordinates)
    corners = [[end[k] for end in first] for k in ((0, 1) if first else (0,))]
    return [[[*corner, end] for end in last] for corner in corners]


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


def difference_on_batch(
    found: Sequence[Mapping[str, float]], expected: Sequence[Mapping[str, float]], plan: Plan, samples: int
) -> str:
    """How an engine's means over one batch differ from those of plain `eager`, point by point; empty if they agree.

    In a precision of few bits, as much is allowed as such a precision may cost.
    """
    rounds_activations = plan.quantise is not None and plan.quantise.activations
    coarse = plan.precision not in ("float32", "float64") or rounds_activations
    for name in expected[0]:
        values, exact = (np.array([point[name] for point in points]) for points in (found, expected))
        reference = Values({name: exact}, {})
        allowed = allowed_error(reference, reference, samples)[name]
        if coarse:
            allowed = allowed + 2 * LARGEST_LOSS * np.nan_to_num(np.abs(exact), posinf=0.0)
        off = ~np.isclose(values, exact, rtol=0, atol=allowed, equal_nan=True)
        if off.any():
            return f"is off by {np.abs(values - exact)[off].max():.2g} in {name}"
    return ""


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
SCHEME = 2  # raise it when the search itself changes
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
            "same_moved": scope.same_moved,
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
