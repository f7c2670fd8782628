"""How many replicas there are, at least and at most, and how many landscapes each of them holds."""

from __future__ import annotations

import re
from dataclasses import dataclass

from landscape.core.errors import JobError, shown

# That a replica holds at once, where the one asked for longest ago goes first; as many are loaded before a service is
# ready, so that none of these is loaded twice.
LANDSCAPES = 8


@dataclass(frozen=True)
class Scale:
    """How many replicas there are: at least, and at most where there is more to do."""

    fewest: int = 1
    most: int = 1


def scale_of(text: str | None, places: int) -> Scale:
    """The numbers that a user gives as MIN or MIN,MAX; default: 1, and as many as find a place.

    >>> scale_of("2", 8), scale_of("1,4", 8), scale_of(None, 8)
    (Scale(fewest=2, most=2), Scale(fewest=1, most=4), Scale(fewest=1, most=8))

    Raises:
        JobError: they are no such numbers.
    """
    if text is None:
        return Scale(1, max(1, places))
    match = re.fullmatch(r"([1-9]\d{0,3})(?:,([1-9]\d{0,3}))?", text)
    if match is None or int(match[2] or match[1]) < int(match[1]):
        raise JobError(f"replicas: must be MIN or MIN,MAX, whole numbers from 1 on, not {shown(text)}")
    return Scale(int(match[1]), int(match[2] or match[1]))
