"""`landscape cancel`: stop a job on a Ray cluster."""

from __future__ import annotations

from cluster.runtime.options import Flag


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
    from cluster.submit import ray_jobs
    from cluster.submit.ray_jobs import connect_to, keep_address

    client = connect_to(identifier, address, allow_open, "cancel")
    ended = ray_jobs.cancel(client, identifier)
    keep_address(identifier, address, allow_open)
    print(f"{identifier} {ended.lower()}", flush=True)
    return 0
