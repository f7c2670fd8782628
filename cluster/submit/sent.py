"""How a job that was sent is doing, by its identifier alone: asked of Ray's dashboard, of kubectl or of Slurm."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from datetime import UTC, datetime
from typing import Any

from cluster.process.console import seconds_text
from cluster.submit import kuberay, ray_jobs
from cluster.submit.common import tool_missing
from cluster.submit.remembered import SentJob, plain_address, recall, remember
from landscape.errors import ClusterUnreachableError, JobError, LandscapeError, NotFoundError, flat, shown

IDENTIFIER = re.compile(r"landscape-[a-z0-9-]+-[0-9a-f]{8}-\d+|raysubmit_\w+")  # ours, and those that Ray makes
SEPARATOR = "|"


def names_a_job(text: str) -> bool:
    """Whether an argument is a job's identifier: no folder and no URL, and known, or of the form that submit gives."""
    if "://" in text or "/" in text or os.path.exists(text):  # false also of what no file system takes
        return False
    return IDENTIFIER.fullmatch(text) is not None or recall(text) is not None


def connect(identifier: str, address: str | None, allow_open: bool, command: str) -> Any:
    """A client for the cluster that a job was sent to: at `address`, else where it is remembered to be.

    Raises:
        JobError: it was not sent to Ray; says what asks of it there.
        ClusterUnreachableError: nothing answers.
        NotFoundError: nothing is known of the job, nor of where it may be.
    """
    known = recall(identifier)
    if known is not None and known.target != "ray" and address is None:
        raise JobError(f"{command}: {identifier} was sent to {known.target}; {_by_hand(identifier, known, command)}")
    if address is None and known is not None and known.address:
        return ray_jobs.connect(known.address, allow_open or known.allow_open)
    try:
        return ray_jobs.connect(address, allow_open)
    except ClusterUnreachableError:
        if known is not None or address is not None or ray_jobs.surrounding_address():
            raise
        raise NotFoundError(
            f"no job {shown(identifier)} was sent from here, and at {shown(ray_jobs.DEFAULT_ADDRESS)}, the only "
            "address that was asked, nothing answers; give the --address that it was sent to"
        ) from None


def keep_address(identifier: str, address: str | None, allow_open: bool) -> None:
    """Remember an address that was given for a job, once it has proved right."""
    known = recall(identifier)
    if address is not None and (known is None or known.address != plain_address(address)):
        kept = ray_jobs.dashboard_address(address)
        remember(identifier, SentJob("ray", known.run if known else "", kept, allow_open=allow_open))


def _by_hand(identifier: str, job: SentJob, command: str) -> str:
    """The command of the target's own that does what `command` does."""
    if job.target == "slurm":
        return f"give: tail -F {job.log}" if command == "logs" else f"give: scancel {identifier}"
    where = f"--namespace {job.namespace} " if job.namespace else ""
    if command == "logs":
        return f"give: kubectl {where}logs -f job/{identifier}"
    return f"give: kubectl {where}delete rayjob,configmap -l app.kubernetes.io/instance={identifier}"


def job_status(identifier: str, address: str | None, allow_open: bool) -> dict[str, Any]:
    """What the cluster says of a job, and the status of its run where that can be read from here.

    Raises:
        ClusterUnreachableError, NotFoundError, LandscapeError: the cluster, or its tool, does not tell, and the run
            is not here either.
    """
    known = recall(identifier)
    if known is None or known.target == "ray" or address is not None:
        try:
            client = connect(identifier, address, allow_open, "status")
            job = _ray_state(client, identifier)
        except (ClusterUnreachableError, NotFoundError) as error:
            run = _run_status(known.run) if known else None
            if known is None or run is None:
                raise
            # A head that has gone, or was started anew, takes the job's state along; what the run holds is here.
            state = "UNREACHABLE" if isinstance(error, ClusterUnreachableError) else "UNKNOWN"
            job = _job(identifier, "ray", known.address, state, since=None, exit_code=None,
                       message=str(error), run=known.run)  # fmt: skip
            return {"job": job, "run": run}
        keep_address(identifier, address, allow_open)
    elif known.target == "kuberay":
        job = _kuberay_state(identifier, known)
    else:
        job = _slurm_state(identifier, known)
    job["run"] = job["run"] or (known.run if known else "")
    return {"job": job, "run": _run_status(job["run"])}


def _run_status(run: str) -> dict[str, Any] | None:
    """None where the run lies on a disk that is not here, or is not begun."""
    from cluster.status import run_status

    if not run or ("://" not in run and not os.path.isdir(run)):
        return None
    try:
        return run_status(run)
    except (LandscapeError, OSError):
        return None


def _job(identifier: str, target: str, place: str, state: str, **fields: Any) -> dict[str, Any]:
    texts = {name: flat(str(fields.pop(name, "") or "")) for name in ("entrypoint", "message", "run")}
    known = {"id": identifier, "target": target, "place": place, "state": flat(state).upper() or "UNKNOWN"}
    return known | fields | texts


def _ray_state(client: Any, identifier: str) -> dict[str, Any]:
    found = ray_jobs.info(client, identifier)
    state = str(found.status.value)
    moment = found.end_time if state in ray_jobs.ENDED else found.start_time
    since = datetime.fromtimestamp(moment / 1000, UTC).isoformat(timespec="seconds") if moment else None
    return _job(
        identifier, "ray", plain_address(client.get_address()), state, since=since,
        entrypoint=found.entrypoint, message=found.message,
        exit_code=ray_jobs.outcome(found) if state in ray_jobs.ENDED else None,
        run=(found.metadata or {}).get("run", ""),
    )  # fmt: skip


def _kuberay_state(identifier: str, known: SentJob) -> dict[str, Any]:
    answer = kuberay.ask("get", "rayjobs.ray.io", identifier, "-o", "json", namespace=known.namespace or None)
    try:
        found = json.loads(answer)
        status = found.get("status", {})
    except (ValueError, AttributeError):
        raise LandscapeError(f"status: kubectl answers something else than a RayJob: {shown(answer)}") from None
    state = status.get("jobStatus") or status.get("jobDeploymentStatus") or "PENDING"
    since = status.get("endTime") or status.get("startTime") or found.get("metadata", {}).get("creationTimestamp")
    return _job(
        identifier, "kuberay", known.namespace, str(state), since=since,
        entrypoint=found.get("spec", {}).get("entrypoint", ""), message=status.get("message"),
        exit_code=None,
    )  # fmt: skip


def _slurm_state(identifier: str, known: SentJob) -> dict[str, Any]:
    """squeue knows jobs that have not ended or did so a moment ago, sacct the others, where the site keeps accounts."""
    waiting = _slurm_answer("squeue", "--noheader", f"--jobs={identifier}", "--format=%T|%S|%r")
    if waiting:
        state, start, reason = waiting
        return _job(
            identifier, "slurm", "", state, since=_moment(start) if state != "PENDING" else None, entrypoint="",
            message="" if reason == "None" else reason, exit_code=None,
        )  # fmt: skip
    fields = ("--parsable2", "--allocations", f"--jobs={identifier}", "--format=State,End,ExitCode")
    ended = _slurm_answer("sacct", "--noheader", *fields)
    if not ended:
        raise NotFoundError(
            f"status: Slurm knows no job {identifier} any more (asked squeue and sacct); its log is {known.log}"
        )
    code = ended[2].partition(":")[0]
    return _job(
        identifier, "slurm", "", ended[0], since=_moment(ended[1]), entrypoint="", message="",
        exit_code=int(code) if code.isdigit() else None,
    )  # fmt: skip


def _slurm_answer(tool: str, *words: str) -> list[str] | None:
    """The fields of the first line of what a tool of Slurm's prints; None where it knows no such job."""
    path = shutil.which(tool)
    if path is None:
        if tool == "sacct":
            return None
        raise tool_missing(tool, "slurm")
    found = subprocess.run([path, *words], capture_output=True, text=True, check=False)
    lines = found.stdout.strip().splitlines()
    fields = lines[0].split(SEPARATOR) if found.returncode == 0 and lines else []
    return fields if len(fields) == 3 else None


def _moment(text: str) -> str | None:
    """Slurm's local time, as the others give theirs."""
    try:
        return datetime.fromisoformat(text).astimezone(UTC).isoformat(timespec="seconds")
    except ValueError:
        return None


def job_status_text(found: dict[str, Any], now: float | None = None) -> str:
    """The state in a line, then what is known beside it, then the run's own status."""
    from cluster.status import status_text

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
