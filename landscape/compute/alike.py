"""Landscapes of a job that are like one that stands in its run on disk."""

from __future__ import annotations

from landscape.core.errors import JobError, LandscapeError, nearest, shown
from landscape.core.validation import AUTO
from landscape.job.job import Job
from landscape.job.landscape import Landscape, with_likes
from landscape.job.recorded import spec_as_computed
from landscape.store.landscape import LandscapeStore
from landscape.store.runs import landscape_names


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
                f"like: must name a landscape of the job or of its run, not {shown(name)}; {nearest(name, known)}"
            )
    on_disk = {name: _on_disk(job.run_path, name) for name in wanted}
    return with_likes(job.landscapes, on_disk)


def _on_disk(run: str, name: str) -> Landscape:
    store = LandscapeStore.open(run, name)
    if store.record.is_imported or store.record.job is None or not store.record.job.landscapes:
        raise JobError(f"like: must name a landscape that a job computed, not {shown(name)}; give directions instead")
    try:
        fields = spec_as_computed(store.record)
        if fields.get("range") == AUTO and store.record.found_range is not None:
            fields["range"] = [[-axis.radius, axis.radius] for axis in store.record.found_range.axes]
        sizes = list(reversed(store.shape))
        return Landscape.model_validate({**fields, "name": name, "size": sizes, "quantise": None})
    except (JobError, ValueError) as error:
        raise LandscapeError(
            f"landscape {shown(name)}: its recorded job is not one of this version ({error}); give directions "
            "instead of like"
        ) from error
