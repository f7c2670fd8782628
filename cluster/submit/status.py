"""How a job that was sent is doing, by its identifier alone: asked of Ray's dashboard, of kubectl or of Slurm."""

from __future__ import annotations

import os
import re
import time
from datetime import datetime
from typing import Any

from cluster.runtime.console import seconds_text
from cluster.submit.kuberay import kuberay_state
from cluster.submit.ray_jobs import connect_to, keep_address, ray_state
from cluster.submit.slurm import job_state, slurm_state
from cluster.submit.submission import recall
from landscape.core.errors import ClusterUnreachableError, LandscapeError, NotFoundError

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
