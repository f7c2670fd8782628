"""Carry out the requests of a search with one evaluator: measure points, time candidates, check them with float32."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from landscape.core.devices import is_out_of_memory
from landscape.core.errors import Interrupted, JobError, one_line
from landscape.core.grid import Grid
from landscape.evaluation.circumstances import key_of
from landscape.evaluation.evaluator import Evaluator
from landscape.evaluation.tuning.precision import allowed_error, exact_values, precision_error
from landscape.evaluation.tuning.protocol import KeptChoices
from landscape.evaluation.tuning.questions import (
    Candidate,
    Check,
    Checked,
    Conclude,
    Facts,
    Keep,
    Look,
    Measure,
    Measured,
    Ready,
    Refused,
    Request,
    SetUp,
    Slice,
    Time,
    Timed,
)
from landscape.evaluation.unchanged import SamplesChanged
from landscape.evaluation.values import Values

WARM_UPS = 2  # at the second point an evaluator learns which outputs stay the same
NEIGHBOURS = 4  # points computed together, which tells the cost of each from the cost that they share

Points = NDArray[np.float64]


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

    def answer(self, request: Request) -> Any:
        """The answer to a request; `Refused` where it raises, as nothing that is tried may end a job.

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
            return Refused(_failure(error))

    def _do(self, request: Request) -> Any:
        match request:
            case Look():
                return self._facts()
            case SetUp():
                return self._set_up(request)
            case Time():
                return Timed(self._seconds_of(request.one, request.turn))
            case Check():
                return self._check(request)
            case Keep():
                return self._kept.write(request.key, request.record, request.dropped)
            case Conclude():
                return self._conclude(request)
        raise AssertionError(request)

    # -- what there is ----------------------------------------------------------------------------------------

    def _measure(self, request: Measure) -> Measured | Refused:
        """What a point costs, with a batch that fits the memory; `Refused` where user code raises."""
        evaluator, asked = self.evaluator, self.evaluator.plan
        try:
            seconds = evaluator.within_memory(lambda: measure_point(evaluator, self._grid))
        except Exception as error:
            if isinstance(error, (Interrupted, JobError)) or is_out_of_memory(error):
                raise
            return Refused(one_line(error)[:200])
        plan = evaluator.plan_with_fitting_batches()
        fits = evaluator.batch_size == asked.batch_size
        warning = f"batch_size: {asked.batch_size} does not fit the memory; {evaluator.batch_size} is used"
        if request.freedom.engine is not None:
            return Measured(plan, seconds, evaluator.samples, warning="" if fits else warning)
        key = key_of(evaluator, asked, request.freedom)
        return Measured(plan, seconds, evaluator.samples, key, self._kept.read(key), "" if fits else warning)

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

    def _check(self, request: Check) -> Checked:
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
                return Checked(candidate, seconds, tuple(refused))
            refused.append(reason)
        return Checked(None, refused=tuple(refused))

    def _off(self, candidate: Candidate, points: Points, exact: Values, allowed: Mapping[str, Points]) -> str:
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


def probe_points(grid: Grid) -> Points:
    """The middle of the grid and its two far corners: [3, axes]."""
    return np.array([[axis[place(len(axis))] for axis in grid.coordinates] for place in _PLACES])


_PLACES: Sequence[Any] = (lambda count: count // 2, lambda count: 0, lambda count: count - 1)


def neighbours_of(points: Points) -> Points:
    """For each point another one of its row, with the last coordinate of the point before it: [P, axes]."""
    return np.concatenate([points[:, :-1], np.roll(points, 1, axis=0)[:, -1:]], axis=1)
