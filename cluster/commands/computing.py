"""A job computed with progress on stderr, and a line per landscape on stdout at its end."""

from __future__ import annotations

from cluster.runtime.console import ProgressDisplay, diverted, put
from cluster.runtime.status import run_status, status_text
from landscape.core.errors import DONE, PARTIAL, printable
from landscape.job.job import Job


def compute(
    job: Job,
    *,
    serial: bool = False,
    workers: int | None = None,
    address: str | None = None,
    allow_open: bool = False,
    shown: bool = True,
    accept_origin: bool = False,
) -> int:
    """Run a job with progress on stderr; prints a line per landscape; 0 or 4 where something was given up.

    Args:
        shown: whether the lines are printed.
        accept_origin: go on, with a warning, where the user's own model has another loss at the origin or beside it.
    """
    with diverted(), ProgressDisplay() as display:
        if serial:
            from cluster.driver.run import run_serially
            from landscape.core.devices import keep_freed_memory

            keep_freed_memory()
            found = run_serially(job, display, accept_origin=accept_origin)
        else:
            from cluster.driver.run import run as run_on_ray

            found = run_on_ray(job, workers, address, display, allow_open=allow_open, accept_origin=accept_origin)
    status = run_status(found.path)
    if shown:
        put(printable(status_text(status)))
    mine = [each for each in status["landscapes"] if each["name"] in display.landscapes]
    return PARTIAL if any(each["failed"] or each["missing"] for each in mine) else DONE
