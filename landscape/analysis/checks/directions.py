"""Checks 7 and 14: whether other random directions would give another picture, and what the axes are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from landscape.analysis.checks.check import CheckContext
from landscape.analysis.checks.evaluations import ExtraEvaluations
from landscape.analysis.checks.judgement import Judgement, NotJudged, number, percent
from landscape.core.errors import ClusterUnreachableError, Interrupted, LandscapeError
from landscape.core.grid import Floats
from landscape.job.directions.random import RandomDirection

LINES = 8
# Coefficients of variation. Where k directions of equal curvature make the rise, it varies by √(2/k): a tenth means 200
# of them, and 1 that two alone decide. Trained networks of 60,000 to 300,000 parameters have 0.2 to 0.5.
ALIKE, CHANCE = 0.1, 1.0
# Of t with 7 degrees of freedom, 99.5th percentile. Two axes in each of many landscapes: at the usual 95 % a tenth of
# all planes would count as unusual.
QUANTILE = 3.499
CLEARLY = 3.0  # standard errors: a smaller rise is not compared
SEEDS = range(1001, 1001 + LINES)  # the same for all networks, so that lines of two are paired
POINTS_OF_LINE = (-1.0, -0.75, -0.5, -0.25, 0.25, 0.5, 0.75, 1.0)  # of the range; the origin is known
HALF = (2, 5)  # the places of both sides at half the range
ORTHOGONAL = 0.1  # |cosine|: the angle is then within 6° of a right one
SHOWN = 2  # tensors by their names
NO_PART = (
    "does a layer compute with merged or cached weights (as LoRA's after eval()), or observe with another model? "
    "what is unused by design may stay so, and directions that leave it out say more"
)


# -- 7: other seeds ------------------------------------------------------------------------------------------


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


def check_other_seeds(context: CheckContext) -> Judgement:
    """How the loss rises along other random lines, and along the axes."""
    extra, axes = context.evaluations, context.evidence.surface.axes
    specs = extra.prepared.job.landscapes[0].directions
    drawn = {axis.name: spec for axis, spec in zip(axes, specs, strict=True) if isinstance(spec, RandomDirection)}
    if not drawn:
        raise NotJudged("no axis is a random direction")
    if context.evidence.relief == 0:
        raise NotJudged("the relief is 0: the check of sampling says what to do")
    reach = min(float(np.abs(axis.coordinates).max()) for axis in axes if axis.name in drawn)
    spec = next(iter(drawn.values()))
    places = reach * np.array(POINTS_OF_LINE)
    losses, errors = extra.line_losses(spec, SEEDS, places.tolist())
    rises = losses[:, HALF].mean(axis=1) - context.origin_loss
    names = [axis.name for axis in axes]
    # Axes of another kind or scale are no draws of the same.
    alike = [name for name, each in drawn.items() if each.model_copy(update={"seed": spec.seed}) == spec]
    points = [[sign * reach / 2 if each == name else 0.0 for each in names] for name in alike for sign in (-1, 1)]
    own = extra.losses(extra.own, points).reshape(len(alike), 2).mean(axis=1) - context.origin_loss
    noise = float(np.median(errors[:, HALF]))
    along = dict(zip(alike, own.tolist(), strict=True))
    return judge_lines(OtherLines(rises, along, reach / 2, noise, places, losses))


def judge_lines(lines: OtherLines) -> Judgement:
    """7: CV of the rise at half the range ≤ 0.1 holds, beyond 1 it does not; own axes within mean ± t·s·√(1 + 1/K)."""
    rises = lines.rises[np.isfinite(lines.rises)]
    if len(rises) < LINES:
        raise NotJudged(f"the loss is not finite on {LINES - len(rises)} of {LINES} other lines at {lines.distance:g}")
    if math.isnan(lines.noise):
        raise NotJudged("the standard error of the rise is not known")
    mean, spread = float(rises.mean()), float(rises.std(ddof=1))
    if not mean > CLEARLY * lines.noise:
        raise NotJudged(f"nothing rises clearly at {number(lines.distance)} along {LINES} other lines; widen the range")
    variation = spread / mean
    reach = QUANTILE * spread * math.sqrt(1 + 1 / len(rises))
    unusual = [name for name, rise in lines.own.items() if not abs(rise - mean) <= reach]
    own = " and ".join(f"{name} by {number(rise)}" for name, rise in lines.own.items())
    text = (
        f"{LINES} other directions rise by {number(float(rises.min()))} to {number(float(rises.max()))} at "
        f"{number(lines.distance)}, {own}"
    )
    known: dict[str, object] = {"mean": mean, "low": mean - reach, "high": mean + reach, "rises": rises.tolist()}
    known |= {"band": lines.band(), **lines.own}
    if variation > CHANCE:
        text = f"{text}: they vary by {percent(variation)}, so one or two directions decide what is seen"
        remedy = "show several planes, or landscape measure, which averages over lines"
        return Judgement("fails", text, remedy, variation, numbers=known)
    if unusual:
        text = f"{text}: an unusual plane ({' and '.join(unusual)})"
        return Judgement("reservation", text, "show another seed beside it", variation, numbers=known)
    if variation > ALIKE:
        text = f"{text}: they vary by {percent(variation)}"
        remedy = "compare heights with other networks by landscape measure only, which averages over lines"
        return Judgement("reservation", text, remedy, variation, numbers=known)
    return Judgement("holds", text, value=variation, numbers=known)


# -- 14: the axes --------------------------------------------------------------------------------------------


def check_axes(context: CheckContext) -> Judgement:
    """The angles of the axes, their scale, and what they move."""
    evidence = context.evidence
    kinds = {axis.name: axis.attributes for axis in evidence.surface.axes}
    unscaled = [
        name for name, each in kinds.items() if each.get("kind") == "random" and each.get("normalise") == "none"
    ]
    if not any(axis.record.kind for axis in evidence.surface.axes):
        raise NotJudged("what the axes are is not recorded")
    if len(kinds) > 1 and not evidence.cosines:
        raise NotJudged("the cosines of the axes are not recorded")
    return judge_axes(evidence.cosines, unscaled, _moved(context), *_unused(context))


def _moved(context: CheckContext) -> float | None:
    """The share of the model's parameters that some axis moves."""
    total = context.evidence.record.provenance.parameters
    if context.extra is None or not total:
        return None
    return min(1.0, sum(_moved_sizes(context.extra).values()) / total)


def _moved_sizes(extra: ExtraEvaluations) -> dict[str, int]:
    """How many numbers each tensor has that some axis moves."""
    sizes: dict[str, int] = {}
    for each in extra.landscape.directions:
        sizes |= {name: tensor.numel() for name, tensor in each.tensors.items() if bool((tensor != 0).any())}
    return sizes


def _unused(context: CheckContext) -> tuple[tuple[str, ...], int, int]:
    """The tensors that move and that the loss does not depend on, how many numbers they have, and all that move.

    Where the loss has no derivatives, it is not known that any takes no part.
    """
    if context.extra is None:
        return (), 0, 0
    moved = _moved_sizes(context.extra)
    try:
        unused = context.extra.unused_parameters()
    except (Interrupted, ClusterUnreachableError):
        raise
    except LandscapeError:
        return (), 0, 0
    names = tuple(name for name in moved if name in unused)
    return names, sum(moved[name] for name in names), sum(moved.values())


def judge_axes(
    cosines: Mapping[str, float], unscaled: Sequence[str], moved: float | None, unused: Sequence[str] = (),
    unused_size: int = 0, moved_size: int = 0,
) -> Judgement:  # fmt: skip
    """14: |cosine| ≤ 0.1; random axes scaled to the weights, as only those are comparable.

    Args:
        cosines: of every pair of axes, by their names.
        unscaled: the random axes that are not scaled to the weights.
        moved: the share of the parameters that move; None where it is not known.
        unused: the tensors that move and take no part in the loss.
        unused_size, moved_size: how many numbers these have, and all that move.
    """
    widest = max(cosines, key=lambda pair: abs(cosines[pair]), default="")
    cosine = cosines.get(widest, math.nan)
    share = "" if moved is None else f"; {percent(moved)} of the parameters move"
    known = {"moved": math.nan if moved is None else moved, **cosines}
    if unused:
        more = len(unused) - SHOWN
        names = f"{', '.join(unused[:SHOWN])} and {more} more" if more > 0 else " and ".join(unused)
        text = (
            f"{names} {'takes' if len(unused) == 1 else 'take'} no part in the loss of the samples: "
            f"{unused_size:,} of the {moved_size:,} numbers that move{share}"
        )
        return Judgement("reservation", text, NO_PART, cosine, numbers=known)
    if unscaled:
        names = " and ".join(unscaled)
        text = f"{names} not scaled to the weights: heights depend on the size of the weights{share}"
        remedy = "normalise: filter is comparable between networks"
        return Judgement("reservation", text, remedy, cosine, numbers=known)
    if abs(cosine) > ORTHOGONAL:
        text = f"the axes are not at right angles: cosine {number(cosine, 2)} of {widest}{share}"
        return Judgement("reservation", text, "lengths and angles of the picture are not true", cosine, numbers=known)
    text = f"axes at right angles (cosine {number(cosine, 1)}){share}" if widest else f"one axis{share}"
    return Judgement("holds", text, value=cosine, numbers=known)
