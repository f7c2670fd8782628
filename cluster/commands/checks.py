"""What a check of `landscape doctor` is, and what its results are: what was looked at, its state, how to mend it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from landscape.core.errors import ClusterUnreachableError, LandscapeError, one_line

GOOD, NOTE, WRONG = "good", "note", "wrong"

# The keys are what, state, value and remedy, and `unreachable` where a cluster does not answer; `--json` prints them.
CheckResult = dict[str, str]
Check = Callable[[], Iterable[CheckResult]]


def result(what: str, state: str, value: str, remedy: str = "") -> CheckResult:
    """A result.

    Args:
        what: the thing that was looked at.
        state: GOOD, NOTE or WRONG.
        value: what was seen.
        remedy: how to mend it; empty where it is good.
    """
    return {"what": what, "state": state, "value": value, "remedy": remedy}


def judged(what: str, bad: bool, value: str, remedy: str, state: str = WRONG) -> CheckResult:
    """A result with this state and remedy where it is bad, else a good one without a remedy."""
    return result(what, state, value, remedy) if bad else result(what, GOOD, value)


def safely(what: str, check: Check) -> Iterator[CheckResult]:
    """The results of a check; where it raises, that is a result. Our own errors give the remedy after a semicolon."""
    try:
        yield from check()
    except LandscapeError as error:
        cause, _, remedy = str(error).removeprefix(f"{what}: ").partition("; ")
        kind = {"unreachable": "yes"} if isinstance(error, ClusterUnreachableError) else {}
        yield result(what, WRONG, cause, remedy) | kind
    except Exception as error:
        yield result(what, WRONG, one_line(error), "mend what the message says, then look again")


def exit_code(results: Iterable[CheckResult]) -> int:
    """5 where the cluster does not answer, 1 where anything else is wrong, else 0."""
    wrong = [one for one in results if one["state"] == WRONG]
    if any("unreachable" in one for one in wrong):
        return ClusterUnreachableError.exit_code
    return 1 if wrong else 0
