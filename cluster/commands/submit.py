"""`landscape submit`: send a job to a cluster."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from cluster.runtime.logs import bind
from cluster.submit.kuberay import KubeRayTarget
from cluster.submit.options import SubmitOptions
from cluster.submit.ray_jobs import RayTarget
from cluster.submit.slurm import SlurmTarget
from landscape.core.errors import JobError

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
