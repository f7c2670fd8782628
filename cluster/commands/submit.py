"""Jobs that are sent to a cluster: `landscape submit`, `cancel` and `logs`, and the state that `status` shows."""

from __future__ import annotations

import os
import re
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from cluster.runtime.logs import bind
from cluster.runtime.options import Flag, MaybeWhole, given_options
from cluster.submit import ray_jobs
from cluster.submit.kuberay import KubeRayTarget, kuberay_state
from cluster.submit.options import SubmitOptions, follow_to_end, refuse_settings
from cluster.submit.ray_jobs import RayTarget, connect_to, info, keep_address, ray_state
from cluster.submit.slurm import SlurmTarget, slurm_state
from cluster.submit.submission import job_state, recall
from landscape.core.errors import ClusterUnreachableError, JobError, LandscapeError, NotFoundError, quoted
from landscape.core.text import seconds_text

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
        given = list(given_options(options))
        if name != target and given:
            raise JobError(f"{given[0]}: serves --target {name} only, not {target}; leave it out, or name that target")


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
    client = connect_to(identifier, address, allow_open, "cancel")
    ended = ray_jobs.cancel(client, identifier)
    keep_address(identifier, address, allow_open)
    print(f"{identifier} {ended.lower()}", flush=True)
    return 0


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
    client = connect_to(identifier, address, allow_open, "logs")
    info(client, identifier)  # raises where the cluster has no such job
    keep_address(identifier, address, allow_open)
    if follow:
        return follow_to_end(identifier, lambda: ray_jobs.follow(client, identifier, _write))
    _write(ray_jobs.log_so_far(client, identifier))
    return 0


def _of_rank(run: str, rank: int, follow: bool, address: str | None) -> int:
    from cluster.training.report import follow_log, read_log
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


IDENTIFIER = re.compile(r"landscape-[a-z0-9-]+-[0-9a-f]{8}-\d+|raysubmit_\w+")  # ours, and those that Ray makes


def names_a_job(text: str) -> bool:
    """Whether an argument is a job's identifier: no folder and no URL, and known, or of the form that submit gives."""
    if "://" in text or "/" in text or os.path.exists(text):  # false also of what no file system takes
        return False
    return IDENTIFIER.fullmatch(text) is not None or recall(text) is not None


def job_status(identifier: str, address: str | None, allow_open: bool) -> dict[str, Any]:
    """What the cluster says of a job, and the status of its run where that can be read from here.

    Raises:
        ClusterUnreachableError, NotFoundError, LandscapeError: the cluster, or its tool, does not tell, and the run
            is not here either.
    """
    known = recall(identifier)
    if known is None or known.target == "ray" or address is not None:
        try:
            client = connect_to(identifier, address, allow_open, "status")
            job = ray_state(client, identifier)
        except (ClusterUnreachableError, NotFoundError) as error:
            run = _run_status(known.run) if known else None
            if known is None or run is None:
                raise
            # The job's state is lost with its head; the run can still be read from here.
            state = "UNREACHABLE" if isinstance(error, ClusterUnreachableError) else "UNKNOWN"
            job = job_state(identifier, "ray", known.address, state, since=None, exit_code=None,
                       message=str(error), run=known.run)  # fmt: skip
            return {"job": job, "run": run}
        keep_address(identifier, address, allow_open)
    elif known.target == "kuberay":
        job = kuberay_state(identifier, known)
    else:
        job = slurm_state(identifier, known)
    job["run"] = job["run"] or (known.run if known else "")
    return {"job": job, "run": _run_status(job["run"])}


def _run_status(run: str) -> dict[str, Any] | None:
    """The status of the run; None where it lies on a disk that is not here, or is not begun."""
    from cluster.runtime.status import run_status

    if not run or ("://" not in run and not os.path.isdir(run)):
        return None
    try:
        return run_status(run)
    except (LandscapeError, OSError):
        return None


def job_status_text(found: dict[str, Any], now: float | None = None) -> str:
    """The state in a line, then what is known beside it, then the run's own status."""
    from cluster.runtime.status import status_text

    job = found["job"]
    since = ""
    if job["since"]:
        moment = datetime.fromisoformat(job["since"])
        ago = max(0.0, (time.time() if now is None else now) - moment.timestamp())
        since = f" since {moment.astimezone():%Y-%m-%d %H:%M:%S} ({seconds_text(ago)})"
    code = "" if job["exit_code"] is None else f", exit code {job['exit_code']}"
    place = f" at {job['place']}" if job["place"] else ""
    lines = [f"job {job['id']} on {job['target']}{place}: {job['state']}{since}{code}"]
    told = {"command": job["entrypoint"], "it says": job["message"]}
    lines += [f"  {name}: {text}" for name, text in told.items() if text]
    if found["run"] is not None:
        lines.append(status_text(found["run"]))
    elif job["run"]:
        lines.append(f"run {job['run']}: not to be read from here, or not begun")
    return "\n".join(lines)
