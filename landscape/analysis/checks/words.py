"""Numbers as the checks say them, and what is not judged."""

from __future__ import annotations

import math
from collections.abc import Mapping

from landscape.surface.record_entries import Check, CheckState


class NotJudged(Exception):
    """A check cannot be judged; its text says why."""


def check(
    number: str,
    name: str,
    state: CheckState,
    text: str,
    remedy: str = "",
    value: float = math.nan,
    numbers: Mapping[str, object] | None = None,
) -> Check:
    """A check with its numbers as JSON holds them: those that are not finite are None."""
    kept = {key: _finite(each) for key, each in (numbers or {}).items()}
    judged = float(value) if math.isfinite(value) else None
    return Check(number=number, name=name, state=state, text=text, remedy=remedy, value=judged, numbers=kept)


def _finite(value: object) -> object:
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    return value


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
