"""What the checks of a landscape found, as text."""

from __future__ import annotations

import textwrap
from functools import partial

from landscape.surface.record_entries import MARKS, Checks

WIDTH = 92

_wrapped = partial(textwrap.fill, width=WIDTH, subsequent_indent="   ", break_on_hyphens=False)


def checks_text(name: str, checks: Checks) -> str:
    """The verdict, and what each check found."""
    lines = [_wrapped(f"{name}: can this picture be trusted? {checks.verdict}")]
    for check in checks.told:
        said = f"{check.text}; {check.remedy}" if check.remedy else check.text
        lines.append(_wrapped(said, initial_indent=f" {MARKS[check.state]} "))
    return "\n".join(lines)
