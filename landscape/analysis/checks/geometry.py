"""Checks 11 and 14: how well the plane holds the path, and what its axes are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from landscape.analysis.checks.words import NotJudged, check, number, percent
from landscape.core.grid import Floats
from landscape.core.plan import RECALIBRATE
from landscape.surface.record import Along
from landscape.surface.record_entries import Check, CheckState

NEAR = 0.3  # of the reach of a path, off the plane
# Of the height of the path: a tenth is the way between two contour lines of ten; by half of it what was the middle of
# the training can be drawn higher than its start, or lower than its end.
SMALL_GAP, LARGE_GAP = 0.1, 0.5
DRIFT = 0.05  # of the variance: a walk of as many steps explains so much more or less by chance
ORDER: tuple[CheckState, ...] = ("holds", "reservation", "fails")
ORTHOGONAL = 0.1  # |cosine|: the angle is then within 6° of a right one
SHOWN = 2  # tensors by their names
NO_PART = (
    "does a layer compute with merged or cached weights (as LoRA's after eval()), or observe with another model? "
    "what is unused by design may stay so, and directions that leave it out say more"
)
MORE_AXES = {1: "a second axis or fewer snapshots fit", 2: "a third axis or fewer snapshots fit"}


@dataclass(frozen=True)
class OnPlane:
    """The path and its projection.

    Attributes:
        off: ‖θᵢ − projection‖ / maxⱼ ‖θⱼ − θ₀‖ of every snapshot off the origin: over how far the path reaches.
        explained, of_walk: the share of the variance that the axes explain, and what they would of a random walk; NaN
            where they are no principal components.
        axes: how many there are.
        renewed: L(projection) with the statistics of batch norm taken anew there, by the place of the snapshot in the
            path, where it was evaluated.
    """

    along: Along
    off: Floats
    explained: float
    of_walk: float
    axes: int = 2
    renewed: Mapping[int, float] = field(default_factory=dict)


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
    """11: the largest gap |L(θᵢ) − L(projection)|, and the largest distance off the plane.

    A gap counts beyond 3 standard errors of the rise: ≤ 10 % of the height of the path holds, beyond 50 % it does not.
    The largest one is judged, since a picture is read at its start and its end, and many snapshots close to the end
    make a median small. A distance off the plane of more than 30 % of the reach of the path is a reservation, whatever
    the gaps are: its shape is then not that of the picture. Over a snapshot's own way to the origin the last ones would
    be far off any plane.
    """
    if not len(found.off):
        raise NotJudged("the path has no snapshot off the origin")
    along, off, worst = found.along, float(found.off.max()), found.along.furthest
    gap = float(along.clear[worst]) / along.height
    state = _worse("reservation" if off > NEAR else "holds", _graded(gap, SMALL_GAP, LARGE_GAP))
    whose, far = f" of {run}" if run else "", f"up to {percent(off)} of its reach off the plane"
    text = f"the path{whose} lies {far}"
    known: dict[str, object] = {"off": off, "gap": gap, "explained": found.explained, "of walk": found.of_walk}
    own, plane = float(along.losses[worst]), float(along.plane[worst])
    if not (math.isnan(gap) or math.isnan(own) or math.isnan(plane)):
        known |= {"snapshot": along.names[worst], "loss": own, "plane": plane}
        text = f"path{whose}: {beside(along.names[worst], own, plane)}{_apart(along, gap)}; it lies {far}"
    drifts = found.explained <= found.of_walk + DRIFT  # never of NaN
    remedies = []
    if gap > SMALL_GAP and _is_stale(found, worst):
        remedies.append(f"most of it is stale statistics: {RECALIBRATE}")
    elif state != "holds" and not drifts:
        others = MORE_AXES.get(found.axes, "fewer snapshots fit")
        remedies.append(f"read the path's own losses, not the contour lines below it; {others} better")
    if drifts:
        text += f"; the axes explain {percent(found.explained)} of it, and {percent(found.of_walk)} of a random walk"
        state, who = _worse(state, "reservation"), f"the path{whose} looks " if run else ""
        remedies.append(f"{who}as pure drift would: its shape says nothing of the training")
    return check("11", "path", state, text, "; ".join(remedies), off, numbers=known)


def beside(name: str, own: float, plane: float) -> str:
    """A snapshot's own loss and the plane's: 'at epoch 0 the loss is 4.39, the plane has 3.19 there'."""
    there = f"the plane has {number(plane)} there" if math.isfinite(plane) else "the plane's is not finite there"
    return f"at {name} the loss is {number(own) if math.isfinite(own) else 'not finite'}, {there}"


def _apart(along: Along, gap: float) -> str:
    """How large the largest gap is, as a share of the height."""
    if not gap:
        return ", no more apart than by the noise of sampling"
    if not math.isfinite(gap):
        return ""
    of = "the range of the path's losses" if along.span else "the relief"
    return f", apart by {percent(gap)} of {of}" if gap < 2 else f", apart by {number(gap, 2)} times {of}"


def _is_stale(found: OnPlane, k: int) -> bool:
    """Whether most of a gap is gone where the statistics of batch norm are taken anew."""
    left = abs(float(found.along.losses[k]) - found.renewed.get(k, math.nan))
    return left <= float(found.along.gaps[k]) / 2  # never of NaN


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
        unused: the tensors that move and take no part in the loss.
        unused_size, moved_size: how many numbers these have, and all that move.
    """

    cosines: Mapping[str, float]
    unscaled: tuple[str, ...]
    moved: float | None
    unused: tuple[str, ...] = ()
    unused_size: int = 0
    moved_size: int = 0


def axes(found: Axes) -> Check:
    """14: |cosine| ≤ 0.1; random axes scaled to the weights, as only those are comparable."""
    widest = max(found.cosines, key=lambda pair: abs(found.cosines[pair]), default="")
    cosine = found.cosines.get(widest, math.nan)
    moved = "" if found.moved is None else f"; {percent(found.moved)} of the parameters move"
    known = {"moved": math.nan if found.moved is None else found.moved, **found.cosines}
    if found.unused:
        more = len(found.unused) - SHOWN
        names = f"{', '.join(found.unused[:SHOWN])} and {more} more" if more > 0 else " and ".join(found.unused)
        text = (
            f"{names} {'takes' if len(found.unused) == 1 else 'take'} no part in the loss of the samples: "
            f"{found.unused_size:,} of the {found.moved_size:,} numbers that move{moved}"
        )
        return check("14", "axes", "reservation", text, NO_PART, cosine, numbers=known)
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
