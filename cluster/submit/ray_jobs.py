"""A connection to the dashboard of a Ray cluster, and its errors in our words."""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from cluster.runtime.address import CONNECT_SECONDS, is_beyond, refuse_strangers, wrong_token
from cluster.runtime.logs import in_environment, take_over
from cluster.submit.submission import first_line
from landscape.core.errors import ClusterUnreachableError, JobError, LandscapeError, NotFoundError, shown

DEFAULT_ADDRESS = "http://127.0.0.1:8265"
SYSTEM_ERROR = re.compile(r"\[Errno -?\d+\] ([A-Z][a-z ]+)")  # the cause within the error of a library that says why


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
    # Ray would take the address of its own variables before the one that it is given.
    with in_environment("RAY_API_SERVER_ADDRESS", address), translated_errors(address):
        return JobSubmissionClient(address)


@contextlib.contextmanager
def translated_errors(address: str, job: str = "") -> Iterator[None]:
    """Turn errors of Ray and of the connection into ours; `job` is the one that is asked for."""
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
    said = SYSTEM_ERROR.search(cause)
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
