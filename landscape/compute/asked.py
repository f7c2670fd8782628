"""Which landscapes a job asks for: those that it lists, else those that its collector's options stand for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from landscape.compute.alike import with_likes_on_disk
from landscape.core.errors import JobError, LandscapeError, shown
from landscape.core.validation import explain
from landscape.job.job import CollectLandscape, Job
from landscape.job.landscape import Landscape
from landscape.model.run_files import read_info


@dataclass(frozen=True)
class Asked:
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


def asked_of(job: Job) -> Asked:
    """The landscapes to compute and the number of samples: the job's, else the collector's.

    Raises:
        JobError: there is nothing to compute.
    """
    options = job.collect_landscape or _collected(job.run_path)
    given = "num_samples" in job.model_fields_set
    num_samples = job.num_samples if given or options is None else options.num_samples
    if job.landscapes:
        return Asked(_quantised(job, with_likes_on_disk(job)), num_samples, not given, implied=False)
    if options is None:
        return Asked(_quantised(job, (Landscape(name="result"),)), num_samples, not given, implied=True)
    landscapes = options.landscapes()
    if not landscapes:
        raise JobError(
            "create_landscape: both train and result are false: nothing to compute; set one of them or list landscapes"
        )
    return Asked(_quantised(job, landscapes), num_samples, not given, implied=True)


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
            f"run {shown(run, 300)}: its run.json is damaged: {explain(error, CollectLandscape).splitlines()[0]}; "
            "restore it, or list landscapes in the job"
        ) from None
