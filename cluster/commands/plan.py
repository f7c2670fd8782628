"""`landscape plan`: what a job will cost."""

from __future__ import annotations

from pathlib import Path

from cluster.commands.output import Json, read_bound_job, show
from cluster.runtime.console import diverted
from cluster.runtime.options import MaybeWhole, checked_workers


def plan(job: Path, *, run: str | None = None, workers: MaybeWhole = None, json: Json = False) -> None:
    """Check everything and show points, tiles, bytes and the estimated time; writes nothing.

    Parameters
    ----------
    job
        The YAML job file.
    run
        The run folder or URL instead of the file's.
    workers
        How many workers to estimate for.
    """
    from cluster.commands.planning import plan_job, plan_text

    with diverted():
        found = plan_job(read_bound_job(job, run=run), checked_workers(workers))
    show(found, json, plan_text(found))
