"""Checks 3 and 4: whether the values are found again, by another way and by another process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from landscape.analysis.checks.values import check, number, percent
from landscape.core.grid import Floats
from landscape.surface.record_entries import Check

SHARE_OF_RELIEF = 1e-3  # a figure of 256 colours shows 4e-3
LOW_SHARE_OF_RELIEF = 1e-2  # of bfloat16 and tf32, whose jitter is 3e-3 of a loss
SHARE_OF_NOISE = 0.5  # of the standard error of the rise: what is judged by it must be known better
# Of the loss: as much as the arithmetic may round it, so that a larger difference has another cause.
ROUNDING = 1e-5  # of float32
LOW_ROUNDING = 1e-2


@dataclass(frozen=True)
class Spot:
    """Losses of the landscape, and the same computed another way.

    Attributes:
        places: coordinates in words, one for each.
        relief: of the landscape.
        noise: the median standard error of the rise; NaN where it is not known.
        low_precision: whether the landscape was evaluated in bfloat16 or tf32.
        how: the other way, in words.
    """

    stored: Floats
    computed: Floats
    places: Sequence[str]
    relief: float
    noise: float
    low_precision: bool
    how: str


def spot(found: Spot) -> Check:
    """3: max |Δ| ≤ 1e-3 of the relief (1e-2 in bfloat16 and tf32) and half a standard error, beyond rounding.

    What rounding explains does hold, with a reservation where it is more than that share of the relief.
    """
    differences = np.abs(found.stored - found.computed)
    share, rounding = (LOW_SHARE_OF_RELIEF, LOW_ROUNDING) if found.low_precision else (SHARE_OF_RELIEF, ROUNDING)
    allowed = share * found.relief
    if np.isfinite(found.noise) and found.noise > 0:
        allowed = min(allowed, SHARE_OF_NOISE * found.noise)
    bounds = np.maximum(allowed, rounding * np.maximum(1.0, np.abs(found.stored)))
    excess = np.where(np.isfinite(differences), differences / bounds, np.inf)
    worst, count = int(np.argmax(excess)), int((excess > 1).sum())
    largest = float(differences.max())
    of_relief = largest / found.relief if found.relief > 0 else largest
    known = {"points": len(differences), "largest": largest, "allowed": allowed}
    if not count:
        # Far out, where the loss is many times the relief, its own rise is what is looked at.
        visible = np.maximum(share * found.relief, rounding * (found.stored - found.stored.min()))
        rough = found.relief > 0 and bool((differences > visible).any())
        text = (
            f"{len(differences)} points computed again another way ({found.how}): off by at most "
            f"{_in_words(largest, found.relief)}"
        )
        if rough:
            finer = "float32" if found.low_precision else "float64"
            text, remedy = f"{text}, which rounding makes", f"precision: {finer}, or a wider range"
            return check("3", "spot check", "reservation", text, remedy, of_relief, numbers=known)
        return check("3", "spot check", "holds", text, value=of_relief, numbers=known)
    text = (
        f"{count} of {len(differences)} points computed again another way ({found.how}) differ: "
        f"{number(float(found.stored[worst]), 4)} in the picture and {number(float(found.computed[worst]), 4)} again "
        f"at {found.places[worst]}"
    )
    remedy = (
        "the stored axes, coordinates or values are not those of this network: landscape validate, then compute anew; "
        "or a hook or observe reads another model than the one that it is given"
    )
    return check("3", "spot check", "fails", text, remedy, of_relief, numbers=known)


def _in_words(difference: float, relief: float) -> str:
    """A difference in percent of the relief; by itself where there is none."""
    return f"{percent(difference / relief)} of the relief" if relief > 0 else number(difference)


@dataclass(frozen=True)
class Repetition:
    """The loss of one point, computed several times.

    Attributes:
        losses: of every time, the first as any other.
        processes: how many processes computed it.
        relief: of the landscape.
    """

    losses: Sequence[float]
    processes: int
    relief: float


def repetition(found: Repetition) -> Check:
    """4: the same bits each time."""
    spread = float(np.ptp(found.losses))
    times = len(found.losses)
    who = f"{found.processes} processes" if found.processes > 1 else "this process, set anew,"
    if len({np.float64(loss).tobytes() for loss in found.losses}) == 1:
        text = f"one far point computed {times} times by {who} has the same bits each time"
        return check("4", "repetition", "holds", text, value=0.0, numbers={"times": times})
    share = spread / found.relief if found.relief > 0 else spread
    text = f"one far point computed {times} times by {who} varies by {_in_words(spread, found.relief)}"
    remedy = (
        "observe draws random numbers that no seed reaches, or kernels add in no fixed order: draw from the global "
        "generators, which are seeded at each point"
    )
    return check("4", "repetition", "reservation", text, remedy, share, {"times": times, "spread": spread})
