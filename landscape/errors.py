"""The errors a user meets: one or two lines that name the argument, the rule, the value and the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class LandscapeError(Exception):
    """Base of all errors raised on purpose; `exit_code` is what the command line ends with."""

    exit_code = 1


class JobError(LandscapeError, ValueError):
    """The job, an option or the user's callback is not usable as given."""

    exit_code = 2


class NotFoundError(LandscapeError, KeyError):
    """A run, landscape, snapshot or file that was named does not exist; a KeyError, so that `name in run` works."""

    exit_code = 3
    __str__ = Exception.__str__  # KeyError's would put the message in quotes


class ClusterUnreachableError(LandscapeError, ConnectionError):
    """No Ray cluster answers at the given address."""

    exit_code = 5


class StoreError(LandscapeError):
    """An object store does not answer, or refuses; never a sign of damage: what it holds is as it was.

    `reason` is the cause alone; `passing` says that a connection broke, which another try may mend.
    """

    def __init__(self, message: str, *, reason: str = "", passing: bool = False) -> None:
        super().__init__(message)
        self.reason, self.passing = reason, passing


class Interrupted(LandscapeError):
    """SIGINT or SIGTERM arrived: the store is valid and the same command goes on."""

    exit_code = 130


def nearest(name: str, known: Iterable[str]) -> str:
    """A remedy for a wrong name: the closest known one, then the list of all."""
    names = [str(each) for each in known]
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}known: {', '.join(names) or 'none'}"


def one_line(error: BaseException) -> str:
    """An exception as 'Type: message' on one line of at most 300 characters."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:300] if text else type(error).__name__
