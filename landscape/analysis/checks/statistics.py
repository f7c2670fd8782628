"""Check 10: what batch norm's statistics, which belong to the weights of the centre, make of losses elsewhere."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from landscape.analysis.checks.geometry import ORDER, SMALL_GAP, beside
from landscape.analysis.checks.values import CLOSE, NotJudged, check, number, percent
from landscape.core.plan import RECALIBRATE
from landscape.surface.record import SEEN
from landscape.surface.record_entries import Check, CheckState

MOST = 0.5  # of the rise at a corner, or of a rise between networks
STANDARD_ERRORS = 3.0


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


@dataclass(frozen=True)
class _Finding:
    state: CheckState
    text: str
    remedy: str
    value: float


def stale(found: Stale) -> Check:
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
    findings = [each for each in (_path(found), _between(found), _centre(found), _corners(found)) if each is not None]
    trained, renewed = found.centre
    shares = _shares(found)
    share = max((each for each in shares.values() if math.isfinite(each)), default=math.nan)
    known: dict[str, object] = {
        "centre": trained, "centre renewed": renewed, "centre stderr": found.stderr, "share": share,
    }  # fmt: skip
    if found.path:
        known["path"] = {
            each.name: {"loss": each.own, "plane": each.plane, "renewed": each.renewed} for each in found.path
        }
    if found.between:
        known["between"] = {each.name: {"plane": each.plane, "renewed": each.renewed} for each in found.between}
    on_path = _worst_on_path(found)
    if on_path is not None:
        known["snapshot"] = on_path.name
    if findings:
        first = max(findings, key=lambda each: ORDER.index(each.state))
        text = "batch norm: " + "; ".join(each.text for each in findings)
        remedy = "; ".join(dict.fromkeys(each.remedy for each in findings))
        return check("10", "batch norm", first.state, text, remedy, first.value, numbers=known)
    if math.isnan(found.stderr):
        raise NotJudged("the standard error of the difference at the centre is not known")
    text = f"batch norm: at the centre {_both(found)}"
    if math.isfinite(share) and found.shown == "eval":
        text = f"{text}; at most {percent(max(share, 0.0))} of the rise at a corner is stale statistics"
    if found.path:
        stale_part = max(each.share for each in found.path)
        text = f"{text}; along the path at most {percent(stale_part)} of its range of losses"
    return check("10", "batch norm", "holds", text, value=share, numbers=known)


def _worst_on_path(found: Stale) -> OnPath | None:
    """The snapshot with the largest stale part, where that can be seen."""
    worst = max(found.path, key=lambda each: each.share, default=None)
    return None if worst is None or worst.share <= SEEN else worst


def _path(found: Stale) -> _Finding | None:
    worst = _worst_on_path(found)
    if worst is None:
        return None
    text = (
        f"{beside(worst.name, worst.own, worst.plane)} with the statistics it is drawn with, and "
        f"{number(worst.renewed)} with statistics taken anew"
    )
    return _Finding("fails", text, RECALIBRATE, worst.share)


def _between(found: Stale) -> _Finding | None:
    worst = max(found.between, key=lambda each: each.share, default=None)
    if worst is None or worst.share <= SMALL_GAP:
        return None
    mixed, anew = "with statistics that are mixed from theirs", "with statistics taken anew"
    height = f"{number(worst.plane)} above" if math.isfinite(worst.plane) else "not finite, and so above"
    renewed = number(worst.renewed) if worst.renewed > 0 else "not above it"
    text = f"{worst.place} the loss is {height} the straight line between their losses {mixed}, and {renewed} {anew}"
    return _Finding("fails" if worst.share > MOST else "reservation", text, RECALIBRATE, worst.share)


def _centre(found: Stale) -> _Finding | None:
    trained, renewed = found.centre
    difference = abs(trained - renewed)
    if math.isnan(found.stderr) or difference <= max(STANDARD_ERRORS * found.stderr, CLOSE * abs(trained)):
        return None
    remedy = "take the running statistics anew after training, with the final weights and over data like these"
    return _Finding("reservation", f"the centre has loss {_both(found)}", remedy, math.nan)


def _corners(found: Stale) -> _Finding | None:
    shares = _shares(found)
    worst = max(shares, key=lambda place: shares[place] if math.isfinite(shares[place]) else -math.inf, default="")
    share = shares.get(worst, math.nan)
    if not share > MOST or found.shown != "eval":
        return None
    losses = " against ".join(number(loss) for loss in found.corners[worst])
    text = f"{percent(min(share, 1.0))} of the rise at {worst} is stale statistics ({losses})"
    return _Finding("reservation", text, RECALIBRATE, share)


def _both(found: Stale) -> str:
    trained, renewed = (number(loss) for loss in found.centre)
    return f"{trained} with the statistics of training, {renewed} with those of these samples"


def _shares(found: Stale) -> dict[str, float]:
    """Of each corner the share of its rise that is stale; NaN where it does not rise."""
    return {place: _share(*losses, found.centre[0]) for place, losses in found.corners.items()}


def _share(trained: float, renewed: float, centre: float) -> float:
    rise = trained - centre
    return (trained - renewed) / rise if rise > 0 else math.nan
