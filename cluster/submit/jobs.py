"""A Ray job: what is sent, which attempts there have been, how it ended, and its cancellation."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from cluster.runtime.shipping import Listing, archived
from cluster.submit.attempts import ENDED
from cluster.submit.ray_jobs import translated_errors
from cluster.submit.submission import DRIVER_ENVIRONMENT, STOP_SECONDS, Submission, command, first_line, quoted
from landscape.core.errors import Interrupted, JobError, LandscapeError

POLL_SECONDS = 0.5


def render(submission: Submission, listing: Listing) -> dict[str, Any]:
    """The arguments of `JobSubmissionClient.submit_job`, and under `files` what the working directory will hold."""
    # A recipe that is trained needs no files, and Ray takes no empty folder.
    shipped = {"working_dir": str(submission.folder)} if submission.training is None or listing.files else {}
    return {
        "submission_id": submission.id,
        "entrypoint": quoted(command(submission, submission.file)),
        "runtime_env": {**shipped, "env_vars": dict(DRIVER_ENVIRONMENT)},
        "metadata": {"run": submission.run, "job": submission.base},
        "files": {name: each.size for name, each in sorted(listing.files.items())},
    }


def attempts(client: Any) -> dict[str, str]:
    """The jobs of a cluster: submission id → status."""
    with translated_errors(client.get_address()):
        return {each.submission_id: each.status.value for each in client.list_jobs() if each.submission_id}


def send(client: Any, rendered: dict[str, Any], listing: Listing) -> str:
    """Submit the job with an archive of what is listed; its submission id."""
    given = {name: value for name, value in rendered.items() if name != "files"}
    with archived(listing) as path, translated_errors(client.get_address()):
        environment = rendered["runtime_env"]
        if "working_dir" in environment:
            environment = environment | {"working_dir": str(path)}
        try:
            return str(client.submit_job(**given | {"runtime_env": environment}))
        except ValueError as error:  # the archive is too large to ship
            raise JobError(f"job: its folder cannot be shipped: {first_line(str(error))}") from None


def outcome(found: Any) -> int:
    """The exit code that a job's end stands for."""
    if found.status.value == "SUCCEEDED":
        return 0
    if found.status.value == "STOPPED":
        return Interrupted.exit_code
    code = found.driver_exit_code
    if code is None or code == 0:
        return 1
    return 128 - int(code) if code < 0 else min(int(code), 255)  # below 0: the signal that killed it


def info(client: Any, submission_id: str) -> Any:
    """What the cluster knows of a job."""
    with translated_errors(client.get_address(), submission_id):
        return client.get_job_info(submission_id)


def cancel(client: Any, submission_id: str, clock: Callable[[], float] = time.monotonic) -> str:
    """Ask a job to stop and wait until it has; what it came to.

    Raises:
        LandscapeError: it is still there after its time to stop has passed.
    """
    with translated_errors(client.get_address(), submission_id):
        client.stop_job(submission_id)
        end = clock() + STOP_SECONDS + 30
        while clock() < end:
            status = str(client.get_job_info(submission_id).status.value)
            if status in ENDED:
                return status
            time.sleep(POLL_SECONDS)
    raise LandscapeError(f"cancel: {submission_id} has not stopped within {STOP_SECONDS + 30} s; see its log")
