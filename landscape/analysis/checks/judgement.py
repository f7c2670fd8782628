"""What a check may say, and numbers as checks say them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from landscape.store.state import finite
from landscape.surface.record_entries import Check, CheckState

ORDER: tuple[CheckState, ...] = ("holds", "reservation", "fails")  # from the best to the worst


class NotJudged(Exception):
    """A check cannot be judged; its text says why."""


@dataclass(frozen=True)
class Judgement:
    """What a check says: see `Check`, whose number and name stand in the table of checks.

    Attributes:
        value: the number that was judged; NaN where there is none.
    """

    state: CheckState
    text: str
    remedy: str = ""
    value: float = math.nan
    numbers: Mapping[str, object] = field(default_factory=dict)

    def as_check(self, number: str, name: str) -> Check:
        """The check with its numbers as JSON holds them: those that are not finite are None."""
        kept = finite(dict(self.numbers))
        judged = float(self.value) if math.isfinite(self.value) else None
        return Check(
            number=number, name=name, state=self.state, text=self.text, remedy=self.remedy, value=judged, numbers=kept
        )


def number(value: float, digits: int = 3) -> str:
    """A number with so many significant digits, without an exponent where it is readable without one.

    >>> number(0.08714), number(1234567.0), number(99.7, 2), number(2e-7)
    ('0.0871', '1.23e+06', '100', '2e-07')
    """
    text = f"{value:.{digits}g}"
    return f"{float(text):.0f}" if "e+" in text and abs(value) < 1e6 else text


def percent(share: float) -> str:
    """A share in percent, two digits of it; whole numbers from 10 % on.

    >>> percent(0.0123), percent(0.4), percent(3e-6)
    ('1.2 %', '40 %', '0.0003 %')
    """
    size = abs(100 * share)
    if size >= 10 or size == 0:
        return f"{100 * share:.0f} %"
    places = max(1, -math.floor(math.log10(size)) + (size >= 0.1)) if size < 1 else 1
    return f"{100 * share:.{places}f} %"
