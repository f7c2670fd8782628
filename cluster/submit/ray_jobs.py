"""Jobs on a running Ray cluster, through its dashboard: to send, follow, query and cancel them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cluster.runtime.address import CONNECT_SECONDS, is_beyond, refuse_strangers, wrong_token
from cluster.runtime.logs import LONGEST_LINE, in_environment, quieten, write_remark
from cluster.runtime.options import Flag, MaybeWhole, Words, check_limit, check_workers
from cluster.runtime.shipping import SentFiles, write_archive
from cluster.submit.options import SubmitOptions, folder_listing, follow_to_end, tell_files, write_error
from cluster.submit.submission import (
    DRIVER_ENVIRONMENT,
    ENDED,
    STOP_SECONDS,
    SentJob,
    Submission,
    Work,
    command,
    first_line,
    job_state,
    next_attempt,
    plain_address,
    recall,
    remember,
)
from landscape.core.errors import (
    ClusterUnreachableError,
    Interrupted,
    JobError,
    LandscapeError,
    NotFoundError,
    masked,
    printable,
    quoted,
)
from landscape.core.system import user_name

DEFAULT_ADDRESS = "http://127.0.0.1:8265"
SYSTEM_ERROR = re.compile(r"\[Errno -?\d+\] ([A-Z][a-z ]+)")  # the cause, in the text of a library's error


def dashboard_address(given: str | None) -> str:
    """The dashboard's URL: as given, else from RAY_API_SERVER_ADDRESS or (a URL only) RAY_ADDRESS, else this machine.

    Raises:
        JobError: it is not an http URL.
    """
    address = given or surrounding_address() or DEFAULT_ADDRESS
    parts = urlsplit(address)
    if parts.query or parts.fragment:
        raise JobError(f"address: must be a URL without '?' and '#', not {quoted(address)}; leave out what follows")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise JobError(
            f"address: must be the dashboard's URL such as {DEFAULT_ADDRESS}, not {quoted(address)}; "
            "host:port of a head node serves `landscape run --address` only"
        )
    return address.rstrip("/")


def surrounding_address() -> str:
    """The dashboard's URL that the environment names; '' if it names none."""
    address = os.environ.get("RAY_ADDRESS", "")
    return os.environ.get("RAY_API_SERVER_ADDRESS") or (address if address.startswith("http") else "")


def connect(given: str | None, allow_open: bool = False) -> Any:
    """A `JobSubmissionClient`; Ray itself reads and sends the token (RAY_AUTH_MODE=token).

    Raises:
        ClusterUnreachableError: no dashboard answers, or it asks for a token that this process does not have.
        JobError: it asks for no token, and its address is not a loopback address.
    """
    from cluster.runtime.session import refuse_without_ray  # needs torch, which the help of commands does not

    refuse_without_ray(or_serial=False)
    address = dashboard_address(given)
    _refuse_unreachable(address)
    if not allow_open:
        _refuse_open(address)
    from ray.job_submission import JobSubmissionClient

    quieten("ray")
    # Ray would prefer the address in its own environment variables to its argument.
    with in_environment("RAY_API_SERVER_ADDRESS", address), translate_errors(address):
        return JobSubmissionClient(address)


@contextlib.contextmanager
def translate_errors(address: str, job: str = "") -> Iterator[None]:
    """Turn errors of Ray and of the connection into ours; `job` is the job that the caller asks for."""
    import requests
    from ray.exceptions import AuthenticationError

    try:
        yield
    except AuthenticationError:
        raise wrong_token(f"the dashboard at {quoted(address)}") from None
    except (ConnectionError, requests.exceptions.RequestException) as error:
        kept = "; what the job has done is kept: the same command goes on" if job else ""
        raise ClusterUnreachableError(_unreachable(address, str(error)) + kept) from None
    except RuntimeError as error:
        if "status code 404" in str(error) or "does not exist" in str(error):
            raise NotFoundError(
                f"no job {quoted(job)} at {quoted(address)}, the only address that was asked; give the --address that "
                "it was sent to, or, if this head was restarted and has forgotten it, submit it again: it resumes"
            ) from None
        raise LandscapeError(f"the cluster at {quoted(address)} refuses: {first_line(str(error))}") from error


def _host_port(address: str) -> tuple[str, int]:
    parts = urlsplit(address)
    return str(parts.hostname), parts.port or (443 if parts.scheme == "https" else 80)


def _refuse_unreachable(address: str) -> None:
    try:
        socket.create_connection(_host_port(address), CONNECT_SECONDS).close()
    except OSError as error:
        raise ClusterUnreachableError(_unreachable(address, str(error))) from None


def _unreachable(address: str, cause: str) -> str:
    said = SYSTEM_ERROR.search(cause)
    why = said[1].lower() if said else "no answer in time" if "timed out" in cause else first_line(cause, 150)
    return (
        f"address: no Ray dashboard answers at {quoted(address)} ({why}); "
        "start the head with a dashboard, forward its port, or give --address"
    )


def _refuse_open(address: str) -> None:
    import requests

    host, port = _host_port(address)
    if not is_beyond(host, port):
        return
    try:
        answer = requests.get(f"{address}/api/jobs/", timeout=CONNECT_SECONDS)
    except requests.exceptions.RequestException as error:
        raise ClusterUnreachableError(_unreachable(address, str(error))) from None
    if answer.status_code == 200:
        refuse_strangers(host, port, address)


# ----------------------------------------------------------------------------------------------------
# A Ray job: its rendering, its attempts, its outcome, and its cancellation.

POLL_SECONDS = 0.5


def render(submission: Submission, listing: SentFiles) -> dict[str, Any]:
    """The arguments of `JobSubmissionClient.submit_job`, and under `files` the files of the working directory."""
    # The training of a recipe needs no files, and Ray does not accept an empty folder.
    shipped = {"working_dir": str(submission.folder)} if submission.training is None or listing.files else {}
    return {
        "submission_id": submission.id,
        "entrypoint": shlex.join(command(submission, submission.file)),
        "runtime_env": {**shipped, "env_vars": DRIVER_ENVIRONMENT | submission.environment},
        "metadata": {"run": submission.run, "job": submission.base},
        "files": {name: file.size for name, file in sorted(listing.files.items())},
    }


def attempts(client: Any) -> dict[str, str]:
    """The jobs of a cluster: submission id → status."""
    with translate_errors(client.get_address()):
        return {job.submission_id: job.status.value for job in client.list_jobs() if job.submission_id}


def send(client: Any, rendered: dict[str, Any], listing: SentFiles) -> str:
    """Submit the job with an archive of the listed files; returns its submission id."""
    given = {name: value for name, value in rendered.items() if name != "files"}
    with write_archive(listing) as path, translate_errors(client.get_address()):
        environment = rendered["runtime_env"]
        # The head's account is one for all users: without this the job's metrics would not tell them apart.
        environment = environment | {"env_vars": environment["env_vars"] | {"LOGNAME": user_name()}}
        if "working_dir" in environment:
            environment = environment | {"working_dir": str(path)}
        try:
            return str(client.submit_job(**given | {"runtime_env": environment}))
        except ValueError as error:  # the archive is too large to ship
            raise JobError(f"job: its folder cannot be shipped: {first_line(str(error))}") from None


def outcome(found: Any) -> int:
    """The exit code for the way in which a job ended."""
    if found.status.value == "SUCCEEDED":
        return 0
    if found.status.value == "STOPPED":
        return Interrupted.exit_code
    code = found.driver_exit_code
    if code is None or code == 0:
        return 1
    return 128 - int(code) if code < 0 else min(int(code), 255)  # below 0: the signal that killed it


def info(client: Any, submission_id: str) -> Any:
    """The cluster's details of a job."""
    with translate_errors(client.get_address(), submission_id):
        return client.get_job_info(submission_id)


def cancel(client: Any, submission_id: str, clock: Callable[[], float] = time.monotonic) -> str:
    """Ask a job to stop and wait until it has; returns its final status.

    Raises:
        LandscapeError: it still runs after its time to stop.
    """
    with translate_errors(client.get_address(), submission_id):
        client.stop_job(submission_id)
        end = clock() + STOP_SECONDS + 30
        while clock() < end:
            status = str(client.get_job_info(submission_id).status.value)
            if status in ENDED:
                return status
            time.sleep(POLL_SECONDS)
    raise LandscapeError(f"cancel: {submission_id} has not stopped within {STOP_SECONDS + 30} s; see its log")


# ----------------------------------------------------------------------------------------------------
# The log of a Ray job: the part written so far, or until the job ends.

# If the connection breaks this many times in a row without a new line, following ends; the job continues.
RECONNECTS = 20
# Only Ray's job manager writes to a job's log; a line of this form by another module is the user's own.
RAYS_REMARK = re.compile(r"^\d{4}-\d\d-\d\d [\d:,]+\t(?:DEBUG|INFO) job_manager\.py:\d+ -- .*\n?", re.MULTILINE)

Write = Callable[[str], None]


def log_so_far(client: Any, submission_id: str) -> str:
    """The log as written so far."""
    with translate_errors(client.get_address(), submission_id):
        return fit_to_show(str(client.get_job_logs(submission_id)))


def fit_to_show(text: str) -> str:
    """The log without Ray's own lines, without keys and without control characters."""
    return printable(masked(RAYS_REMARK.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))))


class WholeLines:
    """Writes a text that arrives in pieces line by line: a key that must be masked may be split between two pieces."""

    def __init__(self, write: Write) -> None:
        self._write, self._begun = write, ""

    def __call__(self, text: str) -> None:
        self._begun += text
        end = self._begun.rfind("\n") + 1 or (len(self._begun) if len(self._begun) > LONGEST_LINE else 0)
        if end:
            self._write(fit_to_show(self._begun[:end]))
            self._begun = self._begun[end:]

    def end(self) -> None:
        """Write the last line, which has no line break."""
        if self._begun:
            self._write(fit_to_show(self._begun))
            self._begun = ""


def follow(client: Any, submission_id: str, write: Write) -> int:
    """Write the job's log as it grows, until the job ends; returns the job's exit code."""
    lines = WholeLines(write)
    try:
        return _follow(client, submission_id, lines)
    finally:
        lines.end()


def _follow(client: Any, submission_id: str, write: Write) -> int:
    written, failures = 0, 0
    told_waiting = False
    while True:
        found = info(client, submission_id)
        if found.status.value == "PENDING":
            if found.message and not told_waiting:
                write(f"{first_line(found.message)}\n")
                told_waiting = True
            time.sleep(POLL_SECONDS)
            continue
        before, whole = written, False
        with contextlib.suppress(OSError, RuntimeError):  # the connection broke: ask for the status, then try again
            for text in _tail(client, submission_id, written):
                write(text)
                written += len(text)
            whole = True
        found = info(client, submission_id)
        failures = failures + 1 if written == before else 0
        if found.status.value in ENDED and (whole or failures > RECONNECTS):
            if found.status.value == "FAILED" and found.driver_exit_code is None and found.message:
                write(f"{first_line(found.message)}\n")
            return outcome(found)
        if failures > RECONNECTS:
            raise ClusterUnreachableError(
                f"the log of {submission_id} broke off; the job goes on: landscape logs {submission_id} --follow"
            )
        time.sleep(POLL_SECONDS)


def _tail(client: Any, submission_id: str, skip: int) -> Iterator[str]:
    """The log from its character `skip` on; each connection sends it from the beginning."""
    import asyncio  # only here: the help of every command would wait for it

    with asyncio.Runner() as runner:
        lines = client.tail_job_logs(submission_id)
        with contextlib.suppress(StopAsyncIteration):
            while True:
                text = runner.run(_next(lines))
                if len(text) > skip:
                    yield text[skip:]
                skip = max(0, skip - len(text))


async def _next(lines: Any) -> str:
    return str(await anext(lines))


def ray_state(client: Any, identifier: str) -> dict[str, Any]:
    """The state of a job, from its dashboard."""
    found = info(client, identifier)
    state = str(found.status.value)
    moment = found.end_time if state in ENDED else found.start_time
    since = datetime.fromtimestamp(moment / 1000, UTC).isoformat(timespec="seconds") if moment else None
    return job_state(
        identifier, "ray", plain_address(client.get_address()), state, since=since,
        entrypoint=found.entrypoint, message=found.message,
        exit_code=outcome(found) if state in ENDED else None,
        run=(found.metadata or {}).get("run", ""),
    )  # fmt: skip


@dataclass(frozen=True)
class RayTarget:
    """A running Ray cluster, through its dashboard."""

    address: str | None = None
    """The dashboard's URL; default: RAY_API_SERVER_ADDRESS, RAY_ADDRESS, http://127.0.0.1:8265."""
    detach: Flag = False
    """End when the job is accepted, without following its log."""
    allow_open: Flag = False
    """Also send to a cluster that is not on this machine and asks for no token."""
    max_workers: MaybeWhole = None
    """At most so many workers; a larger --workers is refused. Default: LANDSCAPE_MAX_WORKERS there."""
    worker_resources: Words = None
    """NAME=AMOUNT of a custom resource of the cluster that each worker needs; may be repeated."""

    @property
    def words(self) -> tuple[str, ...]:
        """The words of the driver's command that these options are.

        Raises:
            JobError: one of them makes no sense.
        """
        from landscape.job.job import custom_resources  # here, since `--help` imports this file too

        try:
            custom_resources(self.worker_resources or [])
        except ValueError as error:
            raise JobError(f"worker_resources: {error}") from None
        check_workers(self.max_workers, "max_workers")
        most = [] if self.max_workers is None else ["--max-workers", str(self.max_workers)]
        return (*most, *(f"--worker-resources={text}" for text in self.worker_resources or []))

    def send(self, asked: SubmitOptions, job: Work, file: Path) -> int:
        """Send the job and follow its log, or with --dry-run print what would be sent; returns the exit code."""
        submission = replace(asked.submission(job, file, job.run_path), further=self.words)
        check_limit(asked.workers or job.workers, self.max_workers or job.max_workers)
        listing = folder_listing(job, file, submission.run, asked.include or ())
        tell_files(listing, asked.dry_run)
        if asked.dry_run:
            asked.look(job, file, submission.run, listing)
            print(json.dumps(render(submission, listing), indent=2))
            return 0
        client = connect(self.address, self.allow_open)
        if asked.attempt is None:
            number = next_attempt(submission.base, attempts(client))
            submission = replace(submission, attempt=number)
        asked.look(job, file, submission.run, listing)
        identifier = send(client, render(submission, listing), listing)
        address = dashboard_address(self.address)
        remember(identifier, SentJob("ray", submission.run, address, allow_open=self.allow_open))
        print(identifier, flush=True)
        if self.detach:
            write_remark(
                f"sent; see landscape logs {identifier} --follow, or end it with landscape cancel {identifier}"
            )
            return 0
        return follow_to_end(identifier, lambda: follow(client, identifier, write_error))


# ----------------------------------------------------------------------------------------------------
# Connecting to the cluster of a sent job, by the job's identifier alone.


def connect_to(identifier: str, address: str | None, allow_open: bool, command: str) -> Any:
    """A client for the cluster of a sent job: at `address`, else at the address remembered for the job.

    Raises:
        JobError: the job was not sent to Ray; names the command to use instead.
        ClusterUnreachableError: the cluster does not answer.
        NotFoundError: neither the job nor its cluster is known.
    """
    known = recall(identifier)
    if known is not None and known.target != "ray" and address is None:
        raise JobError(f"{command}: {identifier} was sent to {known.target}; {_by_hand(identifier, known, command)}")
    if address is None and known is not None and known.address:
        return connect(known.address, allow_open or known.allow_open)
    try:
        return connect(address, allow_open)
    except ClusterUnreachableError:
        if known is not None or address is not None or surrounding_address():
            raise
        raise NotFoundError(
            f"no job {quoted(identifier)} was sent from here, and at {quoted(dashboard_address(None))}, the only "
            "address that was asked, nothing answers; give the --address that it was sent to"
        ) from None


def keep_address(identifier: str, address: str | None, allow_open: bool) -> None:
    """Remember an address that was given for a job and has proved right."""
    known = recall(identifier)
    if address is not None and (known is None or known.address != plain_address(address)):
        kept = dashboard_address(address)
        remember(identifier, SentJob("ray", known.run if known else "", kept, allow_open=allow_open))


def _by_hand(identifier: str, job: SentJob, command: str) -> str:
    """The command of Slurm or Kubernetes that is equivalent to `command`."""
    if job.target == "slurm":
        return f"give: tail -F {job.log}" if command == "logs" else f"give: scancel {identifier}"
    where = f"--namespace {job.namespace} " if job.namespace else ""
    if command == "logs":
        return f"give: kubectl {where}logs -f job/{identifier}"
    return f"give: kubectl {where}delete rayjob,configmap -l app.kubernetes.io/instance={identifier}"
