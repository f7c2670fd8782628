"""What the checks of a landscape found, as text."""

from __future__ import annotations

from landscape.record import Checks


def checks_text(name: str, checks: Checks) -> str:
    """The verdict, and a line for each check."""
    lines = [f"{name}: can this picture be trusted?  {checks.verdict}"]
    return "\n".join([*lines, *(f" {check.line}" for check in checks.results)])
