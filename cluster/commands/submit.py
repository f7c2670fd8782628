"""`landscape submit`: send a job to a cluster."""

from __future__ import annotations

import os
import sys
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from cluster.runtime.logs import bind
from cluster.runtime.options import Flag, MaybeWhole
from cluster.submit.kuberay import KubeRayTarget
from cluster.submit.options import SubmitOptions, watched
from cluster.submit.ray_jobs import RayTarget
from cluster.submit.slurm import SlurmTarget
from landscape.core.errors import JobError, quoted

Target = Literal["ray", "kuberay", "slurm"]
# The options of what is not given.
DEFAULTS, RAY, KUBERAY, SLURM = SubmitOptions(), RayTarget(), KubeRayTarget(), SlurmTarget()


def submit(
    job: Path,
    *,
    target: Target = "ray",
    what: Annotated[SubmitOptions, Parameter(name="*")] = DEFAULTS,
    ray: Annotated[RayTarget, Parameter(name="*", group="To Ray")] = RAY,
    kuberay: Annotated[KubeRayTarget, Parameter(name="*", group="To KubeRay")] = KUBERAY,
    slurm: Annotated[SlurmTarget, Parameter(name="*", group="To Slurm")] = SLURM,
) -> int:
    """Send a job to a cluster; the same command again goes on where an earlier one stopped.

    Prints the identifier of what was sent. With Ray, the log follows on stderr and the exit code is the job's.

    Parameters
    ----------
    job
        The YAML job file. Its folder goes with it.
    target
        ray: a Ray cluster's dashboard; kuberay: Kubernetes with KubeRay; slurm: sbatch.
    """
    from cluster.submit.options import refuse_settings
    from landscape.job.reading import read_job

    targets: dict[str, RayTarget | KubeRayTarget | SlurmTarget] = {"ray": ray, "kuberay": kuberay, "slurm": slurm}
    refuse_options_of_others(target, targets)
    given = read_job(job, run=what.run)
    bind(run=given.run_path)
    asked = what.of_job(target, given)
    refuse_settings(given, target, asked.gpus_per_worker, asked.cpus_per_worker, slurm.nodes)
    return targets[target].send(asked, given, job)


def refuse_options_of_others(target: str, targets: dict[str, RayTarget | KubeRayTarget | SlurmTarget]) -> None:
    """An option of another target would be ignored silently."""
    for name, options in targets.items():
        given = [each.name for each in fields(options) if getattr(options, each.name) != each.default]
        if name != target and given:
            raise JobError(f"{given[0]}: serves --target {name} only, not {target}; leave it out, or name that target")


# ----------------------------------------------------------------------------------------------------
# `landscape cancel`: stop a job on a Ray cluster.


def cancel(identifier: str, *, address: str | None = None, allow_open: Flag = False) -> int:
    """Stop a job on a Ray cluster in order, and wait until it has; submitting it again goes on where it stopped.

    Parameters
    ----------
    identifier
        What `landscape submit` printed.
    address
        The dashboard's URL; default: where the job was sent to, else as for submit.
    allow_open
        Also talk to a cluster that is not on this machine and asks for no token.
    """
    from cluster.submit import ray_jobs
    from cluster.submit.ray_jobs import connect_to, keep_address

    client = connect_to(identifier, address, allow_open, "cancel")
    ended = ray_jobs.cancel(client, identifier)
    keep_address(identifier, address, allow_open)
    print(f"{identifier} {ended.lower()}", flush=True)
    return 0


# ----------------------------------------------------------------------------------------------------
# `landscape logs`: the log of a job that was sent to a Ray cluster, and those of the ranks of a training.


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
        raise JobError(
            f"rank: must be given for the log of a training, as {quoted(identifier)} is a run; give --rank 0"
        )
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
