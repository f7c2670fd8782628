"""How large a study is and where it keeps what it trains: in full as it is published, small as the tests execute it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeVar

from landscape.core.errors import JobError, nearest, quoted

SIZE_VARIABLE = "LANDSCAPE_STUDY"
FULL, SMALL = "full", "small"
FOLDER = Path("runs/studies")

T = TypeVar("T")


def size() -> str:
    """`full`, or `small` where LANDSCAPE_STUDY says so.

    Raises:
        JobError: LANDSCAPE_STUDY is neither.
    """
    asked = os.environ.get(SIZE_VARIABLE) or FULL
    if asked not in (FULL, SMALL):
        raise JobError(f"{SIZE_VARIABLE}: unknown {quoted(asked)}; {nearest(asked, (FULL, SMALL))}")
    return asked


def choose(full: T, small: T) -> T:
    """The first in a study in full, the second in a small one."""
    return full if size() == FULL else small


def folder_of(study: str, *names: str) -> Path:
    """Where a study of this size keeps its runs, below the working folder, so that it need not train twice."""
    return FOLDER.joinpath(size(), study, *names)
