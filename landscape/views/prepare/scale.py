"""The scale of a figure: the range drawn, linear or logarithmic, its contour lines, and which points have a value.

Values are never changed to fit the range; if some lie outside, a note for the caption says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from landscape.core.errors import JobError, quoted
from landscape.core.grid import Floats
from landscape.core.text import number_text
from landscape.surface.surface import NOT_COMPUTED, NOT_FINITE, OK, QUARANTINED, Surface

# ----------------------------------------------------------------------------------------------------
# Points counted by their status, over all levels of a refined landscape.


def count_statuses(status: NDArray[np.uint8]) -> tuple[int, ...]:
    """How many of these points have each status, 0 to 3."""
    return tuple(int((status == code).sum()) for code in (NOT_COMPUTED, OK, NOT_FINITE, QUARANTINED))


def is_evaluated(surface: Surface) -> NDArray[np.bool_]:
    """Which points were evaluated, including non-finite values, but no interpolated points."""
    computed = np.isin(surface.status, (OK, NOT_FINITE))
    return computed if surface.interpolated is None else computed & (surface.interpolated == 0)


def point_counts(surface: Surface) -> tuple[int, ...]:
    """How many points have each status, 0 to 3, over all levels, without interpolated points."""
    if surface.interpolated is None:
        return count_statuses(surface.status)
    missing, *others = count_statuses(surface.status[surface.interpolated == 0])
    return (missing + surface.unfinished, *others)


# ----------------------------------------------------------------------------------------------------
# Contour lines at round values, on a linear or a logarithmic scale.


USUAL_LEVELS, MOST_LEVELS = 12, 100
STEPS = (1.0, 2.0, 5.0, 2.5)  # of round steps on a linear scale, times a power of ten; the first is the roundest
NARROW = 0.5  # decades; a logarithmic scale that spans less is almost linear

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
class ContourLevels:
    """Contour lines in drawn units, ascending, the real value of each as a text, and a note for the caption."""

    drawn: tuple[float, ...]
    texts: tuple[str, ...]
    note: str


@dataclass(frozen=True)
class EvenLevels:
    """Contour lines in units in which they are evenly spaced, as plotly's contour trace requires.

    Attributes:
        start, stop, step: the first and the last line, and the distance between two.
        drawn: the lines in drawn units, if these are uneven: then the n-th line is at n, counted from 0, and values
            between two lines are interpolated linearly. Empty if drawn units are even already.
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
    """The given number of contour lines.

    Raises:
        JobError: it is out of range.
    """
    if levels is not None and (isinstance(levels, bool) or not isinstance(levels, int) or not 1 <= levels <= 100):
        raise JobError(f"levels: must be a whole number of contour lines from 1 to {MOST_LEVELS}, not {quoted(levels)}")
    return levels


def choose_levels(low: float, high: float, log: bool, count: int | None, exact: bool) -> ContourLevels:
    """Contour lines strictly between `low` and `high`, in drawn units.

    They lie at round values: multiples of 1, 2, 2.5 or 5 times a power of ten; on a logarithmic scale at 1, 2, 5 times
    the powers of ten, or finer or coarser if that comes nearer to the count.

    Args:
        count: the wanted number; default about 12.
        exact: exactly `count` lines, evenly spaced in drawn units, whatever their values.
    """
    wanted = count or USUAL_LEVELS
    if exact:
        step = (high - low) / (wanted + 1)
        drawn = [low + step * k for k in range(1, wanted + 1)]
        return ContourLevels(tuple(drawn), tuple(_texts(drawn, log)), f"{_lines(wanted)}, evenly spaced")
    choices = _round_levels(low, high, log, finest=count is not None)
    chosen = min(choices, key=lambda levels: abs(math.log(len(levels) / wanted)))
    note = f"{_lines(len(chosen))} at round values"
    if count is not None and len(chosen) != count:
        note += f", the nearest to {count}"
    return ContourLevels(tuple(chosen), tuple(_texts(chosen, log)), note)


def _lines(count: int) -> str:
    return f"{count} contour line{'s' * (count != 1)}"


def _round_levels(low: float, high: float, log: bool, finest: bool) -> list[list[float]]:
    """Choices of round levels, each with at least one level; among equal numbers the roundest first.

    Args:
        finest: include less round values, for many levels.
    """
    if log and high - low >= NARROW:
        choices = [_powers(low, high, step) for step in (100, 50, 20, 10, 5, 3, 2)]
        choices += [_in_decades(low, high, mantissas) for mantissas in MANTISSAS[: None if finest else USUAL_ROWS]]
    elif log:
        real = _linear(10.0**low, 10.0**high)
        choices = [[math.log10(value) for value in values if value > 0] for values in real]
    else:
        choices = _linear(low, high)
    hair = 1e-9 * (high - low)  # excludes the ends: nothing lies beyond them
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
    if log and high - low < 0.3:  # so narrow that the axis is almost linear
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
    """The real values as texts, with the fewest digits that give the value or tell it from its neighbours; up to 7."""
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
    return number_text(value, max(min(enough, exact), power + 1 if power < 4 else 1))


# ----------------------------------------------------------------------------------------------------

NO_LOGARITHM = 4  # in addition to the store's four states of a point: it has a value, but no logarithm
NO_SIGN, UNRESOLVED = 5, 6  # likewise: the end of a spectrum whose sign is open, or only its size
STATES = {
    NOT_COMPUTED: "not computed",
    NOT_FINITE: "not finite",
    QUARANTINED: "quarantined",
    NO_LOGARITHM: "no logarithm (zero or below)",
    UNRESOLVED: "negative (size unresolved)",
    NO_SIGN: "sign undecided",
}
CLIP_RATIO = 20.0  # the largest reach of the range from its near end, in distances of the median value from it
CLIP_PERCENTILES = (99.0, 98.0, 95.0, 90.0, 80.0, 70.0, 60.0, 50.0)
WIDE_RATIO = 100.0
ZERO_SHARE = 20.0  # values that count as 0 take at most 1/20 of the colours of signed values
LOG_DECADES = 2.0  # values that span more are drawn on a logarithmic scale by default


@dataclass(frozen=True)
class Scale:
    """The drawn range [low, high] and the contour lines, all in drawn units: with `log`, log10 of the value.

    `ticks` are the contour lines and `texts` their real values. `notes` are for the caption of any drawing, and
    `levels_note` for that of a drawing with contour lines. With `signed` the sign of the values matters, and colours
    are centred on 0. Values within `zero` of 0 count as 0: they have hardly any colour.
    """

    log: bool
    low: float
    high: float
    ticks: tuple[float, ...]
    texts: tuple[str, ...]
    notes: tuple[str, ...] = ()
    levels_note: str = ""
    signed: bool = False
    zero: float = 0.0

    @property
    def reach(self) -> float:
        """The distance from 0 at which the colours of signed values are full."""
        return max(abs(self.low), abs(self.high), ZERO_SHARE * self.zero)

    @property
    def ends(self) -> tuple[float, float]:
        """The ends of the range drawn, in real values."""
        return self.real(self.low), self.real(self.high)

    def real(self, drawn: float) -> float:
        """The value that a drawn number stands for."""
        return 10.0**drawn if self.log else drawn


def point_states(values: Floats, status: NDArray[np.uint8], log: bool) -> NDArray[np.uint8]:
    """Per point OK if a value can be drawn, else the reason: NOT_COMPUTED, NOT_FINITE, QUARANTINED, NO_LOGARITHM."""
    states = np.where((status == OK) & ~np.isfinite(values), NOT_FINITE, status).astype(np.uint8)
    if log:
        with np.errstate(invalid="ignore"):
            states[(states == OK) & (values <= 0)] = NO_LOGARITHM
    return states


def drawn_values(values: Floats, states: NDArray[np.uint8], log: bool) -> Floats:
    """The numbers to draw: the values or their log10, NaN if there is nothing to draw."""
    shown = np.where(states == OK, values, np.nan)
    return np.log10(shown) if log else shown


def spanned_decades(values: Floats, zmin: float | None = None, zmax: float | None = None) -> float:
    """How many powers of ten the values span, or the given ends of the range.

    Args:
        values: real values of any shape; non-finite ones are ignored.

    Returns:
        0 if a value is zero or below, since it has no logarithm, or if there are no values.
    """
    finite = values[np.isfinite(values)]
    low = finite.min(initial=np.inf) if zmin is None else zmin
    high = finite.max(initial=-np.inf) if zmax is None else zmax
    if not finite.size or finite.min() <= 0 or low <= 0 or high <= low:
        return 0.0
    return float(np.log10(high) - np.log10(low))


def choose_scale(
    drawn: Floats,
    log: bool,
    zmin: float | None = None,
    zmax: float | None = None,
    levels: int | None = None,
    *,
    exact_levels: bool = False,
    clip: float | None = None,
) -> Scale:
    """The scale for these drawn values.

    Without `zmin` and `zmax`, the ends are the extremes, unless a few far values would make all others look flat: then
    the range ends at the highest percentile that lies at most 20 times as far from the other end as the median.

    Args:
        drawn: the values in drawn units, of any shape; non-finite ones are ignored.
        zmin, zmax: the ends of the range, in real values.
        levels: the number of contour lines; default about 12. They lie at round values, so there may be a few more or
            less.
        exact_levels: exactly that number of lines, evenly spaced, whatever their values.
        clip: the percentile of the values at which the range ends, in place of zmax.

    Raises:
        JobError: zmin, zmax, clip or levels is impossible.
    """
    low_given, high_given = _given(zmin, zmax, log)
    count = checked_count(levels)
    finite = drawn[np.isfinite(drawn)]
    percentile = _checked_clip(clip, zmax)
    clip_note = "" if percentile is None else f"range drawn ends at percentile {percentile:g} of the values"
    if percentile is not None and finite.size:
        high_given = float(np.percentile(finite, percentile))
    if finite.size:
        low, high, notes = _ends(finite, low_given, high_given, log)
    else:
        low, high, notes = *_ends_without_values(low_given, high_given), []
    if low >= high:
        pad = max(abs(low) * 0.05, 1e-12)
        low, high = low - pad, low + pad
    chosen = choose_levels(low, high, log, count, exact_levels)
    notes = [*([clip_note] if clip_note else []), *notes]
    note = "no contour line, as all values are the same" if finite.size > 1 and np.ptp(finite) == 0 else chosen.note
    return Scale(log, low, high, chosen.drawn, chosen.texts, tuple(notes), note)


def _checked_clip(clip: float | None, zmax: float | None) -> float | None:
    if clip is None:
        return None
    if isinstance(clip, bool) or not isinstance(clip, (int, float)) or not 50 <= clip <= 100:
        raise JobError(f"clip: must be a percentile from 50 to 100, not {quoted(clip)}")
    if zmax is not None:
        raise JobError(f"clip: must not be given with zmax ({zmax:g}), since both end the range drawn; leave one out")
    return clip


def _ends(
    finite: Floats, low_given: float | None, high_given: float | None, log: bool
) -> tuple[float, float, list[str]]:
    """The ends of the range in drawn units, given or chosen by the values, and notes for the caption."""
    low, low_note = (low_given, "") if low_given is not None else _low_end(finite, log)
    high, high_note = (high_given, "") if high_given is not None else _high_end(finite, log)
    notes = [note for note in (low_note, high_note) if note]
    return low, high, [*notes, *_outside(finite, low_given, high_given, log), *_wide(finite, log)]


def _ends_without_values(low_given: float | None, high_given: float | None) -> tuple[float, float]:
    """The ends of the range without any value: 0 and 1, unless given."""
    if low_given is None:
        low_given = 0.0 if high_given is None else min(0.0, high_given - 1)
    return low_given, low_given + 1 if high_given is None else high_given


def _given(zmin: float | None, zmax: float | None, log: bool) -> tuple[float | None, float | None]:
    for name, value in (("zmin", zmin), ("zmax", zmax)):
        if value is not None and not math.isfinite(value):
            raise JobError(f"{name}: must be a finite number, not {quoted(value)}")
        if value is not None and log and value <= 0:
            raise JobError(f"{name}: must be above 0 on a logarithmic scale, not {value:g}; or draw with log=False")
    if zmin is not None and zmax is not None and zmin >= zmax:
        raise JobError(f"zmin: must be below zmax, not {zmin:g} >= {zmax:g}; swap them")
    low, high = (None if end is None else (math.log10(end) if log else float(end)) for end in (zmin, zmax))
    return low, high


def _reach(distances: Floats) -> tuple[float, float]:
    """The reach of the range from its near end, and its percentile among `distances`; 100 means all."""
    furthest = float(distances.max())
    base = next((b for q in (50, 60, 70, 80, 90, 95, 99) if (b := float(np.percentile(distances, q))) > 0), furthest)
    if furthest <= CLIP_RATIO * base:
        return furthest, 100.0
    for percentile in CLIP_PERCENTILES:
        reach = float(np.percentile(distances, percentile))
        if 0 < reach <= CLIP_RATIO * base:
            return reach, percentile
    return base, 50.0


def _high_end(finite: Floats, log: bool) -> tuple[float, str]:
    low, top = float(finite.min()), float(finite.max())
    with np.errstate(over="ignore"):
        reach, percentile = _reach(finite - low) if math.isfinite(top - low) else (top, 100.0)
    if percentile == 100.0:
        return top, ""
    end = low + reach
    return end, (
        f"range drawn ends at {number_text(_real(end, log))} (percentile {percentile:g}); "
        f"highest {number_text(_real(top, log))}"
    )


def _low_end(finite: Floats, log: bool) -> tuple[float, str]:
    bottom, top = float(finite.min()), float(finite.max())
    reach, percentile = _reach(top - finite) if log and math.isfinite(top - bottom) else (top - bottom, 100.0)
    if percentile == 100.0:
        return bottom, ""
    end = top - reach
    return end, (
        f"range drawn starts at {number_text(_real(end, log))} (percentile {100 - percentile:g}); "
        f"lowest {number_text(_real(bottom, log))}"
    )


def _outside(finite: Floats, low: float | None, high: float | None, log: bool) -> list[str]:
    notes = []
    if low is not None and (below := int((finite < low).sum())):
        notes.append(f"{below} points below the range drawn, lowest {number_text(_real(float(finite.min()), log))}")
    if high is not None and (above := int((finite > high).sum())):
        notes.append(f"{above} points above the range drawn, highest {number_text(_real(float(finite.max()), log))}")
    return notes


def _wide(finite: Floats, log: bool) -> list[str]:
    low, high, middle = float(finite.min()), float(finite.max()), float(np.median(finite))
    if log or low <= 0 or high < WIDE_RATIO * middle:
        return []
    return [f"values span {math.log10(high) - math.log10(low):.0f} decades: a logarithmic scale shows more"]


def _real(drawn: float, log: bool) -> float:
    return 10.0**drawn if log else drawn
