"""The plans that are recorded: of the landscape that a job goes on with, and of the run whose engine it takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from landscape.compute.identity import refusal
from landscape.core.errors import JobError, LandscapeError, quoted
from landscape.core.folders import locate
from landscape.core.plan import BatchNorm, Plan, Precision, default_plan
from landscape.job.job import Job, names_a_run
from landscape.job.recorded import spec_as_computed
from landscape.store.landscape import LandscapeStore
from landscape.store.runs import landscape_names


def recorded_plan(stored: LandscapeStore) -> Plan:
    """How a landscape on disk is computed.

    Raises:
        LandscapeError: its record is damaged, or a later version's.
    """
    record = stored.plan.whole
    try:
        plan = Plan.from_record(record)
    except (TypeError, ValueError):
        plan = None
    if plan is None or not _is_sound(plan):
        raise LandscapeError(
            f"landscape {quoted(stored.name)}: its recorded plan {quoted(record)} is not one of this version; update "
            "the software, or give the landscape another name or run"
        )
    return plan


def _is_sound(plan: Plan) -> bool:
    """Whether every field is of its type and range: a record on disk may say anything."""
    counts = (plan.batch_size, plan.threads)
    return (
        all(type(number) is int for number in (*counts, plan.seed))
        and min(counts) >= 1
        and plan.device in ("cpu", "cuda")
        and plan.precision in get_args(Precision)
        and plan.reduction == "blocks"
        and plan.batch_norm in get_args(BatchNorm)
        and type(plan.bfloat16_weights) is bool
    )


def borrowed_plan(job: Job, num_samples: int) -> Plan | None:
    """The plan of the run that the job's `engine` names; None where it names an engine, or leaves it open.

    Args:
        num_samples: the samples of the job, which a batch holds at most.

    Raises:
        JobError: that run has no landscape, or computes in another arithmetic than the job asks for.
    """
    if not names_a_run(job.engine):
        return None
    place = locate(job.engine, job.folder)
    name = quoted(job.engine)
    stores = [LandscapeStore.open(place, landscape) for landscape in landscape_names(place)]
    plans = [recorded_plan(store) for store in stores if not store.record.is_imported]
    if not plans:
        raise JobError(f"engine: must be a run that has landscapes, not {name}; name another one, or an engine")
    choices = {(plan.engine, plan.batch_size) for plan in plans}
    if len(choices) > 1:
        several = "; ".join(f"{engine}, batch_size {size}" for engine, size in sorted(choices, key=str))
        raise JobError(f"engine: run {name} has several ({several}); name one of them, and batch_size")
    (engine, size), plan = choices.pop(), plans[0]
    asked = {
        "precision": job.precision, "batch_norm": job.batch_norm, "threads": job.threads or 1,
        "batch_size": job.batch_size or size, "device": plan.device if job.device == "auto" else job.device,
    }  # fmt: skip
    other = [f"{field} {getattr(plan, field)}" for field, value in asked.items() if getattr(plan, field) != value]
    if other:
        mine = ", ".join(str(value) for field, value in asked.items() if getattr(plan, field) != value)
        raise JobError(
            f"engine: run {name} computes with {', '.join(other)}, the job with {mine}; make them agree, or name one"
        )
    return replace(plan, engine=engine, batch_size=min(size, num_samples))


def plan_of(
    job: Job,
    stored: LandscapeStore | None,
    num_samples: int,
    device: str,
    *,
    bfloat16_weights: bool = False,
) -> Plan:
    """The recorded plan of a landscape on disk, else the default.

    Args:
        num_samples: the samples of the job, which a batch holds at most.
        device: the kind of device that a new landscape is planned for.
        bfloat16_weights: whether a new landscape computes weights in bfloat16 as they are.

    Raises:
        JobError: the job contradicts the record.
    """
    if stored is None:
        return default_plan(
            num_samples, device, job.precision, job.batch_norm, job.seed, job.batch_size, job.threads, bfloat16_weights
        )
    plan = recorded_plan(stored)
    changed = _contradictions(job, stored, plan, num_samples)
    if changed:
        raise JobError(refusal(stored.name, changed, "leave it out to go on as before"))
    return plan


def _contradictions(job: Job, stored: LandscapeStore, plan: Plan, num_samples: int) -> list[str]:
    """What the job asks for now, and did not ask for when the landscape was made, that its plan is not."""
    asked = {
        "batch_size": job.batch_size and min(job.batch_size, num_samples),
        "threads": job.threads,
        "engine": job.asked_engine,
    }
    # What was asked for when it was made is no change, also where the memory allowed less.
    before = stored.job
    changed = [
        f"{field} {getattr(plan, field)} to {value}"
        for field, value in asked.items()
        if value is not None and value != getattr(plan, field) and getattr(job, field) != getattr(before, field)
    ]
    if job.engine != before.engine and (other := borrowed_plan(job, num_samples)) is not None:
        both = (("engine", plan.engine, other.engine), ("batch_size", plan.batch_size, other.batch_size))
        changed += [f"{field} {mine} to {theirs}" for field, mine, theirs in both if mine != theirs]
    return changed


# ----------------------------------------------------------------------------------------------------
# The job of a landscape on disk, made from its record: for what goes on with it, extends it, or asks about it.

Callback = str | Callable[[], Any]


def recorded_job(run: str, store: LandscapeStore, problem: Callback | None = None, folder: Path | None = None) -> Job:
    """The job whose one landscape is the one of the store: preparing it gives the recorded origin, axes and plan.

    Args:
        run: where the run lies now.
        problem: the callback; default: the one that the landscape was computed with, by its name.
        folder: where the callback is looked up first; default: where it was then.

    Raises:
        JobError: no job computed the landscape, or its callback cannot be found by a name.
        LandscapeError: its record is damaged.
    """
    return job_of(recorded_fields(run, store, problem)).in_folder(folder or recorded_folder(store))


def recorded_fields(run: str, store: LandscapeStore, problem: Callback | None = None) -> dict[str, Any]:
    """The fields of that job, for a caller that changes some of them.

    Raises:
        JobError, LandscapeError: as `recorded_job` does.
    """
    if store.refusal:
        raise JobError(store.refusal)
    if not store.job.landscapes:
        raise JobError(f"landscape {quoted(store.name)}: its record holds no job; compute it anew under another name")
    spec = {**spec_as_computed(store.record), "name": store.name}
    return {
        **store.job.whole,
        "num_samples": store.identity.num_samples,  # the data may have had fewer than were asked for
        "run": run,
        "problem": problem or _problem_of(store),
        "landscapes": [spec],
    }


def job_of(fields: Mapping[str, Any]) -> Job:
    """The job of recorded fields; those that this version does not know are left out.

    Raises:
        JobError: they are no job.
    """
    return Job(**{key: value for key, value in fields.items() if value is not None and key in Job.model_fields})


def recorded_folder(store: LandscapeStore) -> Path:
    """Where the callback was looked up first; the working directory where that is not recorded."""
    return Path(store.record.provenance.folder or ".")


def _problem_of(store: LandscapeStore) -> str:
    """The callback that the landscape was computed with.

    Raises:
        JobError: it was a function without a name of its own, which cannot be found again.
    """
    recorded = str(store.job.whole.get("problem"))
    if "<" in recorded:
        raise JobError(
            f"problem: landscape {quoted(store.name)} was computed with a function that cannot be found by its name "
            f"({quoted(recorded)}); name one, module:function"
        )
    return recorded
