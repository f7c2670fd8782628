"""Batch norm in a job: its mode where the job names none, and a warning where `eval` shows networks that nobody has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import ValidationError
from torch import nn

from landscape.compute.prepared import PreparedLandscape, batch_norm_layers
from landscape.core.errors import JobError, LandscapeError, nearest, quoted
from landscape.core.plan import RECALIBRATE, STATISTICS
from landscape.core.validation import AUTO, explain
from landscape.job.directions.plane import TowardsDirection
from landscape.job.job import CollectLandscape, Job
from landscape.job.landscape import Landscape, with_likes
from landscape.job.recorded import spec_as_computed
from landscape.model.run_files import read_info
from landscape.store.format import NETWORK
from landscape.store.landscape import LandscapeStore
from landscape.store.runs import landscape_names

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


# ----------------------------------------------------------------------------------------------------
# Landscapes of a job that are like one that stands in its run on disk.


def with_likes_on_disk(job: Job) -> tuple[Landscape, ...]:
    """The landscapes of the job, each that is like one of its run with the geometry of that.

    Raises:
        JobError: one is like a landscape that neither the job nor its run has, or that no job computed.
    """
    wanted = {each.like for each in job.landscapes if each.like is not None} - {each.name for each in job.landscapes}
    if not wanted:
        return job.landscapes
    names = landscape_names(job.run_path)
    for name in sorted(wanted):
        if name not in names:
            known = [*(each.name for each in job.landscapes if each.like is None), *names]
            raise JobError(
                f"like: must name a landscape of the job or of its run, not {quoted(name)}; {nearest(name, known)}"
            )
    on_disk = {name: _on_disk(job.run_path, name) for name in wanted}
    return with_likes(job.landscapes, on_disk)


def _on_disk(run: str, name: str) -> Landscape:
    store = LandscapeStore.open(run, name)
    if store.record.is_imported or store.record.job is None or not store.record.job.landscapes:
        raise JobError(f"like: must name a landscape that a job computed, not {quoted(name)}; give directions instead")
    try:
        fields = spec_as_computed(store.record)
        if fields.get("range") == AUTO and store.record.found_range is not None:
            fields["range"] = [[-axis.radius, axis.radius] for axis in store.record.found_range.axes]
        sizes = list(reversed(store.shape))
        return Landscape.model_validate({**fields, "name": name, "size": sizes, "quantise": None})
    except (JobError, ValueError) as error:
        raise LandscapeError(
            f"landscape {quoted(name)}: its recorded job is not one of this version ({error}); give directions "
            "instead of like"
        ) from error


# ----------------------------------------------------------------------------------------------------
# Which landscapes a job asks for: those that it lists, else those that its collector's options stand for.


@dataclass(frozen=True)
class JobRequest:
    """What a job asks for.

    Attributes:
        num_samples: how many samples to take.
        at_most: whether fewer will do where the data has fewer, since the job does not say how many.
        implied: whether the landscapes are those that the collector's options stand for, and none is in the job.
    """

    landscapes: tuple[Landscape, ...]
    num_samples: int
    at_most: bool
    implied: bool


def asked_of(job: Job) -> JobRequest:
    """The landscapes to compute and the number of samples: the job's, else the collector's.

    Raises:
        JobError: there is nothing to compute.
    """
    options = job.collect_landscape or _collected(job.run_path)
    given = "num_samples" in job.model_fields_set
    num_samples = job.num_samples if given or options is None else options.num_samples
    if job.landscapes:
        return JobRequest(_quantised(job, with_likes_on_disk(job)), num_samples, not given, implied=False)
    if options is None:
        return JobRequest(_quantised(job, (Landscape(name="result"),)), num_samples, not given, implied=True)
    landscapes = options.landscapes()
    if not landscapes:
        raise JobError(
            "create_landscape: both train and result are false: nothing to compute; set one of them or list landscapes"
        )
    return JobRequest(_quantised(job, landscapes), num_samples, not given, implied=True)


def _quantised(job: Job, landscapes: Sequence[Landscape]) -> tuple[Landscape, ...]:
    """The landscapes, those that do not say whether they are quantised as the job says."""
    return tuple(
        each.model_copy(update={"quantise": job.quantise}) if job.quantise and each.leaves_quantise_open else each
        for each in landscapes
    )


def collected_landscapes(run: str) -> tuple[Landscape, ...]:
    """What a run stands for by the options of its collector; empty where it has none."""
    options = _collected(run)
    return () if options is None else options.landscapes()


def _collected(run: str) -> CollectLandscape | None:
    options = read_info(run).get("collect_landscape")
    try:
        return CollectLandscape.model_validate(options) if options else None
    except ValidationError as error:
        raise LandscapeError(
            f"run {quoted(run, 300)}: its run.json is damaged: {explain(error, CollectLandscape).splitlines()[0]}; "
            "restore it, or list landscapes in the job"
        ) from None
