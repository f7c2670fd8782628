"""All checks in turn, and their results as text."""

from __future__ import annotations

import socket
from functools import partial

from cluster.commands.checks import CheckResult, safely
from cluster.commands.machine import MACHINE_CHECKS
from cluster.commands.nodes import examine
from cluster.commands.run_place import probe_run


def diagnose(address: str | None = None, run: str | None = None) -> list[CheckResult]:
    """The results of every check; a check that raises gives a result too.

    Args:
        address: a Ray cluster to look at too.
        run: a run folder or URL to try out too.
    """
    checks = [*MACHINE_CHECKS]
    if run is not None:
        checks.append(("run", partial(probe_run, run)))
    if address is not None:
        checks.append(("address", partial(examine, address)))
    return [one for what, check in checks for one in safely(what, check)]


def diagnosis_text(results: list[CheckResult]) -> str:
    """The results as aligned lines."""
    width = max(len(one["what"]) for one in results)
    lines = []
    for one in results:
        remedy = f"; {one['remedy']}" if one["remedy"] else ""
        lines.append(f"{one['state']:5}  {one['what']:{width}}  {one['value']}{remedy}")
    lines.append(f"on {socket.gethostname()}")
    return "\n".join(lines)
