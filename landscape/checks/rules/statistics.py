"""Check 10: how much of the rise is that of batch norm's statistics, which belong to the weights of the centre."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from landscape.checks.rules.words import NotJudged, check, number, percent
from landscape.record import Check

MOST = 0.5  # of the rise at a corner
STANDARD_ERRORS = 3.0


@dataclass(frozen=True)
class Stale:
    """Losses with the statistics of training, and with statistics taken anew at the point.

    Attributes:
        centre: both at the origin, the one of training first.
        corners: the same by place.
        stderr: the standard error of the loss at the origin; NaN where it is not known.
        shown: which statistics the landscape uses, as `batch_norm` of a job.
    """

    centre: tuple[float, float]
    corners: Mapping[str, tuple[float, float]]
    stderr: float
    shown: str


def stale(found: Stale) -> Check:
    """10: share = (L_eval − L_recal) / (L_eval − L₀) at a corner beyond 50 %; the centre beyond 3 standard errors."""
    trained, renewed = found.centre
    shares = {place: _share(*losses, trained) for place, losses in found.corners.items()}
    worst = max(shares, key=lambda place: shares[place] if math.isfinite(shares[place]) else -math.inf, default="")
    share = shares.get(worst, math.nan)
    known = {"centre": trained, "centre renewed": renewed, "share": share}
    both = f"{number(trained)} with the statistics of training, {number(renewed)} with those of these samples"
    if not (math.isnan(found.stderr) or abs(trained - renewed) <= STANDARD_ERRORS * found.stderr):
        text = f"batch norm: the centre has loss {both}"
        remedy = (
            "are the running statistics those of these weights and of data like these? take them anew after training"
        )
        return check("10", "batch norm", "reservation", text, remedy, share, numbers=known)
    if share > MOST and found.shown == "eval":
        losses = " against ".join(number(loss) for loss in found.corners[worst])
        text = f"batch norm: {percent(min(share, 1.0))} of the rise at {worst} is stale statistics ({losses})"
        remedy = "batch_norm: recalibrate takes them anew at every point"
        return check("10", "batch norm", "reservation", text, remedy, share, numbers=known)
    if math.isnan(found.stderr):
        raise NotJudged("the standard error of the loss at the centre is not known")
    text = f"batch norm: at the centre {both}"
    if math.isfinite(share) and found.shown == "eval":
        text = f"{text}; at most {percent(max(share, 0.0))} of the rise at a corner is stale statistics"
    return check("10", "batch norm", "holds", text, value=share, numbers=known)


def _share(trained: float, renewed: float, centre: float) -> float:
    """NaN where the corner does not rise."""
    rise = trained - centre
    return (trained - renewed) / rise if rise > 0 else math.nan
