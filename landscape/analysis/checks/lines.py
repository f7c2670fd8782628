"""Check 7: whether other random directions would give another picture."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from landscape.analysis.checks.words import NotJudged, check, number, percent
from landscape.core.grid import Floats
from landscape.surface.record_entries import Check

LINES = 8
# Coefficients of variation. Where k directions of equal curvature make the rise, it varies by √(2/k): a tenth means 200
# of them, and 1 that two alone decide. Trained networks of 60,000 to 300,000 parameters have 0.2 to 0.5.
ALIKE, CHANCE = 0.1, 1.0
# Of t with 7 degrees of freedom, 99.5th percentile. Two axes in each of many landscapes: at the usual 95 % a tenth of
# all planes would count as unusual.
QUANTILE = 3.499
CLEARLY = 3.0  # standard errors: a smaller rise is not compared


@dataclass(frozen=True)
class OtherLines:
    """The rise along other random lines, and along the axes of the landscape.

    Attributes:
        rises: [lines], the mean of both sides, at `distance` from the origin.
        own: the same along each axis that is of the same kind, by its name.
        distance: half the range.
        noise: the median standard error of `rises`.
        at: places along the lines, on both sides.
        losses: [lines, places] there.
    """

    rises: Floats
    own: Mapping[str, float]
    distance: float
    noise: float
    at: Floats
    losses: Floats

    def band(self) -> dict[str, list[float]]:
        """At each place the mean loss of the lines, and the interval which one more would lie in: 99 % of them do."""
        with np.errstate(invalid="ignore"):  # where a loss is not finite there is no band
            mean, spread = self.losses.mean(axis=0), self.losses.std(axis=0, ddof=1)
        reach = QUANTILE * spread * math.sqrt(1 + 1 / len(self.losses))
        columns = {"at": self.at, "mean": mean, "low": mean - reach, "high": mean + reach}
        return {name: column.tolist() for name, column in columns.items()}


def other_lines(found: OtherLines) -> Check:
    """7: CV of the rise at half the range ≤ 0.1 holds, beyond 1 it does not; own axes within mean ± t·s·√(1 + 1/K)."""
    rises = found.rises[np.isfinite(found.rises)]
    if len(rises) < LINES:
        raise NotJudged(f"the loss is not finite on {LINES - len(rises)} of {LINES} other lines at {found.distance:g}")
    if math.isnan(found.noise):
        raise NotJudged("the standard error of the rise is not known")
    mean, spread = float(rises.mean()), float(rises.std(ddof=1))
    if not mean > CLEARLY * found.noise:
        raise NotJudged(f"nothing rises clearly at {number(found.distance)} along {LINES} other lines; widen the range")
    variation = spread / mean
    reach = QUANTILE * spread * math.sqrt(1 + 1 / len(rises))
    unusual = [name for name, rise in found.own.items() if not abs(rise - mean) <= reach]
    own = " and ".join(f"{name} by {number(rise)}" for name, rise in found.own.items())
    text = (
        f"{LINES} other directions rise by {number(float(rises.min()))} to {number(float(rises.max()))} at "
        f"{number(found.distance)}, {own}"
    )
    known: dict[str, object] = {"mean": mean, "low": mean - reach, "high": mean + reach, "rises": rises.tolist()}
    known |= {"band": found.band(), **found.own}
    if variation > CHANCE:
        text = f"{text}: they vary by {percent(variation)}, so one or two directions decide what is seen"
        remedy = "show several planes, or landscape measure, which averages over lines"
        return check("7", "other seeds", "fails", text, remedy, variation, numbers=known)
    if unusual:
        text = f"{text}: an unusual plane ({' and '.join(unusual)})"
        return check("7", "other seeds", "reservation", text, "show another seed beside it", variation, numbers=known)
    if variation > ALIKE:
        text = f"{text}: they vary by {percent(variation)}"
        remedy = "compare heights with other networks by landscape measure only, which averages over lines"
        return check("7", "other seeds", "reservation", text, remedy, variation, numbers=known)
    return check("7", "other seeds", "holds", text, value=variation, numbers=known)
