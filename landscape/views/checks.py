"""What the checks of a landscape found, below its figure."""

from __future__ import annotations

from html import escape

from landscape.surface.surface import NOT_COMPUTED, Surface
from landscape.views.prepare.checks import prepare_checks


def checks_section(surface: Surface) -> str:
    """The verdict and a line for each check; empty where the landscape was not checked."""
    listed = prepare_checks(surface.record.checks, int((surface.status != NOT_COMPUTED).sum()))
    if listed is None:
        return ""
    items = "".join(
        f'<li class="{escape(line.state)}"><b>{line.mark}</b>{escape(line.text)}'
        f"{f'<br><i>{escape(line.remedy)}</i>' if line.remedy else ''}</li>"
        for line in listed.lines
    )
    opened = " open" if listed.opened else ""
    return f'<details class="checks"{opened}><summary>{escape(listed.summary)}</summary><ul>{items}</ul></details>'
