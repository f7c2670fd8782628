"""Jobs and landscapes from runs on disk: of a recorded landscape, like one, or by the collector's options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from landscape.compute.callback_place import Callback, find_callback, with_packed_names
from landscape.core.errors import JobError, LandscapeError, nearest, quoted
from landscape.core.validation import AUTO, explain
from landscape.job.job import CollectLandscape, Job
from landscape.job.landscape import Landscape, with_likes
from landscape.job.reading import spec_as_computed
from landscape.model.run_files import read_info
from landscape.store.landscape import LandscapeStore
from landscape.store.runs import landscape_names

# ----------------------------------------------------------------------------------------------------
# Landscapes of a job that are `like` one in its run on disk.


def with_likes_on_disk(job: Job) -> tuple[Landscape, ...]:
    """The landscapes of the job; those that are `like` one on disk in its run take the geometry of that one.

    Raises:
        JobError: a landscape is like one that neither the job nor its run has, or that no job computed.
    """
    wanted = {landscape.like for landscape in job.landscapes if landscape.like is not None}
    wanted -= {landscape.name for landscape in job.landscapes}
    if not wanted:
        return job.landscapes
    names = landscape_names(job.run_path)
    for name in sorted(wanted):
        if name not in names:
            known = [*(landscape.name for landscape in job.landscapes if landscape.like is None), *names]
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
# The landscapes that a job asks for: those that it lists, else those of its collector's options.


@dataclass(frozen=True)
class JobRequest:
    """The landscapes and samples that a job asks for.

    Attributes:
        num_samples: the number of samples to take.
        at_most: whether the data may have fewer samples, since the job does not give the number.
        implied: whether the job lists no landscape, so that they follow from the collector's options.
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
    """The landscapes; those without a setting of their own take `quantise` from the job."""

    def with_setting(landscape: Landscape) -> Landscape:
        own = not job.quantise or not landscape.leaves_quantise_open
        return landscape if own else landscape.model_copy(update={"quantise": job.quantise})

    return tuple(map(with_setting, landscapes))


def collected_landscapes(run: str) -> tuple[Landscape, ...]:
    """The landscapes of a run by the options of its collector; empty if it has none."""
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


# ----------------------------------------------------------------------------------------------------
# The job of a landscape on disk, made from its record, to resume it, to extend it, or to ask about it.


@dataclass(frozen=True)
class RecordedFields:
    """The fields of the job of a landscape on disk, for a caller that changes some of them, and the job's folder."""

    fields: dict[str, Any]
    folder: Path


def recorded_job(run: str, store: LandscapeStore, problem: Callback | None = None, folder: Path | None = None) -> Job:
    """A job with the landscape of the store as its only one: preparing it gives the recorded origin, axes and plan.

    Args:
        run: the present place of the run.
        problem: the callback; default: the one with which the landscape was computed, by its name.
        folder: where the callback is looked up first; default: as `find_callback` finds it.

    Raises:
        JobError: no job computed the landscape, or its callback cannot be found.
        LandscapeError: its record is damaged.
    """
    recorded = recorded_fields(run, store, problem, folder)
    return job_of(recorded.fields).in_folder(recorded.folder)


def recorded_fields(
    run: str, store: LandscapeStore, problem: Callback | None = None, folder: Path | None = None
) -> RecordedFields:
    """The fields of that job.

    Raises:
        JobError, LandscapeError: as `recorded_job` does.
    """
    if store.refusal:
        raise JobError(store.refusal)
    if not store.job.landscapes:
        raise JobError(f"landscape {quoted(store.name)}: its record holds no job; compute it again under another name")
    place = find_callback(run, store, problem, folder)
    spec, engine = {**spec_as_computed(store.record), "name": store.name}, store.job.whole.get("engine")
    if place.copy is not None:
        spec = with_packed_names(spec, place.copy.files, place.copy.runs)
        engine = "auto"  # it may name a run of another machine; the recorded plan has what it stood for
    fields = {
        **store.job.whole,
        "num_samples": store.identity.num_samples,  # the data may have had fewer samples than requested
        "run": run,
        "problem": place.problem,
        "engine": engine,
        "landscapes": [spec],
    }
    return RecordedFields(fields, place.folder)


def job_of(fields: Mapping[str, Any]) -> Job:
    """The job of recorded fields; fields unknown to this version are left out.

    Raises:
        JobError: the fields are no job.
    """
    return Job(**{key: value for key, value in fields.items() if value is not None and key in Job.model_fields})
