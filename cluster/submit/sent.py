"""A connection to the cluster that a job was sent to, by the job's identifier alone."""

from __future__ import annotations

from typing import Any

from cluster.submit.ray_jobs import connect, dashboard_address, surrounding_address
from cluster.submit.sent_jobs import SentJob, plain_address, recall, remember
from landscape.core.errors import ClusterUnreachableError, JobError, NotFoundError, shown


def connect_to(identifier: str, address: str | None, allow_open: bool, command: str) -> Any:
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
        return connect(known.address, allow_open or known.allow_open)
    try:
        return connect(address, allow_open)
    except ClusterUnreachableError:
        if known is not None or address is not None or surrounding_address():
            raise
        raise NotFoundError(
            f"no job {shown(identifier)} was sent from here, and at {shown(dashboard_address(None))}, the only "
            "address that was asked, nothing answers; give the --address that it was sent to"
        ) from None


def keep_address(identifier: str, address: str | None, allow_open: bool) -> None:
    """Remember an address that was given for a job, once it has proved right."""
    known = recall(identifier)
    if address is not None and (known is None or known.address != plain_address(address)):
        kept = dashboard_address(address)
        remember(identifier, SentJob("ray", known.run if known else "", kept, allow_open=allow_open))


def _by_hand(identifier: str, job: SentJob, command: str) -> str:
    """The command of the target's own that does what `command` does."""
    if job.target == "slurm":
        return f"give: tail -F {job.log}" if command == "logs" else f"give: scancel {identifier}"
    where = f"--namespace {job.namespace} " if job.namespace else ""
    if command == "logs":
        return f"give: kubectl {where}logs -f job/{identifier}"
    return f"give: kubectl {where}delete rayjob,configmap -l app.kubernetes.io/instance={identifier}"
