"""The candidates for an engine, timed one after the other within a budget; the fastest that agrees wins."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from landscape.arithmetic import Plan
from landscape.engine import Engine
from landscape.errors import Interrupted, one_line
from landscape.evaluation import Evaluator, Values
from landscape.grid import TILE_SECONDS

DEFAULT_POINT_SECONDS = 0.1  # where a point cannot be measured
WARM_UPS, ROUNDS = 2, 3  # two points tell what stays the same between points
SLICE_SECONDS = 0.05  # a trial runs as many batches as take about this long
GAIN = 1.05  # what is not faster by this much is noise
COMPILE_SECONDS, COMPILE_SECONDS_PER_MODULE = 8.0, 0.4
NEIGHBOURS = 4  # points that are computed together, to tell what each costs from what all of them share
LONGEST_ROW = 16  # points of a tile's row that are counted on to share something
STACKED_PARAMETERS = 4_000_000  # above it one point fills a GPU
TOLERANCE = 1e-5  # relative, of the mean loss
LARGEST_LOSS = 0.02  # relative, of a low precision at one point, that is granted at the others
FLIPS = 2.0  # samples whose class may tip over by rounding


@dataclass(frozen=True)
class Freedom:
    """What may be chosen, and for how many points: nothing is measured for a job that is over sooner."""

    engine: str = "auto"  # or the one that the job asks for
    batch_size: bool = True
    points: int = 0
    row: int | None = None  # points of a row of the job's own tiles; else they suit the cost of a point


@dataclass(frozen=True)
class Trial:
    """One candidate: its speed on the first batches, or why it is out."""

    engine: str
    batch_size: int
    samples_per_second: float | None = None
    refused: str = ""


@dataclass(frozen=True)
class Tuned:
    """The plan to keep, what a point costs with it, and what is recorded of the choice.

    `precision_error` is the largest difference of the mean loss from float32 at the probe points; None where the
    precision is no lower.
    """

    plan: Plan
    seconds_per_point: float = DEFAULT_POINT_SECONDS
    trials: tuple[Trial, ...] = ()
    precision_error: Mapping[str, float | int | None] | None = None
    warning: str = field(default="", compare=False)

    def record(self) -> dict[str, Any]:
        return {
            "engine": self.plan.engine,
            "batch_size": self.plan.batch_size,
            "seconds_per_point": self.seconds_per_point,
            "trials": [asdict(each) for each in self.trials],
        }


class Search:
    """The candidates one after the other; the fastest that agrees with the reference wins."""

    def __init__(
        self, evaluator: Evaluator, points: NDArray[np.float64], freedom: Freedom, budget: float, measured: Tuned
    ) -> None:
        self._evaluator, self._points, self._freedom = evaluator, points, freedom
        self._first, self._seconds, self._warning = measured.plan, measured.seconds_per_point, measured.warning
        self._end = time.perf_counter() + budget
        self._count = max(1, round(SLICE_SECONDS / (self._seconds / evaluator.batches)))
        self._row = freedom.row or row_points(self._seconds, points.shape[1])
        self._trials: list[Trial] = []

    def tuned(self) -> Tuned:
        return Tuned(self._evaluator.plan, self._seconds, tuple(self._trials), warning=self._warning)

    def force(self, engine: Engine) -> None:
        """The engine that the job asks for, unless it fails or is off."""
        if str(engine) == self._first.engine:
            return
        self._accept_first([Trial(str(engine), self._first.batch_size)])
        if self._evaluator.plan == self._first:
            reason = self._trials[-1].refused
            self._warning = f"engine: {engine} is not used, as it {reason}; {self._first.engine} is"

    def run(self) -> None:
        """Layouts and rewrites first, then other batch sizes for the best, then what takes long to set up."""
        evaluator, size = self._evaluator, self._first.batch_size
        possible = evaluator.possible_options()
        rewrites = tuple(name for name in ("channels_last", "maxima", "folded") if name in possible)
        best = self._best_of(Engine.parse(self._first.engine).variants(rewrites), size)
        if best is not None and "fused" in possible:
            # A batch normalisation between a convolution and its ReLU would keep them apart.
            engine = replace(Engine.parse(best.engine), fused=True)
            best = self._best_of(iter([replace(engine, folded="folded" in possible)]), size)
        if best is not None and "superposed" in possible:
            best = self._best_of(
                iter([replace(Engine.parse(best.engine), superposed=True)]), self._superposed_size(size)
            )
        if best is not None and self._freedom.batch_size and evaluator.plan.batch_norm == "eval":
            self._other_batches(Engine.parse(best.engine), best)
        best = self._best()
        if best is not None:
            self._best_of(self._bases(Engine.parse(best.engine)), best.batch_size)
        first = next((each for each in self._trials if each.engine == self._first.engine), None)
        fastest = sorted(self._measured(), key=_worth, reverse=True)
        worth = [each for each in fastest if first is not None and _worth(each) > GAIN * _speed(first)]
        self._accept_first(worth)

    # -- candidates -------------------------------------------------------------------------------------------

    def _bases(self, best: Engine) -> Iterator[Engine]:
        """Other ways to run the best rewrites, the cheap ones to set up first."""
        evaluator, best = self._evaluator, replace(best, fused=False, superposed=False)
        if evaluator.plan.batch_norm == "recalibrate":
            return
        if evaluator.device.type == "cuda":
            if evaluator.resident:
                yield replace(best, base="cudagraph")
            if evaluator.moved_parameters < STACKED_PARAMETERS:
                yield from (replace(best, base="vmap", folded=False, points=points) for points in (8, 32))
        if self._left() > COMPILE_SECONDS + COMPILE_SECONDS_PER_MODULE * evaluator.modules:
            yield replace(best, base="compile")

    def _superposed_size(self, size: int) -> int:
        """Half of it, if that is free: two outputs are kept, which is what a batch takes at its largest."""
        return max(1, size // 2) if self._freedom.batch_size else size

    def _other_batches(self, engine: Engine, best: Trial) -> None:
        """Smaller while it helps, as activations may stay in the cache; larger while it helps, as a GPU likes it."""
        # What superposition keeps of a batch grows with it.
        for factor in (0.25,) if engine.superposed else (0.25, 4.0):
            size, speed = best.batch_size, _speed(best)
            while self._left() > 0:
                size = int(min(max(8, size * factor), self._evaluator.samples))
                trial = self._try(engine, size) if size not in (0, best.batch_size) else None
                if trial is None or _speed(trial) < GAIN * speed:
                    break
                best, speed = trial, _speed(trial)

    # -- measuring --------------------------------------------------------------------------------------------

    def _left(self) -> float:
        return self._end - time.perf_counter()

    def _measured(self) -> list[Trial]:
        return [each for each in self._trials if each.samples_per_second]

    def _best(self) -> Trial | None:
        return max(self._measured(), key=_speed, default=None)

    def _best_of(self, engines: Iterator[Engine], batch_size: int) -> Trial | None:
        for engine in engines:
            if self._left() > 0:
                self._try(engine, batch_size)
        return self._best()

    def _try(self, engine: Engine, batch_size: int) -> Trial | None:
        """Time a candidate on the first batches; what raises is out."""
        known = {(each.engine, each.batch_size) for each in self._trials}
        if (str(engine), batch_size) in known:
            return None
        trial = Trial(str(engine), batch_size)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._evaluator.use(engine, batch_size)
                trial = replace(trial, samples_per_second=self._speed_of(batch_size))
        except Interrupted:
            raise
        except Exception as error:
            trial = replace(trial, refused=f"fails: {one_line(error)[:200]}")
        self._trials.append(trial)
        return trial

    def _speed_of(self, batch_size: int) -> float:
        count = max(1, round(self._count * self._first.batch_size / batch_size))
        seconds = self._seconds_of(count, 1)
        if Engine.parse(self._evaluator.plan.engine).superposed:
            each = max(0.0, NEIGHBOURS * self._seconds_of(count, NEIGHBOURS) - seconds) / (NEIGHBOURS - 1)
            seconds = each + max(0.0, seconds - each) / self._row
        return min(count * batch_size, self._evaluator.samples) / seconds

    def _seconds_of(self, count: int, neighbours: int) -> float:
        points = self._points.tolist()
        timed = [
            self._evaluator.time_batches(count, points[k % len(points)], neighbours) for k in range(WARM_UPS + ROUNDS)
        ]
        return min(timed[WARM_UPS:])

    # -- checking ---------------------------------------------------------------------------------------------

    def _accept_first(self, trials: list[Trial]) -> None:
        """Use the first of these that agrees with float32; else what was planned at first."""
        trials = trials[:3]
        if trials:
            points = self._points
            if any(Engine.parse(each.engine).superposed for each in trials):
                points = np.concatenate([points, neighbours_of(points)])
            self._evaluator.use(Engine.parse(self._first.engine), self._first.batch_size)
            reference = self._evaluator.evaluate(points)
            exact = self._exact(points, reference)
            allowed = _allowed(reference, exact, self._evaluator.samples)
        for trial in trials:
            reason = self._off(trial, points, exact, allowed)
            if not reason:
                return
            self._trials = [each for each in self._trials if each != trial] + [replace(trial, refused=reason)]
        self._evaluator.use(Engine.parse(self._first.engine), self._first.batch_size)

    def _exact(self, points: NDArray[np.float64], reference: Values) -> Values:
        """The reference in float32 where the job's precision is lower."""
        if self._first.precision in ("float32", "float64"):
            return reference
        return self._evaluator.twin(in_float32(self._first)).evaluate(points)

    def _off(self, trial: Trial, points: NDArray[np.float64], exact: Values, allowed: Mapping[str, Any]) -> str:
        """Why a candidate cannot be used; empty where it can."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._evaluator.use(Engine.parse(trial.engine), trial.batch_size)
                found = self._evaluator.evaluate(points)
        except Interrupted:
            raise
        except Exception as error:
            return f"fails: {one_line(error)[:200]}"
        for name, expected in exact.mean.items():
            off = ~np.isclose(found.mean[name], expected, rtol=0, atol=allowed[name], equal_nan=True)
            if off.any():
                worst = np.abs(found.mean[name] - expected)[off].max()
                return f"is off by {worst:.2g} in {name}"
        # The first time it may have compiled, captured and learnt; and a stack of points costs the same however full.
        engine = Engine.parse(trial.engine)
        self._seconds = self._evaluator.evaluate(self._points[:1]).seconds / engine.points
        if engine.superposed and trial.samples_per_second:
            self._seconds = self._evaluator.samples / trial.samples_per_second
        return ""


def _speed(trial: Trial) -> float:
    return trial.samples_per_second or 0.0


def _worth(trial: Trial) -> float:
    """The speed, less what every worker pays again for compiling."""
    return _speed(trial) / (GAIN if trial.engine.startswith("compile") else 1.0)


def _allowed(reference: Values, exact: Values, samples: int) -> dict[str, NDArray[np.float64]]:
    """How far a candidate may be from float32: rounding, a few samples that tip over, and twice what the plain
    evaluation loses to its precision, there or, as that may be little by chance, at the worst of the points."""
    found = {}
    for name, mean in exact.mean.items():
        size = np.nan_to_num(np.abs(mean), posinf=0.0)
        tipping = 0.0 if name == "loss" else FLIPS / samples * np.maximum(1.0, size)
        lost = np.nan_to_num(np.abs(reference.mean[name] - mean), posinf=0.0)
        worst = min(LARGEST_LOSS, float((lost / np.maximum(size, 1e-12)).max()))
        found[name] = TOLERANCE * size + 1e-7 + tipping + 2.0 * np.maximum(lost, worst * size)
    return found


def neighbours_of(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """For each point another one of its row: the last coordinate is that of the point before. [P, axes]"""
    return np.concatenate([points[:, :-1], np.roll(points, 1, axis=0)[:, -1:]], axis=1)


def row_points(seconds: float, axes: int) -> int:
    """About how many points a row of a tile will hold, given what a point costs."""
    return max(1, min(LONGEST_ROW, int((TILE_SECONDS / seconds) ** (1 / max(1, axes)))))


def in_float32(plan: Plan) -> Plan:
    """The reference for a lower precision."""
    return replace(plan, precision="float32", engine="eager")
