"""The job of a landscape on disk, made from its record: for what goes on with it, extends it, or asks about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from landscape.core.errors import JobError, shown
from landscape.job.job import Job
from landscape.job.recorded import spec_as_computed
from landscape.store.landscape import LandscapeStore

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
        raise JobError(f"landscape {shown(store.name)}: its record holds no job; compute it anew under another name")
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
            f"problem: landscape {shown(store.name)} was computed with a function that cannot be found by its name "
            f"({shown(recorded)}); name one, module:function"
        )
    return recorded
