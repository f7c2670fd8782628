"""Batch norm in a job: its mode where the job names none, and a warning where `eval` shows networks that nobody has."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from landscape.compute.prepared import PreparedLandscape
from landscape.compute.provenance import batch_norm_layers
from landscape.core.plan import RECALIBRATE, STATISTICS
from landscape.job.directions.plane import TowardsDirection
from landscape.job.job import Job
from landscape.job.landscape import Landscape
from landscape.store.format import NETWORK

ANEW = f"{RECALIBRATE}, in twice the time"
WHY = "between networks the running statistics of training are those of none"


def with_batch_norm(job: Job, model: nn.Module, landscapes: Sequence[Landscape]) -> tuple[Job, list[str]]:
    """The job with `recalibrate` where all its landscapes are planes through networks, as in Garipov et al. 2018.

    One job has one mode. Where it also has landscapes of other kinds it stays as it is, and a warning says so.

    Returns:
        The job, and lines that tell what was chosen; none where the job names a mode or the model has no batch norm.
    """
    planes = [landscape.name for landscape in landscapes if landscape.plane is not None]
    if not planes or "batch_norm" in job.model_fields_set or not batch_norm_layers(model):
        return job, []
    if len(planes) == len(landscapes):
        return job.replace(batch_norm="recalibrate"), [
            f"batch_norm: recalibrate, as the job names none and {WHY}; write batch_norm: eval for those, mixed"
        ]
    return job, [
        f"batch_norm: eval holds for {', '.join(planes)} too, where {WHY}; write batch_norm: recalibrate, or give the "
        "planes a job of their own"
    ]


def statistics_warnings(
    job: Job, model: nn.Module, specs: Sequence[Landscape], landscapes: Sequence[PreparedLandscape]
) -> list[str]:
    """A warning for paths, and for lines and planes through networks, where batch norm has statistics of other weights.

    Only the origin has the running statistics that it was trained with: below a snapshot, and between two networks,
    the loss may be several times as high by them alone.
    """
    if not STATISTICS[job.batch_norm].fixed or not batch_norm_layers(model):
        return []
    planes = [spec.name for spec in specs if spec.plane is not None]
    paths = [
        each.name for each in landscapes
        if each.path is not None and _has_snapshots(each) and each.name not in planes
    ]  # fmt: skip
    lines = [spec.name for spec in specs if any(isinstance(each, TowardsDirection) for each in spec.directions)]
    found = []
    if paths:
        found.append(
            f"batch_norm: eval keeps the origin's statistics at every point of {', '.join(paths)}, also below "
            f"snapshots, which have their own: the picture may show training going uphill; {ANEW}"
        )
    if lines:
        found.append(
            f"batch_norm: eval mixes the statistics of both ends along the line of {', '.join(lines)}, and {WHY}: the "
            f"barrier may be theirs; {ANEW}"
        )
    if planes:
        found.append(
            f"batch_norm: eval mixes the statistics of the networks at every point of {', '.join(planes)}, and {WHY}: "
            f"what rises between them may be theirs; {ANEW}"
        )
    return found


def _has_snapshots(landscape: PreparedLandscape) -> bool:
    assert landscape.path is not None
    units = [run.unit for run in landscape.path.runs] or [landscape.path.unit]
    return any(unit != NETWORK for unit in units)
