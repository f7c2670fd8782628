"""What Slurm says of a job."""

from __future__ import annotations

import shutil
import subprocess
from datetime import UTC, datetime
from typing import Any

from cluster.submit.job_state import job_state
from cluster.submit.sent_jobs import SentJob
from cluster.submit.submission import tool_missing
from landscape.core.errors import NotFoundError

SEPARATOR = "|"


def slurm_state(identifier: str, known: SentJob) -> dict[str, Any]:
    """squeue knows jobs that have not ended or did so a moment ago, sacct the others, where the site keeps accounts."""
    waiting = _slurm_answer("squeue", "--noheader", f"--jobs={identifier}", "--format=%T|%S|%r")
    if waiting:
        state, start, reason = waiting
        return job_state(
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
    return job_state(
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
