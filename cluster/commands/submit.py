"""The commands that send a job to a cluster and look after it there: submit, logs, cancel."""

from __future__ import annotations

import sys
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from cluster.process.logs import bind
from cluster.submit.targets import Flag, ToKubeRay, ToRay, ToSlurm, What, watched
from landscape.errors import JobError

Target = Literal["ray", "kuberay", "slurm"]
NOTHING, TO_RAY, TO_KUBERAY, TO_SLURM = What(), ToRay(), ToKubeRay(), ToSlurm()  # what is not given


def register(app: App) -> None:
    """Give the commands to the application."""
    for each in (submit, logs, cancel):
        app.command(each)


def submit(
    job: Path,
    *,
    target: Target = "ray",
    what: Annotated[What, Parameter(name="*")] = NOTHING,
    ray: Annotated[ToRay, Parameter(name="*", group="To Ray")] = TO_RAY,
    kuberay: Annotated[ToKubeRay, Parameter(name="*", group="To KubeRay")] = TO_KUBERAY,
    slurm: Annotated[ToSlurm, Parameter(name="*", group="To Slurm")] = TO_SLURM,
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
    from cluster.submit.common import refuse_settings
    from landscape.spec import read_job

    targets: dict[str, ToRay | ToKubeRay | ToSlurm] = {"ray": ray, "kuberay": kuberay, "slurm": slurm}
    _refuse_others_options(target, targets)
    given = read_job(job, run=what.run)
    bind(run=given.run_path)
    asked = what.of_job(target, given)
    refuse_settings(given, target, asked.gpus_per_worker, asked.cpus_per_worker, slurm.nodes)
    return targets[target].send(asked, given, job)


def _refuse_others_options(target: str, targets: dict[str, ToRay | ToKubeRay | ToSlurm]) -> None:
    """An option of another target would be passed over in silence."""
    for name, options in targets.items():
        given = [each.name for each in fields(options) if getattr(options, each.name) != each.default]
        if name != target and given:
            raise JobError(f"{given[0]}: serves --target {name} only, not {target}; leave it out, or name that target")


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
    from cluster.submit import ray_jobs
    from cluster.submit.sent import connect, keep_address

    client = connect(identifier, address, allow_open, "logs")
    ray_jobs.info(client, identifier)
    keep_address(identifier, address, allow_open)
    if follow:
        return watched(identifier, lambda: ray_jobs.follow(client, identifier, _write_output))
    _write_output(ray_jobs.log_so_far(client, identifier))
    return 0


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
    from cluster.submit.sent import connect, keep_address

    client = connect(identifier, address, allow_open, "cancel")
    ended = ray_jobs.cancel(client, identifier)
    keep_address(identifier, address, allow_open)
    print(f"{identifier} {ended.lower()}", flush=True)
    return 0


def _write_output(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
