"""A Ray job: what is sent to a cluster's dashboard, and how its log, its outcome and its end are waited for."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

from cluster.process.logs import take_over
from cluster.session.attach import CONNECT_SECONDS, is_beyond, refuse_strangers, wrong_token
from cluster.shipping.archive import archived
from cluster.shipping.listing import Listing
from cluster.submit.common import (
    DRIVER_ENVIRONMENT,
    STOP_SECONDS,
    Submission,
    command,
    first_line,
    quoted,
)
from landscape.errors import (
    ClusterUnreachableError,
    Interrupted,
    JobError,
    LandscapeError,
    NotFoundError,
    masked,
    printable,
    shown,
)

DEFAULT_ADDRESS = "http://127.0.0.1:8265"
POLL_SECONDS = 0.5
# A log whose connection breaks this many times in a row without a new line is given up; the job goes on.
RECONNECTS = 20
LONGEST_LINE = 1 << 16  # characters of a log that are waited for
# Ray's job manager alone writes to a job's log; a line of this form by another module is the user's own.
SAID_BY_SYSTEM = re.compile(r"\[Errno -?\d+\] ([A-Z][a-z ]+)")  # amid what its libraries say
RAYS_REMARK = re.compile(r"^\d{4}-\d\d-\d\d [\d:,]+\t(?:DEBUG|INFO) job_manager\.py:\d+ -- .*\n?", re.MULTILINE)
ENDED = ("SUCCEEDED", "FAILED", "STOPPED")

Write = Callable[[str], None]


def render(submission: Submission, listing: Listing) -> dict[str, Any]:
    """The arguments of `JobSubmissionClient.submit_job`, and under `files` what the working directory will hold."""
    return {
        "submission_id": submission.id,
        "entrypoint": quoted(command(submission, submission.file)),
        "runtime_env": {
            "working_dir": str(submission.folder),
            "env_vars": dict(DRIVER_ENVIRONMENT),
        },
        "metadata": {"run": submission.run, "job": submission.base},
        "files": {name: each.size for name, each in sorted(listing.files.items())},
    }


# -- the connection ---------------------------------------------------------------------------------------------


def dashboard_address(given: str | None) -> str:
    """The dashboard's URL: as given, else from RAY_API_SERVER_ADDRESS or (a URL only) RAY_ADDRESS, else this machine.

    Raises:
        JobError: it is not an http URL.
    """
    address = given or surrounding_address() or DEFAULT_ADDRESS
    parts = urlsplit(address)
    if parts.query or parts.fragment:
        raise JobError(f"address: must be a URL without '?' and '#', not {shown(address)}; leave out what follows")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise JobError(
            f"address: must be the dashboard's URL such as {DEFAULT_ADDRESS}, not {shown(address)}; "
            "host:port of a head node serves `landscape run --address` only"
        )
    return address.rstrip("/")


def surrounding_address() -> str:
    """The dashboard's URL that the environment names; '' where it names none."""
    address = os.environ.get("RAY_ADDRESS", "")
    return os.environ.get("RAY_API_SERVER_ADDRESS") or (address if address.startswith("http") else "")


def connect(given: str | None, allow_open: bool = False) -> Any:
    """A `JobSubmissionClient`; the token is Ray's business (RAY_AUTH_MODE=token), and never passes through here.

    Raises:
        ClusterUnreachableError: no dashboard answers, or it asks for a token that this process does not have.
        JobError: it takes jobs from anybody, and is not called by an address on loopback.
    """
    address = dashboard_address(given)
    _refuse_unreachable(address)
    if not allow_open:
        _refuse_open(address)
    from ray.job_submission import JobSubmissionClient

    take_over("ray")
    with _only_address(address), _told(address):
        return JobSubmissionClient(address)


@contextlib.contextmanager
def _only_address(address: str) -> Iterator[None]:
    """Ray lets its own variables override an address that was given; here the given one counts."""
    name = "RAY_API_SERVER_ADDRESS"
    before = os.environ.get(name)
    os.environ[name] = address
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


@contextlib.contextmanager
def _told(address: str, job: str = "") -> Iterator[None]:
    """Ray's and the connection's errors in our words; `job` is the one that is asked for."""
    import requests
    from ray.exceptions import AuthenticationError

    try:
        yield
    except AuthenticationError:
        raise wrong_token(f"the dashboard at {shown(address)}") from None
    except (ConnectionError, requests.exceptions.RequestException) as error:
        kept = "; what the job has done is kept: the same command goes on" if job else ""
        raise ClusterUnreachableError(_unreachable(address, str(error)) + kept) from None
    except RuntimeError as error:
        if "status code 404" in str(error) or "does not exist" in str(error):
            raise NotFoundError(
                f"no job {shown(job)} at {shown(address)}, the only address that was asked; give the --address that it "
                "was sent to, or, where this head was started anew and has forgotten it, submit it again: it goes on"
            ) from None
        raise LandscapeError(f"the cluster at {shown(address)} refuses: {first_line(str(error))}") from error


def _host_port(address: str) -> tuple[str, int]:
    parts = urlsplit(address)
    return str(parts.hostname), parts.port or (443 if parts.scheme == "https" else 80)


def _refuse_unreachable(address: str) -> None:
    try:
        socket.create_connection(_host_port(address), CONNECT_SECONDS).close()
    except OSError as error:
        raise ClusterUnreachableError(_unreachable(address, str(error))) from None


def _unreachable(address: str, cause: str) -> str:
    said = SAID_BY_SYSTEM.search(cause)
    why = said[1].lower() if said else "no answer in time" if "timed out" in cause else first_line(cause, 150)
    return (
        f"address: no Ray dashboard answers at {shown(address)} ({why}); "
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


# -- sending ----------------------------------------------------------------------------------------------------


def next_attempt(base: str, known: dict[str, str]) -> int:
    """The first attempt that no job on the cluster has had.

    Args:
        known: submission id → status.

    Raises:
        LandscapeError: an earlier attempt has not ended.
    """
    numbers = [0]
    for each, status in known.items():
        found = re.fullmatch(rf"{re.escape(base)}-(\d+)", each)
        if found is None:
            continue
        if status not in ENDED:
            raise LandscapeError(
                f"submit: this job is on the cluster already, {status.lower()} as {each}; "
                f"see landscape logs {each}, or end it with landscape cancel {each}"
            )
        numbers.append(int(found[1]))
    return max(numbers) + 1


def attempts(client: Any) -> dict[str, str]:
    with _told(client.get_address()):
        return {each.submission_id: each.status.value for each in client.list_jobs() if each.submission_id}


def send(client: Any, rendered: dict[str, Any], listing: Listing) -> str:
    """Submit the job with an archive of what is listed; its submission id."""
    given = {name: value for name, value in rendered.items() if name != "files"}
    with archived(listing) as path, _told(client.get_address()):
        environment = rendered["runtime_env"] | {"working_dir": str(path)}
        try:
            return str(client.submit_job(**given | {"runtime_env": environment}))
        except ValueError as error:  # the archive is too large to ship
            raise JobError(f"job: its folder cannot be shipped: {first_line(str(error))}") from None


# -- waiting ----------------------------------------------------------------------------------------------------


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
    with _told(client.get_address(), submission_id):
        return client.get_job_info(submission_id)


def log_so_far(client: Any, submission_id: str) -> str:
    with _told(client.get_address(), submission_id):
        return fit_to_show(str(client.get_job_logs(submission_id)))


def fit_to_show(text: str) -> str:
    """A log without Ray's own remarks, without keys and without what would act on a terminal."""
    return printable(masked(RAYS_REMARK.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))))


class WholeLines:
    """Writes the lines of a text that comes in pieces, fit to be shown: a key may come in two pieces."""

    def __init__(self, write: Write) -> None:
        self._write, self._begun = write, ""

    def __call__(self, text: str) -> None:
        self._begun += text
        end = self._begun.rfind("\n") + 1 or (len(self._begun) if len(self._begun) > LONGEST_LINE else 0)
        if end:
            self._write(fit_to_show(self._begun[:end]))
            self._begun = self._begun[end:]

    def end(self) -> None:
        if self._begun:
            self._write(fit_to_show(self._begun))
            self._begun = ""


def follow(client: Any, submission_id: str, write: Write) -> int:
    """Write the job's log as it grows, until the job ends; its exit code."""
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
        with contextlib.suppress(OSError, RuntimeError):  # the connection broke: ask how the job is, then try again
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
    """The log from its character `skip` on; each connection tells it from the beginning."""
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


def cancel(client: Any, submission_id: str, clock: Callable[[], float] = time.monotonic) -> str:
    """Ask a job to stop and wait until it has; what it came to.

    Raises:
        LandscapeError: it is still there after its time to stop has passed.
    """
    with _told(client.get_address(), submission_id):
        client.stop_job(submission_id)
        end = clock() + STOP_SECONDS + 30
        while clock() < end:
            status = str(client.get_job_info(submission_id).status.value)
            if status in ENDED:
                return status
            time.sleep(POLL_SECONDS)
    raise LandscapeError(f"cancel: {submission_id} has not stopped within {STOP_SECONDS + 30} s; see its log")
