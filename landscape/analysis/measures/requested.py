"""What is measured of a run: which weights, on which samples, and the job that says how they are evaluated."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from landscape.compute.callback_place import Callback
from landscape.compute.landscape_context import Weights
from landscape.compute.prepared import PreparedJob
from landscape.compute.recorded_job import recorded_fields
from landscape.core.errors import JobError, quoted
from landscape.core.folders import locate
from landscape.core.validation import ranges
from landscape.job.job import Job
from landscape.model.packed_snapshots import logged_beyond
from landscape.model.parameters import State
from landscape.model.snapshots import Trajectory
from landscape.store.landscape import LandscapeStore
from landscape.store.results import extension_name
from landscape.store.runs import landscape_names

log = logging.getLogger("landscape")
NAME = "measured"
NUMBERED = re.compile(r"(?:(epoch|step)-)?([0-9]{1,15})")


@dataclass(frozen=True)
class MeasuredOrigin:
    """A set of weights to measure.

    Attributes:
        reference: its name in jobs.
        number: of the snapshot; None for other weights.
    """

    reference: int | str
    label: str
    number: int | None = None
    unit: str = ""

    def state(self, prepared: PreparedJob, trajectory: Trajectory) -> State:
        """Its weights, read anew each time, as all snapshots of a run may not fit the memory.

        Raises:
            LandscapeError: they cannot be read, or do not fit the model.
        """
        return Weights(prepared.problem, trajectory, prepared.job.folder).state(self.reference)


# What of a job decides the measures of given weights. Where the landscapes of a run differ in it, none of them is taken
# for the others.
DECIDING = ("problem", "num_samples", "seed", "precision", "batch_norm")


@dataclass(frozen=True)
class RequestedSamples:
    """The samples to measure on, and whose callback and arithmetic; default: those that all landscapes of a run have.

    Attributes:
        landscape: the name of the landscape to take them from.
        samples, seed: how many samples, and the seed that chooses them.
    """

    landscape: str | None = None
    samples: int | None = None
    seed: int | None = None

    @property
    def fields(self) -> dict[str, int]:
        """The fields of a job that are given."""
        given = {"num_samples": self.samples, "seed": self.seed}
        return {name: value for name, value in given.items() if value is not None}


RECORDED = RequestedSamples()


def job_of_run(
    run: str, problem: Callback | None = None, folder: Path | None = None, asked: RequestedSamples = RECORDED
) -> Job:
    """The job by which the weights of a run are measured: samples, callback and arithmetic of its landscapes.

    Raises:
        NotFoundError: there is no landscape of the requested name.
        JobError: no job has computed a landscape of the run, its landscapes differ in what is not requested, or its
            callback cannot be found.
    """
    if asked.landscape is not None:
        store = LandscapeStore.open(run, asked.landscape)
    else:
        given = {*asked.fields, *(["problem"] if problem else [])}
        store = _any_landscape(run, [name for name in DECIDING if name not in given])
    recorded = recorded_fields(run, store, problem, folder)
    return job_to_measure({**recorded.fields, **asked.fields}, recorded.folder)


def _any_landscape(run: str, deciding: Sequence[str]) -> LandscapeStore:
    """A computed landscape of a run; refused if others differ from it in fields that decide measures."""
    names = landscape_names(run)
    extensions = {extension_name(name) for name in names}
    stores = [LandscapeStore.open(run, name) for name in names if name not in extensions]
    computed = [store for store in stores if not store.record.is_imported and store.job.landscapes]
    if not computed:
        raise JobError(
            f"run {quoted(run)} has no landscape whose job says how it is evaluated; name the job file instead"
        )
    differing: dict[str, dict[str, str]] = {}
    for field in deciding:
        first_with: dict[str, str] = {}
        for store in computed:
            first_with.setdefault(str(_recorded(store, field)), store.name)
        if len(first_with) > 1:
            differing[field] = first_with
    if differing:
        parts = [
            f"{field} ({', '.join(f'{value} of {name}' for value, name in which.items())})"
            for field, which in differing.items()
        ]
        remedy = "" if set(differing) - {"num_samples", "seed"} else ", or samples and seed"
        raise JobError(
            f"landscape: must be named, since the landscapes of run {quoted(run, 300)} differ in {', '.join(parts)}; "
            f"give the one to measure as{remedy}"
        )
    return computed[0]


def _recorded(store: LandscapeStore, name: str) -> Any:
    if name == "num_samples":
        return store.identity.num_samples  # the data may have had fewer samples than requested
    return store.job.whole.get(name, Job.model_fields[name].default)


def job_of_file(job: Job, asked: RequestedSamples = RECORDED) -> Job:
    """The same for a job that need not have been run: its own samples and arithmetic.

    Raises:
        JobError: a landscape is requested.
    """
    if asked.landscape is not None:
        raise JobError("landscape: goes with a run, not with a job file, which says how it is measured; leave it out")
    return job_to_measure({name: getattr(job, name) for name in job.model_fields_set} | asked.fields, job.folder)


def job_to_measure(fields: Mapping[str, Any], folder: Path, origin: int | str | None = None) -> Job:
    """A job with one small landscape, which is never stored: it says how weights are evaluated."""
    # Slopes and curvatures belong to the unrounded network, and so must all other measures.
    left_out = ("landscapes", "tile", "keep_samples", "quantise")
    usable = {key: value for key, value in fields.items() if key in Job.model_fields and key not in left_out}
    taken = {name.lower() for name in landscape_names(locate(str(usable["run"]), folder))}
    name = NAME
    while name in taken:
        name += "-"
    spec = {"name": name, "size": 3, "directions": [{"kind": "random"}], "origin": origin}
    given = {key: value for key, value in usable.items() if value is not None}
    return Job(**given, landscapes=[{key: value for key, value in spec.items() if value is not None}]).in_folder(folder)


def at_origin(job: Job, origin: MeasuredOrigin) -> Job:
    """The same job with another origin, so that no other weights are read."""
    fields = {name: getattr(job, name) for name in job.model_fields_set}
    return job_to_measure(fields, job.folder, origin.reference)


def origins_of(text: str | None, trajectory: Trajectory, folder: Path) -> list[MeasuredOrigin]:
    """The weights that `last,epoch-1,FILE` names; default: the last snapshot, else those of the callback.

    Raises:
        JobError: one of them is unknown; the message lists the known ones.
    """
    if text is None:
        text = "last" if trajectory.numbers else "problem"
    words = [word.strip() for word in text.split(",")]
    origins = [origin for word in words for origin in _origins(word, trajectory, folder)]
    return list({origin.label: origin for origin in origins}.values())


def _origins(word: str, trajectory: Trajectory, folder: Path) -> list[MeasuredOrigin]:
    numbers, unit = trajectory.numbers, trajectory.unit
    if word in ("all", "last", "first"):
        if not numbers:
            raise JobError(
                f"origins: {word} needs a trajectory, and the run has none; name problem, or a file of weights"
            )
        later = logged_beyond(trajectory, trajectory.snapshots[-1]) if word == "last" else ""
        if later:
            log.warning(
                "origins: %s %d is the last snapshot, and training went on to %s, whose weights no snapshot has",
                unit, numbers[-1], later,
            )  # fmt: skip
        chosen = {"all": numbers, "last": numbers[-1:], "first": numbers[:1]}[word]
        return [_snapshot(number, unit) for number in chosen]
    if word == "problem":
        return [MeasuredOrigin("problem", "problem")]
    numbered = NUMBERED.fullmatch(word)
    if numbered and numbered[1] in (None, unit) and int(numbered[2]) in numbers:
        return [_snapshot(int(numbered[2]), unit)]
    if not numbered and Path(locate(word, folder)).is_file():
        return [MeasuredOrigin(word, word)]
    there = f"{unit}s {ranges(numbers)}" if numbers else "no snapshots"
    raise JobError(
        f"origins: must be last, first, all, problem, {unit}-N or a file of weights, not {quoted(word)}; "
        f"the run has {there}"
    )


def _snapshot(number: int, unit: str) -> MeasuredOrigin:
    return MeasuredOrigin(number, f"{unit} {number}", number, unit)
