"""The colour and height scale: what range is drawn, linear or logarithmic, and where the contour lines lie.

Values are never changed to fit the range; where some lie outside, a note for the caption says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from landscape.errors import JobError, shown
from landscape.surface import NOT_COMPUTED, NOT_FINITE, OK, QUARANTINED
from landscape.views.prepared.comparable import Comparable

Floats = NDArray[np.float64]

NO_LOGARITHM = 4  # added to the four states of a point in the store: it has a value, but no logarithm
STATES = {
    NOT_COMPUTED: "not computed",
    NOT_FINITE: "not finite",
    QUARANTINED: "quarantined",
    NO_LOGARITHM: "no logarithm (zero or below)",
}
CLIP_RATIO = 20.0  # the range may reach this many times as far from its near end as the median value lies
CLIP_PERCENTILES = (99.0, 98.0, 95.0, 90.0, 80.0, 70.0, 60.0, 50.0)
USUAL_LEVELS = 12
WIDE_RATIO = 100.0


@dataclass(frozen=True)
class Scale(Comparable):
    """The drawn range [low, high] and the contour lines, all in drawn units: log10 of the value where `log`.

    `start`, `stop` and `step` place the contour lines; `ticks` are the same lines and `texts` their real values.
    `notes` are for the caption.
    """

    log: bool
    low: float
    high: float
    start: float
    stop: float
    step: float
    ticks: tuple[float, ...]
    texts: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def real(self, drawn: float) -> float:
        """The value that a drawn number stands for."""
        return 10.0**drawn if self.log else drawn


def point_states(values: Floats, status: NDArray[np.uint8], log: bool) -> NDArray[np.uint8]:
    """Per point OK where a value can be drawn, else why not: NOT_COMPUTED, NOT_FINITE, QUARANTINED, NO_LOGARITHM."""
    states = np.where((status == OK) & ~np.isfinite(values), NOT_FINITE, status).astype(np.uint8)
    if log:
        with np.errstate(invalid="ignore"):
            states[(states == OK) & (values <= 0)] = NO_LOGARITHM
    return states


def drawn_values(values: Floats, states: NDArray[np.uint8], log: bool) -> Floats:
    """The numbers handed to the drawing: the values or their log10, NaN where there is nothing to draw."""
    shown = np.where(states == OK, values, np.nan)
    return np.log10(shown) if log else shown


def number(value: float, digits: int = 4) -> str:
    """A short text for a number.

    >>> number(0.0250), number(32_000_000_000.0), number(1 / 3, digits=2)
    ('0.025', '3.2e10', '0.33')
    """
    text = f"{value:.{digits}g}"
    mantissa, exponent, power = text.partition("e")
    return f"{mantissa}e{int(power)}" if exponent else text


def choose_scale(
    drawn: Floats, log: bool, zmin: float | None = None, zmax: float | None = None, levels: int | None = None
) -> Scale:
    """The scale for these drawn values.

    Where `zmin` and `zmax` are not given, the ends are the extremes, unless a few far values would make all others look
    flat. Then the range ends at the highest percentile that lies at most 20 times as far from the other end as the
    median does.

    Args:
        drawn: the values in drawn units, of any shape; what is not finite is ignored.
        zmin, zmax: the ends of the range, in real values.
        levels: the number of contour lines; default about 12 at round numbers.

    Raises:
        JobError: zmin, zmax or levels is impossible.
    """
    given = _given(zmin, zmax, log)
    if levels is not None and (isinstance(levels, bool) or not isinstance(levels, int) or not 1 <= levels <= 100):
        raise JobError(f"levels: must be a whole number of contour lines from 1 to 100, not {shown(levels)}")
    finite = drawn[np.isfinite(drawn)]
    low, high, notes = _ends(finite, *given, log) if finite.size else (*_ends_without_values(*given), [])
    if low >= high:
        pad = max(abs(low) * 0.05, 1e-12)
        low, high = low - pad, low + pad
    start, stop, step = _levels(low, high, levels)
    count = round((stop - start) / step) + 1
    ticks = tuple(start + k * step for k in range(count))
    texts = tuple(_tick(tick, step, log) for tick in ticks)
    return Scale(log, low, high, start, stop, step, ticks, texts, tuple(notes))


def _ends(
    finite: Floats, low_given: float | None, high_given: float | None, log: bool
) -> tuple[float, float, list[str]]:
    """The ends of the range in drawn units, those given or else chosen from the values, and notes for the caption."""
    low, low_note = (low_given, "") if low_given is not None else _low_end(finite, log)
    high, high_note = (high_given, "") if high_given is not None else _high_end(finite, log)
    notes = [note for note in (low_note, high_note) if note]
    return low, high, [*notes, *_outside(finite, low_given, high_given, log), *_wide(finite, log)]


def _ends_without_values(low_given: float | None, high_given: float | None) -> tuple[float, float]:
    """The ends of the range where there is no value to choose them from: 0 and 1, unless one of them is given."""
    if low_given is None:
        low_given = 0.0 if high_given is None else min(0.0, high_given - 1)
    return low_given, low_given + 1 if high_given is None else high_given


def _given(zmin: float | None, zmax: float | None, log: bool) -> tuple[float | None, float | None]:
    for name, value in (("zmin", zmin), ("zmax", zmax)):
        if value is not None and not math.isfinite(value):
            raise JobError(f"{name}: must be a finite number, not {shown(value)}")
        if value is not None and log and value <= 0:
            raise JobError(f"{name}: must be above 0 on a logarithmic scale, not {value:g}; or draw with log=False")
    if zmin is not None and zmax is not None and zmin >= zmax:
        raise JobError(f"zmin: must be below zmax, not {zmin:g} >= {zmax:g}; swap them")
    low, high = (None if end is None else (math.log10(end) if log else float(end)) for end in (zmin, zmax))
    return low, high


def _reach(distances: Floats) -> tuple[float, float]:
    """How far the range reaches from its near end, and which percentile of `distances` that is; 100 is all."""
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
        f"range drawn ends at {number(_real(end, log))} (percentile {percentile:g}); highest {number(_real(top, log))}"
    )


def _low_end(finite: Floats, log: bool) -> tuple[float, str]:
    bottom, top = float(finite.min()), float(finite.max())
    reach, percentile = _reach(top - finite) if log and math.isfinite(top - bottom) else (top - bottom, 100.0)
    if percentile == 100.0:
        return bottom, ""
    end = top - reach
    return end, (
        f"range drawn starts at {number(_real(end, log))} (percentile {100 - percentile:g}); "
        f"lowest {number(_real(bottom, log))}"
    )


def _outside(finite: Floats, low: float | None, high: float | None, log: bool) -> list[str]:
    notes = []
    if low is not None and (below := int((finite < low).sum())):
        notes.append(f"{below} points below the range drawn, lowest {number(_real(float(finite.min()), log))}")
    if high is not None and (above := int((finite > high).sum())):
        notes.append(f"{above} points above the range drawn, highest {number(_real(float(finite.max()), log))}")
    return notes


def _wide(finite: Floats, log: bool) -> list[str]:
    low, high, middle = float(finite.min()), float(finite.max()), float(np.median(finite))
    if log or low <= 0 or high < WIDE_RATIO * middle:
        return []
    return [f"values span {math.log10(high) - math.log10(low):.0f} decades: a logarithmic scale shows more"]


def _levels(low: float, high: float, levels: int | None) -> tuple[float, float, float]:
    """First and last contour line and the step: exactly `levels` lines, or about 12 at round numbers."""
    if levels is not None:
        step = (high - low) / (levels + 1)
        return low + step, low + step * levels, step
    step = _round_step((high - low) / USUAL_LEVELS)
    start = math.ceil(low / step + 1e-9) * step
    stop = math.floor(high / step - 1e-9) * step
    return (start, max(stop, start), step)


def nice_ticks(low: float, high: float, log: bool) -> tuple[list[float], list[str]]:
    """About six ticks at round real values within [low, high], and their texts; ends and ticks are in drawn units."""
    if not log or high - low < 0.3:
        step = _round_step((high - low) / 6) if not log else 0.0
        if log:  # so narrow that the axis is as good as linear
            real, texts = nice_ticks(10.0**low, 10.0**high, log=False)
            return [math.log10(value) for value in real], texts
        ticks = [k * step for k in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]
        return ticks, [_tick(tick, step, False) for tick in ticks]
    decades = range(math.floor(low), math.ceil(high) + 1)
    for mantissas in ((1.0, 1.5, 2.0, 3.0, 5.0, 7.0), (1.0, 2.0, 5.0), (1.0, 3.0), (1.0,)):
        ticks = [
            d + math.log10(m) for d in decades for m in mantissas if low - 1e-9 <= d + math.log10(m) <= high + 1e-9
        ]
        if len(ticks) <= 8:
            break
    ticks = ticks[:: -(-len(ticks) // 8)]
    return ticks, [number(10.0**tick, 3) for tick in ticks]


def _round_step(rough: float) -> float:
    power = 10.0 ** math.floor(math.log10(rough))
    return power * min((1.0, 2.0, 2.5, 5.0, 10.0), key=lambda factor: abs(math.log(factor * power / rough)))


def _real(drawn: float, log: bool) -> float:
    return 10.0**drawn if log else drawn


def _tick(drawn: float, step: float, log: bool) -> str:
    if log:
        return number(10.0**drawn, 3 if step >= 0.01 else 5)
    if abs(drawn) < step * 1e-6:
        return "0"
    digits = max(1, math.floor(math.log10(abs(drawn))) - math.floor(math.log10(step)) + 2)
    return number(drawn, min(digits, 7))
