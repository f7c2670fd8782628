"""Values as text: numbers, durations, sizes and names of files as people read them, and JSON for digests."""

from __future__ import annotations

import hashlib
import json
import math
import sys
from numbers import Real
from typing import Any


def finite_or_none(value: Any) -> float | None:
    """`value` as a float; None where it is no number, or not a finite one.

    >>> finite_or_none(3), finite_or_none(math.nan), finite_or_none(10**400), finite_or_none("3"), finite_or_none(True)
    (3.0, None, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    return float(value) if abs(value) <= sys.float_info.max else None  # type: ignore[operator]


def number_text(value: float, digits: int = 4) -> str:
    """A number with `digits` significant digits.

    >>> number_text(0.0250), number_text(32_000_000_000.0), number_text(1 / 3, digits=2)
    ('0.025', '3.2e10', '0.33')
    """
    text = f"{value:.{digits}g}"
    mantissa, exponent, power = text.partition("e")
    return f"{mantissa}e{int(power)}" if exponent else text


def plus_minus(value: float, error: float) -> str:
    """A value ± two standard errors, down to the error's second digit; the value alone if the error is not finite.

    >>> plus_minus(0.88451, 0.0105), plus_minus(0.5, math.nan), plus_minus(0.25, 0.0)
    ('0.885 ± 0.021', '0.5', '0.25 ± 0')
    >>> plus_minus(123456.0, 170.0), plus_minus(3.21e-7, 1e-9), plus_minus(199.6, 65.0)
    ('123456 ± 340', '3.21e-7 ± 2e-9', '200 ± 130')
    """
    twice = 2 * error
    if not (math.isfinite(value) and math.isfinite(twice)) or twice <= 0:
        text = number_text(value, 5)
        return f"{text} ± {number_text(twice, 2)}" if math.isfinite(twice) else text
    of_value, of_error = _exponent(value, 4), _exponent(twice, 1)
    digits = max(1, min(of_value - of_error + 2, 15), of_value + 1 if of_value < 6 else 1)  # 1234, not 1.2e3
    error_digits = max(2, of_error + 1 if of_error < 6 else 2)
    return f"{number_text(value, digits)} ± {number_text(twice, error_digits)}"


def _exponent(number: float, places: int) -> int:
    return int(f"{abs(number):.{places}e}".partition("e")[2])


def count_text(count: int) -> str:
    """A count with narrow spaces between thousands.

    >>> count_text(1681)
    '1\\u202f681'
    """
    return f"{int(count):,}".replace(",", "\u202f")


def percent_text(fraction: Any) -> str:
    """A fraction in percent, with a space that does not break; '' where `fraction` is no finite number.

    >>> percent_text(0.6213), percent_text(None)
    ('62.1\\xa0%', '')
    """
    value = finite_or_none(fraction)
    return "" if value is None else f"{100 * value:.1f}\u00a0%"


def seconds_text(seconds: float, *, tenths: bool = False) -> str:
    """A duration.

    Args:
        tenths: whether durations below 100 seconds have tenths of a second.

    >>> seconds_text(8), seconds_text(200), seconds_text(7500), seconds_text(12.34, tenths=True)
    ('8 s', '3 min 20 s', '2 h 05 min', '12.3 s')
    """
    if not math.isfinite(seconds):
        return "unknown"
    whole = round(seconds)
    if tenths and seconds < 100:
        return f"{seconds:.1f} s"
    if whole < 60:
        return f"{whole} s" if seconds >= 1 or whole == seconds else f"{seconds:.1f} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def bytes_text(count: float) -> str:
    """A number of bytes.

    >>> bytes_text(1_500_000)
    '1.5 MB'
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def file_name(*parts: str) -> str:
    """The parts that are not empty, joined to a file name, without characters that a file system may refuse.

    >>> file_name("my run", "contour", "", "log")
    'my_run-contour-log'
    """
    joined = "-".join(part for part in parts if part)
    return "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in joined)[:120] or "landscape"


# ----------------------------------------------------------------------------------------------------
# One text for each plain value, and the digest of that text.


def canonical_json(value: Any) -> str:
    """The one JSON text of a value: sorted keys, no spaces, the shortest text of each float.

    Example:
        >>> canonical_json({"b": 0.5, "a": [1, None]})
        '{"a":[1,null],"b":0.5}'

    Raises:
        ValueError: it holds NaN or infinity, which JSON has not.
        TypeError: it holds something else that JSON has not.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(value: Any) -> str:
    """SHA-256 of the canonical JSON of a value, in hexadecimal.

    Example:
        >>> digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
        True
        >>> digest([])[:8]
        '4f53cda1'
    """
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()
