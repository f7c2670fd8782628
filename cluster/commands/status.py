"""`landscape status`: what is done of a run, and how a job that was sent is doing."""

from __future__ import annotations

import os

from cluster.commands.output import Json, show
from cluster.runtime.options import Flag
from landscape.core.errors import DONE, FAILED, LandscapeError, NotFoundError, shown


def status(
    run: str,
    *,
    address: str | None = None,
    allow_open: Flag = False,
    json: Json = False,
) -> int:
    """Show what is done, missing and failed, and the rate, by landscape; of a job that was sent also its state.

    Exit code 1 where something of the run cannot be read; the state of a job changes no code, `--json` has it: PENDING,
    RUNNING, SUCCEEDED, FAILED or STOPPED on Ray, the words of Slurm and Kubernetes there, UNREACHABLE where the cluster
    does not answer, UNKNOWN where a head was started anew and has forgotten the job.

    Parameters
    ----------
    run
        The run folder or URL, which may be read at any moment of a running job, or what `landscape submit` printed.
    address
        The dashboard's URL of a job that was sent; default: where it was sent to. Not asked where RUN can be read.
    allow_open
        Also talk to a cluster that is not on this machine and asks for no token.
    """
    from cluster.runtime.status import is_readable, run_status, status_text
    from cluster.submit.status import job_status, job_status_text, names_a_job

    def show_job() -> int:
        job = job_status(run, address, allow_open)
        show(job, json, job_status_text(job))
        return DONE

    if names_a_job(run):
        return show_job()
    try:
        found = run_status(run)
    except LandscapeError as error:
        if "/" in run or os.path.isfile(run):
            raise
        if address is not None:
            return show_job()
        if not isinstance(error, NotFoundError):
            raise
        raise NotFoundError(
            f"{shown(run)} is no run here, nor a job that was sent from here; name the run's folder or URL, or give "
            "the job's --address"
        ) from None
    show(found, json, status_text(found))
    return DONE if is_readable(found) else FAILED
