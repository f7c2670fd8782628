"""Jobs and landscapes from runs on disk: of a recorded landscape, like one, or by the collector's options."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from landscape.compute.auto_range import with_found_range
from landscape.compute.callback_place import Callback, find_callback, is_packed_copy, with_packed_names
from landscape.compute.identity import coordinates_asked, is_wider
from landscape.core.errors import JobError, LandscapeError, nearest, quoted
from landscape.core.validation import AUTO, explain
from landscape.job.job import CollectLandscape, Job
from landscape.job.landscape import Landscape, with_likes
from landscape.job.reading import refuse_other_places, spec_as_computed
from landscape.model.packed_file import Archive, names_a_file
from landscape.model.run_files import read_info
from landscape.store.landscape import LandscapeStore
from landscape.store.runs import landscape_names
from landscape.surface.record import Record

log = logging.getLogger("landscape")

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
ALL_SAMPLES = 1 << 40  # more than any data has: a landscape with an accuracy chooses among all

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
# A job from before its landscapes were extended: it takes the samples and the grids that its run has.


def parts_of(job: Job) -> list[Job]:
    """The job in parts of landscapes with equally many samples: itself, unless some have been extended alone."""
    if job.extends is not None:
        return [job]
    groups = _by_samples(job, asked_of(job))
    if len(groups) == 1:
        return [job]
    parts = {number: job.replace(landscapes=group) for number, group in groups.items()}
    if ALL_SAMPLES in parts:
        parts[ALL_SAMPLES].model_fields_set.discard("num_samples")  # it is that of the fixed grids
    return list(parts.values())


def as_extended(job: Job, asked: JobRequest) -> tuple[Job, JobRequest]:
    """The job and its request with the samples and the grids of landscapes that hold more; logs a line for each.

    The origin, the directions and the first samples are compared later, as those of any landscape on disk. Of a job in
    several `parts_of`, the first one is taken.
    """
    if job.extends is not None:
        return job, asked
    (number, group), *others = _by_samples(job, asked).items()
    specs = []
    for spec in group:
        fields = _wider_fields(job.run_path, spec)
        more_samples = number not in (asked.num_samples, ALL_SAMPLES)
        taken = ({"num_samples": number} if more_samples else {}) | fields
        if taken:
            words = ", ".join(f"{name}: {json.dumps(value)}" for name, value in taken.items())
            log.warning("landscape %r holds more than the job asks for, and is taken as it is: %s", spec.name, words)
        specs.append(spec.model_copy(update=fields))
    for more, left in others:
        names = ", ".join(quoted(spec.name) for spec in left)
        counts = ["all" if count == ALL_SAMPLES else str(count) for count in (more, number)]
        log.warning("landscape %s is left out here: it has %s samples, and the others %s", names, *counts)
    if number == ALL_SAMPLES:
        asked = replace(asked, num_samples=number, at_most=True)
    elif number != asked.num_samples:
        job, asked = job.replace(num_samples=number), replace(asked, num_samples=number, at_most=False)
    if tuple(specs) != asked.landscapes:
        job = job.replace(landscapes=specs) if job.landscapes else job
        asked = replace(asked, landscapes=tuple(specs))
    return job, asked


def _by_samples(job: Job, asked: JobRequest) -> dict[int, list[Landscape]]:
    """The landscapes by the number of samples that they take; those with as many as the job asks for come first."""
    groups: dict[int, list[Landscape]] = {asked.num_samples: []}
    for spec in asked.landscapes:
        store = None if spec.accuracy else LandscapeStore.find(job.run_path, spec.name)
        number = asked.num_samples if store is None else _samples_of(store.record, asked.num_samples)
        number = ALL_SAMPLES if spec.accuracy else number
        groups.setdefault(number, []).append(spec)
    return {number: group for number, group in groups.items() if group}


def _samples_of(record: Record, asked: int) -> int:
    """The samples that the last job of a landscape asked for if these are more than `asked`, else `asked`."""
    last = None if record.job is None else record.job.whole.get("num_samples")
    has = None if record.identity is None else record.identity.num_samples
    # The data may have had fewer than the last job asked for: then that number says nothing.
    return last if isinstance(last, int) and has is not None and asked < last <= has else asked


def _wider_fields(run: str, spec: Landscape) -> dict[str, Any]:
    """The size and the range of the landscape on disk if it is the same grid over a wider range, else nothing."""
    store = LandscapeStore.find(run, spec.name)
    held = None if store is None or store.record.identity is None else store.record.identity.whole.get("coordinates")
    wanted = coordinates_asked(with_found_range(spec, store))
    if held == wanted or not isinstance(held, list) or not is_wider(wanted, held):
        return {}
    return {"size": tuple(size for size, *_ in held), "range": tuple((low, high) for _, low, high in held)}


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
    job = job_of(recorded.fields).in_folder(recorded.folder)
    if is_packed_copy(run) and names_a_file(str(recorded.folder)):
        refuse_other_places(job, Archive(recorded.folder))
    return job


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
