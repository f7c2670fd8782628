"""Checks 10 and 11: losses away from the centre with its batch norm statistics, and how well a plane holds its path."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from landscape.analysis.checks.check import CheckContext, once
from landscape.analysis.checks.evidence import ORDER, Judgement, NotJudged, highest_share, number, percent, ways_between
from landscape.analysis.checks.network import CLOSE, STANDARD_ERRORS
from landscape.core.errors import JobError
from landscape.core.grid import Floats
from landscape.core.plan import RECALIBRATE
from landscape.surface.record import SEEN, Along
from landscape.surface.record_entries import CheckState
from landscape.surface.surface import ProjectedPath, Surface

FURTHEST = 6  # snapshots at whose projections statistics are taken anew, beside the ends of a path
MOST = 0.5  # of the rise at a corner, or of a rise between networks
NEAR = 0.3  # of the reach of a path, off the plane
# Of the height of the path: a tenth is the way between two contour lines of ten; by half of it what was the middle of
# the training can be drawn higher than its start, or lower than its end.
SMALL_GAP, LARGE_GAP = 0.1, 0.5
DRIFT = 0.05  # of the variance: a walk of as many steps explains so much more or less by chance
MORE_AXES = {1: "a second axis or fewer snapshots fit", 2: "a third axis or fewer snapshots fit"}


# -- 10: batch norm's statistics -----------------------------------------------------------------------------


@dataclass(frozen=True)
class OnPath:
    """A snapshot of a path whose projection was evaluated with both kinds of statistics.

    Attributes:
        name: such as 'epoch 3', or 'epoch 3 of sgd'.
        own: the loss of the snapshot, with its own statistics.
        plane: the loss at its projection with those of the centre; infinite where it is not finite.
        renewed: the same with statistics that are taken anew.
        stderr: the standard error of plane − renewed over the same samples; NaN where it is not known.
        height: what differences along its path are judged by, see `Along.height`.
    """

    name: str
    own: float
    plane: float
    renewed: float
    stderr: float
    height: float

    @property
    def stale(self) -> float:
        """|own − plane| − |own − renewed|: how much nearer the plane comes to the snapshot; 0 within the noise."""
        nearer = abs(self.own - self.plane) - abs(self.own - self.renewed)
        return 0.0 if math.isnan(nearer) or nearer <= STANDARD_ERRORS * self.stderr else nearer  # no error: it counts

    @property
    def share(self) -> float:
        """The stale part as a share of the height of the path; 0 where that is not known."""
        return self.stale / self.height if self.height > 0 else 0.0


@dataclass(frozen=True)
class Between:
    """A point between two networks, on whose straight way their running statistics are mixed.

    Attributes:
        name: of the networks, such as 'the origin and epoch 3'.
        place: such as 'at alpha 0.3, between the origin and epoch 3,'.
        plane: how far the loss there is above the straight line between the losses of both networks.
        renewed: the same at that point with statistics that are taken anew at all three places.
        stderr: the standard error of the difference of both losses there; NaN where it is not known.
        relief: of the plane.
    """

    name: str
    place: str
    plane: float
    renewed: float
    stderr: float
    relief: float

    @property
    def share(self) -> float:
        """The share of the rise that is stale; 0 where that is within the noise, or the rise cannot be seen."""
        stale = self.plane - self.renewed
        if math.isnan(stale) or stale <= STANDARD_ERRORS * self.stderr or self.plane <= SEEN * self.relief:
            return 0.0
        return 1.0 if math.isinf(stale) else stale / self.plane


@once
def uses_centres_statistics(context: CheckContext) -> bool:
    """Whether batch norm has the running statistics of the origin wherever nothing moves them.

    Raises:
        NotJudged: nothing can be evaluated.
    """
    return bool(context.evidence.record.provenance.batch_norm_layers) and context.evaluations.own.plan.statistics.fixed


@once
def renewed_corners(context: CheckContext) -> list[float]:
    """The losses at the corners with the other statistics of batch norm."""
    points = [context.evidence.point(each) for each in context.corners]
    if not points:
        return []
    return [float(loss) for loss in context.evaluations.losses(context.evaluations.other_statistics, points)]


@once
def renewed_on_paths(context: CheckContext) -> dict[tuple[int, int], OnPath]:
    """By path and snapshot, the plane below some snapshots with both kinds of statistics of batch norm.

    Of all paths together those whose own losses are furthest from the plane's, and the ends of the path of the
    first of these; none where the landscape's statistics are those of each point.
    """
    surface = context.evidence.surface
    paths = {k: surface.along(path) for k, path in enumerate(surface.paths)}
    ranked = sorted(
        (
            (gap, -k, -at)
            for k, each in paths.items()
            for at, gap in enumerate(each.gaps.tolist())
            if math.isfinite(each.losses[at])
        ),
        reverse=True,
    )
    if not uses_centres_statistics(context) or not ranked:
        return {}
    worst = -ranked[0][1]
    chosen = [(-k, -at) for _, k, at in ranked[:FURTHEST]]
    chosen += [(worst, at) for at in (0, len(paths[worst].losses) - 1) if (worst, at) not in chosen]
    names = [axis.name for axis in surface.axes]
    points = [[float(surface.paths[k].coordinates[name][at]) for name in names] for k, at in chosen]
    pairs = context.evaluations.by_statistics(points)
    found = {}
    for place, (k, at) in enumerate(chosen):
        each, run = paths[k], surface.paths[k].label
        found[k, at] = OnPath(
            f"{each.names[at]} of {run}" if run else each.names[at], float(each.losses[at]), float(each.plane[at]),
            float(pairs.second[place]), float(pairs.stderr[place]), each.height,
        )  # fmt: skip
    return found


@dataclass(frozen=True)
class Stale:
    """Losses with the statistics of training, and with statistics taken anew at the point.

    Attributes:
        centre: both at the origin, the one of training first.
        corners: the same by place.
        stderr: of the difference of both at the origin, over the same samples; NaN where it is not known.
        shown: which statistics the landscape uses, as `batch_norm` of a job.
        path: some snapshots of the paths; none where the landscape takes statistics anew.
        between: points between networks, likewise.
    """

    centre: tuple[float, float]
    corners: Mapping[str, tuple[float, float]]
    stderr: float
    shown: str
    path: Sequence[OnPath] = ()
    between: Sequence[Between] = ()


def check_batch_norm(context: CheckContext) -> Judgement:
    """Losses with the statistics of training, and with statistics taken anew."""
    extra, evidence = context.evaluations, context.evidence
    if not evidence.record.provenance.batch_norm_layers:
        raise NotJudged("the model has no batch norm layers")
    path = list(renewed_on_paths(context).values())
    at_origin = extra.by_statistics([[0.0] * len(evidence.surface.axes)])
    between, other = _measure_between(context), np.array([float(at_origin.second[0]), *renewed_corners(context)])
    shown = np.array([context.origin_loss, *(evidence.values[each] for each in context.corners)])
    trained, renewed = (shown, other) if extra.own.plan.batch_norm == "eval" else (other, shown)
    pairs = list(zip(trained.tolist(), renewed.tolist(), strict=True))
    places = [evidence.place(each) for each in context.corners]
    corners = dict(zip(places, pairs[1:], strict=True))
    error = float(at_origin.stderr[0])
    return judge_statistics(Stale(pairs[0], corners, error, extra.own.plan.batch_norm, path, between))


def _measure_between(context: CheckContext) -> list[Between]:
    """How high the loss is between the networks that axes run through: half-way, of a line at its highest point.

    There the running statistics are mixed from those of both ends, and belong to no network.
    """
    surface = context.evidence.surface
    ways = ways_between(surface) if uses_centres_statistics(context) else []
    if not ways:
        return []
    ends = context.evaluations.by_statistics([point.tolist() for way in ways for point in (way.start, way.end)])
    pairs = [(float(ends.first[2 * k]), float(ends.first[2 * k + 1])) for k in range(len(ways))]
    highest = [highest_share(surface, way, losses) for way, losses in zip(ways, pairs, strict=True)]
    shares = [0.5 if share is None else share for share in highest]
    points = [way.at(share) for way, share in zip(ways, shares, strict=True)]
    there = context.evaluations.by_statistics([point.tolist() for point in points])
    found = []
    for k, (way, share) in enumerate(zip(ways, shares, strict=True)):
        above = [
            float(at[k] - (1 - share) * of_ends[2 * k] - share * of_ends[2 * k + 1])
            for at, of_ends in ((there.first, ends.first), (there.second, ends.second))
        ]
        place = (
            f"at alpha {points[k][0]:.3g}, between {way.name},"
            if len(surface.axes) == 1
            else f"half-way between {way.name}"
        )
        found.append(Between(way.name, place, above[0], above[1], float(there.stderr[k]), context.evidence.relief))
    return found


def judge_statistics(stale: Stale) -> Judgement:
    """10: along a path, between networks, at the centre, and at the corners.

    - A path: where statistics taken anew bring the plane nearer to a snapshot's own loss, by more than 3 standard
      errors of the paired difference, this is the stale part. Up to 1 % of the range of the path's losses it is not
      seen; beyond, the picture of the training is not that of the training, and does not hold. What statistics taken
      anew do not mend is for check 11.
    - Between networks, of the rise over the straight line between their losses, at the highest point that is known: a
      stale part of more than half of it does not hold, of more than 10 % it is a reservation.
    - The centre: both losses differ by more than 3 standard errors of their paired difference, and by more than 2 %:
      over many samples any difference has many standard errors.
    - A corner: share = (L_eval − L_recal) / (L_eval − L₀) beyond 50 %.
    """
    findings = [each for each in (_path(stale), _between(stale), _centre(stale), _corners(stale)) if each is not None]
    trained, renewed = stale.centre
    shares = _shares(stale)
    share = max((each for each in shares.values() if math.isfinite(each)), default=math.nan)
    known: dict[str, object] = {
        "centre": trained, "centre renewed": renewed, "centre stderr": stale.stderr, "share": share,
    }  # fmt: skip
    if stale.path:
        known["path"] = {
            each.name: {"loss": each.own, "plane": each.plane, "renewed": each.renewed} for each in stale.path
        }
    if stale.between:
        known["between"] = {each.name: {"plane": each.plane, "renewed": each.renewed} for each in stale.between}
    on_path = _worst_on_path(stale)
    if on_path is not None:
        known["snapshot"] = on_path.name
    if findings:
        first = max(findings, key=lambda each: ORDER.index(each.state))
        text = "batch norm: " + "; ".join(each.text for each in findings)
        remedy = "; ".join(dict.fromkeys(each.remedy for each in findings))
        return Judgement(first.state, text, remedy, first.value, numbers=known)
    if math.isnan(stale.stderr):
        raise NotJudged("the standard error of the difference at the centre is not known")
    text = f"batch norm: at the centre {_both(stale)}"
    if math.isfinite(share) and stale.shown == "eval":
        text = f"{text}; at most {percent(max(share, 0.0))} of the rise at a corner is stale statistics"
    if stale.path:
        stale_part = max(each.share for each in stale.path)
        text = f"{text}; along the path at most {percent(stale_part)} of its range of losses"
    return Judgement("holds", text, value=share, numbers=known)


def _worst_on_path(stale: Stale) -> OnPath | None:
    """The snapshot with the largest stale part, where that can be seen."""
    worst = max(stale.path, key=lambda each: each.share, default=None)
    return None if worst is None or worst.share <= SEEN else worst


def _path(stale: Stale) -> Judgement | None:
    worst = _worst_on_path(stale)
    if worst is None:
        return None
    text = (
        f"{beside(worst.name, worst.own, worst.plane)} with the statistics it is drawn with, and "
        f"{number(worst.renewed)} with statistics taken anew"
    )
    return Judgement("fails", text, RECALIBRATE, worst.share)


def _between(stale: Stale) -> Judgement | None:
    worst = max(stale.between, key=lambda each: each.share, default=None)
    if worst is None or worst.share <= SMALL_GAP:
        return None
    mixed, anew = "with statistics that are mixed from theirs", "with statistics taken anew"
    height = f"{number(worst.plane)} above" if math.isfinite(worst.plane) else "not finite, and so above"
    renewed = number(worst.renewed) if worst.renewed > 0 else "not above it"
    text = f"{worst.place} the loss is {height} the straight line between their losses {mixed}, and {renewed} {anew}"
    return Judgement("fails" if worst.share > MOST else "reservation", text, RECALIBRATE, worst.share)


def _centre(stale: Stale) -> Judgement | None:
    trained, renewed = stale.centre
    difference = abs(trained - renewed)
    if math.isnan(stale.stderr) or difference <= max(STANDARD_ERRORS * stale.stderr, CLOSE * abs(trained)):
        return None
    remedy = "take the running statistics anew after training, with the final weights and over data like these"
    return Judgement("reservation", f"the centre has loss {_both(stale)}", remedy, math.nan)


def _corners(stale: Stale) -> Judgement | None:
    shares = _shares(stale)
    worst = max(shares, key=lambda place: shares[place] if math.isfinite(shares[place]) else -math.inf, default="")
    share = shares.get(worst, math.nan)
    if not share > MOST or stale.shown != "eval":
        return None
    losses = " against ".join(number(loss) for loss in stale.corners[worst])
    text = f"{percent(min(share, 1.0))} of the rise at {worst} is stale statistics ({losses})"
    return Judgement("reservation", text, RECALIBRATE, share)


def _both(stale: Stale) -> str:
    trained, renewed = (number(loss) for loss in stale.centre)
    return f"{trained} with the statistics of training, {renewed} with those of these samples"


def _shares(stale: Stale) -> dict[str, float]:
    """Of each corner the share of its rise that is stale; NaN where it does not rise."""
    return {place: _share(*losses, stale.centre[0]) for place, losses in stale.corners.items()}


def _share(trained: float, renewed: float, centre: float) -> float:
    rise = trained - centre
    return (trained - renewed) / rise if rise > 0 else math.nan


# -- 11: the path --------------------------------------------------------------------------------------------


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


def check_path(context: CheckContext) -> Judgement:
    """How far each path lies off the plane, and its losses beside the plane's."""
    evidence = context.evidence
    gram = evidence.gram
    if not evidence.surface.paths:
        raise NotJudged("no path is drawn")
    if gram is None:
        raise NotJudged("the norms of the axes or their cosines are not recorded")
    try:
        renewed = renewed_on_paths(context)
    except (NotJudged, JobError):  # check 10 says why
        renewed = {}
    found = {}
    for k, path in enumerate(evidence.surface.paths):
        of_path = {at: place.renewed for (of, at), place in renewed.items() if of == k}
        shape = _shape(evidence.surface, path, gram)
        found[path.label] = OnPlane(evidence.surface.along(path), *shape, len(evidence.surface.axes), of_path)
    return judge_paths(found)


def _shape(surface: Surface, path: ProjectedPath, gram: Floats) -> tuple[Floats, float, float]:
    """How far a path lies off the plane, and the shares of its variance that the axes explain, and would of a walk.

    Of one of several the variance that counts is its own, about its own mean.
    """
    away = _away(path, gram, [axis.name for axis in surface.axes])
    off = path.distance[away > 0] / away.max(initial=0.0)
    if path.label:
        return off, _total([path.runs[0].shown]), _total([path.runs[0].shown_of_walk])
    axes = [axis.record for axis in surface.axes]
    explained = _total([share.explained_variance for share in axes])
    return off, explained, _total([share.random_walk_variance for share in axes])


def _away(path: ProjectedPath, gram: Floats, names: list[str]) -> Floats:
    """‖θᵢ − θ₀‖ of the snapshots: the projection is orthogonal."""
    places = np.stack([path.coordinates[name] for name in names], axis=1)
    inside = np.einsum("sa,ab,sb->s", places, gram, places)
    return np.asarray(np.sqrt(np.maximum(inside, 0.0) + path.distance**2), np.float64)


def _total(shares: list[float | None]) -> float:
    return math.nan if None in shares else float(sum(share or 0.0 for share in shares))


def judge_paths(paths: Mapping[str, OnPlane]) -> Judgement:
    """11 of every path by the name of its run: the state is the worst one, and the text names all.

    Raises:
        NotJudged: no path has a snapshot off the origin.
    """
    judged = {run: judge_path(each, run) for run, each in paths.items() if len(each.off)}
    if not judged:
        raise NotJudged("the path has no snapshot off the origin")
    worst = max(judged.values(), key=lambda each: ORDER.index(each.state))
    if len(judged) == 1:
        return worst
    text = "; ".join(each.text for each in judged.values())
    remedies = dict.fromkeys(each.remedy for each in [worst, *judged.values()] if each.remedy)
    numbers = {f"{run}, {name}": value for run, each in judged.items() for name, value in each.numbers.items()}
    return replace(worst, text=text, remedy="; ".join(remedies), numbers=numbers)


def judge_path(path: OnPlane, run: str = "") -> Judgement:
    """11: the largest gap |L(θᵢ) − L(projection)|, and the largest distance off the plane.

    A gap counts beyond 3 standard errors of the rise: ≤ 10 % of the height of the path holds, beyond 50 % it does not.
    The largest one is judged, since a picture is read at its start and its end, and many snapshots close to the end
    make a median small. A distance off the plane of more than 30 % of the reach of the path is a reservation, whatever
    the gaps are: its shape is then not that of the picture. Over a snapshot's own way to the origin the last ones would
    be far off any plane.
    """
    if not len(path.off):
        raise NotJudged("the path has no snapshot off the origin")
    along, off, worst = path.along, float(path.off.max()), path.along.furthest
    gap = float(along.clear[worst]) / along.height
    state = _worse("reservation" if off > NEAR else "holds", _graded(gap, SMALL_GAP, LARGE_GAP))
    whose, far = f" of {run}" if run else "", f"up to {percent(off)} of its reach off the plane"
    text = f"the path{whose} lies {far}"
    known: dict[str, object] = {"off": off, "gap": gap, "explained": path.explained, "of walk": path.of_walk}
    own, plane = float(along.losses[worst]), float(along.plane[worst])
    if not (math.isnan(gap) or math.isnan(own) or math.isnan(plane)):
        known |= {"snapshot": along.names[worst], "loss": own, "plane": plane}
        text = f"path{whose}: {beside(along.names[worst], own, plane)}{_apart(along, gap)}; it lies {far}"
    drifts = path.explained <= path.of_walk + DRIFT  # never of NaN
    remedies = []
    if gap > SMALL_GAP and _is_stale(path, worst):
        remedies.append(f"most of it is stale statistics: {RECALIBRATE}")
    elif state != "holds" and not drifts:
        others = MORE_AXES.get(path.axes, "fewer snapshots fit")
        remedies.append(f"read the path's own losses, not the contour lines below it; {others} better")
    if drifts:
        text += f"; the axes explain {percent(path.explained)} of it, and {percent(path.of_walk)} of a random walk"
        state, who = _worse(state, "reservation"), f"the path{whose} looks " if run else ""
        remedies.append(f"{who}as pure drift would: its shape says nothing of the training")
    return Judgement(state, text, "; ".join(remedies), off, numbers=known)


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


def _is_stale(path: OnPlane, k: int) -> bool:
    """Whether most of a gap is gone where the statistics of batch norm are taken anew."""
    left = abs(float(path.along.losses[k]) - path.renewed.get(k, math.nan))
    return left <= float(path.along.gaps[k]) / 2  # never of NaN


def _graded(value: float, good: float, bad: float) -> CheckState:
    """What is not known does not count."""
    return "fails" if value > bad else "reservation" if value > good else "holds"


def _worse(*states: CheckState) -> CheckState:
    return max(states, key=ORDER.index)
