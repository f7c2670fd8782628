"""What a command asks to be measured: the job that says how, the weights, and whether they were measured before."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from landscape.analysis.measures.average import ADAPTIVE_RHO, SIGMA
from landscape.analysis.measures.document import Entry
from landscape.analysis.measures.measuring import ERROR_NOISE, Asked
from landscape.analysis.measures.rises import DISTANCES, FIRST_SEED, LINES
from landscape.analysis.measures.worst import ASAM_RHO, SAM_RHO, STEPS
from landscape.compute.paths import Weights
from landscape.compute.prepared import PreparedJob
from landscape.compute.recorded import Callback, recorded_fields, recorded_folder
from landscape.core.digests import digest
from landscape.core.errors import JobError, shown
from landscape.core.folders import locate
from landscape.core.validation import ranges
from landscape.job.directions.base import DEFAULT_IGNORE
from landscape.job.job import Job
from landscape.model.packed_snapshots import logged_beyond
from landscape.model.parameters import State, describe_parameters
from landscape.model.snapshots import Trajectory
from landscape.store.landscape import LandscapeStore
from landscape.store.runs import landscape_names

log = logging.getLogger("landscape")
NAME = "measured"
NUMBERED = re.compile(r"(?:(epoch|step)-)?([0-9]{1,15})")


@dataclass(frozen=True)
class Origin:
    """A set of weights that is to be measured.

    Attributes:
        reference: its name as jobs have it.
        number: of the snapshot; None of other weights.
    """

    reference: int | str
    label: str
    number: int | None = None
    unit: str = ""

    def state(self, prepared: PreparedJob, trajectory: Trajectory) -> State:
        """Its weights. Read anew each time, as all snapshots of a run might not fit the memory.

        Raises:
            LandscapeError: they cannot be read, or are not those of such a model.
        """
        return Weights(prepared.problem, trajectory, prepared.job.folder).state(self.reference)


def job_of_run(run: str, problem: Callback | None = None, folder: Path | None = None) -> Job:
    """How the weights of a run are measured: with the samples and the arithmetic of its first landscape.

    Raises:
        JobError: no job has computed a landscape of it, or its callback cannot be found.
    """
    stores = [LandscapeStore.open(run, name) for name in landscape_names(run)]
    computed = [store for store in stores if not store.record.is_imported and store.job.landscapes]
    if not computed:
        raise JobError(
            f"run {shown(run)} has no landscape whose job says how it is evaluated; name the job file instead"
        )
    store = computed[0]
    return job_to_measure(recorded_fields(run, store, problem), folder or recorded_folder(store))


def job_of_file(job: Job) -> Job:
    """The same of a job that need not have been run."""
    return job_to_measure({name: getattr(job, name) for name in job.model_fields_set}, job.folder)


def job_to_measure(fields: Mapping[str, Any], folder: Path, origin: int | str | None = None) -> Job:
    """A job with one small landscape that no run has: it says how weights are evaluated, and none of it is stored."""
    # Slopes and curvatures are of the network before it is rounded, and so is all that stands beside them.
    left_out = ("landscapes", "tile", "keep_samples", "quantise")
    usable = {key: value for key, value in fields.items() if key in Job.model_fields and key not in left_out}
    taken = {name.lower() for name in landscape_names(locate(str(usable["run"]), folder))}
    name = NAME
    while name in taken:
        name += "-"
    spec = {"name": name, "size": 3, "directions": [{"kind": "random"}], "origin": origin}
    given = {key: value for key, value in usable.items() if value is not None}
    return Job(**given, landscapes=[{key: value for key, value in spec.items() if value is not None}]).in_folder(folder)


def at_origin(job: Job, origin: Origin) -> Job:
    """The same job around some weights, so that nothing of weights that nobody asked for is read."""
    fields = {name: getattr(job, name) for name in job.model_fields_set}
    return job_to_measure(fields, job.folder, origin.reference)


def origins_of(text: str | None, trajectory: Trajectory, folder: Path) -> list[Origin]:
    """The weights that `last,epoch-1,FILE` names; default: the last snapshot, else those of the callback.

    Raises:
        JobError: one of them is unknown; lists what there is.
    """
    if text is None:
        text = "last" if trajectory.numbers else "problem"
    words = [word.strip() for word in text.split(",")]
    found = [origin for word in words for origin in _origins(word, trajectory, folder)]
    return list({origin.label: origin for origin in found}.values())


def _origins(word: str, trajectory: Trajectory, folder: Path) -> list[Origin]:
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
        return [Origin("problem", "problem")]
    numbered = NUMBERED.fullmatch(word)
    if numbered and numbered[1] in (None, unit) and int(numbered[2]) in numbers:
        return [_snapshot(int(numbered[2]), unit)]
    if not numbered and Path(locate(word, folder)).is_file():
        return [Origin(word, word)]
    there = f"{unit}s {ranges(numbers)}" if numbers else "no snapshots"
    raise JobError(
        f"origins: must be last, first, all, problem, {unit}-N or a file of weights, not {shown(word)}; "
        f"the run has {there}"
    )


def _snapshot(number: int, unit: str) -> Origin:
    return Origin(number, f"{unit} {number}", number, unit)


def settings_of(prepared: PreparedJob) -> dict[str, Any]:
    """What decides the measures of given weights: two sets of weights are compared where this is equal."""
    (landscape,) = prepared.landscapes
    plan, infos = landscape.plan, describe_parameters(prepared.problem.model)
    shapes = [[info.name, list(info.shape), info.role, info.trainable, info.transposed_groups] for info in infos]
    return {
        "samples": str(landscape.identity["samples"]),
        "num_samples": prepared.samples.length,
        "seed": plan.seed,
        "precision": plan.precision,
        "batch_norm": plan.batch_norm,
        "batch_size": plan.batch_size,
        "device": plan.device,
        "normalise": "filter",
        "ignore": list(DEFAULT_IGNORE),
        "direction_seeds": [FIRST_SEED, FIRST_SEED + LINES - 1],
        "distances": list(DISTANCES),
        "rho": {"sam": SAM_RHO, "asam": ASAM_RHO, "steps": STEPS, "average": SIGMA, "adaptive average": ADAPTIVE_RHO},
        "architecture": digest(shapes),
    }


def has_all(entry: Entry | None, weights: str, asked: Asked) -> bool:
    """Whether an entry of the same settings holds what is asked for."""
    if entry is None or entry.weights != weights or entry.radius_is_old:
        return False
    return (not asked.everything or ERROR_NOISE in entry.rows) and (not asked.layers or bool(entry.layers))


def first_state(prepared: PreparedJob, trajectory: Trajectory, origin: Origin) -> State | None:
    """The weights of the first snapshot; None where there is none, or where it is the origin itself."""
    if not trajectory.numbers or trajectory.numbers[0] == origin.number:
        return None
    return Weights(prepared.problem, trajectory, prepared.job.folder).state("first")
