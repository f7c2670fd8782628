"""Types of the commands' options. Numbers are read strictly, as 1.5 workers would otherwise be rounded silently."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import fields
from typing import Annotated, Any

from cyclopts import CoercionError, Parameter, Token

from landscape.core.errors import JobError, quoted


def _whole_numbers(kind: Any, tokens: Sequence[Token]) -> Any:
    """The numbers of one option; only an option that may be repeated has several."""
    for token in tokens:
        if not re.fullmatch(r"[-+]?[0-9]{1,4000}", token.value):
            raise CoercionError(msg=f"must be a whole number, not {quoted(token.value)}", token=token)
    numbers = [int(token.value) for token in tokens]
    return numbers if "list" in str(kind) else numbers[0]


def _number(kind: Any, tokens: Sequence[Token]) -> float:
    try:
        number = float(tokens[0].value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise CoercionError(msg=f"must be a finite number, not {quoted(tokens[0].value)}", token=tokens[0])
    return number


UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}


def _seconds(kind: Any, tokens: Sequence[Token]) -> float:
    match = re.fullmatch(rf"([0-9]{{1,9}}(?:\.[0-9]{{1,9}})?) ?({'|'.join(UNITS)})", tokens[0].value)
    if match is None:
        units = ", ".join(UNITS)
        raise CoercionError(
            msg=f"must be a number with one of the units {units}, such as 30d, not {quoted(tokens[0].value)}",
            token=tokens[0],
        )
    return float(match[1]) * UNITS[match[2]]


MaybeFlag = Annotated[bool | None, Parameter()]  # --NAME, --no-NAME, or neither
Flag = Annotated[bool, Parameter(negative="")]
Words = Annotated[list[str] | None, Parameter(negative="")]
MaybeNumber = Annotated[float | None, Parameter(converter=_number)]
Duration = Annotated[float | None, Parameter(converter=_seconds)]  # in seconds
Whole = Annotated[int, Parameter(converter=_whole_numbers)]
MaybeWhole = Annotated[int | None, Parameter(converter=_whole_numbers)]
ManyWhole = Annotated[list[int] | None, Parameter(converter=_whole_numbers, consume_multiple=True, negative="")]


def ranges_in(text: str) -> list[tuple[float, float]]:
    """The ranges of `LOW,HIGH` or `LOW,HIGH,LOW,HIGH,…`.

    Raises:
        JobError: it is something else.
    """
    pairs = pairs_in(text)
    if not pairs or not all(low < high and abs(low) + abs(high) < float("inf") for low, high in pairs):
        raise JobError(f"range: must be LOW,HIGH or LOW,HIGH per axis, such as --range=-2,2, not {quoted(text)}")
    return pairs


def pairs_in(text: str) -> list[tuple[float, float]]:
    """The pairs of `LOW,HIGH,LOW,HIGH,…`; none for any other text."""
    try:
        ends = [float(part) for part in text.split(",")]
        return list(zip(ends[::2], ends[1::2], strict=True))
    except ValueError:
        return []


def given_options(options: Any) -> dict[str, Any]:
    """The options of a group, which is a dataclass, that differ from their defaults."""
    return {entry.name: value for entry in fields(options) if (value := getattr(options, entry.name)) != entry.default}


def check_workers(workers: int | None, name: str = "workers") -> int | None:
    """The number of workers as given; `name` is that of the option.

    Raises:
        JobError: there cannot be so many.
    """
    from landscape.core.validation import MOST_WORKERS, between

    try:
        return None if workers is None else between(1, MOST_WORKERS)(workers)
    except ValueError as error:
        raise JobError(f"{name}: {error}") from None


def check_limit(workers: int | None, most: int | None, place: str = "max_workers") -> None:
    """Refuse more workers than a limit; `place` is what sets it.

    Raises:
        JobError: more are asked for.
    """
    if workers is not None and most is not None and workers > most:
        raise JobError(
            f"workers: must be at most the {most} of {place}, not {workers}; ask for fewer, or give "
            f"--max-workers {workers}"
        )
