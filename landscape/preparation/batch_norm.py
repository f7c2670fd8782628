"""The batch-norm mode of a job that names none: recalibrate where its planes run through three networks."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from landscape.preparation.provenance import batch_norm_layers
from landscape.spec.job import Job
from landscape.spec.landscape import Landscape

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
