"""Checks 11 and 14: how well the plane holds the path, and what its axes are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from landscape.checks.rules.words import NotJudged, check, number, percent
from landscape.grid import Floats
from landscape.record import Check, CheckState

NEAR, FAR = 0.3, 0.6  # of a snapshot's distance from the origin, off the plane
SMALL_GAP, LARGE_GAP = 0.1, 0.5  # of the range of losses along the path
DRIFT = 0.05  # of the variance: a walk of as many steps explains so much more or less by chance
ORDER: tuple[CheckState, ...] = ("holds", "reservation", "fails")
ORTHOGONAL = 0.1  # |cosine|: the angle is then within 6° of a right one


@dataclass(frozen=True)
class OnPlane:
    """The path and its projection.

    Attributes:
        off: ‖θᵢ − projection‖ / ‖θᵢ − θ₀‖ of every snapshot off the origin; of one of several paths, over the largest
            ‖θⱼ − θ₀‖ of the path.
        gaps: |L(θᵢ) − L(projection)| of those whose losses are known.
        losses: L(θᵢ) of the same.
        explained, of_walk: the share of the variance that the axes explain, and what they would of a random walk; NaN
            where they are no principal components.
    """

    off: Floats
    gaps: Floats
    losses: Floats
    explained: float
    of_walk: float


def paths(found: Mapping[str, OnPlane]) -> Check:
    """11 of every path by the name of its run: the state is the worst one, and the text names all.

    Raises:
        NotJudged: no path has a snapshot off the origin.
    """
    judged = {run: path(each, run) for run, each in found.items() if len(each.off)}
    if not judged:
        raise NotJudged("the path has no snapshot off the origin")
    worst = max(judged.values(), key=lambda each: ORDER.index(each.state))
    if len(judged) == 1:
        return worst
    text = "; ".join(each.text for each in judged.values())
    remedies = dict.fromkeys(each.remedy for each in [worst, *judged.values()] if each.remedy)
    numbers = {f"{run}, {name}": value for run, each in judged.items() for name, value in each.numbers.items()}
    return replace(worst, text=text, remedy="; ".join(remedies), numbers=numbers)


def path(found: OnPlane, run: str = "") -> Check:
    """11: the medians of both: off the plane ≤ 0.3 and ≤ 0.6, gaps ≤ 10 % and ≤ 50 % of the range of the losses."""
    if not len(found.off):
        raise NotJudged("the path has no snapshot off the origin")
    off = float(np.median(found.off))
    span = float(np.ptp(found.losses)) if len(found.losses) else 0.0
    gap = float(np.median(found.gaps)) / span if span > 0 else math.nan
    state = _worse(_graded(off, NEAR, FAR), _graded(gap, SMALL_GAP, LARGE_GAP))
    text = f"the path{f' of {run}' if run else ''} lies {percent(off)} of its length off the plane"
    if math.isfinite(gap):
        text += f", where its losses are off by {percent(gap)} of their range (medians)"
    known = {"off": off, "gap": gap, "explained": found.explained, "of walk": found.of_walk}
    if found.explained <= found.of_walk + DRIFT:  # never of NaN
        text += f"; the axes explain {percent(found.explained)} of it, and {percent(found.of_walk)} of a random walk"
        who = f"the path of {run} looks " if run else ""
        state, remedy = (
            _worse(state, "reservation"),
            f"{who}as pure drift would: its shape says nothing of the training",
        )
        return check("11", "path", state, text, remedy, off, numbers=known)
    remedy = "read the path's own losses, not the contour lines below it; a third axis or fewer snapshots fit better"
    return check("11", "path", state, text, "" if state == "holds" else remedy, off, numbers=known)


def _graded(value: float, good: float, bad: float) -> CheckState:
    """What is not known does not count."""
    return "fails" if value > bad else "reservation" if value > good else "holds"


def _worse(*states: CheckState) -> CheckState:
    return max(states, key=ORDER.index)


@dataclass(frozen=True)
class Axes:
    """The axes.

    Attributes:
        cosines: of every pair, by their names.
        unscaled: the random axes that are not scaled to the weights.
        moved: the share of the parameters that move; None where it is not known.
    """

    cosines: Mapping[str, float]
    unscaled: tuple[str, ...]
    moved: float | None


def axes(found: Axes) -> Check:
    """14: |cosine| ≤ 0.1; random axes scaled to the weights, as only those are comparable."""
    widest = max(found.cosines, key=lambda pair: abs(found.cosines[pair]), default="")
    cosine = found.cosines.get(widest, math.nan)
    moved = "" if found.moved is None else f"; {percent(found.moved)} of the parameters move"
    known = {"moved": math.nan if found.moved is None else found.moved, **found.cosines}
    if found.unscaled:
        names = " and ".join(found.unscaled)
        text = f"{names} not scaled to the weights: heights depend on the size of the weights{moved}"
        remedy = "normalise: filter is comparable between networks"
        return check("14", "axes", "reservation", text, remedy, cosine, numbers=known)
    if abs(cosine) > ORTHOGONAL:
        text = f"the axes are not at right angles: cosine {number(cosine, 2)} of {widest}{moved}"
        return check(
            "14", "axes", "reservation", text, "lengths and angles of the picture are not true", cosine, numbers=known
        )
    text = f"axes at right angles (cosine {number(cosine, 1)}){moved}" if widest else f"one axis{moved}"
    return check("14", "axes", "holds", text, value=cosine, numbers=known)
