"""How a case of the fuzzers is judged: by rule, the same for every case.

A command that met bad input ends with one of the documented codes, says why in at most a few short lines that name what
was wrong, shows nothing internal, and leaves no process, no file and no change behind that nobody asked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

CODES = (0, 1, 2, 3, 4, 5)  # 130 is an interruption's
MOST_LINES, LONGEST_LINE = 3, 500
LONGEST_NAME = 12  # of a field that must be named: messages keep the two ends of what is longer
# What a person who does not know the code cannot make anything of.
INTERNAL = re.compile(
    r"Traceback \(most|File \"[^\"]*\.py\", line|JSONDecodeError|RecursionError|UnicodeDecodeError|UnicodeEncodeError|"
    r"\b(?:Key|Attribute|Index|Type|Assertion|ZeroDivision|Overflow|NotImplemented|Unbound\w+|Name)Error\b|"
    r"ValidationError|pydantic|cyclopts|ArrayV[23]Metadata|GroupMetadata|zarr\.(?:core|errors|codecs)|numcodecs|"
    r"<class '|<function|<bound method| object at 0x|yaml\.\w+\.\w+Error|SafetensorError|BadZipFile"
)
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\x80-\x9f\u202a-\u202e\u2066-\u2069]")


@dataclass(frozen=True)
class Ended:
    """A command that has ended; `code` is None where it had to be stopped."""

    code: int | None
    out: str
    err: str
    seconds: float = 0.0


@dataclass(frozen=True)
class Verdict:
    """What is wrong with how a case ended: `faults` break a rule, `unclear` is text that a person may not understand."""

    faults: tuple[str, ...] = ()
    unclear: tuple[str, ...] = ()

    def __add__(self, other: Verdict) -> Verdict:
        return Verdict(self.faults + other.faults, self.unclear + other.unclear)


def judge(ended: Ended, named: Iterable[str] = (), *, refused: bool = False, raised: str = "") -> Verdict:
    """Judge one command.

    Args:
        named: words of which the first line must hold one, where the command did not end well: the field, the file.
        refused: whether it must not end well.
        raised: the type of exception that user code raised, which may be shown.
    """
    faults, unclear = [], []
    lines = [line for line in ended.err.splitlines() if line.strip()]
    if ended.code is None:
        faults.append("it hangs")
    elif ended.code not in CODES and not (ended.code == 130 and raised == "KeyboardInterrupt"):
        faults.append(f"code {ended.code}")
    elif refused and ended.code == 0:
        faults.append("code 0 for what cannot be right")
    for text in (ended.out, ended.err):
        shown = text.replace(raised, "") if raised else text
        internal = INTERNAL.search(shown)
        if internal:
            faults.append(f"shows {internal[0]!r}")
        control = CONTROL.search(text)
        if control:
            faults.append(f"shows the control character {control[0]!r}")
    if ended.code not in (0, None):
        if not lines and not ended.out.strip():
            unclear.append(f"code {ended.code} without a word")
        if len(lines) > MOST_LINES + 4:
            unclear.append(f"{len(lines)} lines")
        words = [word[:LONGEST_NAME] for word in named]
        if words and lines and not any(word in ended.err for word in words):
            unclear.append(f"names none of {words}")
    if any(len(line) > LONGEST_LINE for line in lines):
        unclear.append(f"a line of {max(map(len, lines))} characters")
    return Verdict(tuple(faults), tuple(unclear))


@dataclass(frozen=True)
class Kept:
    """Files that must be there, unchanged, after whatever a command did."""

    files: Mapping[Path, bytes] = field(default_factory=dict)

    @classmethod
    def of(cls, *paths: Path) -> Kept:
        return cls({path: path.read_bytes() for path in paths})

    def verdict(self) -> Verdict:
        lost = [str(path.name) for path, data in self.files.items() if not _same(path, data)]
        return Verdict(tuple(f"{name} of the user's is gone or changed" for name in lost))


def _same(path: Path, data: bytes) -> bool:
    try:
        return path.read_bytes() == data
    except OSError:
        return False
