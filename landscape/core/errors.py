"""The errors that a user meets, and the functions that put values and other exceptions into their messages.

A message has one or two lines, `field: rule, not value; remedy`. Whatever it repeats of a user's value or of another
exception is bounded in length, printable, and without passwords and keys.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

# The exit codes of the commands.
DONE, FAILED, BAD_USAGE, NOT_FOUND, PARTIAL, UNREACHABLE, INTERRUPTED = 0, 1, 2, 3, 4, 5, 130

LONGEST_VALUE = 200  # characters of a value that a message repeats
LONGEST_SEARCHED = 20_000  # characters of a value that are searched for passwords and keys
LONGEST_NUMBER = 1024  # bits of a whole number that is spelled out
MOST_ELEMENTS = 12  # of each list or dict in a value
LONGEST_LINE = 300  # characters of the message of another library's exception
LONGEST_OWN_LINE = 1000  # characters of each line of an error of ours
MOST_NAMES = 24  # names that a remedy lists

# Characters that move the cursor, change colours, reverse the direction of reading or cannot be encoded. Line breaks
# and tabs are none of them.
UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")

_END = r"\s\"'\\<>"  # the characters that end a URL in a text, or in JSON
# name:password@, where the password may hold a slash, as the secret keys of S3 do; host:port/ is not taken for it.
_USER = re.compile(rf"(?<=://)(?:[^{_END}/?#]*@|[^{_END}/@?#]+:(?!\d{{1,5}}/)[^{_END}@]*@)")
# A whole query is masked, since whoever signs a URL chooses the names of its parameters.
_QUERY = re.compile(rf"(://[^{_END}?#]*)(?:\?[^{_END}]+|#[^{_END}]*=[^{_END}]*)")
_SECRET_NAMES = (
    r"sig|[\w.-]*(?:signature|token|secret|passw|credential|api[-_]?key|access[-_]?key|account[-_]?key)[\w.-]*"
)
_PARAMETER = re.compile(rf"(?i)([?&;](?:{_SECRET_NAMES}|key|googleaccessid)=)[^{_END}&;]+")
_VARIABLE = re.compile(
    rf"\b((?:[A-Z0-9_]*(?:SECRET|TOKEN|PASSWORD|ACCESS_KEY|API_KEY)[A-Z0-9_]*|AccountKey|aws_secret_access_key)=)[^{_END};]+"
)
_BEARER = re.compile(rf"(?i)\b(bearer|basic)[ \t]+(?=[^{_END}]*[\d.=/+_-])[^{_END}]{{16,}}")


class LandscapeError(Exception):
    """Base of all errors that are raised on purpose; `exit_code` is what a command then exits with."""

    exit_code = FAILED


class JobError(LandscapeError, ValueError):
    """The job, an option or the user's callback is not usable as given."""

    exit_code = BAD_USAGE


class NotRetried(JobError):
    """An error that another attempt would not mend, so that the job ends instead of giving up a task."""


class ComputedOtherwise(JobError):
    """A job contradicts the landscape of that name on disk, whose values another job decided."""


class NotFoundError(LandscapeError, KeyError):
    """A run, landscape, snapshot or file that was named does not exist.

    It is a KeyError, so that `name in run` works.
    """

    exit_code = NOT_FOUND
    __str__ = Exception.__str__  # KeyError's own would put the message in quotes


class ClusterUnreachableError(LandscapeError, ConnectionError):
    """No Ray cluster answers at the given address."""

    exit_code = UNREACHABLE


class StoreError(LandscapeError):
    """An object store does not answer, or refuses. What it holds is as it was: this is never a sign of damage.

    Args:
        message: the whole message.
        reason: the cause alone.
        passing: whether a connection broke, so that another attempt may succeed.
    """

    def __init__(self, message: str, *, reason: str = "", passing: bool = False) -> None:
        super().__init__(message)
        self.reason, self.passing = reason, passing


class Interrupted(LandscapeError):
    """SIGINT or SIGTERM arrived. The store is valid, and the same command continues the job."""

    exit_code = INTERRUPTED


def masked(text: str) -> str:
    """The text without passwords, keys and the queries of URLs.

    Example:
        >>> masked("s3://name:secret@bucket/run?X-Amz-Signature=12ab")
        's3://…@bucket/run?…'
    """
    if "://" in text:
        text = _QUERY.sub(r"\1?…", _USER.sub("…@", text))
    text = _VARIABLE.sub(r"\1…", _PARAMETER.sub(r"\1…", text))
    return _BEARER.sub(r"\1 …", text)


def holds_credentials(url: str) -> bool:
    """Whether a URL holds something that `masked` would leave out."""
    return "://" in url and masked(url) != url


def printable(text: str) -> str:
    """The text with every control character spelled out as \\uXXXX, so that it cannot act on a terminal.

    Line breaks and tabs stay. The spelling is JSON's own, so a JSON text means the same before and after.
    """
    return UNPRINTABLE.sub(lambda character: f"\\u{ord(character[0]):04x}", text)


def capped(text: str, longest: int) -> str:
    """The text in at most `longest` characters: the middle of a longer one is left out.

    Example:
        >>> capped("abcdefghij", 5)
        'ab…ij'
    """
    if len(text) <= longest:
        return text
    start = (longest - 1) // 2
    return f"{text[:start]}…{text[start + 1 - longest :]}"


def flat(text: str, longest: int = LONGEST_LINE) -> str:
    """The text as one printable line of at most `longest` characters, without passwords and keys.

    Example:
        >>> flat("two\\n  lines")
        'two lines'
    """
    # Cut a long text first: megabytes of white space are not worth the time.
    return capped(printable(" ".join(masked(capped(text, 20 * longest)).split())), longest)


def _brief(value: object, depth: int = 4) -> str:
    """A repr of a bounded part of the value, however large the value is or claims to be.

    `depth` is how many levels of lists and dicts inside one another it enters.
    """
    if isinstance(value, str):
        # Mask the text before cutting it: a part of a URL would not be recognised as one.
        return repr(capped(masked(value[:LONGEST_SEARCHED]), LONGEST_VALUE - 2))  # two characters are its quotes
    if isinstance(value, bytes):
        return repr(value[:LONGEST_VALUE])
    if isinstance(value, int) and value.bit_length() > LONGEST_NUMBER:
        return f"a number of {value.bit_length()} bits"  # Python refuses to spell out thousands of digits
    if isinstance(value, Mapping):
        pieces = [f"{_brief(key, depth - 1)}: {_brief(value[key], depth - 1)}" for key in _first(value, depth)]
        return "{" + ", ".join(pieces + ["..."] * (len(value) > len(pieces))) + "}"
    if isinstance(value, (list, tuple, set, frozenset)):
        pieces = [_brief(element, depth - 1) for element in _first(value, depth)]
        left, right = "[]" if isinstance(value, list) else "()" if isinstance(value, tuple) else "{}"
        return left + ", ".join(pieces + ["..."] * (len(value) > len(pieces))) + right
    return repr(value)


def _first(values: Iterable[Any], depth: int) -> Iterable[Any]:
    return islice(values, MOST_ELEMENTS if depth > 0 else 0)


def quoted(value: object, longest: int = LONGEST_VALUE) -> str:
    """A value as messages repeat it: its repr, bounded in length and in the time that it takes to make.

    Example:
        >>> quoted(["a", "b"])
        "['a', 'b']"
    """
    try:
        return flat(_brief(value), longest)
    except Exception:  # the value's own __repr__ or __len__ fails
        return f"a value of type {flat(type(value).__name__, 60)}"


def nearest(name: str, known: Iterable[str]) -> str:
    """A remedy for a wrong name: the known name that is closest to it, then the list of all known names.

    Example:
        >>> nearest("acuracy", ["accuracy", "top5", "error"])
        "did you mean 'accuracy'? known: accuracy, top5, error"
    """
    names = [str(known_name) for known_name in known]
    close = difflib.get_close_matches(name[:LONGEST_VALUE], names, n=1, cutoff=0.5)
    hint = f"did you mean {quoted(close[0])}? " if close else ""
    rest = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    listed = ", ".join(flat(known_name, LONGEST_VALUE) for known_name in names[:MOST_NAMES])
    return f"{hint}known: {listed or 'none'}{rest}"


def message_of(error: BaseException, longest: int = LONGEST_LINE) -> str:
    """The message of an exception on one line of at most `longest` characters, even where its `__str__` fails."""
    try:
        return flat(str(error), longest)
    except Exception:
        return "(its message cannot be read)"


def few_lines(text: str) -> str:
    """A message as a command prints it: at most three lines, each printable and of bounded length."""
    return "\n".join(flat(line, LONGEST_OWN_LINE) for line in text.splitlines()[:3])


def one_line(error: BaseException, longest: int = LONGEST_LINE) -> str:
    """An exception as 'Type: message' on one line of at most `longest` characters.

    Example:
        >>> one_line(ValueError("no such file"))
        'ValueError: no such file'
    """
    name = flat(type(error).__name__, 60)
    text = message_of(error, longest - len(name) - 2)
    return f"{name}: {text}" if text else name
