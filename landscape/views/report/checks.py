"""What the checks of a landscape found, below its figure."""

from __future__ import annotations

from html import escape

from landscape.record import MARKS, Checks
from landscape.surface import NOT_COMPUTED, Surface
from landscape.views.prepared.wording import whole


def checks_section(surface: Surface) -> str:
    """The verdict and a line for each check; empty where the landscape was not checked."""
    checks = surface.record.checks
    if checks is None:
        return ""
    items = "".join(
        f'<li class="{escape(check.state)}"><b>{MARKS[check.state].strip()}</b>{escape(check.text)}'
        f"{f'<br><i>{escape(check.remedy)}</i>' if check.remedy else ''}</li>"
        for check in checks.results
    )
    opened = " open" if checks.of("fails", "reservation") else ""
    return (
        f'<details class="checks"{opened}><summary>Can this picture be trusted? {escape(checks.verdict)}'
        f"{escape(_since(surface, checks))}</summary><ul>{items}</ul></details>"
    )


def _since(surface: Surface, checks: Checks) -> str:
    """That the landscape has more points by now than when it was checked."""
    points = int((surface.status != NOT_COMPUTED).sum())
    return f"; of {whole(checks.points)} of the {whole(points)} points of now" if points != checks.points else ""
