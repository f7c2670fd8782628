"""Check 6: whether the grid is fine enough for what it shows, by leaving out every second point of it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from landscape.analysis.checks.words import check, percent
from landscape.surface.record_entries import Check

FINE, COARSE = 0.04, 0.2  # of the relief: the grid's own error is then a quarter of it, 1 % and 5 %
ORDER_OF_LINEAR = 2  # the error of bilinear interpolation goes with h²: halving the step takes three quarters away
LEAST_ORDER = 1.0  # below it a finer grid is not approached as by a surface that is smooth at this scale
WORTH_AN_ORDER = 0.01  # of the relief: below it an order is that of rounding and of kinks


@dataclass(frozen=True)
class Resolution:
    """How well a grid with points left out predicts those.

    Attributes:
        half: the 95th percentile of |interpolated − there| over the relief, every second point left out.
        quarter: the same with every fourth kept; NaN where the grid is too small.
        minima: how many minima stand above the noise, of the whole grid and of every second point; None where the grid
            is too large to tell.
        size: points of every axis, the first one first.
        refined: whether `half` is what the levels of a refined landscape have added, and the others are not known.
    """

    half: float
    quarter: float
    minima: tuple[int, int] | None
    size: tuple[int, ...]
    refined: bool = False
    held: str = ""  # what a smaller range would cut off, such as 'the path'; '' for nothing


def resolution(found: Resolution) -> Check:
    """6: e ≤ 4 % of the relief holds, beyond 20 % it does not; the order log₂(e₄/e₂) ≥ 1; the same minima on both."""
    own = found.half / 2**ORDER_OF_LINEAR
    order = math.log2(found.quarter / found.half) if found.half > 0 and found.quarter > 0 else math.nan
    finer, better = _finer(found.size), own / 2**ORDER_OF_LINEAR
    known = {"quarter": found.quarter, "order": order, "minima": found.minima and list(found.minima)}
    text = (
        f"every second point left out changes the picture by {percent(found.half)} of its relief, so the grid itself "
        f"is off by about {percent(own)}"
    )
    remedy = f"size: {finer} gives {percent(better)}"
    if found.refined:
        text = (
            f"each level of the refinement changed the picture by {percent(found.half)} of its relief where it is the "
            f"last one, so the picture itself is off by about {percent(own)}"
        )
        remedy = "landscape refine makes it finer"
    if found.half > COARSE:
        return check("6", "resolution", "fails", text, remedy, found.half, numbers=known)
    if found.half > WORTH_AN_ORDER and order < LEAST_ORDER:
        text = (
            f"{text}; every fourth kept instead changes it by {percent(found.quarter)}: finer structure than the grid"
        )
        remedy = f"size: {finer}" + ("" if found.held else ", or a smaller range")
        return check("6", "resolution", "reservation", text, remedy, found.half, numbers=known)
    if found.half > FINE:
        return check("6", "resolution", "reservation", text, remedy, found.half, numbers=known)
    if found.minima is not None and found.minima[0] != found.minima[1]:
        text = f"{text}; the grid shows {found.minima[0]} minima above its noise, every second point {found.minima[1]}"
        return check("6", "resolution", "reservation", text, f"size: {finer} says which", found.half, numbers=known)
    return check("6", "resolution", "holds", text, value=found.half, numbers=known)


def _finer(size: tuple[int, ...]) -> int | list[int]:
    """`size` in a job at half the step; one number where all axes have it."""
    sizes = [2 * points - 1 for points in size]
    return sizes[0] if len(set(sizes)) == 1 else sizes
