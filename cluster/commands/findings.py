"""What `landscape doctor` finds: a thing looked at, how it is, what was seen, and how to mend it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from landscape.errors import ClusterUnreachableError, LandscapeError, one_line

GOOD, NOTE, WRONG = "good", "note", "wrong"

Finding = dict[str, str]
Check = Callable[[], Iterable[Finding]]


def finding(what: str, state: str, value: str, remedy: str = "") -> Finding:
    return {"what": what, "state": state, "value": value, "remedy": remedy}


def judged(what: str, bad: bool, value: str, remedy: str, state: str = WRONG) -> Finding:
    """Good, without a remedy, unless it is bad."""
    return finding(what, state, value, remedy) if bad else finding(what, GOOD, value)


def safely(what: str, check: Check) -> Iterator[Finding]:
    """What a check finds; one that breaks is itself a finding. Our own errors carry their remedy after a semicolon."""
    try:
        yield from check()
    except LandscapeError as error:
        said, _, remedy = str(error).removeprefix(f"{what}: ").partition("; ")
        kind = {"unreachable": "yes"} if isinstance(error, ClusterUnreachableError) else {}
        yield finding(what, WRONG, said, remedy) | kind
    except Exception as error:
        yield finding(what, WRONG, one_line(error), "mend what the message says, then look again")


def exit_code(found: Iterable[Finding]) -> int:
    """5 where the cluster does not answer, 1 where anything else is wrong, else 0."""
    wrong = [each for each in found if each["state"] == WRONG]
    if any("unreachable" in each for each in wrong):
        return ClusterUnreachableError.exit_code
    return 1 if wrong else 0
