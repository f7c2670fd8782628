"""`landscape logs`: the log of a job that was sent to a Ray cluster."""

from __future__ import annotations

import sys

from cluster.options import Flag
from cluster.submit.options import watched


def logs(identifier: str, *, follow: Flag = False, address: str | None = None, allow_open: Flag = False) -> int:
    """Print the log of a job that was sent to a Ray cluster.

    Parameters
    ----------
    identifier
        What `landscape submit` printed.
    follow
        Go on until the job ends; the exit code is the job's.
    address
        The dashboard's URL; default: where the job was sent to, else as for submit.
    allow_open
        Also talk to a cluster that is not on this machine and asks for no token.
    """
    from cluster.submit.ray_jobs import log
    from cluster.submit.ray_jobs.jobs import info
    from cluster.submit.ray_jobs.sent import connect_to, keep_address

    client = connect_to(identifier, address, allow_open, "logs")
    info(client, identifier)  # raises where the cluster has no such job
    keep_address(identifier, address, allow_open)
    if follow:
        return watched(identifier, lambda: log.follow(client, identifier, _write))
    _write(log.log_so_far(client, identifier))
    return 0


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
