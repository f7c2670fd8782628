"""How much the loss rises along random lines, and where it has risen by itself: from the losses on the lines."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from landscape.analysis.measures.lines import Base, Draw, Floats, mean_of, samples_of, stderr_over, weights_of
from landscape.analysis.measures.rows import Row, row_of
from landscape.core.statistics import interval_of
from landscape.evaluation.values import Values
from landscape.job.directions.file import LEAST_RISE
from landscape.job.directions.random import random_direction
from landscape.model.parameters import ParameterInfo, State

# 16 lines of 9 points are 9 % of a plane of 40 x 40, and a t-interval over 16 is 9 % wider than a normal one.
LINES = 16
DISTANCES = (0.05, 0.1, 0.25, 0.5)
Ends = tuple[float, float]  # between which a radius lies; the second one is infinite where no end of it is known
COORDINATES = (*(-each for each in reversed(DISTANCES)), 0.0, *DISTANCES)
FIRST_SEED = 1
# Where the rise has not reached its target at the end of a line; beyond, filters are many times their own length.
FURTHER = (1.0, 2.0, 4.0, 8.0)


@dataclass(frozen=True)
class Rises:
    """The rise of the loss along K lines, ½(L(θ + rd) + L(θ − rd)) − L(θ): d and −d are equally likely.

    Attributes:
        distances: r, R of them.
        means: float64 [K, R].
        samples: the same of every sample, float32 [K, R, N]; None where samples have no loss of their own.
        weights: how much each sample counts, float64 [N]; None where `samples` is.
        errors: of a loss of several terms: the standard errors over their samples of the mean over lines, [R].
    """

    distances: tuple[float, ...]
    means: Floats
    samples: NDArray[np.float32] | None
    weights: Floats | None
    errors: Floats | None = None

    def rows(self) -> dict[str, Row]:
        """Per distance the mean over lines, its t-interval over lines, and its standard error over samples."""
        return {f"rise {distance:g}": self._row(number) for number, distance in enumerate(self.distances)}

    def _row(self, number: int) -> Row:
        values = self.means[:, number]
        if not np.isfinite(values).all():
            return Row(None, note=f"the loss is not finite on {int((~np.isfinite(values)).sum())} of the lines")
        stderr = None
        if self.samples is not None and self.weights is not None:
            stderr = stderr_over(self.samples[:, number].astype(np.float64).mean(0), self.weights)
        elif self.errors is not None:
            stderr = float(self.errors[number])
        found = interval_of(values.tolist())
        return row_of(found.mean, stderr, found, len(values))


def draws_of(origin: State, infos: Sequence[ParameterInfo], count: int = LINES) -> list[Draw]:
    """Filter-normalised random directions of the seeds from 1 on, as the axes of landscapes are by default."""
    return [partial(random_direction, origin, infos, seed) for seed in range(FIRST_SEED, FIRST_SEED + count)]


def rises_of(lines: Sequence[Values], distances: Sequence[float], terms: Mapping[str, float] | None = None) -> Rises:
    """The rises from the values at −r…, 0, r… along each line, r ascending.

    Args:
        terms: what the loss is the sum of, each with its factor; None where every sample has a loss of its own.
    """
    count = len(distances)
    means = np.array([_both_sides(mean_of(values), count) for values in lines])
    kept = [samples_of(values) for values in lines]
    if any(each is None for each in kept):
        return Rises(tuple(distances), means, None, None, _errors_of(lines, count, terms or {}))
    samples = np.array([_both_sides(each, count).astype(np.float32) for each in kept if each is not None])
    return Rises(tuple(distances), means, samples, weights_of(lines[0]))


def _errors_of(lines: Sequence[Values], count: int, terms: Mapping[str, float]) -> Floats | None:
    """√Σ λ²·SE² over the terms [R], whose samples are drawn independently; a term of one sample is a condition."""
    squares, known = np.zeros(count), False
    for name, factor in terms.items():
        kept = [values.of_terms[name] for values in lines if name in values.of_terms]
        if len(kept) < len(lines) or kept[0].losses.shape[1] < 2:
            continue
        mean = np.mean([_both_sides(each.losses.astype(np.float64), count) for each in kept], axis=0)
        squares += [(factor * stderr_over(each, kept[0].weights)) ** 2 for each in mean]
        known = True
    return np.sqrt(squares) if known else None


def _both_sides(values: Floats, count: int) -> Floats:
    before, at, after = values[:count][::-1], values[count], values[count + 1 :]
    return np.asarray(0.5 * (before + after) - at, np.float64)


def radii_of(base: Base, draws: Sequence[Draw], lines: Sequence[Values]) -> tuple[float, list[Ends]]:
    """The rise that the radius is measured to, and between which ends the radius of each line lies: equal if known.

    The radius of a line is the geometric mean of those of its two sides. Between two points the rise is taken to be
    a + b·r², which a paraboloid is.
    """
    loss = float(mean_of(lines[0])[len(DISTANCES)])
    target = max(loss, LEAST_RISE)
    rises = [mean_of(values) - loss for values in lines]
    middle = len(DISTANCES)
    sides = [[(0.0, 0.0), *zip(DISTANCES, rise[middle + 1 :].tolist(), strict=True)] for rise in rises]
    sides += [[(0.0, 0.0), *zip(DISTANCES, rise[:middle][::-1].tolist(), strict=True)] for rise in rises]
    for distance in FURTHER:
        _go_on(base, draws, sides, distance, loss, lambda points: crossing(points, target)[1] == math.inf)
    found = [crossing(points, target) for points in sides]
    pairs = zip(found[: len(lines)], found[len(lines) :], strict=True)
    return target, [(math.sqrt(a[0] * b[0]), math.sqrt(a[1] * b[1])) for a, b in pairs]


def _go_on(
    base: Base, draws: Sequence[Draw], sides: list[list[tuple[float, float]]], distance: float, loss: float,
    is_short: Callable[[list[tuple[float, float]]], bool],
) -> None:  # fmt: skip
    """One point more on each side that is too short."""
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
    """Between which ends the first distance lies at which the rise reaches the target; equal ends if it is known.

    A loss that is not finite has risen by more, so that the last distance at which it was finite is all that is known.

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
    """The radius of a line; None where only bounds of it are known."""
    return ends[0] if ends[0] == ends[1] else None


def radius_row(radii: Sequence[Ends]) -> Row:
    """The geometric mean over lines, with its t-interval over them; its bounds where only those of some are known."""
    known = [radius for radius in map(known_radius, radii) if radius is not None]
    if len(known) == len(radii):
        found = interval_of([math.log(radius) for radius in known])
        low, high = (None, None) if math.isnan(found.low) else (math.exp(found.low), math.exp(found.high))
        return Row(math.exp(found.mean), None, low, high, len(radii))
    above, below = (_geometric_mean([ends[side] for ends in radii]) for side in (0, 1))
    further = sum(ends[1] == math.inf for ends in radii)
    broken = len(radii) - len(known) - further
    notes = [f"beyond {FURTHER[-1]:g} on {further} of the {len(radii)} lines"] if further else []
    if broken:
        notes.append(f"the loss is not finite before it has risen so far on {broken} of the {len(radii)} lines")
    return Row(None, note="; ".join(notes), above=above or None, below=below if math.isfinite(below) else None)


def _geometric_mean(numbers: Sequence[float]) -> float:
    """0 where one is 0, and then also where one is infinite."""
    if min(numbers) == max(numbers):
        return numbers[0]  # to the bit, as a bound that is a distance is shown
    return math.exp(math.fsum(map(math.log, numbers)) / len(numbers)) if min(numbers) > 0 else 0.0
