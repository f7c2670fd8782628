"""Checks 10 and 11: the batch norm statistics away from the centre, and how well a plane shows its paths."""

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

FURTHEST = 6  # snapshots at whose projections statistics are taken anew, besides the ends of a path
MOST = 0.5  # share of the rise at a corner, or between networks
NEAR = 0.3  # share of the reach of a path: its largest distance off the plane
# Shares of the height of the path. A tenth is the distance of two contour lines of ten; with a gap of half the height
# the middle of the training may be drawn higher than its start, or lower than its end.
SMALL_GAP, LARGE_GAP = 0.1, 0.5
DRIFT = 0.05  # share of the variance: the chance variation of that which the axes explain of a random walk
MORE_AXES = {1: "a second axis or fewer snapshots fit", 2: "a third axis or fewer snapshots fit"}


# -- 10: batch norm statistics -------------------------------------------------------------------------------


@dataclass(frozen=True)
class OnPath:
    """A snapshot of a path whose projection was evaluated with both kinds of statistics.

    Attributes:
        name: such as 'epoch 3', or 'epoch 3 of sgd'.
        own: the loss of the snapshot, with its own statistics.
        plane: the loss at its projection with the statistics of the centre; infinite if not finite.
        renewed: the same with statistics taken anew there.
        stderr: the standard error of plane − renewed over the same samples; NaN if unknown.
        height: the scale of differences along its path, see `Along.height`.
    """

    name: str
    own: float
    plane: float
    renewed: float
    stderr: float
    height: float

    @property
    def stale(self) -> float:
        """|own − plane| − |own − renewed|: the gap that statistics taken anew close; 0 within the noise."""
        closed = abs(self.own - self.plane) - abs(self.own - self.renewed)
        # The comparison with an unknown standard error is false: such a gap counts.
        return 0.0 if math.isnan(closed) or closed <= STANDARD_ERRORS * self.stderr else closed

    @property
    def share(self) -> float:
        """`stale` as a share of the height of the path; 0 if the height is unknown."""
        return self.stale / self.height if self.height > 0 else 0.0


@dataclass(frozen=True)
class Between:
    """A point on the straight line between two networks, where the running statistics are a mixture of theirs.

    Attributes:
        name: both networks, such as 'the origin and epoch 3'.
        place: the point in words, such as 'at alpha 0.3, between the origin and epoch 3,'.
        plane: the rise there: the loss less the linear interpolation of the losses of both networks.
        renewed: the same with statistics taken anew at the point and at both networks.
        stderr: the standard error of the difference of both losses at the point; NaN if unknown.
        relief: the relief of the landscape.
    """

    name: str
    place: str
    plane: float
    renewed: float
    stderr: float
    relief: float

    @property
    def share(self) -> float:
        """The share of the rise that is due to stale statistics; 0 within the noise, or if the rise is not visible."""
        stale = self.plane - self.renewed
        if math.isnan(stale) or stale <= STANDARD_ERRORS * self.stderr or self.plane <= SEEN * self.relief:
            return 0.0
        return 1.0 if math.isinf(stale) else stale / self.plane


@once
def uses_centres_statistics(context: CheckContext) -> bool:
    """Whether all points use the running statistics of the origin, unless an axis moves these.

    Raises:
        NotJudged: the network cannot be evaluated.
    """
    return bool(context.evidence.record.provenance.batch_norm_layers) and context.evaluations.own.plan.statistics.fixed


@once
def renewed_corners(context: CheckContext) -> list[float]:
    """The losses at the corners with the other batch norm statistics."""
    points = [context.evidence.point(index) for index in context.corners]
    if not points:
        return []
    return [float(loss) for loss in context.evaluations.losses(context.evaluations.other_statistics, points)]


@once
def renewed_on_paths(context: CheckContext) -> dict[tuple[int, int], OnPath]:
    """Some snapshots with both kinds of batch norm statistics, by path and number in the path.

    They are the snapshots of all paths with the largest gaps to the plane, and both ends of the path with the largest
    gap. There are none if the landscape takes statistics anew at each point.
    """
    surface = context.evidence.surface
    paths = {k: surface.along(path) for k, path in enumerate(surface.paths)}
    ranked = sorted(
        (
            (gap, -k, -at)
            for k, path in paths.items()
            for at, gap in enumerate(path.gaps.tolist())
            if math.isfinite(path.losses[at])
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
    pairs = context.evaluations.losses_by_statistics(points)
    snapshots = {}
    for row, (k, at) in enumerate(chosen):
        along, run = paths[k], surface.paths[k].label
        snapshots[k, at] = OnPath(
            f"{along.names[at]} of {run}" if run else along.names[at], float(along.losses[at]), float(along.plane[at]),
            float(pairs.second[row]), float(pairs.stderr[row]), along.height,
        )  # fmt: skip
    return snapshots


@dataclass(frozen=True)
class LossesByStatistics:
    """Losses with the batch norm statistics of training, and with statistics taken anew at the point.

    Attributes:
        centre: both losses at the origin, that with the statistics of training first.
        corners: both losses at each corner, by its coordinates in words.
        stderr: the standard error of the difference at the origin over the same samples; NaN if unknown.
        shown: which statistics the landscape uses, as `batch_norm` in a job.
        path: some snapshots of the paths; none if the landscape takes statistics anew.
        between: points between networks; none if the landscape takes statistics anew.
    """

    centre: tuple[float, float]
    corners: Mapping[str, tuple[float, float]]
    stderr: float
    shown: str
    path: Sequence[OnPath] = ()
    between: Sequence[Between] = ()


def check_batch_norm(context: CheckContext) -> Judgement:
    """Compare losses with the statistics of training with those with statistics taken anew."""
    extra, evidence = context.evaluations, context.evidence
    if not evidence.record.provenance.batch_norm_layers:
        raise NotJudged("the model has no batch norm layers")
    path = list(renewed_on_paths(context).values())
    at_origin = extra.losses_by_statistics([[0.0] * len(evidence.surface.axes)])
    between, other = _measure_between(context), np.array([float(at_origin.second[0]), *renewed_corners(context)])
    shown = np.array([context.origin_loss, *(evidence.values[index] for index in context.corners)])
    trained, renewed = (shown, other) if extra.own.plan.batch_norm == "eval" else (other, shown)
    pairs = list(zip(trained.tolist(), renewed.tolist(), strict=True))
    places = [evidence.place(index) for index in context.corners]
    corners = dict(zip(places, pairs[1:], strict=True))
    error = float(at_origin.stderr[0])
    return judge_statistics(LossesByStatistics(pairs[0], corners, error, extra.own.plan.batch_norm, path, between))


def _measure_between(context: CheckContext) -> list[Between]:
    """The rise of the loss between the networks on the axes: of a line at its highest point, of a plane half-way.

    There the running statistics are a mixture of those of both ends, and belong to no network.
    """
    surface = context.evidence.surface
    ways = ways_between(surface) if uses_centres_statistics(context) else []
    if not ways:
        return []
    ends = context.evaluations.losses_by_statistics([point.tolist() for way in ways for point in (way.start, way.end)])
    pairs = [(float(ends.first[2 * k]), float(ends.first[2 * k + 1])) for k in range(len(ways))]
    highest = [highest_share(surface, way, losses) for way, losses in zip(ways, pairs, strict=True)]
    shares = [0.5 if share is None else share for share in highest]
    points = [way.at(share) for way, share in zip(ways, shares, strict=True)]
    there = context.evaluations.losses_by_statistics([point.tolist() for point in points])
    between = []
    for k, (way, share) in enumerate(zip(ways, shares, strict=True)):
        above = [
            float(losses[k] - (1 - share) * end_losses[2 * k] - share * end_losses[2 * k + 1])
            for losses, end_losses in ((there.first, ends.first), (there.second, ends.second))
        ]
        place = (
            f"at alpha {points[k][0]:.3g}, between {way.name},"
            if len(surface.axes) == 1
            else f"half-way between {way.name}"
        )
        between.append(Between(way.name, place, above[0], above[1], float(there.stderr[k]), context.evidence.relief))
    return between


def judge_statistics(losses: LossesByStatistics) -> Judgement:
    """10: stale statistics along a path, between networks, at the centre, and at the corners.

    - Along a path: the stale part is the gap between a snapshot's own loss and the plane that statistics taken anew
      close, if it is more than 3 standard errors of the paired difference. Above 1 % of the range of the path's losses
      it is visible, and the check fails. Check 11 judges the gap that statistics taken anew leave.
    - Between networks: the stale part of the rise over the straight line between their losses, at the highest known
      point of a line. Above half of the rise the check fails, above 10 % it is a reservation.
    - At the centre: a reservation if both losses differ by more than 3 standard errors of their paired difference, and
      by more than 2 %. Over many samples any difference has many standard errors.
    - At a corner: a reservation if (L_eval − L_recal) / (L_eval − L₀) is above 50 %.

    Raises:
        NotJudged: nothing is stale, but the standard error at the centre is unknown.
    """
    judgements = (_judge_path(losses), _judge_between(losses), _judge_centre(losses), _judge_corners(losses))
    findings = [judgement for judgement in judgements if judgement is not None]
    trained, renewed = losses.centre
    shares = _corner_shares(losses)
    share = max((share for share in shares.values() if math.isfinite(share)), default=math.nan)
    numbers: dict[str, object] = {
        "centre": trained, "centre renewed": renewed, "centre stderr": losses.stderr, "share": share,
    }  # fmt: skip
    if losses.path:
        numbers["path"] = {
            snapshot.name: {"loss": snapshot.own, "plane": snapshot.plane, "renewed": snapshot.renewed}
            for snapshot in losses.path
        }
    if losses.between:
        numbers["between"] = {point.name: {"plane": point.plane, "renewed": point.renewed} for point in losses.between}
    on_path = _worst_on_path(losses)
    if on_path is not None:
        numbers["snapshot"] = on_path.name
    if findings:
        worst = max(findings, key=lambda finding: ORDER.index(finding.state))
        text = "batch norm: " + "; ".join(finding.text for finding in findings)
        remedy = "; ".join(dict.fromkeys(finding.remedy for finding in findings))
        return Judgement(worst.state, text, remedy, worst.value, numbers=numbers)
    if math.isnan(losses.stderr):
        raise NotJudged("the standard error of the difference at the centre is not known")
    text = f"batch norm: at the centre {_centre_text(losses)}"
    if math.isfinite(share) and losses.shown == "eval":
        text = f"{text}; at most {percent(max(share, 0.0))} of the rise at a corner is stale statistics"
    if losses.path:
        stale_part = max(snapshot.share for snapshot in losses.path)
        text = f"{text}; along the path at most {percent(stale_part)} of its range of losses"
    return Judgement("holds", text, value=share, numbers=numbers)


def _worst_on_path(losses: LossesByStatistics) -> OnPath | None:
    """The snapshot with the largest stale part; None if none is visible."""
    worst = max(losses.path, key=lambda snapshot: snapshot.share, default=None)
    return None if worst is None or worst.share <= SEEN else worst


def _judge_path(losses: LossesByStatistics) -> Judgement | None:
    worst = _worst_on_path(losses)
    if worst is None:
        return None
    text = (
        f"{_losses_text(worst.name, worst.own, worst.plane)} with the statistics it is drawn with, and "
        f"{number(worst.renewed)} with statistics taken anew"
    )
    return Judgement("fails", text, RECALIBRATE, worst.share)


def _judge_between(losses: LossesByStatistics) -> Judgement | None:
    worst = max(losses.between, key=lambda point: point.share, default=None)
    if worst is None or worst.share <= SMALL_GAP:
        return None
    mixed, anew = "with statistics that are mixed from theirs", "with statistics taken anew"
    height = f"{number(worst.plane)} above" if math.isfinite(worst.plane) else "not finite, and so above"
    renewed = number(worst.renewed) if worst.renewed > 0 else "not above it"
    text = f"{worst.place} the loss is {height} the straight line between their losses {mixed}, and {renewed} {anew}"
    return Judgement("fails" if worst.share > MOST else "reservation", text, RECALIBRATE, worst.share)


def _judge_centre(losses: LossesByStatistics) -> Judgement | None:
    trained, renewed = losses.centre
    difference = abs(trained - renewed)
    if math.isnan(losses.stderr) or difference <= max(STANDARD_ERRORS * losses.stderr, CLOSE * abs(trained)):
        return None
    remedy = "take the running statistics anew after training, with the final weights and over data like these"
    return Judgement("reservation", f"the centre has loss {_centre_text(losses)}", remedy, math.nan)


def _judge_corners(losses: LossesByStatistics) -> Judgement | None:
    shares = _corner_shares(losses)
    worst = max(shares, key=lambda place: shares[place] if math.isfinite(shares[place]) else -math.inf, default="")
    share = shares.get(worst, math.nan)
    if not share > MOST or losses.shown != "eval":
        return None
    pair = " against ".join(number(loss) for loss in losses.corners[worst])
    text = f"{percent(min(share, 1.0))} of the rise at {worst} is stale statistics ({pair})"
    return Judgement("reservation", text, RECALIBRATE, share)


def _centre_text(losses: LossesByStatistics) -> str:
    trained, renewed = (number(loss) for loss in losses.centre)
    return f"{trained} with the statistics of training, {renewed} with those of these samples"


def _corner_shares(losses: LossesByStatistics) -> dict[str, float]:
    """The stale share of the rise at each corner; NaN if the loss does not rise there."""
    return {place: _stale_share(*pair, losses.centre[0]) for place, pair in losses.corners.items()}


def _stale_share(trained: float, renewed: float, centre: float) -> float:
    rise = trained - centre
    return (trained - renewed) / rise if rise > 0 else math.nan


# -- 11: the path --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OnPlane:
    """A path and its projection on the axes.

    Attributes:
        along: the losses along the path and at its projections.
        off: ‖θᵢ − projection‖ / maxⱼ ‖θⱼ − θ₀‖ of every snapshot off the origin; the denominator is the path's reach.
        explained, of_walk: the share of the path's variance that the axes explain, and the share of a random walk's
            variance that they would explain; NaN if the axes are no principal components.
        axes: the number of axes.
        renewed: L(projection) with batch norm statistics taken anew there, by the snapshot's number in the path, where
            it was evaluated.
    """

    along: Along
    off: Floats
    explained: float
    of_walk: float
    axes: int = 2
    renewed: Mapping[int, float] = field(default_factory=dict)


def check_path(context: CheckContext) -> Judgement:
    """Judge how far each path lies off the plane, and compare its losses with the plane's."""
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
    paths = {}
    for k, path in enumerate(evidence.surface.paths):
        losses = {at: snapshot.renewed for (path_number, at), snapshot in renewed.items() if path_number == k}
        shape = _shape(evidence.surface, path, gram)
        paths[path.label] = OnPlane(evidence.surface.along(path), *shape, len(evidence.surface.axes), losses)
    return judge_paths(paths)


def _shape(surface: Surface, path: ProjectedPath, gram: Floats) -> tuple[Floats, float, float]:
    """`off`, `explained` and `of_walk` of a path, see `OnPlane`.

    If there are several paths, the variance of each is about its own mean.
    """
    away = _distances(path, gram, [axis.name for axis in surface.axes])
    off = path.distance[away > 0] / away.max(initial=0.0)
    if path.label:
        return off, _total([path.runs[0].shown]), _total([path.runs[0].shown_of_walk])
    axes = [axis.record for axis in surface.axes]
    explained = _total([share.explained_variance for share in axes])
    return off, explained, _total([share.random_walk_variance for share in axes])


def _distances(path: ProjectedPath, gram: Floats, names: list[str]) -> Floats:
    """‖θᵢ − θ₀‖ of the snapshots, by Pythagoras, since the projection is orthogonal."""
    places = np.stack([path.coordinates[name] for name in names], axis=1)
    inside = np.einsum("sa,ab,sb->s", places, gram, places)
    return np.asarray(np.sqrt(np.maximum(inside, 0.0) + path.distance**2), np.float64)


def _total(shares: list[float | None]) -> float:
    return math.nan if None in shares else float(sum(share or 0.0 for share in shares))


def judge_paths(paths: Mapping[str, OnPlane]) -> Judgement:
    """11 of all paths: the worst state, and the texts of all.

    Args:
        paths: by the name of the run.

    Raises:
        NotJudged: no path has a snapshot off the origin.
    """
    by_run = {run: judge_path(path, run) for run, path in paths.items() if len(path.off)}
    if not by_run:
        raise NotJudged("the path has no snapshot off the origin")
    judgements = list(by_run.values())
    worst = max(judgements, key=lambda judgement: ORDER.index(judgement.state))
    if len(judgements) == 1:
        return worst
    text = "; ".join(judgement.text for judgement in judgements)
    remedies = dict.fromkeys(judgement.remedy for judgement in [worst, *judgements] if judgement.remedy)
    numbers = {f"{run}, {name}": value for run, of_run in by_run.items() for name, value in of_run.numbers.items()}
    return replace(worst, text=text, remedy="; ".join(remedies), numbers=numbers)


def judge_path(path: OnPlane, run: str = "") -> Judgement:
    """11: the largest gap |L(θᵢ) − L(projection)|, and the largest distance off the plane.

    A gap counts if it is more than 3 standard errors of the rise. Up to 10 % of the height of the path it holds, above
    50 % it fails. The largest gap is judged, since a picture is read at the start and the end of its path, and a median
    would be small by the many snapshots close to the end. A distance off the plane of more than 30 % of the path's
    reach is a reservation whatever the gaps are, since the drawn shape is then not that of the path. The distance is
    divided by the reach, since over their own distance from the origin the last snapshots would be far off any plane.

    Raises:
        NotJudged: the path has no snapshot off the origin.
    """
    if not len(path.off):
        raise NotJudged("the path has no snapshot off the origin")
    along, off, worst = path.along, float(path.off.max()), path.along.furthest
    gap = float(along.clear[worst]) / along.height
    state = _worst("reservation" if off > NEAR else "holds", _grade(gap, SMALL_GAP, LARGE_GAP))
    whose, far = f" of {run}" if run else "", f"up to {percent(off)} of its reach off the plane"
    text = f"the path{whose} lies {far}"
    numbers: dict[str, object] = {"off": off, "gap": gap, "explained": path.explained, "of walk": path.of_walk}
    own, plane = float(along.losses[worst]), float(along.plane[worst])
    if not (math.isnan(gap) or math.isnan(own) or math.isnan(plane)):
        numbers |= {"snapshot": along.names[worst], "loss": own, "plane": plane}
        text = f"path{whose}: {_losses_text(along.names[worst], own, plane)}{_gap_text(along, gap)}; it lies {far}"
    drifts = path.explained <= path.of_walk + DRIFT  # false if NaN
    remedies = []
    if gap > SMALL_GAP and _is_stale(path, worst):
        remedies.append(f"most of it is stale statistics: {RECALIBRATE}")
    elif state != "holds" and not drifts:
        others = MORE_AXES.get(path.axes, "fewer snapshots fit")
        remedies.append(f"read the path's own losses, not the contour lines below it; {others} better")
    if drifts:
        text += f"; the axes explain {percent(path.explained)} of it, and {percent(path.of_walk)} of a random walk"
        state, who = _worst(state, "reservation"), f"the path{whose} looks " if run else ""
        remedies.append(f"{who}as pure drift would: its shape says nothing of the training")
    return Judgement(state, text, "; ".join(remedies), off, numbers=numbers)


def _losses_text(name: str, own: float, plane: float) -> str:
    """A snapshot's own loss and the plane's, such as 'at epoch 0 the loss is 4.39, the plane has 3.19 there'."""
    there = f"the plane has {number(plane)} there" if math.isfinite(plane) else "the plane's is not finite there"
    return f"at {name} the loss is {number(own) if math.isfinite(own) else 'not finite'}, {there}"


def _gap_text(along: Along, gap: float) -> str:
    """The largest gap as a share of the height, in words; '' if not finite."""
    if not gap:
        return ", no more apart than by the noise of sampling"
    if not math.isfinite(gap):
        return ""
    height = "the range of the path's losses" if along.span else "the relief"
    return f", apart by {percent(gap)} of {height}" if gap < 2 else f", apart by {number(gap, 2)} times {height}"


def _is_stale(path: OnPlane, k: int) -> bool:
    """Whether statistics taken anew close at least half of the gap of snapshot k."""
    left = abs(float(path.along.losses[k]) - path.renewed.get(k, math.nan))
    return left <= float(path.along.gaps[k]) / 2  # false if NaN


def _grade(value: float, good: float, bad: float) -> CheckState:
    """The state of a value by two bounds; NaN holds."""
    return "fails" if value > bad else "reservation" if value > good else "holds"


def _worst(*states: CheckState) -> CheckState:
    return max(states, key=ORDER.index)
