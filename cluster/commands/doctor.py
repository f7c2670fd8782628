"""`landscape doctor`: what this machine, cluster and run have, and what is wrong."""

from __future__ import annotations

from cluster.commands.output import Json, show
from cluster.runtime.console import diverted


def doctor(*, address: str | None = None, run: str | None = None, json: Json = False) -> int:
    """Show what this machine, cluster and run have, what is wrong, and how to mend it.

    Exit code 1 where something is wrong, 5 where the cluster does not answer.

    Parameters
    ----------
    address
        A Ray cluster to look at too.
    run
        A run folder or URL to try out too: a probe is written there, read, listed and deleted.
    """
    from cluster.commands.checks import exit_code
    from cluster.commands.diagnosis import diagnose, diagnosis_text

    with diverted():
        found = diagnose(address, run)
    show(found, json, diagnosis_text(found))
    return exit_code(found)
