"""Measures from losses along directions through one set of weights: rises, radii, average cases."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from landscape.analysis.measures.document import MeasureRow, row_of
from landscape.compute.auto_range import LEAST_RISE
from landscape.compute.executor import AtPoints, EvaluationSetting, Executor
from landscape.core.grid import Floats
from landscape.core.plan import Plan
from landscape.core.statistics import interval_of
from landscape.evaluation.reduction import Values, terms_of
from landscape.job.directions.base import DirectionTensors
from landscape.job.directions.random import random_direction
from landscape.model.parameters import ParameterInfo, State
from landscape.problem.terms import Problem

Draw = Callable[[], Mapping[str, Tensor]]

# The most axes of one setting, and bytes of these: a process loads the model once per setting, and copies the moved
# parameters once per axis.
MOST_AXES = 16
AXES_BYTES = 256 << 20


@dataclass(frozen=True)
class LineOrigin:
    """The origin of lines: weights, the plan of their evaluation, and the executor.

    Attributes:
        origin: θ₀.
        numbers: the most numbers that a direction has.
        terms: the terms of the loss, each with its factor; None if every sample has its own loss.
    """

    executor: Executor
    plan: Plan
    origin: State
    numbers: int
    terms: Mapping[str, float] | None = None

    @classmethod
    def of(cls, executor: Executor, plan: Plan, origin: State, problem: Problem) -> LineOrigin:
        """At some weights of a problem."""
        numbers = sum(tensor.numel() for tensor in origin.values())
        return cls(executor, plan, origin, numbers, terms_of(problem.observe))

    def along(self, draws: Sequence[Draw], coordinates: Sequence[Sequence[float]]) -> list[Values]:
        """The values at θ₀ + c·d for each direction d and each of its coordinates c.

        Args:
            draws: each makes a direction; tensors that it lacks do not move.
            coordinates: of each direction.
        """
        answers: list[Values] = []
        for start, setting in self._settings(draws):
            axes = len(setting.directions)
            questions = []
            for axis in range(axes):
                points = np.zeros((len(coordinates[start + axis]), axes))
                points[:, axis] = coordinates[start + axis]
                questions.append(AtPoints(points, keep=True))
            answers += self.executor.ask(setting, questions)
        return answers

    def _settings(self, draws: Sequence[Draw]) -> Iterator[tuple[int, EvaluationSetting]]:
        """Settings with some of the directions each, and the number of the first one."""
        together = max(1, min(MOST_AXES, AXES_BYTES // (4 * self.numbers)))
        for start in range(0, len(draws), together):
            axes = tuple(DirectionTensors(draw()) for draw in draws[start : start + together])
            yield start, EvaluationSetting(self.origin, axes, self.plan)


def mean_of(values: Values) -> Floats:
    """The mean loss at each coordinate of a line."""
    return np.asarray(values.mean["loss"], np.float64)


def samples_of(values: Values) -> Floats | None:
    """ℓᵢ at each coordinate of a line, [coordinates, samples]; None if samples have no losses of their own."""
    return None if values.samples is None else values.samples.losses.astype(np.float64)


def weights_of(values: Values) -> Floats | None:
    """The sample weights."""
    return None if values.samples is None else values.samples.weights


def stderr_over(samples: Floats, weights: Floats) -> float:
    """The standard error of Σwx/Σw over n samples: √(Σw²(x−m)²)/Σw·√(n/(n−1)); NaN if a sample is not finite."""
    if not np.isfinite(samples).all():
        return math.nan
    total, count = float(weights.sum()), len(samples)
    mean = float((weights * samples).sum()) / total
    spread = math.sqrt(float((weights**2 * (samples - mean) ** 2).sum())) / total
    return spread * math.sqrt(count / (count - 1))


# ----------------------------------------------------------------------------------------------------
# The rise of the loss along random lines, and the distance at which it has risen by a target.

# 16 lines of 9 points are 9 % of a plane of 40 x 40, and a t-interval over 16 is 9 % wider than a normal one.
LINES = 16
DISTANCES = (0.05, 0.1, 0.25, 0.5)
Ends = tuple[float, float]  # bounds of a radius; the second one is infinite if unknown
COORDINATES = (*(-distance for distance in reversed(DISTANCES)), 0.0, *DISTANCES)
FIRST_SEED = 1
# Further distances if the rise has not reached its target at the end of a line; beyond, filters are many times longer.
FURTHER = (1.0, 2.0, 4.0, 8.0)


@dataclass(frozen=True)
class Rises:
    """The rise of the loss along K lines, ½(L(θ + rd) + L(θ − rd)) − L(θ): d and −d are equally likely.

    Attributes:
        distances: the R distances r.
        means: float64 [K, R].
        samples: the same per sample, float32 [K, R, N]; None if samples have no loss of their own.
        weights: sample weights, float64 [N]; None if `samples` is None.
        errors: for a loss of several terms: the standard errors over samples of the mean over lines, [R].
    """

    distances: tuple[float, ...]
    means: Floats
    samples: NDArray[np.float32] | None
    weights: Floats | None
    errors: Floats | None = None

    def rows(self) -> dict[str, MeasureRow]:
        """Per distance the mean over lines, its t-interval over lines, and its standard error over samples."""
        return {f"rise {distance:g}": self._row(number) for number, distance in enumerate(self.distances)}

    def _row(self, number: int) -> MeasureRow:
        values = self.means[:, number]
        if not np.isfinite(values).all():
            return MeasureRow(None, note=f"the loss is not finite on {int((~np.isfinite(values)).sum())} of the lines")
        stderr = None
        if self.samples is not None and self.weights is not None:
            stderr = stderr_over(self.samples[:, number].astype(np.float64).mean(0), self.weights)
        elif self.errors is not None:
            stderr = float(self.errors[number])
        found = interval_of(values.tolist())
        return row_of(found.mean, stderr, found, len(values))


def draws_of(origin: State, infos: Sequence[ParameterInfo], count: int = LINES) -> list[Draw]:
    """Filter-normalised random directions with seeds from 1 on, like the default axes of landscapes."""
    return [partial(random_direction, origin, infos, seed) for seed in range(FIRST_SEED, FIRST_SEED + count)]


def rises_of(lines: Sequence[Values], distances: Sequence[float], terms: Mapping[str, float] | None = None) -> Rises:
    """The rises from the values at −r…, 0, r… along each line, r ascending.

    Args:
        terms: the terms of the loss, each with its factor; None if every sample has its own loss.
    """
    count = len(distances)
    means = np.array([_both_sides(mean_of(values), count) for values in lines])
    kept = [samples_of(values) for values in lines]
    if any(losses is None for losses in kept):
        return Rises(tuple(distances), means, None, None, _errors_of(lines, count, terms or {}))
    samples = np.array([_both_sides(losses, count).astype(np.float32) for losses in kept if losses is not None])
    return Rises(tuple(distances), means, samples, weights_of(lines[0]))


def _errors_of(lines: Sequence[Values], count: int, terms: Mapping[str, float]) -> Floats | None:
    """√Σ λ²·SE² over the terms [R], whose samples are independent; a term of one sample has no error."""
    squares, known = np.zeros(count), False
    for name, factor in terms.items():
        kept = [values.of_terms[name] for values in lines if name in values.of_terms]
        if len(kept) < len(lines) or kept[0].losses.shape[1] < 2:
            continue
        mean = np.mean([_both_sides(samples.losses.astype(np.float64), count) for samples in kept], axis=0)
        squares += [(factor * stderr_over(losses, kept[0].weights)) ** 2 for losses in mean]
        known = True
    return np.sqrt(squares) if known else None


def _both_sides(values: Floats, count: int) -> Floats:
    before, at, after = values[:count][::-1], values[count], values[count + 1 :]
    return np.asarray(0.5 * (before + after) - at, np.float64)


def radii_of(base: LineOrigin, draws: Sequence[Draw], lines: Sequence[Values]) -> tuple[float, list[Ends]]:
    """The target rise, and the bounds of each line's radius: equal if it is known.

    The radius of a line is the geometric mean of those of its two sides. Between two points the rise is assumed to be
    a + b·r², as for a paraboloid.
    """
    loss = float(mean_of(lines[0])[len(DISTANCES)])
    target = max(loss, LEAST_RISE)
    rises = [mean_of(values) - loss for values in lines]
    middle = len(DISTANCES)
    sides = [[(0.0, 0.0), *zip(DISTANCES, rise[middle + 1 :].tolist(), strict=True)] for rise in rises]
    sides += [[(0.0, 0.0), *zip(DISTANCES, rise[:middle][::-1].tolist(), strict=True)] for rise in rises]
    for distance in FURTHER:
        _go_on(base, draws, sides, distance, loss, lambda points: crossing(points, target)[1] == math.inf)
    crossings = [crossing(points, target) for points in sides]
    pairs = zip(crossings[: len(lines)], crossings[len(lines) :], strict=True)
    return target, [(math.sqrt(a[0] * b[0]), math.sqrt(a[1] * b[1])) for a, b in pairs]


def _go_on(
    base: LineOrigin, draws: Sequence[Draw], sides: list[list[tuple[float, float]]], distance: float, loss: float,
    is_short: Callable[[list[tuple[float, float]]], bool],
) -> None:  # fmt: skip
    """Evaluate one more point on each side that is too short."""
    count = len(draws)
    wanted = [
        [sign * distance for sign, side in ((1, line), (-1, line + count)) if is_short(sides[side])]
        for line in range(count)
    ]
    lines = [line for line in range(count) if wanted[line]]
    values = base.along([draws[line] for line in lines], [wanted[line] for line in lines])
    for line, found in zip(lines, values, strict=True):
        for coordinate, mean in zip(wanted[line], mean_of(found).tolist(), strict=True):
            sides[line if coordinate > 0 else line + count].append((distance, mean - loss))


def crossing(points: Sequence[tuple[float, float]], target: float) -> Ends:
    """The bounds of the first distance at which the rise reaches the target; equal if it is known.

    A non-finite loss has risen by more, so then only the last distance with a finite loss is known.

    >>> crossing([(0.0, 0.0), (1.0, 0.5), (2.0, 2.0)], 1.125)
    (1.5, 1.5)
    >>> crossing([(0.0, 0.0), (1.0, 0.5), (2.0, math.inf)], 1.125), crossing([(0.0, 0.0), (1.0, 0.5)], 1.125)
    ((1.0, 2.0), (1.0, inf))
    """
    for (before, low), (after, high) in itertools.pairwise(points):
        if not math.isfinite(high):
            return before, after
        if high >= target:
            found = math.sqrt(before**2 + (after**2 - before**2) * (target - low) / (high - low))
            return found, found
    return points[-1][0], math.inf


def known_radius(ends: Ends) -> float | None:
    """The radius of a line; None if only bounds are known."""
    return ends[0] if ends[0] == ends[1] else None


def radius_row(radii: Sequence[Ends]) -> MeasureRow:
    """The geometric mean over lines, with its t-interval; its bounds if only bounds of some lines are known."""
    known = [radius for radius in map(known_radius, radii) if radius is not None]
    if len(known) == len(radii):
        found = interval_of([math.log(radius) for radius in known])
        low, high = (None, None) if math.isnan(found.low) else (math.exp(found.low), math.exp(found.high))
        return MeasureRow(math.exp(found.mean), None, low, high, len(radii))
    above, below = (_geometric_mean([ends[side] for ends in radii]) for side in (0, 1))
    further = sum(ends[1] == math.inf for ends in radii)
    broken = len(radii) - len(known) - further
    notes = [f"beyond {FURTHER[-1]:g} on {further} of the {len(radii)} lines"] if further else []
    if broken:
        notes.append(f"the loss is not finite before it has risen so far on {broken} of the {len(radii)} lines")
    return MeasureRow(None, note="; ".join(notes), above=above or None, below=below if math.isfinite(below) else None)


def _geometric_mean(numbers: Sequence[float]) -> float:
    """The geometric mean; 0 if any number is 0, even if another is infinite."""
    if min(numbers) == max(numbers):
        return numbers[0]  # exact: a bound that is a distance is shown as such
    return math.exp(math.fsum(map(math.log, numbers)) / len(numbers)) if min(numbers) > 0 else 0.0


# ----------------------------------------------------------------------------------------------------
# Average cases: the rise under Gaussian noise on the weights, and how much noise the error tolerates.

DRAWS = 100  # as in Bisla et al. 2022 and Andriushchenko et al. 2023
PAIRS = DRAWS // 2  # δ and −δ: equally likely, and together without the gradient's part, the largest of their spread
SIGMA = 0.01  # of the low-pass filter, from the same papers
ADAPTIVE_RHO = 0.1  # of the noise relative to each weight
FIRST_AVERAGE_SEED = 1001  # differs from the seeds of lines
ERROR_DRAWS, ERROR_RISE = 16, 0.1  # Jiang et al. 2020: the error may rise by 0.1
FIRST_NOISE, DOUBLINGS, HALVINGS = 0.1, 7, 6


def gaussian(origin: State, infos: Sequence[ParameterInfo], seed: int) -> State:
    """δ ~ N(0, I) over the trainable parameters."""
    return random_direction(origin, infos, seed, "none", ())


def relative(origin: State, infos: Sequence[ParameterInfo], seed: int) -> dict[str, Tensor]:
    """δ ~ N(0, diag(θ²)): noise proportional to each weight."""
    return {name: tensor * origin[name].float().abs() for name, tensor in gaussian(origin, infos, seed).items()}


def average_rows(base: LineOrigin, infos: Sequence[ParameterInfo], loss: float) -> dict[str, MeasureRow]:
    """(L ∗ N(0, σ²))(θ), and E L(θ + δ) − L(θ) for δ ~ N(0, σ²I) and N(0, ρ²θ²).

    Args:
        loss: L(θ).
    """
    rows = dict[str, MeasureRow]()
    for name, draw, size in (("average", gaussian, SIGMA), ("adaptive average", relative, ADAPTIVE_RHO)):
        draws: list[Draw] = [partial(draw, base.origin, infos, FIRST_AVERAGE_SEED + k) for k in range(PAIRS)]
        lines = base.along(draws, [(-size, 0.0, size)] * len(draws))
        found = rises_of(lines, (size,), base.terms)
        row = rows[f"{name} {size:g}"] = _average(found)
        if draw is gaussian and row.value is not None and row.low is not None and row.high is not None:
            stderr = _stderr_with_loss(lines[0], found)
            rows[f"low-pass {size:g}"] = MeasureRow(loss + row.value, stderr, loss + row.low, loss + row.high, PAIRS)
    return rows


def _average(found: Rises) -> MeasureRow:
    """The mean rise over the draws and their opposites."""
    rises = found.means[:, 0]
    interval = interval_of(rises.tolist()) if np.isfinite(rises).all() else None
    stderr = None
    if found.samples is not None and found.weights is not None:
        stderr = stderr_over(_mean_of_draws(found.samples), found.weights)
    elif found.errors is not None:
        stderr = float(found.errors[0])
    missing = f"the loss is not finite on {int((~np.isfinite(rises)).sum())} of the {len(rises)} pairs of draws"
    return row_of(float(rises.mean()), stderr, interval, len(rises), missing=missing)


def _stderr_with_loss(line: Values, found: Rises) -> float:
    """The standard error of loss plus rise; if samples have no loss of their own, that of the loss."""
    losses = samples_of(line)
    if losses is None or found.samples is None or found.weights is None:
        return float(line.stderr["loss"][1])
    return stderr_over(losses[1] + _mean_of_draws(found.samples), found.weights)


def _mean_of_draws(samples: NDArray[np.float32]) -> Floats:
    return np.asarray(samples[:, 0].mean(0, dtype=np.float64))


def error_noise_row(base: LineOrigin, infos: Sequence[ParameterInfo]) -> MeasureRow:
    """1/σ² of the largest σ at which E err(θ + σu) ≤ err(θ) + 0.1, u ~ N(0, diag(θ²)), the same 16 draws at every σ."""
    draws: list[Draw] = [partial(relative, base.origin, infos, FIRST_AVERAGE_SEED + k) for k in range(ERROR_DRAWS)]

    def excess(sigma: float) -> float:
        accuracies = np.array(
            [values.mean["accuracy"] for values in base.along(draws, [(0.0, sigma)] * len(draws))], np.float64
        )
        return float((accuracies[:, 0] - accuracies[:, 1]).mean()) - ERROR_RISE

    low, high = 0.0, FIRST_NOISE
    for _ in range(DOUBLINGS):
        if not excess(high) <= 0:  # also for a NaN accuracy
            break
        low, high = high, 2 * high
    else:
        return MeasureRow(None, note=f"the error bears noise of {low:g} times each weight", below=1 / low**2)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) <= 0 else (low, middle)
    if low == 0:
        return MeasureRow(None, note=f"the error bears no noise of {high:.3g} times each weight", above=1 / high**2)
    sigma = (low + high) / 2
    return row_of(1 / sigma**2, note=f"sigma {low:.3g} to {high:.3g}, {ERROR_DRAWS} draws")
