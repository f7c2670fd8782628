"""The values of a job's fields, one rule each: whole numbers, ranges, lists of snapshots, references to weights.

A rule takes what a user wrote and returns a plain Python value, or raises ValueError with the rule and the value.
NumPy's numbers pass as what they are; a bool is no number, and a text that looks like one is a text.
"""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, Union
from urllib.parse import urlsplit

from pydantic import BeforeValidator, WithJsonSchema

from landscape.core.errors import printable, shown

Unit = Literal["step", "epoch"]

LEAST_STEPS = 3  # of Lanczos, as many as ranks: with fewer, one vector would be both ends of a spectrum
MIN_SIZE, MAX_SIZE = 3, 65536
MOST = 10**12  # of anything that is counted
LARGEST_SEED = 2**64 - 1  # torch's
LARGEST_STEP = 2**63 - 1  # the store's
MOST_THREADS = 1024
MOST_WORKERS = 100_000
LONGEST_PATH, LONGEST_NAME = 4000, 255  # of common file systems
LARGEST_END = 1e308  # of a range
AUTO = "auto"  # a range that is found
MOST_GPUS = 1024  # of one worker
OF_RUN = re.compile(r"(.+)@(first|last|\d{1,15})")  # a snapshot of another run, as a job names it


def whole(value: Any) -> int:
    """A whole number: neither a bool nor a float nor a text that looks like one."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise ValueError(f"must be a whole number, not {shown(value)}")
    return int(value)


def real(value: Any) -> float:
    """A finite number."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ValueError(f"must be a number, not {shown(value)}{_plainly(value)}")
    number = _as_float(value)
    if not math.isfinite(number):
        raise ValueError(f"must be finite, not {shown(value)}")
    return number


def _as_float(value: Any) -> float:
    """A number as a float; infinity where it is beyond the range of floats."""
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _plainly(*values: Any) -> str:
    """The remedy for numbers that YAML reads as texts, such as 1e-3."""
    for value in values:
        try:
            number = float(value) if isinstance(value, str) else math.nan
        except ValueError:
            continue
        if math.isfinite(number):
            return f"; YAML takes {shown(value)} for text: write {number!r}" if repr(number) != value else "; no quotes"
    return ""


def between(low: int, high: int = MOST) -> Callable[[Any], int]:
    """The rule of a whole number from `low` to `high`.

    >>> between(1, 9)(10)
    Traceback (most recent call last):
    ValueError: must be at most 9, not 10
    """

    def check(value: Any) -> int:
        number = whole(value)
        if number < low:
            raise ValueError(f"must be at least {low}, not {shown(number)}")
        if number > high:
            raise ValueError(f"must be at most {high}, not {shown(number)}")
        return number

    return check


def size(value: Any) -> int:
    """A number of points along an axis."""
    if not MIN_SIZE <= whole(value) <= MAX_SIZE:
        raise ValueError(f"must be from {MIN_SIZE} to {MAX_SIZE} points per axis, not {shown(value)}")
    return int(value)


def gpus(value: Any) -> float:
    """A share of one GPU, or a whole number of GPUs: Ray cannot give one and a half."""
    number = real(value)
    if not 0 <= number <= MOST_GPUS or (number > 1 and number != int(number)):
        raise ValueError(f"must be a share from 0 to 1, or a whole number up to {MOST_GPUS}, not {shown(value)}")
    return number


def snapshots(value: Any) -> tuple[int, ...] | Literal["all"]:
    """The numbers of at least three snapshots, ascending and each once; or `all`.

    >>> snapshots([7, 1, 3, 1])
    (1, 3, 7)
    """
    if is_list(value) and len({whole(number) for number in value}) < 3:
        listed = shown(list(value))
        raise ValueError(f"must name at least 3 different snapshots, not {listed}; PCA needs 3 points to span a plane")
    return any_snapshots(value)


def any_snapshots(value: Any) -> tuple[int, ...] | Literal["all"]:
    """The numbers of at least one snapshot, ascending and each once; or `all`."""
    if isinstance(value, str) and value == "all":
        return "all"
    if not is_list(value):
        raise ValueError(f"must be a list of epochs or steps, or 'all', not {shown(value)}")
    named = [whole(number) for number in value]
    if not named:
        raise ValueError("must name at least one snapshot, not []; leave it out for all of them")
    if min(named) < 0 or max(named) > LARGEST_STEP:
        wrong = min(named) if min(named) < 0 else max(named)
        raise ValueError(f"must hold epochs or steps from 0 on, below 2**63, not {shown(wrong)}")
    return tuple(sorted(set(named)))


def snapshots_or_paths(value: Any) -> tuple[int, ...] | Literal["all"] | Literal["paths"]:
    """The same, or `paths` for the snapshots of all paths that the landscape draws."""
    return "paths" if isinstance(value, str) and value == "paths" else snapshots(value)


def is_list(value: Any) -> bool:
    """Whether a user would call it a list: a tuple is one, a text is none."""
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray))


def pair(value: Any) -> tuple[float, float]:
    """The two ends of a range, the lower one first."""
    if not is_list(value) or len(value) != 2:
        raise ValueError(f"must be a pair [low, high] or one pair per axis, not {shown(value)}")
    if any(isinstance(end, bool) or not isinstance(end, numbers.Real) for end in value):
        raise ValueError(f"must hold two numbers, not {shown(list(value))}{_plainly(*value)}")
    low, high = map(_as_float, value)
    if not (abs(low) < LARGEST_END and abs(high) < LARGEST_END):
        raise ValueError(f"must be finite, not {shown(list(value))}")
    if low >= high:
        raise ValueError(f"must go from low to high, not [{low:g}, {high:g}]; swap or widen the two ends")
    return low, high


def refuse_coinciding(low: float, high: float, points: int) -> None:
    """Refuse a range that is too narrow for so many different float64 coordinates.

    Args:
        low, high: the ends of the range.
        points: how many coordinates it shall hold.

    Raises:
        ValueError: two coordinates would be the same.
    """
    # Rationals a unit in the last place apart may round to the same float.
    if (high - low) / (points - 1) <= 2 * math.ulp(max(abs(low), abs(high))):
        raise ValueError(
            f"range must be wide enough for {points} different coordinates in float64, not [{low!r}, {high!r}]; "
            "widen it, or take fewer points"
        )


def reference(value: Any) -> int | str:
    """A set of weights: the number of a snapshot, `first`, `last`, RUN@last and the like, `problem`, or a file."""
    if isinstance(value, str) and value.strip():
        return value
    number = int(value) if isinstance(value, numbers.Integral) else -1
    if 0 <= number <= LARGEST_STEP and not isinstance(value, bool):
        return number
    raise ValueError(f"must be a snapshot's number, first, last, problem or a file of weights, not {shown(value)}")


def plain_text(value: str) -> str:
    """A name, path or URL: one line, in parts no longer than file systems allow."""
    if len(value) > LONGEST_PATH or any(len(part.encode(errors="replace")) > LONGEST_NAME for part in value.split("/")):
        rule = f"at most {LONGEST_PATH} characters, and {LONGEST_NAME} between slashes"
        raise ValueError(f"must have {rule}, not {len(value)}: {shown(value, 60)}")
    try:
        urlsplit(value if "://" in value else "")
    except ValueError:
        raise ValueError(f"must be a path or a whole URL, not {shown(value)}") from None
    if printable(value) != value or "\n" in value or "\t" in value:
        raise ValueError(f"must be text of one line without control characters, not {shown(value)}")
    return value


# A rule is code. What editors complete by, the JSON schema of a job, says once more beside it what it takes.
PAIR = {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}
SNAPSHOTS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 3}


def integer(low: int = 0, high: int = MOST) -> dict[str, Any]:
    """The JSON schema of a whole number from `low` to `high`."""
    return {"type": "integer", "minimum": low, "maximum": high}


def one_or_per_axis(schema: dict[str, Any]) -> WithJsonSchema:
    """The JSON schema of one value for all axes, or a list with one value per axis."""
    return WithJsonSchema({"anyOf": [schema, {"type": "array", "items": schema, "minItems": 1, "maxItems": 3}]})


Size = Annotated[int, BeforeValidator(size), WithJsonSchema(integer(MIN_SIZE, MAX_SIZE))]
Sizes = Annotated[tuple[Size, ...], one_or_per_axis(integer(MIN_SIZE, MAX_SIZE))]
Ranges = tuple[tuple[float, float], ...]
RangesOrAuto = Annotated[
    Union[Literal["auto"], Ranges],
    WithJsonSchema({"anyOf": [{"const": AUTO}, PAIR, {"type": "array", "items": PAIR, "minItems": 1, "maxItems": 3}]}),
]
TilePoints = Annotated[int, BeforeValidator(between(1, MAX_SIZE))]
TileShape = Annotated[tuple[TilePoints, ...], one_or_per_axis(integer(1, MAX_SIZE))]
Axes = Annotated[int, BeforeValidator(whole), WithJsonSchema(integer(1, 3))]
Seed = Annotated[int, BeforeValidator(between(0, LARGEST_SEED)), WithJsonSchema(integer(0, LARGEST_SEED))]
Count = Annotated[int, BeforeValidator(between(1)), WithJsonSchema(integer(1))]
Steps = Annotated[int, BeforeValidator(between(LEAST_STEPS)), WithJsonSchema(integer(LEAST_STEPS))]
Threads = Annotated[int, BeforeValidator(between(1, MOST_THREADS)), WithJsonSchema(integer(1, MOST_THREADS))]
Workers = Annotated[int, BeforeValidator(between(1, MOST_WORKERS)), WithJsonSchema(integer(1, MOST_WORKERS))]
Gpus = Annotated[float, BeforeValidator(gpus), WithJsonSchema({"type": "number", "minimum": 0, "maximum": MOST_GPUS})]
GpuNumber = Annotated[int, BeforeValidator(between(0)), WithJsonSchema(integer())]
Snapshots = Annotated[
    Union[tuple[int, ...], Literal["all"]],
    BeforeValidator(snapshots),
    WithJsonSchema({"anyOf": [SNAPSHOTS, {"const": "all"}]}),
]
SnapshotsOrPaths = Annotated[
    Union[tuple[int, ...], Literal["all"], Literal["paths"]],
    BeforeValidator(snapshots_or_paths),
    WithJsonSchema({"anyOf": [SNAPSHOTS, {"enum": ["all", "paths"]}]}),
]
Intervals = Annotated[tuple[tuple[int, ...], ...], WithJsonSchema({"type": "array", "items": SNAPSHOTS, "minItems": 1})]
Reference = Annotated[
    Union[int, str],
    BeforeValidator(reference),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string"}]}),
]
