"""The colour and height scale: what range is drawn, linear or logarithmic, and where the contour lines lie.

Values are never changed to fit the range; where some lie outside, a note for the caption says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from landscape.core.errors import JobError, shown
from landscape.surface.surface import NOT_COMPUTED, NOT_FINITE, OK, QUARANTINED
from landscape.views.prepare.comparable import Comparable
from landscape.views.prepare.levels import checked_count, choose_levels, number

Floats = NDArray[np.float64]

NO_LOGARITHM = 4  # added to the four states of a point in the store: it has a value, but no logarithm
NO_SIGN, UNRESOLVED = 5, 6  # likewise: the end of a spectrum whose sign is open, or whose size alone
STATES = {
    NOT_COMPUTED: "not computed",
    NOT_FINITE: "not finite",
    QUARANTINED: "quarantined",
    NO_LOGARITHM: "no logarithm (zero or below)",
    UNRESOLVED: "negative (size unresolved)",
    NO_SIGN: "sign undecided",
}
CLIP_RATIO = 20.0  # the range may reach this many times as far from its near end as the median value lies
CLIP_PERCENTILES = (99.0, 98.0, 95.0, 90.0, 80.0, 70.0, 60.0, 50.0)
WIDE_RATIO = 100.0
ZERO_SHARE = 20.0  # what counts as 0 has at most one part in so many of the colours of signed values
LOG_DECADES = 2.0  # values that span more are drawn on a logarithmic scale, unless another is asked for


@dataclass(frozen=True)
class Scale(Comparable):
    """The drawn range [low, high] and the contour lines, all in drawn units: log10 of the value where `log`.

    `ticks` are the contour lines and `texts` their real values. `notes` are for the caption of any drawing, and
    `levels_note` for that of a drawing with contour lines. `signed` says that the sign of the values is what matters:
    colours are then centred on 0. What is no further than `zero` from 0 counts as 0: it has hardly any colour.
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
        """How far from 0 the colours of signed values are full."""
        return max(abs(self.low), abs(self.high), ZERO_SHARE * self.zero)

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


def spanned_decades(values: Floats, zmin: float | None = None, zmax: float | None = None) -> float:
    """How many powers of ten the values span, or the ends of the range where those are given.

    Args:
        values: real values of any shape; what is not finite is ignored.

    Returns:
        0 where a value is zero or below, since it has no logarithm, and where there are no values.
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

    Where `zmin` and `zmax` are not given, the ends are the extremes, unless a few far values would make all others look
    flat. Then the range ends at the highest percentile that lies at most 20 times as far from the other end as the
    median does.

    Args:
        drawn: the values in drawn units, of any shape; what is not finite is ignored.
        zmin, zmax: the ends of the range, in real values.
        levels: the number of contour lines; default about 12. They lie at round values, so that there may be a few
            more or less.
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
        raise JobError(f"clip: must be a percentile from 50 to 100, not {shown(clip)}")
    if zmax is not None:
        raise JobError(f"clip: must not be given with zmax ({zmax:g}), since both end the range drawn; leave one out")
    return clip


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


def _real(drawn: float, log: bool) -> float:
    return 10.0**drawn if log else drawn
