"""`landscape logs`: the log of a job that was sent to a Ray cluster, and those of the ranks of a training."""

from __future__ import annotations

import os
import sys

from cluster.runtime.options import Flag, MaybeWhole
from cluster.submit.options import watched
from landscape.core.errors import JobError, shown


def logs(
    identifier: str,
    *,
    rank: MaybeWhole = None,
    follow: Flag = False,
    address: str | None = None,
    allow_open: Flag = False,
) -> int:
    """Print the log of a job that was sent to a Ray cluster, or that of a rank of a training.

    Parameters
    ----------
    identifier
        What `landscape submit` printed; with --rank the run.
    rank
        The rank of the run's training whose log is meant, from 0.
    follow
        Go on until the job ends; the exit code is the job's. With --rank: until the training ends.
    address
        The dashboard's URL; default: where the job was sent to, else as for submit.
    allow_open
        Also talk to a cluster that is not on this machine and asks for no token.
    """
    if rank is not None:
        return _of_rank(identifier, rank, follow, address)
    if os.path.isdir(identifier) or "://" in identifier:
        raise JobError(f"rank: must be given for the log of a training, as {shown(identifier)} is a run; give --rank 0")
    from cluster.submit import ray_jobs
    from cluster.submit.ray_jobs import connect_to, info, keep_address

    client = connect_to(identifier, address, allow_open, "logs")
    info(client, identifier)  # raises where the cluster has no such job
    keep_address(identifier, address, allow_open)
    if follow:
        return watched(identifier, lambda: ray_jobs.follow(client, identifier, _write))
    _write(ray_jobs.log_so_far(client, identifier))
    return 0


def _of_rank(run: str, rank: int, follow: bool, address: str | None) -> int:
    from cluster.training.logs import follow_log, read_log
    from landscape.core.lock import training_alive

    if rank < 0:
        raise JobError(f"rank: must be 0 or more, not {rank}")
    if address is not None:
        raise JobError("address: belongs to a job that was sent; the log of a rank lies in its run: leave it out")
    if not follow:
        _write(read_log(run, rank))
        return 0
    follow_log(run, rank, _write, lambda: not training_alive(run))
    return 0


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
