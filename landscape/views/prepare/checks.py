"""What the checks of a landscape found, as report and page list it."""

from __future__ import annotations

from dataclasses import dataclass

from landscape.surface.record_entries import MARKS, Checks, CheckState
from landscape.views.prepare.words import whole

SAID: dict[CheckState, str] = {
    "holds": "holds",
    "reservation": "a reservation",
    "fails": "does not hold",
    "unjudged": "not judged",
    "information": "information",
}


@dataclass(frozen=True)
class CheckLine:
    """One check; `said` is its state in words, for those who do not see the mark."""

    number: str
    state: CheckState
    mark: str
    said: str
    text: str
    remedy: str


@dataclass(frozen=True)
class CheckList:
    """The verdict, and a line for each check; `opened` where there is something to read."""

    summary: str
    opened: bool
    lines: tuple[CheckLine, ...]


def prepare_checks(checks: Checks | None, points: int) -> CheckList | None:
    """The checks as they are listed; None of a landscape that was not checked.

    Args:
        points: how many points of the landscape are computed by now, which may be more than when it was checked.
    """
    if checks is None:
        return None
    since = f"; of {whole(checks.points)} of the {whole(points)} points of now" if points != checks.points else ""
    lines = tuple(
        CheckLine(each.number, each.state, MARKS[each.state].strip(), SAID[each.state], each.text, each.remedy)
        for each in checks.told
    )
    opened = bool(checks.of("fails", "reservation")) or checks.not_judged
    return CheckList(f"Can this picture be trusted? {checks.verdict}{since}", opened, lines)
