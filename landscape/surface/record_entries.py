"""What checks of a landscape found, as its document keeps it, and as one sentence says it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from pydantic import Strict

from landscape.surface.record_parts import AnyText, Count, Flag, Share, Text, each_sound

CheckState = Literal["holds", "reservation", "fails", "unjudged", "information"]
BATCH_NORM = "10"  # the number of the check of its statistics
BY_EVALUATION = ("1", "3", "4")  # centre, spot check, repetition: whether the values are those of the network
MARKS: dict[CheckState, str] = {"holds": "✓", "reservation": "!", "fails": "✗", "unjudged": "–", "information": " "}


@dataclass(frozen=True, kw_only=True)
class Check:
    """What one check found.

    Attributes:
        number: of the check, such as `8b`.
        name: in a word or two.
        state: `information` speaks neither for nor against the picture.
        text: a sentence with the numbers; of what is not judged, why.
        remedy: what to do about it; empty where nothing needs to be done.
        value: the number that was judged; None where there is none, or it is not finite.
        numbers: others that were measured, by name.
    """

    number: Text
    name: Text
    state: CheckState
    text: Text
    remedy: Text = ""
    value: Annotated[float, Strict()] | None = None
    numbers: dict[Text, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Checks:
    """All that the checks of a landscape found, and when.

    Attributes:
        when: a time in ISO format.
        version: of this software.
        points: how many evaluations of the landscape were done then.
        evaluations: what the checks cost, an evaluation of all samples each.
        deep: whether costly checks were asked for too.
        imported: whether the landscape is a surface of other software, behind which there is no network to evaluate.
        eigenvalues: whether the landscape has pictures of eigenvalues too, which no check judges.
    """

    when: AnyText = None
    version: AnyText = None
    points: Count = 0
    evaluations: Count = 0
    seconds: Share = 0.0
    deep: Flag = False
    imported: Flag = False
    eigenvalues: Flag = False
    results: Annotated[tuple[Check, ...], each_sound(Check)] = ()

    def of(self, *states: CheckState) -> list[Check]:
        """The checks that found this."""
        return [check for check in self.results if check.state in states]

    @property
    def told(self) -> list[Check]:
        """The results as they are shown: those that are not judged for the same reason are one."""
        alike: dict[str, list[Check]] = {}
        for each in self.of("unjudged"):
            alike.setdefault(each.text.removeprefix(f"{each.name}: "), []).append(each)
        shown = {of_one[0].number: _joined(of_one, reason) for reason, of_one in alike.items()}
        return [shown.get(each.number, each) for each in self.results if _is_shown(each, shown)]

    @property
    def fails(self) -> bool:
        """Whether one of them does not hold."""
        return bool(self.of("fails"))

    @property
    def not_judged(self) -> bool:
        """Whether it stays open if the picture can be trusted: no check that evaluates the network could be judged.

        Never of an imported surface, of which only the values can be judged; nor where a check does not hold, which is
        an answer.
        """
        judged = {check.number for check in self.of("holds", "reservation", "fails")}
        return not self.imported and not self.fails and judged.isdisjoint(BY_EVALUATION)

    @property
    def verdict(self) -> str:
        """What all of them say together, and what they cost."""
        failed, reserved, judged = self.of("fails"), self.of("reservation"), self.of("holds", "reservation", "fails")
        if failed:
            answer = f"no: {_count(len(failed), 'check')} {'does' if len(failed) == 1 else 'do'} not hold"
        elif self.not_judged:
            answer = "not judged: its network could not be evaluated"
        elif self.imported:
            answer = "nothing in its values speaks against it; whether they are right, no check of an import can tell"
        else:
            answer = "nothing speaks against it"
        answer += "; all of its loss, the eigenvalues are not judged" if self.eigenvalues else ""
        with_them = f", with {_count(len(reserved), 'reservation')}" if reserved else ""
        evaluations = _count(self.evaluations, "evaluation")
        return f"{answer}{with_them} ({_count(len(judged), 'check')}, {evaluations}, {self.seconds:.3g} s)"


def _joined(checks: list[Check], reason: str) -> Check:
    first, *others = checks
    if not others:
        return first
    return replace(first, text=f"{', '.join(each.name for each in checks)}: {reason}")


def _is_shown(check: Check, shown: dict[str, Check]) -> bool:
    return check.state != "unjudged" or check.number in shown


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
