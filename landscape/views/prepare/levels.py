"""Where the contour lines of a figure lie: at round values, on a linear and on a logarithmic scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from landscape.core.errors import JobError, shown
from landscape.views.prepare.comparable import Comparable

Floats = NDArray[np.float64]

USUAL_LEVELS, MOST_LEVELS = 12, 100
STEPS = (1.0, 2.0, 5.0, 2.5)  # of round steps on a linear scale, times a power of ten; the first is the roundest
NARROW = 0.5  # decades; a logarithmic scale that spans less is as good as linear

# Round values within a decade, the coarse ones first. Each row divides a decade about evenly.
USUAL_ROWS = 4
MANTISSAS = (
    (1.0,),
    (1.0, 2.0, 5.0),
    (1.0, 1.5, 2.0, 3.0, 5.0, 7.0),
    (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0),
    (1.0, 1.1, 1.2, 1.4, 1.6, 1.8, 2.0, 2.2, 2.5, 2.8, 3.0, 3.5, 4.0, 4.5, 5.0, 5.5, 6.0, 7.0, 8.0, 9.0),
    tuple(k / 20 for k in (*range(20, 40), *range(40, 80, 2), *range(80, 200, 4))),
)


@dataclass(frozen=True)
class Levels(Comparable):
    """Contour lines in drawn units, ascending, the real value of each as a text, and a note for the caption."""

    drawn: tuple[float, ...]
    texts: tuple[str, ...]
    note: str


@dataclass(frozen=True)
class EvenLevels(Comparable):
    """Contour lines in units in which they are evenly spaced, as plotly's contour trace knows no others.

    Attributes:
        start, stop, step: the first and the last line, and the distance between two.
        drawn: the lines in drawn units where these differ from the even ones; empty where they are the same. Then the
            n-th line is at n, counted from 0, and what lies between two lines is interpolated linearly.
    """

    start: float
    stop: float
    step: float
    drawn: tuple[float, ...] = ()

    def values(self, drawn: Floats) -> Floats:
        """Values in drawn units as values in even units; linear beyond the first and the last line."""
        if not self.drawn:
            return drawn
        at = np.asarray(self.drawn)
        first, last = at[1] - at[0], at[-1] - at[-2]
        between = np.interp(drawn, at, np.arange(len(at), dtype=np.float64))
        below, above = np.minimum(drawn - at[0], 0.0) / first, np.maximum(drawn - at[-1], 0.0) / last
        return np.asarray(between + below + above)

    def value(self, drawn: float) -> float:
        """The same for one value."""
        return float(self.values(np.array([drawn]))[0])


def even_levels(ticks: Sequence[float]) -> EvenLevels:
    """The levels `ticks`, in drawn units, as evenly spaced ones.

    >>> even_levels([0.0, 0.5, 1.0])
    EvenLevels(start=0.0, stop=1.0, step=0.5, drawn=())
    >>> even_levels([0.0, 0.3, 0.7, 1.0]).values(np.array([-0.3, 0.15, 0.7]))
    array([-1. ,  0.5,  2. ])
    """
    steps = np.diff(ticks)
    if not len(steps):
        return EvenLevels(ticks[0], ticks[0], 1.0)
    step = (ticks[-1] - ticks[0]) / len(steps)
    if np.allclose(steps, step, rtol=1e-6):
        return EvenLevels(ticks[0], ticks[-1], step)
    return EvenLevels(0.0, float(len(steps)), 1.0, tuple(ticks))


def checked_count(levels: int | None) -> int | None:
    """The number of contour lines as given.

    Raises:
        JobError: there cannot be so many.
    """
    if levels is not None and (isinstance(levels, bool) or not isinstance(levels, int) or not 1 <= levels <= 100):
        raise JobError(f"levels: must be a whole number of contour lines from 1 to {MOST_LEVELS}, not {shown(levels)}")
    return levels


def choose_levels(low: float, high: float, log: bool, count: int | None, exact: bool) -> Levels:
    """Contour lines strictly between `low` and `high`, in drawn units.

    They lie at round values: multiples of 1, 2, 2.5 or 5 times a power of ten, on a logarithmic scale at 1, 2, 5 times
    the powers of ten, or finer or coarser where that comes nearer to the count.

    Args:
        count: how many are wanted; default about 12.
        exact: exactly `count` lines, evenly spaced in drawn units, whatever their values.
    """
    wanted = count or USUAL_LEVELS
    if exact:
        step = (high - low) / (wanted + 1)
        drawn = [low + step * k for k in range(1, wanted + 1)]
        return Levels(tuple(drawn), tuple(_texts(drawn, log)), f"{_lines(wanted)}, evenly spaced")
    choices = _round_levels(low, high, log, finest=count is not None)
    chosen = min(choices, key=lambda levels: abs(math.log(len(levels) / wanted)))
    note = f"{_lines(len(chosen))} at round values"
    if count is not None and len(chosen) != count:
        note += f", the nearest to {count}"
    return Levels(tuple(chosen), tuple(_texts(chosen, log)), note)


def _lines(count: int) -> str:
    return f"{count} contour line{'s' * (count != 1)}"


def _round_levels(low: float, high: float, log: bool, finest: bool) -> list[list[float]]:
    """Choices of round levels, each with at least one level, the roundest of equally many first.

    Args:
        finest: with those whose values are less round, for who wants many levels.
    """
    if log and high - low >= NARROW:
        choices = [_powers(low, high, every) for every in (100, 50, 20, 10, 5, 3, 2)]
        choices += [_in_decades(low, high, mantissas) for mantissas in MANTISSAS[: None if finest else USUAL_ROWS]]
    elif log:
        real = _linear(10.0**low, 10.0**high)
        choices = [[math.log10(value) for value in values if value > 0] for values in real]
    else:
        choices = _linear(low, high)
    hair = 1e-9 * (high - low)  # the ends themselves are left out, as nothing lies beyond them
    inside = ([value for value in values if low + hair < value < high - hair] for values in choices)
    return [values for values in inside if values] or [[(low + high) / 2]]


def _powers(low: float, high: float, every: int) -> list[float]:
    return [float(every * k) for k in range(math.ceil(low / every), math.floor(high / every) + 1)]


def _in_decades(low: float, high: float, mantissas: Sequence[float]) -> list[float]:
    decades = range(math.floor(low), math.ceil(high) + 1)
    return [decade + math.log10(mantissa) for decade in decades for mantissa in mantissas]


def _linear(low: float, high: float) -> list[list[float]]:
    """Multiples of round steps."""
    power = math.floor(math.log10(high - low))
    choices = []
    for exponent in (power + 1, power, power - 1, power - 2):
        for factor in STEPS:
            step = factor * 10.0**exponent
            first, last = math.ceil(low / step), math.floor(high / step)
            if last - first < 4 * MOST_LEVELS:
                choices.append([step * k for k in range(first, last + 1)])
    return choices


def nice_ticks(low: float, high: float, log: bool, most: int = 8) -> tuple[list[float], list[str]]:
    """About six ticks at round real values within [low, high], and their texts; ends and ticks are in drawn units."""
    if log and high - low < 0.3:  # so narrow that the axis is as good as linear
        real, texts = nice_ticks(10.0**low, 10.0**high, False, most)
        return [math.log10(value) for value in real], texts
    if not log:
        step = _round_step((high - low) / (0.75 * most))
        ticks = [k * step for k in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]
        return ticks, _texts(ticks, False, step)
    for mantissas in ((1.0, 1.5, 2.0, 3.0, 5.0, 7.0), (1.0, 2.0, 5.0), (1.0, 3.0), (1.0,)):
        ticks = [tick for tick in _in_decades(low, high, mantissas) if low - 1e-9 <= tick <= high + 1e-9]
        if len(ticks) <= most:
            break
    ticks = ticks[:: -(-len(ticks) // most)]
    return ticks, _texts(ticks, True)


def _round_step(rough: float) -> float:
    power = 10.0 ** math.floor(math.log10(rough))
    return power * min((1.0, 2.0, 2.5, 5.0, 10.0), key=lambda factor: abs(math.log(factor * power / rough)))


def _texts(drawn: Sequence[float], log: bool, step: float | None = None) -> list[str]:
    """The real values as texts: as few digits as tell the value, or else tell it from its neighbours; at most seven."""
    real = [10.0**value if log else value for value in drawn]
    gaps = [abs(b - a) for a, b in pairwise(real)]
    narrowest = step or min((gap for gap in gaps if gap > 0), default=0.0) or 1e-5 * max(map(abs, real), default=1.0)
    return [_tick(value, narrowest) for value in real]


def _tick(value: float, step: float) -> str:
    if value == 0 or abs(value) < step * 1e-6:
        return "0"
    power = math.floor(math.log10(abs(value)))
    enough = max(1, power - math.floor(math.log10(step)) + 2)
    exact = next((digits for digits in range(1, 8) if math.isclose(float(f"{value:.{digits}g}"), value)), 7)
    return number(value, max(min(enough, exact), power + 1 if power < 4 else 1))


def number(value: float, digits: int = 4) -> str:
    """A short text for a number.

    >>> number(0.0250), number(32_000_000_000.0), number(1 / 3, digits=2)
    ('0.025', '3.2e10', '0.33')
    """
    text = f"{value:.{digits}g}"
    mantissa, exponent, power = text.partition("e")
    return f"{mantissa}e{int(power)}" if exponent else text
